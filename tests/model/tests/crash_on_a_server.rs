//! The scenarios of the crash suite on a real API server and a real table server: the monitor's process is killed at one of its
//! writes, which never arrives or is done; it is started again, as the same holder or as another. The end is that of an
//! undisturbed run, object by object and in the row, and no more pods were deleted on the way.
//!
//! Few moments, real servers: that the model may be believed. The many moments are `crash`'s.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use futures::StreamExt as _;
use gco_bed::rewriting_proxy::RewritingProxy;
use gco_bed::wait;
use gco_model::judge;
use gco_model::scenario::{ENDPOINT, SCENARIOS, Scaler, Scenario, Stage};
use gco_runtime::clock::{Clock as _, SystemClock};
use gco_store::operations::Store;
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::status::State;
use gco_store::wire::{Item, item_to_plain_json};
use gco_tests::region::agreement::{QUIET, disagreement};
use gco_tests::region::gate::{Class, Phase, Trap};
use gco_tests::region::keda::Keda;
use gco_tests::region::objects::{number, text};
use gco_tests::region::{BOUND, Monitor, MonitorSettings, Region, RegionSettings, Snapshot, TableKind, TestTable};
use gco_tests::size::Size;
use jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt as _};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};

/// A region that has no monitor.
const ELSEWHERE: &str = "eu-west-1";

/// How long a monitor may take to come to the write that it is to be killed at; runs differ by a write or two.
const LONGEST: Duration = Duration::from_secs(20);

/// A region as a place to play on.
struct Place(Region);

#[async_trait]
impl Stage for Place {
    fn store(&self) -> Store {
        self.0.operations()
    }

    fn now(&self) -> Timestamp {
        SystemClock.wall()
    }

    fn region(&self) -> String {
        self.0.name().to_owned()
    }

    fn elsewhere(&self) -> String {
        ELSEWHERE.to_owned()
    }

    async fn deploy(&self, name: &str, spec: &Value, regions: &[String]) -> anyhow::Result<()> {
        let regions: Vec<&str> = regions.iter().map(String::as_str).collect();
        self.0.deploy_to(name, spec.clone(), &regions).await?;
        Ok(())
    }

    async fn make(&self, object: &Value) -> anyhow::Result<()> {
        let mut object: DynamicObject = serde_json::from_value(object.clone())?;
        object.metadata.namespace = Some(self.0.namespace().to_owned());
        if object.types.as_ref().is_some_and(|types| types.kind == "Service") {
            // Addresses are the other cluster's.
            for field in ["clusterIP", "clusterIPs"] {
                object.data["spec"].as_object_mut().map(|spec| spec.remove(field));
            }
        }
        let types = object.types.clone().context("no kind")?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
        let objects: Api<DynamicObject> = Api::namespaced_with(self.0.client().clone(), self.0.namespace(), &resource);
        objects.create(&PostParams::default(), &object).await.with_context(|| object.name_any())?;
        Ok(())
    }

    async fn put_row(&self, row: Item) -> anyhow::Result<()> {
        self.0.put_row(row).await
    }

    async fn begun_to_remove(&self, _virtual_seconds: u64) -> anyhow::Result<()> {
        wait::until("the removal to begin", BOUND, || async {
            let objects = self.0.objects_of(ENDPOINT).await.map_err(|error| format!("{error:#}"))?;
            match objects.deployments.get(ENDPOINT) {
                Some(live) if live.pointer("/metadata/deletionTimestamp").is_none() => Err("it is there".to_owned()),
                _ => Ok(()),
            }
        })
        .await?;
        Ok(())
    }

    async fn rest(&self) -> anyhow::Result<()> {
        let unchanged_since = std::sync::Mutex::new((None, tokio::time::Instant::now()));
        wait::until("nothing to be left to do", BOUND * 2, || async {
            let words = |error: anyhow::Error| format!("{error:#}");
            let objects = self.0.objects_of(ENDPOINT).await.map_err(words)?;
            let row = self.0.row(ENDPOINT).await.map_err(words)?;
            left(row.as_ref(), self.0.name(), &objects)?;
            let seen = Some((objects.versions(), row.and_then(|row| row.updated_at)));
            let mut last = unchanged_since.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let now = tokio::time::Instant::now();
            if last.0 != seen {
                *last = (seen, now);
            }
            let quiet = now.duration_since(last.1);
            if quiet < QUIET { Err(format!("unchanged for {} ms", quiet.as_millis())) } else { Ok(()) }
        })
        .await?;
        Ok(())
    }
}

