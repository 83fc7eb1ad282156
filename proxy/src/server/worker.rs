//! What every request needs: one worker per core, each with a runtime and connections to engines of its own.
//!
//! Requests never leave the worker that their connection was given to, so nothing on their way is shared with another core
//! but the counters of the fleet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use gco_runtime::random::Randomness;
use http::header::HeaderName;
use http::{Response, StatusCode, request};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::account::Observer;
use super::client_io::Patience;
use super::ids::Ids;
use crate::admin::Admin;
use crate::backends::Fleet;
use crate::exchange::Rules;
use crate::front::Tls;
use crate::relay::headers::Forwarded;
use crate::relay::upstream::Pool;

/// Answers that the proxy gives by itself: health, metrics, administration.
pub trait Routes: Send + Sync {
    /// The answer, when the request is for the proxy itself.
    fn answer(&self, request: &request::Parts) -> Option<Response<Bytes>>;
}

impl Routes for Admin {
    fn answer(&self, request: &request::Parts) -> Option<Response<Bytes>> {
        Self::answer(self, request)
    }
}

/// What holds for all requests.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connector and policy.
    pub rules: Rules,
    /// Whether there is any source of prefill backends; without one every request is served by decode.
    pub has_prefill: bool,
    /// Headers that go to engines besides the contract's.
    pub forwarded: Forwarded,
    /// The header whose value keeps requests together on one backend.
    pub affinity: Option<HeaderName>,
    /// What a client gets when there is no decode backend (contract D.4).
    pub no_decode_status: StatusCode,
    /// The message that goes with it.
    pub no_decode_message: String,
    /// For prefill's answer.
    pub prefill_time_out: Duration,
    /// From prefill's answer to decode's first event.
    pub hand_off_time_out: Duration,
    /// For a connection to an engine.
    pub connect_time_out: Duration,
    /// For the beginning of decode's answer when nothing is handed over.
    pub answer_time_out: Duration,
    /// Between two pieces of decode's answer.
    pub idle_time_out: Duration,
    /// Between two pieces of a request's body.
    pub body_time_out: Duration,
    /// How long clients may do nothing otherwise.
    pub patience: Patience,
    /// How long an idle connection to an engine is kept.
    pub pool_idle: Duration,
    /// The longest body of a request.
    pub max_body_bytes: usize,
    /// The longest head of a request.
    pub max_header_bytes: usize,
    /// The most connections of clients.
    pub max_connections: usize,
    /// How many workers there are.
    pub workers: usize,
    /// How long running requests may take after the signal to stop.
    pub drain: Duration,
    /// Which share of the requests is logged, from 0 to 1.
    pub access_log_sample: f64,
}

/// What all workers share.
pub struct Shared {
    /// What holds for all requests.
    pub options: Options,
    /// The engines.
    pub fleet: Fleet,
    /// Takes note of requests that ended.
    pub observer: Arc<dyn Observer>,
    /// Answers that are not an engine's.
    pub routes: Arc<dyn Routes>,
    /// The front door's TLS; `None`: plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// Cancelled when no new request is to be begun.
    pub stop: CancellationToken,
}

/// One worker.
pub struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) pool: Arc<Pool>,
    pub(super) ids: Ids,
    /// Connections of clients that it has now.
    pub(super) connections: AtomicUsize,
    leaving: AtomicBool,
    left: CancellationToken,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Worker").field("connections", &self.connections).finish_non_exhaustive()
    }
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, randomness: &dyn Randomness) -> Arc<Self> {
        let pool = Arc::new(Pool::new(shared.options.pool_idle));
        let (leaving, left) = (AtomicBool::new(false), CancellationToken::new());
        Arc::new(Self { shared, pool, ids: Ids::new(randomness), connections: AtomicUsize::new(0), leaving, left })
    }

    /// From now on its connections end after the answers under way.
    pub(super) fn leave(&self) {
        // The flag before the call: whoever is called looks at the flag.
        self.leaving.store(true, Ordering::Release);
        self.left.cancel();
    }

    /// Whether [`Worker::leave`] was called: one load, for every time that a connection does anything.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Ends with [`Worker::leave`].
    pub(super) fn left(&self) -> WaitForCancellationFuture<'_> {
        self.left.cancelled()
    }

    pub(super) fn options(&self) -> &Options {
        &self.shared.options
    }

    /// How many connections of clients it has.
    pub(super) fn load(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Whether this request is one of those that are logged.
    pub(super) fn is_sampled(&self) -> bool {
        let share = self.options().access_log_sample;
        share > 0.0 && {
            // The upper 53 bits are what a double can hold.
            let random = (self.ids.random() >> 11) as f64 / (1_u64 << 53) as f64;
            random < share
        }
    }
}
