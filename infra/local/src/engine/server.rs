//! The routes of the engine.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::complete::complete;
use super::metrics::Metrics;
use super::orders::{Board, Orders};
use super::request::{self, Kind, Limits, Refusal};
use super::transfer::{Accounts, Ledger, Transfer};
use super::{EngineSettings, text};

/// The largest request body, in bytes.
const MAXIMUM_BODY_BYTES: usize = 32 * 1024 * 1024;

/// What the routes share.
pub(super) struct Engine {
    pub(super) settings: EngineSettings,
    pub(super) loaded: AtomicBool,
    pub(super) started_seconds: i64,
    pub(super) metrics: Arc<Metrics>,
    pub(super) places: Arc<Semaphore>,
    /// The hand-over of KV; `None` without a connector.
    pub(super) transfer: Option<Arc<Transfer>>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) orders: Arc<Board>,
    /// Cancelled when something ends this engine as it would end a real one.
    pub(super) ends: CancellationToken,
    requests: AtomicU64,
    recorded: Mutex<VecDeque<RecordedRequest>>,
}

/// A request for a completion as it came in, when `GCO_ENGINE_RECORDED_REQUESTS` asks for that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedRequest {
    /// Its path, without the root path.
    pub path: String,
    /// Its headers in order, names in lower case; bytes that are not UTF-8 are replaced.
    pub headers: Vec<(String, String)>,
    /// Its body; bytes that are not UTF-8 are replaced.
    pub body: String,
}

impl Engine {
    pub(super) fn new(
        settings: EngineSettings,
        started_seconds: i64,
        transfer: Option<Arc<Transfer>>,
        ledger: Arc<Ledger>,
        orders: Arc<Board>,
    ) -> Arc<Self> {
        let places = settings.arguments.maximum_sequences.min(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            settings,
            loaded: AtomicBool::new(false),
            started_seconds,
            metrics: Arc::new(Metrics::default()),
            places: Arc::new(Semaphore::new(places)),
            transfer,
            ledger,
            orders,
            ends: CancellationToken::new(),
            requests: AtomicU64::new(0),
            recorded: Mutex::default(),
        })
    }

    fn record(&self, path: &str, headers: &HeaderMap, body: &[u8]) {
        let limit = self.settings.recorded_requests;
        if limit == 0 {
            return;
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers = headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value.as_bytes()))).collect();
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        if recorded.len() == limit {
            recorded.pop_front();
        }
        recorded.push_back(RecordedRequest { path: path.to_owned(), headers, body: text(body) });
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    fn served_model(&self) -> &str {
        self.settings.arguments.served_names.first().map_or("", String::as_str)
    }

    pub(super) fn limits(&self) -> Limits<'_> {
        let arguments = &self.settings.arguments;
        Limits { served_names: &arguments.served_names, maximum_model_tokens: arguments.maximum_model_tokens }
    }

    /// The caller's own identifier, or one that this process has not used before.
    pub(super) fn request_identifier(&self, headers: &HeaderMap) -> String {
        let given = headers.get("x-request-id").and_then(|value| value.to_str().ok()).filter(|id| !id.is_empty());
        given.map_or_else(
            || {
                let number = self.requests.fetch_add(1, Ordering::Relaxed);
                let seed = format!("{}/{}/{number}", self.settings.identity.pod, self.started_seconds);
                format!("{:016x}{number:08x}", text::hash(&seed))
            },
            str::to_owned,
        )
    }
}

/// All routes, bare and below the root path: a real server behind `--root-path` answers both.
pub(super) fn router(engine: Arc<Engine>) -> Router {
    let routes = Router::new()
        .route("/health", get(health))
        .route("/version", get(version))
        .route("/server_info", get(server_info))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models))
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/tokenize", post(tokenize))
        .route("/simulated/orders", put(put_orders))
        .route("/simulated/accounts", get(accounts).delete(clear_accounts))
        .route("/simulated/requests", get(recorded_requests))
        .method_not_allowed_fallback(async || detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"));
    let root_path = engine.settings.arguments.root_path.clone();
    let all = if root_path.is_empty() { routes } else { Router::new().nest(&root_path, routes.clone()).merge(routes) };
    all.fallback(async || detail(StatusCode::NOT_FOUND, "Not Found"))
        .layer(DefaultBodyLimit::max(MAXIMUM_BODY_BYTES))
        .with_state(engine)
}

fn detail(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({"detail": message}))).into_response()
}

pub(super) fn loading() -> Response {
    Refusal {
        status: StatusCode::SERVICE_UNAVAILABLE,
        kind: "ServiceUnavailableError",
        message: "The model is still loading.".to_owned(),
        parameter: None,
    }
    .into_response()
}

