//! The verbs that change one row.

use std::io::Cursor;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use gco::output::Console;
use gco_runtime::environment::Environment;
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::status::{RegionEntry, State};
use gco_store::table::{Consistency, Table as _};
use gco_store::transition::{self, StatusAuthority};
use gco_store::wire::{Item, Value};

use crate::house::{House, noon};

#[test]
fn scale_changes_the_count_and_keeps_the_state() {
    let house = House::with_chat();
    house.serve("chat", "us-east-1");
    house.promote("chat");
    house
        .run(&["inference", "scale", "chat", "-r", "4"])
        .code(0)
        .says(&["✓ Endpoint 'chat' scaled to 4 replicas per region\n"]);
    let row = house.row("chat").unwrap();
    assert_eq!(row.spec.at(&["replicas"]), Some(&Value::from(4)));
    assert_eq!(row.desired_state, DesiredState::Running);
    let printed =
        house.run(&["inference", "scale", "chat", "--replicas", "5", "-o", "json"]).code(0).complains(&["✓ "]);
    assert_eq!(printed.json()["spec"]["replicas"], 5);
}

#[test]
fn scale_refuses_autoscaled_and_mooncake_endpoints_in_the_contracts_words() {
    let house = House::new();
    let autoscaled = house.put_fixture("classic-hpa.json").name;
    let mooncake = house.put_fixture("mooncake-disaggregated.json").name;
    let before = house.rows();
    house.run(&["inference", "scale", &autoscaled, "-r", "2"]).code(1).complains(&[&format!(
        "✗ Endpoint '{autoscaled}' is autoscaled; update its min/max autoscaling bounds or disable autoscaling before using 'gco inference scale'.\n"
    )]);
    house.run(&["inference", "scale", &mooncake, "-r", "2"]).code(1).complains(&[&format!(
        "✗ Endpoint '{mooncake}' uses Mooncake topology; use 'gco inference set-topology' instead of 'gco inference scale'.\n"
    )]);
    assert_eq!(house.rows(), before);
}

#[test]
fn autoscale_turns_on_changes_and_turns_off_and_says_what_holds_now() {
    let house = House::with_chat();
    house.serve("chat", "us-east-1");
    house.promote("chat");
    let autoscale = |flags: &[&str]| house.run(&[&["inference", "autoscale", "chat"], flags].concat());
    autoscale(&["--min-replicas", "2", "--max-replicas", "8", "--metric", "cpu:70"])
        .code(0)
        .says(&["✓ Replicas of endpoint 'chat' in each region: 2 to 8, by cpu at 70 %\n"]);
    autoscale(&["--metric", "gpu:60", "--metric", "memory:150"])
        .code(0)
        .says(&["2 to 8, by gpu at 60 % and memory at 150 %\n"]);
    autoscale(&["--max-replicas", "8"]).code(0).says(&["is so already", "nothing was written"]);
    assert_eq!(house.row("chat").unwrap().desired_state, DesiredState::Running);
    house.run(&["inference", "list"]).code(0).says(&["  2-8 "]);
    house.run(&["inference", "status", "chat"]).code(0).says(&["2 to 8, by gpu at 60 % and memory at 150 %\n"]);
    let printed = autoscale(&["--off", "--replicas", "4", "-o", "json"]).code(0);
    assert_eq!(printed.json()["spec"]["replicas"], 4);
    assert_eq!(printed.json()["spec"]["autoscaling"]["enabled"], false);
    house.run(&["inference", "list"]).code(0).says(&[" 4 "]);
}

#[test]
fn autoscale_names_every_bad_flag_at_once_and_writes_nothing() {
    let house = House::with_chat();
    let before = house.rows();
    let autoscale = |flags: &[&str]| house.run(&[&["inference", "autoscale", "chat"], flags].concat());
    autoscale(&["--off", "--min-replicas", "2", "--metric", "cpu"])
        .code(2)
        .complains(&["✗ --min-replicas: cannot be used with --off\n", "✗ --metric: cannot be used with --off\n"]);
    autoscale(&["--replicas", "2"]).code(2).complains(&["✗ --replicas: needs --off"]);
    autoscale(&["--metric", "qps:2", "--max-replicas", "none"]).code(2).complains(&[
        "✗ --metric: must be 'cpu' or 'memory' or 'gpu' or 'gpu_memory', got 'qps'\n",
        "✗ --max-replicas: must be an integer, got 'none'\n",
    ]);
    autoscale(&["--min-replicas", "11"])
        .code(1)
        .complains(&["--max-replicas: must be at least min_replicas (11), got 10"]);
    assert_eq!(house.rows(), before);
}

