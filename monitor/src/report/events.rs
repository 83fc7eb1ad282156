//! Which Kubernetes Events a change of a region's entry is worth. Pure: what was stored and what is written, in; notes out.
//!
//! Few reasons, and stable ones: alarms and people search by them. Nothing is said while nothing changes.

use gco_store::problem::bounded;
use gco_store::status::{RegionEntry, State, StatusCondition};

/// Longest note that an API server takes, in bytes; ours are cut well below.
const LONGEST_NOTE_CHARACTERS: usize = 800;

/// Most Events of one change.
pub const MOST_PER_CHANGE: usize = 3;

/// Why an Event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventReason {
    /// The region can serve requests, after it could not.
    Serving,
    /// The region cannot serve requests any more though it should.
    NotServing,
    /// It serves with less than asked for.
    Degraded,
    /// It serves all that is asked for again.
    Recovered,
    /// A rollout cannot go on.
    RolloutStuck,
    /// The row cannot be served as it is.
    Rejected,
    /// Something that is not ours stands in the way.
    Blocked,
    /// It holds no pods, as asked.
    Stopped,
    /// It was removed, as asked.
    Removed,
}

impl EventReason {
    /// Every reason.
    pub const ALL: [Self; 9] = [
        Self::Serving,
        Self::NotServing,
        Self::Degraded,
        Self::Recovered,
        Self::RolloutStuck,
        Self::Rejected,
        Self::Blocked,
        Self::Stopped,
        Self::Removed,
    ];

    /// `reason` of the Event.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "Serving",
            Self::NotServing => "NotServing",
            Self::Degraded => "Degraded",
            Self::Recovered => "Recovered",
            Self::RolloutStuck => "RolloutStuck",
            Self::Rejected => "Rejected",
            Self::Blocked => "Blocked",
            Self::Stopped => "Stopped",
            Self::Removed => "Removed",
        }
    }

    /// `type` of the Event.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Self::Serving | Self::Recovered | Self::Stopped | Self::Removed => "Normal",
            Self::NotServing | Self::Degraded | Self::RolloutStuck | Self::Rejected | Self::Blocked => "Warning",
        }
    }
}

/// One Event to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    /// Why.
    pub reason: EventReason,
    /// Words for people, bounded and clean.
    pub note: String,
}

