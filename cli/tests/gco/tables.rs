//! Which table, and what is said when it cannot be used.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use crate::house::{House, run};

#[test]
fn a_table_file_that_does_not_exist_is_an_error_and_is_not_made() {
    let house = House::new();
    let path = house.folder.path().join("typo.sqlite");
    let table = format!("embedded:{}", path.display());
    house
        .run(&["inference", "list", "--table", &table])
        .code(1)
        .complains(&[&format!("✗ table file {}: ", path.display()), "there is no such file"]);
    assert!(!path.exists());
}

#[test]
fn a_file_that_is_no_table_is_named() {
    let house = House::new();
    let path = house.folder.path().join("notes.txt");
    std::fs::write(&path, "milk, bread and many other things that are no database".repeat(100)).unwrap();
    let table = format!("embedded:{}", path.display());
    house
        .run(&["inference", "list", "--table", &table])
        .code(1)
        .complains(&[&format!("✗ table file {}: ", path.display())]);
}

#[test]
fn a_flag_chooses_another_table_than_the_environment() {
    let house = House::with_chat();
    let other = House::new();
    let table = format!("embedded:{}", other.table_file().display());
    house.run(&["inference", "list", "--table", &table]).code(0).says(&["No inference endpoints found"]);
    house.run(&["inference", "list"]).code(0).says(&["chat"]);
}

#[test]
fn a_dynamodb_table_that_is_absent_is_named_with_its_region_and_address() {
    let house = House::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut buffer = [0_u8; 4096];
        // The body of a GetItem ends the request; its length does not matter here.
        while !request.windows(2).any(|window| window == b"}}") {
            let count = stream.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "the request ended early");
            request.extend_from_slice(&buffer[..count]);
        }
        let body = r#"{"__type":"com.amazonaws.dynamodb.v20120810#ResourceNotFoundException","message":"no table"}"#;
        let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/x-amz-json-1.0\r\nconnection: close";
        write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        String::from_utf8_lossy(&request).into_owned()
    });
    let mut command = house.command(&["inference", "status", "chat"]);
    command
        .env_remove("GCO_TABLE")
        .env("DYNAMODB_ENDPOINT_URL", &address)
        .env("GCO_GLOBAL_REGION", "eu-west-1")
        .env("INFERENCE_ENDPOINTS_TABLE_NAME", "my-endpoints");
    run(command).code(1).complains(&[
        &format!("✗ table my-endpoints in eu-west-1 at {address}: GetItem: "),
        "check --table, the table's name and region",
    ]);
    let request = server.join().unwrap();
    assert!(request.contains("/eu-west-1/dynamodb/"), "{request}");
    assert!(request.contains(r#""TableName":"my-endpoints""#), "{request}");
}

#[test]
fn the_table_and_the_regions_of_the_local_instance_are_used_when_asked_for() {
    let house = House::new();
    let folder = house.folder.path().join(".local/share/gco-local");
    house.run(&["inference", "list", "--local"]).code(1).complains(&[
        &format!("✗ --local: no local instance: there is no {}/local.json", folder.display()),
        "gco local up",
    ]);
    std::fs::create_dir_all(&folder).unwrap();
    let state = serde_json::json!({
        "table": format!("embedded:{}", house.table_file().display()),
        "regions": ["region-a", {"name": "region-b"}],
    });
    std::fs::write(folder.join("local.json"), state.to_string()).unwrap();
    let command = |arguments: &[&str], variable: Option<&str>| {
        let mut command = house.command(arguments);
        // What the environment says of a fleet has no part in the instance on this machine.
        command.env_remove("GCO_TABLE").env("GCO_REGIONS", "eu-north-1").env("DYNAMODB_REGION", "eu-north-1");
        if let Some(value) = variable {
            command.env("GCO_LOCAL", value);
        }
        command
    };
    run(command(&["inference", "deploy", "chat", "-i", "x:1", "--local"], None)).code(0);
    assert_eq!(house.row("chat").unwrap().target_regions, ["region-a", "region-b"]);
    run(command(&["inference", "list"], Some("1"))).code(0).says(&["chat"]);
    run(command(&["inference", "list"], Some(folder.to_str().unwrap()))).code(0).says(&["chat"]);
    run(command(&["inference", "deploy", "talk", "-i", "x:1", "-r", "region-c", "--local"], None))
        .code(2)
        .complains(&["✗ --region: 'region-c' is none of the regions of the local instance: region-a, region-b"]);
    house.run(&["inference", "list", "--local", "--table", "dynamodb"]).code(2).complains(&["✗ --local: "]);
    std::fs::write(folder.join("local.json"), "{}").unwrap();
    run(command(&["inference", "list", "--local"], None)).code(1).complains(&["local.json names no regions"]);
}
