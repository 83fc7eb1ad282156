//! A plain HTTP/1.1 proxy on loopback that can lose, delay, replace and change what passes.
//!
//! One and the same stands before a table server and before a kube-apiserver. It passes bytes on as they
//! come, watches included, and records every request.

mod decision;
mod facts;
mod record;
mod replica;
mod upstream;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context as _;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use gco_runtime::clock::{Clock as _, SystemClock};
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, HeaderName};
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

pub use self::decision::{Answer, Decision, DecisionKind, Gate, Rewrite};
pub use self::facts::{KubernetesRequest, RequestFacts};
use self::record::Record;
pub use self::record::{Exchange, ProxyMark};
pub use self::replica::{LaggingCopy, ReplicaConsistency, described_with_replicas};
pub use self::upstream::Upstream;
use self::upstream::{RequestBody, UpstreamClient};
use crate::wait::{self, WaitError};

/// How much of a request's body is kept; the rest is passed on unseen.
const CAPTURED_BYTES: usize = 1024 * 1024;

/// The longest answer that can be rewritten.
const REWRITTEN_BYTES: usize = 16 * 1024 * 1024;

/// Headers that concern one connection only.
const HOP_HEADERS: [&str; 7] =
    ["connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"];

type Hook = Arc<dyn Fn(&RequestFacts) -> Decision + Send + Sync>;
type Matcher = Box<dyn Fn(&RequestFacts) -> bool + Send>;
type ResponseBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// A running proxy. It lives in the runtime it was started in and ends when dropped.
pub struct RewritingProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    stopping: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl RewritingProxy {
    /// Starts a proxy before `upstream` that passes everything on.
    ///
    /// # Errors
    /// When the kernel has no port, or the upstream's certificates cannot be read.
    pub async fn start(upstream: Upstream) -> anyhow::Result<Self> {
        let upstream = UpstreamClient::new(&upstream)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listening on loopback")?;
        let address = listener.local_addr().context("asking for our own address")?;
        let (stopping, stop) = watch::channel(false);
        let shared = Arc::new(Shared {
            upstream,
            record: Record::default(),
            once: Mutex::default(),
            hook: RwLock::default(),
            stop,
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Ok(Self { address, shared, stopping, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens, as `http://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Lets `hook` decide about every request from now on that no rule of [`RewritingProxy::once`] takes.
    pub fn set_hook(&self, hook: impl Fn(&RequestFacts) -> Decision + Send + Sync + 'static) {
        *self.shared.hook.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hook));
    }

    /// Decides so about the next request that `wanted` holds for, and about no other. Rules are tried in
    /// the order in which they were given.
    pub fn once(&self, wanted: impl Fn(&RequestFacts) -> bool + Send + 'static, decision: Decision) {
        let mut rules = self.shared.once.lock().unwrap_or_else(PoisonError::into_inner);
        rules.push((Box::new(wanted), decision));
    }

    /// Passes everything on from now on: no hook, no rules. What is held stays held.
    pub fn pass_everything(&self) {
        *self.shared.hook.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.shared.once.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The place behind the last request so far.
    pub fn mark(&self) -> ProxyMark {
        self.shared.record.mark()
    }

    /// All requests that are on record, in the order of arrival.
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.exchanges_since(ProxyMark::default())
    }

    /// The requests that came after `mark`, in the order of arrival.
    pub fn exchanges_since(&self, mark: ProxyMark) -> Vec<Exchange> {
        self.shared.record.since(mark)
    }

    /// Forgets all requests so far; marks stay good.
    pub fn forget(&self) {
        self.shared.record.forget();
    }

    /// Waits until an exchange after `mark` is such that `wanted` holds, and returns it.
    ///
    /// # Errors
    /// With the last few exchanges, when `bound` passes first.
    pub async fn wait_for(
        &self,
        description: &str,
        bound: Duration,
        mark: ProxyMark,
        wanted: impl Fn(&Exchange) -> bool,
    ) -> Result<Exchange, WaitError> {
        wait::until(description, bound, || {
            let exchanges = self.exchanges_since(mark);
            let found = exchanges.iter().find(|exchange| wanted(exchange)).cloned();
            let last = || exchanges.iter().rev().take(5).map(Exchange::summary).collect::<Vec<_>>().join("; ");
            std::future::ready(found.ok_or_else(last))
        })
        .await
    }

    /// Ends the proxy: connections are closed, what is held is dropped.
    pub async fn stop(mut self) {
        self.end();
        // Its only other outcome is to have been cancelled, which is what was asked for.
        let _ = (&mut self.accepting).await;
    }

    fn end(&self) {
        self.stopping.send_replace(true);
        self.accepting.abort();
    }
}

impl Drop for RewritingProxy {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for RewritingProxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RewritingProxy").field("address", &self.address).finish_non_exhaustive()
    }
}

struct Shared {
    upstream: UpstreamClient,
    record: Record,
    once: Mutex<Vec<(Matcher, Decision)>>,
    hook: RwLock<Option<Hook>>,
    stop: watch::Receiver<bool>,
}

/// The client gets no answer: returning it makes the server close the connection.
#[derive(Debug)]
struct NoAnswer;

impl fmt::Display for NoAnswer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the client gets no answer")
    }
}

impl std::error::Error for NoAnswer {}

/// Accepts connections until it is aborted; its connections end with it.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(serve(stream, shared.clone()))),
                // Out of file descriptors, say. Others end meanwhile.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    // Without it small frames of a watch wait for the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let shared = shared.clone();
        async move { shared.exchange(request).await }
    });
    // Clients that go away and answers that we withhold both end in an error here, by design.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// Marks an exchange as finished however its handling ends, the client's going away included.
struct Finish<'s> {
    record: &'s Record,
    sequence: u64,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.record.change(self.sequence, |exchange| exchange.finished = true);
    }
}

impl Shared {
    async fn exchange(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<ResponseBody>, NoAnswer> {
        let (parts, body) = request.into_parts();
        let (captured, rest) = capture(body).await.map_err(|_| NoAnswer)?;
        let mut decision = None;
        let sequence = self.record.begin(|sequence| {
            let facts = facts(sequence, &parts, &captured, rest.is_none());
            let decided = self.decide(&facts);
            let kind = decided.kind();
            decision = Some(decided);
            (Arc::new(facts), kind)
        });
        let finish = Finish { record: &self.record, sequence };
        let path_and_query = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let mut request = Request::new(body_of(captured, rest));
        *request.method_mut() = parts.method;
        *request.uri_mut() = self.upstream.uri(&path_and_query).map_err(|_| NoAnswer)?;
        *request.headers_mut() = without_hop_headers(parts.headers);

        let answer = match decision.unwrap_or(Decision::Forward) {
            Decision::Forward => self.forward(sequence, request, None).await?.map(BodyExt::boxed_unsync),
            Decision::HoldThenForward(gate) => {
                self.forward(sequence, request, Some(gate)).await?.map(BodyExt::boxed_unsync)
            }
            Decision::AnswerInstead(answer) => whole(answer),
            Decision::ForwardThenDrop => {
                self.forward(sequence, request, None).await?;
                return Err(NoAnswer);
            }
            Decision::ForwardThenHold(gate) => {
                let answer = self.forward(sequence, request, None).await?;
                gate.passed().await;
                answer.map(BodyExt::boxed_unsync)
            }
            Decision::DropBefore => return Err(NoAnswer),
            Decision::RewriteResponse(rewrite) => {
                // A compressed body would be of no use to the function.
                request.headers_mut().remove(ACCEPT_ENCODING);
                let answer = self.forward(sequence, request, None).await?;
                whole(rewrite(self.collected(sequence, answer).await?))
            }
        };
        let status = answer.status().as_u16();
        self.record.change(sequence, |exchange| exchange.client_status = Some(status));
        drop(finish);
        Ok(answer)
    }

    fn decide(&self, facts: &RequestFacts) -> Decision {
        let mut rules = self.once.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = rules.iter().position(|(wanted, _)| wanted(facts)) {
            return rules.remove(index).1;
        }
        drop(rules);
        let hook = self.hook.read().unwrap_or_else(PoisonError::into_inner).clone();
        hook.map_or(Decision::Forward, |hook| hook(facts))
    }

    /// Passes a request on in a task of its own, which a client that gives up does not end.
    async fn forward(
        self: &Arc<Self>,
        sequence: u64,
        request: Request<RequestBody>,
        gate: Option<Gate>,
    ) -> Result<Response<Incoming>, NoAnswer> {
        let shared = self.clone();
        let mut stop = self.stop.clone();
        let task = tokio::spawn(async move {
            let sending = async {
                if let Some(gate) = gate {
                    gate.passed().await;
                }
                shared.upstream.send(request).await
            };
            let outcome = tokio::select! {
                outcome = sending => outcome,
                _ = stop.wait_for(|stop| *stop) => Err("the proxy was stopped".to_owned()),
            };
            shared.record.change(sequence, |exchange| match &outcome {
                Ok(answer) => exchange.upstream_status = Some(answer.status().as_u16()),
                Err(error) => exchange.error = Some(error.clone()),
            });
            outcome
        });
        // A server that cannot be reached looks to the client as it would without us: a lost connection.
        let mut answer = task.await.map_err(|_| NoAnswer)?.map_err(|_| NoAnswer)?;
        let headers = std::mem::take(answer.headers_mut());
        *answer.headers_mut() = without_hop_headers(headers);
        // The version belongs to the connection, too.
        *answer.version_mut() = http::Version::HTTP_11;
        Ok(answer)
    }

    async fn collected(&self, sequence: u64, answer: Response<Incoming>) -> Result<Answer, NoAnswer> {
        let (parts, body) = answer.into_parts();
        match Limited::new(body, REWRITTEN_BYTES).collect().await {
            Ok(body) => Ok(Answer { status: parts.status, headers: parts.headers, body: body.to_bytes() }),
            Err(error) => {
                let error = format!("collecting an answer to rewrite: {error}");
                self.record.change(sequence, |exchange| exchange.error = Some(error));
                Err(NoAnswer)
            }
        }
    }
}

fn facts(sequence: u64, parts: &http::request::Parts, captured: &Bytes, complete: bool) -> RequestFacts {
    let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
    RequestFacts {
        sequence,
        method: parts.method.clone(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers: parts.headers.clone(),
        body: captured.slice(..captured.len().min(CAPTURED_BYTES)),
        body_is_complete: complete && captured.len() <= CAPTURED_BYTES,
        received_at: SystemClock.wall(),
        received_boot: SystemClock.boot(),
        dynamodb_operation: facts::dynamodb_operation(&parts.headers),
        kubernetes: facts::kubernetes_request(&parts.method, path, query),
    }
}

/// Reads a body until its end or until enough of it was seen; then also returns the rest.
async fn capture(mut body: Incoming) -> Result<(Bytes, Option<Incoming>), hyper::Error> {
    let mut captured = BytesMut::new();
    while let Some(frame) = body.frame().await {
        // Trailers are not part of either protocol.
        if let Ok(data) = frame?.into_data() {
            captured.extend_from_slice(&data);
        }
        if captured.len() > CAPTURED_BYTES {
            return Ok((captured.freeze(), Some(body)));
        }
    }
    Ok((captured.freeze(), None))
}

fn body_of(captured: Bytes, rest: Option<Incoming>) -> RequestBody {
    match rest {
        None => Full::new(captured).map_err(|never| match never {}).boxed_unsync(),
        Some(rest) => {
            let first = futures::stream::iter([Ok(Frame::data(captured))]);
            let rest = http_body_util::BodyStream::new(rest);
            StreamBody::new(first.chain(rest)).boxed_unsync()
        }
    }
}

fn without_hop_headers(mut headers: HeaderMap) -> HeaderMap {
    for name in HOP_HEADERS {
        headers.remove(name);
    }
    headers
}

fn whole(answer: Answer) -> Response<ResponseBody> {
    /// A checksum of the body that was; clients that check it would refuse a changed one.
    const CHECKSUM: HeaderName = HeaderName::from_static("x-amz-crc32");
    let mut response = Response::new(Full::new(answer.body).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = answer.status;
    *response.headers_mut() = without_hop_headers(answer.headers);
    response.headers_mut().remove(CONTENT_LENGTH);
    response.headers_mut().remove(CHECKSUM);
    response
}
