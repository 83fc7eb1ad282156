//! Requests to an endpoint as a router sends them: to a ready address of its Service, completions and streams.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use gco_bed::wait;
use gco_local::kubelet::DialMap;
use gco_local::loopback::{LoopbackClient, json_request};
use http_body_util::BodyExt as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinHandle;

use super::{BOUND, Region};

/// How many requests are under way at once.
const LANES: usize = 4;

/// How long one answer may take, streams included.
const ANSWER: Duration = Duration::from_secs(60);

/// What came of the requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadResult {
    /// Requests that were sent.
    pub sent: usize,
    /// Of these, streams.
    pub streams: usize,
    /// Requests without a complete good answer.
    pub failed: usize,
    /// The first few failures.
    pub failures: Vec<String>,
    /// Looks at which no address was ready.
    pub nowhere: usize,
}

impl fmt::Display for LoadResult {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, streams, failed, failures, nowhere } = self;
        write!(
            formatter,
            "{sent} requests, {streams} of them streams, {failed} failed, {nowhere} times no ready address"
        )?;
        if failures.is_empty() { Ok(()) } else { write!(formatter, "; {failures:?}") }
    }
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicUsize,
    streams: AtomicUsize,
    failed: AtomicUsize,
    nowhere: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

/// Requests that go on until they are stopped.
#[derive(Debug)]
pub struct Load {
    stopping: Arc<AtomicBool>,
    counts: Arc<Counts>,
    lanes: Vec<JoinHandle<()>>,
    watching: JoinHandle<()>,
}

/// Ready addresses of a Service, kept up to date.
type Ready = Arc<Mutex<Vec<SocketAddr>>>;

impl Load {
    /// Starts to ask an endpoint of this region, whose control plane must run real pods; returns once an address is ready.
    ///
    /// # Errors
    /// When no address becomes ready.
    pub async fn start(region: &Region, endpoint: &str) -> anyhow::Result<Self> {
        let ready: Ready = Arc::default();
        let watching = tokio::spawn(watch(
            region.client().clone(),
            region.namespace().to_owned(),
            endpoint.to_owned(),
            ready.clone(),
        ));
        let seen = ready.clone();
        wait::until(&format!("a ready address of {endpoint}"), BOUND, || {
            let addresses = now(&seen);
            std::future::ready(if addresses.is_empty() { Err("none".to_owned()) } else { Ok(()) })
        })
        .await?;
        let stopping = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(Counts::default());
        let dial_map = region.plane().dial_map().clone();
        let lanes = (0..LANES)
            .map(|lane| {
                let (stopping, counts, ready) = (stopping.clone(), counts.clone(), ready.clone());
                tokio::spawn(lane_of(lane, stopping, counts, ready, dial_map.clone()))
            })
            .collect();
        Ok(Self { stopping, counts, lanes, watching })
    }

    /// Sends no more and waits for what is under way.
    ///
    /// # Errors
    /// When that does not end within `grace`.
    pub async fn stop(self, grace: Duration) -> anyhow::Result<LoadResult> {
        self.stopping.store(true, Ordering::SeqCst);
        let ended = tokio::time::timeout(grace, futures::future::join_all(self.lanes)).await;
        self.watching.abort();
        ended.context("requests do not end")?;
        let count = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        Ok(LoadResult {
            sent: count(&self.counts.sent),
            streams: count(&self.counts.streams),
            failed: count(&self.counts.failed),
            failures: self.counts.failures.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            nowhere: count(&self.counts.nowhere),
        })
    }
}

fn now(ready: &Ready) -> Vec<SocketAddr> {
    ready.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Keeps the ready addresses of a Service as its EndpointSlices say them.
async fn watch(client: Client, namespace: String, service: String, ready: Ready) {
    let slices: Api<EndpointSlice> = Api::namespaced(client, &namespace);
    let of_service = format!("kubernetes.io/service-name={service}");
    let config = watcher::Config::default().labels(&of_service);
    let mut changes = std::pin::pin!(watcher(slices.clone(), config).default_backoff());
    while let Some(change) = changes.next().await {
        if change.is_err() {
            continue;
        }
        // A slice is small and there are few: all of them are read again.
        let Ok(list) = slices.list(&ListParams::default().labels(&of_service)).await else { continue };
        *ready.lock().unwrap_or_else(PoisonError::into_inner) = list.items.iter().flat_map(ready_in).collect();
    }
}

fn ready_in(slice: &EndpointSlice) -> Vec<SocketAddr> {
    let port = slice.ports.iter().flatten().find_map(|port| port.port).and_then(|port| u16::try_from(port).ok());
    let Some(port) = port else { return Vec::new() };
    let endpoints = slice
        .endpoints
        .iter()
        .filter(|endpoint| endpoint.conditions.as_ref().is_some_and(|conditions| conditions.ready == Some(true)));
    endpoints
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|address| Some(SocketAddr::new(address.parse().ok()?, port)))
        .collect()
}

async fn lane_of(lane: usize, stopping: Arc<AtomicBool>, counts: Arc<Counts>, ready: Ready, dial_map: DialMap) {
    let client = LoopbackClient::without_reuse();
    let mut turn = lane;
    while !stopping.load(Ordering::SeqCst) {
        let addresses = now(&ready);
        let Some(address) = addresses.get(turn % addresses.len().max(1)) else {
            counts.nowhere.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let stream = turn % 2 == 1;
        turn += 1;
        counts.sent.fetch_add(1, Ordering::SeqCst);
        counts.streams.fetch_add(usize::from(stream), Ordering::SeqCst);
        if let Err(error) = ask(&client, &dial_map, *address, stream).await {
            counts.failed.fetch_add(1, Ordering::SeqCst);
            let mut failures = counts.failures.lock().unwrap_or_else(PoisonError::into_inner);
            if failures.len() < 5 {
                failures.push(format!("{address}: {error:#}"));
            }
        }
    }
}

/// One request; an answer counts only when it is whole.
async fn ask(client: &LoopbackClient, dial_map: &DialMap, address: SocketAddr, stream: bool) -> anyhow::Result<()> {
    let listens = dial_map.resolve(address.ip(), address.port()).context("nobody listens at this address")?;
    let body = json!({
        "prompt": "How are you?", "max_tokens": if stream { 40 } else { 8 }, "stream": stream,
    });
    let exchange = async {
        let answer = client.send(listens.port(), json_request("/v1/completions", &body)?).await?;
        let status = answer.status();
        let text = answer.into_body().collect().await?.to_bytes();
        let text = String::from_utf8_lossy(&text).into_owned();
        anyhow::ensure!(status.is_success(), "{status}: {text}");
        anyhow::ensure!(!stream || text.contains("[DONE]"), "the stream broke off: {text}");
        Ok(())
    };
    tokio::time::timeout(ANSWER, exchange).await.context("no whole answer in time")?
}
