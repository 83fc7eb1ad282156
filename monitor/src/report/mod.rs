//! What is true in this region now, from what was observed and done. Pure.
//!
//! The entry's `state` is a hard routing switch: the shared router answers 503 for anything but `running` (the wire
//! contract, E.2). So `running` means that this region can serve a request now, and nothing else (D-3, D-9, D-11): not that
//! everything asked for is there (`degraded`), not that nothing changes (`rollout`), not that the last pass went well
//! (`conditions`, `error`). Counts and states come from the caches, which are complete and synced or not handed out; a
//! call that failed changes what is known about nothing.
//!
//! Inputs are taken apart field by field, without `..`: a new field cannot be forgotten here.

mod autoscaling;
mod canary;
pub mod codes;
mod conditions;
pub mod events;
pub mod guide;
mod pods;
pub mod restarts;
mod situations;
mod standing;

use gco_store::row::EndpointRow;
use gco_store::status::{RegionEntry, Rollout};

use crate::intent::{CleanUp, Intent};
use crate::object::{ObjectKey, Observed};
use crate::plan::Obstacle;

/// What kind of failure a step met: decides retry, metric and condition reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// The server refuses the content for good (400, 422, 413).
    Invalid,
    /// Version or uid differ, or a name is taken (409).
    Conflict,
    /// Rights (401, 403).
    Forbidden,
    /// 429.
    Throttled,
    /// 5xx, time-out, connection.
    Unavailable,
    /// Our claim or the row's authority ended; nothing is reported.
    Fenced,
    /// What should not happen.
    Bug,
}

/// A failed step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which object, if one.
    pub key: Option<ObjectKey>,
    /// Kind of failure.
    pub category: Category,
    /// Bounded and clean: no request text, no credentials.
    pub message: String,
}

/// Outcome of one absence sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    /// Nothing was seen and nothing failed.
    pub complete: bool,
    /// What is still there and ours, as `kind/name`.
    pub pending: Vec<String>,
    /// What is there and not ours, as `kind/name`.
    pub foreign: Vec<String>,
    /// Reads that failed.
    pub failures: Vec<String>,
}

/// What a pass did, as the pure part of `cluster`'s result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Steps that succeeded, as `verb kind/name: reason`.
    pub steps: Vec<String>,
    /// What failed.
    pub failures: Vec<Failure>,
    /// What stands in the way.
    pub obstacles: Vec<Obstacle>,
    /// The absence sweep, if one was made.
    pub absence: Option<Absence>,
    /// Consecutive complete absence sweeps of this authority, including this one.
    pub absence_observations: u32,
}

/// What [`report`] needs.
#[derive(Clone, Debug)]
pub struct ReportInput<'a> {
    /// The row that was acted on.
    pub row: &'a EndpointRow,
    /// This region.
    pub region: &'a str,
    /// What was asked.
    pub intent: &'a Intent,
    /// What is there after the pass.
    pub observed: &'a Observed,
    /// What was done.
    pub done: &'a Done,
    /// Hash of the spec's template inputs in the row, when the spec is valid.
    pub spec_hash: Option<&'a str>,
    /// The time, ISO-8601, for `since` of conditions that change and for `last_sync`.
    pub now: &'a str,
}

/// The entry that should stand in the row, or `None` when the stored one already says the same (apart from `last_sync`
/// and `since`), or when this region has nothing to say.
#[must_use]
pub fn report(input: &ReportInput<'_>) -> Option<RegionEntry> {
    let ReportInput { row, region, intent, observed: _, done, spec_hash: _, now } = input;
    let fenced = |failure: &Failure| failure.category == Category::Fenced;
    if done.failures.iter().any(fenced) {
        // Somebody else leads, or the row is another one by now: what we know is not worth writing.
        return None;
    }
    let stored = row.region_status.get(*region);
    let mut entry = match intent {
        Intent::Serve { identity, spec, refresh: _, paused } => {
            situations::serving(input, stored_for(stored, identity), identity, spec, *paused)
        }
        Intent::Reject { identity, reason, problems } => {
            situations::rejected(input, stored_for(stored, identity), identity, reason, problems)
        }
        Intent::Stop { identity, paused } => {
            situations::stopping(input, stored_for(stored, identity), identity, *paused)
        }
        Intent::Remove { clean_up, paused } => {
            let same_authority = stored.filter(|entry| match clean_up {
                CleanUp::Deleted { lifecycle_id, deletion_generation } => {
                    entry.lifecycle_id.as_ref() == Some(lifecycle_id)
                        && entry.deletion_generation.as_ref() == Some(deletion_generation)
                }
                CleanUp::RegionRemoved(identity) => is_of(entry, identity),
            });
            situations::removing(input, same_authority, clean_up, *paused)
        }
        Intent::AwaitPurge | Intent::BackFill | Intent::Ignore | Intent::Unusable { reason: _ } => return None,
    };
    entry.last_sync = Some((*now).to_owned());
    let says_the_same = stored.is_some_and(|stored| stored.says_the_same_as(&entry));
    (!says_the_same).then_some(entry)
}

