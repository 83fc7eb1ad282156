//! The admission fence on real API servers: once a new leader has stamped an object, its predecessor changes nothing on it,
//! at any server, whatever the servers know of the Lease.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_bed::wait;
use gco_local::platform::{self, FENCE_POLICIES};
use gco_tests::fence::calls::{Caller, lease_path};
use gco_tests::fence::fenced::Fenced;
use gco_tests::fence::kinds::Target;
use gco_tests::fence::takeover::{Count, Way, lease_term, take_over};
use gco_tests::region::rows::spec;
use gco_tests::region::{BOUND, Monitor, MonitorSettings, Region};
use gco_tests::size::Size;
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Lease updates per second that a control plane of two busy cores must carry for the flood to count as one.
const LEAST_FLOOD: f64 = 100.0;

#[tokio::test(flavor = "multi_thread")]
async fn a_deposed_leader_writes_nothing_that_its_successor_has_stamped() -> anyhow::Result<()> {
    let size = Size::asked();
    let fenced = Fenced::start(0, 2).await?;
    fenced.set_lease_term(5).await?;
    fenced.put_up().await?;
    let kinds: BTreeSet<&str> = fenced.actors.deeds.iter().map(|(_, target)| target.resource).collect();
    println!(
        "two API servers, three writers, {} writes on {} kinds: {kinds:?}",
        fenced.actors.deeds.len(),
        kinds.len()
    );
    let mut all = Count::default();

    let plain = rounds(&fenced, "p", size.choose(4, 90), |_| Way::Taken).await?;
    println!("the Lease changes hands: {plain}");
    all.add(plain);

    let flood = Flood::start(&fenced);
    let flooded = rounds(&fenced, "f", size.choose(2, 40), |_| Way::Taken).await?;
    let rate = flood.stop().await?;
    println!("the same under {rate:.0} Lease updates a second: {flooded}");
    all.add(flooded);

    let ways = [Way::CreatedAnew, Way::ResetThenTaken];
    let anew = rounds(&fenced, "n", size.choose(2, 40), |number| ways[number % ways.len()]).await?;
    println!("the Lease is deleted and made again: {anew}");
    all.add(anew);

    println!("in all: {all}");
    ensure!(all.violations.is_empty(), "{:#?}", all.violations);
    // The small size runs beside other suites, on cores that have no room for a flood.
    let least = size.choose(1.0, LEAST_FLOOD);
    ensure!(rate >= least, "only {rate:.0} Lease updates a second");
    ensure!(all.accepted_before > all.take_overs, "the old leader hardly wrote: the test shows nothing");
    ensure!(all.refused.contains_key("gco-term-order") || all.refused.contains_key("gco-term-lease"), "{all}");
    Ok(())
}

/// Take-overs one after the other.
async fn rounds(fenced: &Fenced, prefix: &str, count: usize, way: impl Fn(usize) -> Way) -> anyhow::Result<Count> {
    let mut sum = Count::default();
    for number in 0..count {
        let round = format!("{prefix}{number}");
        let one = take_over(&fenced.actors, &round, way(number)).await;
        sum.add(one.with_context(|| format!("take-over {round}"))?);
    }
    Ok(sum)
}

/// Lease updates as fast as the servers take them.
struct Flood {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    began: Instant,
    tasks: Vec<tokio::task::JoinHandle<anyhow::Result<()>>>,
}

impl Flood {
    /// How many update at once. Updates of one object that meet are tried again by the server, which costs it more than it
    /// brings: one carried 70 a second here, two 113, three 94, eight 69.
    const TASKS: usize = 2;

