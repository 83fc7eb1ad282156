//! Requests to a Service as clients behind a kube-proxy send them, and a router that looks at the row.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_bed::wait;
use gco_local::instance::INFERENCE_NAMESPACE;
use gco_local::kubelet::DialMap;
use gco_local::loopback::{LoopbackClient, json_request};
use gco_store::row::EndpointRow;
use gco_store::status::State;
use gco_store::table::{Consistency, Table};
use http_body_util::BodyExt as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{BOUND, LocalInstance};

/// Requests that are under way at once in each region; every other one is a stream.
const LANES: usize = 8;

/// How old what clients know of a Service may be.
const SERVICE_LOOKS: Duration = Duration::from_millis(200);

/// How often a router looks at the row.
const ROUTER_LOOKS: Duration = Duration::from_millis(100);

/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(60);

/// Tokens of a completion, and of a stream: about two seconds.
const TOKENS: [u32; 2] = [8, 100];

/// How many failures are kept word by word.
const SHOWN_FAILURES: usize = 10;

/// What came of the requests and looks of one region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficResult {
    /// Requests that were sent.
    pub sent: usize,
    /// Of these, streams.
    pub streams: usize,
    /// Requests without a whole good answer.
    pub failed: usize,
    /// Times at which no address was ready, so that no request could be sent.
    pub nowhere: usize,
    /// Looks at the row.
    pub looks: usize,
    /// Looks at which routers would have refused traffic.
    pub unroutable: usize,
    /// Of these, looks at which a pod was ready.
    pub unroutable_although_ready: usize,
    /// What went wrong, word by word; the first few.
    pub words: Vec<String>,
}

impl TrafficResult {
    /// Whether nothing went wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.failed == 0 && self.nowhere == 0 && self.unroutable_although_ready == 0
    }

    fn say(&mut self, words: String) {
        if self.words.len() < SHOWN_FAILURES {
            self.words.push(words);
        }
    }
}

impl fmt::Display for TrafficResult {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, streams, failed, nowhere, looks, unroutable, unroutable_although_ready, words } = self;
        write!(
            formatter,
            "{sent} requests, {streams} of them streams: {failed} failed, {nowhere} found no ready address; {looks} looks \
             of a router: {unroutable} refused, {unroutable_although_ready} of them with a ready pod"
        )?;
        if words.is_empty() { Ok(()) } else { write!(formatter, "; {words:#?}") }
    }
}

/// What clients know of a Service: its ready addresses, and where they really listen.
#[derive(Clone, Debug, Default)]
struct Known {
    ready: Vec<SocketAddr>,
    dial_map: Option<DialMap>,
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    region: String,
    name: String,
    stopping: AtomicBool,
    known: Mutex<Known>,
    result: Mutex<TrafficResult>,
}

impl Shared {
    fn known(&self) -> Known {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn result(&self) -> MutexGuard<'_, TrafficResult> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn goes_on(&self) -> bool {
        !self.stopping.load(Ordering::SeqCst)
    }

    fn say(&self, words: &str) {
        let after = self.began.elapsed().as_secs_f64();
        self.result().say(format!("after {after:.2} s: {words}"));
    }
}

/// Requests and looks that go on until they are stopped.
#[derive(Debug)]
pub struct Traffic {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// Starts to ask an endpoint in one region, once an address is ready there.
    ///
    /// # Errors
    /// When none becomes ready.
    pub async fn start(instance: &LocalInstance, region: &str, name: &str) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared {
            began: Instant::now(),
            region: region.to_owned(),
            name: name.to_owned(),
            stopping: AtomicBool::new(false),
            known: Mutex::default(),
            result: Mutex::default(),
        });
        let (client, dial_map) = (instance.client(region).await?, instance.region(region)?.dial_map);
        let mut tasks = vec![tokio::spawn(learn(shared.clone(), client, dial_map))];
        wait::until("a ready address", BOUND, || {
            let ready = shared.known().ready;
            std::future::ready(if ready.is_empty() { Err("none".to_owned()) } else { Ok(()) })
        })
        .await?;
        tasks.push(tokio::spawn(route(shared.clone(), instance.table().await?)));
        tasks.extend((0..LANES).map(|lane| tokio::spawn(ask_again_and_again(shared.clone(), lane))));
        Ok(Self { shared, tasks })
    }

    /// Sends no more, waits for what is under way, and says what came of all.
    ///
    /// # Errors
    /// When that does not end.
    pub async fn stop(self) -> anyhow::Result<TrafficResult> {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let ended = tokio::time::timeout(BOUND, futures::future::join_all(self.tasks)).await;
        for task in ended.context("requests do not end")? {
            task?;
        }
        Ok(self.shared.result().clone())
    }
}

