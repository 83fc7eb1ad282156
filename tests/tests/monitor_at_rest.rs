//! At rest a pass costs nothing: no request to the API server besides watches and the Lease, no write to the table.
//!
//! Counted where it arrives: in the API server's audit log, by the monitor's own account with its real Role, and in a
//! proxy before the table server.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt as _;
use gco_bed::wait;
use gco_tests::region::gate::is_of_the_second_table;
use gco_tests::region::objects::{number, text};
use gco_tests::region::rows::spec;
use gco_tests::region::{BOUND, Monitor, MonitorSettings, Region, RegionSettings, TableKind, TestTable};
use gco_tests::size::Size;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn d16_a_pass_at_rest_asks_nothing_and_writes_nothing() -> anyhow::Result<()> {
    let size = Size::asked();
    let (endpoints, passes) = size.choose((40_usize, 5_usize), (200, 20));
    let table = TestTable::on_server(TableKind::Ministack).await?;
    let region = Region::start_with(RegionSettings::named("us-east-1"), table).await?;
    let proxy = region.table_proxy().await?;
    let settings = MonitorSettings::named("m1")
        .table_through(proxy.url())
        // Passes are forced here; none may come by itself and hide behind the count.
        .with("FULL_PASS_INTERVAL_SECONDS", 3600)
        .with("RECONCILE_INTERVAL_SECONDS", 2)
        .with("HEARTBEAT_INTERVAL_SECONDS", 2)
        .with("LEASE_DURATION_SECONDS", 15)
        .with("LEASE_RENEW_INTERVAL_SECONDS", 2)
        .with("LEASE_RENEW_TIMEOUT_SECONDS", 5);
    let monitor = Monitor::leading_with(&region, settings).await?;
    let names: Vec<String> = (0..endpoints).map(|number| format!("rest-{number:03}")).collect();
    let deployed = futures::stream::iter(&names).map(|name| region.deploy(name, spec(1, "0"))).buffer_unordered(8);
    deployed.collect::<Vec<_>>().await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    region.all_agree(&names, Duration::from_secs(600)).await?;
    // The last status writes may still be heard of; a pass that plans nothing ends that.
    quiet(&region, &monitor, &proxy).await?;

    let planned_before = planned(&monitor).await?;
    let audit_before = region.audit()?.mark()?;
    let table_before = proxy.mark();
    let deployments: Api<Deployment> = Api::namespaced(region.client().clone(), region.namespace());
    for pass in 0..passes {
        // What a Deployment's status says that we never report: a condition's time. The event reaches the monitor's cache.
        let name = &names[pass % names.len()];
        touch_status(&deployments, name, pass).await?;
        monitor.full_pass().await?;
    }
    let plans = planned(&monitor).await? - planned_before;

    let user = region.monitor_user();
    let mut asked: BTreeMap<String, usize> = BTreeMap::new();
    for request in region.requests_since(audit_before, |event| event.user == user)? {
        *asked.entry(format!("{} {}", request.verb, request.resource)).or_default() += 1;
    }
    let mut writes: BTreeMap<String, usize> = BTreeMap::new();
    let mut reads: BTreeMap<String, usize> = BTreeMap::new();
    for exchange in proxy.exchanges_since(table_before) {
        let request = &exchange.request;
        let table = if is_of_the_second_table(request) { "second" } else { "first" };
        let operation = request.dynamodb_operation.as_deref().unwrap_or("?");
        let counted = if request.is_write() { &mut writes } else { &mut reads };
        *counted.entry(format!("{operation} {table} table")).or_default() += 1;
    }
    println!("{endpoints} endpoints, {passes} forced full passes, {plans} plans computed");
    println!("API server: {asked:?}; table writes: {writes:?}; table reads: {reads:?}");

    assert!(plans >= (endpoints * passes) as f64, "{plans} plans for {endpoints} × {passes}");
    let beyond: Vec<&String> =
        asked.keys().filter(|what| !what.ends_with(" leases") && !what.starts_with("watch ")).collect();
    assert!(beyond.is_empty(), "asked of the API server besides watches and the Lease: {beyond:?} of {asked:?}");
    let first: Vec<&String> = writes.keys().filter(|what| what.ends_with("first table")).collect();
    assert!(first.is_empty(), "{writes:?}");
    // A heartbeat every two seconds, and nothing else.
    assert_eq!(writes.keys().filter(|what| !what.starts_with("UpdateItem second")).count(), 0, "{writes:?}");
    region.delete_namespace().await?;
    Ok(())
}

