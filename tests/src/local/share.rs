//! Requests to an endpoint through a region's gateway, as clients of the shared proxy send them: the gateway reads the row for
//! each of them, and decides between the endpoint and its canary.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_local::loopback::{LoopbackClient, json_request};
use http_body_util::BodyExt as _;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{BOUND, LocalInstance};

/// Requests that are under way at once; every other one is a stream.
const LANES: usize = 6;
/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(60);
/// Tokens of an answer: about one second, and enough for the engine to say in which pod it is.
const TOKENS: u32 = 50;
/// How many failures are kept word by word.
const SHOWN_FAILURES: usize = 10;

/// Who answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Requests that a pod of the endpoint itself answered.
    pub own: usize,
    /// Requests that a pod of the canary answered.
    pub canary: usize,
    /// Requests without a whole good answer.
    pub failed: usize,
    /// What went wrong, word by word; the first few.
    pub words: Vec<String>,
}

impl fmt::Display for Answers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { own, canary, failed, words } = self;
        write!(formatter, "{own} answered by the endpoint's pods, {canary} by the canary's, {failed} failed")?;
        if words.is_empty() { Ok(()) } else { write!(formatter, ": {words:#?}") }
    }
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    name: String,
    port: u16,
    stopping: AtomicBool,
    answers: Mutex<Answers>,
}

impl Shared {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Requests through a gateway that go on until they are stopped.
#[derive(Debug)]
pub struct GatewayTraffic {
    shared: Arc<Shared>,
    lanes: Vec<JoinHandle<()>>,
}

impl GatewayTraffic {
    /// Starts to ask an endpoint that is served in this region.
    ///
    /// # Errors
    /// When nothing runs there.
    pub fn start(instance: &LocalInstance, region: &str, name: &str) -> anyhow::Result<Self> {
        let gateway = instance.region(region)?.gateway;
        let port = gateway.rsplit(':').next().and_then(|port| port.parse().ok()).context("the gateway has no port")?;
        let shared = Arc::new(Shared {
            began: Instant::now(),
            name: name.to_owned(),
            port,
            stopping: AtomicBool::new(false),
            answers: Mutex::default(),
        });
        let lanes = (0..LANES).map(|lane| tokio::spawn(ask_again_and_again(shared.clone(), lane))).collect();
        Ok(Self { shared, lanes })
    }

    /// What came of all requests so far.
    #[must_use]
    pub fn so_far(&self) -> Answers {
        self.shared.answers().clone()
    }

    /// Sends no more, waits for what is under way, and says what came of all.
    ///
    /// # Errors
    /// When that does not end.
    pub async fn stop(self) -> anyhow::Result<Answers> {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let ended = tokio::time::timeout(BOUND, futures::future::join_all(self.lanes)).await;
        for lane in ended.context("requests do not end")? {
            lane?;
        }
        Ok(self.shared.answers().clone())
    }
}

async fn ask_again_and_again(shared: Arc<Shared>, lane: usize) {
    let client = LoopbackClient::without_reuse();
    let mut turn = lane;
    while !shared.stopping.load(Ordering::SeqCst) {
        let is_stream = turn % 2 == 1;
        turn += 1;
        let after = shared.began.elapsed().as_secs_f64();
        let answer = ask(&client, &shared, is_stream).await;
        let mut answers = shared.answers();
        match answer {
            Ok(text) if text.contains(&format!("{}-canary-", shared.name)) => answers.canary += 1,
            Ok(_) => answers.own += 1,
            Err(problem) => {
                answers.failed += 1;
                if answers.words.len() < SHOWN_FAILURES {
                    answers.words.push(format!("a request that began after {after:.2} s: {problem:#}"));
                }
            }
        }
    }
}

/// One request; an answer counts only when it is whole.
async fn ask(client: &LoopbackClient, shared: &Shared, is_stream: bool) -> anyhow::Result<String> {
    let body = json!({"prompt": "Who are you?", "max_tokens": TOKENS, "stream": is_stream});
    let path = format!("/inference/{}/v1/completions", shared.name);
    let exchange = async {
        let answer = client.send(shared.port, json_request(&path, &body)?).await?;
        let status = answer.status();
        let text = answer.into_body().collect().await?.to_bytes();
        let text = String::from_utf8_lossy(&text).into_owned();
        ensure!(status.is_success(), "{status}: {text}");
        ensure!(!is_stream || text.contains("[DONE]"), "the stream broke off: {text}");
        let text = if is_stream { joined(&text) } else { text };
        ensure!(text.contains(&format!("pod {}-", shared.name)), "nobody knows who answered: {text}");
        Ok(text)
    };
    tokio::time::timeout(ANSWER, exchange).await.context("no whole answer in time")?
}

/// The text of a stream's pieces, put together.
fn joined(stream: &str) -> String {
    let events =
        stream.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line.strip_prefix("data: ")?).ok());
    events.filter_map(|event| Some(event.pointer("/choices/0/text")?.as_str()?.to_owned())).collect()
}
