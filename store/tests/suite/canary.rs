//! Canary, promotion and roll-back as operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{MemoryTable, Rows, item, now};
use gco_store::operations::{Store, StoreError};
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::spec::{Canary, Spec};
use gco_store::wire::{Item, Value};

const CHAT: &str = "chat-small";
const CANARY: &str = "chat-canary-on";

fn store(table: &Arc<MemoryTable>) -> Store {
    let count = AtomicU64::new(0);
    let token = move || format!("{:064x}", count.fetch_add(1, Ordering::Relaxed));
    Store::new(table.clone(), Arc::new(now), Arc::new(token))
}

fn canary(image: &str) -> Canary {
    Canary { image: image.to_owned(), weight: 25, replicas: 2 }
}

fn said(result: Result<EndpointRow, StoreError>) -> String {
    result.expect_err("refused").to_string()
}

/// Somebody else changes the spec of a row, and with it the version.
fn meanwhile(rows: &mut Rows, name: &str, change: impl FnOnce(&mut Item)) {
    let row = rows.get_mut(name).expect("the row");
    if let Some(Value::Map(spec)) = row.get_mut("spec") {
        change(spec);
    }
    row.insert("updated_at".to_owned(), Value::from("2026-12-01T00:00:00.000001+00:00"));
}

fn set_canary_image(spec: &mut Item, image: &str) {
    if let Some(Value::Map(block)) = spec.get_mut("canary") {
        block.insert("image".to_owned(), Value::from(image));
    }
}

#[tokio::test]
async fn a_canary_is_given_changed_and_keeps_everything_else() {
    let table = MemoryTable::of([item("classic-minimal")]);
    let store = store(&table);
    let before = EndpointRow::parse(item("classic-minimal")).expect("a row");
    let row = store.set_canary(CHAT, &canary("x:2")).await.expect("given");
    assert_eq!(row.desired_state, before.desired_state, "an edit keeps the desired state");
    let spec = Spec::check(&row.spec).expect("valid").spec;
    assert_eq!(spec.canary, Some(canary("x:2")));
    let mut rest = row.spec.as_map().expect("a map").clone();
    rest.remove("canary");
    assert_eq!(Some(&rest), before.spec.as_map());
    let writes = table.writes();
    store.set_canary(CHAT, &canary("x:2")).await.expect("the same again");
    assert_eq!(table.writes(), writes, "nothing is written for nothing");
    let row = store.set_canary(CHAT, &canary("x:3")).await.expect("changed");
    assert_eq!(row.spec.at(&["canary", "image"]), Some(&Value::from("x:3")));
}

#[tokio::test]
async fn what_cannot_have_a_canary_says_so_in_the_contracts_words() {
    let table = MemoryTable::of(
        ["classic-minimal", "classic-stopped", "mooncake-store", "deleting-half-acknowledged"].map(item),
    );
    let store = store(&table);
    for (canary, words) in [
        (canary("  "), "Canary image must be a non-empty string"),
        (Canary { weight: 0, ..canary("x") }, "Canary weight must be an integer between 1 and 99"),
        (Canary { weight: 100, ..canary("x") }, "Canary weight must be an integer between 1 and 99"),
        (Canary { replicas: 0, ..canary("x") }, "Canary replicas must be a positive integer"),
    ] {
        assert_eq!(said(store.set_canary(CHAT, &canary).await), words);
    }
    assert_eq!(
        said(store.set_canary("chat-stopped", &canary("x:2")).await),
        "Cannot canary an endpoint in 'stopped' state. Endpoint must be running or deploying."
    );
    let mooncake = EndpointRow::parse(item("mooncake-store")).expect("a row").name;
    assert_eq!(
        said(store.set_canary(&mooncake, &canary("x:2")).await),
        "Canary deployments are not supported for Mooncake endpoints"
    );
    assert_eq!(
        said(store.promote_canary(&mooncake, None).await),
        "Canary promotion is not supported for Mooncake endpoints"
    );
    let deleted = said(store.set_canary("gone-chat", &canary("x:2")).await);
    assert!(deleted.contains("is deleted and cannot be given a canary"), "{deleted}");
    for result in [store.promote_canary(CHAT, None).await, store.roll_back_canary(CHAT).await] {
        assert_eq!(said(result), format!("Endpoint '{CHAT}' has no active canary deployment"));
    }
    assert_eq!(table.writes(), 0);
}

