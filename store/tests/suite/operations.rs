//! Operations: what they read, what they write, and what becomes of a lost race.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{MemoryTable, Rows, item, now, request, value};
use gco_store::operations::{ListFilter, Store, StoreError};
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::spec::{AutoscalingEdit, MetricKind};
use gco_store::table::Consistency;
use gco_store::transition::OperationError;
use gco_store::wire::{Item, Value};
use serde_json::json;

fn store(table: &Arc<MemoryTable>) -> Store {
    let count = AtomicU64::new(0);
    let token = move || format!("{:064x}", count.fetch_add(1, Ordering::Relaxed));
    Store::new(table.clone(), Arc::new(now), Arc::new(token))
}

fn table_of(fixtures: &[&str]) -> Arc<MemoryTable> {
    MemoryTable::of(fixtures.iter().map(|fixture| item(fixture)))
}

/// Somebody else changes one attribute, and with it the version.
fn set(rows: &mut Rows, name: &str, attribute: &str, new: Value) {
    static VERSION: AtomicU64 = AtomicU64::new(0);
    let row = rows.get_mut(name).expect("the row");
    row.insert(attribute.to_owned(), new);
    let version = VERSION.fetch_add(1, Ordering::Relaxed);
    row.insert("updated_at".to_owned(), Value::from(format!("2026-12-01T00:00:00.{version:06}+00:00")));
}

fn set_spec(rows: &mut Rows, name: &str, key: &str, new: Value) {
    let mut spec = rows[name]["spec"].as_map().expect("a map").clone();
    spec.insert(key.to_owned(), new);
    set(rows, name, "spec", Value::Map(spec));
}

fn image(row: &EndpointRow) -> Option<&str> {
    row.spec.at(&["image"]).and_then(Value::as_str)
}

#[tokio::test]
async fn created_endpoints_are_found_and_listed_newest_first() {
    let table = table_of(&["classic-hpa", "classic-stopped", "region-removed"]);
    let store = store(&table);
    let created = store.create(&request("chat")).await.expect("created");
    assert_eq!(store.get("chat", Consistency::Strong).await.expect("read"), Some(created));
    assert_eq!(store.get("none", Consistency::Eventual).await.expect("read"), None);
    let names = |rows: Vec<EndpointRow>| rows.into_iter().map(|row| row.name).collect::<Vec<_>>();
    assert_eq!(
        names(store.list(&ListFilter::default()).await.expect("listed")),
        ["chat", "chat-hpa", "chat-stopped", "moved-chat"]
    );
    let stopped = ListFilter { desired_state: Some(DesiredState::Stopped), region: None };
    assert_eq!(names(store.list(&stopped).await.expect("listed")), ["chat-stopped"]);
    let europe = ListFilter { desired_state: None, region: Some("eu-west-1".to_owned()) };
    assert_eq!(names(store.list(&europe).await.expect("listed")), ["chat", "chat-hpa", "chat-stopped"]);
}

#[tokio::test]
async fn a_taken_name_is_refused_in_the_contracts_words() {
    let table = table_of(&["classic-minimal", "deleting-half-acknowledged"]);
    for name in ["chat-small", "gone-chat"] {
        let error = store(&table).create(&request(name)).await.expect_err("refused");
        assert_eq!(error.to_string(), format!("Endpoint '{name}' already exists"));
    }
}

#[tokio::test]
async fn a_name_that_collides_with_derived_names_of_an_existing_row_is_refused() {
    // The original let somebody create `chat-large-proxy`; `chat-large` would own a Deployment of that name.
    let table = table_of(&["name-with-reserved-suffix"]);
    let error = store(&table).create(&request("chat-large")).await.expect_err("refused");
    assert!(error.to_string().contains("the endpoint 'chat-large-proxy'"), "{error}");
    assert_eq!(table.writes(), 0);
}

