//! Two monitors on one region; the leader is frozen at one of its writes or reads until the other leads and has done other
//! things, then goes on. No object may end with what the old one wanted, and nothing that it deleted may stay missing.
//!
//! The leader is stopped (SIGSTOP) when the request comes in at a proxy before the API server or the table; the request,
//! or the answer to it, is held there until it is resumed. So each write of the old one that was under way reaches the
//! server after the new one has led for a while.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use gco_bed::rewriting_proxy::RewritingProxy;
use gco_bed::wait;
use gco_runtime::random::{Randomness as _, SeededRandomness};
use gco_tests::dice::roll;
use gco_tests::region::gate::{Class, Counted, Phase, Trap};
use gco_tests::region::objects::{model_container, variable};
use gco_tests::region::rows::spec;
use gco_tests::region::{BOUND, Monitor, MonitorSettings, Region, RegionSettings, TableKind, TestTable};
use gco_tests::size::Size;

const ENDPOINT: &str = "chat";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    Create,
    Edit,
    Scale,
    Stop,
    Start,
    Delete,
}

const SCENARIOS: [Scenario; 6] =
    [Scenario::Create, Scenario::Edit, Scenario::Scale, Scenario::Stop, Scenario::Start, Scenario::Delete];

impl Scenario {
    /// What stands before the leader is watched.
    async fn prepare(self, region: &Region) -> anyhow::Result<()> {
        if self == Self::Create {
            return Ok(());
        }
        region.deploy(ENDPOINT, spec(1, "before")).await?;
        region.settled(ENDPOINT).await?;
        if self == Self::Start {
            region.stop(ENDPOINT).await?;
            region.settled(ENDPOINT).await?;
        }
        Ok(())
    }

    /// What the first leader is told.
    async fn old_wish(self, region: &Region) -> anyhow::Result<()> {
        match self {
            Self::Create => region.deploy(ENDPOINT, spec(2, "old")).await?,
            Self::Edit => region.mark(ENDPOINT, "old").await?,
            Self::Scale => region.scale(ENDPOINT, 3).await?,
            Self::Stop => region.stop(ENDPOINT).await?,
            Self::Start => region.start_endpoint(ENDPOINT).await?,
            Self::Delete => region.delete(ENDPOINT).await?,
        };
        Ok(())
    }

    /// What the second leader is told while the first is frozen: something else, so that a write of the first shows.
    async fn new_wish(self, region: &Region) -> anyhow::Result<()> {
        match self {
            Self::Create | Self::Edit => {
                region.mark(ENDPOINT, "new").await?;
            }
            Self::Scale => {
                region.scale(ENDPOINT, 2).await?;
                region.mark(ENDPOINT, "new").await?;
            }
            Self::Stop => {
                region.start_endpoint(ENDPOINT).await?;
                region.mark(ENDPOINT, "new").await?;
            }
            Self::Start => {
                region.mark(ENDPOINT, "new").await?;
                region.stop(ENDPOINT).await?;
            }
            Self::Delete => {
                region.purged(ENDPOINT).await?;
                region.deploy(ENDPOINT, spec(1, "new")).await?;
            }
        }
        Ok(())
    }
}

/// At which request the leader freezes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment {
    scenario: Scenario,
    class: Class,
    number: usize,
    phase: Phase,
}

/// What one run came to.
#[derive(Debug)]
struct Outcome {
    moment: Moment,
    request: Option<Counted>,
    /// The status that the server answered the held request with, after the other led.
    landed: Option<u16>,
}

/// A region with two monitors, each behind proxies of its own.
struct Pair {
    region: Region,
    first: Monitor,
    second: Monitor,
    proxies: [RewritingProxy; 2],
}

impl Pair {
    async fn start() -> anyhow::Result<Self> {
        let table = TestTable::on_server(TableKind::Ministack).await?;
        let region = Region::start_with(RegionSettings::named("us-east-1"), table).await?;
        let proxies = [region.api_proxy().await?, region.table_proxy().await?];
        let settings = MonitorSettings::named("first").api_through(proxies[0].url()).table_through(proxies[1].url());
        let first = Monitor::leading_with(&region, settings).await?;
        let second = Monitor::start(&region, MonitorSettings::named("second")).await?;
        second.answers("/healthz", 200).await?;
        Ok(Self { region, first, second, proxies })
    }

