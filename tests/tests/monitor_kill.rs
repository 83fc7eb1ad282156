//! kill -9 of the monitor at seeded moments of deploy, edit and delete; it is started again. The end is the same as that of
//! an undisturbed run, and nothing is doubled.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use gco_bed::control_plane::AuditEvent;
use gco_bed::rewriting_proxy::RewritingProxy;
use gco_runtime::random::SeededRandomness;
use gco_tests::dice::roll;
use gco_tests::region::gate::{Class, Phase, Trap};
use gco_tests::region::objects::differences;
use gco_tests::region::rows::spec;
use gco_tests::region::{Monitor, MonitorSettings, Region, RegionSettings, TableKind, TestTable};
use gco_tests::size::Size;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};

const ENDPOINT: &str = "chat";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    Deploy,
    Edit,
    Delete,
}

impl Scenario {
    async fn prepare(self, region: &Region) -> anyhow::Result<()> {
        if self != Self::Deploy {
            region.deploy(ENDPOINT, spec(2, "before")).await?;
            region.settled(ENDPOINT).await?;
        }
        Ok(())
    }

    async fn act(self, region: &Region) -> anyhow::Result<()> {
        match self {
            Self::Deploy => region.deploy(ENDPOINT, spec(2, "after")).await?,
            Self::Edit => region.mark(ENDPOINT, "after").await?,
            Self::Delete => region.delete(ENDPOINT).await?,
        };
        Ok(())
    }

    async fn ended(self, region: &Region) -> anyhow::Result<()> {
        match self {
            Self::Delete => region.purged(ENDPOINT).await?,
            _ => drop(region.settled(ENDPOINT).await?),
        }
        Ok(())
    }
}

/// The end of a run: objects and row, without what differs between two runs that ended the same way.
async fn end_of(region: &Region) -> anyhow::Result<Value> {
    let row = region.row(ENDPOINT).await?.map(|row| {
        let mut row = gco_store::wire::item_to_plain_json(&row.item);
        for passing in ["lifecycle_id", "region_generations", "created_at", "updated_at", "namespace"] {
            row[passing] = Value::Null;
        }
        if let Some(previous) = row["previous_spec"].as_object_mut() {
            previous.insert("replaced_at".to_owned(), Value::Null);
        }
        let entry = &mut row["region_status"]["us-east-1"];
        for passing in ["last_sync", "lifecycle_id", "region_generation"] {
            entry[passing] = Value::Null;
        }
        for condition in entry["conditions"].as_array_mut().into_iter().flatten() {
            condition["since"] = Value::Null;
        }
        row
    });
    Ok(json!({"objects": region.objects_of(ENDPOINT).await?.end_state(), "row": row}))
}

/// What was doubled, by the audit log: an object that was created while the one before it still existed, a rollout that
/// nobody asked for.
fn doubled(events: &[AuditEvent], scenario: Scenario) -> Vec<String> {
    let mut made: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for event in events {
        // The name of a created object is not in its request; each kind here has one.
        let counts = made.entry(event.resource.clone()).or_default();
        match event.verb.as_str() {
            "create" if event.code == 201 => counts.0 += 1,
            "delete" if (200..300).contains(&event.code) => counts.1 += 1,
            _ => {}
        }
    }
    let mut doubled = Vec::new();
    for resource in ["deployments", "services"] {
        let (created, deleted) = made.get(resource).copied().unwrap_or_default();
        let (most_created, most_deleted) = match scenario {
            Scenario::Deploy => (1, 0),
            Scenario::Edit => (0, 0),
            // A second request to delete what is going already is harmless; a creation would not be.
            Scenario::Delete => (0, usize::MAX),
        };
        if created > most_created || deleted > most_deleted {
            doubled.push(format!("{resource}: {created} created, {deleted} deleted"));
        }
    }
    doubled
}