#[tokio::test]
async fn an_absent_endpoint_is_not_found_by_any_operation() {
    let table = table_of(&[]);
    let store = store(&table);
    let not_found = |error: StoreError| assert_eq!(error, StoreError::NotFound("none".to_owned()));
    not_found(store.scale("none", 1).await.expect_err("absent"));
    not_found(store.stop("none").await.expect_err("absent"));
    not_found(store.start("none").await.expect_err("absent"));
    not_found(store.delete("none", None).await.expect_err("absent"));
    not_found(store.set_paused("none", true).await.expect_err("absent"));
    not_found(store.update_image("none", "x").await.expect_err("absent"));
    assert_eq!(StoreError::NotFound("none".to_owned()).to_string(), "Endpoint 'none' not found");
}

#[tokio::test]
async fn a_deleted_endpoint_is_refused_in_the_contracts_words() {
    let table = table_of(&["deleting-half-acknowledged"]);
    let store = store(&table);
    let words = |participle: &str| {
        format!("Endpoint 'gone-chat' is deleted and cannot be {participle}; redeploy it after deletion completes.")
    };
    assert_eq!(store.scale("gone-chat", 1).await.expect_err("deleted").to_string(), words("scaled"));
    assert_eq!(store.stop("gone-chat").await.expect_err("deleted").to_string(), words("stopped"));
    assert_eq!(store.update_image("gone-chat", "x").await.expect_err("deleted").to_string(), words("updated"));
    assert_eq!(store.set_paused("gone-chat", true).await.expect_err("deleted").to_string(), words("paused"));
    let start = store.start("gone-chat").await.expect_err("deleted").to_string();
    assert!(start.starts_with("Endpoint 'gone-chat' is deleted; wait for purge"), "{start}");
    assert_eq!(store.delete("gone-chat", None).await.expect("repeatable").desired_state, DesiredState::Deleted);
    assert_eq!(table.writes(), 0);
}

#[tokio::test]
async fn a_legacy_row_is_back_filled_before_it_is_edited() {
    let table = table_of(&["legacy-no-lifecycle"]);
    let row = store(&table).scale("legacy-chat", 3).await.expect("scaled");
    assert!(row.lifecycle_complete());
    assert_eq!(row.spec.at(&["replicas"]), Some(&Value::from(3)));
    assert_eq!(table.writes(), 2);
}

#[tokio::test]
async fn losing_every_race_for_the_identity_is_a_conflict_in_the_contracts_words() {
    for (delete, kind) in [(false, "lifecycle"), (true, "deletion")] {
        let table = table_of(&["legacy-no-lifecycle"]);
        for _ in 0..20 {
            table.before_next_write(|rows| set(rows, "legacy-chat", "noise", Value::Null));
        }
        let store = store(&table);
        let result = if delete { store.delete("legacy-chat", None).await } else { store.stop("legacy-chat").await };
        let expected = format!("Endpoint 'legacy-chat' changed while initializing {kind} identity");
        assert_eq!(result.expect_err("lost").to_string(), expected);
        assert_eq!(table.writes(), 8);
    }
}

#[tokio::test]
async fn a_status_write_in_between_does_not_fail_an_edit() {
    let table = table_of(&["classic-hpa"]);
    for _ in 0..3 {
        table.before_next_write(|rows| {
            set(rows, "chat-hpa", "region_status", value(json!({"eu-west-1": {"state": "running"}})))
        });
    }
    let row = store(&table).update_image("chat-hpa", "new:1").await.expect("updated");
    assert_eq!(image(&row), Some("new:1"));
    assert_eq!(row.region_status.len(), 1, "the status of the others is kept");
    assert_eq!(table.writes(), 4);
}

#[tokio::test]
async fn an_edit_is_applied_again_on_top_of_an_edit_of_other_fields() {
    let table = table_of(&["classic-minimal"]);
    table.before_next_write(|rows| set_spec(rows, "chat-small", "port", Value::from(9000)));
    let row = store(&table).update_image("chat-small", "new:1").await.expect("updated");
    assert_eq!((image(&row), row.spec.at(&["port"])), (Some("new:1"), Some(&Value::from(9000))));
}

