//! The trait that the backends implement.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::orphans::OrphanReport;
use crate::problem::bounded;
use crate::transition::Transition;
use crate::wire::{Item, Value};

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

impl ErrorCategory {
    /// Whether the same call may succeed later without anybody changing anything. Not for [`ErrorCategory::Unknown`]:
    /// there the row must be looked at first.
    #[must_use]
    pub fn retryable(self) -> bool {
        matches!(self, Self::Throttled | Self::Unavailable)
    }

    /// The word for metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Forbidden => "forbidden",
            Self::Throttled => "throttled",
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
            Self::Table => "table",
        }
    }
}

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct TableError {
    /// Kind of failure.
    pub category: ErrorCategory,
    /// Operation, in DynamoDB's words (`Scan`, `UpdateItem` …).
    pub operation: &'static str,
    /// Bounded, without credentials.
    pub message: String,
}

impl TableError {
    /// A failure of `operation`; the message is cut at 300 characters.
    pub fn new(category: ErrorCategory, operation: &'static str, message: impl AsRef<str>) -> Self {
        Self { category, operation, message: bounded(message.as_ref(), 300) }
    }
}

/// One request to the table's server and how it ended, for metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedCall {
    /// Operation, in DynamoDB's words.
    pub operation: &'static str,
    /// How it ended.
    pub outcome: CallOutcome,
    /// Read or write units that the server counted, when it told.
    pub consumed_units: Option<f64>,
    /// From sending to the answer, on the clock that the backend was given.
    pub duration: Duration,
}

/// How one request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallOutcome {
    /// Done.
    Success,
    /// A conditional write whose condition did not hold.
    Refused,
    /// Failed.
    Failed(ErrorCategory),
}

/// Told of every request; must be quick.
pub trait Observer: Send + Sync + std::fmt::Debug {
    /// One request ended.
    fn observe(&self, call: &ObservedCall);
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
    /// Objects that no row owns; `None`: not known (now, or to this version of the monitor).
    pub orphans: Option<OrphanReport>,
    /// In which state the leader found the rules of its cluster's admission fence, such as `order effective, lease
    /// ineffective`; empty when it does not say.
    pub admission_fence: String,
}

impl RegionHeartbeat {
    /// Key attribute of the second table.
    pub const KEY: &'static str = "region";

    /// The heartbeat as attributes, without the key.
    #[must_use]
    pub fn to_attributes(&self) -> Item {
        let age = i64::try_from(self.last_complete_read_age_seconds).unwrap_or(i64::MAX);
        let orphans = self.orphans.as_ref().map(|report| (OrphanReport::ATTRIBUTE.to_owned(), report.to_value()));
        let mut attributes = Item::from([
            ("last_heartbeat".to_owned(), Value::from(self.last_heartbeat.as_str())),
            ("version".to_owned(), Value::from(self.version.as_str())),
            ("leader".to_owned(), Value::from(self.leader.as_str())),
            ("last_complete_read_age_seconds".to_owned(), Value::from(age)),
            ("admission_fence".to_owned(), Value::from(self.admission_fence.as_str())),
        ]);
        // What was known before stays, with its time.
        attributes.extend(orphans);
        attributes
    }
}

impl RegionItem {
    /// Attribute that an operator sets to make a region change nothing.
    pub const FREEZE: &'static str = "freeze";
    /// Attribute that an operator sets to say that failed restarts up to that time were looked at.
    pub const RESTARTS_CLEARED_AT: &'static str = "restarts_cleared_at";

    /// Reads an item of the second table. A heartbeat with a missing or wrong attribute reads as none.
    ///
    /// Anything but an absent `freeze` or `false` freezes: a person who wrote `"true"` as a string meant to stop changes.
    #[must_use]
    pub fn parse(item: &Item) -> Self {
        let text = |name: &str| item.get(name).and_then(Value::as_str).map(str::to_owned);
        let heartbeat = || {
            Some(RegionHeartbeat {
                region: text(RegionHeartbeat::KEY)?,
                last_heartbeat: text("last_heartbeat")?,
                version: text("version")?,
                leader: text("leader")?,
                last_complete_read_age_seconds: item
                    .get("last_complete_read_age_seconds")
                    .and_then(Value::as_integer)
                    .and_then(|age| u64::try_from(age).ok())?,
                orphans: item.get(OrphanReport::ATTRIBUTE).and_then(OrphanReport::parse),
                // Unknown to earlier versions.
                admission_fence: text("admission_fence").unwrap_or_default(),
            })
        };
        let frozen = !matches!(item.get(Self::FREEZE), None | Some(Value::Null | Value::Bool(false)));
        Self { heartbeat: heartbeat(), frozen, restarts_cleared_at: text(Self::RESTARTS_CLEARED_AT) }
    }
}

/// The region's item as it is after a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionItem {
    /// The heartbeat as stored.
    pub heartbeat: Option<RegionHeartbeat>,
    /// `freeze`: an operator asked this region to change nothing.
    pub frozen: bool,
    /// `restarts_cleared_at`: failed restarts that began before this time (ISO-8601) hold up no others any more.
    pub restarts_cleared_at: Option<String>,
}

/// What the start-up check learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDescription {
    /// Replica regions, empty for a table of one region.
    pub replicas: Vec<String>,
    /// `EVENTUAL` or `STRONG` when the server tells.
    pub multi_region_consistency: Option<String>,
}

/// Name of the second table for a first table called `table_name`.
#[must_use]
pub fn regions_table_name(table_name: &str) -> String {
    format!("{table_name}-regions")
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
    /// Asks a region to change nothing (`freeze`), or lifts that; makes the region's item when there is none.
    async fn set_frozen(&self, region: &str, frozen: bool) -> Result<RegionItem, TableError>;
    /// Notes that failed restarts of a region that began before this time (ISO-8601) were looked at; makes the region's
    /// item when there is none.
    async fn clear_restarts(&self, region: &str, at: &str) -> Result<RegionItem, TableError>;
    /// The region's item of the second table, strongly read.
    async fn read_region(&self, region: &str) -> Result<Option<RegionItem>, TableError>;
    /// Every item of the second table by region, all pages, strongly read. Fails rather than returning a part.
    async fn read_regions(&self) -> Result<BTreeMap<String, RegionItem>, TableError>;
    /// Creates both tables if absent (local use and suites; production tables come from infrastructure).
    async fn create_tables(&self) -> Result<(), TableError>;
}
