//! Every operation on a row as a value: the condition and the changes (contract B).
//!
//! Built from the row as read, the time and fresh tokens; executed by a backend. Nothing here does I/O.

use jiff::Timestamp;

use crate::problem::FieldProblem;
use crate::row::{DesiredState, EndpointRow};
use crate::status::RegionEntry;
use crate::wire::{Item, Value};

/// A place in a row: attribute, then map keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<String>);

/// What must hold for a change to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// All of these.
    All(Vec<Condition>),
    /// At least one of these.
    Any(Vec<Condition>),
    /// Not this.
    Not(Box<Condition>),
    /// The place holds something.
    Exists(Path),
    /// The place holds exactly this (type and value).
    Equals(Path, Value),
}

/// One change of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets the place.
    Set(Path, Value),
    /// Sets the place if it holds nothing.
    SetIfAbsent(Path, Value),
    /// Sets the place, if it holds nothing, to what another place holds; fails when that holds nothing.
    CopyIfAbsent {
        /// Place to fill.
        to: Path,
        /// Place to copy.
        from: Path,
    },
    /// Removes the place.
    Remove(Path),
}

/// The write itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Replaces or makes the whole row.
    Put(Item),
    /// Changes parts of an existing row.
    Update(Vec<Change>),
    /// Removes the row.
    Delete,
}

/// Which operation it is, for metrics, logs and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// B.1
    Create,
    /// B.4
    BackFill,
    /// B.5
    SetDesiredState,
    /// B.5 by a monitor, `deploying` to `running`.
    Promote,
    /// B.6
    Start,
    /// B.7
    UpdateSpec,
    /// B.8
    Scale,
    /// B.9
    WriteRegionStatus,
    /// B.10
    UpdateTargetRegions,
    /// B.11
    Purge,
    /// Ours: `control.paused`.
    SetPaused,
}

/// One conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Which operation.
    pub operation: Operation,
    /// Key of the row.
    pub name: String,
    /// What must hold.
    pub condition: Condition,
    /// What then happens.
    pub write: Write,
    /// `updated_at` of the row that this was built from; `None` when there was no row.
    pub base_updated_at: Option<String>,
    /// `updated_at` that this write leaves; `None` for a purge. Tells after a lost answer whether it was applied.
    pub new_updated_at: Option<String>,
}

/// Why an operation cannot be asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// Fields that are wrong.
    #[error("{}", crate::problem::joined(.0))]
    Invalid(Vec<FieldProblem>),
    /// The row's state forbids it; the contract's words.
    #[error("{0}")]
    State(String),
}

/// Under which authority a region writes its status (contract B.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusAuthority {
    /// Of a live row.
    Live {
        /// The row's lifecycle.
        lifecycle_id: String,
        /// The region's generation.
        region_generation: String,
    },
    /// Of a row that is being deleted.
    Deletion {
        /// The row's lifecycle.
        lifecycle_id: String,
        /// The row's deletion generation.
        deletion_generation: String,
    },
}

/// What [`create`] needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateRequest {
    /// Name of the endpoint.
    pub name: String,
    /// The spec, unchecked.
    pub spec: Value,
    /// Target regions; repeated ones are dropped.
    pub target_regions: Vec<String>,
    /// Kubernetes namespace.
    pub namespace: String,
    /// Free labels.
    pub labels: std::collections::BTreeMap<String, String>,
    /// Who asked.
    pub created_by: Option<String>,
}

/// B.1. `token` is called once for the lifecycle and once per region.
///
/// # Errors
/// Every bad field of the request at once.
pub fn create(
    request: &CreateRequest,
    now: Timestamp,
    token: &mut dyn FnMut() -> String,
) -> Result<Transition, OperationError> {
    let _ = (request, now, token);
    Err(OperationError::Invalid(Vec::new()))
}

/// B.4: `None` when nothing is missing.
///
/// # Errors
/// A row without `updated_at` has no version to build upon (D-50).
pub fn back_fill(
    row: &EndpointRow,
    now: Timestamp,
    token: &mut dyn FnMut() -> String,
) -> Result<Option<Transition>, OperationError> {
    let _ = (row, now, token);
    Ok(None)
}

/// B.5 for `stopped` and `deleted` (and `deploying`); `label` is an ownership predicate.
///
/// # Errors
/// The contract's words for a missing lifecycle, an empty label …
pub fn set_desired_state(
    row: &EndpointRow,
    target: DesiredState,
    label: Option<(&str, &str)>,
    now: Timestamp,
    token: &mut dyn FnMut() -> String,
) -> Result<Transition, OperationError> {
    let _ = (row, target, label, now, token);
    Err(OperationError::Invalid(Vec::new()))
}

/// Promotion `deploying` → `running` by any region: lifecycle, still `deploying`, `updated_at` as read (D-1).
///
/// # Errors
/// A row without lifecycle or version.
pub fn promote(row: &EndpointRow, now: Timestamp) -> Result<Transition, OperationError> {
    let _ = (row, now);
    Err(OperationError::Invalid(Vec::new()))
}

/// B.6.
///
/// # Errors
/// The contract's words for a row that is not stopped.
pub fn start(row: &EndpointRow, now: Timestamp) -> Result<Transition, OperationError> {
    let _ = (row, now);
    Err(OperationError::Invalid(Vec::new()))
}

/// B.7 with I.5: replaces the spec under the row's `updated_at` and keeps the desired state (D-4, D-33).
///
/// # Errors
/// Every bad field at once; or the row's state.
pub fn update_spec(row: &EndpointRow, spec: Value, now: Timestamp) -> Result<Transition, OperationError> {
    let _ = (row, spec, now);
    Err(OperationError::Invalid(Vec::new()))
}

/// B.8.
///
/// # Errors
/// A bad count; or the row's state.
pub fn scale(row: &EndpointRow, replicas: i64, now: Timestamp) -> Result<Transition, OperationError> {
    let _ = (row, replicas, now);
    Err(OperationError::Invalid(Vec::new()))
}

/// B.9 with compare-and-set on the own entry's `last_sync` (or its absence) as read, and D-6: an acknowledgement is
/// terminal only for its own deletion generation.
///
/// # Errors
/// A row without version.
pub fn write_region_status(
    row: &EndpointRow,
    region: &str,
    entry: &RegionEntry,
    authority: &StatusAuthority,
    now: Timestamp,
) -> Result<Transition, OperationError> {
    let _ = (row, region, entry, authority, now);
    Err(OperationError::Invalid(Vec::new()))
}

/// B.10: new targets; a fresh generation for every region that is added or removed.
///
/// # Errors
/// Bad regions; or the row's state.
pub fn update_target_regions(
    row: &EndpointRow,
    target_regions: &[String],
    now: Timestamp,
    token: &mut dyn FnMut() -> String,
) -> Result<Transition, OperationError> {
    let _ = (row, target_regions, now, token);
    Err(OperationError::Invalid(Vec::new()))
}

/// B.11, when the quorum of C.9 stands in the row; `None` otherwise.
#[must_use]
pub fn purge(row: &EndpointRow) -> Option<Transition> {
    let _ = row;
    None
}

/// Ours: sets or clears `control.paused`.
///
/// # Errors
/// The row's state.
pub fn set_paused(row: &EndpointRow, paused: bool, now: Timestamp) -> Result<Transition, OperationError> {
    let _ = (row, paused, now);
    Err(OperationError::Invalid(Vec::new()))
}
