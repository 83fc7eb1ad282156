//! Weaknesses of the control plane that came before, and how the monitor behaves instead: taking things down, and what is
//! in the way.

use std::time::Duration;

use anyhow::Context as _;
use gco_bed::wait;
use gco_runtime::clock::{Clock as _, SystemClock};
use gco_store::row::EndpointRow;
use gco_store::status::{RegionEntry, State};
use gco_store::transition::{self, StatusAuthority};
use gco_store::wire::Value;
use gco_tests::region::objects::text;
use gco_tests::region::rows::spec;
use gco_tests::region::{BOUND, Monitor, MonitorSettings, Region, RegionSettings, TableKind, TestTable};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

type TestResult = anyhow::Result<()>;

async fn foreign_service(region: &Region, name: &str) -> anyhow::Result<Api<Service>> {
    let services: Api<Service> = Api::namespaced(region.client().clone(), region.namespace());
    let foreign: Service = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"team": "search"}},
        "spec": {"selector": {"app": "something-else"}, "ports": [{"port": 443}]},
    }))?;
    services.create(&PostParams::default(), &foreign).await?;
    Ok(services)
}

async fn entry(region: &Region, name: &str, wanted: impl Fn(&RegionEntry) -> bool) -> anyhow::Result<RegionEntry> {
    let what = format!("the status of {name}");
    let found = wait::until(&what, BOUND, || async {
        let row = region.row(name).await.map_err(|error| error.to_string())?.ok_or("no row")?;
        let entry = row.region_status.get(region.name()).cloned().ok_or("no entry")?;
        if wanted(&entry) { Ok(entry) } else { Err(format!("{entry:?}")) }
    });
    Ok(found.await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn d22_a_foreign_object_is_named_and_left_while_everything_else_goes_on() -> TestResult {
    let region = Region::start().await?;
    let _monitor = Monitor::leading(&region).await?;
    let services = foreign_service(&region, "chat").await?;
    let before = services.get("chat").await?;
    region.deploy("chat", spec(1, "0")).await?;
    let blocked = |entry: &RegionEntry| entry.blocked_by.iter().any(|name| name == "service/chat");
    entry(&region, "chat", |entry| blocked(entry) && entry.replicas_ready == 1).await?;
    region.delete("chat").await?;
    let deleting = entry(&region, "chat", |entry| entry.state == State::Deleting && blocked(entry)).await?;
    assert_eq!(deleting.absence_observations.unwrap_or_default(), 0, "{deleting:?}");
    region
        .wait_for("the Deployment and its pods to go", BOUND, |snapshot| {
            let gone = snapshot.deployments.is_empty() && snapshot.pods.is_empty();
            if gone { Ok(()) } else { Err(format!("{:?}", snapshot.versions())) }
        })
        .await?;
    assert_eq!(services.get("chat").await?, before, "the foreign object is untouched");
    services.delete("chat", &DeleteParams::default()).await?;
    region.purged("chat").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d23_objects_of_an_earlier_life_are_replaced_all_at_once() -> TestResult {
    let region = Region::start().await?;
    let first = Monitor::leading(&region).await?;
    let row = region.deploy("chat", spec(1, "0")).await?;
    let before = region.settled("chat").await?;
    first.kill().await;
    // The name lives again without having been purged: what a restored backup of the table looks like.
    let mut item = row.item;
    item.insert("lifecycle_id".to_owned(), Value::from("d".repeat(64)));
    region.put_row(item).await?;
    let since = tokio::time::Instant::now();
    let _second = Monitor::leading_with(&region, MonitorSettings::named("m2")).await?;
    let after = region.settled("chat").await?;
    println!("two stale objects replaced after {:?}, take-over included", since.elapsed());
    for (before, after) in
        [(&before.deployments["chat"], &after.deployments["chat"]), (&before.services["chat"], &after.services["chat"])]
    {
        assert_ne!(text(before, "/metadata/uid"), text(after, "/metadata/uid"));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d30_a_region_that_is_no_target_asks_says_and_writes_nothing() -> TestResult {
    let region = Region::start().await?;
    let monitor = Monitor::leading(&region).await?;
    let row = region.deploy_to("elsewhere", spec(1, "0"), &["eu-west-1"]).await?;
    region.deploy("here", spec(1, "0")).await?;
    region.settled("here").await?;
    monitor.full_pass().await?;
    assert_eq!(region.row("elsewhere").await?.unwrap().item, row.item);
    let said = monitor.log()?.into_iter().filter(|line| line.to_string().contains("elsewhere")).count();
    assert_eq!(said, 0);
    let asked = region.requests_where(|event| event.name.contains("elsewhere"))?;
    assert_eq!(asked, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d49_a_deletion_lists_only_what_carries_our_labels_and_never_secrets() -> TestResult {
    let region = Region::start().await?;
    let _monitor = Monitor::leading(&region).await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.settled("chat").await?;
    region.delete("chat").await?;
    region.purged("chat").await?;
    let user = region.monitor_user();
    let lists = region.requests_where(|event| event.user == user && matches!(event.verb.as_str(), "list" | "watch"))?;
    assert!(!lists.is_empty());
    for list in lists {
        assert_ne!(list.resource, "secrets", "{}", list.uri);
        let by_name = list.resource == "leases" || list.uri.contains("fieldSelector=metadata.name");
        // Of the selector what makes it narrow: our project, or the endpoint's own Services. An empty one selects everything.
        let selector = list.uri.split("labelSelector=").nth(1).unwrap_or_default();
        let selector = selector.split('&').next().unwrap_or_default().to_ascii_lowercase();
        let narrow = selector.starts_with("project%3dgco") || selector.contains("service-name");
        assert!(by_name || narrow, "{}", list.uri);
    }
    let refused = region.requests_where(|event| event.user == user && event.code == 403)?;
    assert_eq!(refused, [], "the Role forbids something that the monitor does");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d50_a_row_without_version_and_lifecycle_is_not_acted_upon() -> TestResult {
    let region = Region::start().await?;
    let monitor = Monitor::leading(&region).await?;
    let mut item = region.deploy_to("bare", spec(1, "0"), &["eu-west-1"]).await?.item;
    for missing in ["updated_at", "lifecycle_id", "region_generations", "cleanup_regions"] {
        item.remove(missing);
    }
    item.insert("target_regions".to_owned(), Value::List(vec![Value::from("us-east-1")]));
    region.put_row(item.clone()).await?;
    region.deploy("here", spec(1, "0")).await?;
    region.settled("here").await?;
    monitor.full_pass().await?;
    assert!(region.objects_of("bare").await?.is_empty());
    let after = region.row("bare").await?.unwrap().item;
    item.insert("namespace".to_owned(), Value::from(region.namespace()));
    assert_eq!(after, item);
    assert!(!monitor.complaints(|line| line["endpoint"] == "bare")?.is_empty(), "nothing names the row");
    Ok(())
}

/// Writes what another region's monitor would write of a deletion.
async fn acknowledge(region: &Region, name: &str, other: &str) -> anyhow::Result<EndpointRow> {
    region
        .change(name, |row| {
            let lifecycle_id = row.lifecycle_id.clone().context("no lifecycle")?;
            let deletion_generation = row.deletion_generation.clone().context("no deletion generation")?;
            let now = SystemClock.wall();
            let entry = RegionEntry {
                last_sync: Some(gco_store::time::format(now)),
                lifecycle_id: Some(lifecycle_id.clone()),
                deletion_generation: Some(deletion_generation.clone()),
                absence_observations: Some(2),
                ..RegionEntry::new(State::Deleted)
            };
            let authority = StatusAuthority::Deletion { lifecycle_id, deletion_generation };
            Ok(transition::write_region_status(row, other, &entry, &authority, now)?)
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn d6_a_region_that_was_removed_before_the_deletion_still_acknowledges_it() -> TestResult {
    let region = Region::start().await?;
    let _monitor = Monitor::leading(&region).await?;
    region.deploy_to("chat", spec(1, "0"), &["us-east-1", "eu-west-1"]).await?;
    region.settled("chat").await?;
    region.set_regions("chat", &["eu-west-1"]).await?;
    let removed = entry(&region, "chat", |entry| entry.state == State::Deleted).await?;
    assert_eq!(removed.deletion_generation, None);
    assert!(region.objects_of("chat").await?.is_empty());
    region.delete("chat").await?;
    let deleted = entry(&region, "chat", |entry| entry.deletion_generation.is_some()).await?;
    println!("{deleted:?}");
    acknowledge(&region, "chat", "eu-west-1").await?;
    region.purged("chat").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_is_purged_only_when_every_region_has_seen_it_gone_twice() -> TestResult {
    let region = Region::start().await?;
    let monitor = Monitor::leading(&region).await?;
    region.deploy_to("chat", spec(1, "0"), &["us-east-1", "eu-west-1"]).await?;
    region.settled("chat").await?;
    region.delete("chat").await?;
    let ours = entry(&region, "chat", |entry| entry.state == State::Deleted).await?;
    assert_eq!(ours.absence_observations, Some(2));
    monitor.full_pass().await?;
    let row = region.row("chat").await?.context("purged without the other region")?;
    assert_eq!(row.region_status.len(), 1);
    acknowledge(&region, "chat", "eu-west-1").await?;
    region.purged("chat").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_regions_serve_one_row_and_purge_it_together() -> TestResult {
    let table = TestTable::on_server(TableKind::Ministack).await?;
    let east = Region::start_with(RegionSettings::named("us-east-1"), table.clone()).await?;
    let second =
        RegionSettings { plane: 1, namespace: Some(east.namespace().to_owned()), ..RegionSettings::named("eu-west-1") };
    let west = Region::start_with(second, table).await?;
    let _monitors = (Monitor::leading(&east).await?, Monitor::leading(&west).await?);
    east.deploy_to("chat", spec(2, "0"), &["us-east-1", "eu-west-1"]).await?;
    tokio::try_join!(east.agrees("chat"), west.agrees("chat"))?;
    east.mark("chat", "1").await?;
    tokio::try_join!(east.settled("chat"), west.settled("chat"))?;
    east.set_regions("chat", &["us-east-1"]).await?;
    entry(&west, "chat", |entry| entry.state == State::Deleted).await?;
    assert!(west.objects_of("chat").await?.is_empty());
    east.agrees("chat").await?;
    east.set_regions("chat", &["us-east-1", "eu-west-1"]).await?;
    tokio::try_join!(east.settled("chat"), west.settled("chat"))?;
    west.delete("chat").await?;
    tokio::try_join!(east.purged("chat"), west.purged("chat"))?;
    // The name is free again.
    east.deploy_to("chat", spec(1, "2"), &["us-east-1", "eu-west-1"]).await?;
    tokio::try_join!(east.settled("chat"), west.settled("chat"))?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_way_for_longer_than_a_look_resets_the_proof_of_absence() -> TestResult {
    let region = Region::start().await?;
    let settings = MonitorSettings::named("m1").with("ABSENCE_GAP_SECONDS", 3);
    let _monitor = Monitor::leading_with(&region, settings).await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.settled("chat").await?;
    region.delete("chat").await?;
    entry(&region, "chat", |entry| entry.absence_observations == Some(1)).await?;
    let since = tokio::time::Instant::now();
    let services = foreign_service(&region, "chat").await?;
    entry(&region, "chat", |entry| entry.absence_observations.unwrap_or_default() == 0).await?;
    assert!(region.row("chat").await?.is_some());
    services.delete("chat", &DeleteParams::default()).await?;
    region.purged("chat").await?;
    let took = since.elapsed();
    assert!(took >= Duration::from_secs(3), "two looks take at least the gap between them; purged after {took:?}");
    Ok(())
}
