//! What a row said over time: looked at again and again, every change kept.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gco_store::row::EndpointRow;
use gco_store::table::{Consistency, Table};

use super::Region;

/// What a row said at one look, for one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// `desired_state`; `(absent)` when there was no row.
    pub desired_state: String,
    /// The region's `state`; empty when it had none.
    pub state: String,
    /// The region's `degraded`.
    pub degraded: bool,
    /// The region's `error`.
    pub error: Option<String>,
}

impl Look {
    fn at(row: Option<&EndpointRow>, region: &str) -> Self {
        let entry = row.and_then(|row| row.region_status.get(region));
        Self {
            desired_state: row.map_or("(absent)", |row| row.desired_state.as_str()).to_owned(),
            state: entry.map_or("", |entry| entry.state.as_str()).to_owned(),
            degraded: entry.is_some_and(|entry| entry.degraded),
            error: entry.and_then(|entry| entry.error.clone()),
        }
    }

    /// Whether a router sends requests to this region: the predicate of the shared inference proxy.
    #[must_use]
    pub fn is_routable(&self) -> bool {
        self.desired_state == "running" && self.state == "running"
    }
}

/// A running observation; ends when dropped.
#[derive(Debug)]
pub struct History {
    looks: Arc<Mutex<Vec<Look>>>,
    task: tokio::task::JoinHandle<()>,
}

impl History {
    /// Starts to look at a row every `pause`.
    #[must_use]
    pub fn start(table: Arc<dyn Table>, name: &str, region: &str, pause: Duration) -> Self {
        let looks = Arc::new(Mutex::new(Vec::new()));
        let (name, region, seen) = (name.to_owned(), region.to_owned(), looks.clone());
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(pause);
            loop {
                ticks.tick().await;
                let Ok(item) = table.get(&name, Consistency::Strong).await else { continue };
                let row = item.and_then(|item| EndpointRow::parse(item).ok());
                let look = Look::at(row.as_ref(), &region);
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                if seen.last() != Some(&look) {
                    seen.push(look);
                }
            }
        });
        Self { looks, task }
    }

    /// What was seen so far, without repetitions in a row.
    #[must_use]
    pub fn looks(&self) -> Vec<Look> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Everything that was seen at which a router would have refused.
    #[must_use]
    pub fn unroutable(&self) -> Vec<Look> {
        self.looks().into_iter().filter(|look| !look.is_routable()).collect()
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Region {
    /// Starts to look at a row every 20 ms, as it says for this region.
    #[must_use]
    pub fn history(&self, name: &str) -> History {
        History::start(self.table().store().clone(), name, self.name(), Duration::from_millis(20))
    }
}