#[tokio::test]
async fn an_edit_of_the_same_field_by_somebody_else_is_a_conflict() {
    let table = table_of(&["classic-minimal"]);
    table.before_next_write(|rows| set_spec(rows, "chat-small", "image", Value::from("theirs:1")));
    let error = store(&table).update_image("chat-small", "mine:1").await.expect_err("a conflict");
    assert_eq!(error.to_string(), "Endpoint 'chat-small' changed while being updated; retry after reading status");
    assert_eq!(table.writes(), 1);
    assert_eq!(
        table.rows.lock().expect("unpoisoned")["chat-small"]["spec"].at(&["image"]),
        Some(&Value::from("theirs:1"))
    );
}

#[tokio::test]
async fn a_field_that_the_edit_would_only_now_touch_is_no_licence_to_overwrite_it() {
    // `update_image` removes the images by region; here somebody adds them, made from another image, in between.
    let table = table_of(&["classic-minimal"]);
    let images = || value(json!({"us-east-1": "theirs:1"}));
    table.before_next_write(move |rows| set_spec(rows, "chat-small", "region_image_uris", images()));
    let error = store(&table).update_image("chat-small", "mine:1").await.expect_err("a conflict");
    assert!(matches!(error, StoreError::Conflict(_)), "{error}");
}

#[tokio::test]
async fn a_row_that_was_deleted_and_made_again_is_another_endpoint() {
    let table = table_of(&["classic-minimal"]);
    table.before_next_write(|rows| set(rows, "chat-small", "lifecycle_id", Value::from("another")));
    let error = store(&table).scale("chat-small", 5).await.expect_err("a conflict");
    assert_eq!(error.to_string(), "Endpoint 'chat-small' changed while being scaled; retry after reading status");
    let table = table_of(&["classic-minimal"]);
    table.before_next_write(|rows| {
        rows.clear();
    });
    let error = store(&table).scale("chat-small", 5).await.expect_err("gone");
    assert_eq!(error, StoreError::NotFound("chat-small".to_owned()));
}

#[tokio::test]
async fn an_endless_race_ends_after_eight_tries_with_growing_waits() {
    let table = table_of(&["classic-minimal"]);
    for _ in 0..20 {
        table.before_next_write(|rows| set(rows, "chat-small", "updated_at", Value::from("x")));
    }
    let waits = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = waits.clone();
    let sleeper = Arc::new(move |wait: Duration| {
        noted.lock().expect("unpoisoned").push(wait);
        Box::pin(std::future::ready(())) as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>
    });
    let error = store(&table).with_sleeper(sleeper).update_image("chat-small", "x").await.expect_err("a conflict");
    assert!(matches!(error, StoreError::Conflict(_)));
    assert_eq!(table.writes(), 8);
    let waits = waits.lock().expect("unpoisoned").clone();
    assert_eq!(waits.len(), 7);
    assert!(
        waits.iter().all(|wait| *wait >= Duration::from_millis(20) && *wait <= Duration::from_secs(1)),
        "{waits:?}"
    );
}

#[tokio::test]
async fn an_edit_that_changes_nothing_writes_nothing() {
    let table = table_of(&["classic-minimal", "classic-stopped"]);
    let store = store(&table);
    store.update_image("chat-small", "vllm/vllm-openai:v0.28.0").await.expect("nothing to do");
    store.stop("chat-stopped").await.expect("nothing to do");
    store.set_paused("chat-small", false).await.expect("nothing to do");
    let regions = ["us-east-1", "eu-west-1"].map(str::to_owned);
    store.set_target_regions("chat-small", &regions).await.expect("nothing to do");
    assert_eq!(table.writes(), 0);
}

#[tokio::test]
async fn an_edit_may_refuse_in_its_own_words_and_bad_results_are_named() {
    let table = table_of(&["classic-minimal"]);
    let store = store(&table);
    let refuse = |_: &EndpointRow, _: &mut Item| Err(OperationError::State("No store settings given.".to_owned()));
    let error = store.update_spec_with("chat-small", refuse).await.expect_err("refused");
    assert_eq!(error.to_string(), "No store settings given.");
    let spoil = |_: &EndpointRow, spec: &mut Item| {
        spec.insert("port".to_owned(), Value::from(0));
        Ok(())
    };
    let error = store.update_spec_as("chat-small", "promoted", spoil).await.expect_err("refused");
    assert_eq!(error.to_string(), "spec.port: must be an integer from 1 to 65535, got 0");
    assert_eq!(
        store.update_image("chat-small", " ").await.expect_err("refused").to_string(),
        "Image must be a non-empty string"
    );
    assert_eq!(table.writes(), 0);
}

