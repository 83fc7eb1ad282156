//! What a region says of an endpoint: one entry of `region_status` (contract A.5), with our additions.

use crate::problem::FieldProblem;
use crate::wire::{Item, Value};

/// The state words of the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// No complete serving path yet.
    Creating,
    /// This region can serve a request now.
    Running,
    /// The original's word for "changing": routers refuse traffic. Ours never writes it for an endpoint that can serve.
    Updating,
    /// Scaling down for a stop.
    Stopping,
    /// No pods, as asked.
    Stopped,
    /// Being removed.
    Deleting,
    /// Removed, twice observed.
    Deleted,
    /// The row cannot be served as it is.
    Failed,
    /// The original's word for an unexpected failure.
    Error,
    /// A word that this version does not know.
    Other(String),
}

/// One condition, Kubernetes style.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusCondition {
    /// CamelCase type, for example `Ready`, `SpecValid`, `RolledOut`, `Blocked`.
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// CamelCase reason.
    pub reason: String,
    /// Bounded text for people.
    pub message: String,
    /// When `status` last changed, ISO-8601.
    pub since: String,
}

/// Hashes (64 hexadecimal digits) of the spec as this region saw, applied and serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedSpec {
    /// Hash of the spec in the row that was last read.
    pub seen: Option<String>,
    /// Hash that the cluster's objects were last written for.
    pub applied: Option<String>,
    /// Hash that every ready pod runs; absent while pods of several specs serve.
    pub serving: Option<String>,
}

/// Progress of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// Pods of the newest template.
    pub updated: u32,
    /// Ready pods of the newest template.
    pub updated_ready: u32,
    /// All pods that exist (without terminating ones).
    pub total: u32,
    /// CamelCase reason when it cannot go on (`ProgressDeadlineExceeded`, `FailedCreate` …).
    pub stuck: Option<String>,
}

/// Why pods are not ready: one line per distinct reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodReason {
    /// CamelCase reason, for example `ImagePullBackOff`, `Unschedulable`, `CrashLoopBackOff`, `NotReady`.
    pub reason: String,
    /// Bounded text, for example the scheduler's own words.
    pub message: String,
    /// How many pods it holds for.
    pub count: u32,
    /// One pod's name, to look at.
    pub example: String,
    /// Exit code of the last crash.
    pub exit_code: Option<i64>,
}

/// One region's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionEntry {
    /// `state`; absent reads as `Other("")`.
    pub state: State,
    /// `replicas_ready`
    pub replicas_ready: u32,
    /// `replicas_desired`
    pub replicas_desired: u32,
    /// `last_sync`: when it was written, and the version that compare-and-set uses.
    pub last_sync: Option<String>,
    /// Copy of the row's lifecycle at the time.
    pub lifecycle_id: Option<String>,
    /// Copy of the region's generation at the time.
    pub region_generation: Option<String>,
    /// Copy of the deletion generation, on deletion writes.
    pub deletion_generation: Option<String>,
    /// Short text when something is wrong: a code and a bounded message.
    pub error: Option<String>,
    /// Consecutive complete absence sweeps, on clean-up writes.
    pub absence_observations: Option<u32>,
    /// Serves, with less than asked for.
    pub degraded: bool,
    /// Conditions.
    pub conditions: Vec<StatusCondition>,
    /// Spec hashes.
    pub observed_spec: Option<ObservedSpec>,
    /// Rollout progress while one is under way.
    pub rollout: Option<Rollout>,
    /// Objects in the way that are not ours, as `kind/name`.
    pub blocked_by: Vec<String>,
    /// Why pods are not ready; at most 8.
    pub pods: Vec<PodReason>,
    /// Every other key (`canary`, `roles`, `store`, unknown ones), as read.
    pub extra: Item,
}

impl RegionEntry {
    /// Reads an entry; keys of a wrong type read as absent and are named, paths starting with `path`.
    #[must_use]
    pub fn parse(path: &str, value: &Value) -> (Self, Vec<FieldProblem>) {
        let _ = (path, value);
        (Self::new(State::Creating), Vec::new())
    }

    /// An entry with a state and nothing else.
    #[must_use]
    pub fn new(state: State) -> Self {
        Self {
            state,
            replicas_ready: 0,
            replicas_desired: 0,
            last_sync: None,
            lifecycle_id: None,
            region_generation: None,
            deletion_generation: None,
            error: None,
            absence_observations: None,
            degraded: false,
            conditions: Vec::new(),
            observed_spec: None,
            rollout: None,
            blocked_by: Vec::new(),
            pods: Vec::new(),
            extra: Item::new(),
        }
    }

    /// The entry as an attribute map, in the contract's types; absent and empty parts are left out.
    #[must_use]
    pub fn to_item(&self) -> Item {
        Item::new()
    }
}
