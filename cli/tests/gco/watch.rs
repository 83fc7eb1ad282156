//! `gco inference status --watch` and `gco inference deploy --wait`.

use gco_store::spec::Spec;
use gco_store::status::{ObservedSpec, PodReason, RegionEntry, State};
use gco_store::transition::{Condition, Operation, Transition, Write};

use crate::house::House;

fn creating(reason: &str) -> RegionEntry {
    let pod = PodReason {
        reason: reason.to_owned(),
        message: String::new(),
        count: 1,
        example: "chat-x".to_owned(),
        exit_code: None,
    };
    RegionEntry { replicas_desired: 1, pods: vec![pod], ..RegionEntry::new(State::Creating) }
}

#[test]
fn a_watch_prints_again_on_every_change_and_ends_with_ctrl_c() {
    let house = House::with_chat();
    let watch = house.start(&["inference", "status", "chat", "--watch"]);
    watch.until_stdout("eu-west-1          -");
    house.report("chat", "us-east-1", &creating("ImagePullBackOff"));
    watch.until_stdout("pods not ready: 1 ImagePullBackOff, for example chat-x");
    house.serve("chat", "us-east-1");
    let again = watch.until_stdout("us-east-1          running");
    assert!(again.contains("\n--- 2"), "{again}");
    watch.interrupt();
    let (code, _, stderr) = watch.end();
    assert_eq!((code, stderr.as_str()), (0, ""));
}

#[test]
fn a_watch_in_json_prints_one_document_on_each_line() {
    let house = House::with_chat();
    let watch = house.start(&["inference", "status", "chat", "--watch", "--until", "running", "-o", "json"]);
    let states = |line: &str| {
        let document: serde_json::Value = serde_json::from_str(line.trim_end()).unwrap();
        document["region_status"].as_object().unwrap().len()
    };
    assert_eq!(states(&watch.until_stdout("{")), 0);
    house.serve("chat", "us-east-1");
    assert_eq!(states(&watch.until_stdout("{")), 1);
    house.serve("chat", "eu-west-1");
    assert_eq!(states(&watch.until_stdout("{")), 2);
    house.promote("chat");
    let (code, rest, _) = watch.end();
    assert_eq!((code, states(&rest)), (0, 2));
}

/// What a region says that serves what the row asks for, with two replicas.
fn serving_as_asked(house: &House, region: &str) -> RegionEntry {
    let spec = Spec::check(&house.row("chat").unwrap().spec).unwrap().spec;
    let hash = Some(spec.template_input_hash(region));
    let observed = ObservedSpec { seen: hash.clone(), applied: hash.clone(), serving: hash };
    let replicas = spec.replicas;
    RegionEntry {
        replicas_ready: replicas,
        replicas_desired: replicas,
        observed_spec: Some(observed),
        ..RegionEntry::new(State::Running)
    }
}

#[test]
fn a_watch_until_running_straight_after_an_edit_waits_for_the_edit() {
    let house = House::with_chat();
    for region in ["us-east-1", "eu-west-1"] {
        house.report("chat", region, &serving_as_asked(&house, region));
    }
    house.promote("chat");
    let until_running = ["inference", "status", "chat", "--watch", "--until", "running", "--timeout-seconds", "1"];
    house.run(&until_running).code(0);

    for edit in [&["update-image", "chat", "-i", "vllm/vllm-openai:v2"][..], &["scale", "chat", "-r", "2"][..]] {
        house.run(&[&["inference"], edit].concat()).code(0);
        let late = house.run(&until_running).code(3);
        late.complains(&["us-east-1: running, 1 of 1 ready; ", "eu-west-1: running, 1 of 1 ready; ", "not seen yet"]);
        let patient = ["inference", "status", "chat", "--watch", "--until", "running"];
        let watch = house.start(&patient);
        watch.until_stdout("eu-west-1          running");
        house.report("chat", "us-east-1", &serving_as_asked(&house, "us-east-1"));
        watch.until_stdout("spec: up to date");
        house.report("chat", "eu-west-1", &serving_as_asked(&house, "eu-west-1"));
        let (code, stdout, stderr) = watch.end();
        assert_eq!(code, 0, "{stdout}{stderr}");
    }
}

