//! `canary`, `promote` and `rollback`.

use gco_store::row::DesiredState;
use gco_store::status::{RegionEntry, State};
use gco_store::wire::{Item, Value};

use crate::house::House;

/// What a region says of a canary.
fn told(house: &House, region: &str, state: &str, image: &str, ready: i64) {
    let canary = Item::from([
        ("state".to_owned(), Value::from(state)),
        ("image".to_owned(), Value::from(image)),
        ("weight".to_owned(), Value::from(25)),
        ("replicas_ready".to_owned(), Value::from(ready)),
        ("replicas_desired".to_owned(), Value::from(2)),
    ]);
    let extra = Item::from([("canary".to_owned(), Value::Map(canary))]);
    house.report("chat", region, &RegionEntry { extra, ..RegionEntry::new(State::Running) });
}

#[test]
fn a_canary_is_given_shown_and_promoted() {
    let house = House::with_chat();
    house
        .run(&["inference", "canary", "chat", "-i", "vllm/vllm-openai:v2", "-w", "25", "-r", "2"])
        .code(0)
        .says(&["✓ Canary of endpoint 'chat': 25 % of the requests to vllm/vllm-openai:v2, 2 replicas per region\n"]);
    let row = house.row("chat").unwrap();
    assert_eq!(row.desired_state, DesiredState::Deploying, "an edit keeps the state");
    assert_eq!(
        row.spec.at(&["canary"]).unwrap().to_plain_json(),
        serde_json::json!({"image": "vllm/vllm-openai:v2", "weight": 25, "replicas": 2})
    );
    let again = ["inference", "canary", "chat", "-i", "vllm/vllm-openai:v2", "-w", "25", "-r", "2"];
    house.run(&again).code(0).says(&["has this canary already; nothing was written\n"]);
    told(&house, "us-east-1", "running", "vllm/vllm-openai:v2", 2);
    told(&house, "eu-west-1", "updating", "vllm/vllm-openai:v2", 1);
    house.run(&["inference", "status", "chat"]).code(0).says(&[
        "  Canary:    25 % to vllm/vllm-openai:v2, 2 per region\n",
        "    canary: running, 2 of 2 ready, vllm/vllm-openai:v2\n",
    ]);
    house
        .run(&["inference", "promote", "chat", "-y"])
        .code(0)
        .says(&["✓ Canary of endpoint 'chat' promoted: its image is vllm/vllm-openai:v2\n"])
        .complains(&["⚠ eu-west-1: the canary does not serve there (updating, 1 of 2 ready, vllm/vllm-openai:v2)\n"]);
    let row = house.row("chat").unwrap();
    assert_eq!(row.spec.at(&["image"]), Some(&Value::from("vllm/vllm-openai:v2")));
    assert!(row.spec.at(&["canary"]).is_none());
    let none = "✗ Endpoint 'chat' has no active canary deployment\n";
    house.run(&["inference", "promote", "chat", "-y"]).code(1).complains(&[none]);
    house.run(&["inference", "rollback", "chat", "-y"]).code(1).complains(&[none]);
}

#[test]
fn the_defaults_of_a_canary_are_a_tenth_and_one_replica_and_a_roll_back_leaves_no_trace() {
    let house = House::with_chat();
    let before = house.row("chat").unwrap().spec;
    let printed = house.run(&["inference", "canary", "chat", "-i", "x:2", "-o", "json"]).code(0).json();
    assert_eq!(printed["spec"]["canary"], serde_json::json!({"image": "x:2", "weight": 10, "replicas": 1}));
    house.run(&["inference", "rollback", "chat", "-y"]).code(0).says(&["✓ Canary of endpoint 'chat' rolled back\n"]);
    assert_eq!(house.row("chat").unwrap().spec, before);
}

#[test]
fn what_cannot_have_a_canary_says_so_in_the_contracts_words() {
    let house = House::with_chat();
    let mooncake = house.put_fixture("mooncake-store.json").name;
    house.run(&["inference", "stop", "chat", "-y"]).code(0);
    let before = house.rows();
    for (arguments, words) in [
        (
            vec!["canary", "chat", "-i", "x:2"],
            "✗ Cannot canary an endpoint in 'stopped' state. Endpoint must be running or deploying.\n",
        ),
        (vec!["canary", &mooncake, "-i", "x:2"], "✗ Canary deployments are not supported for Mooncake endpoints\n"),
        (vec!["promote", &mooncake, "-y"], "✗ Canary promotion is not supported for Mooncake endpoints\n"),
        (vec!["rollback", "nobody", "-y"], "✗ Endpoint 'nobody' not found"),
    ] {
        house.run(&[&["inference"], &arguments[..]].concat()).code(1).complains(&[words]);
    }
    assert_eq!(house.rows(), before);
}

#[test]
fn a_wait_until_running_waits_for_the_canary_too() {
    let house = House::with_chat();
    house.run(&["inference", "canary", "chat", "-i", "x:2", "-r", "2", "-w", "25"]).code(0);
    house.run(&["inference", "regions", "remove", "chat", "eu-west-1", "-y"]).code(0);
    let spec = gco_store::spec::Spec::check(&house.row("chat").unwrap().spec).unwrap().spec;
    let hash = Some(spec.template_input_hash("us-east-1"));
    let observed = gco_store::status::ObservedSpec { seen: hash.clone(), applied: hash.clone(), serving: hash };
    let entry = |state: Option<&str>| {
        let canary = state.map(|state| {
            let canary = Item::from([
                ("state".to_owned(), Value::from(state)),
                ("image".to_owned(), Value::from("x:2")),
                ("weight".to_owned(), Value::from(25)),
                ("replicas_ready".to_owned(), Value::from(if state == "running" { 2 } else { 1 })),
                ("replicas_desired".to_owned(), Value::from(2)),
            ]);
            ("canary".to_owned(), Value::Map(canary))
        });
        RegionEntry {
            replicas_ready: 1,
            replicas_desired: 1,
            observed_spec: Some(observed.clone()),
            extra: canary.into_iter().collect(),
            ..RegionEntry::new(State::Running)
        }
    };
    let wait = ["inference", "status", "chat", "--watch", "--until", "running", "--timeout-seconds", "1"];
    house.report("chat", "us-east-1", &entry(None));
    house.promote("chat");
    house.run(&wait).code(3).complains(&["the canary is not seen yet"]);
    house.report("chat", "us-east-1", &entry(Some("updating")));
    house.run(&wait).code(3).complains(&["1 of 2 pods of the canary are ready"]);
    house.report("chat", "us-east-1", &entry(Some("running")));
    house.run(&wait).code(0);
}
