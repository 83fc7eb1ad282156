//! Canary, promotion and roll-back under load, on `gco local` with its gateways, which route by the row as the shared proxy
//! does: no request fails, the canary gets its share exactly while it can serve, and nothing of it is left afterwards.
//!
//! `GCO_SUITE_SIZE=full` does all of it five times.

#![expect(clippy::unwrap_used, reason = "a suite fails by panicking")]

use std::time::Duration;

use gco_bed::wait;
use gco_store::operations::Store;
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::spec::Canary;
use gco_store::table::Consistency;
use gco_store::transition::OperationError;
use gco_store::wire::{Item, Value};
use gco_tests::local::LocalInstance;
use gco_tests::local::share::{Answers, GatewayTraffic};
use gco_tests::size::Size;
use serde_json::json;

const ENDPOINT: &str = "slate";
const REGIONS: [&str; 2] = ["us-east-1", "eu-west-1"];
/// Share of the canary in percent.
const WEIGHT: u32 = 50;
/// Answers of which the canary's share is judged: at 50 % of 40, fewer than 8 or more than 32 come by chance less than once in
/// ten thousand.
const JUDGED: usize = 40;
const BOUND: Duration = Duration::from_secs(120);

fn image(number: u32) -> String {
    format!("vllm/vllm-openai:v0.{number}.0")
}

fn canary(number: u32) -> Canary {
    Canary { image: image(number), weight: WEIGHT, replicas: 1 }
}

async fn row(store: &Store) -> EndpointRow {
    store.get(ENDPOINT, Consistency::Strong).await.unwrap().unwrap()
}

/// The answers that come from now on, until enough of them can be judged.
async fn share(traffic: &GatewayTraffic) -> Answers {
    let before = traffic.so_far();
    let since = || {
        let now = traffic.so_far();
        Answers { own: now.own - before.own, canary: now.canary - before.canary, ..now }
    };
    let enough = async || {
        let seen = since();
        if seen.own + seen.canary >= JUDGED { Ok(seen) } else { Err(seen.to_string()) }
    };
    wait::until("enough answers", BOUND, enough).await.unwrap()
}

/// Of the answers from now on a share is the canary's, or none.
async fn judge(traffic: &[(&str, GatewayTraffic)], with_canary: bool) {
    for (region, traffic) in traffic {
        // What was under way when it began belongs to before.
        share(traffic).await;
        let Answers { own, canary, .. } = share(traffic).await;
        println!("{region}: of {} answers {canary} by the canary", own + canary);
        if with_canary {
            let (least, most) = ((own + canary) / 5, (own + canary) * 4 / 5);
            assert!((least..=most).contains(&canary), "{canary} of {} in {region}", own + canary);
        } else {
            assert_eq!(canary, 0, "of {} in {region}", own + canary);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn canary_promotion_and_roll_back_under_load_fail_no_request() {
    let mut instance = LocalInstance::new(&REGIONS).unwrap();
    instance.up().await.unwrap();
    let spec = json!({
        "image": image(1), "port": 8000, "replicas": 2, "gpu_count": 1, "health_check_path": "/health",
        "env": {"EDIT": "none"}, "drain_seconds": 6,
    });
    let store = instance.store().await.unwrap();
    store.create(&instance.request(ENDPOINT, &spec).unwrap()).await.unwrap();
    instance.settled(ENDPOINT, false).await.unwrap();
    let traffic: Vec<(&str, GatewayTraffic)> =
        REGIONS.map(|region| (region, GatewayTraffic::start(&instance, region, ENDPOINT).unwrap())).into();
    judge(&traffic, false).await;

    for round in 0..Size::asked().choose(1, 5) {
        let number = 10 * (round + 1);
        store.set_canary(ENDPOINT, &canary(number)).await.unwrap();
        instance.settled(ENDPOINT, false).await.unwrap();
        judge(&traffic, true).await;

        // An edit of the endpoint itself rolls both; the canary goes on getting its share afterwards.
        let edit = |_: &EndpointRow, spec: &mut Item| -> Result<(), OperationError> {
            let env = Item::from([("EDIT".to_owned(), Value::from(format!("{round}")))]);
            spec.insert("env".to_owned(), Value::Map(env));
            Ok(())
        };
        store.update_spec_with(ENDPOINT, edit).await.unwrap();
        instance.settled(ENDPOINT, false).await.unwrap();
        judge(&traffic, true).await;

        let promoted = store.promote_canary(ENDPOINT, Some(&image(number))).await.unwrap();
        assert_eq!(promoted.desired_state, DesiredState::Running);
        instance.settled(ENDPOINT, false).await.unwrap();
        judge(&traffic, false).await;
        println!("round {round}: {} promoted", image(number));

        store.set_canary(ENDPOINT, &canary(number + 1)).await.unwrap();
        instance.settled(ENDPOINT, false).await.unwrap();
        // Another image for the same canary.
        store.set_canary(ENDPOINT, &canary(number + 2)).await.unwrap();
        instance.settled(ENDPOINT, false).await.unwrap();
        judge(&traffic, true).await;
        store.roll_back_canary(ENDPOINT).await.unwrap();
        instance.settled(ENDPOINT, false).await.unwrap();
        judge(&traffic, false).await;
        assert_eq!(row(&store).await.spec.at(&["image"]), Some(&Value::from(image(number))));
        println!("round {round}: {} rolled back", image(number + 2));
    }
    for (region, traffic) in traffic {
        let answers = traffic.stop().await.unwrap();
        println!("{region}: {answers}");
        assert_eq!(answers.failed, 0, "{answers}");
        assert!(answers.own > 0 && answers.canary > 0, "{answers}");
    }
    instance.stop().await.unwrap();
}
