//! What is kept of a request for metrics and the access log, until its last byte.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::uri::PathAndQuery;
use tokio::time::Instant;

use super::gaps::Gaps;
use super::worker::Worker;
use crate::admin::metrics::Metrics;
use crate::exchange::Outcome;

/// Takes note of requests that ended.
pub trait Observer: Send + Sync {
    /// A request ended, in whatever way.
    fn ended(&self, ended: &Ended<'_>);
}

/// A request that ended.
#[derive(Debug)]
pub struct Ended<'a> {
    /// How its exchange ended; `None` for requests that have none, such as `GET /v1/models`.
    pub outcome: Option<Outcome>,
    /// The status that the client got; `None` when it left before.
    pub status: Option<u16>,
    /// From the request to its end.
    pub whole: Duration,
    /// From sending the last prefill leg to its answer.
    pub prefill: Option<Duration>,
    /// From the request to decode's first event.
    pub first_event: Option<Duration>,
    /// Between the pieces of a stream.
    pub gaps: &'a Gaps,
    /// Whether decode broke off after its first event.
    pub broken: bool,
}

impl Observer for Metrics {
    fn ended(&self, ended: &Ended<'_>) {
        self.request(ended.status, ended.whole);
        if let Some(outcome) = ended.outcome {
            self.exchange(outcome);
        }
        if let Some(prefill) = ended.prefill {
            self.prefill(prefill);
        }
        if let Some(first_event) = ended.first_event {
            self.first_event(first_event);
        }
        if !ended.gaps.is_empty() {
            self.event_gaps(ended.gaps.counts(), ended.gaps.sum());
        }
        if ended.broken {
            self.broken_stream();
        }
    }
}

/// The account of one request; its end is the moment when this is dropped.
pub(super) struct Account {
    worker: Arc<Worker>,
    started: Instant,
    path: PathAndQuery,
    request_id: Option<HeaderValue>,
    /// The transfer id of the last try.
    pub(super) transfer_id: Option<String>,
    /// Whether the request is one that could have had an exchange.
    pub(super) is_exchange: bool,
    pub(super) outcome: Option<Outcome>,
    pub(super) status: Option<u16>,
    pub(super) prefill: Option<Duration>,
    pub(super) first_event: Option<Duration>,
    pub(super) gaps: Gaps,
    pub(super) broken: bool,
}

impl Account {
    pub(super) fn new(worker: Arc<Worker>, path: PathAndQuery, now: Instant) -> Self {
        Self {
            worker,
            started: now,
            path,
            request_id: None,
            transfer_id: None,
            is_exchange: false,
            outcome: None,
            status: None,
            prefill: None,
            first_event: None,
            gaps: Gaps::default(),
            broken: false,
        }
    }

    pub(super) fn named(&mut self, request_id: HeaderValue) {
        self.request_id = Some(request_id);
    }

    /// Decode's first event is here.
    pub(super) fn begins(&mut self, now: Instant) {
        self.first_event = Some(now.saturating_duration_since(self.started));
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if self.is_exchange && self.outcome.is_none() {
            // Nobody is left to be told: every leg was dropped, and so closed, with the client.
            self.outcome = Some(Outcome::Abandoned);
        }
        let whole = Instant::now().saturating_duration_since(self.started);
        let shared = &self.worker.shared;
        shared.observer.ended(&Ended {
            outcome: self.outcome,
            status: self.status,
            whole,
            prefill: self.prefill,
            first_event: self.first_event,
            gaps: &self.gaps,
            broken: self.broken,
        });
        if self.worker.is_sampled() {
            let seconds = |duration: Option<Duration>| duration.map(|duration| duration.as_secs_f64());
            tracing::info!(
                path = self.path.path(),
                request_id = self.request_id.as_ref().and_then(|id| id.to_str().ok()),
                transfer_id = self.transfer_id,
                outcome = self.outcome.map(Outcome::word),
                reason = self.outcome.and_then(Outcome::reason).map(crate::exchange::Reason::word),
                status = self.status,
                broken = self.broken,
                seconds = whole.as_secs_f64(),
                prefill_seconds = seconds(self.prefill),
                first_event_seconds = seconds(self.first_event),
                "request"
            );
        }
    }
}
