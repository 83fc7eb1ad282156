//! Regions of an endpoint come and go, on two real clusters and one table; a region that is gone for good; and what a canary
//! does meanwhile.

use anyhow::Context as _;
use gco_bed::wait;
use gco_store::row::DesiredState;
use gco_store::spec::Canary;
use gco_store::status::{RegionEntry, State};
use gco_store::transition::Declaration;
use gco_tests::region::objects::{annotation, number, text};
use gco_tests::region::rows::spec;
use gco_tests::region::{BOUND, Monitor, MonitorSettings, Region, RegionSettings, Snapshot, TableKind, TestTable};

type TestResult = anyhow::Result<()>;

const EAST: &str = "us-east-1";
const WEST: &str = "eu-west-1";

/// Two regions on two control planes, with one table.
async fn two_regions() -> anyhow::Result<(Region, Region)> {
    let table = TestTable::on_server(TableKind::Ministack).await?;
    let east = Region::start_with(RegionSettings::named(EAST), table.clone()).await?;
    let second =
        RegionSettings { plane: 1, namespace: Some(east.namespace().to_owned()), ..RegionSettings::named(WEST) };
    let west = Region::start_with(second, table).await?;
    Ok((east, west))
}

async fn entry(region: &Region, name: &str, wanted: impl Fn(&RegionEntry) -> bool) -> anyhow::Result<RegionEntry> {
    let what = format!("the status of {name} in {}", region.name());
    let found = wait::until(&what, BOUND, || async {
        let row = region.row(name).await.map_err(|error| error.to_string())?.ok_or("no row")?;
        let entry = row.region_status.get(region.name()).cloned().ok_or("no entry")?;
        if wanted(&entry) { Ok(entry) } else { Err(format!("{entry:?}")) }
    });
    Ok(found.await?)
}

fn canary(number: u32) -> Canary {
    Canary { image: format!("vllm/vllm-openai:v0.{number}.0"), weight: 20, replicas: 1 }
}