/// Whether what is new in `entry` is progress only: counts of pods, words about pods, texts. Such an entry may wait for the
/// next one, so that a rollout does not cost a table write (and its copy in every region) per pod event. What anybody routes
/// by, waits for or acts on is never put off: state, degradation, conditions, hashes, blocked objects, clean-up counts and
/// every key that this version does not know the meaning of.
#[must_use]
pub fn may_wait(stored: &RegionEntry, entry: &RegionEntry) -> bool {
    let pressing = |entry: &RegionEntry| {
        let mut pressing = RegionEntry {
            replicas_ready: 0,
            last_sync: None,
            rollout: entry.rollout.as_ref().map(|rollout| Rollout {
                updated: 0,
                updated_ready: 0,
                total: 0,
                ..rollout.clone()
            }),
            pods: Vec::new(),
            ..entry.clone()
        };
        for condition in &mut pressing.conditions {
            condition.message.clear();
            condition.since.clear();
        }
        pressing
    };
    pressing(stored) == pressing(entry)
}

/// The stored entry, if it is about the same thing; one of another lifecycle or generation is replaced whole.
fn stored_for<'a>(stored: Option<&'a RegionEntry>, identity: &crate::identity::RowIdentity) -> Option<&'a RegionEntry> {
    stored.filter(|entry| is_of(entry, identity))
}

fn is_of(entry: &RegionEntry, identity: &crate::identity::RowIdentity) -> bool {
    let crate::identity::RowIdentity { lifecycle_id, region_generation } = identity;
    entry.lifecycle_id.as_ref() == Some(lifecycle_id) && entry.region_generation.as_ref() == Some(region_generation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gco_store::status::{ObservedSpec, PodReason, State, StatusCondition};
    use gco_store::wire::Value;

    fn entry() -> RegionEntry {
        RegionEntry {
            rollout: Some(Rollout { updated: 1, updated_ready: 0, total: 2, stuck: None }),
            conditions: vec![StatusCondition {
                kind: "RolledOut".into(),
                status: "False".into(),
                reason: "Progressing".into(),
                message: "0 of 2".into(),
                since: "2026-01-01T00:00:00+00:00".into(),
            }],
            ..RegionEntry::new(State::Running)
        }
    }

    #[test]
    fn counts_and_words_may_wait_for_the_next_write() {
        let changes: [fn(&mut RegionEntry); 4] = [
            |entry| entry.replicas_ready = 1,
            |entry| entry.rollout.as_mut().unwrap().updated_ready = 1,
            |entry| entry.conditions[0].message = "1 of 2".into(),
            |entry| {
                entry.pods.push(PodReason {
                    reason: "NotReady".into(),
                    message: String::new(),
                    count: 1,
                    example: "chat-1".into(),
                    exit_code: None,
                });
            },
        ];
        for change in changes {
            let mut changed = entry();
            change(&mut changed);
            assert!(may_wait(&entry(), &changed), "{changed:?}");
        }
    }

    #[test]
    fn what_anybody_routes_by_or_waits_for_is_written_at_once() {
        let changes: [fn(&mut RegionEntry); 9] = [
            |entry| entry.state = State::Creating,
            |entry| entry.degraded = true,
            |entry| entry.replicas_desired = 3,
            |entry| entry.rollout = None,
            |entry| entry.rollout.as_mut().unwrap().stuck = Some("ProgressDeadlineExceeded".into()),
            |entry| entry.conditions[0].status = "True".into(),
            |entry| entry.observed_spec = Some(ObservedSpec { seen: Some("a".into()), ..ObservedSpec::default() }),
            |entry| entry.absence_observations = Some(1),
            |entry| {
                entry.extra.insert("canary".into(), Value::from("anything"));
            },
        ];
        for change in changes {
            let mut changed = entry();
            change(&mut changed);
            assert!(!may_wait(&entry(), &changed), "{changed:?}");
        }
    }
}
