//! The entry for each situation (the wire contract, C.15, with the rules of this program).

use gco_store::problem::{FieldProblem, joined};
use gco_store::spec::CheckedSpec;
use gco_store::status::{Autoscaler, PodReason, RegionEntry, Rollout, State};
use gco_store::wire::{Item, Value};

use super::autoscaling::Scaling;
use super::canary::{self, Canary};
use super::codes::{self, Code, LONGEST_ERROR};
use super::conditions::{self, Conditions, kind};
use super::standing::{Progress, Standing};
use super::{Absence, Category, Done, ReportInput, pods};
use crate::identity::RowIdentity;
use crate::intent::{CleanUp, reason};
use crate::object::{Kind, ObservedPod};
use crate::plan::{inventory, obstacle};

/// Complete absence sweeps in a row that prove absence (contract C.9).
const PROOF: u32 = gco_store::row::TERMINAL_OBSERVATIONS;

/// Everything of an entry that differs between situations; put together field by field in [`entry`].
struct Parts {
    state: State,
    ready: u32,
    desired: u32,
    error: Option<String>,
    degraded: bool,
    rollout: Option<Rollout>,
    autoscaler: Option<Autoscaler>,
    pods: Vec<PodReason>,
    blocked_by: Vec<String>,
    extra: Item,
}

fn entry(
    identity: &RowIdentity,
    parts: Parts,
    standing: &Standing<'_>,
    seen: Option<&str>,
    conditions: Conditions<'_>,
) -> RegionEntry {
    let RowIdentity { lifecycle_id, region_generation } = identity;
    let Parts { state, ready, desired, error, degraded, rollout, autoscaler, pods, blocked_by, extra } = parts;
    RegionEntry {
        state,
        replicas_ready: ready,
        replicas_desired: desired,
        last_sync: None,
        lifecycle_id: Some(lifecycle_id.clone()),
        region_generation: Some(region_generation.clone()),
        deletion_generation: None,
        error,
        absence_observations: None,
        degraded,
        conditions: conditions.finish(),
        observed_spec: standing.observed_spec(seen),
        rollout,
        autoscaler,
        blocked_by,
        pods,
        extra,
    }
}

/// The row should serve and can.
pub(super) fn serving(
    input: &ReportInput<'_>,
    stored: Option<&RegionEntry>,
    identity: &RowIdentity,
    checked: &CheckedSpec,
    paused: bool,
) -> RegionEntry {
    let ReportInput { row, region, intent: _, observed, done, spec_hash, now } = input;
    let CheckedSpec { spec, without_effect } = checked;
    let standing = Standing::of(observed, &row.name, &identity.lifecycle_id);
    let canary = Canary::asked(observed, &row.name, &identity.lifecycle_id, spec, region);
    let ready = standing.ready();
    // An autoscaler's wish of the moment is what is desired; what the row asks for is that there are no fewer than its least.
    let (asked, desired) = match spec.autoscaled() {
        None => (spec.replicas, spec.replicas),
        Some(bounds) => (bounds.min_replicas, standing.live_replicas().unwrap_or_else(|| spec.first_replicas())),
    };
    let scaling = Scaling::of(observed, &row.name, &identity.lifecycle_id);
    let reasons = pods::reasons(&standing.pods, stored);
    let progress = standing.progress();

    let mut conditions = Conditions::new(stored, now);
    ready_condition(&mut conditions, ready, (asked, desired), &standing.pods);
    if without_effect.is_empty() {
        conditions.add(kind::SPEC_VALID, true, "Valid", "");
    } else {
        conditions.add(kind::SPEC_VALID, true, "FieldsWithoutEffect", joined(without_effect));
    }
    rollout_condition(&mut conditions, progress.as_ref());
    if let Some(kept) = standing.kept_template(spec, region) {
        conditions.add(kind::TEMPLATE_CURRENT, false, kept.reason, kept.message);
    }
    scaling.add_condition(spec, &mut conditions);
    if let Some(canary) = &canary {
        canary.condition(&mut conditions);
    }
    conditions.of_pass(done);
    conditions.paused(paused);

    let error = lasting_failure(done)
        .or_else(|| in_the_way(done))
        .or_else(|| stuck(progress.as_ref()))
        .or_else(|| if ready == 0 { first_pod_error(&reasons) } else { None });
    let parts = Parts {
        state: serving_state(ready, done),
        ready,
        desired,
        error,
        degraded: ready > 0 && ready < asked,
        rollout: progress.and_then(|progress| progress.rollout),
        autoscaler: scaling.owner(),
        pods: with_canary(&standing, canary.as_ref(), stored),
        blocked_by: conditions::blocked_by(&done.obstacles),
        extra: canary.iter().map(|canary| (canary::KEY.to_owned(), canary.to_value())).collect(),
    };
    entry(identity, parts, &standing, *spec_hash, conditions)
}