#[tokio::test]
async fn scaling_after_somebody_else_scaled_is_a_conflict() {
    let table = table_of(&["classic-minimal"]);
    // The version moves past ours, so that the first try is refused.
    table.before_next_write(|rows| {
        set_spec(rows, "chat-small", "replicas", Value::from(9));
        let row = rows.get_mut("chat-small").expect("the row");
        row.insert("updated_at".to_owned(), Value::from("2027-06-01T00:00:00+00:00"));
    });
    let error = store(&table).scale("chat-small", 5).await.expect_err("a conflict");
    assert_eq!(error.to_string(), "Endpoint 'chat-small' changed while being scaled; retry after reading status");
}

#[tokio::test]
async fn stopping_and_starting_survive_a_promotion_in_between() {
    let table = table_of(&["classic-minimal"]);
    table.before_next_write(|rows| {
        set(rows, "chat-small", "desired_state", Value::from("running"));
        let row = rows.get_mut("chat-small").expect("the row");
        row.insert("updated_at".to_owned(), Value::from("2027-06-01T00:00:00+00:00"));
    });
    let store = store(&table);
    let stopped = store.stop("chat-small").await.expect("stopped");
    assert_eq!(stopped.desired_state, DesiredState::Stopped);
    assert!(stopped.updated_at.as_deref() > Some("2027-06-01T00:00:00+00:00"), "the version never goes back");
    assert_eq!(store.start("chat-small").await.expect("started").desired_state, DesiredState::Running);
    let again = store.start("chat-small").await.expect_err("running").to_string();
    assert_eq!(again, "Endpoint 'chat-small' is in 'running' state; only stopped endpoints can be started.");
}

#[tokio::test]
async fn a_deletion_limited_to_a_label_spares_rows_of_others() {
    let table = table_of(&["classic-full"]);
    let store = store(&table);
    let error = store.delete("chat-large", Some(("team", "ads"))).await.expect_err("spared");
    assert_eq!(error.to_string(), "Endpoint 'chat-large' does not carry the label team=ads");
    let error = store.delete("chat-large", Some(("", "ads"))).await.expect_err("refused");
    assert_eq!(error.to_string(), "Expected endpoint label name and value must be non-empty");
    let deleted = store.delete("chat-large", Some(("team", "search"))).await.expect("deleted");
    assert_eq!(
        (deleted.desired_state, deleted.deletion_regions.map(|regions| regions.len())),
        (DesiredState::Deleted, Some(2))
    );
}

#[tokio::test]
async fn regions_are_moved_and_pauses_set() {
    let table = table_of(&["region-removed"]);
    let store = store(&table);
    let moved = store.set_target_regions("moved-chat", &["eu-west-1".to_owned()]).await.expect("moved");
    assert_eq!(moved.target_regions, ["eu-west-1"]);
    assert!(store.set_paused("moved-chat", true).await.expect("paused").paused);
    assert!(!store.set_paused("moved-chat", false).await.expect("resumed").paused);
    let elsewhere = |rows: &mut Rows| {
        set(rows, "moved-chat", "target_regions", value(json!(["ap-south-1"])));
    };
    table.before_next_write(elsewhere);
    let error = store.set_target_regions("moved-chat", &["us-east-1".to_owned()]).await.expect_err("a conflict");
    assert!(matches!(error, StoreError::Conflict(_)), "{error}");
}

#[test]
fn operations_can_be_run_on_any_thread() {
    fn is_send<T: Send>(_: T) {}
    let table = table_of(&[]);
    let store = store(&table);
    let asked = request("chat");
    is_send(store.create(&asked));
    is_send(store.scale("chat", 1));
    is_send(store.update_image("chat", "x"));
    is_send(store.delete("chat", None));
}

