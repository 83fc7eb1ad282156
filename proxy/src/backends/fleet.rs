//! All backends, and one of them for a request.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::backend::{Availability, Backend, BackendKey, Description, Role};
use super::breaker::{BreakerSettings, Failure, Gate};
use super::engines::{Engines, QueryError};
use crate::select::queue::Queue;
use crate::select::{self, Candidate, Policy};

/// How often one that waits for a place looks without being called: breakers open and close by the clock, too.
const LOOKS_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What a client is told to wait when every place is taken: places come free at any moment.
const RETRY_WHEN_FULL: Duration = Duration::from_secs(1);

/// How backends are chosen and judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetSettings {
    /// `PD_PROXY_SCHEDULING`
    pub policy: Policy,
    /// `GCO_PROXY_MAX_IN_FLIGHT_PER_BACKEND`
    pub max_in_flight: usize,
    /// `GCO_PROXY_QUEUE_LENGTH`, for each role.
    pub queue_length: usize,
    /// `GCO_PROXY_QUEUE_TIMEOUT_SECONDS`
    pub queue_time_out: Duration,
    /// `GCO_PROXY_BREAKER_FAILURES`
    pub breaker_failures: u32,
    /// `GCO_PROXY_BREAKER_OPEN_SECONDS`
    pub breaker_open: Duration,
    /// `GCO_PROXY_BREAKER_LONGEST_OPEN_SECONDS`
    pub breaker_longest: Duration,
    /// `GCO_PROXY_SLOW_START_SECONDS`
    pub slow_start: Duration,
    /// `GCO_PROXY_BOOTSTRAP_TIMEOUT_SECONDS`
    pub bootstrap_time_out: Duration,
}

impl Default for FleetSettings {
    /// The defaults of the reference page.
    fn default() -> Self {
        Self {
            policy: Policy::PowerOfTwo,
            max_in_flight: 4_096,
            queue_length: 1_024,
            queue_time_out: Duration::from_secs(10),
            breaker_failures: 3,
            breaker_open: Duration::from_secs(1),
            breaker_longest: Duration::from_secs(30),
            slow_start: Duration::from_secs(10),
            bootstrap_time_out: Duration::from_secs(5),
        }
    }
}

/// Why there is no backend for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoBackend {
    /// No source names one of this role.
    #[error("no backend of this role is known")]
    NoneKnown,
    /// Some are known, none is ready: not ready, ending, or drained.
    #[error("no backend of this role is ready")]
    NoneReady,
    /// All that are ready failed lately; the next probe is due after this time.
    #[error("every backend of this role failed lately")]
    AllDown {
        /// When the next probe is due.
        retry_after: Duration,
    },
    /// All that could be used were tried for this request.
    #[error("every backend of this role was tried")]
    AllTried,
    /// All that could be used have their limit of requests in flight.
    #[error("every backend of this role has as many requests as it may have")]
    AllFull,
    /// As [`NoBackend::AllFull`], and the queue is full, too.
    #[error("every backend of this role is full, and so is the queue")]
    QueueFull,
    /// As [`NoBackend::AllFull`], and no place came free in time.
    #[error("every backend of this role is full, and the time in the queue is over")]
    QueueTimedOut,
}

impl NoBackend {
    /// The word in metrics, logs and headers.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NoneKnown => "none-known",
            Self::NoneReady => "none-ready",
            Self::AllDown { .. } => "all-down",
            Self::AllTried => "all-tried",
            Self::AllFull => "all-full",
            Self::QueueFull => "queue-full",
            Self::QueueTimedOut => "queue-timed-out",
        }
    }

    /// Whether the proxy's own limits are the reason (429) and not the backends' state (503).
    #[must_use]
    pub const fn is_overload(self) -> bool {
        matches!(self, Self::AllFull | Self::QueueFull | Self::QueueTimedOut)
    }

    /// What a client is told in `Retry-After`: whole seconds, at least one.
    #[must_use]
    pub fn retry_after_seconds(self) -> u64 {
        let wait = match self {
            Self::AllDown { retry_after } => retry_after,
            _ => RETRY_WHEN_FULL,
        };
        wait.as_millis().div_ceil(1_000).max(1).try_into().unwrap_or(u64::MAX)
    }
}

/// The backends of one role, as its source last said.
#[derive(Debug, Default)]
struct Group {
    backends: Vec<Arc<Backend>>,
}

/// What concerns one role.
struct RoleState {
    group: ArcSwap<Group>,
    turn: AtomicUsize,
    queue: Queue,
    /// Whether its source has said anything yet.
    known: AtomicBool,
    source_errors: AtomicU64,
}