    fn start(fenced: &Fenced) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tasks = (0..Self::TASKS).map(|task| {
            let (stop, done, admin) = (stop.clone(), done.clone(), fenced.actors.admin.clone());
            tokio::spawn(async move {
                for number in 0.. {
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    // What changes all the time; never the count of transitions.
                    let body = json!({"metadata": {"annotations": {"suite/flood": format!("{task}-{number}")}}});
                    let merge = ("application/merge-patch+json", &body);
                    let reply = admin.send(Method::PATCH, &lease_path(), Some(merge)).await?;
                    done.fetch_add(u64::from(reply.is_success()), Ordering::AcqRel);
                }
                Ok(())
            })
        });
        Self { tasks: tasks.collect(), stop, done, began: Instant::now() }
    }

    /// Ends it; updates per second.
    async fn stop(self) -> anyhow::Result<f64> {
        let seconds = self.began.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a few thousand updates")]
        let rate = self.done.load(Ordering::Acquire) as f64 / seconds;
        self.stop.store(true, Ordering::Release);
        for task in self.tasks {
            task.await??;
        }
        Ok(rate)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_parameter_lets_nothing_through_to_a_stamped_object_and_is_reported() -> anyhow::Result<()> {
    let size = Size::asked();
    let fenced = Fenced::start(1, 2).await?;
    fenced.set_lease_term(5).await?;
    fenced.freeze_the_parameter().await?;
    let frozen = rounds(&fenced, "z", size.choose(2, 30), |_| Way::Taken).await?;
    println!("with a frozen parameter at both servers: {frozen}");
    ensure!(frozen.violations.is_empty(), "{:#?}", frozen.violations);
    // Each of these was pruned by the new leader, or its take-over would have failed.
    ensure!(frozen.stale_creates > 0, "the parameter was not frozen: no stale create was accepted");
    ensure!(!frozen.refused.contains_key("gco-term-lease"), "the parameter was not frozen: {frozen}");

    fenced.set_lease_term(lease_term(&fenced.actors.admin).await?).await?;
    let monitor = Monitor::leading(&fenced.region).await?;
    fenced.region.deploy("chat", spec(1, "0")).await?;
    fenced.region.settled("chat").await?;
    fence_reads(&monitor, "order effective, lease ineffective").await?;
    let labels = [("rule", "lease"), ("state", "ineffective")];
    ensure!(monitor.metric("gco_monitor_fence_rule", &labels).await? == Some(1.0), "{}", monitor.described());
    let said = monitor.complaints(|line| line["action"] == "test_fence" && line["rule"] == "lease")?;
    ensure!(said.len() == 1, "{said:?}");
    in_the_regions_item(&fenced.region, "order effective, lease ineffective").await
}

/// Waits until the monitor found its fence so.
async fn fence_reads(monitor: &Monitor, words: &str) -> anyhow::Result<()> {
    wait::until(&format!("the fence to be found {words:?}"), BOUND, || async {
        let answer = monitor.get("/state").await.map_err(|error| format!("{error:#}"))?;
        let state: Value = serde_json::from_str(&answer.text()).map_err(|error| error.to_string())?;
        let found = state["admission_fence"].as_str().unwrap_or_default();
        if found == words { Ok(()) } else { Err(found.to_owned()) }
    })
    .await
    .with_context(|| monitor.described())
}

/// Waits until the region's item of the second table says so.
async fn in_the_regions_item(region: &Region, words: &str) -> anyhow::Result<()> {
    wait::until("the region's item to tell of its fence", BOUND, || async {
        let item = region.table().store().read_region(region.name()).await.map_err(|error| error.to_string())?;
        let found = item.and_then(|item| item.heartbeat).map(|heartbeat| heartbeat.admission_fence);
        if found.as_deref() == Some(words) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fence_is_installed_upgraded_in_place_and_removed_under_a_real_monitor() -> anyhow::Result<()> {
    let fenced = Fenced::start(2, 1).await?;
    let region = &fenced.region;
    let caller = fenced.actors.monitor.first().context("no server")?.clone();
    no_warnings_of_the_type_check(region).await?;

    // Without bindings that is known, and nothing to be alarmed about.
    let first = Monitor::leading_with(region, MonitorSettings::named("first")).await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.settled("chat").await?;
    fence_reads(&first, "order not_installed, lease not_installed").await?;
    ensure!(first.complaints(|line| line["action"] == "test_fence")?.is_empty(), "{}", first.described());

    // Installed: the next leader finds it effective, and works under it.
    fenced.put_up().await?;
    let second = Monitor::start(region, MonitorSettings::named("second")).await?;
    let old_term = lease_term(&fenced.actors.admin).await?;
    first.terminate(Duration::from_secs(20)).await?;
    region.wait_for_leader("second").await?;
    fence_reads(&second, "order effective, lease effective").await?;
    in_the_regions_item(region, "order effective, lease effective").await?;
    region.mark("chat", "1").await?;
    region.settled("chat").await?;
    region.scale("chat", 3).await?;
    region.settled("chat").await?;
    region.stop("chat").await?;
    region.settled("chat").await?;
    region.start_endpoint("chat").await?;
    region.settled("chat").await?;
    region.deploy("other", spec(1, "0")).await?;
    region.settled("other").await?;
    region.delete("other").await?;
    region.purged("other").await?;
    let refused = second.metric("gco_monitor_refused_writes_total", &[("reason", "admission_policy")]).await?;
    ensure!(refused == Some(0.0), "the fence refused its own leader: {refused:?}; {}", second.described());

    // The monitor that led before changes nothing on what this one has stamped.
    for resource in ["deployments.apps", "services"] {
        let target = Target::named(resource)?;
        let seen = caller.get(&target, "chat").await?;
        let reply = caller.stamp(&target, "chat", &seen, old_term, "old").await?;
        ensure!(reply.status == 403 && reply.message().contains("gco-term"), "{resource}: {}", reply.body);
    }

    upgraded_in_place(&fenced, &caller).await?;

    // Removed: what the earlier control plane sends, without a term, is accepted again.
    fenced.take_down().await?;
    let target = Target::named("services")?;
    let reply = caller.patch(&target, "chat", &json!({"metadata": {"annotations": {"original": "was here"}}})).await?;
    ensure!(reply.is_success(), "{}", reply.body);
    second.terminate(Duration::from_secs(20)).await?;

    // Away for longer than servers remember, and installed again: the keeper has kept them following the Lease.
    let began = Instant::now();
    wait::until("the fence to have been away for long enough to freeze without a keeper", BOUND, || {
        let away = began.elapsed();
        std::future::ready(if away >= Duration::from_secs(4) { Ok(()) } else { Err(format!("{away:?}")) })
    })
    .await?;
    fenced.put_up().await?;
    let third = Monitor::leading_with(region, MonitorSettings::named("third")).await?;
    fence_reads(&third, "order effective, lease effective").await?;
    third.terminate(Duration::from_secs(20)).await?;
    fenced.take_down().await
}

/// Changes the policies where they are, under stale writes: none is accepted at any moment.
async fn upgraded_in_place(fenced: &Fenced, caller: &Caller) -> anyhow::Result<()> {
    let changed = FENCE_POLICIES.replace("is older than term ", "comes before term ");
    ensure!(changed != FENCE_POLICIES, "there is nothing to change");
    platform::apply_all(fenced.region.client(), &[&changed]).await?;
    let term = lease_term(&fenced.actors.admin).await?;
    let accepted = AtomicU64::new(0);
    let asked = AtomicU64::new(0);
    wait::until("the changed policy to be in force", BOUND, || async {
        let words = |error: anyhow::Error| format!("{error:#}");
        let update = fenced.older_update(caller).await.map_err(words)?;
        let create = fenced.create_under(caller, term - 1).await.map_err(words)?;
        asked.fetch_add(2, Ordering::AcqRel);
        accepted.fetch_add(u64::from(update.is_success()) + u64::from(create.is_success()), Ordering::AcqRel);
        if update.message().contains("comes before term 5") { Ok(()) } else { Err(update.message().to_owned()) }
    })
    .await?;
    let (accepted, asked) = (accepted.into_inner(), asked.into_inner());
    println!("changed in place: {asked} stale writes during the change, {accepted} accepted");
    ensure!(accepted == 0, "{accepted} of {asked} stale writes were accepted during the change");
    platform::apply_all(fenced.region.client(), &[FENCE_POLICIES]).await
}

/// The server's own check of the policies' expressions against the types of what they match.
async fn no_warnings_of_the_type_check(region: &Region) -> anyhow::Result<()> {
    for manifest in [FENCE_POLICIES, platform::OUTSIDERS_POLICIES, platform::FENCE_KEEPER] {
        for object in platform::objects(manifest)? {
            if object["kind"] != "ValidatingAdmissionPolicy" {
                continue;
            }
            let path = platform::path(&object)?;
            wait::until(&format!("the type check of {}", object["metadata"]["name"]), BOUND, || async {
                let request = http::Request::get(&path).body(Vec::new()).map_err(|error| error.to_string())?;
                let stored: Value = region.client().request(request).await.map_err(|error| error.to_string())?;
                let status = &stored["status"];
                let checked = status["observedGeneration"] == stored["metadata"]["generation"];
                let warnings = status["typeChecking"]["expressionWarnings"].as_array().map_or(0, Vec::len);
                if checked && warnings == 0 { Ok(()) } else { Err(status.to_string()) }
            })
            .await?;
        }
    }
    Ok(())
}
