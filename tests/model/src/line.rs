//! One process's line to the servers: its client, what it costs in time, and what goes wrong on it.
//!
//! A line counts the requests of its process, loses one of them together with the process (crash suites), holds all of them
//! for a while (frozen leaders), and disturbs watches (stale-view suites).

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gco_runtime::random::SeededRandomness;
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::client::Body;
use serde_json::Value;
use tokio::sync::{Notify, watch};

use crate::answer::Answer;
use crate::dice::below;
use crate::model::Model;
use crate::request::{Request, Target};
use crate::server;
use crate::state::Entry;
use crate::watching::Watching;

/// How long a message takes, one way.
const LATENCY: Duration = Duration::from_millis(1);

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is answered.
    Answered,
    /// The process ends before it is sent.
    NotSent,
    /// It is done, and the process ends before the answer arrives.
    AnswerLost,
    /// It is on its way when everything on the line stops until [`Line::release`].
    Held,
    /// It is done; the answer is on its way when everything on the line stops.
    HeldAnswer,
    /// It gets nowhere, alone.
    Stuck,
}

/// A request as a hook sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// In a few words.
    pub summary: String,
    /// Whether it changes something.
    pub is_write: bool,
    /// Whether it comes by the clock and not for an endpoint: the Lease, the heartbeat, complete reads, watches.
    pub by_the_clock: bool,
}

/// Decides about requests.
pub type Hook = Box<dyn FnMut(&Asked) -> Fate + Send>;

/// What happens to an event on its way to a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchFault {
    /// It arrives this much later, and what follows it too.
    pub delay: Duration,
    /// How often it arrives; 0: never.
    pub copies: usize,
    /// The object's state before it arrives once more after it.
    pub repeats_the_past: bool,
    /// The watch ends with 410 after it.
    pub expires: bool,
}

/// Disturbs watches and the lists that they begin with, until a moment at which every watch breaks: then each begins anew
/// with a good list.
#[derive(Debug)]
pub struct Disturbance {
    dice: SeededRandomness,
    over: AtomicBool,
    /// How many events were delayed, doubled, dropped, repeated, expired; how many lists were from the past.
    pub counts: [AtomicU32; 6],
}

impl Disturbance {
    /// A disturbance that is determined by its seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { dice: SeededRandomness::new(seed), over: AtomicBool::new(false), counts: Default::default() }
    }

    fn count(&self, which: usize) {
        if let Some(count) = self.counts.get(which) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn fault(&self) -> Option<WatchFault> {
        let good = WatchFault { delay: Duration::ZERO, copies: 1, repeats_the_past: false, expires: false };
        let fault = match below(&self.dice, 100) {
            0..20 => {
                self.count(0);
                let milliseconds = u64::try_from(below(&self.dice, 20_000)).unwrap_or(0);
                WatchFault { delay: Duration::from_millis(milliseconds), ..good }
            }
            20..30 => {
                self.count(1);
                WatchFault { copies: 2, ..good }
            }
            30..42 => {
                self.count(2);
                WatchFault { copies: 0, ..good }
            }
            42..50 => {
                self.count(3);
                WatchFault { repeats_the_past: true, ..good }
            }
            50..56 => {
                self.count(4);
                WatchFault { copies: 0, expires: true, ..good }
            }
            _ => return None,
        };
        Some(fault)
    }
}

