//! The right to change something, and the gate that every change passes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gco_runtime::clock::{BootTime, Clock};
use tokio::sync::Notify;

use super::decide::time_for_a_change;
use crate::identity::LeaderMark;

/// How long the API server may still work on a request that we gave up on: its own default bound of a request.
const UNANSWERED_LIFETIME: Duration = Duration::from_secs(60);

/// Why a change may not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimOver {
    /// The claim has ended, or too little of it is left.
    #[error("the claim of the region's Lease is over")]
    Over,
    /// The process is ending.
    #[error("the monitor is shutting down")]
    ShuttingDown,
}

impl ClaimOver {
    /// The word of the refused-writes metric.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Over => "claim_over",
            Self::ShuttingDown => "shutting_down",
        }
    }
}

#[derive(Debug, Default)]
struct GateState {
    closed: bool,
    in_flight: u64,
    last_unanswered: Option<BootTime>,
}

/// Counts the changes in flight, so that the Lease is released only after every one was answered.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<GateState>,
    idle: Notify,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets no further change begin and waits until none is in flight.
    pub(super) async fn close(&self) {
        self.lock().closed = true;
        loop {
            let idle = self.idle.notified();
            if self.lock().in_flight == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Whether nothing of ours can still reach an object: no change in flight, and none that was given up on lately.
    pub(super) fn is_quiet(&self, now: BootTime) -> bool {
        let state = self.lock();
        let unanswered =
            state.last_unanswered.is_some_and(|last| now.saturating_duration_since(last) < UNANSWERED_LIFETIME);
        state.in_flight == 0 && !unanswered
    }

    fn leave(&self, unanswered_at: Option<BootTime>) {
        let mut state = self.lock();
        state.in_flight -= 1;
        if unanswered_at.is_some() {
            state.last_unanswered = unanswered_at;
        }
        drop(state);
        self.idle.notify_waiters();
    }
}

struct Inner {
    mark: LeaderMark,
    acquired_at: BootTime,
    /// Boot time in nanoseconds; moves on with every renewal.
    deadline_nanoseconds: AtomicU64,
    ended: AtomicBool,
    minimum: Duration,
    clock: Arc<dyn Clock>,
    gate: Arc<Gate>,
}

/// The right to change endpoints' objects, from one acquisition of the Lease until it ends. Only `leadership` makes one;
/// clones share its fate.
#[derive(Clone)]
pub struct Claim {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Claim {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Claim")
            .field("term", &self.inner.mark.term)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

fn nanoseconds(time: BootTime) -> u64 {
    u64::try_from(time.elapsed_since_boot().as_nanos()).unwrap_or(u64::MAX)
}

impl Claim {
    pub(super) fn new(
        mark: LeaderMark,
        acquired_at: BootTime,
        deadline: BootTime,
        minimum: Duration,
        clock: Arc<dyn Clock>,
        gate: Arc<Gate>,
    ) -> Self {
        let deadline_nanoseconds = AtomicU64::new(nanoseconds(deadline));
        let ended = AtomicBool::new(false);
        Self { inner: Arc::new(Inner { mark, acquired_at, deadline_nanoseconds, ended, minimum, clock, gate }) }
    }

    pub(super) fn extend(&self, deadline: BootTime) {
        self.inner.deadline_nanoseconds.fetch_max(nanoseconds(deadline), Ordering::AcqRel);
    }

    pub(super) fn end(&self) {
        self.inner.ended.store(true, Ordering::Release);
    }

    /// The marks that our writes carry.
    #[must_use]
    pub fn mark(&self) -> &LeaderMark {
        &self.inner.mark
    }

    /// When the Lease was taken.
    #[must_use]
    pub fn acquired_at(&self) -> BootTime {
        self.inner.acquired_at
    }

    /// What is left; zero once it ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.inner.ended.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        self.deadline().saturating_duration_since(self.inner.clock.boot())
    }

    fn deadline(&self) -> BootTime {
        BootTime::since_boot(Duration::from_nanos(self.inner.deadline_nanoseconds.load(Ordering::Acquire)))
    }

    /// Whether a change may begin now. Also the check before a write to the table.
    ///
    /// # Errors
    /// When less than the minimum is left, or the process is ending.
    pub fn check(&self) -> Result<Duration, ClaimOver> {
        if self.inner.gate.lock().closed {
            return Err(ClaimOver::ShuttingDown);
        }
        if self.inner.ended.load(Ordering::Acquire) {
            return Err(ClaimOver::Over);
        }
        time_for_a_change(self.deadline(), self.inner.clock.boot(), self.inner.minimum).ok_or(ClaimOver::Over)
    }

    /// Begins a change of the cluster.
    ///
    /// # Errors
    /// As [`Claim::check`].
    pub fn begin(&self) -> Result<Permit, ClaimOver> {
        // Counted first: a shutdown between check and count would release the Lease under a running change.
        {
            let mut state = self.inner.gate.lock();
            if state.closed {
                return Err(ClaimOver::ShuttingDown);
            }
            state.in_flight += 1;
        }
        let mut permit = Permit { claim: self.clone(), time_left: Duration::ZERO, answered: false };
        match self.check() {
            Ok(time_left) => {
                permit.time_left = time_left;
                Ok(permit)
            }
            Err(over) => {
                permit.answered();
                Err(over)
            }
        }
    }
}

/// One change under way. Dropped without an answer, it counts as one that may still happen.
#[derive(Debug)]
pub struct Permit {
    claim: Claim,
    time_left: Duration,
    answered: bool,
}

impl Permit {
    /// How long the change may take.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.time_left
    }

    /// The server answered, whatever it said.
    pub fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let unanswered_at = (!self.answered).then(|| self.claim.inner.clock.boot());
        self.claim.inner.gate.leave(unanswered_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gco_runtime::clock::ManualClock;

    const SECOND: Duration = Duration::from_secs(1);

    fn claim() -> (Arc<ManualClock>, Arc<Gate>, Claim) {
        let clock = Arc::new(ManualClock::default());
        let gate = Arc::new(Gate::default());
        let now = clock.boot();
        let mark = LeaderMark { epoch: "e".into(), term: 1 };
        let claim = Claim::new(mark, now, now + 13 * SECOND, 2 * SECOND, clock.clone(), gate.clone());
        (clock, gate, claim)
    }

    #[test]
    fn a_change_does_not_begin_with_less_than_the_minimum_left() {
        let (clock, _, claim) = claim();
        clock.advance(11 * SECOND);
        let permit = claim.begin().unwrap();
        assert_eq!(permit.time_left(), 2 * SECOND);
        permit.answered();
        clock.advance(Duration::from_millis(1));
        assert_eq!(claim.begin().unwrap_err(), ClaimOver::Over);
        // A renewal counts from when it was sent.
        claim.extend(clock.boot() + 13 * SECOND);
        assert!(claim.begin().is_ok());
    }

    #[test]
    fn a_suspended_machine_finds_its_claim_over() {
        let (clock, _, claim) = claim();
        clock.advance(3_600 * SECOND);
        assert_eq!(claim.remaining(), Duration::ZERO);
        assert!(claim.begin().is_err());
    }

    #[test]
    fn an_ended_claim_never_comes_back() {
        let (clock, _, claim) = claim();
        claim.end();
        claim.extend(clock.boot() + 3_600 * SECOND);
        assert_eq!(claim.remaining(), Duration::ZERO);
        assert_eq!(claim.clone().begin().unwrap_err(), ClaimOver::Over);
    }

    #[tokio::test]
    async fn closing_waits_for_every_change_in_flight() {
        let (clock, gate, claim) = claim();
        let permit = claim.begin().unwrap();
        let closing = {
            let gate = gate.clone();
            tokio::spawn(async move { gate.close().await })
        };
        while !gate.lock().closed {
            tokio::task::yield_now().await;
        }
        assert!(!gate.is_quiet(clock.boot()));
        assert_eq!(claim.begin().unwrap_err(), ClaimOver::ShuttingDown);
        permit.answered();
        closing.await.unwrap();
        assert!(gate.is_quiet(clock.boot()));
    }

    #[test]
    fn a_change_without_an_answer_keeps_the_gate_busy_for_as_long_as_the_server_may_work_on_it() {
        let (clock, gate, claim) = claim();
        drop(claim.begin().unwrap());
        assert!(!gate.is_quiet(clock.boot()));
        clock.advance(UNANSWERED_LIFETIME);
        assert!(gate.is_quiet(clock.boot()));
    }
}