/// What is left to do for a row, if it is known.
fn left(row: Option<&EndpointRow>, region: &str, objects: &Snapshot) -> Result<(), String> {
    let Some(row) = row else {
        // Of what the original made, before its row is there: its pods serve. Otherwise nothing is there.
        let unready = objects.deployments.values().find(|one| {
            number(one, "/status/readyReplicas") != number(one, "/spec/replicas")
                || text(one, "/metadata/labels/project") != Some("gco")
        });
        return unready.map_or(Ok(()), |one| Err(format!("{}", one["status"])));
    };
    let is_target = row.is_target(region);
    if row.desired_state != DesiredState::Deleted && is_target {
        return disagreement(row, region, objects).map_or(Ok(()), Err);
    }
    if !objects.is_empty() {
        return Err(format!("still there: {:?}", objects.versions()));
    }
    let entry = row.region_status.get(region);
    let acknowledged = entry.is_none_or(|entry| entry.state == State::Deleted);
    let waits_for_others = row.region_status.len() > 1 || row.target_regions.iter().any(|one| one != region);
    match (acknowledged, row.desired_state == DesiredState::Deleted && !waits_for_others) {
        (false, _) => Err(format!("its state is {entry:?}")),
        (true, true) => Err("the row is still there".to_owned()),
        (true, false) => Ok(()),
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Crash {
    scenario: Scenario,
    /// At which write, from 1, and how. `None`: undisturbed.
    at: Option<(usize, Phase)>,
    same_holder: bool,
}

/// A run that came to rest; its region and its monitor live on.
struct Played {
    place: Place,
    monitor: Monitor,
    _keda: Option<Keda>,
    _proxies: [RewritingProxy; 2],
    /// Names of the pods that were deleted.
    pods: BTreeSet<String>,
    writes: usize,
    killed: String,
}

impl Played {
    /// Waits until this run and `usual` have the same end. At rest each may still have news to tell: an autoscaler's first
    /// look, the end of a roll-out, the purge of a row come without a write before them.
    async fn meets(&self, usual: &Self) -> anyhow::Result<()> {
        wait::until("both runs to end the same way", BOUND, || async {
            let words = |error: anyhow::Error| format!("{error:#}");
            let ends = tokio::try_join!(end_of(&usual.place.0), end_of(&self.place.0)).map_err(words)?;
            let different = judge::differences(&ends.0, &ends.1);
            if different.is_empty() { Ok(()) } else { Err(format!("{different:#?}")) }
        })
        .await?;
        Ok(())
    }

    async fn end(self) -> anyhow::Result<()> {
        drop(self.monitor);
        self.place.0.delete_namespace().await
    }
}

async fn run(crash: Crash) -> anyhow::Result<Played> {
    let Crash { scenario, at, same_holder } = crash;
    let table = TestTable::on_server(TableKind::Ministack).await?;
    let place = Place(Region::start_with(RegionSettings::named("us-east-1"), table).await?);
    let region = &place.0;
    let keda = if scenario.needs_keda() { Some(region.start_keda().await?) } else { None };
    let proxies = [region.api_proxy().await?, region.table_proxy().await?];
    let settings = |name| MonitorSettings::named(name).api_through(proxies[0].url()).table_through(proxies[1].url());
    let monitor = Monitor::leading_with(region, settings("first")).await?;
    scenario.prepare(&place, 0).await.context("before the crash")?;
    let pid = Pid::from_raw(monitor.process().pid());
    let trap = match at {
        None => Trap::counting(Class::Writes),
        Some((number, phase)) => Trap::at(Class::Writes, number, phase, move || {
            // The process is ours and lives: it has just sent a request.
            let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
        }),
    };
    trap.set_in(&[&proxies[0], &proxies[1]]);
    let mark = region.audit()?.mark()?;
    trap.arm();
    let restart = async {
        if at.is_none() {
            return anyhow::Ok((monitor, "undisturbed".to_owned()));
        }
        let sprung = trap.wait_until_sprung(LONGEST).await;
        trap.disarm();
        monitor.kill().await;
        trap.release();
        let monitor = Monitor::leading_with(region, settings(if same_holder { "first" } else { "second" })).await?;
        Ok((monitor, sprung.map_or_else(|_| "at rest".to_owned(), |counted| counted.summary)))
    };
    let (acted, restarted) = tokio::join!(scenario.act(&place, 0), restart);
    acted?;
    let (monitor, killed) = restarted?;
    place.rest().await.with_context(|| format!("killed at {killed}; {}", monitor.described()))?;
    trap.disarm();
    let deleted = region.requests_since(mark, |event| {
        event.verb == "delete" && event.resource == "pods" && (200..300).contains(&event.code)
    })?;
    let pods = deleted.into_iter().map(|event| event.name).collect();
    Ok(Played { place, monitor, _keda: keda, _proxies: proxies, pods, writes: trap.counted().len(), killed })
}

/// Objects and row, without what differs between two runs that ended the same way.
async fn end_of(region: &Region) -> anyhow::Result<Value> {
    let row = region.row(ENDPOINT).await?.map(|row| judge::cleaned_row(&item_to_plain_json(&row.item)));
    let end = json!({"objects": region.objects_of(ENDPOINT).await?.end_state(), "row": row});
    // The namespace is a run's own and stands inside of texts.
    let mut end: Value = serde_json::from_str(&end.to_string().replace(region.namespace(), "<namespace>"))?;
    let autoscalers = end["objects"]["autoscalers"].as_object_mut();
    for owner in autoscalers
        .into_iter()
        .flat_map(serde_json::Map::values_mut)
        .filter_map(|object| object.pointer_mut("/metadata/ownerReferences")?.as_array_mut())
        .flatten()
    {
        owner["uid"] = json!("the owner's");
    }
    Ok(end)
}

/// The runs of a scenario with so many writes: each way of losing a request with each holder, spread over the writes.
fn crashes_of(scenario: Scenario, writes: usize, size: Size) -> Vec<Crash> {
    let ways = [(Phase::Never, true), (Phase::After, false), (Phase::Never, false), (Phase::After, true)];
    let ways = &ways[..size.choose(2, ways.len())];
    let at = |index: usize| 1 + index * writes.saturating_sub(1) / ways.len().saturating_sub(1).max(1);
    let crash = |(index, (phase, same_holder)): (usize, &(Phase, bool))| Crash {
        scenario,
        at: Some((at(index), *phase)),
        same_holder: *same_holder,
    };
    ways.iter().enumerate().map(crash).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_a_write_it_ends_the_same_on_real_servers() -> anyhow::Result<()> {
    let size = Size::asked();
    let few = vec![
        Scenario::HandOver(Scaler::Row, Scaler::Kubernetes),
        Scenario::HandOver(Scaler::Kubernetes, Scaler::Keda),
        Scenario::Promote,
    ];
    let scenarios = size.choose(few, SCENARIOS.to_vec());
    let began = tokio::time::Instant::now();
    let played: Vec<anyhow::Result<usize>> = futures::stream::iter(scenarios.clone())
        .map(|scenario| async move {
            let usual = run(Crash { scenario, at: None, same_holder: true }).await;
            let usual = usual.with_context(|| format!("{scenario:?} undisturbed"))?;
            ensure!(usual.writes > 0, "{scenario:?} needs no write at all");
            let crashes = crashes_of(scenario, usual.writes, size);
            for crash in &crashes {
                let played = run(*crash).await.with_context(|| format!("{crash:?}"))?;
                let met = played.meets(&usual).await;
                met.with_context(|| format!("{crash:?}, killed at {}", played.killed))?;
                let (pods, usual) = (played.pods.len(), usual.pods.len());
                ensure!(pods <= usual, "{crash:?}, killed at {}: {pods} pods deleted, not {usual}", played.killed);
                println!("{crash:?} at {}: {pods} pods deleted", played.killed);
                played.end().await?;
            }
            usual.end().await?;
            Ok(crashes.len())
        })
        .buffer_unordered(3)
        .collect()
        .await;
    let mut crashes = 0;
    let mut failed = Vec::new();
    for outcome in played {
        match outcome {
            Ok(count) => crashes += count,
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    ensure!(failed.is_empty(), "{} of {} scenarios:\n{}", failed.len(), scenarios.len(), failed.join("\n---\n"));
    println!(
        "{crashes} crashes in {} scenarios in {} s, each ended as its undisturbed run",
        scenarios.len(),
        began.elapsed().as_secs()
    );
    Ok(())
}
