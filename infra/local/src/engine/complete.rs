//! The life of a completion: what is refused, what waits for KV, what is answered whole or as a stream, and how it breaks
//! off when a suite ordered that.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures::stream::{self, Stream, StreamExt as _};
use gco_runtime::clock::{Clock as _, SystemClock};
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;

use super::answer::{Completion, Event, Events};
use super::metrics::{Held, PromptSource};
use super::orders::{CompletionOrder, CutEnd, Cutter};
use super::request::{self, CompletionRequest, Kind, Refusal};
use super::server::{Engine, loading};
use super::text;
use super::transfer::{Handover, Kv, LoadFailure, OnLoadFailure};

/// The header that names the rank of a request.
const RANK_HEADER: &str = "x-data-parallel-rank";

/// What a stream says whose KV did not come, as Python writes JSON.
const FAILED_STREAM: &[u8] = concat!(
    r#"data: {"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}"#,
    "\n\n"
)
.as_bytes();

/// What is said to the request that ended the engine.
const ENGINE_DEAD: &str = "EngineCore encountered an issue. See stack trace (above) for the root cause.";

/// How long an answer with an assertion's 500 may take to leave before the process ends.
const LAST_WORDS: Duration = Duration::from_millis(50);

pub(super) async fn complete(engine: &Arc<Engine>, kind: Kind, headers: &HeaderMap, body: &[u8]) -> Response {
    if !engine.is_loaded() {
        return loading();
    }
    let order = engine.orders.next_completion();
    match order {
        Some(CompletionOrder::Status(status)) => return internal_error(status).into_response(),
        Some(CompletionOrder::Delay(milliseconds)) => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
        Some(CompletionOrder::Hang) => return std::future::pending().await,
        Some(CompletionOrder::Exit) => {
            engine.ends.cancel();
            return std::future::pending().await;
        }
        _ => {}
    }
    let job = match Job::read(engine, kind, headers, body, order.as_ref()) {
        Ok(job) => job,
        Err(refusal) => return refusal.into_response(),
    };
    tracing::info!(
        request = job.identifier,
        model = job.model,
        prompt_tokens = job.completion.prompt_tokens(),
        generated_tokens = job.completion.generated_tokens(),
        stream = job.stream,
        handover = job.handover.is_some(),
        "completion"
    );
    if let Some(Handover::EndsEngine) = job.handover {
        end_soon(engine);
        return Refusal { message: ENGINE_DEAD.to_owned(), ..internal_error(500) }.into_response();
    }
    let cutting = match order {
        Some(CompletionOrder::Cut { at, then }) => Some((Cutter::new(at), then)),
        _ => None,
    };
    if job.stream {
        let events = job.events().boxed();
        let body = match cutting {
            Some((cutter, then)) => Body::from_stream(cut(events, cutter, then, Arc::clone(engine))),
            None => Body::from_stream(events.map(Ok::<_, Infallible>)),
        };
        let headers = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
        return (headers, body).into_response();
    }
    // When the client leaves, this future is dropped, and the gauges and the place with it.
    let answer = match job.whole().await {
        Ok(answer) => answer,
        Err(LoadFailure(_)) => return internal_error(500).into_response(),
    };
    let Some((cutter, then)) = cutting else { return Json(answer).into_response() };
    let bytes = Bytes::from(answer.to_string());
    // The length of the whole: a part must not look complete.
    let headers =
        [(header::CONTENT_TYPE, "application/json".to_owned()), (header::CONTENT_LENGTH, bytes.len().to_string())];
    let part = cut(stream::iter([bytes]), cutter, then, Arc::clone(engine));
    (headers, Body::from_stream(part)).into_response()
}

/// The error of a request that failed inside.
fn internal_error(status: u16) -> Refusal {
    Refusal {
        status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        kind: "InternalServerError",
        message: "Internal server error".to_owned(),
        parameter: None,
    }
}

/// The engine ends, after what is being said has been said.
fn end_soon(engine: &Arc<Engine>) {
    let ends = engine.ends.clone();
    tokio::spawn(async move {
        tokio::time::sleep(LAST_WORDS).await;
        ends.cancel();
    });
}

/// One request that was read, and what it needs.
struct Job {
    engine: Arc<Engine>,
    identifier: String,
    model: String,
    kind: Kind,
    stream: bool,
    completion: Arc<Completion>,
    prompt_hash: u64,
    /// `None` for an engine without a connector.
    handover: Option<Handover>,
    rank: usize,
    keeps_nothing: bool,
}

