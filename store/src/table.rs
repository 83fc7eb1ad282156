//! The trait that the backends implement.

use std::time::Duration;

use crate::transition::Transition;
use crate::wire::Item;

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// May lag behind acknowledged writes; half the cost.
    Eventual,
    /// Sees every acknowledged write.
    Strong,
}

/// What became of a transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was applied, exactly once; the row as it is now (`None` after a purge).
    Applied(Option<Item>),
    /// Its condition did not hold, nothing changed; the row as it was, when the server told (`None`: absent row).
    Refused(Option<Item>),
}

/// What kind of failure it was: decides retry, metric and words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCategory {
    /// The request can never work: validation, item over 400 KB.
    Invalid,
    /// Credentials or policy.
    Forbidden,
    /// Too fast; certainly not applied.
    Throttled,
    /// Not reachable, 5xx, or time-out; of a read, or of a write that certainly was not applied.
    Unavailable,
    /// A write of which it cannot be known whether it was applied, even after looking again.
    Unknown,
    /// The table does not exist, or is one that must not be used.
    Table,
}

/// A failed call.
#[derive(Debug, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct TableError {
    /// Kind of failure.
    pub category: ErrorCategory,
    /// Operation, in DynamoDB's words (`Scan`, `UpdateItem` …).
    pub operation: &'static str,
    /// Bounded, without credentials.
    pub message: String,
}

/// A complete read of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FullRead {
    /// All rows, unparsed.
    pub items: Vec<Item>,
    /// Pages that it took.
    pub pages: u32,
    /// Read units that the server counted, when it told.
    pub consumed_read_units: Option<f64>,
}

/// What a region says of itself in the second table, `<name>-regions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionHeartbeat {
    /// Region name.
    pub region: String,
    /// When this was written, ISO-8601.
    pub last_heartbeat: String,
    /// Version of the monitor.
    pub version: String,
    /// Holder of the region's Lease.
    pub leader: String,
    /// Age of the last complete read of the first table, in whole seconds.
    pub last_complete_read_age_seconds: u64,
}

/// The region's item as it is after a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionItem {
    /// The heartbeat as stored.
    pub heartbeat: Option<RegionHeartbeat>,
    /// `freeze`: an operator asked this region to change nothing.
    pub frozen: bool,
}

/// What the start-up check learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDescription {
    /// Replica regions, empty for a table of one region.
    pub replicas: Vec<String>,
    /// `EVENTUAL` or `STRONG` when the server tells.
    pub multi_region_consistency: Option<String>,
}

/// The two tables. All calls are bounded in time by the backend's settings.
#[async_trait::async_trait]
pub trait Table: Send + Sync + std::fmt::Debug {
    /// One row.
    async fn get(&self, name: &str, consistency: Consistency) -> Result<Option<Item>, TableError>;
    /// Every row, all pages (D-17). Fails rather than returning a part.
    async fn read_all(&self, consistency: Consistency) -> Result<FullRead, TableError>;
    /// Executes one transition; never twice. A lost answer is resolved by looking again (strongly).
    async fn execute(&self, transition: &Transition) -> Result<Outcome, TableError>;
    /// Start-up check: exists, right key, and not an eventually consistent global table ([`ErrorCategory::Table`]).
    async fn check(&self) -> Result<TableDescription, TableError>;
    /// Writes this region's heartbeat into the second table, leaving `freeze` alone.
    async fn write_heartbeat(&self, heartbeat: &RegionHeartbeat, time_out: Duration) -> Result<RegionItem, TableError>;
    /// The region's item of the second table, strongly read.
    async fn read_region(&self, region: &str) -> Result<Option<RegionItem>, TableError>;
    /// Creates both tables if absent (local use and suites; production tables come from infrastructure).
    async fn create_tables(&self) -> Result<(), TableError>;
}
