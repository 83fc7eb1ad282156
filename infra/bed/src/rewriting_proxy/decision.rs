//! What to do with a request.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::sync::watch;

/// A gate that requests wait at until it is opened. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate {
    open: Arc<watch::Sender<bool>>,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self { open: Arc::new(watch::Sender::new(false)) }
    }

    /// Lets everybody through who waits now or comes later.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    pub(super) async fn passed(&self) {
        let mut opened = self.open.subscribe();
        // Fails only when the sender is gone, and we hold it.
        let _ = opened.wait_for(|open| *open).await;
    }
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers; the length is set by the proxy.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Answer {
    /// An answer with a body of this type.
    pub fn new(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
        Self { status, headers, body: body.into() }
    }

    /// The same with one more header.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: &'static str) -> Self {
        self.headers.insert(name, HeaderValue::from_static(value));
        self
    }

    /// DynamoDB refusing with this error: 500 for `InternalServerError`, 400 for every other.
    pub fn dynamodb_error(error: &str, message: &str) -> Self {
        let status = match error {
            "InternalServerError" => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        };
        let kind = format!("com.amazonaws.dynamodb.v20120810#{error}");
        let body = serde_json::json!({ "__type": kind, "message": message });
        Self::new(status, "application/x-amz-json-1.0", body.to_string())
    }

    /// DynamoDB refusing because the table's throughput is used up.
    pub fn dynamodb_throttled() -> Self {
        Self::dynamodb_error(
            "ProvisionedThroughputExceededException",
            "The level of configured provisioned throughput for the table was exceeded.",
        )
    }

    /// DynamoDB failing inside.
    pub fn dynamodb_internal_error() -> Self {
        Self::dynamodb_error("InternalServerError", "Internal server error")
    }

    /// A Kubernetes API refusing with a Status object of this reason, such as `Conflict`.
    pub fn kubernetes_status(code: StatusCode, reason: &str, message: &str) -> Self {
        let body = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code.as_u16(),
        });
        Self::new(code, "application/json", body.to_string())
    }

    /// A Kubernetes API refusing because too much is asked of it: plain text, as the real one.
    pub fn kubernetes_too_many_requests() -> Self {
        let text = "Too many requests, please try again later.\n";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "text/plain; charset=utf-8", text).header(RETRY_AFTER, "1")
    }
}

/// Changes an answer on its way back.
pub type Rewrite = Box<dyn FnOnce(Answer) -> Answer + Send>;

/// What to do with a request.
///
/// Whatever is forwarded reaches the server even when the client gives up meanwhile: that is how late
/// writes come about.
pub enum Decision {
    /// Pass it on.
    Forward,
    /// Pass it on once the gate is open.
    HoldThenForward(Gate),
    /// Do not pass it on; answer with this.
    AnswerInstead(Answer),
    /// Pass it on; when the server has answered, close the client's connection without a word.
    ForwardThenDrop,
    /// Pass it on; when the server has answered, keep the answer until the gate is open.
    ForwardThenHold(Gate),
    /// Do not pass it on; close the client's connection without a word.
    DropBefore,
    /// Pass it on and change the whole answer. Not for watches: these never are whole.
    RewriteResponse(Rewrite),
}

impl Decision {
    /// [`Decision::RewriteResponse`] with this function.
    pub fn rewrite(rewrite: impl FnOnce(Answer) -> Answer + Send + 'static) -> Self {
        Self::RewriteResponse(Box::new(rewrite))
    }

    /// Which kind it is.
    pub fn kind(&self) -> DecisionKind {
        match self {
            Self::Forward => DecisionKind::Forward,
            Self::HoldThenForward(_) => DecisionKind::HoldThenForward,
            Self::AnswerInstead(_) => DecisionKind::AnswerInstead,
            Self::ForwardThenDrop => DecisionKind::ForwardThenDrop,
            Self::ForwardThenHold(_) => DecisionKind::ForwardThenHold,
            Self::DropBefore => DecisionKind::DropBefore,
            Self::RewriteResponse(_) => DecisionKind::RewriteResponse,
        }
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.kind(), formatter)
    }
}

/// The kind of a [`Decision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionKind {
    /// Passed on.
    Forward,
    /// Held before the server.
    HoldThenForward,
    /// Answered by the proxy.
    AnswerInstead,
    /// Done by the server, the answer lost.
    ForwardThenDrop,
    /// Done by the server, the answer held.
    ForwardThenHold,
    /// Lost before the server.
    DropBefore,
    /// Answered by the server, changed by the proxy.
    RewriteResponse,
}