#[test]
fn update_image_keeps_the_state_and_drops_images_by_region() {
    let house = House::new();
    let name = house.put_fixture("classic-full.json").name;
    house
        .run(&["inference", "update-image", &name, "-i", "vllm/vllm-openai:v2"])
        .code(0)
        .says(&["✓ Image of endpoint 'chat-large' set to vllm/vllm-openai:v2\n"])
        .complains(&["⚠ The images by region were dropped"]);
    let row = house.row(&name).unwrap();
    assert_eq!(row.spec.at(&["image"]), Some(&Value::from("vllm/vllm-openai:v2")));
    assert!(row.spec.at(&["region_image_uris"]).is_none());
    let again = house.run(&["inference", "update-image", &name, "-i", "vllm/vllm-openai:v2"]).code(0);
    again.says(&["has this image already; nothing was written\n"]);
    assert_eq!(house.row(&name).unwrap().updated_at, row.updated_at);
}

#[test]
fn an_edit_of_a_stopped_endpoint_leaves_it_stopped() {
    let house = House::with_chat();
    house.run(&["inference", "stop", "chat", "-y"]).code(0).says(&["✓ Endpoint 'chat' marked for stop\n"]);
    let hint = "takes effect with 'gco inference start chat'";
    house.run(&["inference", "update-image", "chat", "-i", "x:2"]).code(0).says(&[hint]);
    house.run(&["inference", "scale", "chat", "-r", "3"]).code(0).says(&[hint]);
    assert_eq!(house.row("chat").unwrap().desired_state, DesiredState::Stopped);
    house.run(&["inference", "stop", "chat", "-y"]).code(0).says(&["is stopped already"]);
    house.run(&["inference", "start", "chat"]).code(0).says(&["✓ Endpoint 'chat' marked for start\n"]);
    assert_eq!(house.row("chat").unwrap().desired_state, DesiredState::Running);
}

#[test]
fn only_stopped_endpoints_can_be_started() {
    let house = House::with_chat();
    house
        .run(&["inference", "start", "chat"])
        .code(1)
        .complains(&["✗ Endpoint 'chat' is in 'deploying' state; only stopped endpoints can be started.\n"]);
}

#[test]
fn delete_marks_the_row_and_every_edit_is_refused_from_then_on() {
    let house = House::with_chat();
    house
        .run(&["inference", "delete", "chat", "-y"])
        .code(0)
        .says(&["✓ Endpoint 'chat' marked for deletion\n", "gco inference status chat --watch --until deleted"]);
    let row = house.row("chat").unwrap();
    assert_eq!(row.desired_state, DesiredState::Deleted);
    assert_eq!(row.deletion_regions.as_deref(), Some(&["us-east-1".to_owned(), "eu-west-1".to_owned()][..]));
    let refused = |arguments: &[&str], participle: &str| {
        let expected =
            format!("✗ Endpoint 'chat' is deleted and cannot be {participle}; redeploy it after deletion completes.\n");
        house.run(&[&["inference"], arguments].concat()).code(1).complains(&[&expected]);
    };
    refused(&["scale", "chat", "-r", "2"], "scaled");
    refused(&["update-image", "chat", "-i", "x:2"], "updated");
    refused(&["stop", "chat", "-y"], "stopped");
    refused(&["pause", "chat"], "paused");
    house
        .run(&["inference", "start", "chat"])
        .code(1)
        .complains(&["✗ Endpoint 'chat' is deleted; wait for purge and redeploy it with 'gco inference deploy'.\n"]);
    house.run(&["inference", "delete", "chat", "-y"]).code(0).says(&["is being deleted already"]);
    assert_eq!(house.row("chat").unwrap().item, row.item);
}

#[test]
fn a_row_of_the_oldest_control_plane_is_given_an_identity_by_its_first_edit() {
    let house = House::new();
    let name = house.put_fixture("legacy-no-lifecycle.json").name;
    house.run(&["inference", "scale", &name, "-r", "2"]).code(0);
    let row = house.row(&name).unwrap();
    assert!(row.lifecycle_complete());
    assert_eq!(row.spec.at(&["replicas"]), Some(&Value::from(2)));
}