struct Inner {
    settings: FleetSettings,
    breaker: BreakerSettings,
    started: Instant,
    roles: [RoleState; 2],
    /// Held while a source's word is taken in; never on the way of a request.
    changing: std::sync::Mutex<()>,
}

/// All backends. Cheap to clone; reading it takes no lock.
#[derive(Clone)]
pub struct Fleet {
    inner: Arc<Inner>,
}

impl fmt::Debug for Fleet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Fleet")
            .field("prefill", &&*self.backends(Role::Prefill))
            .field("decode", &&*self.backends(Role::Decode))
            .finish_non_exhaustive()
    }
}

/// The backends of a role at one moment.
pub struct Backends(arc_swap::Guard<Arc<Group>>);

impl Deref for Backends {
    type Target = [Arc<Backend>];

    fn deref(&self) -> &[Arc<Backend>] {
        &self.0.backends
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX >> 1)
}

impl Fleet {
    /// A fleet without backends. Times are counted from `started`.
    #[must_use]
    pub fn new(settings: FleetSettings, started: Instant) -> Self {
        let role = || RoleState {
            group: ArcSwap::default(),
            turn: AtomicUsize::new(0),
            queue: Queue::new(settings.queue_length),
            known: AtomicBool::new(false),
            source_errors: AtomicU64::new(0),
        };
        let breaker = BreakerSettings {
            failures: settings.breaker_failures.max(1),
            open: milliseconds(settings.breaker_open),
            longest: milliseconds(settings.breaker_longest),
        };
        let inner = Inner { settings, breaker, started, roles: [role(), role()], changing: std::sync::Mutex::new(()) };
        Self { inner: Arc::new(inner) }
    }

    /// How it chooses and judges.
    pub fn settings(&self) -> &FleetSettings {
        &self.inner.settings
    }

    /// Milliseconds of the fleet's time; never 0, which stands for "never" in breakers.
    fn at(&self, now: Instant) -> u64 {
        milliseconds(now.saturating_duration_since(self.inner.started)).saturating_add(1)
    }

    fn role(&self, role: Role) -> &RoleState {
        &self.inner.roles[role.index()]
    }

    /// The backends of a role.
    pub fn backends(&self, role: Role) -> Backends {
        Backends(self.role(role).group.load())
    }

    /// Takes in what a source says of a role: all of its backends, and which of them are ready.
    ///
    /// A backend whose description is as before stays the same one, with its requests, breaker and engine ids. One that
    /// is no longer named gets no new requests; those that it has go on. Newcomers to a fleet that has others start
    /// slowly; the first ones do not.
    pub fn apply(&self, role: Role, described: &[(Description, Availability)], now: Instant) {
        let _changing = self.inner.changing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = self.at(now);
        let state = self.role(role);
        let before = state.group.load();
        let is_first = before.backends.is_empty();
        let mut backends: Vec<Arc<Backend>> = Vec::with_capacity(described.len());
        for (description, availability) in described.iter().filter(|(description, _)| description.role == role) {
            if backends.iter().any(|backend| *backend.key() == description.key) {
                continue;
            }
            let known = before.backends.iter().find(|backend| backend.description() == description);
            if let Some(known) = known {
                if known.availability() != *availability {
                    tracing::info!(
                        backend = known.authority(),
                        key = %known.key(),
                        role = role.word(),
                        availability = availability.word(),
                        "backend changed"
                    );
                }
                known.set_availability(*availability, now);
                backends.push(known.clone());
                continue;
            }
            tracing::info!(
                backend = description.authority,
                key = %description.key,
                role = role.word(),
                availability = availability.word(),
                "backend added"
            );
            let since = if is_first { 0 } else { now };
            let backend = Backend::new(description.clone(), *availability, since);
            // Another address of the same pod: what an administrator said of the pod still holds.
            if before.backends.iter().any(|other| other.key() == backend.key() && other.is_drained()) {
                backend.set_drained(true, now);
            }
            backends.push(Arc::new(backend));
        }
        for gone in before.backends.iter().filter(|old| !backends.iter().any(|new| Arc::ptr_eq(old, new))) {
            tracing::info!(backend = gone.authority(), key = %gone.key(), role = role.word(), "backend removed");
            // Whoever still holds it must not think that it can be used.
            gone.set_availability(Availability::Terminating, now);
        }
        state.group.store(Arc::new(Group { backends }));
        state.known.store(true, Ordering::Relaxed);
        state.queue.everything_changed();
    }

