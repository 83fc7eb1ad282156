//! HTTP to servers on this machine: what probes, the gateway and the suites speak.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// The most bytes of an answer that [`LoopbackClient::call`] reads.
const MAXIMUM_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// A client for `http://127.0.0.1:PORT`.
#[derive(Clone, Debug)]
pub struct LoopbackClient {
    client: Client<HttpConnector, Body>,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its body.
    pub body: Bytes,
}

impl Answer {
    /// The body as text; bytes that are not UTF-8 become replacement characters.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON, null when it is not JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// No answer came, or not a whole one.
#[derive(Debug, thiserror::Error)]
pub enum LoopbackError {
    /// Nobody listens there: nothing was sent.
    #[error("nobody listens at 127.0.0.1:{port}")]
    Refused {
        /// Where it was to be sent.
        port: u16,
    },
    /// The connection broke.
    #[error("no answer from 127.0.0.1:{port}: {message}")]
    NoAnswer {
        /// Where it was sent.
        port: u16,
        /// The innermost reason.
        message: String,
    },
    /// The time was over first.
    #[error("127.0.0.1:{port} did not answer within {} s", .bound.as_secs_f64())]
    TimeOut {
        /// Where it was sent.
        port: u16,
        /// How long was waited.
        bound: Duration,
    },
    /// The request could not be made: a bad path or header.
    #[error("not a request: {0}")]
    Request(#[from] http::Error),
}

impl Default for LoopbackClient {
    fn default() -> Self {
        Self::new()
    }
}

impl LoopbackClient {
    /// A client that keeps connections for the next request.
    #[must_use]
    pub fn new() -> Self {
        Self { client: Client::builder(TokioExecutor::new()).build(connector()) }
    }

    /// A client that opens a connection for every request, as a kubelet's probes do.
    #[must_use]
    pub fn without_reuse() -> Self {
        Self { client: Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector()) }
    }

    /// Sends a request to a port and returns as soon as status and headers are there; the body
    /// follows as it comes.
    ///
    /// # Errors
    ///
    /// When nobody answers or the connection breaks.
    pub async fn send(&self, port: u16, mut request: Request<Body>) -> Result<Response<Incoming>, LoopbackError> {
        let path = request.uri().path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        *request.uri_mut() =
            Uri::builder().scheme("http").authority(format!("127.0.0.1:{port}")).path_and_query(path).build()?;
        self.client.request(request).await.map_err(|problem| {
            if problem.is_connect() { LoopbackError::Refused { port } } else { no_answer(port, &problem) }
        })
    }

    /// Asks and reads the whole answer, at most 16 MiB of it, within `bound`.
    ///
    /// # Errors
    ///
    /// When there is no whole answer in time.
    pub async fn call(&self, port: u16, request: Request<Body>, bound: Duration) -> Result<Answer, LoopbackError> {
        let exchange = async {
            let response = self.send(port, request).await?;
            let status = response.status();
            let body = http_body_util::Limited::new(response.into_body(), MAXIMUM_ANSWER_BYTES).collect().await;
            let body = body.map_err(|problem| no_answer(port, problem.as_ref()))?.to_bytes();
            Ok(Answer { status, body })
        };
        tokio::time::timeout(bound, exchange).await.map_err(|_| LoopbackError::TimeOut { port, bound })?
    }

    /// GET of a path.
    ///
    /// # Errors
    ///
    /// As [`LoopbackClient::call`].
    pub async fn get(&self, port: u16, path: &str, bound: Duration) -> Result<Answer, LoopbackError> {
        self.call(port, Request::get(path).body(Body::empty())?, bound).await
    }

    /// POST of a JSON value to a path.
    ///
    /// # Errors
    ///
    /// As [`LoopbackClient::call`].
    pub async fn post(
        &self,
        port: u16,
        path: &str,
        value: &serde_json::Value,
        bound: Duration,
    ) -> Result<Answer, LoopbackError> {
        self.call(port, json_request(path, value)?, bound).await
    }
}

/// A POST request with a JSON body.
///
/// # Errors
///
/// When the path is no path.
pub fn json_request(path: &str, value: &serde_json::Value) -> Result<Request<Body>, http::Error> {
    Request::post(path).header(header::CONTENT_TYPE, "application/json").body(Body::from(value.to_string()))
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(Duration::from_secs(5)));
    connector
}

fn no_answer(port: u16, problem: &(dyn std::error::Error + 'static)) -> LoopbackError {
    let mut innermost = problem;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    LoopbackError::NoAnswer { port, message: innermost.to_string() }
}
