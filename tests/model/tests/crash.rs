//! All memory of the monitor is lost at request *n*: before it is sent, or after it was done and before the answer. It is
//! started again, as the same holder or as another. The end is the same as that of an undisturbed run, object by object,
//! and no serving pod was removed that the undisturbed run did not remove.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_model::judge::{self, PodHistory};
use gco_model::line::{Asked, Fate};
use gco_model::runs;
use gco_model::scenario::{SCENARIOS, Scenario};
use gco_model::world::{World, in_virtual_time};
use gco_tests::size::Size;
use serde_json::Value;

/// How long a request is waited for, in virtual time.
const LONGEST: Duration = Duration::from_secs(300);

/// One run.
#[derive(Clone, Copy, Debug)]
struct Crash {
    scenario: Scenario,
    variant: u32,
    /// At which request, from 1, and how. `None`: undisturbed.
    at: Option<(usize, Fate)>,
    /// The second monitor crashes at this request of its own, not sent.
    again_at: Option<usize>,
    same_holder: bool,
}

/// What a run came to.
#[derive(Clone, Debug)]
struct Outcome {
    end: Value,
    pods: PodHistory,
    asked: Vec<Asked>,
}

/// Lets the process die at its `number`-th request.
fn trap(world: &gco_model::world::Running, number: usize, fate: Fate) {
    let counted = Arc::new(AtomicUsize::new(0));
    world.line.set_hook(Box::new(move |asked| {
        if !asked.by_the_clock && counted.fetch_add(1, Ordering::Relaxed) + 1 == number { fate } else { Fate::Answered }
    }));
}

async fn run(crash: &Crash) -> anyhow::Result<Outcome> {
    let Crash { scenario, variant, at, again_at, same_holder } = *crash;
    let mut world = World::new(u64::from(variant));
    let mut monitor = world.start("first")?;
    scenario.prepare(&world, variant).await.context("before the crash")?;
    world.mark = world.model.look(gco_model::state::State::version);
    monitor.line.forget_asked();
    let Some((number, fate)) = at else {
        scenario.act(&world, variant).await?;
        world.quiet().await?;
        let asked = monitor.line.asked();
        monitor.kill().await;
        return Ok(Outcome { end: judge::end_of(&world), pods: judge::pods_of(&world), asked });
    };
    trap(&monitor, number, fate);
    let line = monitor.line.clone();
    let restart = async {
        // A run that needs fewer requests than the undisturbed one is killed at rest.
        let _ = tokio::time::timeout(LONGEST, line.died()).await;
        monitor.kill().await;
        monitor = world.start(if same_holder { "first" } else { "second" })?;
        if let Some(number) = again_at {
            trap(&monitor, number, Fate::NotSent);
            let line = monitor.line.clone();
            if tokio::time::timeout(LONGEST, line.died()).await.is_ok() {
                monitor.kill().await;
                monitor = world.start("third")?;
            }
        }
        anyhow::Ok(monitor)
    };
    let (acted, monitor) = tokio::join!(scenario.act(&world, variant), restart);
    acted?;
    let monitor = monitor?;
    world.quiet().await?;
    ensure!(!monitor.has_ended(), "the monitor ended by itself");
    monitor.kill().await;
    Ok(Outcome { end: judge::end_of(&world), pods: judge::pods_of(&world), asked: Vec::new() })
}

fn undisturbed(scenario: Scenario, variant: u32) -> Crash {
    Crash { scenario, variant, at: None, again_at: None, same_holder: true }
}

#[test]
fn killed_at_any_request_it_ends_the_same_and_removes_no_serving_pod() -> anyhow::Result<()> {
    let full = Size::asked() == Size::Full;
    let variants = if full { 6 } else { 1 };
    let seconds = Size::asked().choose(vec![], vec![1, 2, 4]);
    let begin: Vec<Crash> = SCENARIOS
        .into_iter()
        .flat_map(|scenario| (0..variants).map(move |variant| undisturbed(scenario, variant)))
        .collect();
    let usual = runs::all(begin.clone(), |crash| in_virtual_time(run(crash)))?;
    let mut crashes = Vec::new();
    for (number, (crash, outcome)) in begin.iter().zip(&usual).enumerate() {
        if crash.variant == 0 {
            let writes = outcome.asked.iter().filter(|asked| asked.is_write).count();
            println!("{:?}: {} requests undisturbed, {writes} of them writes", crash.scenario, outcome.asked.len());
        }
        for request in runs::moments(&outcome.asked, full, crash.variant) {
            for fate in [Fate::NotSent, Fate::AnswerLost] {
                for same_holder in [true, false] {
                    // In small size each moment is tried with one of the two.
                    let chosen = full || same_holder == ((request + usize::from(fate == Fate::NotSent)) % 2 == 0);
                    if chosen {
                        crashes.push((number, Crash { at: Some((request, fate)), same_holder, ..*crash }));
                    }
                }
                for again in &seconds {
                    let twice =
                        Crash { at: Some((request, fate)), again_at: Some(*again), same_holder: false, ..*crash };
                    crashes.push((number, twice));
                }
            }
        }
    }
    let count = crashes.len();
    runs::all(crashes, |(number, crash)| {
        let outcome = in_virtual_time(run(crash))?;
        let different = judge::differences(&usual[*number].end, &outcome.end);
        ensure!(different.is_empty(), "it ended differently: {different:#?}");
        let beyond = outcome.pods.beyond(&usual[*number].pods);
        ensure!(beyond.is_empty(), "{beyond:?}");
        Ok(())
    })?;
    println!("{count} crashes in {} scenarios, each ended as its undisturbed run", SCENARIOS.len());
    Ok(())
}
