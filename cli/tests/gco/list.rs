//! `gco inference list`.

use crate::house::House;

#[test]
fn an_empty_table_lists_nothing() {
    let house = House::new();
    house.run(&["inference", "list"]).code(0).says(&["ℹ No inference endpoints found\n"]);
    assert_eq!(house.run(&["inference", "list", "-o", "json"]).code(0).stdout, "[]\n");
}

#[test]
fn the_table_has_the_contracts_columns_and_cuts() {
    let house = House::new();
    let mut item = house.put_fixture("classic-full.json").item;
    item.insert("endpoint_name".to_owned(), "a-name-that-is-longer-than-the-column".into());
    item.insert("created_at".to_owned(), "2027-01-01T00:00:00+00:00".into());
    house.put(item);
    let listed = house.run(&["inference", "list"]).code(0).stdout;
    let expected = "\
NAME                      STATE        REGIONS                   REPLICAS IMAGE
a-name-that-is-longer-th  deploying    us-east-1,eu-west-1       4        123456789012.dkr.ecr.us-east-2.amazonaws
chat-large                deploying    us-east-1,eu-west-1       4        123456789012.dkr.ecr.us-east-2.amazonaws
";
    assert_eq!(listed, expected);
}

#[test]
fn filters_keep_rows_of_a_state_and_of_a_region() {
    let house = House::with_chat();
    house.run(&["inference", "deploy", "talk", "-i", "x:1", "-r", "ap-south-1"]).code(0);
    house.run(&["inference", "stop", "talk", "-y"]).code(0);
    let names = |arguments: &[&str]| -> Vec<String> {
        let listed = house.run(&[&["inference", "list", "-o", "json"], arguments].concat()).code(0).json();
        let rows = listed.as_array().unwrap().clone();
        rows.iter().map(|row| row["endpoint_name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&[]), ["talk", "chat"]);
    assert_eq!(names(&["-s", "stopped"]), ["talk"]);
    assert_eq!(names(&["-r", "eu-west-1"]), ["chat"]);
    assert!(names(&["-s", "stopped", "-r", "eu-west-1"]).is_empty());
}

#[test]
fn every_fixture_row_is_listed_in_every_format() {
    let house = House::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/rows");
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        house.put_fixture(file.unwrap().file_name().to_str().unwrap());
        count += 1;
    }
    assert!(count > 10, "{count}");
    let rows = house.rows().len();
    assert_eq!(house.run(&["inference", "list"]).code(0).stdout.lines().count(), rows + 1);
    let listed = house.run(&["--output", "json", "inference", "list"]).code(0).json();
    assert_eq!(listed.as_array().unwrap().len(), rows);
    let mut command = house.command(&["inference", "list"]);
    command.env("GCO_OUTPUT_FORMAT", "yaml");
    let yaml = crate::house::run(command).code(0).stdout;
    assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&yaml).unwrap(), listed);
}

#[test]
fn paused_endpoints_are_named_below_the_table() {
    let house = House::with_chat();
    house.run(&["inference", "pause", "chat"]).code(0);
    house.run(&["inference", "list"]).code(0).says(&["ℹ Paused (their regions change nothing): chat\n"]);
}
