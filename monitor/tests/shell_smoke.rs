//! The binary against a real control plane: one endpoint's life, take-over, and what it refuses to start with.
#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]
#![allow(missing_docs, unreachable_pub, reason = "a test")]

mod shell_common;

use std::time::Duration;

use gco_store::row::DesiredState;
use gco_store::status::State;
use gco_store::transition::CreateRequest;
use gco_store::wire;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use kube::api::PostParams;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use shell_common::{BOUND, Place, REGION};

fn request(name: &str, replicas: i64) -> CreateRequest {
    let spec = [
        ("image".to_owned(), wire::Value::from("example.invalid/engine:1")),
        ("replicas".to_owned(), wire::Value::from(replicas)),
    ];
    CreateRequest {
        name: name.to_owned(),
        spec: wire::Value::Map(spec.into()),
        target_regions: vec![REGION.to_owned()],
        namespace: "gco-inference".to_owned(),
        labels: std::collections::BTreeMap::new(),
        created_by: None,
    }
}

fn state_is(row: Option<&gco_store::row::EndpointRow>, state: &State, ready: u32) -> bool {
    row.and_then(|row| row.region_status.get(REGION))
        .is_some_and(|entry| entry.state == *state && entry.replicas_ready == ready)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_lives_and_dies() {
    let place = Place::new().await.unwrap();
    let monitor = place.monitor("only", &[]).await.unwrap();
    monitor.metric_until("gco_monitor_leader", |leader| leader == 1.0).await.unwrap();
    place.store.create(&request("chat", 2)).await.unwrap();

    // Created, not ready, then ready and promoted.
    place.row_until("creating", "chat", |row| state_is(row, &State::Creating, 0)).await.unwrap();
    let created = place.deployment_until("the Deployment", "chat", |found| !found.is_null()).await.unwrap();
    let annotations = &created["metadata"]["annotations"];
    let row = place.row("chat").await.unwrap().unwrap();
    assert_eq!(annotations["gco.io/lifecycle-id"].as_str(), row.lifecycle_id.as_deref());
    let term = monitor.metric("gco_monitor_lease_transitions").await.unwrap();
    assert_eq!(annotations["gco.io/leader-term"], term.to_string());
    assert!(created["spec"]["template"]["metadata"]["annotations"].get("gco.io/leader-epoch").is_none(), "D-8");
    place.api::<Service>().get("chat").await.unwrap();
    place.ready_pods("chat", 2).await.unwrap();
    place
        .row_until("running", "chat", |row| {
            state_is(row, &State::Running, 2) && row.is_some_and(|row| row.desired_state == DesiredState::Running)
        })
        .await
        .unwrap();

    at_rest(&place, &monitor).await;

    // An edit rolls the template, keeps the desired state, and does not touch what it does not name.
    place
        .store
        .update_spec_with("chat", |_, spec| {
            let env = wire::Value::Map([("MODE".to_owned(), wire::Value::from("fast"))].into());
            spec.insert("env".to_owned(), env);
            Ok(())
        })
        .await
        .unwrap();
    place
        .deployment_until("the new environment", "chat", |found| {
            found.pointer("/spec/template/spec/containers/0/env").is_some_and(|env| env.to_string().contains("MODE"))
        })
        .await
        .unwrap();
    place.store.scale("chat", 1).await.unwrap();
    place.deployment_until("one replica", "chat", |found| found["spec"]["replicas"] == 1).await.unwrap();

    place.store.stop("chat").await.unwrap();
    place.deployment_until("no replicas", "chat", |found| found["spec"]["replicas"] == 0).await.unwrap();
    place.row_until("stopped", "chat", |row| state_is(row, &State::Stopped, 0)).await.unwrap();

    // Deleted: two looks, then the row itself goes.
    place.store.delete("chat", None).await.unwrap();
    place.row_until("purged", "chat", |row| row.is_none()).await.unwrap();
    assert!(place.api::<Deployment>().get_opt("chat").await.unwrap().is_none());
    assert!(place.api::<Service>().get_opt("chat").await.unwrap().is_none());
    let looks: Vec<u64> = monitor
        .log()
        .iter()
        .filter(|line| line["action"] == "delete")
        .filter_map(|line| line["absence_observations"].as_u64())
        .filter(|count| *count > 0)
        .collect();
    assert_eq!(looks, [1, 2]);

    // The Lease is given up at the end, at once.
    monitor.process.signal(Signal::SIGTERM).unwrap();
    let status = tokio::time::timeout(Duration::from_secs(10), monitor.process.wait()).await.unwrap();
    assert_eq!(status.code(), Some(0), "{}", monitor.process.log_tail());
    let lease = place.api::<Lease>().get("inference-monitor-leader").await.unwrap().spec.unwrap();
    assert_eq!((lease.holder_identity, lease.lease_transitions.map(f64::from)), (None, Some(term)));
}

/// Nothing changes: a full pass over everything makes no call and no table write (D-15, D-16).
async fn at_rest(place: &Place, monitor: &shell_common::Monitor) {
    let plans = "gco_monitor_plans_computed_total";
    let audit = place.plane.audit().unwrap();
    // Events of the pods' last changes may still arrive: quiet is when a full pass writes nothing, once.
    let quiet = || async {
        let row = place.row("chat").await.map_err(|error| error.to_string())?;
        let (mark, before) = (audit.mark().unwrap(), monitor.metric(plans).await.unwrap());
        monitor.http("POST", "/full-pass").await.unwrap();
        monitor.metric_until(plans, |now| now >= before + 1.0).await.unwrap();
        let calls: Vec<String> = audit
            .requests_since(mark)
            .unwrap()
            .iter()
            .filter(|event| event.user == "admin" && event.namespace == "gco-inference")
            .filter(|event| !event.is_watch() && event.resource != "leases")
            .map(|event| format!("{event:?}"))
            .collect();
        let same = row == place.row("chat").await.map_err(|error| error.to_string())?;
        if calls.is_empty() && same { Ok(()) } else { Err(format!("row unchanged: {same}; {calls:?}")) }
    };
    gco_bed::wait::until("rest", BOUND, quiet).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_and_writes_nothing_at_rest() {
    let place = Place::new().await.unwrap();
    let first = place.monitor("first", &[]).await.unwrap();
    first.metric_until("gco_monitor_leader", |leader| leader == 1.0).await.unwrap();
    let term = first.metric("gco_monitor_lease_transitions").await.unwrap();
    let second = place.monitor("second", &[]).await.unwrap();
    place.store.create(&request("talk", 1)).await.unwrap();
    place.ready_pods("talk", 1).await.unwrap();
    place.row_until("running", "talk", |row| state_is(row, &State::Running, 1)).await.unwrap();
    let settled = |found: &Value| found["status"]["observedGeneration"] == found["metadata"]["generation"];
    let before = place.deployment_until("settled", "talk", settled).await.unwrap();
    let ready = || async {
        let (status, text) = second.http("GET", "/readyz").await.map_err(|error| error.to_string())?;
        if status == 200 { Ok(()) } else { Err(text) }
    };
    gco_bed::wait::until("a ready standby", BOUND, ready).await.unwrap();
    assert!(second.metric("gco_monitor_leader").await.unwrap() < 1.0);

    first.process.signal(Signal::SIGTERM).unwrap();
    assert_eq!(first.process.wait().await.code(), Some(0));
    second.metric_until("gco_monitor_leader", |leader| leader == 1.0).await.unwrap();
    let rest = || async {
        second.http("POST", "/full-pass").await.unwrap();
        let count = second.metric("gco_monitor_passes_total{outcome=\"rest\"}").await.unwrap();
        if count >= 1.0 { Ok(()) } else { Err(second.http("GET", "/state").await.unwrap().1) }
    };
    gco_bed::wait::until("a pass at rest", BOUND, rest).await.unwrap();
    assert_eq!(second.metric("gco_monitor_lease_transitions").await.unwrap(), term + 1.0);
    let after = place.deployment_until("the Deployment", "talk", |found| !found.is_null()).await.unwrap();
    // Any write of ours would show in one of these; the version also counts the controller's status writes.
    for field in ["generation", "annotations"] {
        assert_eq!(before["metadata"][field], after["metadata"][field]);
    }

    let next = (term + 1.0).to_string();
    // The first act of the new term claims everything of the endpoint.
    place.store.scale("talk", 2).await.unwrap();
    place
        .deployment_until("claimed", "talk", |found| {
            found["metadata"]["annotations"]["gco.io/leader-term"] == next && found["spec"]["replicas"] == 2
        })
        .await
        .unwrap();
    let service = place.api::<Service>().get("talk").await.unwrap();
    assert_eq!(service.metadata.annotations.unwrap()["gco.io/leader-term"], next);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_that_meets_a_status_write_is_never_lost() {
    let place = Place::new().await.unwrap();
    let _monitor = place.monitor("only", &[]).await.unwrap();
    place.store.create(&request("race", 1)).await.unwrap();
    // The monitor writes its status right after it changed the Deployment: each edit here comes just before that, so that
    // the answer to the status write already carries it, and no later read shows it as a change.
    for replicas in (1..=24).map(|round| 1 + round % 2) {
        place
            .deployment_until("the edit before", "race", |found| {
                found["spec"]["replicas"].as_i64().is_some_and(|now| now != replicas)
            })
            .await
            .unwrap();
        place.store.scale("race", replicas).await.unwrap();
    }
    place.deployment_until("the last edit", "race", |found| found["spec"]["replicas"] == 1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_object_blocks_only_itself() {
    let place = Place::new().await.unwrap();
    let foreign: Service =
        serde_json::from_value(json!({"metadata": {"name": "walk"}, "spec": {"ports": [{"port": 1}]}})).unwrap();
    place.api::<Service>().create(&PostParams::default(), &foreign).await.unwrap();
    let _monitor = place.monitor("only", &[]).await.unwrap();
    place.store.create(&request("walk", 1)).await.unwrap();
    place.deployment_until("the Deployment", "walk", |found| !found.is_null()).await.unwrap();
    place
        .row_until("blocked", "walk", |row| {
            row.and_then(|row| row.region_status.get(REGION)).is_some_and(|entry| entry.blocked_by == ["service/walk"])
        })
        .await
        .unwrap();
    let kept = place.api::<Service>().get("walk").await.unwrap();
    assert_eq!(kept.spec.unwrap().ports.unwrap()[0].port, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_settings_and_a_missing_table_end_the_process_with_their_codes() {
    let place = Place::new().await.unwrap();
    let wrong = [("LEASE_DURATION_SECONDS", "2"), ("METRICS_PORT", "a port")];
    let monitor = place.monitor("settings", &wrong).await.unwrap();
    assert_eq!(monitor.process.wait().await.code(), Some(2));
    let said = monitor.process.log_tail();
    assert!(said.contains("LEASE_DURATION_SECONDS") && said.contains("METRICS_PORT"), "{said}");

    let empty = tempfile::tempdir().unwrap();
    let table = format!("embedded:{}", empty.path().join("empty.sqlite").display());
    let monitor = place.monitor("table", &[("GCO_TABLE", &table)]).await.unwrap();
    assert_eq!(monitor.process.wait().await.code(), Some(3), "{}", monitor.process.log_tail());
}
