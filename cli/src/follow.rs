//! Following one row: reads it again and again, and tells of every change until a goal is reached.

use std::collections::BTreeMap;
use std::future;
use std::time::Duration;

use gco_runtime::clock::Clock;
use gco_runtime::environment::Environment;
use gco_store::row::EndpointRow;
use gco_store::table::{Consistency, RegionItem, TableError};
use tokio::signal::unix::{SignalKind, signal};

use crate::connect::Connection;
use crate::describe::{self, RegionItems};
use crate::failure::Failure;
use crate::goal::{Goal, Progress, progress};
use crate::output::Output;
use crate::regions;

/// Environment variable with the seconds between two reads.
pub const INTERVAL_VARIABLE: &str = "GCO_WATCH_INTERVAL_SECONDS";

const DEFAULT_INTERVAL: Duration = Duration::from_secs(2);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(20);
const LONGEST_INTERVAL: Duration = Duration::from_secs(300);

/// What is followed, and how far.
#[derive(Clone, Debug)]
pub struct Following {
    /// Name of the endpoint.
    pub name: String,
    /// The life of that name, once known.
    pub lifecycle_id: Option<String>,
    /// Ends once this is reached; `None`: never by itself.
    pub goal: Option<Goal>,
    /// Ends with a failure after this long; `None`: never.
    pub bound: Option<Duration>,
    /// Between two reads.
    pub interval: Duration,
    /// Whether the regions' heartbeats are read too.
    pub with_heartbeats: bool,
}

/// What was read of an endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The row; `None` when it is gone.
    pub row: Option<EndpointRow>,
    /// What its regions' monitors say of themselves.
    pub items: RegionItems,
    /// Warnings about these monitors, by region.
    pub warnings: BTreeMap<String, String>,
}

/// The time between two reads that the environment asks for.
///
/// # Errors
/// When it is not a number of seconds in range.
pub fn interval(environment: &Environment) -> Result<Duration, Failure> {
    let mut reader = environment.reader();
    let interval = reader.seconds(INTERVAL_VARIABLE, DEFAULT_INTERVAL, SHORTEST_INTERVAL..=LONGEST_INTERVAL);
    match reader.finish() {
        Ok(()) => Ok(interval),
        Err(error) => Err(Failure::usage(INTERVAL_VARIABLE, error.to_string())),
    }
}

/// Reads until the goal is reached, the bound has passed, or Ctrl-C; calls `tell` for the first read and every change.
///
/// # Errors
/// The goal cannot be reached any more, the time ran out, Ctrl-C with a goal, or the table cannot be read.
pub async fn follow<'a, 'console>(
    connection: &Connection,
    mut following: Following,
    clock: &dyn Clock,
    output: &mut Output<'a, 'console>,
    mut tell: impl FnMut(&Seen, &mut Output<'a, 'console>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let bound = following.bound;
    let time_is_up = async {
        match bound {
            Some(bound) => tokio::time::sleep(bound).await,
            None => future::pending().await,
        }
    };
    tokio::pin!(time_is_up);
    // From here on Ctrl-C is ours to answer.
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut last: Option<Seen> = None;
    let mut away = false;
    loop {
        tokio::select! {
            read = read(connection, &following, clock, last.as_ref()) => match read {
                Ok(seen) => {
                    away = false;
                    if last.as_ref().is_none_or(|last| differs(last, &seen)) {
                        tell(&seen, output)?;
                    }
                    if following.lifecycle_id.is_none() {
                        following.lifecycle_id = seen.row.as_ref().and_then(|row| row.lifecycle_id.clone());
                    }
                    if let Some(ended) = ended(&following, &seen) {
                        return ended;
                    }
                    last = Some(seen);
                }
                Err(error) if !error.category.retryable() => return Err(connection.failed(&error)),
                Err(error) => {
                    if !away {
                        output.warning(&format!("cannot read {} ({error}); trying again", connection.described))?;
                    }
                    away = true;
                }
            },
            () = &mut time_is_up => return Err(out_of_time(&following, last.as_ref())),
            _ = interrupts.recv() => return stopped_by_hand(&following),
        }
        tokio::select! {
            () = tokio::time::sleep(following.interval) => {}
            () = &mut time_is_up => return Err(out_of_time(&following, last.as_ref())),
            _ = interrupts.recv() => return stopped_by_hand(&following),
        }
    }
}

async fn read(
    connection: &Connection,
    following: &Following,
    clock: &dyn Clock,
    last: Option<&Seen>,
) -> Result<Seen, TableError> {
    let item = connection.table.get(&following.name, Consistency::Strong).await?;
    let row = item.and_then(|item| EndpointRow::parse(item).ok());
    let items = match &row {
        // Who may not read the second table still follows the row; a lost read is no change.
        Some(row) if following.with_heartbeats => regions::items_of(&connection.table, &describe::regions_of(row))
            .await
            .unwrap_or_else(|_| last.map(|last| last.items.clone()).unwrap_or_default()),
        _ => RegionItems::new(),
    };
    let warnings = row.as_ref().map(|row| describe::monitor_warnings(row, &items, clock.wall())).unwrap_or_default();
    Ok(Seen { row, items, warnings })
}

/// Heartbeats come every minute and are no change by themselves; a freeze is, a leader, a version, and that they stop.
fn differs(one: &Seen, other: &Seen) -> bool {
    let essence = |seen: &Seen| {
        let monitor = |item: &RegionItem| {
            let heartbeat = item.heartbeat.as_ref();
            (item.frozen, heartbeat.map(|heartbeat| (heartbeat.leader.clone(), heartbeat.version.clone())))
        };
        let monitors: Vec<_> = seen.items.iter().map(|(region, item)| (region.clone(), monitor(item))).collect();
        // Which regions, not the texts: ages grow all the time.
        (monitors, seen.warnings.keys().cloned().collect::<Vec<_>>())
    };
    one.row != other.row || essence(one) != essence(other)
}

fn ended(following: &Following, seen: &Seen) -> Option<Result<(), Failure>> {
    let Some(goal) = following.goal else {
        // Nothing more can happen to a row that is gone.
        return seen.row.is_none().then_some(Ok(()));
    };
    match progress(goal, seen.row.as_ref(), following.lifecycle_id.as_deref()) {
        Progress::Reached => Some(Ok(())),
        Progress::Waiting(_) => None,
        Progress::Hopeless(reason) => Some(Err(Failure::refused(format!(
            "Endpoint '{}' will not become {}: {reason}",
            following.name,
            goal.word()
        )))),
    }
}

fn out_of_time(following: &Following, last: Option<&Seen>) -> Failure {
    let word = following.goal.map_or("different", Goal::word);
    let seconds = following.bound.unwrap_or_default().as_secs();
    let missing = match (following.goal, last) {
        (Some(goal), Some(seen)) => match progress(goal, seen.row.as_ref(), following.lifecycle_id.as_deref()) {
            Progress::Waiting(lines) => lines.join("; "),
            _ => String::new(),
        },
        _ => "it could not be read".to_owned(),
    };
    Failure::TimedOut(format!("Endpoint '{}' is not {word} after {seconds} s: {missing}", following.name))
}

fn stopped_by_hand(following: &Following) -> Result<(), Failure> {
    match following.goal {
        // Ctrl-C is how a watch without a goal ends.
        None => Ok(()),
        Some(goal) => Err(Failure::Interrupted(format!(
            "interrupted while waiting for endpoint '{}' to be {}; nothing was undone",
            following.name,
            goal.word()
        ))),
    }
}
