//! `regions add`, `regions remove`, `delete --force-region-absent` and `orphans`.

use gco_store::orphans::{Orphan, OrphanReport};
use gco_store::row::DesiredState;
use gco_store::table::{RegionHeartbeat, Table as _};

use crate::house::{House, PATIENCE, run};

/// Ahead of every clock, so that it is fresh whenever the test runs.
const FRESH: &str = "2999-01-01T00:00:00+00:00";
const OLD: &str = "2020-01-01T00:00:00+00:00";

fn heartbeat(house: &House, region: &str, at: &str, orphans: Option<OrphanReport>) {
    let heartbeat = RegionHeartbeat {
        region: region.to_owned(),
        last_heartbeat: at.to_owned(),
        version: "0.1.0".to_owned(),
        leader: "monitor-7".to_owned(),
        last_complete_read_age_seconds: 3,
        orphans,
        admission_fence: String::new(),
    };
    house.block_on(house.table.write_heartbeat(&heartbeat, PATIENCE)).unwrap();
}

#[test]
fn regions_come_and_go_one_at_a_time() {
    let house = House::with_chat();
    heartbeat(&house, "ap-south-1", FRESH, None);
    let add = house.run(&["inference", "regions", "add", "chat", "ap-south-1"]).code(0);
    add.says(&["✓ Endpoint 'chat' will be served in ap-south-1 too\n"]);
    let row = house.row("chat").unwrap();
    assert_eq!(row.target_regions, ["us-east-1", "eu-west-1", "ap-south-1"]);
    house.run(&["inference", "regions", "add", "chat", "ap-south-1"]).code(0).says(&["targets ap-south-1 already"]);
    house
        .run(&["inference", "regions", "add", "chat", "sa-east-1"])
        .code(0)
        .complains(&["⚠ No heartbeat of a monitor so far from sa-east-1"]);
    house
        .run(&["inference", "regions", "remove", "chat", "us-east-1", "-y"])
        .code(0)
        .says(&["✓ Endpoint 'chat' will be removed from us-east-1\n"]);
    let row = house.row("chat").unwrap();
    assert_eq!(row.target_regions, ["eu-west-1", "ap-south-1", "sa-east-1"]);
    assert!(row.cleanup_regions.unwrap().contains(&"us-east-1".to_owned()));
    let absent = ["inference", "regions", "remove", "chat", "us-east-1", "-y"];
    house.run(&absent).code(0).says(&["does not target us-east-1; nothing was written"]);
    let json = house.run(&["inference", "regions", "add", "chat", "us-east-1", "-o", "json"]).code(0).json();
    assert_eq!(json["target_regions"][3], "us-east-1");
}

#[test]
fn the_last_region_is_kept_and_a_wrong_one_refused() {
    let house = House::with_chat();
    house.run(&["inference", "regions", "remove", "chat", "eu-west-1", "-y"]).code(0);
    house
        .run(&["inference", "regions", "remove", "chat", "us-east-1", "-y"])
        .code(1)
        .complains(&["'us-east-1' is the only region of endpoint 'chat'", "gco inference delete"]);
    house.run(&["inference", "regions", "add", "chat", "Moon"]).code(2).complains(&["✗ REGION: "]);
    house.run(&["inference", "regions", "remove", "chat", "us-east-1"]).code(2).complains(&["✗ --yes: is needed"]);
    house.run(&["inference", "delete", "chat", "-y"]).code(0);
    house
        .run(&["inference", "regions", "add", "chat", "eu-west-1"])
        .code(1)
        .complains(&["is deleted and cannot be moved to other regions"]);
}

