//! The rows as this process knows them. Pure: reads and writes in, changed names out.
//!
//! A read tells what was true at some time after it **began**. So a row from a read that began before our own last
//! acknowledged write of it (or before a later read of it) may be older than what we hold, and is not taken over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gco_runtime::clock::BootTime;
use gco_store::name::collide;
use gco_store::problem::FieldProblem;
use gco_store::row::EndpointRow;
use gco_store::wire::Item;

/// Above this many new or gone names at once, everybody is looked at anyway.
const MOST_COLLISION_CHECKS: usize = 50;

/// A row, and since when it is known to be so.
#[derive(Clone, Debug)]
pub struct Held {
    /// The row.
    pub row: Arc<EndpointRow>,
    /// When the read began, or the write was acknowledged, that told us.
    pub known_since: BootTime,
}

/// What a read changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Names whose row is new or different.
    pub changed: BTreeSet<String>,
    /// Names whose row is gone.
    pub gone: BTreeSet<String>,
}

/// All rows.
#[derive(Debug, Default)]
pub struct Rows {
    rows: BTreeMap<String, Held>,
    /// Names that we know to be absent since then.
    absent: BTreeMap<String, BootTime>,
    names: Arc<BTreeSet<String>>,
    lifecycles: Arc<BTreeSet<String>>,
    last_complete_read: Option<BootTime>,
    unreadable: BTreeSet<String>,
}

