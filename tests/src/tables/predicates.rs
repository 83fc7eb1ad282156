//! How often each atomic condition of a transition was seen true and false.

use std::collections::BTreeMap;
use std::fmt;

use gco_store::transition::{Condition, Operation, Path, Transition};
use gco_store::wire::{Item, Value};

/// One atomic condition of one operation, without the tokens and names of a particular row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Predicate {
    /// The operation that asks.
    pub operation: Operation,
    /// What it asks, for example `region_generations.<region> = as read`.
    pub text: String,
}

/// What an atomic condition was seen as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Times that it held.
    pub held: usize,
    /// Times that it did not.
    pub failed: usize,
    /// Of these, times that there was a row: something else stood there.
    pub failed_on_a_row: usize,
}

/// All tallies of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallies(pub BTreeMap<Predicate, Tally>);

impl Tallies {
    /// Evaluates every atomic condition of `transition` on `row`.
    pub fn evaluate(&mut self, transition: &Transition, row: Option<&Item>) {
        for leaf in leaves(&transition.condition) {
            let predicate = Predicate { operation: transition.operation, text: describe(leaf) };
            let tally = self.0.entry(predicate).or_default();
            if leaf.holds(row) {
                tally.held += 1;
            } else {
                tally.failed += 1;
                tally.failed_on_a_row += usize::from(row.is_some());
            }
        }
    }

    /// Adds the tallies of another run.
    pub fn add(&mut self, other: &Self) {
        for (predicate, tally) in &other.0 {
            let sum = self.0.entry(predicate.clone()).or_default();
            sum.held += tally.held;
            sum.failed += tally.failed;
            sum.failed_on_a_row += tally.failed_on_a_row;
        }
    }

    /// The predicates that were not seen both ways at least `least` times.
    #[must_use]
    pub fn seen_less_than(&self, least: usize) -> Vec<String> {
        let rare = |(predicate, tally): (&Predicate, &Tally)| {
            (tally.held < least || tally.failed < least).then(|| format!("{predicate}: {tally:?}"))
        };
        self.0.iter().filter_map(rare).collect()
    }
}

impl fmt::Display for Predicate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.operation, self.text)
    }
}

impl fmt::Display for Tallies {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{:<80} {:>7} {:>7} {:>9}", "predicate", "true", "false", "(on a row)")?;
        for (predicate, tally) in &self.0 {
            let Tally { held, failed, failed_on_a_row } = tally;
            writeln!(formatter, "{:<80} {held:>7} {failed:>7} {failed_on_a_row:>9}", predicate.to_string())?;
        }
        Ok(())
    }
}

/// The atomic conditions of a condition, in its order.
#[must_use]
pub fn leaves(condition: &Condition) -> Vec<&Condition> {
    match condition {
        Condition::All(parts) | Condition::Any(parts) => parts.iter().flat_map(leaves).collect(),
        Condition::Not(inner) => leaves(inner),
        Condition::Exists(_) | Condition::Equals(..) | Condition::Before(..) => vec![condition],
    }
}

/// An atomic condition without the tokens and names of a particular row.
#[must_use]
pub fn describe(leaf: &Condition) -> String {
    match leaf {
        Condition::Exists(path) => format!("{} exists", place(path)),
        Condition::Equals(path, Value::Bool(value)) => format!("{} = {value}", place(path)),
        // Words of the contract are part of the predicate, everything else was read from the row.
        Condition::Equals(path, Value::String(word)) if ends_in_a_state(path) => {
            format!("{} = {word}", place(path))
        }
        Condition::Equals(path, _) => format!("{} = as read", place(path)),
        Condition::Before(path, _) => format!("{} before the new version", place(path)),
        other => format!("{other:?}"),
    }
}

fn ends_in_a_state(path: &Path) -> bool {
    path.0.last().is_some_and(|last| last == "desired_state" || last == "state")
}

fn place(path: &Path) -> String {
    let mut parts = path.0.clone();
    let placeholder = match parts.first().map(String::as_str) {
        Some("region_status" | "region_generations") => Some("<region>"),
        Some("labels") => Some("<label>"),
        _ => None,
    };
    if let (Some(placeholder), Some(second)) = (placeholder, parts.get_mut(1)) {
        placeholder.clone_into(second);
    }
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Path {
        Path(text.split('.').map(str::to_owned).collect())
    }

    #[test]
    fn predicates_of_different_regions_labels_and_tokens_are_one_predicate() {
        let token = || Value::String("0f".repeat(32));
        for (leaf, text) in [
            (Condition::Exists(path("endpoint_name")), "endpoint_name exists"),
            (Condition::Equals(path("region_generations.eu-west-1"), token()), "region_generations.<region> = as read"),
            (Condition::Equals(path("labels.team"), Value::String("a".into())), "labels.<label> = as read"),
            (
                Condition::Equals(path("spec.autoscaling.enabled"), Value::Bool(false)),
                "spec.autoscaling.enabled = false",
            ),
            (
                Condition::Equals(path("region_status.a.state"), Value::String("deleted".into())),
                "region_status.<region>.state = deleted",
            ),
        ] {
            assert_eq!(describe(&leaf), text);
        }
    }

    #[test]
    fn atomic_conditions_are_found_at_any_depth() {
        let atom = |name: &str| Condition::Exists(path(name));
        let condition = Condition::All(vec![
            atom("a"),
            Condition::Any(vec![Condition::Not(Box::new(atom("b"))), Condition::All(vec![atom("c")])]),
        ]);
        assert_eq!(leaves(&condition), [&atom("a"), &atom("b"), &atom("c")]);
    }
}