/// Why pods are not ready, those of the canary included.
fn with_canary(standing: &Standing<'_>, canary: Option<&Canary<'_>>, stored: Option<&RegionEntry>) -> Vec<PodReason> {
    let of_canary = canary.iter().flat_map(|canary| canary.pods());
    let all: Vec<&ObservedPod> = standing.pods.iter().chain(of_canary).copied().collect();
    pods::reasons(&all, stored)
}

/// `running` exactly when a pod is ready. Without one, the words tell apart what comes by waiting from what does not.
fn serving_state(ready: u32, done: &Done) -> State {
    if ready > 0 {
        return State::Running;
    }
    match conditions::worst(&done.failures).map(|failure| failure.category) {
        Some(Category::Invalid) => State::Failed,
        Some(Category::Forbidden | Category::Bug) => State::Error,
        Some(Category::Conflict | Category::Throttled | Category::Unavailable | Category::Fenced) | None => {
            State::Creating
        }
    }
}

/// `asked`: how many ready pods are as many as the row asks for.
fn ready_condition(conditions: &mut Conditions<'_>, ready: u32, (asked, desired): (u32, u32), pods: &[&ObservedPod]) {
    let counts = format!("{ready} of {desired} pods are ready");
    if ready >= asked && ready > 0 {
        conditions.add(kind::READY, true, "PodsReady", counts);
    } else if ready > 0 {
        conditions.add(kind::READY, true, "FewerPodsThanAsked", counts);
    } else if pods.is_empty() {
        conditions.add(kind::READY, false, "NoPods", counts);
    } else {
        conditions.add(kind::READY, false, "PodsNotReady", counts);
    }
}

fn rollout_condition(conditions: &mut Conditions<'_>, progress: Option<&Progress>) {
    match progress {
        None => conditions.add(kind::ROLLED_OUT, false, "NoDeployment", ""),
        Some(Progress { rollout: None, message: _ }) => conditions.add(kind::ROLLED_OUT, true, "RolledOut", ""),
        Some(Progress { rollout: Some(Rollout { updated, updated_ready, total, stuck }), message }) => match stuck {
            Some(reason) => conditions.add(kind::ROLLED_OUT, false, reason, message.clone()),
            None => {
                let counts =
                    format!("{updated} of {total} pods are of the newest template, {updated_ready} of them ready");
                conditions.add(kind::ROLLED_OUT, false, "InProgress", counts);
            }
        },
    }
}

/// A failure that waiting does not mend. Others are a condition only (D-9).
fn lasting_failure(done: &Done) -> Option<String> {
    let failure = conditions::worst(&done.failures)?;
    let code = match failure.category {
        Category::Invalid => codes::REFUSED,
        Category::Forbidden => codes::FORBIDDEN,
        Category::Bug => codes::UNEXPECTED,
        Category::Conflict | Category::Throttled | Category::Unavailable | Category::Fenced => return None,
    };
    Some(code.text(&conditions::failure_text(failure)))
}

fn in_the_way(done: &Done) -> Option<String> {
    let text = |reason: &str, code: Code, words: &str| {
        let keys: Vec<String> =
            done.obstacles.iter().filter(|one| one.reason == reason).map(|one| one.key.to_string()).collect();
        (!keys.is_empty()).then(|| code.text(&format!("{words}: {}", keys.join(", "))))
    };
    text(obstacle::FOREIGN, codes::FOREIGN_OBJECT, "not ours and in the way")
        .or_else(|| text(obstacle::OTHER_ENDPOINT, codes::OTHER_ENDPOINT, "belongs to another endpoint"))
        .or_else(|| text(obstacle::WRITE_WITHOUT_EFFECT, codes::WRITE_WITHOUT_EFFECT, "the write has no effect"))
}

fn stuck(progress: Option<&Progress>) -> Option<String> {
    let Progress { rollout, message } = progress?;
    let reason = rollout.as_ref()?.stuck.as_ref()?;
    let code = if reason == "ProgressDeadlineExceeded" { codes::ROLLOUT_STUCK } else { codes::PODS_REFUSED };
    Some(code.text(&format!("{reason}: {message}")))
}

