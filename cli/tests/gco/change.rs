//! `gco inference set`, `edit` and `undo`.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::house::{House, run};

fn spec(house: &House) -> serde_json::Value {
    house.row("chat").unwrap().spec.to_plain_json()
}

#[test]
fn set_merges_fields_into_what_is_there_and_says_what_happens_to_the_pods() {
    let house = House::with_chat();
    house
        .run(&["inference", "set", "chat", "-e", "MODEL=/m", "-e", "DEBUG=1", "--request", "cpu=2"])
        .code(0)
        .says(&["Endpoint 'chat': env, resources changed", "Its pods are replaced, while the old ones go on serving"]);
    house
        .run(&["inference", "set", "chat", "--unset-env", "DEBUG", "--env-from-secret", "HF_TOKEN=hugging-face/token"])
        .code(0);
    house.run(&["inference", "set", "chat", "--max-surge", "1"]).code(0).says(&["No pod is restarted for it"]);
    let spec = spec(&house);
    assert_eq!(spec["env"], json!({"MODEL": "/m"}));
    assert_eq!(spec["env_from_secret"], json!({"HF_TOKEN": {"name": "hugging-face", "key": "token"}}));
    assert_eq!(spec["resources"], json!({"requests": {"cpu": "2"}}));
    assert_eq!(spec["max_surge"], json!(1));
    let before = house.row("chat").unwrap();
    house.run(&["inference", "set", "chat", "--max-surge", "1"]).code(0).says(&["is so already; nothing was written"]);
    assert_eq!(house.row("chat").unwrap(), before);
}

#[test]
fn set_tells_what_it_would_do_and_writes_nothing_when_asked() {
    let house = House::with_chat();
    let before = house.rows();
    house
        .run(&["inference", "set", "chat", "--port", "9000", "--dry-run"])
        .code(0)
        .says(&["Would change: port; nothing was written", "Its pods are replaced"]);
    let after = house.run(&["inference", "set", "chat", "--port", "9000", "--dry-run", "-o", "json"]).code(0).json();
    assert_eq!(after["port"], json!(9000));
    assert_eq!(house.rows(), before);
}

#[test]
fn a_bad_value_is_named_by_its_flag_and_nothing_is_written() {
    let house = House::with_chat();
    let before = house.rows();
    for (flags, said) in [
        (&["--port", "0"][..], "--port: "),
        (&["--request", "cpu=much"], "--request cpu: "),
        (&["--env-from-secret", "A=Bad_Name/key"], "--env-from-secret A.name: "),
        (&["--image-pull-secret", "Bad_Name"], "--image-pull-secret (number 1): "),
        (&["--node-selector", "zone=a b"], "--node-selector zone: "),
        (&["--env", "hunter2"], "--env (number 1): "),
        (&[], "nothing to set"),
    ] {
        let mut arguments = vec!["inference", "set", "chat"];
        arguments.extend(flags);
        let ran = house.run(&arguments).code(2).complains(&[said]);
        assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
    }
    assert_eq!(house.rows(), before);
}

#[test]
fn edit_takes_a_file_or_standard_input_and_keeps_what_is_not_edited() {
    let house = House::with_chat();
    let file = house.folder.path().join("spec.yaml");
    std::fs::write(
        &file,
        "image: vllm/vllm-openai:v2\nport: 8000\nreplicas: 1\ngpu_count: 1\nhealth_check_path: /ready\n",
    )
    .unwrap();
    let file = file.display().to_string();
    house.run(&["inference", "edit", "chat", "--file", &file]).code(0).says(&["health_check_path, image changed"]);
    assert_eq!(spec(&house)["health_check_path"], json!("/ready"));
    house.run(&["inference", "edit", "chat", "--file", &file]).code(0).says(&["nothing was written"]);
    std::fs::write(&file, "image: [unclosed\n").unwrap();
    house.run(&["inference", "edit", "chat", "--file", &file]).code(2).complains(&["spec: is neither YAML nor JSON"]);
    std::fs::write(&file, "image: a:1\nport: many\n").unwrap();
    house.run(&["inference", "edit", "chat", "--file", &file]).code(2).complains(&["spec.port: "]);
}