    fn set(&self, trap: &Arc<Trap>) {
        trap.set_in(&[&self.proxies[0], &self.proxies[1]]);
    }

    async fn end(self) -> anyhow::Result<()> {
        self.region.delete_namespace().await
    }
}

/// How many requests of a kind the leader sends in an undisturbed run.
async fn requests(scenario: Scenario, class: Class) -> anyhow::Result<Vec<Counted>> {
    let pair = Pair::start().await?;
    let trap = Trap::counting(class);
    pair.set(&trap);
    scenario.prepare(&pair.region).await?;
    trap.arm();
    scenario.old_wish(&pair.region).await?;
    match scenario {
        Scenario::Delete => pair.region.purged(ENDPOINT).await?,
        _ => drop(pair.region.settled(ENDPOINT).await?),
    }
    trap.disarm();
    let counted = trap.counted();
    pair.end().await?;
    Ok(counted)
}

/// One run: freeze at the moment, let the other do something else, resume, look.
async fn run(moment: Moment) -> anyhow::Result<Outcome> {
    let pair = Pair::start().await?;
    let region = &pair.region;
    let pid = nix::unistd::Pid::from_raw(pair.first.process().pid());
    let freeze = move || {
        // The process is ours and lives: it has just sent a request.
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP);
    };
    let trap = Trap::at(moment.class, moment.number, moment.phase, freeze);
    pair.set(&trap);
    moment.scenario.prepare(region).await?;
    trap.arm();
    moment.scenario.old_wish(region).await?;
    // A run may need one request less than the one that was counted: a race that is not lost this time.
    let request = match trap.wait_until_sprung(Duration::from_secs(15)).await {
        Ok(counted) => Some(counted),
        Err(_) => {
            trap.disarm();
            match trap.sprung() {
                Some(counted) => Some(counted),
                None => {
                    pair.first.freeze()?;
                    None
                }
            }
        }
    };
    region.wait_for_leader("second").await?;
    moment.scenario.new_wish(region).await.with_context(|| pair.second.described())?;
    region.settled(ENDPOINT).await.with_context(|| pair.second.described())?;

    let marks = [pair.proxies[0].mark(), pair.proxies[1].mark()];
    trap.release();
    pair.first.thaw()?;
    let held_before = moment.phase == Phase::Before && request.is_some();
    let landed = if held_before { held_status(&pair).await? } else { None };
    // The old one has to notice: it asks the API server about the Lease, at the latest when its renewal fails.
    pair.proxies[0]
        .wait_for("the old leader to look at the Lease", BOUND, marks[0], |exchange| {
            exchange.request.kubernetes.as_ref().is_some_and(|kubernetes| kubernetes.resource == "leases")
        })
        .await?;
    region.settled(ENDPOINT).await.with_context(|| pair.second.described())?;
    region.wait_for_leader("second").await?;
    let objects = region.objects_of(ENDPOINT).await?;
    let deployment = objects.deployments.get(ENDPOINT).context("the Deployment is gone")?;
    ensure!(objects.services.contains_key(ENDPOINT), "the Service is gone");
    let container = model_container(deployment);
    // A stopped endpoint takes an edit at its next start; that it holds no pods is what settling means.
    let stays_stopped = moment.scenario == Scenario::Start;
    let edit = variable(&container, "EDIT");
    ensure!(stays_stopped || edit == Some("new"), "the Deployment ended with {edit:?}");
    pair.end().await?;
    Ok(Outcome { moment, request, landed })
}

/// What the server answered the request that was held until the other led.
async fn held_status(pair: &Pair) -> anyhow::Result<Option<u16>> {
    let status = wait::until("the held request to be answered", BOUND, || {
        let exchanges = pair.proxies.iter().flat_map(RewritingProxy::exchanges);
        let held =
            exchanges.filter(|exchange| exchange.decision == gco_bed::rewriting_proxy::DecisionKind::HoldThenForward);
        let last = held.last();
        let answered = last
            .as_ref()
            .and_then(|exchange| exchange.upstream_status.map(Ok).or_else(|| exchange.error.clone().map(Err)));
        std::future::ready(answered.ok_or_else(|| format!("{:?}", last.map(|exchange| exchange.summary()))))
    });
    Ok(status.await?.ok())
}