    /// Whether the role's source has said anything yet.
    pub fn is_known(&self, role: Role) -> bool {
        self.role(role).known.load(Ordering::Relaxed)
    }

    /// A source could not be read once more.
    pub fn count_source_error(&self, role: Role) {
        self.role(role).source_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the role's source could not be read.
    pub fn source_errors(&self, role: Role) -> u64 {
        self.role(role).source_errors.load(Ordering::Relaxed)
    }

    /// Whether a backend of the role is ready and not drained. Breakers do not count: they open and close all the time,
    /// and a proxy that is taken out of service for it would never close them.
    pub fn has_ready(&self, role: Role) -> bool {
        self.backends(role).iter().any(|backend| backend.is_wanted())
    }

    /// How many requests wait for a place.
    pub fn waiting(&self, role: Role) -> usize {
        self.role(role).queue.waiting()
    }

    /// The state of a backend's breaker: `closed`, `open` or `half-open`.
    pub fn breaker_word(&self, backend: &Backend, now: Instant) -> &'static str {
        backend.breaker.word(self.at(now), &self.inner.breaker)
    }

    /// Keeps new requests away from a backend (by its key or `host:port`), or lets them come again. Says how many backends
    /// that means; 0: nobody is called so.
    pub fn set_drained(&self, name: &str, drained: bool, now: Instant) -> usize {
        let now = self.at(now);
        let mut meant = 0;
        for role in Role::ALL {
            for backend in self.backends(role).iter() {
                if backend.key().as_str() == name || backend.authority() == name {
                    backend.set_drained(drained, now);
                    meant += 1;
                }
            }
            self.role(role).queue.everything_changed();
        }
        meant
    }

    /// The engines of a prefill backend, from memory or asked now ([`Backend::engines`]).
    ///
    /// # Errors
    /// When its bootstrap server gives no usable answer within the time allowed.
    pub async fn engines(&self, backend: &Backend) -> Result<Arc<Engines>, QueryError> {
        backend.engines(self.inner.settings.bootstrap_time_out).await
    }

    /// Chooses a backend now, without waiting.
    ///
    /// `tried`: what this request was given before. `session`: the value of the affinity header. `random`: anything evenly
    /// distributed.
    ///
    /// # Errors
    /// When there is none, with the reason.
    pub fn pick(
        &self,
        role: Role,
        tried: &[BackendKey],
        session: Option<&[u8]>,
        now: Instant,
        random: u64,
    ) -> Result<Pick, NoBackend> {
        let time = self.at(now);
        let Inner { settings, breaker, .. } = &*self.inner;
        let state = self.role(role);
        let group = state.group.load();
        let slow_start = milliseconds(settings.slow_start);
        let mut candidates: SmallVec<[Candidate; 16]> = SmallVec::new();
        let mut seen = Seen::default();
        for (index, backend) in group.backends.iter().enumerate() {
            if !backend.is_wanted() {
                continue;
            }
            seen.ready += 1;
            if tried.contains(backend.key()) {
                seen.tried += 1;
                continue;
            }
            match backend.breaker.gate(time, breaker) {
                Gate::Closed => {}
                Gate::Open(left) => {
                    seen.down(left);
                    continue;
                }
                Gate::HalfOpen => {
                    // A request that failed before is no probe: it has one try less to give.
                    if tried.is_empty() && backend.breaker.begin_probe(time, breaker) {
                        if backend.enter(settings.max_in_flight) {
                            return Ok(self.picked(backend, true, group.backends.len() > 1));
                        }
                        backend.breaker.probe_abandoned(time);
                    }
                    seen.down(0);
                    continue;
                }
            }
            let in_flight = backend.in_flight();
            if in_flight >= settings.max_in_flight {
                seen.full += 1;
                continue;
            }
            let weight = backend.weight(time, slow_start);
            candidates.push(Candidate { index, in_flight, weight, hash: backend.hash() });
        }
        let turn = state.turn.fetch_add(1, Ordering::Relaxed);
        let session = session.map(select::hash);
        let has_others = candidates.len() + seen.full > 1;
        // Another request may take the last place between the look and the step: then the next best.
        while let Some(index) = select::choose(settings.policy, &candidates, turn, random, session) {
            let backend = &group.backends[index];
            if backend.enter(settings.max_in_flight) {
                return Ok(self.picked(backend, false, has_others));
            }
            seen.full += 1;
            candidates.retain(|candidate| candidate.index != index);
        }
        Err(seen.reason(group.backends.is_empty()))
    }

