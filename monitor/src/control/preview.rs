//! What a pass over an endpoint would do, from what a cluster holds now: for `gco inference plan`. Pure.
//!
//! The same rooms decide as in a pass (intent, render, plan), on the same caches. Nothing is acted upon, no Lease is taken, and
//! the marks of leadership that every step would carry are left out of the account: they are never a reason to write.

use std::collections::{BTreeMap, BTreeSet};

use gco_store::row::EndpointRow;

use super::action::intent_word;
use super::proposal::{Circumstances, Proposal};
use crate::identity::{ANNOTATION_LEADER_TERM, LeaderMark};
use crate::intent::{Intent, RegionContext, decide};
use crate::object::{ObjectKey, Observed};
use crate::plan::Step;

/// One step that would be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewStep {
    /// `create`, `replace`, `delete`, `prove_absence`.
    pub verb: &'static str,
    /// `kind/name`; empty for a proof of absence.
    pub object: String,
    /// Why, for people: names the fields that differ.
    pub reason: String,
    /// Pods are replaced by it.
    pub restarts: bool,
    /// The replica count becomes smaller by it.
    pub scales_down: bool,
}

/// What would be done for one endpoint in one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// What the region is asked for, in one word: `serve`, `stop`, `delete` …
    pub asked: &'static str,
    /// It would only be observed.
    pub paused: bool,
    /// Why nothing can be done for it.
    pub problems: Vec<String>,
    /// In order; empty: nothing would be changed.
    pub steps: Vec<PreviewStep>,
    /// What would be left alone, as `kind/name: reason`.
    pub obstacles: Vec<String>,
    /// Objects that carry no mark of a leader of ours yet: their metadata is marked first, which restarts nothing.
    pub first_marks: usize,
}

/// What [`preview`] needs.
#[derive(Clone, Debug)]
pub struct PreviewInput<'a> {
    /// The row.
    pub row: &'a EndpointRow,
    /// Where, beside whom, and whether changes are frozen.
    pub context: RegionContext<'a>,
    /// The region's cluster, as its monitor's `CLUSTER_NAME` says: a GPU metric of an autoscaler names it.
    pub cluster_name: &'a str,
    /// Lifecycles of all rows.
    pub known_lifecycles: &'a BTreeSet<String>,
    /// What is there.
    pub observed: &'a Observed,
}

/// Plans without acting.
#[must_use]
pub fn preview(input: &PreviewInput<'_>) -> Preview {
    let PreviewInput { row, context, cluster_name, known_lifecycles, observed } = input;
    let intent = decide(row, context);
    let (region, namespace) = (context.region, context.namespace);
    let proposal = Proposal { row, intent: &intent, region, namespace, cluster_name };
    let leader = LeaderMark { epoch: "preview".to_owned(), term: u64::MAX };
    let planned = proposal.plan(
        proposal.desired().as_ref(),
        &Circumstances {
            observed,
            known_lifecycles,
            leader: &leader,
            futile: &BTreeMap::new(),
            table_away: false,
            // Restarts are shown, whenever their turn may be; the time only goes into bodies, which are not.
            may_restart: true,
            now: "",
        },
    );
    let unmarked = |key: &ObjectKey| {
        observed.objects.get(key).is_some_and(|object| object.annotation(ANNOTATION_LEADER_TERM).is_none())
    };
    let stamped = planned.steps.iter().filter(|step| matches!(step, Step::Stamp { key, .. } if unmarked(key)));
    Preview {
        asked: intent_word(&intent),
        paused: matches!(
            &intent,
            Intent::Serve { paused: true, .. }
                | Intent::Stop { paused: true, .. }
                | Intent::Remove { paused: true, .. }
        ),
        problems: match &intent {
            Intent::Reject { reason, problems, .. } => {
                std::iter::once((*reason).to_owned()).chain(problems.iter().map(ToString::to_string)).collect()
            }
            Intent::Unusable { reason } => vec![(*reason).to_owned()],
            _ => Vec::new(),
        },
        first_marks: stamped.count(),
        steps: planned.steps.iter().filter_map(step).collect(),
        obstacles: planned.obstacles.iter().map(|one| format!("{}: {}", one.key, one.reason)).collect(),
    }
}

fn step(step: &Step) -> Option<PreviewStep> {
    let plain = |verb, key: &ObjectKey, reason: &str| PreviewStep {
        verb,
        object: key.to_string(),
        reason: reason.to_owned(),
        restarts: false,
        scales_down: false,
    };
    Some(match step {
        Step::Create { key, reason, .. } => plain("create", key, reason),
        Step::Replace { key, reason, restarts, scales_down, .. } => {
            PreviewStep { restarts: *restarts, scales_down: *scales_down, ..plain("replace", key, reason) }
        }
        Step::Delete { key, reason, .. } => plain("delete", key, reason),
        Step::ProveAbsence => PreviewStep {
            verb: "prove_absence",
            object: String::new(),
            reason: "nothing of it may be left".to_owned(),
            restarts: false,
            scales_down: false,
        },
        Step::Stamp { .. } => return None,
    })
}
