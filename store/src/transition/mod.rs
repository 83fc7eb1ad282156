//! Every operation on a row as a value: the condition and the changes (contract B).
//!
//! Built from the row as read, the time and fresh tokens; executed by a backend. Nothing here does I/O.

mod build;
mod control;
mod evaluate;
mod previous;

use std::fmt;

use crate::problem::FieldProblem;
use crate::wire::{Item, Value};

pub(crate) use build::deleted_message;
pub use build::{
    back_fill, create, promote, purge, scale, set_desired_state, start, update_spec, update_target_regions,
    write_region_status,
};
pub use control::{LONGEST_OPERATOR_CHARACTERS, LONGEST_REASON_CHARACTERS, declare_absent, refresh, set_paused};
pub use previous::{PREVIOUS_SPEC, undone};

/// The only namespace that endpoints are served in (D-51): the monitors' roles exist nowhere else.
pub const NAMESPACE: &str = "gco-inference";

/// A place in a row: attribute, then map keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<String>);

impl Path {
    /// The place under these keys, the attribute first.
    pub fn of<const N: usize>(keys: [&str; N]) -> Self {
        Self(keys.map(str::to_owned).to_vec())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.join("."))
    }
}

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
    /// The place holds this (type and value; numbers and sets as DynamoDB compares them).
    Equals(Path, Value),
    /// The place holds a string whose bytes sort before these.
    Before(Path, String),
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
    /// Ours: `control.refresh`.
    Refresh,
    /// Ours: `control.absent_regions` (D-21).
    DeclareAbsent,
}

impl Operation {
    /// The word for metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::BackFill => "back_fill",
            Self::SetDesiredState => "set_desired_state",
            Self::Promote => "promote",
            Self::Start => "start",
            Self::UpdateSpec => "update_spec",
            Self::Scale => "scale",
            Self::WriteRegionStatus => "write_region_status",
            Self::UpdateTargetRegions => "update_target_regions",
            Self::Purge => "purge",
            Self::SetPaused => "set_paused",
            Self::Refresh => "refresh",
            Self::DeclareAbsent => "declare_absent",
        }
    }
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

/// An operator's word that a region is gone for good (D-21): signed, and with a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Who says so; at most 256 characters.
    pub by: String,
    /// Why; at most 300 characters.
    pub reason: String,
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