async fn health(State(engine): State<Arc<Engine>>) -> StatusCode {
    if let Some(status) = engine.orders.health() {
        return StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    }
    if engine.is_loaded() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn version() -> Json<Value> {
    Json(json!({"version": concat!(env!("CARGO_PKG_VERSION"), "+gco.simulated")}))
}

async fn server_info(State(engine): State<Arc<Engine>>) -> Json<Value> {
    let settings = &engine.settings;
    let arguments: Vec<Value> =
        settings.arguments.declared.iter().map(|one| json!({"flag": one.flag, "values": one.values})).collect();
    let environment: serde_json::Map<String, Value> =
        settings.environment.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    Json(json!({
        "model": settings.arguments.model,
        "served_model_names": settings.arguments.served_names,
        "root_path": settings.arguments.root_path,
        "max_model_len": settings.arguments.maximum_model_tokens,
        "region": settings.identity.region,
        "pod": settings.identity.pod,
        "loaded": engine.is_loaded(),
        "arguments": arguments,
        "environment": environment,
    }))
}

async fn metrics(State(engine): State<Arc<Engine>>) -> Response {
    let content_type = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (content_type, engine.metrics.exposition(engine.served_model())).into_response()
}

async fn put_orders(State(engine): State<Arc<Engine>>, body: Bytes) -> Response {
    match serde_json::from_slice::<Orders>(&body) {
        Ok(orders) => {
            engine.orders.put(orders);
            StatusCode::NO_CONTENT.into_response()
        }
        Err(problem) => Refusal::bad(problem.to_string(), None).into_response(),
    }
}

async fn accounts(State(engine): State<Arc<Engine>>) -> Json<Accounts> {
    Json(engine.transfer.as_ref().map_or_else(|| engine.ledger.note().clone(), |transfer| transfer.accounts()))
}

async fn clear_accounts(State(engine): State<Arc<Engine>>) -> StatusCode {
    let mut note = engine.ledger.note();
    *note = Accounts { engine_ids: std::mem::take(&mut note.engine_ids), ..Accounts::default() };
    StatusCode::NO_CONTENT
}

async fn recorded_requests(State(engine): State<Arc<Engine>>) -> Json<Vec<RecordedRequest>> {
    Json(engine.recorded.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect())
}

async fn models(State(engine): State<Arc<Engine>>) -> Response {
    if !engine.is_loaded() {
        return loading();
    }
    let arguments = &engine.settings.arguments;
    let data: Vec<Value> = arguments
        .served_names
        .iter()
        .map(|name| {
            json!({
                "id": name,
                "object": "model",
                "created": engine.started_seconds,
                "owned_by": "vllm",
                "root": arguments.model,
                "parent": null,
                "max_model_len": arguments.maximum_model_tokens,
            })
        })
        .collect();
    Json(json!({"object": "list", "data": data})).into_response()
}

async fn completions(State(engine): State<Arc<Engine>>, headers: HeaderMap, body: Bytes) -> Response {
    engine.record("/v1/completions", &headers, &body);
    complete(&engine, Kind::Text, &headers, &body).await
}

async fn chat_completions(State(engine): State<Arc<Engine>>, headers: HeaderMap, body: Bytes) -> Response {
    engine.record("/v1/chat/completions", &headers, &body);
    complete(&engine, Kind::Chat, &headers, &body).await
}

async fn tokenize(State(engine): State<Arc<Engine>>, body: Bytes) -> Response {
    if !engine.is_loaded() {
        return loading();
    }
    let pieces = request::object(&body).and_then(|body| {
        request::model(&body, &engine.settings.arguments.served_names)?;
        let text = match (body.get("prompt"), body.get("messages")) {
            (Some(Value::String(prompt)), _) => prompt.clone(),
            (None, Some(messages)) => request::chat_texts(Some(messages))?.join("\n"),
            _ => return Err(Refusal::bad("Either prompt (a string) or messages is required.", Some("prompt"))),
        };
        let with_texts = body.get("return_token_strs").and_then(Value::as_bool).unwrap_or_default();
        Ok((text::pieces(&text), with_texts))
    });
    match pieces {
        Ok((pieces, with_texts)) => {
            let numbers: Vec<u32> = pieces.iter().map(|piece| text::token_number(piece)).collect();
            Json(json!({
                "count": numbers.len(),
                "max_model_len": engine.settings.arguments.maximum_model_tokens,
                "tokens": numbers,
                "token_strs": with_texts.then_some(pieces),
            }))
            .into_response()
        }
        Err(refusal) => refusal.into_response(),
    }
}
