//! Plain requests in DynamoDB's protocol, past the product's own client: to see what a server itself does.

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value as Json;

/// Names keys and region as servers want to see them; nobody checks the signature.
const AUTHORIZATION: &str = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/dynamodb/aws4_request, \
     SignedHeaders=host;x-amz-date;x-amz-target, Signature=0000000000000000000000000000000000000000000000000000000000000000";

/// What a server answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The JSON body; `Null` when there was none.
    pub body: Json,
}

impl Answer {
    /// The error's short name (`ValidationException` …), empty on success.
    #[must_use]
    pub fn error(&self) -> &str {
        let kind = self.body.get("__type").and_then(Json::as_str).unwrap_or_default();
        kind.rsplit('#').next().unwrap_or_default()
    }

    /// Whether it succeeded.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.status == 200
    }
}

/// A client of one server.
#[derive(Clone, Debug)]
pub struct RawClient {
    endpoint: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl RawClient {
    /// A client of the server at `endpoint` (`http://127.0.0.1:…`).
    #[must_use]
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self { endpoint: endpoint.into(), client: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// Sends one operation.
    ///
    /// # Errors
    /// No answer, or one that is not JSON.
    pub async fn call(&self, operation: &str, body: &Json) -> anyhow::Result<Answer> {
        let request = http::Request::post(&self.endpoint)
            .header("content-type", "application/x-amz-json-1.0")
            .header("x-amz-target", format!("DynamoDB_20120810.{operation}"))
            .header("x-amz-date", "20260101T000000Z")
            .header("authorization", AUTHORIZATION)
            .body(Full::new(Bytes::from(body.to_string())))?;
        let response =
            self.client.request(request).await.with_context(|| format!("{operation} at {}", self.endpoint))?;
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await?.to_bytes();
        let body = if bytes.is_empty() {
            Json::Null
        } else {
            serde_json::from_slice(&bytes)
                .with_context(|| format!("{operation} answered {status}: {}", String::from_utf8_lossy(&bytes)))?
        };
        Ok(Answer { status, body })
    }
}