impl Job {
    fn read(
        engine: &Arc<Engine>,
        kind: Kind,
        headers: &HeaderMap,
        body: &[u8],
        order: Option<&CompletionOrder>,
    ) -> Result<Self, Refusal> {
        let body = request::object(body)?;
        let handover =
            match &engine.transfer {
                Some(transfer) => {
                    let read = Handover::read(body.get("kv_transfer_params"), &transfer.settings.config);
                    Some(read.map_err(|_| {
                        Refusal::bad("kv_transfer_params must be an object.", Some("kv_transfer_params"))
                    })?)
                }
                None => None,
            };
        let job = Self::read_object(engine, kind, headers, &body, handover.clone(), order);
        if job.is_err() && handover.is_some_and(|handover| handover.ends_engine_when_refused()) {
            // The clean-up of a refused request looks for the key that is missing.
            end_soon(engine);
        }
        job
    }

    fn read_object(
        engine: &Arc<Engine>,
        kind: Kind,
        headers: &HeaderMap,
        body: &Map<String, Value>,
        handover: Option<Handover>,
        order: Option<&CompletionOrder>,
    ) -> Result<Self, Refusal> {
        let mut request = CompletionRequest::read_object(kind, body, &engine.limits())?;
        let named = headers.get(RANK_HEADER).and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
        let rank = match &engine.transfer {
            Some(transfer) => transfer.rank(named).ok_or_else(|| {
                Refusal::bad(format!("{RANK_HEADER} must be below {}.", transfer.engine_ids.len()), None)
            })?,
            None => 0,
        };
        request.ends_at_once = order == Some(&CompletionOrder::FirstTokenEnds);
        let identifier = engine.request_identifier(headers);
        let created_seconds = SystemClock.wall().as_second();
        let completion = Completion::compose(&request, &engine.settings.identity, &identifier, created_seconds);
        let prompt = body.get(if kind == Kind::Chat { "messages" } else { "prompt" });
        Ok(Self {
            engine: Arc::clone(engine),
            identifier,
            model: request.model,
            kind,
            stream: request.stream,
            completion: Arc::new(completion),
            prompt_hash: text::hash(&prompt.map(Value::to_string).unwrap_or_default()),
            handover,
            rank,
            keeps_nothing: order == Some(&CompletionOrder::WithoutParameters),
        })
    }

    /// Gets the prompt's KV, from another engine or by computing it in a place among the running sequences.
    async fn prompt(&self) -> Result<Turn, LoadFailure> {
        let engine = &self.engine;
        let tokens = self.completion.prompt_tokens();
        let (Some(transfer), Some(Handover::Pull(pull))) = (&engine.transfer, &self.handover) else {
            if let Some(Handover::WaitForEver { ends_engine }) = self.handover {
                tracing::warn!(request = self.identifier, "Got invalid KVTransferParams");
                let _waiting = Held::deferred(&engine.metrics);
                let _clean_up = CleanUp { engine: Arc::clone(engine), ends_engine };
                return std::future::pending().await;
            }
            let turn = Turn::take(engine).await;
            engine.metrics.read_prompt(tokens, PromptSource::LocalCompute);
            if !matches!(self.handover, Some(Handover::Keep { .. })) {
                engine.ledger.note().plain += 1;
            }
            return Ok(turn);
        };
        let deferred = Held::deferred(&engine.metrics);
        let loaded = transfer.load(pull, &self.identifier, self.prompt_hash).await;
        drop(deferred);
        let source = match (loaded, transfer.settings.config.on_load_failure) {
            (Ok(_), _) => PromptSource::ExternalKvTransfer,
            (Err(_), OnLoadFailure::Recompute) => PromptSource::LocalCompute,
            (Err(failure), OnLoadFailure::Fail) => return Err(failure),
        };
        if engine.settings.arguments.prompt_tokens_details {
            let cached = if source == PromptSource::ExternalKvTransfer {
                pull.remote_cached_tokens.unwrap_or(tokens)
            } else {
                0
            };
            self.completion.found_in_cache(cached);
        }
        let turn = Turn::take(engine).await;
        engine.metrics.read_prompt(tokens, source);
        Ok(turn)
    }

    /// Keeps the prompt's KV if that was asked for and the answer ended by its length: anything else frees it.
    fn keep(&self) -> Option<Value> {
        let (Some(transfer), Some(Handover::Keep { transfer_id })) = (&self.engine.transfer, &self.handover) else {
            return None;
        };
        if self.keeps_nothing || !self.completion.ended_by_length() {
            return None;
        }
        let prompt_tokens = self.completion.prompt_tokens();
        let kv = Kv {
            prompt_hash: self.prompt_hash,
            prompt_tokens,
            bytes: prompt_tokens * transfer.settings.bytes_per_token,
        };
        transfer.keep(self.rank, transfer_id.as_deref(), &self.identifier, kv)
    }