/// A process's line.
pub struct Line {
    name: Arc<str>,
    model: Model,
    hook: Mutex<Option<Hook>>,
    asked: Mutex<Vec<Asked>>,
    dead: AtomicBool,
    died: Notify,
    held: watch::Sender<bool>,
    disturbance: Mutex<Option<Arc<Disturbance>>>,
    interrupt: Notify,
    era: AtomicU32,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Line").field("name", &self.name).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type AnswerBody = UnsyncBoxBody<Bytes, Infallible>;

impl Line {
    /// A good line of a process.
    #[must_use]
    pub fn new(name: &str, model: &Model) -> Arc<Self> {
        let (held, _) = watch::channel(false);
        Arc::new(Self {
            name: Arc::from(name),
            model: model.clone(),
            hook: Mutex::default(),
            asked: Mutex::default(),
            dead: AtomicBool::new(false),
            died: Notify::new(),
            held,
            disturbance: Mutex::default(),
            interrupt: Notify::new(),
            era: AtomicU32::new(0),
        })
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    pub(crate) fn latency(&self) -> Duration {
        LATENCY
    }

    /// Who is at the end of it, for the history.
    #[must_use]
    pub fn actor(&self) -> &Arc<str> {
        &self.name
    }

    /// Asks `hook` about every request from now on.
    pub fn set_hook(&self, hook: Hook) {
        *lock(&self.hook) = Some(hook);
    }

    /// Forgets which requests were made.
    pub fn forget_asked(&self) {
        lock(&self.asked).clear();
    }

    /// The requests made since, but for those that come by the clock.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.asked).clone()
    }

    /// Disturbs watches from now on.
    pub fn disturb(&self, disturbance: &Arc<Disturbance>) {
        *lock(&self.disturbance) = Some(disturbance.clone());
    }

    /// Ends the disturbance: every watch breaks and begins anew.
    pub fn calm(&self) {
        if let Some(disturbance) = lock(&self.disturbance).as_ref() {
            disturbance.over.store(true, Ordering::Release);
        }
        // Whoever was told something wrong must list anew, not go on from where it was.
        *lock(&self.disturbance) = None;
        self.model.act(&self.name, |state| state.compact());
        self.era.fetch_add(1, Ordering::AcqRel);
        self.interrupt.notify_waiters();
    }

    /// Holds every message of this line, in both directions.
    pub fn hold(&self) {
        self.held.send_replace(true);
    }

    /// Waits until the line is held, by a hook's decision or by [`Line::hold`].
    pub async fn is_held(&self) {
        let mut held = self.held.subscribe();
        // The sender lives as long as we do.
        let _ = held.wait_for(|held| *held).await;
    }

    /// Lets them go on.
    pub fn release(&self) {
        self.held.send_replace(false);
    }

    /// Waits until the process ended by a hook's decision.
    pub async fn died(&self) {
        loop {
            let died = self.died.notified();
            if self.dead.load(Ordering::Acquire) {
                return;
            }
            died.await;
        }
    }

    /// Nothing passes any more.
    pub fn cut(&self) {
        self.dead.store(true, Ordering::Release);
        self.died.notify_waiters();
    }

    pub(crate) async fn interrupted(&self) {
        self.interrupt.notified().await;
    }

    /// Counts the disturbances that ended: a watch that began in an earlier era must begin anew.
    pub(crate) fn era(&self) -> u32 {
        self.era.load(Ordering::Acquire)
    }

    pub(crate) fn watch_fault(&self, _entry: &Entry) -> Option<WatchFault> {
        lock(&self.disturbance).as_ref().and_then(|disturbance| disturbance.fault())
    }

    /// Waits while the line is held; for ever when it is cut.
    pub(crate) async fn open(&self) {
        let mut held = self.held.subscribe();
        // The sender lives as long as we do.
        let _ = held.wait_for(|held| !*held).await;
        if self.dead.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
    }

    /// Sends one request over the line: `done` is what the server does with it.
    pub async fn send<T: Send + 'static>(
        self: &Arc<Self>,
        asked: Asked,
        done: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        tokio::time::sleep(LATENCY).await;
        if self.dead.load(Ordering::Acquire) {
            return std::future::pending().await;
        }
        let fate = lock(&self.hook).as_mut().map_or(Fate::Answered, |hook| hook(&asked));
        if !asked.by_the_clock {
            lock(&self.asked).push(asked);
        }
        match fate {
            Fate::NotSent => {
                self.cut();
                return std::future::pending().await;
            }
            Fate::Stuck => return std::future::pending().await,
            Fate::Held => self.hold(),
            Fate::Answered | Fate::AnswerLost | Fate::HeldAnswer => {}
        }
        let result = if *self.held.borrow() {
            // It is on its way: whoever sent it may give it up, and it arrives all the same.
            let line = self.clone();
            let arrived = tokio::spawn(async move {
                line.open().await;
                done()
            });
            match arrived.await {
                Ok(result) => result,
                Err(_) => return std::future::pending().await,
            }
        } else {
            done()
        };
        match fate {
            Fate::AnswerLost => {
                self.cut();
                return std::future::pending().await;
            }
            Fate::HeldAnswer => self.hold(),
            _ => {}
        }
        tokio::time::sleep(LATENCY).await;
        self.open().await;
        result
    }

