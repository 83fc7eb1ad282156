//! What this region is asked for, from one row. Pure.

use std::collections::BTreeSet;

use gco_store::name;
use gco_store::problem::FieldProblem;
use gco_store::row::{DesiredState, EndpointRow, Quorum, Refresh};
use gco_store::spec::{CheckedSpec, Spec};

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

impl CleanUp {
    /// Absence observations that the row's own entry counts for this authority (contract C.9); 0 when it is about another.
    #[must_use]
    pub fn counted_absences(&self, row: &EndpointRow, region: &str) -> u32 {
        let Some(entry) = row.region_status.get(region) else { return 0 };
        let same = match self {
            Self::Deleted { lifecycle_id, deletion_generation } => {
                entry.lifecycle_id.as_ref() == Some(lifecycle_id)
                    && entry.deletion_generation.as_ref() == Some(deletion_generation)
            }
            Self::RegionRemoved(identity) => {
                entry.lifecycle_id.as_ref() == Some(&identity.lifecycle_id)
                    && entry.region_generation.as_ref() == Some(&identity.region_generation)
            }
        };
        if same { entry.absence_observations.unwrap_or(0) } else { 0 }
    }

    /// The observations to report after one more: anything that was seen starts the count anew.
    #[must_use]
    pub fn absences_after(&self, row: &EndpointRow, region: &str, found_nothing: bool) -> u32 {
        if found_nothing { self.counted_absences(row, region).saturating_add(1) } else { 0 }
    }
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
        /// The last refresh that was asked for.
        refresh: Option<Refresh>,
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

/// Reasons of [`Intent::Reject`] and [`Intent::Unusable`], as metrics and conditions show them.
pub mod reason {
    /// The spec breaks the schema.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// A block that this version does not serve.
    pub const NOT_YET_SUPPORTED: &str = "NotYetSupported";
    /// Another row's objects could have the same names.
    pub const NAME_COLLISION: &str = "NameCollision";
    /// A namespace that the monitor has no rights in.
    pub const WRONG_NAMESPACE: &str = "WrongNamespace";
    /// The row has no `updated_at`, so nothing can be conditioned on it.
    pub const NO_VERSION: &str = "NoVersion";
    /// An attribute that decides membership or authority has a wrong type.
    pub const MALFORMED_ROW: &str = "MalformedRow";
}

/// Attributes that decide whose business a row is and under which authority. One of a wrong type reads as absent, and an
/// absent `target_regions` next to a `cleanup_regions` would mean "remove everything here": a damaged row must not.
const FENCE_ATTRIBUTES: [&str; 8] = [
    "desired_state",
    "lifecycle_id",
    "target_regions",
    "cleanup_regions",
    "region_generations",
    "deletion_generation",
    "deletion_regions",
    "updated_at",
];

/// Decides.
///
/// Membership comes first, but for a deleted row that is about to be purged: a row that never concerned this region costs
/// nothing, says nothing and logs nothing (D-30).
#[must_use]
pub fn decide(row: &EndpointRow, context: &RegionContext<'_>) -> Intent {
    // Whichever monitor sees that a deletion is confirmed purges the row, also one that the row never concerned: of the
    // regions of the row there may be none left (D-21). Asked of deleted rows only: this runs for every row in every pass.
    if row.desired_state == DesiredState::Deleted && row.quorum() == Quorum::Stands {
        return Intent::AwaitPurge;
    }
    if !row.concerns(context.region) {
        return Intent::Ignore;
    }
    if matches!(row.desired_state, DesiredState::Unknown(_)) {
        return Intent::Ignore;
    }
    if row.problems.iter().any(|problem| FENCE_ATTRIBUTES.iter().any(|name| is_of(&problem.field, name))) {
        return Intent::Unusable { reason: reason::MALFORMED_ROW };
    }
    if row.updated_at.is_none() {
        // Every fence ends in a condition on the row's version. The original reconciled such rows without any fence.
        return Intent::Unusable { reason: reason::NO_VERSION };
    }
    if row.desired_state == DesiredState::Deleted {
        // A pause of the row ends with its deletion: nobody can resume a deleted row, so it would stay for ever. A frozen
        // region still changes nothing.
        return of_deleted(row, context, context.frozen);
    }
    let paused = context.frozen || row.paused;
    if !row.is_target(context.region) {
        return of_removed_region(row, context, paused);
    }
    let Some(identity) = live_identity(row, context.region) else {
        return back_fill(paused);
    };
    match &row.desired_state {
        DesiredState::Deploying | DesiredState::Running => of_serving(row, context, identity, paused),
        // Needs no valid spec: whatever the spec says, no pods is no pods.
        DesiredState::Stopped => Intent::Stop { identity, paused },
        DesiredState::Deleted | DesiredState::Unknown(_) => Intent::Ignore,
    }
}

/// Whether the path of a problem is the attribute or a place inside it.
fn is_of(field: &str, attribute: &str) -> bool {
    field.strip_prefix(attribute).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// A row is completed only where changes are allowed: a frozen region mints no tokens.
fn back_fill(paused: bool) -> Intent {
    if paused { Intent::Ignore } else { Intent::BackFill }
}

/// Lifecycle and generation of a target region, if the row is complete enough to act under.
fn live_identity(row: &EndpointRow, region: &str) -> Option<RowIdentity> {
    // A target that is missing from the clean-up list would be forgotten when it is removed later.
    row.cleanup_regions.as_ref().filter(|list| list.iter().any(|listed| listed == region))?;
    Some(RowIdentity {
        lifecycle_id: row.lifecycle_id.clone()?,
        region_generation: row.region_generation(region)?.to_owned(),
    })
}

fn of_deleted(row: &EndpointRow, context: &RegionContext<'_>, paused: bool) -> Intent {
    let (Some(lifecycle_id), Some(deletion_generation), Some(regions)) =
        (&row.lifecycle_id, &row.deletion_generation, &row.deletion_regions)
    else {
        // The region is named somewhere in the row, so it will be in the list that the back-fill takes down.
        return back_fill(paused);
    };
    if !regions.iter().any(|region| region == context.region) {
        return Intent::Ignore;
    }
    if row.acknowledged(context.region) {
        // Whichever region sees the last acknowledgement purges; the condition on the row decides between several.
        return Intent::AwaitPurge;
    }
    let clean_up =
        CleanUp::Deleted { lifecycle_id: lifecycle_id.clone(), deletion_generation: deletion_generation.clone() };
    Intent::Remove { clean_up, paused }
}

fn of_removed_region(row: &EndpointRow, context: &RegionContext<'_>, paused: bool) -> Intent {
    let listed = row.cleanup_regions.as_ref().map(|list| list.iter().any(|region| region == context.region));
    match (listed, &row.lifecycle_id, row.region_generation(context.region)) {
        // The list is there and does not name us: the region never was a target.
        (Some(false), Some(_), _) => Intent::Ignore,
        (Some(true), Some(lifecycle_id), Some(region_generation)) => {
            if row.acknowledged(context.region) {
                return Intent::Ignore;
            }
            let identity =
                RowIdentity { lifecycle_id: lifecycle_id.clone(), region_generation: region_generation.to_owned() };
            Intent::Remove { clean_up: CleanUp::RegionRemoved(identity), paused }
        }
        _ => back_fill(paused),
    }
}

fn of_serving(row: &EndpointRow, context: &RegionContext<'_>, identity: RowIdentity, paused: bool) -> Intent {
    let reject = |reason, problems| Intent::Reject { identity: identity.clone(), reason, problems };
    let namespace_problems = namespace_problems(row, context.namespace);
    if !namespace_problems.is_empty() {
        return reject(reason::WRONG_NAMESPACE, namespace_problems);
    }
    let checked = match Spec::check(&row.spec) {
        Ok(checked) => checked,
        Err(problems) => return reject(reason::INVALID_SPEC, problems),
    };
    let colliding = name::yields_to(&row.name, context.other_names.iter().map(String::as_str));
    if !colliding.is_empty() {
        let problem = |other: &str| {
            FieldProblem::new(
                "endpoint_name",
                format!(
                    "must not be a name that the objects of the endpoint \"{other}\" can have; delete one of the two endpoints"
                ),
            )
        };
        return reject(reason::NAME_COLLISION, colliding.into_iter().map(problem).collect());
    }
    let unsupported = unsupported_blocks(&checked.spec);
    if !unsupported.is_empty() {
        return reject(reason::NOT_YET_SUPPORTED, unsupported);
    }
    Intent::Serve { identity, spec: Box::new(checked), refresh: row.refresh.clone(), paused }
}

/// Rights exist in one namespace only, and the router refuses others: accepting the row would promise what cannot be
/// (D-51).
fn namespace_problems(row: &EndpointRow, ours: &str) -> Vec<FieldProblem> {
    let mut problems: Vec<FieldProblem> =
        row.problems.iter().filter(|problem| is_of(&problem.field, "namespace")).cloned().collect();
    if let Some(other) = row.namespace.as_deref().filter(|namespace| *namespace != ours) {
        problems.push(FieldProblem::new("namespace", format!("must be \"{ours}\", got \"{other}\"")));
    }
    problems
}

/// Blocks that come in later releases. Nothing of such an endpoint is touched: what the original built goes on running.
fn unsupported_blocks(spec: &Spec) -> Vec<FieldProblem> {
    let problem = |block: &str| {
        FieldProblem::new(block, "is not supported by this version yet; objects of this endpoint are left as they are")
    };
    let mut problems = Vec::new();
    if spec.mooncake.as_ref().is_some_and(|block| !block.is_empty()) {
        problems.push(problem("spec.mooncake"));
    }
    problems
}
