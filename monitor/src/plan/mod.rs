//! Ordered steps from what is observed to what is desired. Pure; empty at rest.
//!
//! A step is planned only for a difference in something we own ([`compare`]), only on objects that are ours
//! ([`ownership`]), and carries everything of others over ([`body`]). Marks of leadership are never a reason to write.

mod autoscalers;
pub mod body;
pub mod compare;
mod goals;
mod inventory;
pub mod ownership;
mod template;

use std::collections::{BTreeMap, BTreeSet};

use gco_store::spec::Spec;
use serde_json::Value;

use crate::identity::{LeaderMark, RowIdentity};
use crate::intent::CleanUp;
use crate::object::{DesiredSet, ObjectKey, Observed};

pub use body::{SpecDigests, digest, spec_digests};
pub use inventory::{inventory, inventory_of};
pub use template::differences_from_original;

/// The version of an object that a step was planned for; the server refuses the step on any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precondition {
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.resourceVersion`
    pub resource_version: String,
}

/// One step. Bodies carry the leader marks already.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// POST.
    Create {
        /// Place.
        key: ObjectKey,
        /// Whole object.
        body: Value,
        /// Why, for people.
        reason: String,
    },
    /// PUT of the whole object.
    Replace {
        /// Place.
        key: ObjectKey,
        /// Of which version.
        of: Precondition,
        /// Whole object, with uid and resourceVersion inside.
        body: Value,
        /// Why, for people: names the fields that differ.
        reason: String,
        /// Pods are replaced by it.
        restarts: bool,
        /// Pods are replaced by it, and no edit of the row asks for that: limited in number.
        unasked: bool,
        /// The replica count becomes smaller by it.
        scales_down: bool,
    },
    /// Metadata merge patch with our marks: the claim before the first act of a term on an endpoint.
    Stamp {
        /// Place.
        key: ObjectKey,
        /// Of which version.
        of: Precondition,
        /// Annotations to set.
        annotations: BTreeMap<String, String>,
        /// Why.
        reason: String,
    },
    /// Stamp, then DELETE in the foreground with uid and the stamped version.
    Delete {
        /// Place.
        key: ObjectKey,
        /// Of which version.
        of: Precondition,
        /// Why.
        reason: String,
    },
    /// Quorum reads of every inventory name and of children; deletes what is ours, names what is not.
    ProveAbsence,
}

/// What stands in the way and is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The object.
    pub key: ObjectKey,
    /// CamelCase reason, one of [`obstacle`].
    pub reason: &'static str,
}

/// Reasons of an [`Obstacle`].
pub mod obstacle {
    /// Not ours: it has our name and none of our marks.
    pub const FOREIGN: &str = "Foreign";
    /// It belongs to another row of the table.
    pub const OTHER_ENDPOINT: &str = "OtherEndpoint";
    /// It is being deleted; its last event wakes us.
    pub const TERMINATING: &str = "Terminating";
    /// Its pods are to be restarted without an edit that asks for it, and as many endpoints as may be are restarting.
    pub const RESTART_WAITS: &str = "RestartWaits";
    /// Its pods are to be restarted without an edit that asks for it, and too many such restarts have failed.
    pub const RESTARTS_STOPPED: &str = "RestartsStopped";
    /// The server answered the same write with unchanged content; it is not repeated.
    pub const WRITE_WITHOUT_EFFECT: &str = "WriteWithoutEffect";
    /// The cluster does not have this kind: KEDA is not installed.
    pub const KIND_MISSING: &str = "KindMissing";
    /// It is of an earlier lifecycle or generation, and nothing is deleted while the table cannot be read.
    pub const TABLE_AWAY: &str = "TableAway";
}

/// The plan of one pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In order. Empty at rest.
    pub steps: Vec<Step>,
    /// What is left alone, and why.
    pub obstacles: Vec<Obstacle>,
}

/// What decides about pods that run already.
#[derive(Clone, Copy, Debug)]
pub struct Upkeep<'a> {
    /// What to run.
    pub spec: &'a Spec,
    /// Digest of the row's spec as the endpoint's own Deployment is made from it ([`spec_digests`]).
    pub spec_digest: &'a str,
    /// The same for the canary's Deployment.
    pub canary_spec_digest: &'a str,
    /// The row's last refresh (`control.refresh.requested_at`).
    pub refresh: Option<&'a str>,
    /// Whether pods may be restarted now though no edit asks for it.
    pub may_restart: bool,
    /// The time, ISO-8601, for what is written down of such a restart.
    pub now: &'a str,
}

/// What a plan is made for.
#[derive(Clone, Debug)]
pub enum Goal<'a> {
    /// These objects, exactly.
    Hold {
        /// Whose.
        identity: &'a RowIdentity,
        /// All of them.
        desired: &'a DesiredSet,
        /// What decides about pods that run.
        upkeep: Upkeep<'a>,
    },
    /// No pods.
    Stop {
        /// Whose.
        identity: &'a RowIdentity,
    },
    /// Nothing.
    Remove {
        /// Under which authority.
        clean_up: &'a CleanUp,
        /// This region's generation, when the row has one.
        region_generation: Option<&'a str>,
    },
}

/// What [`plan`] needs.
#[derive(Clone, Debug)]
pub struct PlanInput<'a> {
    /// Endpoint name.
    pub name: &'a str,
    /// Namespace.
    pub namespace: &'a str,
    /// What for.
    pub goal: Goal<'a>,
    /// What is there.
    pub observed: &'a Observed,
    /// Lifecycles of all rows of the last complete read: an object of one of them is never stale.
    pub known_lifecycles: &'a BTreeSet<String>,
    /// Our marks.
    pub leader: &'a LeaderMark,
    /// Digests of desires whose last write changed nothing, by object.
    pub futile: &'a BTreeMap<ObjectKey, String>,
    /// The table cannot be read: no delete, no scale-down, no adoption.
    pub table_away: bool,
}

/// Plans.
///
/// Order of the steps: stamps (nothing is safe from a deposed leader before them), hand-off of stale objects (all at once,
/// D-23), autoscalers that should go, then what should exist in its apply order, then what should not, workloads after
/// their replacements are ready.
#[must_use]
pub fn plan(input: &PlanInput<'_>) -> Plan {
    let PlanInput { goal, .. } = input;
    match goal {
        Goal::Hold { identity, desired, upkeep } => goals::hold(input, identity, desired, upkeep),
        Goal::Stop { identity } => goals::stop(input, identity),
        Goal::Remove { clean_up, region_generation } => goals::remove(input, clean_up, *region_generation),
    }
}
