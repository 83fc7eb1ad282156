//! What a transition should do, evaluated on a map of rows.

use std::collections::BTreeMap;

use gco_store::transition::Transition;
use gco_store::wire::Item;

/// What a backend has to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Applied; the row afterwards, `None` after a purge.
    Applied(Option<Item>),
    /// The condition did not hold; the row as it was.
    Refused(Option<Item>),
    /// The condition held, and the write cannot be done on this row.
    Invalid(String),
}

/// A table that is a map: the condition and the write as the store's pure part evaluates them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reference {
    rows: BTreeMap<String, Item>,
}

impl Reference {
    /// The row of a name.
    #[must_use]
    pub fn row(&self, name: &str) -> Option<&Item> {
        self.rows.get(name)
    }

    /// All rows by name.
    #[must_use]
    pub fn rows(&self) -> &BTreeMap<String, Item> {
        &self.rows
    }

    /// Executes a transition.
    pub fn execute(&mut self, transition: &Transition) -> Expected {
        let row = self.rows.get(&transition.name);
        if !transition.condition.holds(row) {
            return Expected::Refused(row.cloned());
        }
        match transition.write.apply(row.cloned()) {
            Err(problem) => Expected::Invalid(problem.to_string()),
            Ok(None) => {
                self.rows.remove(&transition.name);
                Expected::Applied(None)
            }
            Ok(Some(row)) => {
                self.rows.insert(transition.name.clone(), row.clone());
                Expected::Applied(Some(row))
            }
        }
    }
}
