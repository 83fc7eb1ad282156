//! The task that looks at the Lease, writes it, and hands out claims.

use std::sync::Arc;
use std::time::Duration;

use gco_runtime::clock::{BootTime, Clock};
use gco_runtime::random::Randomness;
use http::Method;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::claim::{Claim, Gate};
use super::decide::{Action, Memory, Mine, claim_ends, decide, next_term};
use super::record::{LEASE_NAME, LeaseRecord, acquired, created, released, renewed};
use crate::admin::telemetry::{Telemetry, category_word};
use crate::cluster::api::{Api, Call, FIELD_MANAGER};
use crate::cluster::error::{ApiError, Refusal};
use crate::config::LeaseTimes;
use crate::identity::LeaderMark;
use crate::report::Category;

/// A standby looks at the Lease at least this often, so that a released one is taken within seconds.
const LONGEST_LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Least time between two tries after a failure.
const SHORTEST_RETRY: Duration = Duration::from_millis(200);

/// How long a release may take altogether; the process has to end within seconds.
const RELEASE_BOUND: Duration = Duration::from_secs(3);

/// What others see of the leadership.
#[derive(Clone, Debug)]
pub struct LeadershipView {
    claim: watch::Receiver<Option<Claim>>,
}

impl LeadershipView {
    /// The claim, if this process has one that has not ended.
    #[must_use]
    pub fn claim(&self) -> Option<Claim> {
        self.claim.borrow().clone()
    }

    /// Waits until a claim is handed out or taken back.
    pub async fn changed(&mut self) {
        if self.claim.changed().await.is_err() {
            // The elector has ended; nothing will ever change again.
            std::future::pending::<()>().await;
        }
    }
}

/// What the elector needs.
pub struct ElectorSettings {
    /// Calls to the API server.
    pub api: Api,
    /// Our name in the Lease.
    pub holder: String,
    /// The Lease's times.
    pub times: LeaseTimes,
    /// Clocks.
    pub clock: Arc<dyn Clock>,
    /// Source of epochs.
    pub randomness: Arc<dyn Randomness>,
    /// Metrics.
    pub telemetry: Arc<Telemetry>,
}

/// Looks at the Lease, renews it, takes it when it may.
pub struct Elector {
    settings: ElectorSettings,
    memory: Memory,
    /// The Lease as our last successful write left it.
    held: Option<LeaseRecord>,
    claim: Option<Claim>,
    gate: Arc<Gate>,
    sender: watch::Sender<Option<Claim>>,
}

impl std::fmt::Debug for Elector {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Elector").field("holder", &self.settings.holder).finish_non_exhaustive()
    }
}

impl Elector {
    /// An elector, and the view of what it hands out.
    #[must_use]
    pub fn new(settings: ElectorSettings) -> (Self, LeadershipView) {
        let (sender, claim) = watch::channel(None);
        let gate = Arc::new(Gate::default());
        (Self { settings, memory: Memory::default(), held: None, claim: None, gate, sender }, LeadershipView { claim })
    }

