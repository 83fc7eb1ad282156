//! Edits of image, environment and port of an endpoint that two regions serve, under load, on `gco local`: routers never stop
//! sending requests to a region, and no request to a ready address of the Service fails.

#![expect(clippy::unwrap_used, reason = "a suite fails by panicking")]

use gco_store::operations::Store;
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::transition::OperationError;
use gco_store::wire::{Item, Value};
use gco_tests::local::LocalInstance;
use gco_tests::local::traffic::Traffic;
use gco_tests::size::Size;
use serde_json::json;
use tokio::time::Instant;

const ENDPOINT: &str = "basalt";
const REGIONS: [&str; 2] = ["us-east-1", "eu-west-1"];

/// A key of the spec and what it becomes.
type Change = (&'static str, Value);

async fn edit(store: &Store, changes: &[Change]) -> EndpointRow {
    let change = |_: &EndpointRow, spec: &mut Item| -> Result<(), OperationError> {
        spec.extend(changes.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        Ok(())
    };
    store.update_spec_with(ENDPOINT, change).await.unwrap()
}

/// The edits of one round, each of another part of the pod, and one of all parts at once.
fn edits(round: u32) -> Vec<(&'static str, Vec<Change>)> {
    let image = |number: u32| ("image", Value::from(format!("vllm/vllm-openai:v0.{number}.0")));
    let env = |text: String| ("env", Value::Map(Item::from([("EDIT".to_owned(), Value::from(text))])));
    let port = |number: u32| ("port", Value::from(i64::from(number)));
    vec![
        ("image", vec![image(30 + 2 * round)]),
        ("environment", vec![env(format!("{round} alone"))]),
        ("port", vec![port(8001 + 2 * round)]),
        ("all three", vec![image(31 + 2 * round), env(format!("{round} with others")), port(8002 + 2 * round)]),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_under_load_fail_no_request_and_never_end_routing() {
    let mut instance = LocalInstance::new(&REGIONS).unwrap();
    let took = instance.up().await.unwrap();
    println!("two regions up after {:.1} s", took.as_secs_f64());
    let spec = json!({
        "image": "vllm/vllm-openai:v0.28.0", "port": 8000, "replicas": 2, "gpu_count": 1, "health_check_path": "/health",
        "env": {"EDIT": "none"}, "drain_seconds": 6,
    });
    let store = instance.store().await.unwrap();
    store.create(&instance.request(ENDPOINT, &spec).unwrap()).await.unwrap();
    instance.settled(ENDPOINT, false).await.unwrap();

    let mut traffic = Vec::new();
    for region in REGIONS {
        traffic.push((region, Traffic::start(&instance, region, ENDPOINT).await.unwrap()));
    }
    for round in 0..Size::asked().choose(1, 5) {
        for (what, changes) in edits(round) {
            let began = Instant::now();
            let row = edit(&store, &changes).await;
            assert_eq!(row.desired_state, DesiredState::Running, "an edit keeps the desired state");
            instance.settled(ENDPOINT, false).await.unwrap();
            println!(
                "round {round}, edit of {what}: rolled out in both regions after {:.1} s",
                began.elapsed().as_secs_f64()
            );
        }
    }
    let mut results = Vec::new();
    for (region, traffic) in traffic {
        let result = traffic.stop().await.unwrap();
        println!("{region}: {result}");
        results.push(result);
    }
    for result in results {
        assert!(result.is_clean(), "{result}");
        assert!(result.sent > 0 && result.streams > 0 && result.looks > 0, "{result}");
    }
    instance.stop().await.unwrap();
}
