//! The routes of the engine and the life of a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::stream;
use gco_runtime::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::{Completion, Event, Events};
use super::metrics::{Held, Metrics};
use super::request::{self, CompletionRequest, Kind, Limits, Refusal};
use super::{EngineSettings, text};

/// The largest request body, in bytes.
const MAXIMUM_BODY_BYTES: usize = 32 * 1024 * 1024;

/// What the routes share.
pub(super) struct Engine {
    pub(super) settings: EngineSettings,
    pub(super) loaded: AtomicBool,
    pub(super) started_seconds: i64,
    metrics: Arc<Metrics>,
    places: Arc<Semaphore>,
    requests: AtomicU64,
}

impl Engine {
    pub(super) fn new(settings: EngineSettings, started_seconds: i64) -> Arc<Self> {
        let places = settings.arguments.maximum_sequences.min(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            settings,
            loaded: AtomicBool::new(false),
            started_seconds,
            metrics: Arc::new(Metrics::default()),
            places: Arc::new(Semaphore::new(places)),
            requests: AtomicU64::new(0),
        })
    }

    fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    fn served_model(&self) -> &str {
        self.settings.arguments.served_names.first().map_or("", String::as_str)
    }

    fn limits(&self) -> Limits<'_> {
        let arguments = &self.settings.arguments;
        Limits { served_names: &arguments.served_names, maximum_model_tokens: arguments.maximum_model_tokens }
    }

    /// The caller's own identifier, or one that this process has not used before.
    fn request_identifier(&self, headers: &HeaderMap) -> String {
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

fn loading() -> Response {
    Refusal {
        status: StatusCode::SERVICE_UNAVAILABLE,
        kind: "ServiceUnavailableError",
        message: "The model is still loading.".to_owned(),
        parameter: None,
    }
    .into_response()
}

async fn health(State(engine): State<Arc<Engine>>) -> StatusCode {
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
    complete(&engine, Kind::Text, &headers, &body).await
}

async fn chat_completions(State(engine): State<Arc<Engine>>, headers: HeaderMap, body: Bytes) -> Response {
    complete(&engine, Kind::Chat, &headers, &body).await
}

async fn complete(engine: &Arc<Engine>, kind: Kind, headers: &HeaderMap, body: &[u8]) -> Response {
    if !engine.is_loaded() {
        return loading();
    }
    let request = match CompletionRequest::read(kind, body, &engine.limits()) {
        Ok(request) => request,
        Err(refusal) => return refusal.into_response(),
    };
    let identifier = engine.request_identifier(headers);
    let created_seconds = SystemClock.wall().as_second();
    let completion = Completion::compose(&request, &engine.settings.identity, &identifier, created_seconds);
    tracing::info!(
        request = identifier,
        model = request.model,
        prompt_tokens = completion.prompt_tokens(),
        generated_tokens = completion.generated_tokens(),
        stream = request.stream,
        "completion"
    );
    let completion = Arc::new(completion);
    if request.stream {
        return stream_answer(Arc::clone(engine), completion);
    }

    // When the client leaves, this future is dropped, and the gauges and the place with it.
    let Some(_turn) = Turn::take(engine).await else { return loading() };
    engine.metrics.read_prompt(completion.prompt_tokens());
    let tokens = u32::try_from(completion.longest_choice_tokens()).unwrap_or(u32::MAX);
    tokio::time::sleep(engine.settings.token_pause.saturating_mul(tokens)).await;
    engine.metrics.generated(completion.generated_tokens());
    completion.count_as_finished(&engine.metrics);
    Json(completion.whole()).into_response()
}

/// A place among the sequences that are generated at once, counted while it is held.
struct Turn {
    _place: OwnedSemaphorePermit,
    _running: Held,
}

impl Turn {
    /// Waits for a place. `None` never happens in practice: the semaphore is not closed.
    async fn take(engine: &Engine) -> Option<Self> {
        let waiting = Held::waiting(&engine.metrics);
        let place = Arc::clone(&engine.places).acquire_owned().await.ok()?;
        drop(waiting);
        Some(Self { _place: place, _running: Held::running(&engine.metrics) })
    }
}

/// A stream under way. Dropped when it ends or when the client leaves.
struct Streaming {
    engine: Arc<Engine>,
    completion: Arc<Completion>,
    events: Events,
    turn: Option<Turn>,
}

fn stream_answer(engine: Arc<Engine>, completion: Arc<Completion>) -> Response {
    let events = Events::new(Arc::clone(&completion));
    let state = Streaming { engine, completion, events, turn: None };
    // As with a real server, status and headers go out at once, the first event when there is one.
    let body = stream::unfold(state, async |mut state| {
        if state.turn.is_none() {
            state.turn = Some(Turn::take(&state.engine).await?);
            state.engine.metrics.read_prompt(state.completion.prompt_tokens());
        }
        let Some(Event { tokens, text }) = state.events.next() else {
            state.completion.count_as_finished(&state.engine.metrics);
            return None;
        };
        if tokens > 0 {
            pause(state.engine.settings.token_pause).await;
            state.engine.metrics.generated(tokens);
        }
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), state))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(body)).into_response()
}

/// The pace of the tokens. Without one the task still gives way to others.
async fn pause(duration: Duration) {
    if duration.is_zero() {
        tokio::task::yield_now().await;
    } else {
        tokio::time::sleep(duration).await;
    }
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
