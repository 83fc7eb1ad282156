//! `gco inference status`.

use gco_store::status::{ObservedSpec, PodReason, RegionEntry, Rollout, State, StatusCondition};
use gco_store::table::{RegionHeartbeat, Table as _};

use crate::house::{House, PATIENCE};

#[test]
fn status_shows_the_contracts_header_and_region_table() {
    let house = House::with_chat();
    house.serve("chat", "us-east-1");
    let shown = house.run(&["inference", "status", "chat"]).code(0).stdout;
    let row = house.row("chat").unwrap();
    let created = row.created_at.unwrap();
    let last_sync = &row.region_status["us-east-1"].last_sync.clone().unwrap()[..19];
    let expected = format!(
        "\
Endpoint: chat
  State:     deploying
  Image:     vllm/vllm-openai:v1
  Replicas:  1
  GPUs:      1
  Port:      8000
  Path:      /inference/chat
  Namespace: gco-inference
  Created:   {created}

  REGION             STATE      READY  DESIRED  LAST SYNC
  us-east-1          running    1      1        {last_sync}
  eu-west-1          -          -      -        -

  eu-west-1
    not seen yet: the region has said nothing of this endpoint
"
    );
    assert_eq!(shown, expected);
}

#[test]
fn json_and_yaml_are_the_whole_row() {
    let house = House::with_chat();
    house.serve("chat", "us-east-1");
    let row = gco_store::wire::item_to_plain_json(&house.row("chat").unwrap().item);
    assert_eq!(house.run(&["inference", "status", "chat", "-o", "json"]).code(0).json(), row);
    let yaml = house.run(&["inference", "status", "chat", "--output", "yaml"]).code(0).stdout;
    assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&yaml).unwrap(), row);
}

#[test]
fn status_says_why_a_region_does_not_do_what_is_asked() {
    let house = House::with_chat();
    let condition = |kind: &str, status: &str| StatusCondition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason: "BecauseOfThat".to_owned(),
        message: format!("words of {kind}"),
        since: "2026-11-29T12:00:00+00:00".to_owned(),
    };
    let entry = RegionEntry {
        replicas_ready: 1,
        replicas_desired: 3,
        degraded: true,
        error: Some("PodsNotReady: 2 of 3".to_owned()),
        conditions: vec![condition("Ready", "True"), condition("RolledOut", "False"), condition("Blocked", "True")],
        observed_spec: Some(ObservedSpec { seen: Some("ab".repeat(32)), applied: None, serving: None }),
        rollout: Some(Rollout { updated: 2, updated_ready: 1, total: 3, stuck: Some("FailedCreate".to_owned()) }),
        blocked_by: vec!["Service/chat".to_owned()],
        pods: vec![PodReason {
            reason: "CrashLoopBackOff".to_owned(),
            message: "out of memory\u{1b}[31m".to_owned(),
            count: 2,
            example: "chat-5f-x".to_owned(),
            exit_code: Some(137),
        }],
        ..RegionEntry::new(State::Running)
    };
    house.report("chat", "us-east-1", &entry);
    let ran = house.run(&["inference", "status", "chat"]).code(0).says(&[
        "    degraded: serves, with 1 of 3 replicas ready\n",
        "    spec: the last edit is not seen yet (seen abababab, applied none, serves none)\n",
        "    rollout: 2 of 3 pods are new, 1 of them ready; stuck: FailedCreate\n",
        "    pods not ready: 2 CrashLoopBackOff (exit code 137), for example chat-5f-x: out of memory [31m\n",
        "    blocked by objects that are not ours: Service/chat\n",
        "    RolledOut is False (BecauseOfThat) since 2026-11-29T12:00:00: words of RolledOut\n",
        "    Blocked is True (BecauseOfThat)",
        "    error: PodsNotReady: 2 of 3\n",
    ]);
    assert!(!ran.stdout.contains("words of Ready\n"), "{}", ran.stdout);
}

#[test]
fn status_says_whether_a_region_is_up_to_date() {
    let house = House::with_chat();
    let spec = gco_store::spec::Spec::check(&house.row("chat").unwrap().spec).unwrap().spec;
    let hash = Some(spec.spec_hash());
    let observed = ObservedSpec { seen: hash.clone(), applied: hash.clone(), serving: hash };
    let entry = RegionEntry { observed_spec: Some(observed), ..RegionEntry::new(State::Running) };
    house.report("chat", "us-east-1", &entry);
    house.run(&["inference", "status", "chat"]).code(0).says(&["    spec: up to date (seen "]);
    house.run(&["inference", "update-image", "chat", "-i", "vllm/vllm-openai:v2"]).code(0);
    house.run(&["inference", "status", "chat"]).code(0).says(&["    spec: the last edit is not seen yet (seen "]);
}

#[test]
fn a_silent_monitor_is_warned_of() {
    let house = House::with_chat();
    let heartbeat = |region: &str, at: String, read_age_seconds| {
        let heartbeat = RegionHeartbeat {
            region: region.to_owned(),
            last_heartbeat: at,
            version: "0.1.0".to_owned(),
            leader: "monitor-7".to_owned(),
            last_complete_read_age_seconds: read_age_seconds,
            orphans: None,
            admission_fence: "order effective, lease effective".to_owned(),
        };
        house.block_on(house.table.write_heartbeat(&heartbeat, PATIENCE)).unwrap();
    };
    heartbeat("us-east-1", "2020-01-01T00:00:00+00:00".to_owned(), 3);
    // Ahead of every clock, so that it is fresh whenever the test runs.
    heartbeat("eu-west-1", "2999-01-01T00:00:00+00:00".to_owned(), 4000);
    house.block_on(house.table.set_frozen("eu-west-1", true)).unwrap();
    house
        .run(&["inference", "status", "chat"])
        .code(0)
        .says(&["monitor: heartbeat 0 s ago, leader monitor-7, version 0.1.0\n", "    frozen: "])
        .complains(&[
            "⚠ us-east-1: the last heartbeat of its monitor is ",
            "⚠ eu-west-1: its monitor last read the whole table 66 min",
        ]);
}

#[test]
fn a_deletion_shows_who_has_not_confirmed() {
    let house = House::new();
    let row = house.put_fixture("deleting-half-acknowledged.json");
    house
        .run(&["inference", "status", &row.name])
        .code(0)
        .says(&["  State:     deleted\n", "  Deletion:  waiting for "]);
}

#[test]
fn a_row_that_cannot_be_served_says_which_fields_are_wrong() {
    let house = House::new();
    let row = house.put_fixture("invalid-many-fields.json");
    house
        .run(&["inference", "status", &row.name])
        .code(0)
        .says(&["Problem:   spec.port: ", "Problem:   spec.gpu_count: "]);
}

#[test]
fn every_fixture_row_has_a_status() {
    let house = House::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/rows")).unwrap() {
        let row = house.put_fixture(file.unwrap().file_name().to_str().unwrap());
        house.run(&["inference", "status", &row.name]).code(0).says(&["REGION", "LAST SYNC"]);
    }
}

#[test]
fn an_absent_endpoint_is_not_found_in_the_named_table() {
    let house = House::new();
    let expected = format!("✗ Endpoint 'chat' not found in table file {}\n", house.table_file().display());
    for verb in ["status", "start", "pause", "resume"] {
        house.run(&["inference", verb, "chat"]).code(1).complains(&[&expected]);
    }
    house.run(&["inference", "scale", "chat", "-r", "2"]).code(1).complains(&[&expected]);
    house.run(&["inference", "delete", "chat", "-y"]).code(1).complains(&[&expected]);
}
