//! The task that learns from the table, again and again, which rows changed: by reading it whole, or by its change index.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use gco_store::index::PartState;
use gco_store::table::{Consistency, ErrorCategory, TableError};
use tokio_util::sync::CancellationToken;

use super::changes::{ChangeFeed, FeedTimes, Mode, Step};
use super::shared::Shared;

/// Longest wait between two tries of the start-up check.
const LONGEST_CHECK_WAIT: Duration = Duration::from_secs(10);

/// Rows that are read at the same time for the change index.
const READS_AT_ONCE: usize = 16;

/// Why the table can never be used.
#[derive(Debug, thiserror::Error)]
#[error("the table cannot be used: {0}")]
pub struct UnusableTable(pub TableError);

/// Asks the table whether it is one that may be used, until it answers. Returns what it says of its change index.
///
/// # Errors
/// When it is not: it does not exist, has another key, or is an eventually consistent global table, in which two regions
/// can both win the same condition.
pub async fn check(shared: &Shared, stop: &CancellationToken) -> Result<PartState, UnusableTable> {
    let mut wait = Duration::from_millis(200);
    loop {
        match shared.table.check().await {
            Ok(description) => {
                tracing::info!(
                    replicas = description.replicas.join(","),
                    consistency = description.multi_region_consistency.as_deref().unwrap_or("one region"),
                    change_index = ?description.change_index,
                    use_change_index = shared.config.use_change_index,
                    "the table may be used"
                );
                shared.set_table_checked();
                return Ok(description.change_index);
            }
            Err(error) if error.category == ErrorCategory::Table => return Err(UnusableTable(error)),
            Err(error) => tracing::warn!(error = %error, "the table did not answer its check yet"),
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(PartState::Missing),
            () = tokio::time::sleep(wait) => {}
        }
        wait = (wait * 2).min(LONGEST_CHECK_WAIT);
    }
}

/// Learns of changes until `stop`; `index` is what the check told of the change index.
pub async fn run(shared: Arc<Shared>, index: PartState, stop: CancellationToken) {
    let config = &shared.config;
    let times = FeedTimes {
        reconcile_interval: config.reconcile_interval,
        query_interval: config.change_query_interval,
        full_read_interval: config.indexed_read_interval,
    };
    let index = config.use_change_index.then_some(index);
    let mut feed = Feed {
        changes: ChangeFeed::new(times, index.as_ref(), shared.now()),
        shared: shared.clone(),
        said: BTreeSet::new(),
        failing: false,
        reads_failing: false,
    };
    loop {
        shared.telemetry.table_feed(feed.changes.mode());
        // None of these is interrupted: an abandoned read would only be begun again.
        match feed.changes.next(shared.now(), shared.clock.wall()) {
            Step::FullRead => feed.read_all().await,
            Step::Query { since } => feed.query(&since).await,
            Step::Look => feed.look().await,
            Step::Wait(wait) => tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            },
        }
        if stop.is_cancelled() {
            return;
        }
    }
}

struct Feed {
    shared: Arc<Shared>,
    changes: ChangeFeed,
    /// Unreadable items that were logged.
    said: BTreeSet<String>,
    /// The last full read failed.
    failing: bool,
    /// The last read of a row that the index named failed.
    reads_failing: bool,
}

impl Feed {
    async fn read_all(&mut self) {
        let shared = self.shared.clone();
        let began = shared.now();
        let read = shared.table.read_all(Consistency::Strong).await;
        match read {
            Ok(read) => {
                let was_away = shared.is_table_away();
                let (changes, unreadable, count) = {
                    let mut rows = shared.rows();
                    let changes = rows.take_all(read.items, began);
                    (changes, rows.unreadable().clone(), rows.names().len())
                };
                shared.telemetry.rows.set(i64::try_from(count).unwrap_or(i64::MAX));
                shared.telemetry.rows_unreadable.set(i64::try_from(unreadable.len()).unwrap_or(i64::MAX));
                for problem in unreadable {
                    if !self.said.contains(&problem) {
                        tracing::error!(problem, "an item of the table is no endpoint");
                        self.said.insert(problem);
                    }
                }
                self.changes.full_read_ended(began, changes.changed.len() + changes.gone.len(), count);
                shared.note_changes(changes);
                let back = self.failing || was_away;
                if back {
                    tracing::info!("the table can be read");
                }
                self.failing = false;
                self.heard(back);
            }
            Err(error) => {
                self.changes.full_read_ended(began, 0, 0);
                shared.telemetry.error();
                shared.telemetry.table_away.set(i64::from(shared.is_table_away()));
                if !self.failing {
                    tracing::error!(error = %error, "the table cannot be read");
                }
                self.failing = true;
            }
        }
    }

    async fn query(&mut self, since: &str) {
        let shared = self.shared.clone();
        let began = shared.now();
        let entries = match shared.table.changed_since(since).await {
            Ok(read) => read.entries,
            Err(error) => {
                tracing::warn!(error = %error, "the change index did not answer: the table is read whole meanwhile");
                shared.telemetry.error();
                self.changes.query_failed(shared.now(), error.category);
                return;
            }
        };
        let was_away = shared.is_table_away();
        shared.note_contact(began);
        let wanted = self.changes.to_read(entries, &shared.rows());
        let reads = wanted.into_iter().map(|entry| {
            let shared = &shared;
            async move { (shared.refresh_row(&entry.name).await, entry) }
        });
        let mut reads = futures::stream::iter(reads).buffer_unordered(READS_AT_ONCE);
        let mut failed = false;
        while let Some((read, entry)) = reads.next().await {
            match read {
                Ok(held) => {
                    let found = held.and_then(|held| held.row.updated_at.clone());
                    self.changes.row_read(entry, found.as_deref());
                }
                // Not seen, so it is read again with the next query.
                Err(error) => {
                    failed = true;
                    if !self.reads_failing {
                        tracing::error!(error = %error, endpoint = %entry.name, "a changed row cannot be read");
                        shared.telemetry.error();
                    }
                }
            }
        }
        self.reads_failing = failed;
        let rows = shared.rows().names().len();
        shared.telemetry.rows.set(i64::try_from(rows).unwrap_or(i64::MAX));
        if self.changes.query_ended(shared.now(), rows) {
            tracing::info!(
                rows,
                "more than a fifth of the rows change per interval: the table is read whole meanwhile"
            );
        }
        self.heard(was_away);
    }

    async fn look(&mut self) {
        let state = self.shared.table.check().await.map(|description| description.change_index);
        self.changes.looked(self.shared.now(), state.as_ref().ok());
        if self.changes.mode() == Mode::Index {
            tracing::info!("the table has a change index: it is used from now on");
        }
    }

    /// The table answered; `back`: after it had not.
    fn heard(&self, back: bool) {
        self.shared.telemetry.table_away.set(0);
        if back {
            // What was put off while it could not be.
            self.shared.mark_everything();
        }
    }
}