#[test]
fn an_edit_of_a_row_that_is_invalid_elsewhere_names_the_fields_of_the_row() {
    let house = House::new();
    let name = house.put_fixture("invalid-many-fields.json").name;
    let before = house.rows();
    house
        .run(&["inference", "update-image", &name, "-i", "x:2"])
        .code(1)
        .complains(&["spec.port: ", "spec.gpu_count: "]);
    let name = house.put_fixture("invalid-spec-not-a-map.json").name;
    let expected = format!("✗ Endpoint '{name}' has an invalid spec\n");
    house.run(&["inference", "update-image", &name, "-i", "x:2"]).code(1).complains(&[&expected]);
    assert_eq!(house.rows().len(), before.len() + 1);
}

#[test]
fn edits_keep_what_they_do_not_know() {
    let house = House::new();
    let before = house.put_fixture("unknown-keys.json");
    house.run(&["inference", "scale", &before.name, "-r", "7"]).code(0);
    house.run(&["inference", "update-image", &before.name, "-i", "x:9"]).code(0);
    let after = house.row(&before.name).unwrap();
    let essence = |item: &Item| {
        let mut item = item.clone();
        item.remove("updated_at");
        // Ours: what an undo brings back.
        item.remove("previous_spec");
        if let Some(Value::Map(spec)) = item.get_mut("spec") {
            spec.retain(|key, _| !["replicas", "image", "region_image_uris"].contains(&key.as_str()));
        }
        item
    };
    assert_eq!(essence(&after.item), essence(&before.item));
}

#[test]
fn a_pause_is_said_to_stop_the_monitors_until_it_is_resumed() {
    let house = House::with_chat();
    house.run(&["inference", "pause", "chat"]).code(0).says(&[
        "✓ Endpoint 'chat' paused\n",
        "the region monitors observe and report, but change nothing",
        "gco inference resume chat",
    ]);
    assert!(house.row("chat").unwrap().paused);
    house.run(&["inference", "status", "chat"]).code(0).says(&["(paused: the regions change nothing)"]);
    house.run(&["inference", "scale", "chat", "-r", "2"]).code(0).says(&["While it is paused"]);
    house.run(&["inference", "pause", "chat"]).code(0).says(&["is paused already"]);
    house.run(&["inference", "delete", "chat", "-y"]).code(1).complains(&["is paused", "gco inference resume chat"]);
    house.run(&["inference", "resume", "chat"]).code(0).says(&["✓ Endpoint 'chat' resumed\n"]);
    assert!(!house.row("chat").unwrap().paused);
    house.run(&["inference", "resume", "chat"]).code(0).says(&["is not paused already"]);
}

#[test]
fn two_edits_at_the_same_time_both_land() {
    let house = House::with_chat();
    for round in 1..=8 {
        let (image, replicas) = (format!("vllm/vllm-openai:r{round}"), (round + 1).to_string());
        let start = |arguments: &[&str]| {
            house.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let one = start(&["inference", "update-image", "chat", "-i", &image]);
        let other = start(&["inference", "scale", "chat", "-r", &replicas]);
        for edit in [one, other] {
            let output = edit.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        let spec = house.row("chat").unwrap().spec.to_plain_json();
        assert_eq!((spec["image"].as_str(), spec["replicas"].as_i64()), (Some(image.as_str()), Some(round + 1)));
    }
}

#[test]
fn edits_land_while_a_region_writes_its_status_several_times_a_second() {
    // Far more often than a region does, and long enough for an edit to come in between on a busy machine.
    const BETWEEN_WRITES: Duration = Duration::from_millis(200);
    let house = House::with_chat();
    let table = Arc::clone(&house.table);
    // Dropped, also by a failing assertion, it ends the writer.
    let (go_on, stop) = channel::<()>();
    let (wrote, status_written) = channel::<()>();
    let writer = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut writes = 0_u32;
        while stop.recv_timeout(BETWEEN_WRITES) == Err(RecvTimeoutError::Timeout) {
            runtime.block_on(async {
                let row = EndpointRow::parse(table.get("chat", Consistency::Strong).await.unwrap().unwrap()).unwrap();
                let authority = StatusAuthority::Live {
                    lifecycle_id: row.lifecycle_id.clone().unwrap(),
                    region_generation: row.region_generation("us-east-1").unwrap().to_owned(),
                };
                let entry = RegionEntry { replicas_ready: writes, ..RegionEntry::new(State::Running) };
                let write = transition::write_region_status(&row, "us-east-1", &entry, &authority, noon()).unwrap();
                // Refusals are what races look like from the other side.
                table.execute(&write).await.unwrap();
            });
            writes += 1;
            // Nobody listens once the edits are through.
            let _ = wrote.send(());
        }
    });
    for round in 1..=10 {
        // An edit right behind a write, so that every round has the writer beside it however fast the edits are.
        status_written.recv_timeout(Duration::from_secs(30)).expect("the region writes on");
        let image = format!("vllm/vllm-openai:s{round}");
        house.run(&["inference", "update-image", "chat", "-i", &image]).code(0);
        assert_eq!(house.row("chat").unwrap().spec.at(&["image"]), Some(&Value::from(image.as_str())));
    }
    drop(go_on);
    writer.join().unwrap();
}

