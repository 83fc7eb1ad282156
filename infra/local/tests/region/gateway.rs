//! The gateway before real Services and pods, with rows as a monitor would leave them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::bed::{BOUND, Region, bed, is_ready};
use gco_bed::wait::until;
use gco_local::gateway::{Gateway, GatewaySettings};
use gco_local::loopback::{Answer, LoopbackClient, json_request};
use gco_store::embedded::EmbeddedTable;
use gco_store::table::{Outcome, Table};
use gco_store::transition::{Condition, Operation, Transition, Write};
use gco_store::wire::item_from_dynamodb_json;
use http_body_util::BodyExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

/// Puts a row as it is, whatever was there.
async fn put(table: &dyn Table, region: &Region, name: &str, desired: &str, state: &str) {
    let item = json!({
        "endpoint_name": {"S": name},
        "desired_state": {"S": desired},
        "namespace": {"S": region.name},
        "target_regions": {"L": [{"S": region.name}]},
        "spec": {"M": {"image": {"S": "vllm"}}},
        "region_status": {"M": {region.name.as_str(): {"M": {"state": {"S": state}}}}},
    });
    let put = Transition {
        operation: Operation::Create,
        name: name.to_owned(),
        condition: Condition::All(Vec::new()),
        write: Write::Put(item_from_dynamodb_json(&item).unwrap()),
        base_updated_at: None,
        new_updated_at: None,
    };
    assert!(matches!(table.execute(&put).await.unwrap(), Outcome::Applied(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_reach_ready_pods_of_endpoints_that_the_region_runs_and_no_others() {
    let region = bed().await.region(9, |_, _| {}).await;
    let folder = tempfile::tempdir().unwrap();
    let table: Arc<dyn Table> = Arc::new(EmbeddedTable::open(&folder.path().join("table")).unwrap());
    table.create_tables().await.unwrap();
    let settings =
        GatewaySettings { region: region.name.clone(), namespace: region.name.clone(), preferred_port: None };
    let dial_map = region.kubelet.dial_map().clone();
    let gateway = Gateway::start(region.client.clone(), Arc::clone(&table), dial_map, settings).await.unwrap();
    let client = LoopbackClient::new();
    let ask = async |body: &Value| -> Answer {
        client.post(gateway.port(), "/inference/demo/v1/completions", body, BOUND).await.unwrap()
    };
    let question = json!({"prompt": "who are you?", "max_tokens": 8});

    let absent = ask(&question).await;
    assert_eq!(
        (absent.status.as_u16(), absent.text()),
        (404, r#"{"detail":"Inference endpoint 'demo' not found"}"#.into())
    );
    put(&*table, &region, "demo", "running", "creating").await;
    assert_eq!(ask(&question).await.status, 503);
    put(&*table, &region, "demo", "running", "running").await;
    assert_eq!(ask(&question).await.status, 502, "there are no pods yet");

    let args = json!({"args": ["--root-path", "/inference/demo"]});
    region.deploy("demo", 2, &args, &json!({})).await;
    region.wait_for_pods("both pods to be ready", "demo", 2, is_ready).await;
    let answered = Mutex::new(BTreeSet::new());
    until("both pods to have answered", BOUND, || async {
        let answer = ask(&question).await;
        let mut answered = answered.lock().unwrap();
        if answer.status == 200 {
            answered.insert(answer.json()["choices"][0]["text"].to_string());
        }
        if answered.len() == 2 { Ok(()) } else { Err(format!("{answered:?}, {}", answer.text())) }
    })
    .await
    .unwrap();

    let streaming = json!({"prompt": "a", "max_tokens": 20, "ignore_eos": true, "stream": true});
    let request = json_request("/inference/demo/v1/completions", &streaming).unwrap();
    let response = client.send(gateway.port(), request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    let stream = response.into_body().collect().await.unwrap().to_bytes();
    assert!(stream.ends_with(b"data: [DONE]\n\n"), "{stream:?}");

    let hidden = client.get(gateway.port(), "/inference/demo/metrics", BOUND).await.unwrap();
    assert_eq!((hidden.status.as_u16(), hidden.text()), (404, r#"{"detail":"Inference path is not exposed"}"#.into()));
    let large = ask(&json!({"prompt": "x".repeat(1_100_000)})).await;
    assert_eq!(large.status, 413);

    put(&*table, &region, "demo", "stopped", "running").await;
    assert_eq!(ask(&question).await.status, 503, "an endpoint that is being stopped gets nothing more");
    put(&*table, &region, "demo", "running", "running").await;
    let none = json!({"spec": {"replicas": 0}});
    let deployments = region.api::<Deployment>();
    deployments.patch("demo", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    until("the last pod to be gone for requests", BOUND, || async {
        let answer = ask(&question).await;
        if answer.status == 502 { Ok(()) } else { Err(answer.text()) }
    })
    .await
    .unwrap();
    let port = gateway.port();
    gateway.stop().await;
    assert!(LoopbackClient::new().get(port, "/healthz", BOUND).await.is_err(), "it still listens");
}
