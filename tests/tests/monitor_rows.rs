//! Every row of the fixtures in a real region: read, written back, reconciled or refused, as a table written by hand says.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use gco_bed::wait;
use gco_store::row::DesiredState;
use gco_store::status::State;
use gco_store::table::Consistency;
use gco_store::wire::{Item, Value, item_from_dynamodb_json, item_to_dynamodb_json};
use gco_tests::region::rows::{fixture, fixture_names};
use gco_tests::region::{BOUND, Monitor, Region, RegionSettings, TableKind, TestTable, agreement};

/// What becomes of a row in one region.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is served; row and cluster agree in every field.
    Serves,
    /// It holds no pods.
    Stops,
    /// Refused with this reason; these fields are named; nothing of it is touched.
    Refused(&'static str, &'static [&'static str]),
    /// The row is purged.
    Purged,
    /// The region is cleaned up and says so, twice observed; the row stays.
    CleanedUp,
    /// Nothing at all: the region has no business with it.
    Untouched,
}

/// Fixture, fate in us-east-1, fate in eu-west-1. `classic-full` is elsewhere: its name and `name-with-reserved-suffix`
/// collide.
const FATES: [(&str, Fate, Fate); 19] = {
    use Fate::{CleanedUp, Purged, Refused, Serves, Stops, Untouched};
    const LATER: &str = "NotYetSupported";
    const BAD: &str = "InvalidSpec";
    const MANY: &[&str] = &[
        "spec.port",
        "spec.replicas",
        "spec.gpu_count",
        "spec.node_selector",
        "spec.autoscaling.max_replicas",
        "spec.autoscaling.metrics[0]",
    ];
    [
        ("classic-canary", Serves, Serves),
        ("classic-hpa", Serves, Serves),
        // Without KEDA: it serves, and says what is missing.
        ("classic-keda-gpu", Serves, Serves),
        ("classic-minimal", Serves, Serves),
        ("classic-stopped", Stops, Stops),
        ("classic-tgi-neuron", Serves, Untouched),
        ("classic-triton-cpu", Serves, Serves),
        // Already acknowledged by eu-west-1; us-east-1 is the last.
        ("deleting-half-acknowledged", Purged, Untouched),
        ("invalid-many-fields", Refused(BAD, MANY), Refused(BAD, MANY)),
        ("invalid-mooncake-and-canary", Refused(BAD, &["spec"]), Refused(BAD, &["spec"])),
        ("invalid-spec-not-a-map", Refused(BAD, &["spec"]), Refused(BAD, &["spec"])),
        ("legacy-no-lifecycle", Serves, Serves),
        ("mooncake-both-autoscaled", Refused(LATER, &["spec.mooncake"]), Refused(LATER, &["spec.mooncake"])),
        ("mooncake-disaggregated", Refused(LATER, &["spec.mooncake"]), Refused(LATER, &["spec.mooncake"])),
        ("mooncake-disaggregated-tcp", Refused(LATER, &["spec.mooncake"]), Untouched),
        ("mooncake-store", Refused(LATER, &["spec.mooncake"]), Refused(LATER, &["spec.mooncake"])),
        ("name-with-reserved-suffix", Serves, Serves),
        ("region-removed", Serves, CleanedUp),
        ("unknown-keys", Serves, Serves),
    ]
};

/// Attributes that a monitor may change of a row that it serves or completes.
const OURS: [&str; 6] =
    ["region_status", "updated_at", "desired_state", "lifecycle_id", "cleanup_regions", "region_generations"];

#[tokio::test(flavor = "multi_thread")]
async fn rows_come_back_from_the_table_with_the_same_types_and_number_texts() -> anyhow::Result<()> {
    for kind in [TableKind::Ministack, TableKind::Dynalite] {
        let table = TestTable::on_server(kind).await?;
        let region = Region::start_with(RegionSettings::named("us-east-1"), table).await?;
        for name in fixture_names()? {
            let item = fixture(&name)?;
            let decoded = item_from_dynamodb_json(&item_to_dynamodb_json(&item));
            assert_eq!(decoded.as_ref(), Ok(&item), "{name}");
            region.put_raw(item.clone()).await?;
            let endpoint = item["endpoint_name"].as_str().context("no name")?;
            let back = region.table().store().get(endpoint, Consistency::Strong).await?;
            assert_eq!(back.as_ref(), Some(&item), "{name} on {kind:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_row_is_reconciled_or_refused_as_the_table_says_in_us_east_1() -> anyhow::Result<()> {
    fates("us-east-1", |(_, east, _)| east).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_row_is_reconciled_or_refused_as_the_table_says_in_eu_west_1() -> anyhow::Result<()> {
    fates("eu-west-1", |(_, _, west)| west).await
}

async fn fates(name: &str, of: impl Fn((&'static str, Fate, Fate)) -> Fate) -> anyhow::Result<()> {
    let covered = FATES.len() + 1;
    ensure!(fixture_names()?.len() == covered, "{covered} rows are in the table, {:?} in the folder", fixture_names()?);
    let table = TestTable::on_server(TableKind::Ministack).await?;
    let region = Region::start_with(RegionSettings::named(name), table).await?;
    region.make_model_storage().await?;
    let mut loaded: BTreeMap<String, (String, Fate, Item)> = BTreeMap::new();
    for line in FATES {
        let item = fixture(line.0)?;
        region.put_row(item.clone()).await?;
        let endpoint = item["endpoint_name"].as_str().context("no name")?.to_owned();
        let item = region.row(&endpoint).await?.context("not stored")?.item;
        loaded.insert(endpoint, (line.0.to_owned(), of(line), item));
    }
    let monitor = Monitor::leading(&region).await?;
    for (endpoint, (fixture, fate, before)) in &loaded {
        let what = format!("{fixture} ({endpoint}) to be {fate:?}");
        wait::until(&what, BOUND, || async {
            met(&region, endpoint, *fate, before).await.map_err(|error| format!("{error:#}"))
        })
        .await
        .with_context(|| monitor.described())?;
    }
    // Passes that change nothing leave every row exactly as it is: its version, too.
    let rows = settled_rows(&region, &monitor).await?;
    for _ in 0..3 {
        monitor.full_pass().await?;
    }
    assert_eq!(all_rows(&region).await?, rows);
    for (endpoint, (fixture, fate, before)) in &loaded {
        let Some(after) = rows.get(endpoint) else {
            assert!(matches!(fate, Fate::Purged), "{fixture} is gone");
            continue;
        };
        let foreign = |item: &Item| -> Item {
            item.iter().filter(|(key, _)| !OURS.contains(&key.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect()
        };
        assert_eq!(foreign(before), foreign(after), "{fixture}: a key that is not ours changed");
        if matches!(fate, Fate::Untouched) {
            assert_eq!(before, after, "{fixture}");
        }
    }
    println!("{name}: {} rows, {} of them left after the last pass", loaded.len(), rows.len());
    Ok(())
}

/// Whether a row has met its fate.
async fn met(region: &Region, endpoint: &str, fate: Fate, before: &Item) -> anyhow::Result<()> {
    let objects = region.objects_of(endpoint).await?;
    let Some(row) = region.row(endpoint).await? else {
        ensure!(matches!(fate, Fate::Purged), "the row is gone");
        ensure!(objects.is_empty(), "left: {:?}", objects.versions());
        return Ok(());
    };
    let entry = row.region_status.get(region.name());
    match fate {
        Fate::Serves => {
            ensure!(row.desired_state == DesiredState::Running, "{:?}", row.desired_state);
            let difference = agreement::disagreement(&row, region.name(), &objects);
            ensure!(difference.is_none(), "{}", difference.unwrap_or_default());
        }
        Fate::Stops => {
            ensure!(entry.is_some_and(|entry| entry.state == State::Stopped), "{entry:?}");
            ensure!(objects.pods.is_empty(), "{:?}", objects.pods.keys());
        }
        Fate::Refused(reason, fields) => {
            let entry = entry.context("no entry")?;
            let condition = entry.conditions.iter().find(|condition| condition.reason == reason);
            let condition = condition.with_context(|| format!("no condition {reason}: {:?}", entry.conditions))?;
            let error = entry.error.as_deref().unwrap_or_default();
            for field in fields {
                ensure!(error.contains(field), "{field} is not named: {error}; {}", condition.message);
            }
            let was_running = before.get("region_status").map(|status| Value::at(status, &[region.name(), "state"]));
            if was_running.flatten().and_then(Value::as_str) != Some("running") {
                ensure!(entry.state == State::Failed || reason == "NotYetSupported", "{:?}", entry.state);
            }
            ensure!(objects.is_empty(), "touched: {:?}", objects.versions());
        }
        Fate::Purged => anyhow::bail!("the row is there: {entry:?}"),
        Fate::CleanedUp => {
            let entry = entry.context("no entry")?;
            ensure!(entry.state == State::Deleted && entry.absence_observations == Some(2), "{entry:?}");
            ensure!(entry.region_generation.as_deref() == row.region_generation(region.name()), "{entry:?}");
            ensure!(objects.is_empty(), "left: {:?}", objects.versions());
        }
        Fate::Untouched => ensure!(objects.is_empty(), "touched: {:?}", objects.versions()),
    }
    Ok(())
}

async fn all_rows(region: &Region) -> anyhow::Result<BTreeMap<String, Item>> {
    let read = region.table().store().read_all(Consistency::Strong).await?;
    let named = |item: Item| (item["endpoint_name"].as_str().unwrap_or_default().to_owned(), item);
    Ok(read.items.into_iter().map(named).collect())
}

/// All rows, once a forced pass has left them as they were.
async fn settled_rows(region: &Region, monitor: &Monitor) -> anyhow::Result<BTreeMap<String, Item>> {
    let look = || async {
        let pass = async {
            let before = all_rows(region).await?;
            monitor.full_pass().await?;
            anyhow::Ok((before, all_rows(region).await?))
        };
        match pass.await {
            Ok((before, after)) if before == after => Ok(after),
            Ok(_) => Err("a row was changed by the last pass".to_owned()),
            Err(error) => Err(format!("{error:#}")),
        }
    };
    Ok(wait::until("a pass that changes no row", BOUND, look).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_with_everything_set_is_served_where_its_name_collides_with_nothing() -> anyhow::Result<()> {
    let region = Region::start().await?;
    region.make_model_storage().await?;
    region.put_row(fixture("classic-full")?).await?;
    let _monitor = Monitor::leading(&region).await?;
    region.settled("chat-large").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_with_a_reserved_suffix_beside_its_stem_is_refused_and_the_stem_is_served() -> anyhow::Result<()> {
    let region = Region::start().await?;
    region.make_model_storage().await?;
    region.put_row(fixture("classic-full")?).await?;
    region.put_row(fixture("name-with-reserved-suffix")?).await?;
    let monitor = Monitor::leading(&region).await?;
    region.settled("chat-large").await?;
    let refused = Fate::Refused("NameCollision", &["endpoint_name", "\"chat-large\""]);
    wait::until("chat-large-proxy to be refused", BOUND, || async {
        met(&region, "chat-large-proxy", refused, &Item::new()).await.map_err(|error| format!("{error:#}"))
    })
    .await
    .with_context(|| monitor.described())
}

/// What the original made for an autoscaled row goes on under ours, pod for pod.
#[tokio::test(flavor = "multi_thread")]
async fn objects_of_the_control_plane_that_came_before_are_taken_over_without_a_restart() -> anyhow::Result<()> {
    let region = Region::start().await?;
    region.make_original_objects("classic-hpa").await?;
    region.put_row(fixture("classic-hpa")?).await?;
    region
        .wait_for("the original's pods to be ready", BOUND, |snapshot| {
            let ready = |deployment: &serde_json::Value| {
                deployment["status"]["readyReplicas"] == deployment["spec"]["replicas"]
            };
            let all = snapshot.deployments.values().all(ready);
            if all { Ok(()) } else { Err(format!("{:?}", snapshot.pods.keys())) }
        })
        .await?;
    let before = region.snapshot().await?;
    let monitor = Monitor::leading(&region).await?;
    wait::until("chat-hpa to be taken over", BOUND, || async {
        let row = region.row("chat-hpa").await.map_err(|error| error.to_string())?.ok_or("no row")?;
        let entry = row.region_status.get("us-east-1").cloned().ok_or("no entry")?;
        let said = entry.conditions.iter().any(|condition| condition.reason == "Adopted");
        // Its pods are ready, so it serves: nobody's traffic ends because the monitor changed.
        if said && entry.state == State::Running { Ok(()) } else { Err(format!("{entry:?}")) }
    })
    .await
    .with_context(|| monitor.described())?;
    monitor.full_pass().await?;
    let after = region.snapshot().await?;
    ensure!(!before.pods.is_empty(), "no pod was there before");
    assert!(before.pods.keys().eq(after.pods.keys()), "{:?} and {:?}", before.pods.keys(), after.pods.keys());
    assert!(before.replica_sets.keys().eq(after.replica_sets.keys()), "{:?}", after.replica_sets.keys());
    Ok(())
}