fn block(row: &EndpointRow) -> serde_json::Value {
    row.spec.at(&["autoscaling"]).map_or(serde_json::Value::Null, Value::to_plain_json)
}

#[tokio::test]
async fn autoscaling_is_turned_on_with_the_contracts_defaults_changed_and_turned_off_again() {
    let table = table_of(&["classic-minimal"]);
    let store = store(&table);
    let nothing = AutoscalingEdit::On { min_replicas: None, max_replicas: None, metrics: None };
    let row = store.autoscale("chat-small", &nothing).await.expect("on");
    let cpu = json!([{"type": "cpu", "target": 70}]);
    assert_eq!(block(&row), json!({"enabled": true, "min_replicas": 1, "max_replicas": 10, "metrics": cpu}));
    assert_eq!(row.desired_state, crate::common::row("classic-minimal").desired_state, "an edit keeps it");
    let metrics = vec![(MetricKind::Gpu, 60), (MetricKind::Memory, 200)];
    let more = AutoscalingEdit::On { min_replicas: Some(2), max_replicas: None, metrics: Some(metrics) };
    let row = store.autoscale("chat-small", &more).await.expect("changed");
    let both = json!([{"type": "gpu", "target": 60}, {"type": "memory", "target": 200}]);
    assert_eq!(block(&row), json!({"enabled": true, "min_replicas": 2, "max_replicas": 10, "metrics": both}));
    // Already so: nothing is written.
    let writes = table.writes();
    store.autoscale("chat-small", &nothing).await.expect("as it is");
    assert_eq!(table.writes(), writes);
    let row = store.autoscale("chat-small", &AutoscalingEdit::Off { replicas: Some(3) }).await.expect("off");
    assert_eq!(block(&row)["enabled"], json!(false));
    assert_eq!(block(&row)["min_replicas"], json!(2), "kept for the next time");
    assert_eq!(row.spec.at(&["replicas"]), Some(&Value::from(3)));
    store.scale("chat-small", 4).await.expect("a static count again");
}

#[tokio::test]
async fn taking_the_autoscaler_away_takes_no_pods_away() {
    // Both regions report 2; one has grown since.
    let mut grown = item("classic-hpa");
    if let Some(Value::Map(statuses)) = grown.get_mut("region_status")
        && let Some(Value::Map(entry)) = statuses.get_mut("eu-west-1")
    {
        entry.insert("replicas_desired".to_owned(), Value::from(7));
    }
    let table = MemoryTable::of([grown]);
    let row = store(&table).autoscale("chat-hpa", &AutoscalingEdit::Off { replicas: None }).await.expect("off");
    assert_eq!(row.spec.at(&["replicas"]), Some(&Value::from(7)));
}

#[tokio::test]
async fn bad_bounds_and_mooncake_endpoints_are_refused_and_nothing_is_written() {
    let table = table_of(&["classic-hpa", "mooncake-disaggregated"]);
    let store = store(&table);
    let bounds = |min_replicas, max_replicas| AutoscalingEdit::On { min_replicas, max_replicas, metrics: None };
    for (edit, field) in [
        (bounds(Some(9), None), "spec.autoscaling.max_replicas: must be at least min_replicas (9), got 8"),
        (bounds(Some(0), None), "spec.autoscaling.min_replicas: must be an integer from 1 to 1000, got 0"),
        (bounds(None, Some(1001)), "spec.autoscaling.max_replicas: must be an integer from 1 to 1000, got 1001"),
        (AutoscalingEdit::Off { replicas: Some(-1) }, "spec.replicas: must be an integer from 1 to 1000, got -1"),
    ] {
        let error = store.autoscale("chat-hpa", &edit).await.expect_err("refused").to_string();
        assert!(error.contains(field), "{error}");
    }
    let name = item("mooncake-disaggregated")["endpoint_name"].as_str().expect("a name").to_owned();
    let error = store.autoscale(&name, &bounds(Some(1), None)).await.expect_err("refused").to_string();
    assert!(error.contains("uses Mooncake"), "{error}");
    assert_eq!(table.writes(), 0);
}