/// Keeps what clients know up to date.
async fn learn(shared: Arc<Shared>, client: Client, dial_map: PathBuf) {
    let slices: Api<EndpointSlice> = Api::namespaced(client, INFERENCE_NAMESPACE);
    let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={}", shared.name));
    let mut ticks = ticks(SERVICE_LOOKS);
    while shared.goes_on() {
        ticks.tick().await;
        // Who cannot look goes on with what is known, as a kube-proxy does.
        let Ok(list) = slices.list(&of_service).await else { continue };
        let Ok(dial_map) = DialMap::read(&dial_map) else { continue };
        let ready = list.items.iter().flat_map(ready_in).collect();
        *shared.known.lock().unwrap_or_else(PoisonError::into_inner) = Known { ready, dial_map: Some(dial_map) };
    }
}

fn ticks(period: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}

/// The addresses of a slice that a kube-proxy sends requests to.
fn ready_in(slice: &EndpointSlice) -> Vec<SocketAddr> {
    let port = slice.ports.iter().flatten().find_map(|port| port.port).and_then(|port| u16::try_from(port).ok());
    let Some(port) = port else { return Vec::new() };
    let is_ready = |ready: Option<bool>| ready == Some(true);
    let endpoints = slice
        .endpoints
        .iter()
        .filter(|endpoint| endpoint.conditions.as_ref().is_some_and(|conditions| is_ready(conditions.ready)));
    let addresses = endpoints.flat_map(|endpoint| &endpoint.addresses);
    addresses.filter_map(|address| Some(SocketAddr::new(address.parse().ok()?, port))).collect()
}

/// Looks at the row as the shared proxy does for every request (the wire contract, E.2).
async fn route(shared: Arc<Shared>, table: Arc<dyn Table>) {
    let mut ticks = ticks(ROUTER_LOOKS);
    while shared.goes_on() {
        ticks.tick().await;
        let read = table.get(&shared.name, Consistency::Eventual).await;
        let row = match read {
            Ok(item) => item.and_then(|item| EndpointRow::parse(item).ok()),
            Err(problem) => {
                shared.say(&format!("the row cannot be read: {problem}"));
                continue;
            }
        };
        let state = row.as_ref().and_then(|row| row.region_status.get(&shared.region)).map(|entry| entry.state.clone());
        let desired = row.as_ref().map(|row| row.desired_state.as_str().to_owned());
        let routable = desired.as_deref() == Some("running") && state == Some(State::Running);
        shared.result().looks += 1;
        if routable {
            continue;
        }
        let ready = shared.known().ready;
        shared.result().unroutable += 1;
        shared.result().unroutable_although_ready += usize::from(!ready.is_empty());
        shared.say(&format!("routers refuse: {desired:?}, {state:?}; ready: {ready:?}"));
    }
}

async fn ask_again_and_again(shared: Arc<Shared>, lane: usize) {
    // A connection of its own for each request: where it goes is decided anew each time.
    let client = LoopbackClient::without_reuse();
    let mut turn = lane;
    while shared.goes_on() {
        let known = shared.known();
        let Some(address) = known.ready.get(turn % known.ready.len().max(1)).copied() else {
            shared.result().nowhere += 1;
            shared.say("no address is ready");
            tokio::time::sleep(SERVICE_LOOKS).await;
            continue;
        };
        let is_stream = (turn + lane) % 2 == 1;
        turn += 1;
        shared.result().sent += 1;
        shared.result().streams += usize::from(is_stream);
        let began = shared.began.elapsed().as_secs_f64();
        if let Err(problem) = ask(&client, known.dial_map.as_ref(), address, is_stream).await {
            shared.result().failed += 1;
            let kind = if is_stream { "stream" } else { "completion" };
            shared.say(&format!("a {kind} of {address} that began after {began:.2} s: {problem:#}"));
        }
    }
}

/// One request; an answer counts only when it is whole.
async fn ask(
    client: &LoopbackClient,
    dial_map: Option<&DialMap>,
    address: SocketAddr,
    is_stream: bool,
) -> anyhow::Result<()> {
    let listens = dial_map.and_then(|map| map.resolve(address.ip(), address.port()));
    let listens = listens.context("nobody listens at this address")?;
    let tokens = TOKENS[usize::from(is_stream)];
    let body = json!({"prompt": "How are you?", "max_tokens": tokens, "stream": is_stream});
    let exchange = async {
        let answer = client.send(listens.port(), json_request("/v1/completions", &body)?).await?;
        let status = answer.status();
        let text = answer.into_body().collect().await?.to_bytes();
        let text = String::from_utf8_lossy(&text).into_owned();
        ensure!(status.is_success(), "{status}: {text}");
        ensure!(!is_stream || text.contains("[DONE]"), "the stream broke off: {text}");
        Ok(())
    };
    tokio::time::timeout(ANSWER, exchange).await.context("no whole answer in time")?
}
