//! One seeded sequence of operations, on the reference and on every backend; the first difference ends it.

use std::fmt::Write as _;

use anyhow::{Context as _, bail, ensure};
use futures::future::try_join_all;
use gco_store::table::{Consistency, ErrorCategory, Outcome, TableError};
use gco_store::transition::Transition;
use gco_store::wire::{Item, Value, item_to_dynamodb_json};

use super::backends::Backend;
use super::generator::{Generator, Step, remove};
use super::predicates::Tallies;
use super::reference::{Expected, Reference};

/// Operations of one sequence.
pub const OPERATIONS: usize = 40;
/// Steps of the trace that a failure repeats.
const SHOWN_STEPS: usize = OPERATIONS;

/// What one sequence, or many, did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Atomic conditions, as evaluated on the reference.
    pub predicates: Tallies,
    /// Transitions whose condition held.
    pub applied: usize,
    /// Transitions whose condition did not hold.
    pub refused: usize,
    /// Transitions that the row's shape made impossible.
    pub invalid: usize,
    /// Reads of one row or of all.
    pub reads: usize,
    /// Draws of the generator that the row's state forbade.
    pub refused_draws: usize,
}

impl Figures {
    /// Adds another run's figures.
    pub fn add(&mut self, other: &Self) {
        self.predicates.add(&other.predicates);
        self.applied += other.applied;
        self.refused += other.refused;
        self.invalid += other.invalid;
        self.reads += other.reads;
        self.refused_draws += other.refused_draws;
    }
}

/// Runs the sequence of a seed; the backends' tables are empty before and after.
///
/// # Errors
/// The first difference between the reference and a backend, with every step before it; or a failed call.
pub async fn run(seed: u64, backends: &[Backend]) -> anyhow::Result<Figures> {
    let names = ["chat".to_owned(), "search".to_owned()];
    let mut generator = Generator::new(seed, names.to_vec());
    let mut reference = Reference::default();
    let mut figures = Figures::default();
    let mut trace = Vec::new();
    for number in 1..=OPERATIONS {
        let (actor, step) = generator.next(&reference)?;
        trace.push(format!("{number:>3} actor {actor}: {}", describe(&step)));
        let before = reference.clone();
        let expected = match &step {
            Step::Execute(transition) => Some(execute(transition, &mut reference, &mut figures)),
            Step::Get(_) | Step::List => None,
        };
        let checks = backends.iter().map(|backend| check(backend, &step, expected.as_ref(), &before, &reference));
        if let Err(difference) = try_join_all(checks).await {
            bail!(
                "seed {seed}, step {number}: {difference:#}\nrepeat with GCO_SEED={seed}; the steps were\n{}",
                trace.iter().rev().take(SHOWN_STEPS).rev().fold(String::new(), |mut text, line| {
                    let _ = writeln!(text, "{line}");
                    text
                })
            );
        }
        match &expected {
            Some(Expected::Applied(row) | Expected::Refused(row)) => generator.tell(actor, row.as_ref()),
            Some(Expected::Invalid(_)) => {}
            None => figures.reads += 1,
        }
        if let (Some(expected), Some(line)) = (&expected, trace.last_mut()) {
            let _ = write!(line, " => {}", word(expected));
        }
    }
    figures.refused_draws = generator.refused_draws;
    for backend in backends {
        same_rows(backend, &reference).await.with_context(|| format!("seed {seed}, at the end"))?;
        for name in reference.rows().keys() {
            backend.table.execute(&remove(name)).await?;
        }
    }
    Ok(figures)
}

fn execute(transition: &Transition, reference: &mut Reference, figures: &mut Figures) -> Expected {
    figures.predicates.evaluate(transition, reference.row(&transition.name));
    let expected = reference.execute(transition);
    match expected {
        Expected::Applied(_) => figures.applied += 1,
        Expected::Refused(_) => figures.refused += 1,
        Expected::Invalid(_) => figures.invalid += 1,
    }
    expected
}

async fn check(
    backend: &Backend,
    step: &Step,
    expected: Option<&Expected>,
    before: &Reference,
    after: &Reference,
) -> anyhow::Result<()> {
    match (step, expected) {
        (Step::Execute(transition), Some(expected)) => {
            let outcome = backend.table.execute(transition).await;
            same_outcome(backend, expected, outcome)?;
            same_row(backend, &transition.name, Consistency::Strong, after).await
        }
        // A table in one place answers both kinds of read alike.
        (Step::Get(name), _) => {
            same_row(backend, name, Consistency::Strong, before).await?;
            same_row(backend, name, Consistency::Eventual, before).await
        }
        (Step::List | Step::Execute(_), _) => same_rows(backend, before).await,
    }
}

