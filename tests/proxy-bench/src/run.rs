//! The whole run: rounds, modes and contenders in an order of chance, results written as they come.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use gco_bed::cache::Cache;
use serde_json::{Value, json};

use crate::cells::{CELLS, Effort, Mode};
use crate::clock::now_nanos;
use crate::figures::Results;
use crate::install::Installed;
use crate::machine::{Cores, pin, seconds_since};
use crate::measure::{Bench, Running};
use crate::peers::Contender;
use crate::record::Record;
use crate::report;

/// What is run.
#[derive(Debug)]
pub struct Plan {
    /// What can be started; the bases need no entry.
    pub installed: BTreeMap<Contender, Installed>,
    /// Those that were asked for and cannot be had, and why.
    pub missing: Vec<(Contender, String)>,
    /// The modes.
    pub modes: Vec<Mode>,
    /// How much.
    pub effort: Effort,
    /// What decides about the order.
    pub seed: u64,
    /// Where results go.
    pub folder: PathBuf,
}

/// The files of a run.
const RAW: &str = "results.jsonl";
const REPORT: &str = "report.md";

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// The file with every figure.
    pub path: PathBuf,
    /// Its first part: who was measured, and the gates.
    pub gates: String,
}

/// Runs everything.
///
/// A contender that fails in one mode is said and left out there; the others go on.
///
/// # Errors
/// When the machine cannot be measured on, or nothing can be written.
pub async fn run(plan: &Plan, about: &Value, cache: &Cache) -> anyhow::Result<Report> {
    let cores = Cores::find()?;
    std::fs::create_dir_all(&plan.folder).with_context(|| format!("creating {}", plan.folder.display()))?;
    let raw = plan.folder.join(RAW);
    let created = OpenOptions::new().create(true).write(true).truncate(true).open(&raw);
    let mut raw = created.with_context(|| format!("writing {}", raw.display()))?;
    line(&mut raw, &json!({ "about": about }).to_string())?;
    // Whoever steers and writes must not take the proxy's core.
    pin(&[cores.load])?;
    let mut notes = Notes { raw, records: Vec::new(), begun: now_nanos(), rounds: plan.effort.rounds };
    for round in 0..plan.effort.rounds {
        for mode in plan.modes.iter().copied() {
            if mode == Mode::Slow && round >= plan.effort.slow_rounds {
                continue;
            }
            let bench = Bench::start(cores, mode != Mode::Two, plan.effort.idle_wait, plan.effort.time).await?;
            match mode {
                Mode::Main | Mode::Rate | Mode::Two => {
                    side_by_side(plan, &bench, cache, mode, round, &mut notes).await?
                }
                Mode::Memory | Mode::Slow => one_by_one(plan, &bench, cache, mode, round, &mut notes).await?,
            }
        }
        // Also after each round: a run that is stopped has a report of the rounds before.
        write_report(&plan.folder, about, &notes.records)?;
    }
    write_report(&plan.folder, about, &notes.records)
}

/// Every contender runs, and each cell is measured with one after the other.
///
/// The speed of a rented machine changes within a minute: what is compared must be measured within seconds. Who is not measured
/// rests, which costs next to nothing.
async fn side_by_side(
    plan: &Plan,
    bench: &Bench,
    cache: &Cache,
    mode: Mode,
    round: u32,
    notes: &mut Notes,
) -> anyhow::Result<()> {
    let mut running = Vec::new();
    for contender in order(contenders(plan, mode), seed(plan, round, mode, 0)) {
        match Running::start(bench, cache, contender, plan.installed.get(&contender)).await {
            Ok(started) => running.push((contender, started)),
            Err(error) => notes.take(mode, failed(round, mode, contender, &error))?,
        }
    }
    for (_, contender) in &running {
        contender.warm_up(bench).await;
    }
    for (cell, number) in CELLS.iter().filter(|cell| cell.mode == mode).zip(1..) {
        for at in order((0..running.len()).collect(), seed(plan, round, mode, number)) {
            let Some((contender, running)) = running.get(at) else { continue };
            if *contender != Contender::DirectBoth || cell.for_both_bases {
                notes.take(mode, running.measure(bench, round, cell).await)?;
            }
        }
    }
    for (_, contender) in running {
        contender.stop().await;
    }
    Ok(())
}

/// One contender at a time, freshly started: what counts is its memory.
async fn one_by_one(
    plan: &Plan,
    bench: &Bench,
    cache: &Cache,
    mode: Mode,
    round: u32,
    notes: &mut Notes,
) -> anyhow::Result<()> {
    for contender in order(contenders(plan, mode), seed(plan, round, mode, 0)) {
        let outcome = match Running::start(bench, cache, contender, plan.installed.get(&contender)).await {
            Ok(running) => {
                let outcome = match mode {
                    Mode::Slow => running.slow(bench, round).await,
                    _ => Ok(running.memory(bench, round).await),
                };
                running.stop().await;
                outcome
            }
            Err(error) => Err(error),
        };
        notes.take(mode, outcome.unwrap_or_else(|error| failed(round, mode, contender, &error)))?;
    }
    Ok(())
}