/// One run; `kill_at`: the request at which the monitor is killed.
async fn run(scenario: Scenario, kill_at: Option<(usize, Phase)>) -> anyhow::Result<(Value, usize, Option<String>)> {
    let table = TestTable::on_server(TableKind::Ministack).await?;
    let region = Region::start_with(RegionSettings::named("us-east-1"), table).await?;
    let proxies = [region.api_proxy().await?, region.table_proxy().await?];
    let settings = |name| MonitorSettings::named(name).api_through(proxies[0].url()).table_through(proxies[1].url());
    let monitor = Monitor::leading_with(&region, settings("first")).await?;
    scenario.prepare(&region).await?;
    let pid = Pid::from_raw(monitor.process().pid());
    let trap = match kill_at {
        None => Trap::counting(Class::All),
        Some((number, phase)) => Trap::at(Class::All, number, phase, move || {
            // The process is ours and lives: it has just sent a request.
            let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
        }),
    };
    trap.set_in(&[&proxies[0], &proxies[1]]);
    let mark = region.audit()?.mark()?;
    trap.arm();
    scenario.act(&region).await?;
    let mut killed = None;
    let monitor = if kill_at.is_some() {
        let sprung = trap.wait_until_sprung(Duration::from_secs(15)).await;
        trap.disarm();
        killed = Some(sprung.map_or_else(|_| "at rest".to_owned(), |counted| counted.summary));
        monitor.kill().await;
        // What was on its way when its sender died arrives.
        trap.release();
        Monitor::leading_with(&region, settings("again")).await?
    } else {
        monitor
    };
    scenario.ended(&region).await.with_context(|| monitor.described())?;
    trap.disarm();
    let user = region.monitor_user();
    let events = region.requests_since(mark, |event| event.user == user && event.is_write())?;
    let doubled = doubled(&events, scenario);
    ensure!(doubled.is_empty(), "killed at {killed:?}: {doubled:?}");
    let end = end_of(&region).await?;
    let sets = region.objects_of(ENDPOINT).await?.replica_sets.len();
    let wanted = match scenario {
        Scenario::Deploy => 1,
        Scenario::Edit => 2,
        Scenario::Delete => 0,
    };
    ensure!(sets == wanted, "{sets} ReplicaSets, not {wanted}: pods were made anew without need");
    let requests = trap.counted().len();
    drop(monitor);
    proxies.into_iter().for_each(|proxy: RewritingProxy| drop(proxy));
    region.delete_namespace().await?;
    Ok((end, requests, killed))
}

async fn killed_during(scenario: Scenario, seed: u64) -> anyhow::Result<()> {
    let runs = Size::asked().choose(3, 20);
    let (undisturbed, requests, _) = run(scenario, None).await?;
    ensure!(requests > 0, "{scenario:?} needs no request at all");
    println!("{scenario:?}: {requests} requests undisturbed");
    let dice = SeededRandomness::new(seed);
    let moments = (0..runs).map(|_| {
        let roll = roll(&dice);
        (1 + roll / 2 % requests, if roll.is_multiple_of(2) { Phase::Before } else { Phase::After })
    });
    let outcomes: Vec<_> = futures::stream::iter(moments.collect::<Vec<_>>())
        .map(|moment| async move {
            let outcome = run(scenario, Some(moment)).await;
            (moment, outcome.with_context(|| format!("{scenario:?} killed at {moment:?}")))
        })
        .buffer_unordered(2)
        .collect()
        .await;
    for (moment, outcome) in outcomes {
        let (end, _, killed) = outcome?;
        println!("  killed at request {} ({:?}): {}", moment.0, moment.1, killed.unwrap_or_default());
        let different = differences(&undisturbed, &end);
        assert!(different.is_empty(), "{scenario:?} killed at {moment:?}: {different:#?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_during_a_deployment_it_ends_the_same() -> anyhow::Result<()> {
    killed_during(Scenario::Deploy, 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_during_an_edit_it_ends_the_same() -> anyhow::Result<()> {
    killed_during(Scenario::Edit, 2).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_during_a_deletion_it_ends_the_same() -> anyhow::Result<()> {
    killed_during(Scenario::Delete, 3).await
}