fn same_outcome(backend: &Backend, expected: &Expected, found: Result<Outcome, TableError>) -> anyhow::Result<()> {
    let name = backend.name;
    match (expected, &found) {
        (Expected::Applied(row), Ok(Outcome::Applied(answer))) => same(name, "the row after the write", row, answer),
        (Expected::Refused(row), Ok(Outcome::Refused(answer))) => {
            same(name, "the row that refused the write", row, answer)
        }
        (Expected::Invalid(_), Err(error)) if error.category == ErrorCategory::Invalid => Ok(()),
        _ => bail!("{name}: expected {}, got {found:?}", word(expected)),
    }
}

async fn same_row(backend: &Backend, name: &str, how: Consistency, reference: &Reference) -> anyhow::Result<()> {
    let row = backend.table.get(name, how).await?;
    same(backend.name, &format!("the row {name}, read {how:?}"), &reference.row(name).cloned(), &row)
}

async fn same_rows(backend: &Backend, reference: &Reference) -> anyhow::Result<()> {
    let read = backend.table.read_all(Consistency::Strong).await?;
    ensure!(read.pages == 1, "{}: {} pages for {} rows", backend.name, read.pages, read.items.len());
    ensure!(
        read.items.len() == reference.rows().len(),
        "{}: {} rows instead of {}",
        backend.name,
        read.items.len(),
        reference.rows().len()
    );
    for row in read.items {
        let name = row.get("endpoint_name").and_then(Value::as_str).unwrap_or_default().to_owned();
        same(backend.name, &format!("the row {name} of a full read"), &reference.row(&name).cloned(), &Some(row))?;
    }
    Ok(())
}

fn same(backend: &str, what: &str, expected: &Option<Item>, found: &Option<Item>) -> anyhow::Result<()> {
    // A known gap of moto's (`NumberForm`): it keeps the text of a number as it was sent.
    let stored = |row: &Item| row.iter().map(|(name, value)| (name.clone(), value.as_stored())).collect::<Item>();
    let found = &if backend == "moto" { found.as_ref().map(stored) } else { found.clone() };
    ensure!(expected == found, "{backend}: {what} differs: {}", difference(expected.as_ref(), found.as_ref()));
    Ok(())
}

/// The attributes that differ between two rows, as DynamoDB JSON.
#[must_use]
pub fn difference(expected: Option<&Item>, found: Option<&Item>) -> String {
    let (Some(expected), Some(found)) = (expected, found) else {
        let side = |row: Option<&Item>| row.map_or("no row".to_owned(), |row| item_to_dynamodb_json(row).to_string());
        return format!("expected {}, found {}", side(expected), side(found));
    };
    let side =
        |row: &Item, name: &String| row.get(name).map_or("nothing".to_owned(), |v| v.to_dynamodb_json().to_string());
    let names: std::collections::BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let differing = names.into_iter().filter(|name| expected.get(*name) != found.get(*name));
    differing
        .map(|name| format!("{name}: expected {}, found {}", side(expected, name), side(found, name)))
        .collect::<Vec<_>>()
        .join("; ")
}

fn word(expected: &Expected) -> String {
    match expected {
        Expected::Applied(_) => "applied".to_owned(),
        Expected::Refused(_) => "refused".to_owned(),
        Expected::Invalid(why) => format!("impossible ({why})"),
    }
}

fn describe(step: &Step) -> String {
    match step {
        Step::Get(name) => format!("get {name}"),
        Step::List => "list".to_owned(),
        Step::Execute(transition) => {
            let Transition { operation, name, condition, write, .. } = &**transition;
            format!("{operation:?} {name} if {condition:?} then {write:?}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn figures(seeds: std::ops::RangeInclusive<u64>) -> Figures {
        let mut figures = Figures::default();
        for seed in seeds {
            figures.add(&run(seed, &[]).await.unwrap());
        }
        figures
    }

    #[tokio::test]
    async fn five_hundred_sequences_show_every_predicate_true_and_false_a_hundred_times() {
        let figures = figures(1..=500).await;
        let rare = figures.predicates.seen_less_than(100);
        assert!(rare.is_empty(), "{rare:#?}");
    }

    #[tokio::test]
    async fn a_seed_gives_the_same_sequence_again() {
        assert_eq!(figures(7..=9).await, figures(7..=9).await);
        assert_ne!(figures(7..=9).await, figures(8..=10).await);
    }
}
