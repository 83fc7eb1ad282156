//! Kubernetes Events: transitions only, few and stable reasons, and none at rest.

use std::collections::BTreeMap;

use gco_bed::wait;
use gco_monitor::report::events::EventReason;
use gco_tests::region::rows::spec;
use gco_tests::region::{BOUND, Monitor, Region};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{ListParams, PostParams};

/// How often each reason was said by us, and how.
async fn said(region: &Region) -> anyhow::Result<BTreeMap<String, usize>> {
    let events: Api<Event> = Api::namespaced(region.client().clone(), region.namespace());
    let mut said = BTreeMap::new();
    for event in events.list(&ListParams::default()).await?.items {
        if event.reporting_controller.as_deref() == Some("gco.io/inference-monitor") {
            let of = event.regarding.as_ref().and_then(|object| object.name.clone()).unwrap_or_default();
            *said.entry(format!("{of} {}", event.reason.unwrap_or_default())).or_default() += 1;
        }
    }
    Ok(said)
}

async fn wait_for_reason(region: &Region, wanted: &str) -> anyhow::Result<()> {
    wait::until(&format!("the event {wanted}"), BOUND, || async {
        match said(region).await {
            Ok(said) if said.contains_key(wanted) => Ok(()),
            Ok(said) => Err(format!("{said:?}")),
            Err(error) => Err(format!("{error:#}")),
        }
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d52_transitions_are_events_with_stable_reasons_and_there_are_none_at_rest() -> anyhow::Result<()> {
    let region = Region::start().await?;
    // Somebody else's object stands in the way of one endpoint.
    let services: Api<Service> = Api::namespaced(region.client().clone(), region.namespace());
    let foreign: Service = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "blocked"}, "spec": {"ports": [{"port": 80}], "selector": {"app": "other"}},
    }))?;
    services.create(&PostParams::default(), &foreign).await?;
    let monitor = Monitor::leading(&region).await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.deploy("blocked", spec(1, "0")).await?;
    wait_for_reason(&region, "chat Serving").await?;
    wait_for_reason(&region, "blocked Blocked").await?;
    let mut bad = region.row("chat").await?.expect("a row").item;
    if let Some(gco_store::wire::Value::Map(spec)) = bad.get_mut("spec") {
        spec.insert("port".to_owned(), gco_store::wire::Value::from("many"));
    }
    region.put_raw(bad).await?;
    wait_for_reason(&region, "chat Rejected").await?;
    region.set("chat", "port", 8000).await?;
    region.settled("chat").await?;
    region.stop("chat").await?;
    wait_for_reason(&region, "chat Stopped").await?;

    let before = said(&region).await?;
    let mark = region.audit()?.mark()?;
    for _ in 0..3 {
        monitor.full_pass().await?;
    }
    let user = region.monitor_user();
    let at_rest = region.requests_since(mark, |event| event.user == user && event.resource == "events")?;
    assert!(at_rest.is_empty(), "{at_rest:?}");
    println!("said: {before:?}");
    let known: Vec<&str> = EventReason::ALL.iter().map(|reason| reason.as_str()).collect();
    for key in before.keys() {
        let reason = key.split_once(' ').map_or("", |(_, reason)| reason);
        assert!(known.contains(&reason), "{key} is not among {known:?}");
    }
    let counted = monitor.metric("gco_monitor_events_total", &[("outcome", "written")]).await?.unwrap_or_default();
    assert_eq!(counted, before.values().sum::<usize>() as f64, "what is counted is what was written");
    let failed = monitor.metric("gco_monitor_events_total", &[("outcome", "failed")]).await?;
    assert_eq!(failed, Some(0.0), "{}", monitor.described());
    Ok(())
}