fn first_pod_error(reasons: &[PodReason]) -> Option<String> {
    reasons.iter().find_map(|PodReason { reason, message, count: _, example: _, exit_code: _ }| {
        Some(pods::code(reason)?.text(&format!("{reason}: {message}")))
    })
}

/// The row should serve and cannot as it is. What runs goes on running and is reported as it is: a bad edit is no outage.
pub(super) fn rejected(
    input: &ReportInput<'_>,
    stored: Option<&RegionEntry>,
    identity: &RowIdentity,
    why: &'static str,
    problems: &[FieldProblem],
) -> RegionEntry {
    let ReportInput { row, region: _, intent: _, observed, done, spec_hash, now } = input;
    let standing = Standing::of(observed, &row.name, &identity.lifecycle_id);
    let ready = standing.ready();
    let code = match why {
        reason::NOT_YET_SUPPORTED => codes::NOT_YET_SUPPORTED,
        reason::NAME_COLLISION => codes::NAME_COLLISION,
        reason::WRONG_NAMESPACE => codes::WRONG_NAMESPACE,
        _ => codes::INVALID_SPEC,
    };
    // Roles, proxies and canaries are not counted by this version. Where they matter, what was last written stands: to
    // report "nothing serves" because this version cannot see it would be an outage.
    let block = row.spec.at(&["mooncake"]).and_then(Value::as_map);
    let unjudged = block.is_some_and(|block| !block.is_empty());
    let stands = stored.filter(|_| unjudged || why == reason::NOT_YET_SUPPORTED);
    let (state, ready, desired) = match stands {
        // A model server that is seen ready takes a classic endpoint out of a word that the original left in mid-change.
        Some(entry) if unjudged || ready == 0 || entry.state == State::Running => {
            (entry.state.clone(), entry.replicas_ready, entry.replicas_desired)
        }
        _ => {
            let last = stored.map_or(0, |entry| if ready > 0 { entry.replicas_desired } else { 0 });
            let desired = standing.live_replicas().unwrap_or(last);
            (if ready > 0 { State::Running } else { State::Failed }, ready, desired)
        }
    };
    let mut conditions = Conditions::new(stored, now);
    ready_condition(&mut conditions, ready, (desired, desired), &standing.pods);
    if why == reason::INVALID_SPEC {
        conditions.add(kind::SPEC_VALID, false, why, joined(problems));
    } else {
        conditions.add(kind::ACCEPTED, false, why, joined(problems));
    }
    // What runs of a canary goes on running; what is told of it must go on being true, because routers act on it.
    let mut extra = stored.map(|entry| entry.extra.clone()).unwrap_or_default();
    let told = extra.get(canary::KEY).filter(|_| why != reason::NOT_YET_SUPPORTED);
    let canary = told.and_then(|told| Canary::kept(observed, &row.name, &identity.lifecycle_id, told));
    if let Some(canary) = &canary {
        canary.condition(&mut conditions);
        extra.insert(canary::KEY.to_owned(), canary.to_value());
    }
    conditions.of_pass(done);
    let parts = Parts {
        degraded: state == State::Running && ready < desired,
        state,
        ready,
        desired,
        error: Some(code.text(&joined(problems))),
        rollout: None,
        autoscaler: Scaling::of(observed, &row.name, &identity.lifecycle_id).owner(),
        pods: with_canary(&standing, canary.as_ref(), stored),
        blocked_by: conditions::blocked_by(&done.obstacles),
        // What the original keeps there (`roles`, `store`) is read by the router and by people.
        extra,
    };
    entry(identity, parts, &standing, *spec_hash, conditions)
}

