//! The predicates of the control plane that came before, and of the shared router, on everything that a monitor of ours
//! writes: objects as the API server's watch shows every version of them, rows as every version of them stands in the table.
//!
//! A fleet switches over region by region, and back. So at any moment the other control plane must find in our objects and
//! rows what it looks for (the wire contract, C.5, C.7 to C.9, C.13, E.2, I.6); a violation fails the test whose region it
//! is, whatever the test is about.

mod objects;
mod rows;

use std::sync::{Arc, Mutex, PoisonError};

use gco_store::wire::Item;
use kube::Client;

use super::table::TestTable;

/// What was looked at and what was found.
#[derive(Debug, Default)]
struct Found {
    versions: u64,
    violations: Vec<String>,
}

/// A running check of one region; ends when dropped.
#[derive(Debug)]
pub struct Checker {
    found: Arc<Mutex<Found>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    /// The check of rows, to finish it at the end.
    rows: rows::RowWatch,
}

/// Violations that are kept; the first few say it all.
const MOST_KEPT: usize = 20;

/// Where the checks put what they find.
#[derive(Clone, Debug)]
struct Book(Arc<Mutex<Found>>);

impl Book {
    /// Notes one version that was looked at, and what is wrong with it.
    fn note(&self, what: &str, violations: Vec<String>) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.versions += 1;
        for violation in violations {
            if found.violations.len() < MOST_KEPT {
                found.violations.push(format!("{what}: {violation}"));
            }
        }
    }
}

impl Checker {
    /// Starts to look at a namespace's objects and a table's rows.
    ///
    /// # Errors
    /// When the table cannot be watched.
    pub fn start(client: &Client, namespace: &str, region: &str, table: &TestTable) -> anyhow::Result<Self> {
        let found = Arc::new(Mutex::new(Found::default()));
        let book = Book(found.clone());
        let mut tasks = objects::watch(client, namespace, &book);
        let rows = rows::RowWatch::start(table, region, book)?;
        tasks.push(rows.spawn());
        Ok(Self { found, tasks, rows })
    }

    /// Versions of objects and rows that were looked at so far.
    #[must_use]
    pub fn versions(&self) -> u64 {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).versions
    }

    /// What was found so far.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.rows.catch_up();
        self.found.lock().unwrap_or_else(PoisonError::into_inner).violations.clone()
    }

    /// Tells of a row that the test itself writes: it may break any rule.
    pub(super) fn expect_write(&self, item: &Item) {
        self.rows.expect(item);
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        if std::thread::panicking() {
            return;
        }
        let violations = self.violations();
        assert!(
            violations.is_empty(),
            "what the monitor wrote breaks {} predicates of the control plane that came before:\n{}",
            violations.len(),
            violations.join("\n")
        );
    }
}
