//! Watches that tell late, twice, not at all, or what was; lists from the past. Meanwhile nothing that a live row asks for
//! is deleted, and afterwards everything converges and stays.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_model::dice::below;
use gco_model::judge;
use gco_model::line::Disturbance;
use gco_model::runs;
use gco_model::scenario::{SCENARIOS, Scenario};
use gco_model::state::State;
use gco_model::world::{World, in_virtual_time};
use gco_runtime::random::SeededRandomness;
use gco_tests::size::Size;
use serde_json::Value;

/// How long nothing may change after it has come to rest.
const STAYS: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug)]
struct Run {
    scenario: Scenario,
    seed: u64,
}

/// What the disturbance of one run came to, by kind.
type Counts = [u32; 6];

async fn run(job: &Run, disturbed: bool) -> anyhow::Result<(Value, Counts)> {
    let Run { scenario, seed } = *job;
    let mut world = World::new(seed);
    if scenario.needs_keda() {
        world.install_keda();
    }
    let monitor = world.start("first")?;
    scenario.prepare(&world, u32::try_from(seed % 2)?).await.context("before the disturbance")?;
    world.mark = world.model.look(State::version);
    let disturbance = Arc::new(Disturbance::new(seed));
    if disturbed {
        monitor.line.disturb(&disturbance);
    }
    let guard = judge::Guard::set(&world);
    // In half of the runs the monitor is started in the middle of it: its first lists are from the past then.
    let dice = SeededRandomness::new(seed);
    let monitor = if disturbed && below(&dice, 2) == 0 {
        monitor.kill().await;
        let line = gco_model::line::Line::new("second", &world.model);
        line.disturb(&disturbance);
        world.start_with("second", line, world.clock)?
    } else {
        monitor
    };
    scenario.act(&world, u32::try_from(seed % 2)?).await?;
    if disturbed {
        let seconds = 30 + u64::try_from(below(&dice, 90))?;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        monitor.line.calm();
    }
    world.quiet().await?;
    let end = judge::end_of(&world);
    let version = world.model.look(judge::last_change);
    tokio::time::sleep(STAYS).await;
    ensure!(version == world.model.look(judge::last_change), "it did not stay: {}", world.recent());
    ensure!(!monitor.has_ended(), "the monitor ended by itself");
    let wrong = guard.wrong_deletions(&world);
    ensure!(wrong.is_empty(), "what a live row asks for was deleted: {wrong:?}");
    let counts = std::array::from_fn(|index| disturbance.counts[index].load(Ordering::Relaxed));
    monitor.kill().await;
    Ok((end, counts))
}

#[test]
fn with_stale_watches_nothing_live_is_deleted_and_it_converges() -> anyhow::Result<()> {
    let seeds = Size::asked().choose(2, 80);
    // It waits for the purge in its middle, which disturbed watches may hold up for as long as they are disturbed.
    let scenarios = SCENARIOS.into_iter().filter(|scenario| *scenario != Scenario::DeleteAndCreate);
    let jobs: Vec<Run> = scenarios.flat_map(|scenario| (1..=seeds).map(move |seed| Run { scenario, seed })).collect();
    let count = jobs.len();
    let outcomes = runs::all(jobs, |job| {
        let (usual, _) = in_virtual_time(run(job, false))?;
        let (end, counts) = in_virtual_time(run(job, true))?;
        let different = judge::differences(&usual, &end);
        ensure!(different.is_empty(), "it ended differently: {different:#?}");
        Ok(counts)
    })?;
    let totals =
        outcomes.iter().fold([0_u32; 6], |total, counts| std::array::from_fn(|index| total[index] + counts[index]));
    let [delayed, doubled, dropped, repeated, expired, past] = totals;
    println!(
        "{count} runs; events delayed {delayed}, doubled {doubled}, dropped {dropped}, followed by an older one {repeated}, \
         lost with the watch {expired}; lists from the past {past}"
    );
    // A suite in which nothing goes wrong proves nothing.
    ensure!(totals.iter().all(|total| *total > 0), "a kind of disturbance never happened");
    Ok(())
}
