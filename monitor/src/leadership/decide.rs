//! What to do about the Lease. Pure: the time is a parameter.
//!
//! The rule is client-go's: times that others wrote are never believed. Somebody else's Lease has expired when *we* have
//! seen it unchanged, on our own boot clock, for the duration that it states. So clocks may differ by any offset.

use std::time::Duration;

use gco_runtime::clock::BootTime;

use super::record::{Fingerprint, LeaseRecord};
use crate::identity::LeaderMark;

/// A leadership of ours, or one that we asked for and were not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mine {
    /// Our marks.
    pub mark: LeaderMark,
    /// When the last successful write (or the unanswered one) was **sent**.
    pub sent_at: BootTime,
    /// Whether the write was answered.
    pub answered: bool,
}

/// What we remember between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// The record as last seen, and when it was first seen so.
    pub seen: Option<(Fingerprint, BootTime)>,
    /// Our leadership, if we have one or asked for one.
    pub mine: Option<Mine>,
}

impl Memory {
    /// Takes note of a look at the Lease that was answered at `now`.
    pub fn look(&mut self, record: Option<&LeaseRecord>, now: BootTime) {
        let Some(record) = record else {
            self.seen = None;
            return;
        };
        let fingerprint = record.fingerprint();
        if self.seen.as_ref().is_none_or(|(known, _)| *known != fingerprint) {
            self.seen = Some((fingerprint, now));
        }
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// There is no Lease: POST one (a PUT could bring back a deleted one).
    Create,
    /// It is free, or expired as we saw it: PUT with uid and version, a new epoch and a higher term.
    Acquire,
    /// It is ours: PUT a new renew time.
    Renew,
    /// An unanswered write of ours did happen: it is ours since that was sent.
    Confirm,
    /// Somebody holds it; nothing to do before this long.
    Wait(Duration),
    /// It was ours and is not any more: the claim ends now.
    Lost,
}

/// Decides. `record` is the Lease as just read, `fallback` the duration of a Lease that states none.
#[must_use]
pub fn decide(
    record: Option<&LeaseRecord>,
    holder: &str,
    memory: &Memory,
    fallback: Duration,
    now: BootTime,
) -> Action {
    let Some(record) = record else {
        // Whoever deleted our Lease took our leadership; creating a new one starts a new term.
        return if memory.mine.as_ref().is_some_and(|mine| mine.answered) { Action::Lost } else { Action::Create };
    };
    if let Some(mine) = &memory.mine {
        if record.is_held_by(holder, &mine.mark) {
            return if mine.answered { Action::Renew } else { Action::Confirm };
        }
        if mine.answered {
            return Action::Lost;
        }
    }
    // Our own holder name with an epoch that is not this process's: an earlier process, which may still have a write
    // under way. It is waited for like anybody else's.
    if record.holder.is_none() {
        return Action::Acquire;
    }
    let duration = record.duration.unwrap_or(fallback);
    let first_seen = match &memory.seen {
        Some((fingerprint, first_seen)) if *fingerprint == record.fingerprint() => *first_seen,
        _ => now,
    };
    let unchanged_for = now.saturating_duration_since(first_seen);
    if unchanged_for >= duration { Action::Acquire } else { Action::Wait(duration.saturating_sub(unchanged_for)) }
}

/// When the claim ends that the Lease gives whose last write of ours was **sent** at `sent_at`: counted from the answer, two
/// monitors could both believe to lead.
#[must_use]
pub fn claim_ends(sent_at: BootTime, duration: Duration, margin: Duration) -> BootTime {
    sent_at + duration.saturating_sub(margin)
}

/// How long a change may take that begins at `now` under a claim that ends at `ends`; `None`: it must not begin.
#[must_use]
pub fn time_for_a_change(ends: BootTime, now: BootTime, minimum: Duration) -> Option<Duration> {
    let left = ends.saturating_duration_since(now);
    (left >= minimum).then_some(left)
}

/// The term of a new leader: above everything that any leader before it can have written.
#[must_use]
pub fn next_term(lease_transitions: u64, highest_term_on_objects: u64) -> u64 {
    lease_transitions.max(highest_term_on_objects).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::super::record::{acquired, created, released, renewed};
    use super::*;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    const SECOND: Duration = Duration::from_secs(1);
    const LEASE: Duration = Duration::from_secs(15);

    fn mark(epoch: &str, term: u64) -> LeaderMark {
        LeaderMark { epoch: epoch.to_owned(), term }
    }

    fn stored(mut body: Value) -> LeaseRecord {
        body["metadata"]["uid"] = json!("u1");
        body["metadata"]["resourceVersion"] = json!("7");
        LeaseRecord::parse(body).unwrap()
    }

    fn others(epoch: &str) -> LeaseRecord {
        stored(created("n", "other", &mark(epoch, 4), LEASE, Timestamp::UNIX_EPOCH))
    }

    fn at(seconds: u64) -> BootTime {
        BootTime::since_boot(Duration::from_secs(1_000 + seconds))
    }

    fn decided(record: Option<&LeaseRecord>, memory: &Memory, now: BootTime) -> Action {
        decide(record, "me", memory, LEASE, now)
    }

    #[test]
    fn no_lease_is_created_and_a_free_one_taken() {
        let memory = Memory::default();
        assert_eq!(decided(None, &memory, at(0)), Action::Create);
        let free = stored(released(&others("e"), Timestamp::UNIX_EPOCH).clone());
        assert_eq!(decided(Some(&free), &memory, at(0)), Action::Acquire);
    }

    #[test]
    fn somebody_elses_lease_expires_by_our_own_clock_only() {
        let record = others("e");
        let mut memory = Memory::default();
        // Its renew time is in 1970; that it looks long expired does not count.
        assert_eq!(decided(Some(&record), &memory, at(0)), Action::Wait(LEASE));
        memory.look(Some(&record), at(0));
        assert_eq!(decided(Some(&record), &memory, at(14)), Action::Wait(SECOND));
        assert_eq!(decided(Some(&record), &memory, at(15)), Action::Acquire);
        // A renewal starts the count anew.
        let renewed = stored(renewed(&record, LEASE, Timestamp::UNIX_EPOCH + SECOND));
        assert_eq!(decided(Some(&renewed), &memory, at(15)), Action::Wait(LEASE));
        memory.look(Some(&renewed), at(15));
        assert_eq!(decided(Some(&renewed), &memory, at(29)), Action::Wait(SECOND));
    }

    #[test]
    fn a_foreign_leases_own_duration_counts() {
        let mut body = others("e").body;
        body["spec"]["leaseDurationSeconds"] = json!(45);
        let record = stored(body.clone());
        let mut memory = Memory::default();
        memory.look(Some(&record), at(0));
        assert_eq!(decided(Some(&record), &memory, at(44)), Action::Wait(SECOND));
        body["spec"]["leaseDurationSeconds"] = json!(0);
        let record = stored(body);
        memory.look(Some(&record), at(44));
        assert_eq!(decided(Some(&record), &memory, at(44)), Action::Wait(LEASE));
    }

    #[test]
    fn our_name_with_another_epoch_is_somebody_else() {
        let record = stored(created("n", "me", &mark("earlier process", 4), LEASE, Timestamp::UNIX_EPOCH));
        let mut memory = Memory::default();
        memory.look(Some(&record), at(0));
        assert_eq!(decided(Some(&record), &memory, at(1)), Action::Wait(LEASE - SECOND));
    }

    #[test]
    fn ours_is_renewed_and_lost_when_anything_of_it_differs() {
        let record = stored(created("n", "me", &mark("mine", 4), LEASE, Timestamp::UNIX_EPOCH));
        let mine =
            |answered| Memory { seen: None, mine: Some(Mine { mark: mark("mine", 4), sent_at: at(0), answered }) };
        assert_eq!(decided(Some(&record), &mine(true), at(1)), Action::Renew);
        assert_eq!(decided(Some(&record), &mine(false), at(1)), Action::Confirm);
        let taken = stored(acquired(&record, "other", &mark("theirs", 5), LEASE, Timestamp::UNIX_EPOCH));
        assert_eq!(decided(Some(&taken), &mine(true), at(1)), Action::Lost);
        assert_eq!(decided(None, &mine(true), at(1)), Action::Lost);
        // What was only asked for cannot be lost.
        assert_eq!(decided(Some(&taken), &mine(false), at(1)), Action::Wait(LEASE));
        assert_eq!(decided(None, &mine(false), at(1)), Action::Create);
    }

    #[test]
    fn a_term_is_above_the_lease_and_above_every_object() {
        assert_eq!(next_term(0, 0), 1);
        assert_eq!(next_term(7, 3), 8);
        // A Lease that was deleted starts at 0 again; objects remember.
        assert_eq!(next_term(0, 41), 42);
    }
}
