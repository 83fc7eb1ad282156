//! Conditions: small facts next to the state, with the time since when they hold.

use gco_store::status::{RegionEntry, StatusCondition};

use super::{Category, Done, Failure};
use crate::object::ObjectKey;
use crate::plan::{Obstacle, obstacle};

/// Condition types.
pub(super) mod kind {
    /// At least one complete serving path is ready.
    pub(crate) const READY: &str = "Ready";
    /// The spec follows the schema.
    pub(crate) const SPEC_VALID: &str = "SpecValid";
    /// This version serves the row; `False` with the reason otherwise.
    pub(crate) const ACCEPTED: &str = "Accepted";
    /// Every pod is of the newest template, and there are as many as asked for.
    pub(crate) const ROLLED_OUT: &str = "RolledOut";
    /// The canary gets its share of requests; only while the row asks for one.
    pub(crate) const CANARY_READY: &str = "CanaryReady";
    /// An autoscaler works on the replica count; only where the row asks for one.
    pub(crate) const AUTOSCALING: &str = "Autoscaling";
    /// Objects stand in the way; only while they do.
    pub(crate) const BLOCKED: &str = "Blocked";
    /// Something is awaited; only while it is.
    pub(crate) const PROGRESSING: &str = "Progressing";
    /// `False` while the last pass could not make the cluster what it should be.
    pub(crate) const RECONCILED: &str = "Reconciled";
    /// `False` while pods run a template that another program or version rendered; only then.
    pub(crate) const TEMPLATE_CURRENT: &str = "TemplateCurrent";
    /// A restart that no edit asked for is held back; only while it is.
    pub(crate) const RESTART_HELD: &str = "RestartHeld";
    /// Changes are paused; only while they are.
    pub(crate) const PAUSED: &str = "Paused";
    /// Nothing of the endpoint is left here.
    pub(crate) const REMOVED: &str = "Removed";
}

/// Conditions in the making; knows the stored ones, to keep `since` where the status did not change.
pub(super) struct Conditions<'a> {
    stored: &'a [StatusCondition],
    now: &'a str,
    list: Vec<StatusCondition>,
}

impl<'a> Conditions<'a> {
    pub(super) fn new(stored: Option<&'a RegionEntry>, now: &'a str) -> Self {
        Self { stored: stored.map_or(&[], |entry| &entry.conditions), now, list: Vec::new() }
    }

    pub(super) fn add(&mut self, kind: &str, holds: bool, reason: &str, message: impl Into<String>) {
        let status = if holds { "True" } else { "False" };
        let same = self.stored.iter().find(|stored| stored.kind == kind && stored.status == status);
        let since = same.map(|stored| stored.since.clone()).filter(|since| !since.is_empty());
        self.list.push(StatusCondition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.into(),
            since: since.unwrap_or_else(|| self.now.to_owned()),
        });
    }

    pub(super) fn paused(&mut self, paused: bool) {
        if paused {
            self.add(kind::PAUSED, true, "Paused", "changes are paused here; this is only observed");
        }
    }

    /// What a pass leaves behind, whatever it was for: obstacles and failures.
    pub(super) fn of_pass(&mut self, done: &Done) {
        let Done { steps: _, failures, obstacles, absence: _, absence_observations: _ } = done;
        let of = |reasons: &[&str]| obstacles.iter().filter(|one| reasons.contains(&one.reason)).collect::<Vec<_>>();
        let blocking = of(&[obstacle::FOREIGN, obstacle::OTHER_ENDPOINT]);
        if let Some(first) = blocking.first() {
            self.add(kind::BLOCKED, true, first.reason, named(&blocking));
        }
        let awaited = of(&[obstacle::TERMINATING, obstacle::TABLE_AWAY]);
        if let Some(first) = awaited.first() {
            let words = match first.reason {
                obstacle::TABLE_AWAY => "nothing is removed while the table cannot be read",
                _ => "an earlier object is still being deleted",
            };
            self.add(kind::PROGRESSING, true, first.reason, format!("{words}: {}", named(&awaited)));
        }
        let held = of(&[obstacle::RESTART_WAITS, obstacle::RESTARTS_STOPPED]);
        if let Some(first) = held.first() {
            // Nothing in the words changes while it waits: every change would be a write of the row.
            let words = match first.reason {
                obstacle::RESTARTS_STOPPED => {
                    "restarts that no edit asked for have failed in this region; after a look, \
                     'gco inference refresh --clear' lets them go on"
                }
                _ => "a restart that no edit asked for waits for its turn: only a few go at once in a region",
            };
            self.add(kind::RESTART_HELD, true, first.reason, format!("{words}: {}", named(&held)));
        }
        let futile = of(&[obstacle::WRITE_WITHOUT_EFFECT]);
        if let Some(failure) = worst(failures) {
            self.add(kind::RECONCILED, false, word(failure.category), failure_text(failure));
        } else if let Some(first) = futile.first() {
            let words = "the API server answers the write with unchanged content; it is not repeated";
            self.add(kind::RECONCILED, false, first.reason, format!("{words}: {}", named(&futile)));
        }
    }

    pub(super) fn finish(self) -> Vec<StatusCondition> {
        self.list
    }
}

/// The objects' names and, where they differ, reasons.
fn named(obstacles: &[&Obstacle]) -> String {
    obstacles.iter().map(|Obstacle { key, reason }| format!("{key} ({reason})")).collect::<Vec<_>>().join(", ")
}

/// `blocked_by` of an entry: what is in the way and not ours.
pub(super) fn blocked_by(obstacles: &[Obstacle]) -> Vec<String> {
    let not_ours = [obstacle::FOREIGN, obstacle::OTHER_ENDPOINT];
    obstacles.iter().filter(|one| not_ours.contains(&one.reason)).map(|one| one.key.to_string()).collect()
}

/// The failure that matters most: one that waiting does not mend.
pub(super) fn worst(failures: &[Failure]) -> Option<&Failure> {
    failures.iter().min_by_key(|failure| match failure.category {
        Category::Bug => 0,
        Category::Invalid => 1,
        Category::Forbidden => 2,
        Category::Unavailable => 3,
        Category::Throttled => 4,
        Category::Conflict => 5,
        Category::Fenced => 6,
    })
}

pub(super) fn failure_text(failure: &Failure) -> String {
    let Failure { key, category: _, message } = failure;
    let object: Option<&ObjectKey> = key.as_ref();
    object.map_or_else(|| message.clone(), |key| format!("{key}: {message}"))
}

/// The category as a CamelCase reason.
fn word(category: Category) -> &'static str {
    match category {
        Category::Invalid => "Invalid",
        Category::Conflict => "Conflict",
        Category::Forbidden => "Forbidden",
        Category::Throttled => "Throttled",
        Category::Unavailable => "Unavailable",
        Category::Fenced => "Fenced",
        Category::Bug => "Unexpected",
    }
}
