//! Passive health of one backend: closed, open, one probe at a time.
//!
//! | State | New requests |
//! |---|---|
//! | closed | all |
//! | open, until a time | none |
//! | half open, from that time on | one, the probe; its success closes the breaker, its failure opens it for twice as long |
//!
//! A probe that ends without a verdict (its client left) gives the place to the next request; one that takes longer than
//! the longest time of being open no longer keeps others from probing. Answers of requests that began before the breaker
//! opened neither close it nor open it for longer: they say nothing about now.
//!
//! Everything is one word that is read without a lock, and times are milliseconds of the fleet's time, never 0.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How a request failed by the backend's fault.
///
/// Answers of 4xx, limits of the proxy and a client that left are no failures of the backend: one client must not be
/// able to take the fleet down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection: refused, unreachable, no such name, or not within the time allowed for connecting.
    Connect,
    /// It answered 503: it says itself that it cannot work now.
    Unavailable,
    /// It answered another 5xx.
    ServerError,
    /// The connection ended before the answer's head.
    Closed,
    /// The connection ended in the middle of the answer.
    Broken,
    /// No answer, or nothing more of it, within the time allowed.
    TimedOut,
    /// Its bootstrap server gave no usable engine id.
    Identity,
}

impl Failure {
    /// The word in logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Unavailable => "unavailable",
            Self::ServerError => "server-error",
            Self::Closed => "closed",
            Self::Broken => "broken",
            Self::TimedOut => "timed-out",
            Self::Identity => "identity",
        }
    }

    /// Whether one such failure says that the next request would fail, too. Others may be one request's fate.
    const fn is_certain(self) -> bool {
        matches!(self, Self::Connect | Self::Unavailable)
    }
}

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Failures in a row that open it. A refused connection or a 503 opens it at once while another backend can be used.
    pub failures: u32,
    /// How long it is open the first time, in milliseconds.
    pub open: u64,
    /// The longest time: each failed probe doubles the time.
    pub longest: u64,
}

/// What a breaker says about a new request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It may go through.
    Closed,
    /// It may ask to be the probe.
    HalfOpen,
    /// It may not; a probe is allowed after this many milliseconds (0: a probe is under way).
    Open(u64),
}

/// Set beside the time at which a probe began.
const PROBING: u64 = 1 << 63;

/// The breaker of one backend.
#[derive(Debug)]
pub struct Breaker {
    /// 0: closed. A time: open until then. A time with [`PROBING`]: a probe that began then is under way.
    state: AtomicU64,
    /// Failures in a row while closed.
    failures: AtomicU32,
    /// How often it opened without closing in between.
    openings: AtomicU32,
}