    /// Chooses a backend; when all are full, waits for a place in the bounded queue.
    ///
    /// # Errors
    /// When there is none, the queue is full, or the time in it is over.
    pub async fn pick_or_wait(
        &self,
        role: Role,
        tried: &[BackendKey],
        session: Option<&[u8]>,
        random: u64,
    ) -> Result<Pick, NoBackend> {
        let queue = &self.role(role).queue;
        // Who comes while others wait does not pass them.
        if queue.waiting() == 0 {
            match self.pick(role, tried, session, Instant::now(), random) {
                Err(NoBackend::AllFull) => {}
                decided => return decided,
            }
        }
        let Some(place) = queue.enter() else { return Err(NoBackend::QueueFull) };
        let deadline = Instant::now() + self.inner.settings.queue_time_out;
        loop {
            let freed = place.freed();
            let until = deadline.min(Instant::now() + LOOKS_AGAIN_AFTER);
            // Called or not: it looks.
            let _ = tokio::time::timeout_at(until, freed).await;
            let now = Instant::now();
            match self.pick(role, tried, session, now, select::mix(random)) {
                Err(NoBackend::AllFull) if now >= deadline => return Err(NoBackend::QueueTimedOut),
                Err(NoBackend::AllFull) => {}
                decided => return decided,
            }
        }
    }

    fn picked(&self, backend: &Arc<Backend>, probe: bool, has_others: bool) -> Pick {
        Pick { backend: backend.clone(), fleet: self.clone(), probe: AtomicBool::new(probe), has_others }
    }
}

/// What a look at all backends of a role found.
#[derive(Debug, Default)]
struct Seen {
    ready: usize,
    tried: usize,
    full: usize,
    down: usize,
    /// The shortest time until a probe.
    left: Option<u64>,
}

impl Seen {
    fn down(&mut self, left: u64) {
        self.down += 1;
        self.left = Some(self.left.map_or(left, |least| least.min(left)));
    }

    fn reason(&self, nothing_known: bool) -> NoBackend {
        if nothing_known {
            NoBackend::NoneKnown
        } else if self.ready == 0 {
            NoBackend::NoneReady
        } else if self.full > 0 {
            NoBackend::AllFull
        } else if self.down > 0 {
            NoBackend::AllDown { retry_after: Duration::from_millis(self.left.unwrap_or_default()) }
        } else {
            NoBackend::AllTried
        }
    }
}

/// A backend that was chosen for a request; counted as in flight until this is dropped, which is at the last byte or when
/// the client has left.
pub struct Pick {
    backend: Arc<Backend>,
    fleet: Fleet,
    /// Whether this request is the breaker's probe and has no verdict yet.
    probe: AtomicBool,
    has_others: bool,
}

impl fmt::Debug for Pick {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Pick").field("backend", &self.backend).finish_non_exhaustive()
    }
}

impl Deref for Pick {
    type Target = Backend;

    fn deref(&self) -> &Backend {
        &self.backend
    }
}

impl Pick {
    /// The backend, to be kept after the request.
    pub fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    /// It answered as a working engine does; 4xx included: a bad request says nothing against the engine.
    pub fn succeeded(&self, now: Instant) {
        let probe = self.probe.swap(false, Ordering::Relaxed);
        if self.backend.breaker.succeeded(probe) {
            self.backend.starts_slowly_from(self.fleet.at(now));
            tracing::info!(backend = self.backend.authority(), role = self.backend.role().word(), "breaker closed");
        }
    }

    /// It failed, and not by the request's or the client's fault.
    pub fn failed(&self, failure: Failure, now: Instant) {
        self.backend.count_failure();
        let probe = self.probe.swap(false, Ordering::Relaxed);
        let inner = &self.fleet.inner;
        let now = self.fleet.at(now);
        if self.backend.breaker.failed(failure, probe, self.has_others, now, &inner.breaker) {
            tracing::warn!(
                backend = self.backend.authority(),
                role = self.backend.role().word(),
                failure = failure.word(),
                "breaker opened"
            );
        }
    }
}

impl Drop for Pick {
    fn drop(&mut self) {
        self.backend.leave();
        if self.probe.load(Ordering::Relaxed) {
            // The next request may probe at once: a time of 1 has passed for everyone.
            self.backend.breaker.probe_abandoned(1);
        }
        self.fleet.role(self.backend.role()).queue.place_freed();
    }
}

#[cfg(test)]
mod tests;