impl Rows {
    /// One row.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Held> {
        self.rows.get(name).cloned()
    }

    /// All rows.
    pub fn iter(&self) -> impl Iterator<Item = &Held> {
        self.rows.values()
    }

    /// Names of all rows.
    #[must_use]
    pub fn names(&self) -> Arc<BTreeSet<String>> {
        self.names.clone()
    }

    /// Lifecycles of all rows.
    #[must_use]
    pub fn lifecycles(&self) -> Arc<BTreeSet<String>> {
        self.lifecycles.clone()
    }

    /// When the last complete read began.
    #[must_use]
    pub fn last_complete_read(&self) -> Option<BootTime> {
        self.last_complete_read
    }

    /// Items of the last complete read that are no rows, in words.
    #[must_use]
    pub fn unreadable(&self) -> &BTreeSet<String> {
        &self.unreadable
    }

    fn known_since(&self, name: &str) -> Option<BootTime> {
        self.rows.get(name).map(|held| held.known_since).or_else(|| self.absent.get(name).copied())
    }

    /// Takes a complete read over that began at `began`. An item that cannot be read stops no other (D-31).
    pub fn take_all(&mut self, items: Vec<Item>, began: BootTime) -> Changes {
        let mut changes = Changes::default();
        let mut seen = BTreeSet::new();
        let mut unreadable = BTreeSet::new();
        for item in items {
            match EndpointRow::parse(item) {
                Ok(row) => {
                    seen.insert(row.name.clone());
                    self.take_one(row, began, &mut changes);
                }
                Err(FieldProblem { field, message }) => {
                    unreadable.insert(format!("{field}: {message}"));
                }
            }
        }
        let missing: Vec<String> = self
            .rows
            .iter()
            .filter(|(name, held)| !seen.contains(*name) && held.known_since <= began)
            .map(|(name, _)| name.clone())
            .collect();
        for name in missing {
            self.rows.remove(&name);
            changes.gone.insert(name);
        }
        // What a later complete read says of them is newer than what we knew.
        self.absent.retain(|_, since| *since > began);
        self.unreadable = unreadable;
        self.last_complete_read = Some(began);
        self.after(&mut changes);
        changes
    }

    /// Takes one row over that a read begun at `since`, or a write acknowledged then, told; `None`: it is absent.
    pub fn take(&mut self, name: &str, row: Option<EndpointRow>, since: BootTime) -> Changes {
        let mut changes = Changes::default();
        match row {
            Some(row) => self.take_one(row, since, &mut changes),
            None if self.known_since(name).is_none_or(|known| known <= since) => {
                if self.rows.remove(name).is_some() {
                    changes.gone.insert(name.to_owned());
                }
                self.absent.insert(name.to_owned(), since);
            }
            None => {}
        }
        self.after(&mut changes);
        changes
    }

    fn take_one(&mut self, row: EndpointRow, since: BootTime, changes: &mut Changes) {
        if self.known_since(&row.name).is_some_and(|known| known > since) {
            return;
        }
        self.absent.remove(&row.name);
        match self.rows.get_mut(&row.name) {
            Some(held) if held.row.item == row.item => held.known_since = since,
            _ => {
                changes.changed.insert(row.name.clone());
                self.rows.insert(row.name.clone(), Held { row: Arc::new(row), known_since: since });
            }
        }
    }

    /// Rebuilds what is derived from all rows; adds rows whose judgement depends on names that came or went (D-5).
    fn after(&mut self, changes: &mut Changes) {
        if changes.changed.is_empty() && changes.gone.is_empty() {
            return;
        }
        self.lifecycles = Arc::new(self.rows.values().filter_map(|held| held.row.lifecycle_id.clone()).collect());
        let came = changes.changed.iter().filter(|name| !self.names.contains(*name));
        let moved: Vec<String> = came.chain(&changes.gone).cloned().collect();
        if moved.is_empty() {
            return;
        }
        self.names = Arc::new(self.rows.keys().cloned().collect());
        if moved.len() <= MOST_COLLISION_CHECKS {
            let concerned = self.rows.keys().filter(|name| moved.iter().any(|moved| collide(name, moved)));
            changes.changed.extend(concerned.cloned());
        } else {
            changes.changed.extend(self.rows.keys().cloned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gco_store::wire::Value;
    use std::time::Duration;

    fn item(name: &str, updated_at: &str) -> Item {
        [
            ("endpoint_name".to_owned(), Value::from(name)),
            ("updated_at".to_owned(), Value::from(updated_at)),
            ("lifecycle_id".to_owned(), Value::from(format!("life-{name}"))),
        ]
        .into()
    }

    fn row(name: &str, updated_at: &str) -> EndpointRow {
        EndpointRow::parse(item(name, updated_at)).unwrap()
    }

    fn at(seconds: u64) -> BootTime {
        BootTime::since_boot(Duration::from_secs(seconds))
    }

    fn version(rows: &Rows, name: &str) -> Option<String> {
        rows.get(name)?.row.updated_at.clone()
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_complete_read_tells_what_changed_and_what_is_gone() {
        let mut rows = Rows::default();
        let changes = rows.take_all(vec![item("a", "1"), item("b", "1")], at(1));
        assert_eq!(changes, Changes { changed: set(&["a", "b"]), gone: set(&[]) });
        let changes = rows.take_all(vec![item("a", "1"), item("b", "2")], at(2));
        assert_eq!(changes, Changes { changed: set(&["b"]), gone: set(&[]) });
        let changes = rows.take_all(vec![item("b", "2")], at(3));
        assert_eq!(changes, Changes { changed: set(&[]), gone: set(&["a"]) });
        assert_eq!(*rows.lifecycles(), set(&["life-b"]));
        assert_eq!(rows.last_complete_read(), Some(at(3)));
        assert_eq!(rows.take_all(vec![item("b", "2")], at(4)), Changes::default());
    }

    #[test]
    fn a_read_that_began_before_our_write_does_not_undo_it() {
        let mut rows = Rows::default();
        rows.take_all(vec![item("a", "1")], at(1));
        // The read begins at 2, our write is acknowledged at 3, the read ends at 4 with the old row.
        rows.take("a", Some(row("a", "2")), at(3));
        assert_eq!(rows.take_all(vec![item("a", "1")], at(2)), Changes::default());
        assert_eq!(version(&rows, "a").as_deref(), Some("2"));
        // And one that does not see the row at all does not remove it.
        assert_eq!(rows.take_all(vec![], at(2)), Changes::default());
        assert_eq!(rows.take_all(vec![item("a", "3")], at(4)).changed, set(&["a"]));
    }

    #[test]
    fn a_purged_row_does_not_come_back_from_an_older_read() {
        let mut rows = Rows::default();
        rows.take_all(vec![item("a", "1")], at(1));
        assert_eq!(rows.take("a", None, at(3)).gone, set(&["a"]));
        assert_eq!(rows.take_all(vec![item("a", "1")], at(2)), Changes::default());
        assert_eq!(version(&rows, "a"), None);
        // Created anew since.
        assert_eq!(rows.take_all(vec![item("a", "9")], at(4)).changed, set(&["a"]));
    }

    #[test]
    fn one_unreadable_item_stops_no_other() {
        let mut rows = Rows::default();
        let mut nameless = item("x", "1");
        nameless.remove("endpoint_name");
        let changes = rows.take_all(vec![nameless, item("a", "1")], at(1));
        assert_eq!(changes.changed, set(&["a"]));
        assert_eq!(rows.unreadable().len(), 1);
    }

    #[test]
    fn a_name_that_comes_or_goes_concerns_those_it_collides_with() {
        let mut rows = Rows::default();
        rows.take_all(vec![item("a", "1"), item("b", "1")], at(1));
        let changes = rows.take_all(vec![item("a", "1"), item("b", "1"), item("a-canary", "1")], at(2));
        assert_eq!(changes.changed, set(&["a", "a-canary"]));
        let changes = rows.take_all(vec![item("a", "1"), item("b", "1")], at(3));
        assert_eq!(changes, Changes { changed: set(&["a"]), gone: set(&["a-canary"]) });
    }
}
