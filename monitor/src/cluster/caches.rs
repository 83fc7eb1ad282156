//! The watches that feed the [`Index`], and the set of endpoints that became dirty by them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use gco_runtime::clock::{BootTime, Clock};
use gco_runtime::text::bounded;
use gco_store::row::EndpointRow;
use kube::api::{Api as KubeApi, ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{self, watcher};
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::api::Api;
use super::index::{Event, Index, Told};
use super::reduce;
use crate::identity::SELECTOR;
use crate::object::{Kind, ObjectKey, Observed, ObservedObject};
use crate::orphans::Suspect;

/// How long a watch request lasts: a connection that died silently is noticed this much later at most. A new request
/// every two minutes and kind is what that costs.
const WATCH_SECONDS: u32 = 120;

/// Bounds of the wait before a broken watch is started again.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// How long a watch must hold before its next break counts as a new one.
const BACK_OFF_RESET: Duration = Duration::from_secs(20);

/// How often an optional kind that is missing and needed is looked for.
const KIND_INTERVAL: Duration = Duration::from_secs(60);
/// How many times less often while no row needs it: KEDA's objects may also come back with a restored backup. One call in
/// ten minutes.
const UNNEEDED_KIND_FACTOR: u32 = 10;

/// How long an object that is not ours, and that no watch tells about, is believed to stand in the way.
const FOREIGN_BELIEF: Duration = Duration::from_secs(60);

/// Waits that double, within [`BACK_OFF`]. Six watches of one process need no jitter.
#[derive(Debug, Default)]
struct Doubling {
    tries: u32,
}

impl Iterator for Doubling {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = BACK_OFF.0.saturating_mul(1 << self.tries.min(16)).min(BACK_OFF.1);
        self.tries = self.tries.saturating_add(1);
        Some(wait)
    }
}

impl Backoff for Doubling {
    fn reset(&mut self) {
        self.tries = 0;
    }
}

/// Names of endpoints to look at. A wake-up carries nothing else.
#[derive(Debug, Default)]
pub struct DirtyNames {
    names: Mutex<BTreeSet<String>>,
    arrived: Notify,
}

impl DirtyNames {
    /// Adds names.
    pub fn add(&self, names: impl IntoIterator<Item = String>) {
        let mut known = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(names);
        let any = !known.is_empty();
        drop(known);
        if any {
            self.arrived.notify_one();
        }
    }

    /// Takes all names.
    #[must_use]
    pub fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.names.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until names arrive; returns at once when some arrived since the last wait.
    pub async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

/// The caches of everything we watch.
#[derive(Clone)]
pub struct Caches {
    index: Arc<Mutex<Index>>,
    dirty: Arc<DirtyNames>,
    clock: Arc<dyn Clock>,
    /// How often to look for an optional kind that is missing and needed.
    kind_interval: Duration,
    kinds_needed: Arc<AtomicBool>,
    kinds_wanted: Arc<Notify>,
}

impl std::fmt::Debug for Caches {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Caches").field("sizes", &self.lock().sizes()).finish_non_exhaustive()
    }
}