/// The Events of a change from one entry to the next, the most important first.
#[must_use]
pub fn events(before: Option<&RegionEntry>, after: &RegionEntry) -> Vec<EventNote> {
    let was = |state: &State| before.is_some_and(|before| before.state == *state);
    let is = |state: &State| after.state == *state;
    let became = |state: &State| is(state) && !was(state);
    let counts = format!("{} of {} pods are ready", after.replicas_ready, after.replicas_desired);
    let error = || after.error.clone().unwrap_or_else(|| counts.clone());
    let mut notes = Vec::new();
    let mut note = |reason: EventReason, text: String| {
        notes.push(EventNote { reason, note: bounded(&text, LONGEST_NOTE_CHARACTERS) });
    };
    // An endpoint whose last good spec goes on serving is rejected all the same.
    let rejected = |entry: &RegionEntry| {
        let refusal = |condition: &StatusCondition| {
            ["Accepted", "SpecValid"].contains(&condition.kind.as_str()) && condition.status == "False"
        };
        entry.state == State::Failed || entry.conditions.iter().any(refusal)
    };
    if rejected(after) && !before.is_some_and(rejected) {
        note(EventReason::Rejected, error());
    }
    let should_serve = !matches!(after.state, State::Stopping | State::Stopped | State::Deleting | State::Deleted);
    if was(&State::Running) && !is(&State::Running) && should_serve && !is(&State::Failed) {
        note(EventReason::NotServing, error());
    }
    if became(&State::Running) {
        note(EventReason::Serving, counts.clone());
    }
    let was_blocked = before.is_some_and(|before| !before.blocked_by.is_empty());
    if !after.blocked_by.is_empty() && !was_blocked {
        note(EventReason::Blocked, format!("in the way and not ours: {}", after.blocked_by.join(", ")));
    }
    let stuck = |entry: &RegionEntry| entry.rollout.as_ref().and_then(|rollout| rollout.stuck.clone());
    if let Some(why) = stuck(after)
        && before.is_none_or(|before| stuck(before).is_none())
    {
        note(EventReason::RolloutStuck, format!("{why}; {}", error()));
    }
    // Both are about serving with less; whether it serves at all is said above.
    if was(&State::Running) && is(&State::Running) {
        match (before.is_some_and(|before| before.degraded), after.degraded) {
            (false, true) => note(EventReason::Degraded, counts.clone()),
            (true, false) => note(EventReason::Recovered, counts.clone()),
            _ => {}
        }
    }
    if became(&State::Stopped) && before.is_some() {
        note(EventReason::Stopped, "no pods are left, as asked".to_owned());
    }
    if became(&State::Deleted) {
        note(EventReason::Removed, "nothing of the endpoint is left here, as asked".to_owned());
    }
    notes.truncate(MOST_PER_CHANGE);
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use gco_store::status::Rollout;

    fn entry(state: State) -> RegionEntry {
        RegionEntry { replicas_ready: 1, replicas_desired: 2, ..RegionEntry::new(state) }
    }

    fn reasons(before: Option<&RegionEntry>, after: &RegionEntry) -> Vec<&'static str> {
        events(before, after).iter().map(|note| note.reason.as_str()).collect()
    }

    #[test]
    fn a_life_of_an_endpoint_has_few_events() {
        let creating = entry(State::Creating);
        let serving = entry(State::Running);
        let degraded = RegionEntry { degraded: true, ..entry(State::Running) };
        assert_eq!(reasons(None, &creating), [""; 0]);
        assert_eq!(reasons(Some(&creating), &serving), ["Serving"]);
        assert_eq!(reasons(Some(&serving), &degraded), ["Degraded"]);
        assert_eq!(reasons(Some(&degraded), &serving), ["Recovered"]);
        assert_eq!(reasons(Some(&degraded), &creating), ["NotServing"]);
        assert_eq!(reasons(Some(&serving), &entry(State::Stopping)), [""; 0]);
        assert_eq!(reasons(Some(&entry(State::Stopping)), &entry(State::Stopped)), ["Stopped"]);
        assert_eq!(reasons(Some(&entry(State::Deleting)), &entry(State::Deleted)), ["Removed"]);
    }

    #[test]
    fn what_stays_as_it_is_has_none() {
        let blocked = RegionEntry { blocked_by: vec!["service/a".to_owned()], ..entry(State::Running) };
        let rollout = Rollout { updated: 1, updated_ready: 0, total: 2, stuck: Some("FailedCreate".to_owned()) };
        let stuck = RegionEntry { rollout: Some(rollout), ..entry(State::Running) };
        for same in [entry(State::Running), entry(State::Failed), entry(State::Deleted), blocked.clone(), stuck.clone()]
        {
            assert_eq!(reasons(Some(&same), &same), [""; 0], "{same:?}");
        }
        assert_eq!(reasons(Some(&entry(State::Running)), &blocked), ["Blocked"]);
        assert_eq!(reasons(Some(&entry(State::Running)), &stuck), ["RolloutStuck"]);
    }

    #[test]
    fn a_rejection_says_why_and_a_note_is_bounded() {
        let error = Some(format!("GCO-1001: {}", "x".repeat(5_000)));
        let rejected = RegionEntry { error, ..entry(State::Failed) };
        let notes = events(Some(&entry(State::Running)), &rejected);
        assert_eq!(notes.len(), 1, "an endpoint that is rejected is not also said not to serve");
        assert!(notes[0].note.starts_with("GCO-1001: x") && notes[0].note.len() <= 1_024, "{}", notes[0].note.len());
        assert_eq!(notes[0].reason.kind(), "Warning");
    }
}
