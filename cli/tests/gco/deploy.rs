//! `gco inference deploy`.

use gco_store::row::DesiredState;
use gco_store::table::{RegionHeartbeat, Table as _};
use serde_json::json;

use crate::house::{House, PATIENCE};

const IMAGE: &str = "vllm/vllm-openai:v1";
const ECR_IMAGE: &str = "123456789012.dkr.ecr.us-east-2.amazonaws.com/gco/vllm:v1";

#[test]
fn deploy_writes_the_contracts_row_and_says_where_it_goes() {
    let house = House::new();
    let arguments =
        ["inference", "deploy", "chat", "-i", IMAGE, "-r", "us-east-1", "-r", "eu-west-1", "-r", "us-east-1"];
    house.run(&arguments).code(0).says(&[
        "✓ Endpoint 'chat' registered for deployment\n",
        "ℹ Target regions: us-east-1, eu-west-1\n",
        "ℹ Ingress path: /inference/chat\n",
        "gco inference status chat",
    ]);
    let row = house.row("chat").unwrap();
    assert_eq!(row.desired_state, DesiredState::Deploying);
    assert_eq!(row.target_regions, ["us-east-1", "eu-west-1"]);
    assert_eq!(row.namespace.as_deref(), Some("gco-inference"));
    assert_eq!(row.lifecycle_id.unwrap().len(), 64);
    assert_eq!(
        row.spec.to_plain_json(),
        json!({"image": IMAGE, "port": 8000, "replicas": 1, "gpu_count": 1, "health_check_path": "/health"})
    );
}

#[test]
fn every_flag_of_deploy_lands_in_the_row() {
    let house = House::new();
    let arguments: Vec<&str> = "inference deploy chat -i gco/tgi:v2 -r us-east-1 --replicas 3 --gpu-count 4 \
         --gpu-type g5.12xlarge --port 9000 --model-path /models/chat --model-source s3://models/chat \
         --health-path /ready -e MODEL=a=b --env EMPTY= -l team=search --capacity-type spot \
         --extra-args --max-len --extra-args 8192 --command python --command -m --accelerator nvidia \
         --framework tgi --node-selector pool=p5 --request cpu=2 --limit memory=32Gi \
         --startup-timeout-seconds 3600 --drain-seconds 120 --max-surge 1 -n gco-inference -o json"
        .split_whitespace()
        .collect();
    let ran = house.run(&arguments).code(0).complains(&["⚠ --gpu-type: ", "⚠ --model-path: ", "✓ Endpoint 'chat'"]);
    let row = ran.json();
    assert_eq!(row, house.row("chat").map(|row| gco_store::wire::item_to_plain_json(&row.item)).unwrap());
    assert_eq!(row["labels"], json!({"team": "search"}));
    assert_eq!(
        row["spec"],
        json!({
            "image": "gco/tgi:v2", "port": 9000, "replicas": 3, "gpu_count": 4, "gpu_type": "g5.12xlarge",
            "health_check_path": "/ready", "model_path": "/models/chat", "model_source": "s3://models/chat",
            "env": {"MODEL": "a=b", "EMPTY": ""}, "args": ["--max-len", "8192"], "command": ["python", "-m"],
            "capacity_type": "spot", "framework": "tgi", "node_selector": {"pool": "p5"},
            "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "32Gi"}},
            "startup_timeout_seconds": 3600, "drain_seconds": 120, "max_surge": 1,
        })
    );
}

#[test]
fn an_ecr_image_is_pulled_from_each_regions_own_registry_unless_that_is_declined() {
    let house = House::new();
    let regions = ["-r", "us-east-2", "-r", "eu-west-1"];
    house.run(&[&["inference", "deploy", "chat", "-i", ECR_IMAGE], &regions[..]].concat()).code(0);
    let images = house.row("chat").unwrap().spec.to_plain_json()["region_image_uris"].clone();
    let in_europe = ECR_IMAGE.replace("us-east-2", "eu-west-1");
    assert_eq!(images, json!({"us-east-2": ECR_IMAGE, "eu-west-1": in_europe}));
    house
        .run(&[&["inference", "deploy", "talk", "-i", ECR_IMAGE, "--no-rewrite-image"], &regions[..]].concat())
        .code(0);
    assert!(house.row("talk").unwrap().spec.at(&["region_image_uris"]).is_none());
}

#[test]
fn a_neuron_endpoint_says_so_in_its_row() {
    let house = House::new();
    house.run(&["inference", "deploy", "chat", "-i", IMAGE, "-r", "us-east-1", "--accelerator", "neuron"]).code(0);
    assert_eq!(house.row("chat").unwrap().spec.to_plain_json()["accelerator"], "neuron");
}

#[test]
fn a_dry_run_prints_the_row_and_writes_nothing() {
    let house = House::new();
    let arguments = ["inference", "deploy", "chat", "-i", ECR_IMAGE, "-r", "eu-west-1", "--dry-run"];
    let json = house.run(&[&arguments[..], &["-o", "json"]].concat()).code(0).complains(&["Dry run"]).json();
    assert_eq!(json["desired_state"], "deploying");
    assert_eq!(json["spec"]["region_image_uris"]["eu-west-1"], ECR_IMAGE.replace("us-east-2", "eu-west-1"));
    house.run(&arguments).code(0).says(&["endpoint_name: chat\n"]).complains(&["nothing was"]);
    assert!(house.rows().is_empty());
}

