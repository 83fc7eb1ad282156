//! What a client got: status, headers, body, and whether the body came to its end.

use anyhow::{Context as _, bail, ensure};
use axum::body::Body;
use bytes::Bytes;
use gco_local::loopback::LoopbackClient;
use http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use serde_json::Value;

use super::BOUND;

/// An answer, whole or not.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// What came of its body.
    pub body: Bytes,
    /// Whether that was all: a connection that broke leaves it false.
    pub whole: bool,
}

impl Reply {
    /// Sends a request and reads what comes, to its end or until the connection breaks.
    ///
    /// # Errors
    /// When no head comes, or the answer does not end within [`BOUND`].
    pub async fn to(client: &LoopbackClient, port: u16, request: Request<Body>) -> anyhow::Result<Self> {
        let exchange = async {
            let response = client.send(port, request).await?;
            let (parts, mut body) = response.into_parts();
            let mut read = Vec::new();
            let mut whole = true;
            while let Some(frame) = body.frame().await {
                match frame.ok().and_then(|frame| frame.into_data().ok()) {
                    Some(data) => read.extend_from_slice(&data),
                    None => {
                        whole = false;
                        break;
                    }
                }
            }
            Ok(Self { status: parts.status.as_u16(), headers: parts.headers, body: read.into(), whole })
        };
        tokio::time::timeout(BOUND, exchange).await.context("the answer does not end")?
    }

    /// The words of `x-gco-exchange`: how it was served, and why not with KV from prefill.
    #[must_use]
    pub fn exchange(&self) -> &str {
        self.headers.get("x-gco-exchange").and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON, null when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The `data:` values of an event stream.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        self.text().split("\n\n").filter_map(|event| event.strip_prefix("data: ").map(str::to_owned)).collect()
    }

    /// What was said in the first choice, whole or in pieces.
    ///
    /// # Errors
    /// When this is no whole answer of an engine.
    pub fn said(&self) -> anyhow::Result<String> {
        ensure!(self.status == 200 && self.whole, "status {}, whole: {}, {}", self.status, self.whole, self.text());
        let piece = |choice: &Value| {
            let texts = [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]];
            texts.into_iter().find_map(Value::as_str).unwrap_or_default().to_owned()
        };
        if !self.body.starts_with(b"data: ") {
            return Ok(piece(&self.json()["choices"][0]));
        }
        let events = self.events();
        ensure!(events.last().is_some_and(|last| last == "[DONE]"), "no [DONE]: {}", self.text());
        let mut said = String::new();
        for event in &events[..events.len() - 1] {
            let event: Value = serde_json::from_str(event).with_context(|| format!("an event is no JSON: {event}"))?;
            if event["error"].is_object() {
                bail!("an error in the stream: {event}");
            }
            said.push_str(&piece(&event["choices"][0]));
        }
        Ok(said)
    }
}