/// How many plans the monitor has computed since it started.
async fn planned(monitor: &Monitor) -> anyhow::Result<f64> {
    Ok(monitor.metric("gco_monitor_plans_computed_total", &[]).await?.unwrap_or_default())
}

/// Waits until a forced pass writes nothing.
async fn quiet(
    region: &Region,
    monitor: &Monitor,
    proxy: &gco_bed::rewriting_proxy::RewritingProxy,
) -> anyhow::Result<()> {
    wait::until("a pass without a write", BOUND, || async {
        let look = async {
            let (audit, table) = (region.audit()?.mark()?, proxy.mark());
            monitor.full_pass().await?;
            let user = region.monitor_user();
            let asked = region.requests_since(audit, |event| event.user == user && event.resource != "leases")?;
            let written = proxy.exchanges_since(table);
            let written = written
                .iter()
                .filter(|exchange| exchange.request.is_write() && !is_of_the_second_table(&exchange.request));
            anyhow::Ok((asked.iter().filter(|event| !event.is_watch()).count(), written.count()))
        };
        match look.await {
            Ok((0, 0)) => Ok(()),
            Ok((asked, written)) => Err(format!("{asked} requests to the API server, {written} to the first table")),
            Err(error) => Err(format!("{error:#}")),
        }
    })
    .await?;
    Ok(())
}

/// Changes a time in a Deployment's status and waits until the change is stored.
async fn touch_status(deployments: &Api<Deployment>, name: &str, pass: usize) -> anyhow::Result<()> {
    let before = serde_json::to_value(deployments.get_status(name).await?)?;
    let mut conditions = before["status"]["conditions"].clone();
    let time = format!("2026-01-01T00:{:02}:{:02}Z", pass / 60 % 60, pass % 60);
    conditions[0]["lastUpdateTime"] = json!(time);
    let patch = json!({"status": {"conditions": conditions}});
    deployments.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    let after = serde_json::to_value(deployments.get_status(name).await?)?;
    assert_ne!(text(&before, "/metadata/resourceVersion"), text(&after, "/metadata/resourceVersion"));
    assert_eq!(number(&before, "/status/readyReplicas"), number(&after, "/status/readyReplicas"));
    Ok(())
}

/// The passes that come by the clock, not by force.
#[tokio::test(flavor = "multi_thread")]
async fn full_passes_by_the_clock_are_as_silent() -> anyhow::Result<()> {
    let region = Region::start().await?;
    let settings = MonitorSettings::named("m1").with("FULL_PASS_INTERVAL_SECONDS", "0.1");
    let monitor = Monitor::leading_with(&region, settings).await?;
    region.deploy("chat", spec(2, "0")).await?;
    region.settled("chat").await?;
    let before = planned(&monitor).await?;
    let mark = region.audit()?.mark()?;
    wait::until("twenty passes by the clock", Duration::from_secs(30), || async {
        match planned(&monitor).await {
            Ok(plans) if plans >= before + 20.0 => Ok(()),
            Ok(plans) => Err(format!("{} plans", plans - before)),
            Err(error) => Err(format!("{error:#}")),
        }
    })
    .await?;
    let user = region.monitor_user();
    let asked =
        region.requests_since(mark, |event| event.user == user && event.resource != "leases" && !event.is_watch())?;
    assert_eq!(asked, []);
    Ok(())
}
