//! The change index: which rows changed lately, told by a secondary index of keys only.
//!
//! The index has `desired_state` as partition key and `updated_at` as sort key, so that one small query per known state
//! word answers "which rows have a version from this time on". It lags behind the table by moments, and holds no row
//! without these two strings nor one whose state word is unknown: it is a hint about whom to read, never a reason to
//! believe that nothing changed. A full read remains the truth.

use crate::wire::{Item, Value};

/// Partition key of the change index.
pub const STATE_ATTRIBUTE: &str = "desired_state";
/// Sort key of the change index.
pub const VERSION_ATTRIBUTE: &str = "updated_at";
/// Name under which we make the change index. One that was made under another name is used as well: its keys decide.
pub const INDEX_NAME: &str = "change-index";
/// The state words that are asked for, the contract's four (A.3).
pub const STATES: [&str; 4] = ["deploying", "running", "stopped", "deleted"];

/// A row as the change index shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexEntry {
    /// `endpoint_name`
    pub name: String,
    /// `updated_at`
    pub updated_at: String,
}

/// What the change index told, all pages of all states.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChangeRead {
    /// Rows with a version from the lower bound on, in no order. The index may lag, so that a name can come twice.
    pub entries: Vec<IndexEntry>,
    /// Requests that it took.
    pub pages: u32,
    /// Read units that the server counted, when it told.
    pub consumed_read_units: Option<f64>,
}

/// A part of what a fleet keeps in its table service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The first table, one row per endpoint.
    Endpoints,
    /// The second table, `<name>-regions`, one item per region.
    Regions,
    /// The change index of the first table.
    ChangeIndex,
}

impl Part {
    /// Every part, in the order in which they are made.
    pub const ALL: [Self; 3] = [Self::Endpoints, Self::Regions, Self::ChangeIndex];
}

/// Whether a part is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartState {
    /// It is not.
    Missing,
    /// It is being made, and cannot be used yet.
    Making,
    /// It can be used.
    Ready,
    /// Something is there that cannot be used; why.
    Unusable(String),
}

/// The entry that the index holds for a row; `None` for a row that is not in it.
#[must_use]
pub fn entry_of(item: &Item) -> Option<IndexEntry> {
    let text = |name: &str| item.get(name).and_then(Value::as_str);
    text(STATE_ATTRIBUTE).filter(|state| STATES.contains(state))?;
    Some(IndexEntry { name: text("endpoint_name")?.to_owned(), updated_at: text(VERSION_ATTRIBUTE)?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_with_a_known_state_and_a_version_are_in_the_index() {
        let row = |pairs: &[(&str, &str)]| -> Item {
            pairs.iter().map(|(name, text)| ((*name).to_owned(), Value::from(*text))).collect()
        };
        let whole = [("endpoint_name", "a"), ("desired_state", "running"), ("updated_at", "2026")];
        assert_eq!(entry_of(&row(&whole)).map(|entry| entry.updated_at).as_deref(), Some("2026"));
        for missing in 0..whole.len() {
            let rest: Vec<_> =
                whole.iter().enumerate().filter(|(index, _)| *index != missing).map(|(_, pair)| *pair).collect();
            assert_eq!(entry_of(&row(&rest)), None, "{rest:?}");
        }
        let other = [("endpoint_name", "a"), ("desired_state", "paused"), ("updated_at", "2026")];
        assert_eq!(entry_of(&row(&other)), None);
    }
}