/// Runs `gco` in this process, with a terminal at which `answer` is typed.
fn at_a_terminal(house: &House, arguments: &[&str], answer: &str) -> (u8, String, String) {
    let arguments: Vec<_> = std::iter::once("gco").chain(arguments.iter().copied()).map(Into::into).collect();
    let environment = Environment::from_pairs([("GCO_TABLE", format!("embedded:{}", house.table_file().display()))]);
    let (mut stdout, mut stderr, mut stdin) = (Vec::new(), Vec::new(), Cursor::new(answer.to_owned()));
    let mut console = Console { stdout: &mut stdout, stderr: &mut stderr, stdin: &mut stdin, stdin_is_terminal: true };
    let code = house.block_on(gco::run(&arguments, &environment, &mut console));
    (code, String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn a_person_is_asked_before_a_delete_and_a_stop() {
    let house = House::with_chat();
    let before = house.rows();
    for answer in ["", "\n", "n\n", "nonsense\n"] {
        let (code, _, stderr) = at_a_terminal(&house, &["inference", "delete", "chat"], answer);
        assert_eq!(code, 1);
        assert!(stderr.contains("Delete endpoint 'chat' in us-east-1, eu-west-1?"), "{stderr}");
        assert!(stderr.contains("✗ Nothing was changed"), "{stderr}");
    }
    assert_eq!(house.rows(), before);
    let (code, stdout, stderr) = at_a_terminal(&house, &["inference", "stop", "chat"], "y\n");
    assert_eq!((code, stdout.contains("✓ Endpoint 'chat' marked for stop")), (0, true), "{stderr}");
    let (code, _, stderr) = at_a_terminal(&house, &["inference", "delete", "chat"], "Yes\n");
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(house.row("chat").unwrap().desired_state, DesiredState::Deleted);
}

#[test]
fn refresh_marks_one_endpoint_or_all_and_asks_for_nothing_else() {
    let house = House::with_chat();
    let spec = house.row("chat").unwrap().spec;
    house.run(&["inference", "refresh", "chat"]).code(0).says(&["✓ Endpoint 'chat' marked for a refresh\n"]);
    let first = house.row("chat").unwrap();
    assert_eq!(first.spec, spec);
    assert_eq!(first.refresh.as_ref().unwrap().at_once, None);
    let other = house.put_fixture("classic-minimal.json").name;
    house
        .run(&["inference", "refresh", "--all", "--at-once", "2", "-y"])
        .code(0)
        .says(&["✓ 2 of 2 endpoints marked for a refresh\n"]);
    let wishes: Vec<_> = ["chat", &other].map(|name| house.row(name).unwrap().refresh.unwrap()).into();
    assert_eq!(wishes[0], wishes[1], "one wish for all");
    assert_eq!(wishes[0].at_once, Some(2));
    assert_ne!(Some(&wishes[0]), first.refresh.as_ref());
    assert!(!house.row("chat").unwrap().paused);
}

#[test]
fn refresh_clear_notes_the_time_in_the_second_table() {
    let house = House::with_chat();
    house
        .run(&["inference", "refresh", "--clear", "-r", "us-east-1"])
        .code(0)
        .says(&["✓ Failed restarts in us-east-1 count as looked at"]);
    let item = house.block_on(async { house.table.read_region("us-east-1").await }).unwrap().unwrap();
    assert!(item.restarts_cleared_at.is_some());
    assert!(!item.frozen);
}