async fn frozen_at(moments: Vec<Moment>, at_once: usize) -> anyhow::Result<Vec<Outcome>> {
    let runs = moments
        .into_iter()
        .map(|moment| async move { run(moment).await.with_context(|| format!("frozen at {moment:?}")) });
    let outcomes: Vec<anyhow::Result<Outcome>> = futures::stream::iter(runs).buffer_unordered(at_once).collect().await;
    let mut done = Vec::new();
    let mut failed = Vec::new();
    for outcome in outcomes {
        match outcome {
            Ok(outcome) => done.push(outcome),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    ensure!(
        failed.is_empty(),
        "{} of {} runs failed:\n{}",
        failed.len(),
        failed.len() + done.len(),
        failed.join("\n\n")
    );
    Ok(done)
}

fn report(what: &str, outcomes: &[Outcome]) {
    let missed = outcomes.iter().filter(|outcome| outcome.request.is_none()).count();
    println!("{what}: {} runs, {missed} of which needed one request less and were frozen at rest", outcomes.len());
    for Outcome { moment, request, landed } in outcomes {
        let Some(request) = request else { continue };
        if moment.phase == Phase::Before {
            let landed = landed.map_or_else(|| "no answer".to_owned(), |status| status.to_string());
            println!("  {:?} {}: {} sent late, answered {landed}", moment.scenario, request.number, request.summary);
        }
    }
    let landed =
        |outcome: &&Outcome| outcome.moment.class == Class::Writes && outcome.landed.is_some_and(|status| status < 300);
    let landed = outcomes.iter().filter(landed).count();
    println!("{what}: {landed} late writes of the old leader were accepted by a server, and put right by the new one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_frozen_at_any_write_changes_nothing_once_another_leads() -> anyhow::Result<()> {
    let size = Size::asked();
    let counts: Vec<anyhow::Result<(Scenario, Vec<Counted>)>> = futures::stream::iter(SCENARIOS)
        .map(|scenario| async move { anyhow::Ok((scenario, requests(scenario, Class::Writes).await?)) })
        .buffered(size.choose(3, 4))
        .collect()
        .await;
    let mut moments = Vec::new();
    for counted in counts {
        let (scenario, writes) = counted?;
        let summaries: Vec<&str> = writes.iter().map(|write| write.summary.as_str()).collect();
        println!("{scenario:?}: {} writes: {summaries:?}", writes.len());
        ensure!(!writes.is_empty(), "{scenario:?} wrote nothing");
        let all: Vec<Moment> = (1..=writes.len())
            .flat_map(|number| [Phase::Before, Phase::After].map(|phase| (number, phase)))
            .map(|(number, phase)| Moment { scenario, class: Class::Writes, number, phase })
            .collect();
        // Most writes are of the status; a sample takes one of each kind.
        let of_objects = |moment: &&Moment| !writes[moment.number - 1].summary.starts_with("UpdateItem");
        let (objects, rows): (Vec<&Moment>, Vec<&Moment>) = all.iter().partition(of_objects);
        let seed = moments.len() as u64;
        let sampled = [sample(&objects, 1, seed), sample(&rows, 1, seed + 100)].concat();
        moments.extend(size.choose(sampled, all));
    }
    let outcomes = frozen_at(moments, size.choose(4, 6)).await?;
    report("frozen at writes", &outcomes);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_frozen_at_a_read_changes_nothing_once_another_leads() -> anyhow::Result<()> {
    let size = Size::asked();
    let dice = SeededRandomness::new(20);
    let moments: Vec<Moment> = (0..size.choose(3, 20))
        .map(|number| {
            let roll = dice.token();
            let digit = |index: usize| usize::from_str_radix(&roll[index..=index], 16).unwrap();
            Moment {
                scenario: SCENARIOS[number % SCENARIOS.len()],
                class: Class::Reads,
                number: 1 + digit(0) % 8,
                phase: if digit(1) % 2 == 0 { Phase::Before } else { Phase::After },
            }
        })
        .collect();
    let outcomes = frozen_at(moments, size.choose(3, 6)).await?;
    report("frozen at reads", &outcomes);
    Ok(())
}

/// `count` of `all`, chosen by a seed.
fn sample(all: &[&Moment], count: usize, seed: u64) -> Vec<Moment> {
    let dice = SeededRandomness::new(seed);
    let mut left: Vec<Moment> = all.iter().map(|moment| **moment).collect();
    let mut chosen = Vec::new();
    while chosen.len() < count && !left.is_empty() {
        let roll = roll(&dice);
        chosen.push(left.remove(roll % left.len()));
    }
    chosen
}
