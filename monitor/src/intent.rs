//! What this region is asked for, from one row. Pure.

use std::collections::BTreeSet;

use gco_store::problem::FieldProblem;
use gco_store::row::EndpointRow;
use gco_store::spec::CheckedSpec;

use crate::identity::RowIdentity;

/// What [`decide`] needs besides the row.
#[derive(Clone, Debug)]
pub struct RegionContext<'a> {
    /// This region.
    pub region: &'a str,
    /// The only namespace whose endpoints can be served (`INFERENCE_NAMESPACE`; D-51).
    pub namespace: &'a str,
    /// Names of all other rows, to find colliding ones (D-5).
    pub other_names: &'a BTreeSet<String>,
    /// The region's freeze switch, or the row's pause, holds.
    pub frozen: bool,
}

/// Why an endpoint is cleaned up, which is also the authority of its acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleanUp {
    /// The row is deleted.
    Deleted {
        /// The row's lifecycle.
        lifecycle_id: String,
        /// The row's deletion generation.
        deletion_generation: String,
    },
    /// The row lives on without this region.
    RegionRemoved(RowIdentity),
}

/// What this region is asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Intent {
    /// Serve this spec.
    Serve {
        /// Whose objects.
        identity: RowIdentity,
        /// What to run.
        spec: Box<CheckedSpec>,
        /// Only observe and report.
        paused: bool,
    },
    /// Hold no pods; keep the rest.
    Stop {
        /// Whose objects.
        identity: RowIdentity,
        /// Only observe and report.
        paused: bool,
    },
    /// Remove everything and prove it.
    Remove {
        /// Under which authority.
        clean_up: CleanUp,
        /// Only observe and report.
        paused: bool,
    },
    /// The deleted row is acknowledged by every region: purge it, or wait for others.
    AwaitPurge,
    /// A row older than lifecycle fencing, or a deletion without its tokens: complete it first.
    BackFill,
    /// Cannot be served as it is; nothing of it is touched.
    Reject {
        /// Whose status entry carries the reasons.
        identity: RowIdentity,
        /// CamelCase reason of the condition: `InvalidSpec`, `NotYetSupported`, `NameCollision`, `WrongNamespace`.
        reason: &'static str,
        /// Every bad field.
        problems: Vec<FieldProblem>,
    },
    /// Not this region's business.
    Ignore,
    /// This region's business, but there is no authority to act under: nothing is touched and nothing can be reported.
    /// The shell counts it by its reason and logs the row's name (D-50: there is no unfenced path).
    Unusable {
        /// CamelCase reason: `NoVersion` (no `updated_at`), `MalformedRow` (a fence or membership attribute of a wrong type).
        reason: &'static str,
    },
}

/// Decides.
#[must_use]
pub fn decide(row: &EndpointRow, context: &RegionContext<'_>) -> Intent {
    let _ = (row, context);
    Intent::Ignore
}