    /// Runs until `stop`, then gives the Lease up if nothing of ours can still reach an object.
    ///
    /// `highest_term` is the highest `gco.io/leader-term` on the objects we own, and `None` while that is not known: until
    /// then no Lease is taken, or the term could be one that the order rule refuses.
    pub async fn run(mut self, stop: CancellationToken, highest_term: impl Fn() -> Option<u64> + Send + Sync) {
        let mut wait = Duration::ZERO;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = tokio::time::sleep(wait) => {}
            }
            // Not interrupted by `stop`: a write whose answer is dropped would leave us not knowing what we hold.
            wait = self.step(&highest_term).await;
        }
        self.give_up().await;
    }

    /// One look and what follows from it; returns how long to wait before the next.
    async fn step(&mut self, highest_term: &impl Fn() -> Option<u64>) -> Duration {
        let times = self.settings.times;
        // A leader knows its Lease from its last write and renews without reading: a changed Lease refuses the write.
        if let Some(held) = self.held.take() {
            return self.renew(held).await;
        }
        let record = match self.read().await {
            Ok(record) => record,
            Err(error) => return self.failed("read", &error),
        };
        let now = self.settings.clock.boot();
        self.memory.look(record.as_ref(), now);
        if let Some(record) = &record {
            self.settings.telemetry.lease_transitions.set(i64::try_from(record.transitions).unwrap_or(i64::MAX));
        }
        match (decide(record.as_ref(), &self.settings.holder, &self.memory, times.duration, now), record) {
            (Action::Create, _) => self.take(None, highest_term()).await,
            (Action::Acquire, Some(record)) => self.take(Some(record), highest_term()).await,
            (Action::Renew, Some(record)) => self.renew(record).await,
            (Action::Confirm, Some(record)) => {
                if let Some(mine) = self.memory.mine.clone() {
                    self.hold(record, mine.mark, mine.sent_at);
                }
                Duration::ZERO
            }
            (Action::Lost, _) => {
                self.lose("the Lease is not ours any more");
                Duration::ZERO
            }
            (Action::Wait(wait), _) => wait.min(LONGEST_LOOK_INTERVAL).max(Duration::from_millis(10)),
            // Acquire, Renew and Confirm are decided only upon a record.
            (Action::Acquire | Action::Renew | Action::Confirm, None) => SHORTEST_RETRY,
        }
    }

    async fn take(&mut self, record: Option<LeaseRecord>, highest_term: Option<u64>) -> Duration {
        let Some(highest_term) = highest_term else {
            tracing::debug!("the Lease is free, but the caches are not complete yet");
            return SHORTEST_RETRY;
        };
        let transitions = record.as_ref().map_or(0, |record| record.transitions);
        let mark = LeaderMark { epoch: self.settings.randomness.token(), term: next_term(transitions, highest_term) };
        let (holder, duration) = (self.settings.holder.clone(), self.settings.times.duration);
        let wall = self.settings.clock.wall();
        let sent_at = self.settings.clock.boot();
        self.memory.mine = Some(Mine { mark: mark.clone(), sent_at, answered: false });
        let answer = match &record {
            None => {
                let body = created(self.settings.api.namespace(), &holder, &mark, duration, wall);
                self.write("create", Method::POST, &body).await
            }
            Some(record) => self.write("update", Method::PUT, &acquired(record, &holder, &mark, duration, wall)).await,
        };
        match answer {
            Ok(record) => {
                self.hold(record, mark, sent_at);
                self.settings.times.renew_interval
            }
            Err(error) => {
                if error.status.is_some_and(|status| status < 500) {
                    // Refused: it certainly did not happen. After a 5xx or no answer it may have.
                    self.memory.mine = None;
                }
                if error.category == Category::Conflict {
                    tracing::info!("somebody else took the Lease first");
                    return SHORTEST_RETRY;
                }
                self.failed("take", &error)
            }
        }
    }

    /// Notes that the Lease is ours since `sent_at`, and hands out or extends the claim.
    fn hold(&mut self, record: LeaseRecord, mark: LeaderMark, sent_at: BootTime) {
        let times = self.settings.times;
        let deadline = claim_ends(sent_at, times.duration, times.margin);
        self.settings.telemetry.lease_transitions.set(i64::try_from(record.transitions).unwrap_or(i64::MAX));
        self.memory.look(Some(&record), self.settings.clock.boot());
        self.memory.mine = Some(Mine { mark: mark.clone(), sent_at, answered: true });
        self.held = Some(record);
        match &self.claim {
            Some(claim) if *claim.mark() == mark => {
                claim.extend(deadline);
                self.settings.telemetry.leader.set(1);
            }
            _ => {
                tracing::info!(term = mark.term, holder = %self.settings.holder, action = "lead", "leading this region");
                let claim = Claim::new(
                    mark,
                    sent_at,
                    deadline,
                    times.claim_minimum,
                    self.settings.clock.clone(),
                    self.gate.clone(),
                );
                self.claim = Some(claim.clone());
                self.sender.send_replace(Some(claim));
                self.settings.telemetry.leader.set(1);
                self.settings.telemetry.take_overs.inc();
            }
        }
    }

    async fn renew(&mut self, record: LeaseRecord) -> Duration {
        let Some(mine) = self.memory.mine.clone() else { return Duration::ZERO };
        let sent_at = self.settings.clock.boot();
        let body = renewed(&record, self.settings.times.duration, self.settings.clock.wall());
        match self.write("update", Method::PUT, &body).await {
            Ok(record) => {
                self.hold(record, mine.mark, sent_at);
                self.settings.times.renew_interval
            }
            // Somebody wrote it: perhaps only an annotation, or an earlier renewal of ours whose answer got lost. The
            // next look tells, at once; and when it is not ours any more, the claim ends there.
            Err(error) if error.category == Category::Conflict => {
                tracing::debug!(error = %error, "the Lease changed; looking again");
                Duration::ZERO
            }
            // The claim stands until its deadline, and the renewal is tried again, from a fresh look.
            Err(error) => self.failed("renew", &error),
        }
    }

    /// Counts and logs a failed call; returns when to try again.
    fn failed(&self, what: &str, error: &ApiError) -> Duration {
        self.settings.telemetry.lease_errors.with_label_values(&[category_word(error.category)]).inc();
        if let Some(claim) = &self.claim
            && claim.remaining().is_zero()
        {
            self.settings.telemetry.leader.set(0);
        }
        tracing::warn!(what, category = category_word(error.category), error = %error, "call about the Lease failed");
        (self.settings.times.renew_interval / 5).max(SHORTEST_RETRY).min(Duration::from_secs(1))
    }

    fn lose(&mut self, why: &str) {
        self.memory.mine = None;
        self.held = None;
        if let Some(claim) = self.claim.take() {
            claim.end();
            self.sender.send_replace(None);
            self.settings.telemetry.leader.set(0);
            self.settings.telemetry.claims_lost.inc();
            tracing::warn!(term = claim.mark().term, why, action = "lose", "not leading any more");
        }
    }

    /// After the last change was answered: empties the holder, so that another monitor need not wait for the expiry.
    async fn give_up(mut self) {
        let Some(claim) = self.claim.take() else { return };
        let release = async {
            self.gate.close().await;
            claim.end();
            self.sender.send_replace(None);
            self.settings.telemetry.leader.set(0);
            if !self.gate.is_quiet(self.settings.clock.boot()) {
                tracing::warn!("a change got no answer lately; the Lease is left to expire");
                return;
            }
            let Ok(Some(record)) = self.read().await else { return };
            if !record.is_held_by(&self.settings.holder, claim.mark()) {
                return;
            }
            match self.write("update", Method::PUT, &released(&record, self.settings.clock.wall())).await {
                Ok(_) => tracing::info!(term = claim.mark().term, action = "release", "gave the Lease up"),
                Err(error) => tracing::warn!(error = %error, "could not give the Lease up; it expires by itself"),
            }
        };
        if tokio::time::timeout(RELEASE_BOUND, release).await.is_err() {
            tracing::warn!("giving the Lease up took too long; it expires by itself");
        }
    }

    fn path(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.settings.api.namespace())
    }

    async fn read(&self) -> Result<Option<LeaseRecord>, ApiError> {
        let path = format!("{}/{LEASE_NAME}", self.path());
        let call = Call {
            verb: "get",
            resource: "leases",
            method: Method::GET,
            path: &path,
            body: None,
            accept: "application/json",
            time_out: self.settings.times.renew_time_out,
        };
        match self.settings.api.call(call).await {
            Ok(body) => parsed(body).map(Some),
            Err(error) if error.refusal == Refusal::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn write(&self, verb: &'static str, method: Method, body: &Value) -> Result<LeaseRecord, ApiError> {
        let mut path = self.path();
        if method == Method::PUT {
            path = format!("{path}/{LEASE_NAME}");
        }
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        let call = Call {
            verb,
            resource: "leases",
            method,
            path: &path,
            body: Some(("application/json", body)),
            accept: "application/json",
            time_out: self.settings.times.renew_time_out,
        };
        parsed(self.settings.api.call(call).await?)
    }
}

fn parsed(body: Value) -> Result<LeaseRecord, ApiError> {
    LeaseRecord::parse(body)
        .ok_or_else(|| ApiError::unanswered(Category::Unavailable, "the server's Lease lacks uid or version"))
}