/// What was measured so far, on disk as soon as it is there.
struct Notes {
    raw: File,
    records: Vec<Record>,
    begun: u64,
    rounds: u32,
}

impl Notes {
    fn take(&mut self, mode: Mode, record: Record) -> anyhow::Result<()> {
        line(&mut self.raw, &record.to_line())?;
        let (elapsed, round, rounds) = (seconds_since(self.begun), record.round + 1, self.rounds);
        let Record { contender, cell, problem, .. } = &record;
        let value = |name: &str| record.get(name).unwrap_or(0.0);
        let rate = record.get("requests_per_second").map_or(String::new(), |rate| format!(", {rate:.0} requests/s"));
        let bad = value("wrong") + value("failed");
        let bad = if bad > 0.0 { format!(", {bad:.0} requests without the right answer") } else { String::new() };
        let problem = problem.as_ref().map_or(String::new(), |problem| format!(" ({})", problem.trim()));
        let mode = mode.name();
        eprintln!(
            "proxy-bench: {elapsed:>5.0} s, round {round}/{rounds}, {mode}, {cell}, {contender}{rate}{bad}{problem}"
        );
        self.records.push(record);
        Ok(())
    }
}

/// Makes the report of a run anew from its results.
///
/// # Errors
/// When they cannot be read, or the report cannot be written.
pub fn report_again(folder: &Path) -> anyhow::Result<Report> {
    let raw = folder.join(RAW);
    let text = std::fs::read_to_string(&raw).with_context(|| format!("reading {}", raw.display()))?;
    let first: Value = text.lines().next().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let records: Vec<Record> = text.lines().filter_map(Record::from_line).collect();
    write_report(folder, &first["about"], &records)
}

fn write_report(folder: &Path, about: &Value, records: &[Record]) -> anyhow::Result<Report> {
    let path = folder.join(REPORT);
    let results = Results::new(records.iter().cloned());
    let gates = report::gates(about, &results);
    let text = format!("{gates}{}", report::figures(&results));
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(Report { path, gates })
}

fn line(file: &mut File, text: &str) -> anyhow::Result<()> {
    writeln!(file, "{text}").context("writing results")
}

/// Who is measured in a mode.
fn contenders(plan: &Plan, mode: Mode) -> Vec<Contender> {
    let has_bases = matches!(mode, Mode::Main | Mode::Rate | Mode::Two);
    let runs = |contender: &Contender| plan.installed.contains_key(contender) || (has_bases && contender.is_base());
    Contender::ALL.into_iter().filter(runs).collect()
}

/// What decides about the order in one place of the run.
fn seed(plan: &Plan, round: u32, mode: Mode, number: u64) -> u64 {
    plan.seed ^ (u64::from(round) << 16) ^ ((mode as u64) << 8) ^ number
}

/// An order of chance that is the same for the same seed.
fn order<T>(mut things: Vec<T>, seed: u64) -> Vec<T> {
    let mut state = seed;
    // SplitMix64: one addition and two multiplications per number, well spread from any seed.
    let mut next = move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    };
    for last in (1..things.len()).rev() {
        let other = next() % (last as u64 + 1);
        things.swap(last, usize::try_from(other).unwrap_or(last));
    }
    things
}

/// The record of a visit that gave none.
fn failed(round: u32, mode: Mode, contender: Contender, error: &anyhow::Error) -> Record {
    Record {
        round,
        contender: contender.name().to_owned(),
        cell: format!("{} not measured", mode.name()),
        problem: Some(format!("{error:#}")),
        ..Record::default()
    }
}

/// How much is done, by arguments: rounds, and whether it has to be quick.
#[must_use]
pub fn effort(rounds: Option<u32>, is_quick: bool) -> Effort {
    if is_quick {
        let rounds = rounds.unwrap_or(2);
        Effort { rounds, slow_rounds: 1, time: 0.5, idle_wait: Duration::from_secs(3) }
    } else {
        let rounds = rounds.unwrap_or(6);
        Effort { rounds, slow_rounds: 2, time: 1.0, idle_wait: Duration::from_secs(10) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_everybody_once_and_differs_by_seed() {
        let things: Vec<u32> = (0..9).collect();
        let orders: std::collections::BTreeSet<Vec<u32>> = (0..20).map(|seed| order(things.clone(), seed)).collect();
        assert!(orders.len() > 15);
        for mut order in orders {
            order.sort_unstable();
            assert_eq!(order, things);
        }
        assert_eq!(order(things.clone(), 7), order(things, 7));
        assert_eq!(order(Vec::<u32>::new(), 7), Vec::<u32>::new());
    }

    #[test]
    fn a_visit_that_failed_is_in_the_report() {
        let folder = tempfile::tempdir().unwrap();
        let record = failed(0, Mode::Main, Contender::Envoy, &anyhow::anyhow!("no such program"));
        std::fs::write(folder.path().join(RAW), format!("{}\n{}\n", json!({"about": {}}), record.to_line())).unwrap();
        let report = std::fs::read_to_string(report_again(folder.path()).unwrap().path).unwrap();
        assert!(report.contains("envoy") && report.contains("no such program"), "{report}");
    }
}
