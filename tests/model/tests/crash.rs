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
    if scenario.needs_keda() {
        world.install_keda();
    }
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

/// Kinds of variants: with and without surge, a new owner of the count that wants more and one that wants fewer.
const VARIANTS: u32 = 4;

/// The crashes of the undisturbed run of a scenario.
///
/// A request that is not sent leaves the servers as an answer does that is lost of the request before, so the small size
/// does without most of the former: it has each write with its answer lost, each that follows a read not sent, and some
/// reads. In full size the requests are dealt out over the variants; writes come with both holders, and every other
/// request once more with a second crash.
fn crashes_of(undisturbed: &Crash, asked: &[Asked], size: Size) -> Vec<Crash> {
    const STRIDE: usize = 26;
    const SECOND: [usize; 3] = [1, 2, 4];
    let variant = usize::try_from(undisturbed.variant).unwrap_or(0);
    let is_write = |index: usize| asked.get(index).is_some_and(|asked| asked.is_write);
    let mut crashes = Vec::new();
    for index in 0..asked.len() {
        let request = index + 1;
        let once = |fate, same_holder| Crash { at: Some((request, fate)), same_holder, ..*undisturbed };
        let alternates = request.is_multiple_of(2);
        if size == Size::Small {
            if is_write(index) {
                crashes.push(once(Fate::AnswerLost, alternates));
            }
            let begins_writes = is_write(index) && (index == 0 || !is_write(index - 1));
            if begins_writes || index.is_multiple_of(STRIDE) {
                crashes.push(once(Fate::NotSent, !alternates));
            }
            continue;
        }
        let dealt = request % usize::try_from(VARIANTS).unwrap_or(1) == variant;
        let is_taken = dealt || variant == 0 && is_write(index);
        if !is_taken {
            continue;
        }
        for fate in [Fate::NotSent, Fate::AnswerLost] {
            for same_holder in [true, false] {
                if is_write(index) || same_holder == (alternates == (fate == Fate::NotSent)) {
                    crashes.push(once(fate, same_holder));
                }
            }
        }
        if dealt && (request / 4).is_multiple_of(2) {
            let fate = if alternates { Fate::NotSent } else { Fate::AnswerLost };
            crashes.push(Crash { again_at: Some(SECOND[request % SECOND.len()]), ..once(fate, false) });
        }
    }
    crashes
}

#[test]
fn killed_at_any_request_it_ends_the_same_and_removes_no_serving_pod() -> anyhow::Result<()> {
    let size = Size::asked();
    let begin: Vec<Crash> = SCENARIOS
        .into_iter()
        .flat_map(|scenario| (0..size.choose(1, VARIANTS)).map(move |variant| undisturbed(scenario, variant)))
        .collect();
    let usual = runs::all(begin.clone(), |crash| in_virtual_time(run(crash)))?;
    let mut crashes = Vec::new();
    for (number, (crash, outcome)) in begin.iter().zip(&usual).enumerate() {
        if crash.variant == 0 {
            let writes = outcome.asked.iter().filter(|asked| asked.is_write).count();
            println!("{:?}: {} requests undisturbed, {writes} of them writes", crash.scenario, outcome.asked.len());
        }
        crashes.extend(crashes_of(crash, &outcome.asked, size).into_iter().map(|crash| (number, crash)));
    }
    let count = crashes.len();
    let began = tokio::time::Instant::now();
    runs::all(crashes, |(number, crash)| {
        let outcome = in_virtual_time(run(crash))?;
        let different = judge::differences(&usual[*number].end, &outcome.end);
        ensure!(different.is_empty(), "it ended differently: {different:#?}");
        let beyond = outcome.pods.beyond(&usual[*number].pods);
        ensure!(beyond.is_empty(), "{beyond:?}");
        Ok(())
    })?;
    let seconds = began.elapsed().as_secs();
    println!("{count} crashes in {} scenarios in {seconds} s, each ended as its undisturbed run", SCENARIOS.len());
    Ok(())
}