#[tokio::test]
async fn a_canary_block_without_a_usable_image_is_not_promoted() {
    let spoilt = |image: Option<Value>| {
        let mut row = item("classic-canary");
        if let Some(Value::Map(spec)) = row.get_mut("spec")
            && let Some(Value::Map(block)) = spec.get_mut("canary")
        {
            block.remove("image");
            block.extend(image.map(|image| ("image".to_owned(), image)));
        }
        MemoryTable::of([row])
    };
    for (image, words) in [
        (None, "is missing the 'image' field"),
        (Some(Value::from("  ")), "has an invalid 'image' field"),
        (Some(Value::from(7)), "has an invalid 'image' field"),
    ] {
        let table = spoilt(image);
        let said = said(store(&table).promote_canary(CANARY, None).await);
        assert_eq!(said, format!("Canary deployment for '{CANARY}' {words}"));
        // And it can be got rid of.
        store(&table).roll_back_canary(CANARY).await.expect("rolled back");
    }
}

#[tokio::test]
async fn a_promotion_takes_the_canarys_image_and_drops_canary_and_images_by_region() {
    let mut row = item("classic-canary");
    let images = Value::Map(Item::from([("eu-west-1".to_owned(), Value::from("mirror/vllm:v0.28.0"))]));
    if let Some(Value::Map(spec)) = row.get_mut("spec") {
        spec.insert("region_image_uris".to_owned(), images);
    }
    let table = MemoryTable::of([row.clone()]);
    let promoted = store(&table).promote_canary(CANARY, Some("vllm/vllm-openai:v0.29.0")).await.expect("promoted");
    let mut expected = row["spec"].as_map().expect("a map").clone();
    expected.insert("image".to_owned(), Value::from("vllm/vllm-openai:v0.29.0"));
    expected.remove("canary");
    expected.remove("region_image_uris");
    assert_eq!(promoted.spec, Value::Map(expected));
    assert_eq!(promoted.desired_state, DesiredState::Running);
}

#[tokio::test]
async fn a_roll_back_drops_the_canary_and_nothing_else() {
    let table = MemoryTable::of([item("classic-canary")]);
    let row = store(&table).roll_back_canary(CANARY).await.expect("rolled back");
    let mut expected = item("classic-canary")["spec"].as_map().expect("a map").clone();
    expected.remove("canary");
    assert_eq!(row.spec, Value::Map(expected));
}

#[tokio::test]
async fn nobody_promotes_a_canary_that_they_have_not_looked_at() {
    let table = MemoryTable::of([item("classic-canary")]);
    let said_now = said(store(&table).promote_canary(CANARY, Some("x:1")).await);
    assert!(said_now.contains("is vllm/vllm-openai:v0.29.0 by now, not x:1"), "{said_now}");
    // Nor one that somebody changes between the read and the write.
    table.before_next_write(|rows| meanwhile(rows, CANARY, |spec| set_canary_image(spec, "x:9")));
    let said = said(store(&table).promote_canary(CANARY, None).await);
    assert!(said.contains("changed while being promoted; retry after reading status"), "{said}");
}

#[tokio::test]
async fn a_promotion_that_only_lost_a_race_to_a_status_write_is_made_again() {
    let table = MemoryTable::of([item("classic-canary")]);
    table.before_next_write(|rows| meanwhile(rows, CANARY, |_| {}));
    let row = store(&table).promote_canary(CANARY, None).await.expect("promoted");
    assert_eq!(row.spec.at(&["image"]), Some(&Value::from("vllm/vllm-openai:v0.29.0")));
    // An edit of something else meanwhile stays.
    let table = MemoryTable::of([item("classic-canary")]);
    table.before_next_write(|rows| {
        meanwhile(rows, CANARY, |spec| {
            spec.insert("replicas".to_owned(), Value::from(7));
        });
    });
    let row = store(&table).promote_canary(CANARY, None).await.expect("promoted");
    assert_eq!(row.spec.at(&["replicas"]), Some(&Value::from(7)));
}