impl Caches {
    /// Empty caches; [`Caches::watch`] fills them.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            index: Arc::default(),
            dirty: Arc::default(),
            clock,
            kind_interval: KIND_INTERVAL,
            kinds_needed: Arc::default(),
            kinds_wanted: Arc::default(),
        }
    }

    /// Looks this often for an optional kind that a row needs and the cluster lacks; ten times less often while no row does.
    #[must_use]
    pub fn with_kind_interval(self, kind_interval: Duration) -> Self {
        Self { kind_interval, ..self }
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Endpoints that the watches made dirty.
    #[must_use]
    pub fn dirty(&self) -> &DirtyNames {
        &self.dirty
    }

    /// Whether every cache is complete.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.lock().is_synced()
    }

    /// Resources whose cache is not complete yet.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        self.lock().sizes().iter().filter(|(_, synced, _)| !synced).map(|(resource, _, _)| *resource).collect()
    }

    /// Which caches are complete and how many objects they hold, by resource.
    #[must_use]
    pub fn sizes(&self) -> Vec<(&'static str, bool, usize)> {
        self.lock().sizes()
    }

    /// Everything of one endpoint as last seen; `None` while a cache is incomplete.
    #[must_use]
    pub fn observe(&self, endpoint: &str) -> Option<Observed> {
        self.lock().observe(endpoint, self.clock.boot())
    }

    /// Objects that no row owns, as far as these rows tell; `None` while a cache is incomplete.
    #[must_use]
    pub fn suspects<'a>(&self, rows: impl IntoIterator<Item = &'a EndpointRow>, region: &str) -> Option<Vec<Suspect>> {
        self.lock().suspects(rows, region)
    }

    /// The highest `gco.io/leader-term` on objects of ours; `None` while a cache is incomplete.
    #[must_use]
    pub fn highest_term(&self) -> Option<u64> {
        self.lock().highest_term()
    }

    /// Deployments that `wanted` picks, each with its pods and ReplicaSets; `None` while a cache is incomplete.
    #[must_use]
    pub fn deployments_where(
        &self,
        wanted: impl Fn(&ObservedObject) -> bool,
    ) -> Option<Vec<(ObservedObject, Observed)>> {
        self.lock().deployments_where(self.clock.boot(), wanted)
    }

    /// The object of ours with the highest `gco.io/leader-term`, and that; `None` while a cache is incomplete.
    #[must_use]
    pub fn newest_stamped(&self) -> Option<(ObservedObject, u64)> {
        self.lock().newest_stamped()
    }

    /// When to look again for an object that is not ours, if one stands in this endpoint's way.
    #[must_use]
    pub fn foreign_until(&self, endpoint: &str) -> Option<BootTime> {
        self.lock().foreign_until(endpoint, self.clock.boot())
    }

    /// Lays an answer of the server over the cache until that has caught up.
    pub(super) fn remember(&self, object: ObservedObject) {
        self.lock().remember(object, self.clock.boot() + FOREIGN_BELIEF);
    }

    /// The uid under which an object is known, if it is.
    pub(super) fn uid_of(&self, key: &ObjectKey) -> Option<String> {
        self.lock().uid_of(key, self.clock.boot())
    }

    /// Notes that the server said that the object with this uid is gone.
    pub(super) fn forget(&self, key: &ObjectKey, uid: &str) {
        self.lock().forget(key, uid);
    }

    fn take(&self, told: Told) {
        let touched = self.lock().take(told);
        self.dirty.add(touched);
    }

    /// Notes that a row needs a kind that this cluster does not have: it is looked for more often from now on.
    pub fn need_missing_kinds(&self) {
        if !self.kinds_needed.swap(true, Ordering::AcqRel) {
            self.kinds_wanted.notify_one();
        }
    }

    /// Watches everything until `stop`. Broken watches are started again for ever, with back-off.
    pub async fn watch(&self, api: &Api, stop: CancellationToken) {
        let watches = futures::future::join5(
            self.watch_optional(api, Kind::ScaledObject, "ScaledObject"),
            self.watch_kind(api, Kind::HorizontalPodAutoscaler, "HorizontalPodAutoscaler"),
            self.watch_kind(api, Kind::Deployment, "Deployment"),
            self.watch_kind(api, Kind::Service, "Service"),
            futures::future::join(
                self.watch_one(
                    api,
                    ("apps/v1", "ReplicaSet", "replicasets"),
                    None,
                    |body: Value| reduce::replica_set(&body),
                    Told::ReplicaSet,
                ),
                self.watch_one(api, ("v1", "Pod", "pods"), None, |body: Value| reduce::pod(&body), Told::Pod),
            ),
        );
        tokio::select! {
            () = stop.cancelled() => {}
            _ = watches => {}
        }
    }

    async fn watch_kind(&self, api: &Api, kind: Kind, word: &'static str) {
        let (prefix, plural) = super::api::resource(kind);
        let api_version = prefix.trim_start_matches("/apis/").trim_start_matches("/api/");
        let optional = kind.is_optional().then_some(kind);
        let reduced = |body: Value| reduce::object(kind, body);
        self.watch_one(api, (api_version, word, plural), optional, reduced, |event| Told::Object(kind, event)).await;
    }

    /// Watches a kind while the cluster has it. Discovery decides: a list of a kind that is not there is answered with 404,
    /// or with 403 for want of rights.
    async fn watch_optional(&self, api: &Api, kind: Kind, word: &'static str) {
        let mut said = false;
        let mut back_off = Doubling::default();
        loop {
            let wait = match api.has_kind(kind).await {
                Ok(true) => {
                    if said {
                        tracing::info!(kind = word, "the cluster has this kind now");
                    }
                    said = false;
                    back_off.reset();
                    self.kinds_needed.store(false, Ordering::Release);
                    self.watch_kind(api, kind, word).await;
                    // It ends only when the kind is gone.
                    continue;
                }
                Ok(false) => {
                    if !said {
                        tracing::info!(kind = word, "the cluster does not have this kind; it is not watched");
                    }
                    said = true;
                    back_off.reset();
                    self.take(Told::MissingKind(kind));
                    let needed = self.kinds_needed.load(Ordering::Acquire);
                    if needed { self.kind_interval } else { self.kind_interval * UNNEEDED_KIND_FACTOR }
                }
                Err(error) => {
                    tracing::warn!(kind = word, error = %error, "cannot tell whether the cluster has this kind");
                    back_off.next().unwrap_or(BACK_OFF.1)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.kinds_wanted.notified() => {}
            }
        }
    }

    /// Follows one resource for ever; an `optional` kind only until the cluster says that it does not have it.
    async fn watch_one<T>(
        &self,
        api: &Api,
        (api_version, kind, plural): (&'static str, &'static str, &'static str),
        optional: Option<Kind>,
        reduced: impl Fn(Value) -> Option<T>,
        told: impl Fn(Event<T>) -> Told,
    ) {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        let client: KubeApi<DynamicObject> = KubeApi::namespaced_with(api.client(), api.namespace(), &resource);
        // Lists are quorum reads: after a reconnect to a server that lags, the cache must not go back in time.
        let config = watcher::Config::default().labels(SELECTOR).timeout(WATCH_SECONDS);
        let back_off = ResetTimerBackoff::new(Doubling::default(), BACK_OFF_RESET);
        let mut events = std::pin::pin!(watcher(client, config).backoff(back_off));
        let body = |object: DynamicObject| {
            let mut body = serde_json::to_value(object).ok()?;
            // Items of a list come without them.
            body["apiVersion"] = api_version.into();
            body["kind"] = kind.into();
            reduced(body)
        };
        while let Some(event) = events.next().await {
            let event = match event {
                Ok(watcher::Event::Init) => {
                    api.telemetry().api_call("list", plural);
                    Some(Event::Init)
                }
                Ok(watcher::Event::InitApply(object)) => body(object).map(Event::InitApply),
                Ok(watcher::Event::InitDone) => {
                    api.telemetry().api_call("watch", plural);
                    tracing::debug!(resource = plural, "cache is complete");
                    Some(Event::InitDone)
                }
                Ok(watcher::Event::Apply(object)) => body(object).map(Event::Apply),
                Ok(watcher::Event::Delete(object)) => body(object).map(Event::Delete),
                Err(error) => {
                    api.telemetry().watch_errors.with_label_values(&[plural]).inc();
                    tracing::warn!(resource = plural, error = %bounded(&error.to_string(), 300), "watch broke");
                    if let Some(kind) = optional
                        && matches!(api.has_kind(kind).await, Ok(false))
                    {
                        return;
                    }
                    None
                }
            };
            if let Some(event) = event {
                self.take(told(event));
            }
        }
    }
}