/// The row should hold no pods.
pub(super) fn stopping(
    input: &ReportInput<'_>,
    stored: Option<&RegionEntry>,
    identity: &RowIdentity,
    paused: bool,
) -> RegionEntry {
    let ReportInput { row, region: _, intent: _, observed, done, spec_hash, now } = input;
    let standings: Vec<Standing<'_>> = inventory(&row.name)
        .iter()
        .filter(|key| key.kind == Kind::Deployment)
        .map(|key| Standing::of(observed, &key.name, &identity.lifecycle_id))
        .collect();
    let sum = |counts: Vec<u32>| counts.into_iter().fold(0_u32, u32::saturating_add);
    let holds_pods = standings.iter().any(Standing::holds_pods);
    let scales = inventory(&row.name)
        .iter()
        .filter(|key| key.kind == Kind::Deployment)
        .any(|key| Scaling::of(observed, &key.name, &identity.lifecycle_id).is_there());
    let all_pods: Vec<&ObservedPod> = standings.iter().flat_map(|standing| standing.pods.iter().copied()).collect();

    let mut conditions = Conditions::new(stored, now);
    if holds_pods {
        conditions.add(kind::READY, false, "Stopping", "pods are being stopped");
    } else if scales {
        conditions.add(kind::READY, false, "Stopping", "the autoscaler is being removed");
    } else {
        conditions.add(kind::READY, false, "Stopped", "the row asks for no pods");
    }
    conditions.of_pass(done);
    conditions.paused(paused);
    let (state, ready, desired, reasons) = if holds_pods || scales {
        let ready = standings.iter().map(Standing::ready).collect();
        let live = standings.iter().filter_map(Standing::live_replicas).collect();
        (State::Stopping, sum(ready), sum(live), pods::reasons(&all_pods, stored))
    } else {
        (State::Stopped, 0, 0, Vec::new())
    };
    let parts = Parts {
        state,
        ready,
        desired,
        error: lasting_failure(done).or_else(|| in_the_way(done)),
        degraded: false,
        rollout: None,
        autoscaler: None,
        pods: reasons,
        blocked_by: conditions::blocked_by(&done.obstacles),
        extra: Item::new(),
    };
    // The endpoint's own Deployment is the first of the inventory's.
    let first = Standing::of(observed, &row.name, &identity.lifecycle_id);
    entry(identity, parts, &first, *spec_hash, conditions)
}

/// Everything of the endpoint goes from this region.
pub(super) fn removing(
    input: &ReportInput<'_>,
    stored: Option<&RegionEntry>,
    clean_up: &CleanUp,
    paused: bool,
) -> RegionEntry {
    let ReportInput { row: _, region: _, intent: _, observed: _, done, spec_hash: _, now } = input;
    let Done { steps: _, failures: _, obstacles, absence, absence_observations } = done;
    let proven = *absence_observations >= PROOF;
    let mut blocked_by = conditions::blocked_by(obstacles);
    if let Some(Absence { complete: _, pending: _, foreign, failures: _ }) = absence {
        blocked_by.extend(foreign.iter().cloned());
    }
    blocked_by.sort();
    blocked_by.dedup();

    let mut conditions = Conditions::new(stored, now);
    if proven {
        conditions.add(kind::REMOVED, true, "Absent", "");
    } else {
        conditions.add(kind::REMOVED, false, "Removing", format!("{absence_observations} of {PROOF} absence sweeps"));
    }
    conditions.of_pass(done);
    conditions.paused(paused);

    let (lifecycle_id, region_generation, deletion_generation) = match clean_up {
        CleanUp::Deleted { lifecycle_id, deletion_generation } => (lifecycle_id, None, Some(deletion_generation)),
        CleanUp::RegionRemoved(RowIdentity { lifecycle_id, region_generation }) => {
            (lifecycle_id, Some(region_generation), None)
        }
    };
    RegionEntry {
        state: if proven { State::Deleted } else { State::Deleting },
        replicas_ready: 0,
        replicas_desired: 0,
        last_sync: None,
        lifecycle_id: Some(lifecycle_id.clone()),
        region_generation: region_generation.cloned(),
        deletion_generation: deletion_generation.cloned(),
        error: if proven { None } else { clean_up_error(done, &blocked_by) },
        absence_observations: Some(*absence_observations),
        degraded: false,
        conditions: conditions.finish(),
        observed_spec: None,
        rollout: None,
        autoscaler: None,
        blocked_by,
        pods: Vec::new(),
        extra: Item::new(),
    }
}

/// The contract's words (C.9), when something is in the way of the clean-up or a sweep found something; not while deletes
/// are simply under way.
fn clean_up_error(done: &Done, blocked_by: &[String]) -> Option<String> {
    let mut entries: Vec<String> = Vec::new();
    if let Some(Absence { complete, pending, foreign: _, failures }) = &done.absence
        && !complete
    {
        entries.extend(pending.iter().cloned());
        entries.extend(failures.iter().cloned());
    }
    entries.extend(blocked_by.iter().map(|object| format!("{object} is not ours")));
    let lasting = done
        .failures
        .iter()
        .filter(|failure| matches!(failure.category, Category::Invalid | Category::Forbidden | Category::Bug));
    entries.extend(lasting.map(conditions::failure_text));
    if entries.is_empty() {
        return None;
    }
    let text = format!("Endpoint cleanup could not be completed: {}", entries.join("; "));
    Some(gco_store::problem::bounded(&text, LONGEST_ERROR))
}
