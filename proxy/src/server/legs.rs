//! The two calls of an exchange, each a future that is driven by the request's task.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{StatusCode, header, response};
use tokio::time::Instant;

use super::worker::Worker;
use crate::backends::Backend;
use crate::backends::breaker::Failure;
use crate::exchange::{Connector, DecodeAnswer, Fault, PrefillAnswer, parameters};
use crate::relay::events::{First, Held};
use crate::relay::upstream::{self, Answer, Call};

/// The most that a prefill may answer: NIXL's block ids of a prompt of a million tokens have about 500 KiB.
const LONGEST_PREFILL_ANSWER: usize = 8 * 1024 * 1024;

/// How long an event with only a role is held back for the next one. vLLM sends it together with the first token, or with the
/// error that came instead, so 0.5 s is long for the engine; but a parser of reasoning or of tool calls may keep the first
/// texts to itself for as long as it likes, and the KV was not lost for that.
const ROLE_HELD: Duration = Duration::from_millis(500);

/// What a leg says of the engine's health: `Ok` when it answered as a working engine does.
pub(super) type Health = Result<(), Failure>;

/// How prefill ended.
pub(super) struct PrefillEnd {
    pub(super) answer: PrefillAnswer,
    pub(super) health: Health,
    /// What it answered, when it may have to be relayed.
    pub(super) relay: Option<(response::Parts, Bytes)>,
    /// NIXL: what decode is told.
    pub(super) parameters: Option<String>,
    pub(super) at: Instant,
}

pub(super) type PrefillLeg = Pin<Box<dyn Future<Output = PrefillEnd> + Send>>;

/// The beginning of decode's answer.
pub(super) struct Beginning {
    pub(super) parts: response::Parts,
    pub(super) pieces: Vec<Bytes>,
    pub(super) rest: Answer,
    pub(super) is_stream: bool,
}

/// How decode began.
pub(super) struct DecodeEnd {
    pub(super) answer: DecodeAnswer,
    pub(super) health: Health,
    pub(super) beginning: Option<Beginning>,
}

pub(super) type DecodeLeg = Pin<Box<dyn Future<Output = DecodeEnd> + Send>>;

/// What a leg that failed without an answer says of the engine.
fn failure(fault: Fault) -> Failure {
    match fault {
        Fault::Unreachable => Failure::Connect,
        Fault::TimedOut => Failure::TimedOut,
        Fault::Broken => Failure::Closed,
        Fault::Status => Failure::ServerError,
    }
}

/// What a status says of the engine.
fn health(status: StatusCode) -> Health {
    match status {
        StatusCode::SERVICE_UNAVAILABLE => Err(Failure::Unavailable),
        status if status.is_server_error() => Err(Failure::ServerError),
        _ => Ok(()),
    }
}

/// Sends the prefill leg and reads its answer.
pub(super) fn prefill(worker: &Arc<Worker>, backend: &Arc<Backend>, call: Call, now: Instant) -> PrefillLeg {
    let (pool, backend) = (worker.pool.clone(), backend.clone());
    let connect_time_out = worker.options().connect_time_out;
    let connector = worker.options().rules.connector;
    Box::pin(async move {
        let failed = |fault| PrefillEnd {
            answer: PrefillAnswer::Failed(fault),
            health: Err(failure(fault)),
            relay: None,
            parameters: None,
            at: Instant::now(),
        };
        let (parts, answer) = match upstream::send(&pool, &backend, &call, connect_time_out, now).await {
            Ok(begun) => begun,
            Err(fault) => return failed(fault),
        };
        let body = match answer.collect(LONGEST_PREFILL_ANSWER).await {
            Ok(body) => body,
            Err(fault) => return failed(fault),
        };
        let mut parameters = None;
        let health = health(parts.status);
        let answer = if parts.status.is_success() {
            if connector == Connector::Nixl {
                parameters = parameters::nixl_decode(&body);
            }
            let is_ready = connector != Connector::Nixl || parameters.is_some();
            if is_ready { PrefillAnswer::Ready } else { PrefillAnswer::NoParameters }
        } else if parts.status.is_client_error() {
            PrefillAnswer::ClientError
        } else {
            PrefillAnswer::Failed(Fault::Status)
        };
        let relay = (answer == PrefillAnswer::ClientError).then_some((parts, body));
        PrefillEnd { answer, health, relay, parameters, at: Instant::now() }
    })
}

/// Sends the decode leg and waits for its first event.
///
/// With parameters, the time for that is the exchange's own clock; without, it is `answer_time_out`.
pub(super) fn decode(
    worker: &Arc<Worker>,
    backend: &Arc<Backend>,
    call: Call,
    with_parameters: bool,
    now: Instant,
) -> DecodeLeg {
    let (pool, backend) = (worker.pool.clone(), backend.clone());
    let connect_time_out = worker.options().connect_time_out;
    let answer_time_out = worker.options().answer_time_out;
    Box::pin(async move {
        let begun = async {
            let begun = upstream::send(&pool, &backend, &call, connect_time_out, now).await;
            drop(call);
            match begun {
                Ok((parts, rest)) => first_event(parts, rest, with_parameters).await,
                Err(fault) => unavailable(fault),
            }
        };
        if with_parameters {
            return begun.await;
        }
        tokio::time::timeout(answer_time_out, begun).await.unwrap_or_else(|_| unavailable(Fault::TimedOut))
    })
}

fn unavailable(fault: Fault) -> DecodeEnd {
    DecodeEnd {
        answer: DecodeAnswer::Unavailable { answered: false, fault },
        health: Err(failure(fault)),
        beginning: None,
    }
}

/// Whether a head announces an event stream.
fn is_event_stream(parts: &response::Parts) -> bool {
    let kind = parts.headers.get(header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.len() >= 17 && kind[..17].eq_ignore_ascii_case(b"text/event-stream"))
}

async fn first_event(parts: response::Parts, mut rest: Answer, with_parameters: bool) -> DecodeEnd {
    let is_stream = is_event_stream(&parts);
    let health = health(parts.status);
    let status = parts.status;
    let mut held = Held::new(is_stream);
    let answer = if status.is_client_error() {
        DecodeAnswer::ClientError
    } else if matches!(status.as_u16(), 502..=504) {
        DecodeAnswer::Unavailable { answered: true, fault: Fault::Status }
    } else if status.is_server_error() {
        DecodeAnswer::Failed
    } else {
        let mut role_since = None;
        loop {
            if rest.is_at_end() {
                break DecodeAnswer::Begun;
            }
            // A piece that did not come in time is not lost: it is the first of the rest.
            let piece = match role_since {
                None => rest.piece().await,
                Some(since) => match tokio::time::timeout_at(since + ROLE_HELD, rest.piece()).await {
                    Ok(piece) => piece,
                    Err(_) => break DecodeAnswer::Begun,
                },
            };
            match piece {
                // An answer may be empty, or end without a blank line; it is decode's.
                None => break DecodeAnswer::Begun,
                Some(Err(fault)) => return unavailable(fault),
                Some(Ok(piece)) => match held.push(piece) {
                    First::Incomplete => {}
                    First::RoleOnly if with_parameters => {
                        role_since.get_or_insert_with(Instant::now);
                    }
                    First::Error if with_parameters => break DecodeAnswer::Failed,
                    First::Good | First::RoleOnly | First::Error => break DecodeAnswer::Begun,
                },
            }
        }
    };
    let beginning = Beginning { parts, pieces: held.into_pieces(), rest, is_stream };
    DecodeEnd { answer, health, beginning: Some(beginning) }
}