    async fn whole(self) -> Result<Value, LoadFailure> {
        let engine = &self.engine;
        let _turn = self.prompt().await?;
        let tokens = u32::try_from(self.completion.longest_choice_tokens()).unwrap_or(u32::MAX);
        tokio::time::sleep(engine.settings.token_pause.saturating_mul(tokens)).await;
        engine.metrics.generated(self.completion.generated_tokens());
        self.completion.count_as_finished(&engine.metrics);
        let mut value = self.completion.whole();
        if let Some(parameters) = self.keep() {
            value["kv_transfer_params"] = parameters;
        }
        Ok(value)
    }

    /// As with a real server, status and headers go out at once, the first event when there is one: the KV may come much
    /// later, or not at all, which only an event says.
    fn events(self) -> impl Stream<Item = Bytes> + Send + 'static {
        struct Streaming {
            job: Job,
            events: Events,
            turn: Option<Turn>,
            failed: Option<u8>,
        }
        let events = Events::new(Arc::clone(&self.completion));
        let state = Streaming { job: self, events, turn: None, failed: None };
        stream::unfold(state, async |mut state| {
            if state.turn.is_none() && state.failed.is_none() {
                match state.job.prompt().await {
                    Ok(turn) => state.turn = Some(turn),
                    Err(LoadFailure(_)) => {
                        state.failed = Some(0);
                        // A chat has begun all the same: its role comes before the error.
                        if state.job.kind == Kind::Chat
                            && let Some(Event { text, .. }) = state.events.next()
                        {
                            return Some((Bytes::from(text), state));
                        }
                    }
                }
            }
            if let Some(said) = &mut state.failed {
                *said += 1;
                return match *said {
                    1 => Some((Bytes::from_static(FAILED_STREAM), state)),
                    2 => Some((Bytes::from_static(b"data: [DONE]\n\n"), state)),
                    _ => None,
                };
            }
            let Some(Event { tokens, text }) = state.events.next() else {
                state.job.completion.count_as_finished(&state.job.engine.metrics);
                state.job.keep();
                return None;
            };
            if tokens > 0 {
                pause(state.job.engine.settings.token_pause).await;
                state.job.engine.metrics.generated(tokens);
            }
            Some((Bytes::from(text), state))
        })
    }
}

/// Breaks a body off.
fn cut(
    body: impl Stream<Item = Bytes> + Send + Unpin + 'static,
    cutter: Cutter,
    then: CutEnd,
    engine: Arc<Engine>,
) -> impl Stream<Item = std::io::Result<Bytes>> + Send + 'static {
    stream::unfold((Some(body), cutter), move |(body, mut cutter)| {
        let engine = Arc::clone(&engine);
        async move {
            let Some(mut body) = body else {
                // What was sent before has to leave this process first.
                tokio::time::sleep(LAST_WORDS).await;
                match then {
                    CutEnd::Close => {}
                    CutEnd::Stall => return std::future::pending().await,
                    CutEnd::Exit => {
                        engine.ends.cancel();
                        return std::future::pending().await;
                    }
                }
                return Some((Err(std::io::ErrorKind::ConnectionAborted.into()), (None, cutter)));
            };
            let piece = body.next().await?;
            Some(match cutter.cut(&piece) {
                Some(length) => (Ok(piece.slice(..length)), (None, cutter)),
                None => (Ok(piece), (Some(body), cutter)),
            })
        }
    })
}

/// Ends the engine when a request goes away that should never have been let in.
struct CleanUp {
    engine: Arc<Engine>,
    ends_engine: bool,
}

impl Drop for CleanUp {
    fn drop(&mut self) {
        if self.ends_engine {
            tracing::error!("KeyError in the clean-up of a request with incomplete kv_transfer_params");
            self.engine.ends.cancel();
        }
    }
}

/// A place among the sequences that are generated at once, counted while it is held.
struct Turn {
    _place: Option<OwnedSemaphorePermit>,
    _running: Held,
}

impl Turn {
    async fn take(engine: &Engine) -> Self {
        let waiting = Held::waiting(&engine.metrics);
        // The semaphore is never closed.
        let place = Arc::clone(&engine.places).acquire_owned().await.ok();
        drop(waiting);
        Self { _place: place, _running: Held::running(&engine.metrics) }
    }
}

/// The pace of the tokens. Without one the task still gives way to others.
async fn pause(duration: Duration) {
    if duration.is_zero() {
        tokio::task::yield_now().await;
    } else {
        tokio::time::sleep(duration).await;
    }
}