#[test]
fn edit_opens_the_users_editor_and_an_editor_that_fails_changes_nothing() {
    let house = House::with_chat();
    let script = |text: &str| {
        let path = house.folder.path().join("editor.sh");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    };
    let with_editor = |editor: Option<&str>| {
        let mut command = house.command(&["inference", "edit", "chat"]);
        command.env("PATH", "/usr/bin:/bin");
        if let Some(editor) = editor {
            command.env("EDITOR", editor);
        }
        run(command)
    };
    let editor = script("sed -i 's/^port: 8000/port: 9000/' \"$1\"");
    with_editor(Some(&editor)).code(0).says(&["Endpoint 'chat': port changed"]);
    assert_eq!(spec(&house)["port"], json!(9000));
    let before = house.rows();
    with_editor(Some(&script("exit 3"))).code(1).complains(&["the editor ended with", "nothing was written"]);
    with_editor(Some(&script("true"))).code(0).says(&["is as it was; nothing was written"]);
    with_editor(None).code(1).complains(&["set EDITOR"]);
    assert_eq!(house.rows(), before);
}

#[test]
fn an_edit_of_a_field_that_somebody_else_changed_meanwhile_is_refused_and_one_of_another_field_is_not() {
    let house = House::with_chat();
    let gco = crate::house::BINARY;
    let editor = |other: &str, own: &str| {
        let path = house.folder.path().join("editor.sh");
        let table = format!("embedded:{}", house.table_file().display());
        let text = format!(
            "#!/bin/sh\n'{gco}' --table '{table}' inference set chat {other} >/dev/null\nsed -i '{own}' \"$1\"\n"
        );
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = house.command(&["inference", "edit", "chat"]);
        command.env("PATH", "/usr/bin:/bin").env("EDITOR", path.display().to_string());
        run(command)
    };
    editor("--health-path /other", "s/^port: 8000/port: 9000/").code(0);
    assert_eq!((&spec(&house)["port"], &spec(&house)["health_check_path"]), (&json!(9000), &json!("/other")));
    editor("--port 9001", "s/^port: 9000/port: 9002/")
        .code(1)
        .complains(&["Somebody else has changed 'port' of endpoint 'chat' meanwhile"]);
    assert_eq!(spec(&house)["port"], json!(9001));
}

#[test]
fn undo_brings_back_the_spec_before_the_last_edit_and_keeps_the_replica_count() {
    let house = House::with_chat();
    house.run(&["inference", "undo", "chat"]).code(1).complains(&["has no earlier spec to go back to"]);
    let first = spec(&house);
    house.run(&["inference", "update-image", "chat", "-i", "vllm/vllm-openai:v9"]).code(0);
    let second = spec(&house);
    house.run(&["inference", "scale", "chat", "--replicas", "3"]).code(0);
    house.run(&["inference", "undo", "chat"]).code(0).says(&["image set back to what it was before the last edit"]);
    let mut wanted = first.clone();
    wanted["replicas"] = json!(3);
    assert_eq!(spec(&house), wanted);
    // Undoing twice is doing it again.
    house.run(&["inference", "undo", "chat"]).code(0);
    let mut again = second;
    again["replicas"] = json!(3);
    assert_eq!(spec(&house), again);
}

#[test]
fn an_edit_by_somebody_who_keeps_no_earlier_spec_is_not_undone_to_something_older() {
    let house = House::with_chat();
    house.run(&["inference", "update-image", "chat", "-i", "vllm/vllm-openai:v9"]).code(0);
    // The earlier command line writes the spec and the version, and keeps every attribute that it does not know.
    let mut item = house.row("chat").unwrap().item;
    let gco_store::wire::Value::Map(spec) = item.get_mut("spec").unwrap() else { panic!() };
    spec.insert("image".to_owned(), gco_store::wire::Value::from("vllm/vllm-openai:v10"));
    house.put(item);
    let before = house.rows();
    house
        .run(&["inference", "undo", "chat"])
        .code(1)
        .complains(&["was edited since by a writer that keeps no earlier spec"]);
    assert_eq!(house.rows(), before);
}