#[test]
fn d21_an_operator_who_declares_a_region_gone_is_told_what_stays_and_is_kept_on_the_row() {
    let house = House::with_chat();
    heartbeat(&house, "eu-west-1", OLD, None);
    let arguments = [
        "inference",
        "delete",
        "chat",
        "-y",
        "--force-region-absent",
        "eu-west-1",
        "--reason",
        "decommissioned, 4711",
        "--by",
        "ada",
    ];
    house
        .run(&arguments)
        .code(0)
        .says(&[
            "✓ Endpoint 'chat' marked for deletion\n",
            "✓ eu-west-1 declared gone for good by ada: decommissioned, 4711\n",
        ])
        .complains(&["⚠ Whatever of 'chat' is left in eu-west-1 is not removed", "gco inference orphans", "kubectl"]);
    let row = house.row("chat").unwrap();
    assert_eq!(row.desired_state, DesiredState::Deleted);
    let absent = &row.absent_regions["eu-west-1"];
    assert_eq!((absent.by.as_str(), absent.reason.as_str()), ("ada", "decommissioned, 4711"));
    house.run(&["inference", "status", "chat"]).code(0).says(&[
        "  Deletion:  waiting for us-east-1 to confirm",
        "eu-west-1 was declared gone for good by ada: decommissioned, 4711\n",
    ]);
    house.run(&arguments).code(0).says(&["eu-west-1 was declared gone already; nothing was written"]);
    // The other one too: nobody is left who could purge the row, so it is done here.
    let mut other =
        house.command(&["inference", "delete", "chat", "-y", "--force-region-absent", "us-east-1", "--reason", "x"]);
    other.env("GCO_OPERATOR", "grace");
    run(other).code(0).says(&["declared gone for good by grace", "✓ Endpoint 'chat' is gone; the name is free\n"]);
    assert!(house.row("chat").is_none());
}

#[test]
fn a_region_that_lives_is_not_declared_gone() {
    let house = House::with_chat();
    heartbeat(&house, "eu-west-1", FRESH, None);
    let before = house.rows();
    house
        .run(&[
            "inference",
            "delete",
            "chat",
            "-y",
            "--force-region-absent",
            "eu-west-1",
            "--reason",
            "x",
            "--by",
            "ada",
        ])
        .code(1)
        .complains(&["✗ eu-west-1 is not gone: its monitor's last heartbeat is ", "nothing was changed"]);
    assert_eq!(house.rows(), before);
    house
        .run(&[
            "inference",
            "delete",
            "chat",
            "-y",
            "--force-region-absent",
            "sa-east-1",
            "--reason",
            "x",
            "--by",
            "ada",
        ])
        .code(1)
        .complains(&["does not wait for 'sa-east-1'"]);
}

#[test]
fn a_declaration_needs_a_reason_and_a_name() {
    let house = House::with_chat();
    let before = house.rows();
    let delete = |rest: &[&str]| house.run(&[&["inference", "delete", "chat", "-y"], rest].concat());
    delete(&["--force-region-absent", "eu-west-1"]).code(2).complains(&["✗ --reason: is needed", "✗ --by: is needed"]);
    delete(&["--reason", "x"]).code(2).complains(&["✗ --reason: needs --force-region-absent"]);
    delete(&["--force-region-absent", "EU", "--reason", "x", "--by", "a"])
        .code(2)
        .complains(&["✗ --force-region-absent: "]);
    assert_eq!(house.rows(), before);
}

#[test]
fn orphans_are_shown_as_the_regions_tell_of_them() {
    let house = House::with_chat();
    house.run(&["inference", "orphans"]).code(0).says(&["ℹ No region tells of objects that no endpoint owns\n"]);
    let orphan =
        |name: &str, pods| Orphan { object: format!("deployment/{name}"), lifecycle_id: Some("ab".repeat(32)), pods };
    let many = (0..50).map(|number| orphan(&format!("gone-{number:02}"), 2)).collect();
    heartbeat(&house, "eu-west-1", FRESH, Some(OrphanReport::of(many, FRESH.to_owned())));
    heartbeat(&house, "us-east-1", FRESH, Some(OrphanReport::of(vec![orphan("old", 1)], OLD.to_owned())));
    heartbeat(&house, "sa-east-1", FRESH, None);
    house
        .run(&["inference", "orphans"])
        .code(0)
        .says(&[
            "deployment/gone-00",
            "abababababababab\n",
            "and 10 more",
            "deployment/old",
            "51 objects that no endpoint owns",
        ])
        .complains(&["⚠ us-east-1: what its monitor tells is ", "⚠ sa-east-1: its monitor does not tell (yet)"]);
    let json = house.run(&["inference", "orphans", "-r", "us-east-1", "-o", "json"]).code(0).json();
    assert_eq!(json["us-east-1"]["count"], 1);
    assert_eq!(json["us-east-1"]["objects"][0]["object"], "deployment/old");
    house.run(&["inference", "orphans", "-r", "Moon"]).code(2).complains(&["✗ --region: "]);
}