    /// A client over this line.
    #[must_use]
    pub fn client(self: &Arc<Self>) -> kube::Client {
        let line = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let line = line.clone();
            async move { line.answer(request).await }
        });
        kube::Client::new(service, self.model.namespace())
    }

    async fn answer(self: Arc<Self>, request: http::Request<Body>) -> Result<Response<AnswerBody>, tower::BoxError> {
        let (parts, body) = request.into_parts();
        let header =
            |name: http::HeaderName| parts.headers.get(&name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let bytes = body.collect_bytes().await?;
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::new(
            parts.method.clone(),
            path,
            header(http::header::ACCEPT),
            header(http::header::CONTENT_TYPE),
            serde_json::from_slice(&bytes).ok(),
        );
        if request.is_watch()
            && let Target::Objects { resource, namespace, .. } = &request.target
        {
            return Ok(self.watched(resource, namespace, &request).await);
        }
        let asked = Asked {
            summary: request.summary(),
            is_write: request.is_write(),
            by_the_clock: request.plural() == "leases" || self.begins_a_watch(&request),
        };
        let (model, actor) = (self.model.clone(), self.name.clone());
        let past = self.past_of(&request);
        let answer = self
            .send(asked, move || match past {
                Some(version) => model.look(|state| match &request.target {
                    Target::Objects { resource, namespace, .. } => {
                        server::listed(state, resource, namespace, &request, version, "")
                    }
                    _ => server::expired("no such list"),
                }),
                None => model.handle(&actor, &request),
            })
            .await;
        Ok(response(&answer))
    }

    /// Whether it is the list of a whole kind, as caches begin with: an absence proof names what it asks for.
    fn begins_a_watch(&self, request: &Request) -> bool {
        request.method == http::Method::GET
            && !request.wants_metadata()
            && matches!(&request.target, Target::Objects { name: None, .. })
    }

    /// The version of a list that is answered from the past.
    fn past_of(&self, request: &Request) -> Option<u64> {
        let disturbance = lock(&self.disturbance).clone()?;
        if disturbance.over.load(Ordering::Acquire)
            || !self.begins_a_watch(request)
            || below(&disturbance.dice, 100) >= 50
        {
            return None;
        }
        disturbance.count(5);
        self.model.look(|state| {
            let oldest = state.history().first().map_or(state.version(), |entry| entry.version).max(state.compacted());
            let age = usize::try_from(state.version() - oldest).unwrap_or(0);
            Some(state.version() - u64::try_from(below(&disturbance.dice, age + 1)).unwrap_or(0))
        })
    }

    async fn watched(
        self: &Arc<Self>,
        resource: &'static crate::object::Resource,
        namespace: &str,
        request: &Request,
    ) -> Response<AnswerBody> {
        tokio::time::sleep(LATENCY * 2).await;
        self.open().await;
        let watching = Watching::begin(self.clone(), resource, namespace, request);
        let lines = futures::stream::unfold(watching, |mut watching| async move {
            let line = watching.next().await?;
            Some((Ok::<_, Infallible>(http_body::Frame::data(line)), watching))
        });
        let body = StreamBody::new(lines).boxed_unsync();
        let mut response = Response::new(body);
        response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        response
    }
}

fn response(answer: &Answer) -> Response<AnswerBody> {
    let (text, content_type) = match &answer.body {
        Value::String(text) => (text.clone(), "text/plain"),
        body => (body.to_string(), "application/json"),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}
