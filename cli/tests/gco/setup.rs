//! `gco inference setup`, `freeze` and `unfreeze`.

use gco_store::index::{Part, PartState};
use gco_store::table::Table as _;

use crate::house::House;

fn state(house: &House, part: Part) -> PartState {
    house.block_on(house.table.inspect(part)).unwrap()
}

#[test]
fn setup_says_what_is_missing_and_makes_it_without_touching_a_row() {
    let house = House::with_chat();
    let rows = house.rows();
    house
        .run(&["inference", "setup", "--check"])
        .code(1)
        .says(&["endpoint table   ready\n", "regions' table   ready\n", "change index     missing\n"])
        .complains(&["missing: change index; 'gco inference setup --apply' makes what is missing"]);
    assert_eq!(state(&house, Part::ChangeIndex), PartState::Missing, "--check changes nothing");
    house.run(&["inference", "setup", "--apply"]).code(0).says(&["change index     made\n"]);
    let again = house.run(&["inference", "setup", "--apply", "-o", "json"]).code(0).json();
    assert_eq!(again["parts"][2]["state"], "ready");
    assert_eq!(again["parts"][2]["made"], false);
    house.run(&["inference", "setup", "--check"]).code(0).says(&["change index     ready\n"]);
    assert_eq!(state(&house, Part::ChangeIndex), PartState::Ready);
    assert_eq!(house.rows(), rows);
}

#[test]
fn setup_makes_the_first_table_only_when_asked() {
    let house = House::new();
    let empty = house.folder.path().join("empty.sqlite");
    std::fs::write(&empty, "").unwrap();
    let table = format!("embedded:{}", empty.display());
    let run = |more: &[&str]| {
        let mut arguments = vec!["inference", "setup", "--table", table.as_str()];
        arguments.extend(more);
        house.run(&arguments)
    };
    run(&["--check"]).code(1).complains(&["missing: endpoint table, regions' table, change index"]);
    run(&["--apply"]).code(1).complains(&["there is no table file ", "add --create-table to make it"]);
    run(&["--check"]).code(1).complains(&["missing: endpoint table, regions' table, change index"]);
    run(&["--apply", "--create-table"]).code(0).says(&["endpoint table   made\n", "change index     made\n"]);
    run(&["--check"]).code(0);
}

#[test]
fn setup_wants_one_of_its_two_ways() {
    let house = House::new();
    for bad in [&["setup"][..], &["setup", "--check", "--apply"], &["setup", "--check", "--create-table"]] {
        let mut arguments = vec!["inference"];
        arguments.extend(bad);
        house.run(&arguments).code(2);
    }
}

#[test]
fn a_region_is_frozen_and_unfrozen_and_a_name_that_never_reported_is_pointed_out() {
    let house = House::with_chat();
    house
        .run(&["inference", "freeze", "us-east-1"])
        .code(0)
        .says(&["Region 'us-east-1' is frozen", "'gco inference unfreeze us-east-1' ends that"])
        .complains(&["No monitor of a region 'us-east-1' has ever reported"]);
    assert!(house.block_on(house.table.read_region("us-east-1")).unwrap().unwrap().frozen);
    house.run(&["inference", "freeze", "us-east-1"]).code(0).says(&["is frozen already; nothing was written"]);
    house.run(&["inference", "status", "chat"]).code(0).says(&["frozen: "]);
    house.run(&["inference", "unfreeze", "us-east-1"]).code(0).says(&["is not frozen any more"]);
    assert!(!house.block_on(house.table.read_region("us-east-1")).unwrap().unwrap().frozen);
    house.run(&["inference", "freeze", "us east"]).code(2).complains(&["REGION: must be a region's name"]);
}