#[test]
fn a_watch_until_running_runs_out_of_time_and_says_what_is_missing() {
    let house = House::with_chat();
    house.serve("chat", "us-east-1");
    house.report("chat", "eu-west-1", &creating("Unschedulable"));
    let arguments = ["inference", "status", "chat", "--watch", "--until", "running", "--timeout-seconds", "1"];
    house.run(&arguments).code(3).complains(&[
        "✗ Endpoint 'chat' is not running after 1 s: eu-west-1: creating, 0 of 1 ready (1 Unschedulable)\n",
    ]);
}

#[test]
fn a_watch_until_running_ends_at_once_when_a_region_cannot_serve_it() {
    let house = House::with_chat();
    let failed = RegionEntry { error: Some("SpecInvalid: no".to_owned()), ..RegionEntry::new(State::Failed) };
    house.report("chat", "us-east-1", &failed);
    house.run(&["inference", "status", "chat", "--watch", "--until", "running"]).code(1).complains(&[
        "✗ Endpoint 'chat' will not become running: us-east-1 cannot serve the endpoint as it is: SpecInvalid: no\n",
    ]);
    house
        .run(&["inference", "status", "chat", "--watch", "--until", "stopped"])
        .code(1)
        .complains(&["✗ Endpoint 'chat' will not become stopped: the endpoint is asked to be 'deploying'"]);
}

#[test]
fn a_watch_until_deleted_ends_when_the_row_is_gone() {
    let house = House::with_chat();
    house.run(&["inference", "delete", "chat", "-y"]).code(0);
    let watch = house.start(&["inference", "status", "chat", "--watch", "--until", "deleted"]);
    watch.until_stdout("Deletion:  waiting for us-east-1, eu-west-1");
    house.execute(&Transition {
        operation: Operation::Purge,
        name: "chat".to_owned(),
        condition: Condition::All(Vec::new()),
        write: Write::Delete,
        base_updated_at: None,
        new_updated_at: None,
    });
    let (code, rest, _) = watch.end();
    assert_eq!(code, 0);
    assert!(rest.contains("ℹ The endpoint is gone from the table\n"), "{rest}");
}

#[test]
fn deploy_with_wait_tells_of_progress_and_ends_when_every_region_serves() {
    let house = House::new();
    let arguments = ["inference", "deploy", "chat", "-i", "x:1", "-r", "us-east-1", "-r", "eu-west-1", "--wait"];
    let wait = house.start(&arguments);
    wait.until_stderr("ℹ eu-west-1: not seen yet");
    house.report("chat", "us-east-1", &creating("ContainerCreating"));
    wait.until_stderr("ℹ us-east-1: creating, 0 of 1 ready (1 ContainerCreating)");
    house.serve("chat", "us-east-1");
    house.promote("chat");
    wait.until_stderr("ℹ us-east-1: running, 1 of 1 ready");
    house.serve("chat", "eu-west-1");
    let (code, stdout, _) = wait.end();
    assert_eq!(code, 0);
    assert!(stdout.contains("✓ Endpoint 'chat' serves in every region: us-east-1, eu-west-1\n"), "{stdout}");
}

#[test]
fn deploy_with_wait_in_json_prints_only_the_row_as_it_is_in_the_end() {
    let house = House::new();
    let wait = house.start(&["inference", "deploy", "chat", "-i", "x:1", "-r", "us-east-1", "--wait", "-o", "json"]);
    wait.until_stderr("ℹ us-east-1: not seen yet");
    house.serve("chat", "us-east-1");
    house.promote("chat");
    let (code, stdout, _) = wait.end();
    let row: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, row["desired_state"].as_str()), (0, Some("running")));
}

#[test]
fn a_wait_that_is_interrupted_undoes_nothing() {
    let house = House::new();
    let wait = house.start(&["inference", "deploy", "chat", "-i", "x:1", "-r", "us-east-1", "--wait"]);
    wait.until_stderr("ℹ us-east-1: not seen yet");
    wait.interrupt();
    let (code, _, stderr) = wait.end();
    assert_eq!(code, 130);
    assert!(stderr.contains("✗ interrupted while waiting"), "{stderr}");
    assert!(house.row("chat").is_some());
}
