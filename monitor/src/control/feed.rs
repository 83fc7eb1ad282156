//! The task that reads the whole table, again and again, and marks what changed.

use std::sync::Arc;
use std::time::Duration;

use gco_store::table::{Consistency, ErrorCategory, TableError};
use tokio_util::sync::CancellationToken;

use super::shared::Shared;

/// Longest wait between two tries of the start-up check.
const LONGEST_CHECK_WAIT: Duration = Duration::from_secs(10);

/// Why the table can never be used.
#[derive(Debug, thiserror::Error)]
#[error("the table cannot be used: {0}")]
pub struct UnusableTable(pub TableError);

/// Asks the table whether it is one that may be used, until it answers.
///
/// # Errors
/// When it is not: it does not exist, has another key, or is an eventually consistent global table, in which two regions
/// can both win the same condition.
pub async fn check(shared: &Shared, stop: &CancellationToken) -> Result<(), UnusableTable> {
    let mut wait = Duration::from_millis(200);
    loop {
        match shared.table.check().await {
            Ok(description) => {
                tracing::info!(
                    replicas = description.replicas.join(","),
                    consistency = description.multi_region_consistency.as_deref().unwrap_or("one region"),
                    "the table may be used"
                );
                shared.set_table_checked();
                return Ok(());
            }
            Err(error) if error.category == ErrorCategory::Table => return Err(UnusableTable(error)),
            Err(error) => tracing::warn!(error = %error, "the table did not answer its check yet"),
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(wait) => {}
        }
        wait = (wait * 2).min(LONGEST_CHECK_WAIT);
    }
}

/// Reads the table every interval until `stop`.
pub async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let mut said = std::collections::BTreeSet::new();
    let mut failing = false;
    loop {
        let began = shared.now();
        // Not interrupted: an abandoned read would only be begun again.
        match shared.table.read_all(Consistency::Strong).await {
            Ok(read) => {
                let was_away = shared.is_table_away();
                let (changes, unreadable) = {
                    let mut rows = shared.rows();
                    let changes = rows.take_all(read.items, began);
                    shared.telemetry.rows.set(i64::try_from(rows.names().len()).unwrap_or(i64::MAX));
                    (changes, rows.unreadable().clone())
                };
                shared.telemetry.rows_unreadable.set(i64::try_from(unreadable.len()).unwrap_or(i64::MAX));
                for problem in unreadable {
                    if !said.contains(&problem) {
                        tracing::error!(problem, "an item of the table is no endpoint");
                        said.insert(problem);
                    }
                }
                shared.note_changes(changes);
                shared.telemetry.table_away.set(0);
                if failing || was_away {
                    tracing::info!("the table can be read");
                    // What was put off while it could not be.
                    shared.mark_everything();
                }
                failing = false;
            }
            Err(error) => {
                shared.telemetry.error();
                shared.telemetry.table_away.set(i64::from(shared.is_table_away()));
                if !failing {
                    tracing::error!(error = %error, "the table cannot be read");
                }
                failing = true;
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(shared.config.reconcile_interval) => {}
        }
    }
}
