//! One engine.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use http::HeaderValue;

use super::breaker::Breaker;
use super::engines::EngineCache;

/// What an engine does in an exchange. A leg is never sent to an engine of the other role: it would end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Computes the prompt's KV cache.
    Prefill,
    /// Generates the answer.
    Decode,
}

impl Role {
    /// Both, prefill first.
    pub const ALL: [Self; 2] = [Self::Prefill, Self::Decode];

    /// The word in metrics, logs and files.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    /// Position in arrays with one place per role.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Prefill => 0,
            Self::Decode => 1,
        }
    }
}

/// Identity of an engine: the pod's UID, or the address of one that is not a pod. Never an address that pods share or
/// inherit: a restarted pod at the same address has other engine ids.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendKey(Arc<str>);

impl BackendKey {
    /// A key from its text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BackendKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Where a connection goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dial {
    /// An address, as pods have.
    Address(SocketAddr),
    /// A name, looked up for each connection.
    Name {
        /// The host, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
}

impl fmt::Display for Dial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(formatter),
            Self::Name { host, port } => write!(formatter, "{host}:{port}"),
        }
    }
}

/// The bootstrap server of a prefill instance (contract D.6).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bootstrap {
    /// What decode is told as `remote_bootstrap_addr`: `http://host:port`, without a slash at the end.
    pub address: String,
    /// Where the proxy itself asks `/query`.
    pub dial: Dial,
}

/// What a source says about an engine. Two equal descriptions are the same backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its identity.
    pub key: BackendKey,
    /// Its role.
    pub role: Role,
    /// `host:port`, with brackets around an IPv6 host: the `Host` header, and the name in metrics and logs.
    pub authority: String,
    /// Where it is dialled.
    pub dial: Dial,
    /// Its bootstrap server; `None` for decode engines and for connectors without one.
    pub bootstrap: Option<Bootstrap>,
}

/// Whether an engine can be given requests, as its source says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It can.
    Ready,
    /// Not now: its readiness probe fails, or nobody knows where it listens.
    NotReady,
    /// Its pod is being ended: what runs may finish, nothing new is begun.
    Terminating,
}

impl Availability {
    /// The word in metrics and the admin list.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NotReady => "not-ready",
            Self::Terminating => "terminating",
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Ready => 0,
            Self::NotReady => 1,
            Self::Terminating => 2,
        }
    }

    const fn of(code: u8) -> Self {
        match code {
            0 => Self::Ready,
            1 => Self::NotReady,
            _ => Self::Terminating,
        }
    }
}

/// One engine and what is known of it. Shared; everything that changes is atomic.
pub struct Backend {
    description: Description,
    host_header: HeaderValue,
    /// For choosing by session: mixed with the session's hash.
    hash: u64,
    availability: AtomicU8,
    drained: AtomicBool,
    in_flight: AtomicUsize,
    /// When it became usable, in milliseconds of the fleet's time, for the slow start; 0 = long ago.
    usable_since: AtomicU64,
    requests: AtomicU64,
    failures: AtomicU64,
    /// Passive health.
    pub(super) breaker: Breaker,
    /// The engine ids behind it.
    pub(super) engines: EngineCache,
}

impl fmt::Debug for Backend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Backend")
            .field("key", &self.description.key)
            .field("role", &self.description.role)
            .field("authority", &self.description.authority)
            .field("availability", &self.availability())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl Backend {
    pub(super) fn new(description: Description, availability: Availability, usable_since: u64) -> Self {
        // An authority of a parsed address is made of visible characters; an empty header would only make the engine
        // answer 400, so there is nothing to fail here.
        let host_header =
            HeaderValue::from_str(&description.authority).unwrap_or_else(|_| HeaderValue::from_static(""));
        Self {
            hash: crate::select::hash(description.key.as_str().as_bytes()),
            host_header,
            description,
            availability: AtomicU8::new(availability.code()),
            drained: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            usable_since: AtomicU64::new(usable_since),
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            breaker: Breaker::new(),
            engines: EngineCache::new(),
        }
    }

    /// Its identity.
    pub fn key(&self) -> &BackendKey {
        &self.description.key
    }

    /// Its role.
    pub fn role(&self) -> Role {
        self.description.role
    }

    /// `host:port`: the name in metrics and logs.
    pub fn authority(&self) -> &str {
        &self.description.authority
    }

    /// The `Host` header of requests to it.
    pub fn host_header(&self) -> &HeaderValue {
        &self.host_header
    }

    /// Where it is dialled.
    pub fn dial(&self) -> &Dial {
        &self.description.dial
    }

    /// Its bootstrap server, if it is a prefill instance that has one.
    pub fn bootstrap(&self) -> Option<&Bootstrap> {
        self.description.bootstrap.as_ref()
    }

    /// Everything that the source says of it and that does not change.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Whether its source says that it can be used.
    pub fn availability(&self) -> Availability {
        Availability::of(self.availability.load(Ordering::Relaxed))
    }

    /// Whether an administrator keeps new requests away from it.
    pub fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Relaxed)
    }

    /// Requests that were given to it and have not ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Requests that were ever given to it.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Of these, the ones that failed by its fault.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Whether it may be given requests, breaker and limits aside.
    pub fn is_wanted(&self) -> bool {
        self.availability() == Availability::Ready && !self.is_drained()
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// What its source says now. A change to ready forgets what was known of the process behind it: it may be another.
    pub(super) fn set_availability(&self, availability: Availability, now: u64) {
        let before = Availability::of(self.availability.swap(availability.code(), Ordering::Relaxed));
        if before != availability {
            self.engines.clear();
        }
        if availability == Availability::Ready && before != Availability::Ready {
            self.breaker.reset();
            self.usable_since.store(now, Ordering::Relaxed);
        }
    }

    /// Keeps new requests away, or lets them come again; says whether that changed something.
    pub(super) fn set_drained(&self, drained: bool, now: u64) -> bool {
        let changed = self.drained.swap(drained, Ordering::Relaxed) != drained;
        if changed && !drained {
            self.usable_since.store(now, Ordering::Relaxed);
        }
        changed
    }

    pub(super) fn starts_slowly_from(&self, now: u64) {
        self.usable_since.store(now, Ordering::Relaxed);
    }

    /// Its share of new requests in thousandths of an equal share: less than 1000 during the slow start.
    pub(super) fn weight(&self, now: u64, slow_start: u64) -> u32 {
        crate::select::slow_start_weight(self.usable_since.load(Ordering::Relaxed), now, slow_start)
    }

    /// Takes one place; `false` when `limit` are taken.
    pub(super) fn enter(&self, limit: usize) -> bool {
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= limit {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        true
    }

    pub(super) fn leave(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}