#[test]
fn a_dry_run_meets_what_the_write_would_meet() {
    let house = House::with_chat();
    put_unchecked_name(&house, "talk-canary");
    let before = house.rows();
    let deploy = |name: &str| house.run(&["inference", "deploy", name, "-i", IMAGE, "-r", "us-east-1", "--dry-run"]);
    deploy("chat").code(1).complains(&["✗ Endpoint 'chat' already exists\n"]);
    deploy("talk").code(1).complains(&["✗ ENDPOINT_NAME: ", "'talk-canary'"]);
    assert_eq!(house.rows(), before);
}

/// Puts a row of the earlier control plane, which checked no names.
fn put_unchecked_name(house: &House, name: &str) {
    let mut item = house.put_fixture("classic-minimal.json").item;
    item.insert("endpoint_name".to_owned(), name.into());
    house.put(item);
}

#[test]
fn a_name_that_is_taken_is_refused_in_the_contracts_words() {
    let house = House::with_chat();
    let before = house.rows();
    house
        .run(&["inference", "deploy", "chat", "-i", IMAGE, "-r", "us-east-1"])
        .code(1)
        .complains(&["✗ Endpoint 'chat' already exists\n"]);
    assert_eq!(house.rows(), before);
}

#[test]
fn a_name_whose_objects_would_collide_with_another_endpoints_is_refused() {
    let house = House::new();
    put_unchecked_name(&house, "talk-canary");
    house
        .run(&["inference", "deploy", "talk", "-i", IMAGE, "-r", "us-east-1"])
        .code(1)
        .complains(&["✗ ENDPOINT_NAME: ", "'talk-canary'"]);
    assert!(house.row("talk").is_none());
}

#[test]
fn without_a_region_it_goes_to_the_regions_of_the_environment() {
    let house = House::new();
    let mut command = house.command(&["inference", "deploy", "chat", "-i", IMAGE]);
    command.env("GCO_REGIONS", "us-east-1, eu-west-1,us-east-1");
    crate::house::run(command).code(0);
    assert_eq!(house.row("chat").unwrap().target_regions, ["us-east-1", "eu-west-1"]);
}

#[test]
fn known_regions_that_are_left_out_are_named() {
    let house = House::new();
    let mut command = house.command(&["inference", "deploy", "chat", "-i", IMAGE, "-r", "us-east-1"]);
    command.env("GCO_REGIONS", "us-east-1,eu-west-1,eu-north-1");
    let left = "⚠ Deployed regions that are not targeted: eu-west-1, eu-north-1\n";
    crate::house::run(command).code(0).complains(&[left]);
}

#[test]
fn without_a_region_it_goes_to_the_regions_whose_monitors_report() {
    let house = House::new();
    // An item without a heartbeat is of an operator who froze a region that no monitor serves.
    house.block_on(house.table.set_frozen("ap-south-1", true)).unwrap();
    // The fresh ones lie ahead of every clock, so that they are fresh whenever the test runs; the old one is of a region that
    // was taken out of service.
    let (fresh, old) = ("2100-01-01T00:00:00+00:00", "2020-01-01T00:00:00+00:00");
    for (region, at) in [("us-west-2", fresh), ("eu-west-1", fresh), ("sa-east-1", old)] {
        let heartbeat = RegionHeartbeat {
            region: region.to_owned(),
            last_heartbeat: at.to_owned(),
            version: "0.1.0".to_owned(),
            leader: "monitor-1".to_owned(),
            last_complete_read_age_seconds: 3,
            orphans: None,
            admission_fence: "order effective, lease effective".to_owned(),
        };
        house.block_on(house.table.write_heartbeat(&heartbeat, PATIENCE)).unwrap();
    }
    house.run(&["inference", "deploy", "chat", "-i", IMAGE]).code(0);
    assert_eq!(house.row("chat").unwrap().target_regions, ["eu-west-1", "us-west-2"]);
    house
        .run(&["inference", "deploy", "talk", "-i", IMAGE, "-r", "eu-west-1", "-r", "ap-south-1"])
        .code(0)
        .complains(&["⚠ No heartbeat of a monitor so far from ap-south-1 "]);
}

#[test]
fn without_any_region_it_is_refused_in_the_contracts_words() {
    let house = House::new();
    house
        .run(&["inference", "deploy", "chat", "-i", IMAGE])
        .code(1)
        .complains(&["✗ No deployed regions found. Deploy infrastructure first."]);
    assert!(house.rows().is_empty());
}

#[test]
fn every_bad_flag_of_one_command_line_is_named_at_once() {
    let house = House::new();
    let arguments: Vec<&str> = "inference deploy Chat --port 0 --replicas zero --gpu-count 65 -r us_east_1 -e hunter2 \
         -n default --capacity-type cheap --framework sglang --request cpu=lots --node-selector a,b=c --max-surge 101"
        .split_whitespace()
        .collect();
    let ran = house.run(&arguments).code(2).complains(&[
        "✗ ENDPOINT_NAME: ",
        "✗ --image: ",
        "✗ --port: ",
        "✗ --replicas: ",
        "✗ --gpu-count: ",
        "✗ --region: ",
        "✗ --env (number 1): ",
        "✗ --namespace: ",
        "✗ --capacity-type: must be 'on-demand' or 'spot', got 'cheap'\n",
        "✗ --framework: must be 'vllm' or 'tgi', got 'sglang'\n",
        "✗ --request cpu: ",
        "✗ --node-selector a,b: ",
        "✗ --max-surge: ",
    ]);
    assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 13, "{}", ran.stderr);
    assert!(house.rows().is_empty());
}