/// Slow enough in proving absence for somebody to come in between.
fn slow(name: &str) -> MonitorSettings {
    MonitorSettings::named(name).with("ABSENCE_GAP_SECONDS", 4)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_is_added_again_before_during_and_after_its_clean_up() -> TestResult {
    let (east, west) = two_regions().await?;
    let _east = Monitor::leading(&east).await?;
    let first = Monitor::leading_with(&west, slow("m1")).await?;
    east.deploy_to("chat", spec(1, "0"), &[EAST, WEST]).await?;
    tokio::try_join!(east.settled("chat"), west.settled("chat"))?;
    let uid = async || -> anyhow::Result<String> {
        let objects = west.objects_of("chat").await?;
        let deployment = objects.deployments.get("chat").context("no Deployment")?;
        Ok(text(deployment, "/metadata/uid").unwrap_or_default().to_owned())
    };
    let east_before = east.objects_of("chat").await?.versions();

    // Before: the region's monitor does not run while both happen.
    let old = uid().await?;
    first.kill().await;
    east.operations().remove_region("chat", WEST).await?;
    east.operations().add_region("chat", WEST).await?;
    let _second = Monitor::leading_with(&west, slow("m2")).await?;
    west.settled("chat").await?;
    let new = uid().await?;
    assert_ne!(old, new, "objects of an earlier generation are replaced");

    // During: one look has found nothing, the second has not come yet.
    east.operations().remove_region("chat", WEST).await?;
    entry(&west, "chat", |entry| entry.state == State::Deleting && entry.absence_observations == Some(1)).await?;
    east.operations().add_region("chat", WEST).await?;
    west.settled("chat").await?;

    // After.
    east.operations().remove_region("chat", WEST).await?;
    let gone = entry(&west, "chat", |entry| entry.state == State::Deleted).await?;
    assert_eq!(gone.absence_observations, Some(2));
    assert!(west.objects_of("chat").await?.is_empty());
    east.operations().add_region("chat", WEST).await?;
    west.settled("chat").await?;
    let objects = west.objects_of("chat").await?;
    let row = east.row("chat").await?.context("no row")?;
    let marked = annotation(&objects.deployments["chat"], "gco.io/region-generation").map(str::to_owned);
    assert_eq!(marked.as_deref(), row.region_generation(WEST));
    east.agrees("chat").await?;
    let east_after = east.objects_of("chat").await?.versions();
    assert_eq!(east_before, east_after, "nobody touches the other region");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d6_a_deletion_while_a_removed_region_is_still_cleaning_or_after_it_has_ends_everywhere() -> TestResult {
    let (east, west) = two_regions().await?;
    let _monitors = (Monitor::leading(&east).await?, Monitor::leading_with(&west, slow("m1")).await?);
    for (name, state) in [("while", State::Deleting), ("after", State::Deleted)] {
        east.deploy_to(name, spec(1, "0"), &[EAST, WEST]).await?;
        tokio::try_join!(east.settled(name), west.settled(name))?;
        east.operations().remove_region(name, WEST).await?;
        let removed = entry(&west, name, |entry| entry.state == state).await?;
        assert_eq!(removed.deletion_generation, None);
        east.delete(name).await?;
        tokio::try_join!(east.purged(name), west.purged(name))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d21_a_region_that_is_declared_gone_holds_up_no_purge_and_what_comes_back_with_it_is_listed_and_left()
-> TestResult {
    let (east, west) = two_regions().await?;
    let _east = Monitor::leading(&east).await?;
    let lost = Monitor::leading(&west).await?;
    east.deploy_to("chat", spec(1, "0"), &[EAST, WEST]).await?;
    east.deploy_to("other", spec(1, "0"), &[WEST]).await?;
    tokio::try_join!(east.settled("chat"), west.settled("chat"), west.settled("other"))?;
    let lifecycle = east.row("chat").await?.and_then(|row| row.lifecycle_id).context("no lifecycle")?;
    lost.kill().await;
    let left = west.objects_of("chat").await?.versions();

    // `chat` waits for the west alone; of `other` no region is left, so that whoever looks at the table purges it.
    east.delete("chat").await?;
    east.delete("other").await?;
    entry(&east, "chat", |entry| entry.state == State::Deleted).await?;
    let word = Declaration { by: "ada".to_owned(), reason: "cluster decommissioned".to_owned() };
    for name in ["chat", "other"] {
        assert_eq!(east.row(name).await?.context("purged too early")?.desired_state, DesiredState::Deleted);
        east.operations().declare_absent(name, WEST, &word).await?;
        wait::until(&format!("{name} to be purged"), BOUND, || async {
            let row = east.row(name).await.map_err(|error| error.to_string())?;
            row.map_or(Ok(()), |row| Err(format!("{:?}", row.region_status)))
        })
        .await?;
    }
    assert!(east.objects_of("chat").await?.is_empty());
    let before = west.objects_of("chat").await?.versions();
    assert_eq!(before, left);

    // It comes back: it tells of what is left, and touches nothing.
    let mark = west.audit()?.mark()?;
    let back = Monitor::leading_with(&west, MonitorSettings::named("m2")).await?;
    let told = wait::until("the orphans to be told of", BOUND, || async {
        let item = west.table().store().read_region(WEST).await.map_err(|error| error.to_string())?;
        let heartbeat = item.and_then(|item| item.heartbeat).ok_or("no heartbeat")?;
        let report = heartbeat.orphans.ok_or("no report")?;
        if report.count == 4 { Ok(report) } else { Err(format!("{report:?}")) }
    })
    .await?;
    let listed: Vec<(&str, u32)> = told.listed.iter().map(|orphan| (orphan.object.as_str(), orphan.pods)).collect();
    let expected = [("deployment/chat", 1), ("deployment/other", 1), ("service/chat", 0), ("service/other", 0)];
    assert_eq!(listed, expected);
    let of_chat = told.listed.iter().filter(|orphan| orphan.lifecycle_id.as_ref() == Some(&lifecycle)).count();
    assert_eq!(of_chat, 2);
    assert_eq!(back.metric("gco_monitor_orphans", &[]).await?, Some(4.0));
    back.full_pass().await?;
    assert_eq!(west.objects_of("chat").await?.versions(), before);
    assert_eq!(west.monitor_writes_since(mark)?, [], "an orphan is left alone");

    // The name lives again there: what is left makes way, and is no orphan any more.
    east.deploy_to("chat", spec(1, "1"), &[EAST, WEST]).await?;
    tokio::try_join!(east.settled("chat"), west.settled("chat"))?;
    wait::until("two orphans to be left", BOUND, || async {
        let count = back.metric("gco_monitor_orphans", &[]).await.map_err(|error| error.to_string())?;
        if count == Some(2.0) { Ok(()) } else { Err(format!("{count:?}")) }
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_that_was_declared_gone_and_comes_back_before_the_purge_cleans_up_and_acknowledges() -> TestResult {
    let (east, west) = two_regions().await?;
    let lost = Monitor::leading(&west).await?;
    east.deploy_to("chat", spec(1, "0"), &[EAST, WEST]).await?;
    west.settled("chat").await?;
    lost.kill().await;
    // The east has no monitor either, so the row stays until it has one.
    east.delete("chat").await?;
    let word = Declaration { by: "ada".to_owned(), reason: "seems gone".to_owned() };
    east.operations().declare_absent("chat", WEST, &word).await?;
    let _back = Monitor::leading_with(&west, MonitorSettings::named("m2")).await?;
    let own = entry(&west, "chat", |entry| entry.state == State::Deleted).await?;
    assert_eq!(own.absence_observations, Some(2));
    assert!(west.objects_of("chat").await?.is_empty());
    let _east = Monitor::leading(&east).await?;
    tokio::try_join!(east.purged("chat"), west.purged("chat"))?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_goes_along_with_stops_edits_and_a_region_that_is_added() -> TestResult {
    let (east, west) = two_regions().await?;
    let monitors = (Monitor::leading(&east).await?, Monitor::leading(&west).await?);
    east.deploy_to("chat", spec(2, "0"), &[EAST]).await?;
    east.settled("chat").await?;
    let history = east.history("chat");
    east.operations().set_canary("chat", &canary(30)).await?;
    east.settled("chat").await?;
    let own = east.objects_of("chat").await?.deployments["chat"].clone();

    // A region that comes later gets both.
    east.operations().add_region("chat", WEST).await?;
    tokio::try_join!(east.settled("chat"), west.settled("chat"))?;
    // An edit of the endpoint reaches the canary as well.
    east.mark("chat", "1").await?;
    tokio::try_join!(east.settled("chat"), west.settled("chat"))?;
    assert_eq!(history.unroutable(), [], "a canary never takes an endpoint off the routers");
    drop(history);

    let stopped = east.stop("chat").await?;
    assert_eq!(stopped.desired_state, DesiredState::Stopped);
    tokio::try_join!(east.settled("chat"), west.settled("chat"))?;
    for region in [&east, &west] {
        let objects = region.objects_of("chat").await?;
        assert_eq!((objects.deployments.len(), objects.pods.len()), (2, 0), "a stop takes the canary's pods too");
    }
    // Edited while it is stopped, it is taken at the next start.
    let refused =
        east.operations().set_canary("chat", &canary(31)).await.err().context("a stopped endpoint took it")?;
    assert!(refused.to_string().contains("Cannot canary an endpoint in 'stopped' state"), "{refused}");
    east.start_endpoint("chat").await?;
    tokio::try_join!(east.settled("chat"), west.settled("chat"))?;

    // Rolled back: the endpoint itself is not touched.
    let before = east.objects_of("chat").await?;
    east.operations().roll_back_canary("chat").await?;
    tokio::try_join!(east.settled("chat"), west.settled("chat"))?;
    let after = east.objects_of("chat").await?;
    let generation = |objects: &Snapshot| number(&objects.deployments["chat"], "/metadata/generation");
    assert_eq!(generation(&before), generation(&after));
    assert_ne!(number(&own, "/metadata/generation"), generation(&after));
    assert_eq!(before.deployments["chat"]["spec"], after.deployments["chat"]["spec"]);
    let own_pods = |objects: &Snapshot| -> Vec<String> {
        objects.pods.keys().filter(|name| !name.starts_with("chat-canary-")).cloned().collect()
    };
    assert_eq!(own_pods(&before), own_pods(&after), "no pod of the endpoint itself is replaced");

    // Given and taken at once, and deleted with the endpoint.
    east.operations().set_canary("chat", &canary(32)).await?;
    tokio::try_join!(east.settled("chat"), west.settled("chat"))?;
    east.delete("chat").await?;
    tokio::try_join!(east.purged("chat"), west.purged("chat"))?;
    for monitor in [&monitors.0, &monitors.1] {
        let complaints = monitor.complaints(|line| line["endpoint"] == "chat" && line["level"] == "ERROR")?;
        assert!(complaints.is_empty(), "{complaints:?}");
    }
    Ok(())
}
