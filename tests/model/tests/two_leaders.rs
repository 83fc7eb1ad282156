//! Two monitors. The leader is frozen at request *n*, with the request or its answer on the way, until the other leads and
//! has done something else; or it believes for much longer than it may that it leads. The end is what the row asks for, as
//! if one had led all the time, and nothing that a live row asks for was deleted.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_model::judge;
use gco_model::line::{Asked, Fate, Line};
use gco_model::runs;
use gco_model::scenario::{ENDPOINT, Scenario, Stage as _, edit, spec};
use gco_model::state::State;
use gco_model::world::{ELSEWHERE, REGION, World, in_virtual_time};
use gco_tests::size::Size;
use serde_json::Value;

const WISHES: [Scenario; 8] = [
    Scenario::Create,
    Scenario::Edit,
    Scenario::ScaleUp,
    Scenario::ScaleDown,
    Scenario::Stop,
    Scenario::Start,
    Scenario::Delete,
    Scenario::RegionRemoved,
];

/// What the second leader is told: something else, so that a write of the first shows.
async fn something_else(wish: Scenario, world: &World, variant: u32) -> anyhow::Result<()> {
    let people = world.people();
    match wish {
        Scenario::ScaleUp | Scenario::ScaleDown => {
            people.scale(ENDPOINT, 2).await?;
            edit(&people, "new").await
        }
        Scenario::Stop => {
            people.start(ENDPOINT).await?;
            edit(&people, "new").await
        }
        Scenario::Start => {
            edit(&people, "new").await?;
            people.stop(ENDPOINT).await?;
            Ok(())
        }
        Scenario::Delete => {
            ensure!(world.row(ENDPOINT)?.is_none(), "the row was not purged");
            world.deploy(ENDPOINT, &spec(1, "new", variant), &[REGION]).await
        }
        Scenario::RegionRemoved => {
            people.set_target_regions(ENDPOINT, &[REGION.to_owned(), ELSEWHERE.to_owned()]).await?;
            edit(&people, "new").await
        }
        _ => edit(&people, "new").await,
    }
}

/// How the first leader fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// Not at all: it leads alone.
    None,
    /// Frozen at this request, counted from 1.
    Frozen(usize, Fate),
    /// Its Lease calls get nowhere, and its clock is slow: it believes in its claim for this many hundredths.
    Slow(u32),
}

#[derive(Clone, Copy, Debug)]
struct Run {
    wish: Scenario,
    variant: u32,
    failure: Failure,
    /// The admission policy that orders terms on objects is installed.
    ordered: bool,
}

struct Outcome {
    end: Value,
    asked: Vec<Asked>,
}

async fn run(job: &Run) -> anyhow::Result<Outcome> {
    let Run { wish, variant, failure, ordered } = *job;
    let mut world = World::new(u64::from(variant));
    if ordered {
        let nobody: Arc<str> = Arc::from("operator");
        world.model.act(&nobody, |state| state.installed.insert("order-rule"));
    }
    let pace = if let Failure::Slow(pace) = failure { pace } else { 100 };
    let first = world.start_with("first", Line::new("first", &world.model), world.clock.at_pace(pace))?;
    wish.prepare(&world, variant).await.context("before the freeze")?;
    world.leads("first").await?;
    world.mark = world.model.look(State::version);
    first.line.forget_asked();
    let guard = judge::Guard::set(&world);
    if failure == Failure::None {
        wish.act(&world, variant).await?;
        world.rest().await?;
        let asked = first.line.asked();
        something_else(wish, &world, variant).await?;
        world.rest().await?;
        first.kill().await;
        return Ok(Outcome { end: judge::end_of(&world), asked });
    }
    let second = world.start("second")?;
    let counted = Arc::new(AtomicUsize::new(0));
    first.line.set_hook(Box::new(move |asked| match failure {
        Failure::Frozen(number, fate) if !asked.by_the_clock => {
            if counted.fetch_add(1, Ordering::Relaxed) + 1 == number { fate } else { Fate::Answered }
        }
        Failure::Slow(_) if asked.summary.contains("leases/") => Fate::Stuck,
        _ => Fate::Answered,
    }));
    if let Failure::Frozen(..) = failure {
        // A run that needs fewer requests than the one with one leader is frozen at rest.
        let held = tokio::time::timeout(Duration::from_secs(300), first.line.is_held());
        let (acted, held) = tokio::join!(wish.act(&world, variant), held);
        acted?;
        if held.is_err() {
            first.line.hold();
        }
        world.leads("second").await?;
        world.rest().await?;
        something_else(wish, &world, variant).await?;
        // Some are resumed in the middle of what the second does, some after it.
        if variant % 2 == 0 {
            world.rest().await?;
        } else {
            tokio::time::sleep(Duration::from_millis(40 * u64::from(variant))).await;
        }
        first.line.release();
    } else {
        world.leads("second").await?;
        wish.act(&world, variant).await?;
        world.rest().await?;
        something_else(wish, &world, variant).await?;
    }
    world.rest().await?;
    ensure!(!first.has_ended() && !second.has_ended(), "a monitor ended by itself");
    let wrong = guard.wrong_deletions(&world);
    ensure!(wrong.is_empty(), "what a live row asks for was deleted: {wrong:?}");
    first.kill().await;
    second.kill().await;
    Ok(Outcome { end: judge::end_of(&world), asked: Vec::new() })
}

#[test]
fn an_old_leader_changes_nothing_about_how_it_ends() -> anyhow::Result<()> {
    let full = Size::asked() == Size::Full;
    let variants = if full { 6 } else { 1 };
    let alone = |wish, variant| Run { wish, variant, failure: Failure::None, ordered: false };
    let begin: Vec<Run> =
        WISHES.into_iter().flat_map(|wish| (0..variants).map(move |variant| alone(wish, variant + 1))).collect();
    let usual = runs::all(begin.clone(), |job| in_virtual_time(run(job)))?;
    let mut jobs = Vec::new();
    for (number, (job, outcome)) in begin.iter().zip(&usual).enumerate() {
        for request in runs::moments(&outcome.asked, full, job.variant) {
            for fate in [Fate::Held, Fate::HeldAnswer] {
                for ordered in [false, true] {
                    // In small size each request is looked at with the rule or without it.
                    if full || ordered == request.is_multiple_of(2) {
                        jobs.push((number, Run { failure: Failure::Frozen(request, fate), ordered, ..*job }));
                    }
                }
            }
        }
        for pace in [5, 20, 50] {
            jobs.push((number, Run { failure: Failure::Slow(pace), ..*job }));
        }
    }
    let count = jobs.len();
    runs::all(jobs, |(number, job)| {
        let outcome = in_virtual_time(run(job))?;
        let different = judge::differences(&usual[*number].end, &outcome.end);
        ensure!(different.is_empty(), "it ended differently: {different:#?}");
        Ok(())
    })?;
    println!("{count} runs with two leaders in {} scenarios, each ended as with one", WISHES.len());
    Ok(())
}