impl Breaker {
    /// A closed one.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: AtomicU64::new(0), failures: AtomicU32::new(0), openings: AtomicU32::new(0) }
    }

    /// What it says to a request at `now`.
    pub fn gate(&self, now: u64, settings: &BreakerSettings) -> Gate {
        gate(self.state.load(Ordering::Relaxed), now, settings)
    }

    /// The word for metrics and the admin list.
    pub fn word(&self, now: u64, settings: &BreakerSettings) -> &'static str {
        match self.gate(now, settings) {
            Gate::Closed => "closed",
            Gate::HalfOpen | Gate::Open(0) => "half-open",
            Gate::Open(_) => "open",
        }
    }

    /// Takes the probe's place; of several that ask at the same time one gets it.
    pub fn begin_probe(&self, now: u64, settings: &BreakerSettings) -> bool {
        let word = self.state.load(Ordering::Relaxed);
        gate(word, now, settings) == Gate::HalfOpen
            && self.state.compare_exchange(word, now | PROBING, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// A request was answered as it should; says whether that closed the breaker.
    pub fn succeeded(&self, probe: bool) -> bool {
        if !probe {
            // Read first: this is every request, and a store would take the cache line from the other threads.
            if self.failures.load(Ordering::Relaxed) != 0 {
                self.failures.store(0, Ordering::Relaxed);
            }
            return false;
        }
        self.reset();
        true
    }

    /// A request failed; says whether that opened the breaker.
    ///
    /// `has_others`: whether another backend could have been used. Without one, a single refused connection does not make
    /// the whole role unusable for a while.
    pub fn failed(
        &self,
        failure: Failure,
        probe: bool,
        has_others: bool,
        now: u64,
        settings: &BreakerSettings,
    ) -> bool {
        let word = self.state.load(Ordering::Relaxed);
        if probe {
            self.open(now, settings);
            return true;
        }
        if word != 0 {
            return false;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures < settings.failures && !(failure.is_certain() && has_others) {
            return false;
        }
        self.open(now, settings);
        true
    }

    /// The probe ended without a verdict: the next request may probe at once.
    pub fn probe_abandoned(&self, now: u64) {
        let word = self.state.load(Ordering::Relaxed);
        if word & PROBING != 0 {
            // When it fails, somebody has decided meanwhile.
            let _ = self.state.compare_exchange(word, now.max(1), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Closes it and forgets what was.
    pub fn reset(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.openings.store(0, Ordering::Relaxed);
        self.state.store(0, Ordering::Relaxed);
    }

    fn open(&self, now: u64, settings: &BreakerSettings) {
        let before = self.openings.fetch_add(1, Ordering::Relaxed);
        self.state.store(now.saturating_add(open_for(before, settings)) & !PROBING, Ordering::Relaxed);
    }
}

impl Default for Breaker {
    fn default() -> Self {
        Self::new()
    }
}

/// How long it is open after so many openings before: doubled each time, up to the longest.
fn open_for(before: u32, settings: &BreakerSettings) -> u64 {
    // 2^32 times a second is 136 years: no setting reaches further.
    settings.open.saturating_mul(1 << before.min(32)).min(settings.longest).max(1)
}

fn gate(word: u64, now: u64, settings: &BreakerSettings) -> Gate {
    if word == 0 {
        return Gate::Closed;
    }
    if word & PROBING != 0 {
        let began = word & !PROBING;
        // A probe may be a long answer: it must not keep a backend unused for hours.
        return if now >= began.saturating_add(settings.longest) { Gate::HalfOpen } else { Gate::Open(0) };
    }
    if now >= word { Gate::HalfOpen } else { Gate::Open(word - now) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETTINGS: BreakerSettings = BreakerSettings { failures: 3, open: 1_000, longest: 8_000 };

    #[test]
    fn a_refused_connection_opens_it_at_once_when_there_is_another_backend() {
        let breaker = Breaker::new();
        assert!(breaker.failed(Failure::Connect, false, true, 10, &SETTINGS));
        assert_eq!(breaker.gate(10, &SETTINGS), Gate::Open(1_000));
        assert_eq!(breaker.gate(1_009, &SETTINGS), Gate::Open(1));
        assert_eq!(breaker.gate(1_010, &SETTINGS), Gate::HalfOpen);
    }

    #[test]
    fn the_only_backend_is_given_up_after_several_failures_in_a_row() {
        let breaker = Breaker::new();
        assert!(!breaker.failed(Failure::Connect, false, false, 10, &SETTINGS));
        assert!(!breaker.failed(Failure::Unavailable, false, false, 11, &SETTINGS));
        assert!(breaker.failed(Failure::Connect, false, false, 12, &SETTINGS));
        assert_eq!(breaker.word(12, &SETTINGS), "open");
    }

    #[test]
    fn a_success_in_between_begins_the_count_anew() {
        let breaker = Breaker::new();
        for now in 1..100 {
            assert!(!breaker.failed(Failure::ServerError, false, true, now, &SETTINGS));
            assert!(!breaker.failed(Failure::TimedOut, false, true, now, &SETTINGS));
            breaker.succeeded(false);
        }
        assert_eq!(breaker.gate(100, &SETTINGS), Gate::Closed);
    }

    #[test]
    fn one_request_probes_and_its_verdict_counts() {
        let breaker = Breaker::new();
        breaker.failed(Failure::Connect, false, true, 10, &SETTINGS);
        assert!(!breaker.begin_probe(500, &SETTINGS), "too early");
        assert!(breaker.begin_probe(1_010, &SETTINGS));
        assert!(!breaker.begin_probe(1_010, &SETTINGS), "one probe at a time");
        assert_eq!(breaker.gate(1_011, &SETTINGS), Gate::Open(0));
        assert_eq!(breaker.word(1_011, &SETTINGS), "half-open");
        // A failed probe: twice as long.
        assert!(breaker.failed(Failure::Connect, true, true, 1_020, &SETTINGS));
        assert_eq!(breaker.gate(1_020, &SETTINGS), Gate::Open(2_000));
        assert!(breaker.begin_probe(3_020, &SETTINGS));
        assert!(breaker.succeeded(true));
        assert_eq!(breaker.gate(3_020, &SETTINGS), Gate::Closed);
        // And from the beginning again.
        breaker.failed(Failure::Connect, false, true, 4_000, &SETTINGS);
        assert_eq!(breaker.gate(4_000, &SETTINGS), Gate::Open(1_000));
    }

    #[test]
    fn answers_of_requests_from_before_change_nothing_once_it_is_open() {
        let breaker = Breaker::new();
        breaker.failed(Failure::Unavailable, false, true, 10, &SETTINGS);
        assert!(!breaker.failed(Failure::Broken, false, true, 900, &SETTINGS));
        assert!(!breaker.succeeded(false));
        assert_eq!(breaker.gate(900, &SETTINGS), Gate::Open(110));
    }

    #[test]
    fn a_probe_without_verdict_or_without_end_lets_the_next_one_in() {
        let breaker = Breaker::new();
        breaker.failed(Failure::Connect, false, true, 10, &SETTINGS);
        assert!(breaker.begin_probe(1_010, &SETTINGS));
        breaker.probe_abandoned(1_500);
        assert!(breaker.begin_probe(1_500, &SETTINGS));
        assert!(!breaker.begin_probe(9_499, &SETTINGS));
        assert!(breaker.begin_probe(9_500, &SETTINGS), "the longest time has passed since the probe began");
    }

    #[test]
    fn the_time_of_being_open_is_bounded_whatever_happens() {
        for before in 0..200 {
            assert!(open_for(before, &SETTINGS) <= SETTINGS.longest);
        }
        let never = BreakerSettings { failures: 1, open: 0, longest: 0 };
        assert_eq!(open_for(0, &never), 1);
    }

    /// What may happen to a breaker, in any order.
    #[derive(Clone, Debug)]
    enum Happening {
        Later(u64),
        Failed(bool),
        Succeeded,
        Abandoned,
    }

    fn happening() -> impl Strategy<Value = Happening> {
        prop_oneof![
            (0..5_000_u64).prop_map(Happening::Later),
            any::<bool>().prop_map(Happening::Failed),
            Just(Happening::Succeeded),
            Just(Happening::Abandoned),
        ]
    }

    proptest! {
        #[test]
        fn it_never_stays_open_when_the_backend_works(history in proptest::collection::vec(happening(), 0..60)) {
            let breaker = Breaker::new();
            let mut now = 1_u64;
            for happening in history {
                let probe = breaker.begin_probe(now, &SETTINGS);
                match happening {
                    Happening::Later(time) => {
                        now += time;
                        if probe { breaker.probe_abandoned(now); }
                    }
                    Happening::Failed(others) => { breaker.failed(Failure::Connect, probe, others, now, &SETTINGS); }
                    Happening::Succeeded => { breaker.succeeded(probe); }
                    Happening::Abandoned => if probe { breaker.probe_abandoned(now); },
                }
            }
            // Whatever was: from now on the backend works. After the longest time at most, one request closes it.
            now += SETTINGS.longest;
            match breaker.gate(now, &SETTINGS) {
                Gate::Closed => {}
                Gate::HalfOpen => {
                    prop_assert!(breaker.begin_probe(now, &SETTINGS));
                    prop_assert!(breaker.succeeded(true));
                }
                Gate::Open(left) => prop_assert!(false, "still open for {left}"),
            }
            prop_assert_eq!(breaker.gate(now, &SETTINGS), Gate::Closed);
        }
    }
}
