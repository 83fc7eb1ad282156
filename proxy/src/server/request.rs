//! One request: what it asks for, whether it may, and its body.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::account::Account;
use super::answer::AnswerBody;
use super::client_io::BusyGuard;
use super::drive::{self, Asked};
use super::worker::Worker;
use crate::exchange::Reason;
use crate::relay::body;
use crate::relay::errors::Failure;
use crate::relay::headers;
use crate::residency::{self, Residency};

/// What a client may ask for, for the `Allow` header.
const METHODS: &str = "GET, HEAD, POST";

/// How long the rest of a body that is too long is read and thrown away, so that the client gets to read the answer and not
/// a reset; and how much of it.
const READS_ON_FOR: std::time::Duration = std::time::Duration::from_secs(30);
const READS_ON_UP_TO: u64 = 1 << 30;

/// What is allocated for a body on its announced length alone.
const TRUSTED_LENGTH: usize = 1 << 20;

/// Serves one request.
pub(super) async fn serve(worker: Arc<Worker>, request: Request<Incoming>, busy: BusyGuard) -> Response<AnswerBody> {
    let (parts, body) = request.into_parts();
    if let Some(answer) = worker.shared.routes.answer(&parts) {
        let (parts, bytes) = answer.into_parts();
        return Response::from_parts(parts, AnswerBody::whole(bytes, None, busy));
    }
    let path = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let mut account = Box::new(Account::new(worker.clone(), path.clone(), Instant::now()));
    let request_id = match parts.headers.get(headers::REQUEST_ID) {
        Some(theirs) => theirs.clone(),
        None => worker.ids.request_id(),
    };
    account.named(request_id.clone());
    let options = worker.options();
    let mut asked = Asked {
        headers: Arc::new(headers::to_engine(&parts.headers, &options.forwarded, &request_id)),
        session: options.affinity.as_ref().and_then(|name| parts.headers.get(name).cloned()),
        method: parts.method,
        path,
        body: Bytes::new(),
        looked: None,
        whole: Some(Reason::Path),
    };
    match asked.method {
        // A body that comes with them means nothing; hyper reads past it.
        Method::GET | Method::HEAD => return drive::serve(&worker, asked, account, busy).await,
        Method::POST => {}
        _ => {
            let message = format!("the method is not one of {METHODS}");
            let mut response = refuse(&Failure::invalid(StatusCode::METHOD_NOT_ALLOWED, message), account, busy);
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(METHODS));
            return response;
        }
    }
    account.is_exchange = true;
    let bytes = match read(body, &worker, &busy).await {
        Ok(bytes) => bytes,
        Err(failure) => {
            account.is_exchange = false;
            return refuse(&failure, account, busy);
        }
    };
    if is_opaque(&parts.headers, parts.uri.path()) {
        asked.whole = Some(Reason::Encoding);
        asked.body = bytes;
        return drive::serve(&worker, asked, account, busy).await;
    }
    // Contract D.2: an empty body means an object without members.
    let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
    let looked = match body::look(&bytes) {
        Ok(looked) => looked,
        Err(error) => {
            account.is_exchange = false;
            return refuse(&Failure::invalid(StatusCode::BAD_REQUEST, error.to_string()), account, busy);
        }
    };
    asked.whole = if !is_split(parts.uri.path()) {
        Some(Reason::Path)
    } else if !options.has_prefill {
        Some(Reason::NoPrefillConfigured)
    } else {
        match residency::locate(&bytes) {
            Residency::Unknown => looked.why_whole(),
        }
    };
    asked.looked = Some(looked);
    asked.body = bytes.clone();
    drive::serve(&worker, asked, account, busy).await
}

/// Whether requests to this path are split: those that generate text from one prompt. Embeddings are computed by one
/// engine and have no KV to hand over; `/v1/responses` waits for an engine that is seen to take the parameters.
fn is_split(path: &str) -> bool {
    path.ends_with("/completions")
}

/// Whether the body cannot be looked at: it is encoded, or it is a form on a path that takes one.
fn is_opaque(headers: &HeaderMap, path: &str) -> bool {
    let is_encoded = headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .any(|encoding| !encoding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity"));
    let is_form = headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
        const FORM: &[u8] = b"multipart/";
        kind.as_bytes().get(..FORM.len()).is_some_and(|start| start.eq_ignore_ascii_case(FORM))
    });
    is_encoded || (is_form && !is_split(path))
}

fn refuse(failure: &Failure, mut account: Box<Account>, busy: BusyGuard) -> Response<AnswerBody> {
    account.status = Some(failure.status.as_u16());
    let (parts, bytes) = failure.response().into_parts();
    Response::from_parts(parts, AnswerBody::whole(bytes, Some(account), busy))
}

/// Reads a client's body, up to the limit and without waiting for ever.
async fn read(mut body: Incoming, worker: &Arc<Worker>, busy: &BusyGuard) -> Result<Bytes, Failure> {
    let limit = worker.options().max_body_bytes;
    let announced = body.size_hint().lower();
    if announced > limit as u64 {
        return Err(too_long(body, limit, busy.another()));
    }
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    loop {
        if body.is_end_stream() {
            break;
        }
        // Most bodies came with their head, and what is there needs no clock.
        let there = poll_fn(|context| Poll::Ready(Pin::new(&mut body).poll_frame(context))).await;
        let frame = match there {
            Poll::Ready(frame) => Ok(frame),
            Poll::Pending => tokio::time::timeout(worker.options().body_time_out, body.frame()).await,
        };
        let piece = match frame {
            Err(_) => {
                let message = "the rest of the request's body did not come in time";
                return Err(Failure::invalid(StatusCode::REQUEST_TIMEOUT, message));
            }
            Ok(None) => break,
            Ok(Some(Err(_))) => {
                return Err(Failure::invalid(StatusCode::BAD_REQUEST, "the request's body is not whole"));
            }
            // Trailers say nothing of a body that is JSON.
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(piece) => piece,
                Err(_) => continue,
            },
        };
        let length = first.as_ref().map_or(rest.len(), Bytes::len) + piece.len();
        if length > limit {
            return Err(too_long(body, limit, busy.another()));
        }
        if rest.is_empty() && first.is_none() {
            first = Some(piece);
            continue;
        }
        if let Some(first) = first.take() {
            rest.reserve(usize::try_from(announced).unwrap_or(0).min(TRUSTED_LENGTH));
            rest.extend_from_slice(&first);
        }
        rest.extend_from_slice(&piece);
    }
    Ok(first.unwrap_or_else(|| rest.freeze()))
}

/// The answer to a body that is too long, of which the rest is read and thrown away meanwhile.
fn too_long(mut body: Incoming, limit: usize, busy: BusyGuard) -> Failure {
    tokio::spawn(tokio::time::timeout(READS_ON_FOR, async move {
        let _busy = busy;
        let mut read = 0;
        while let Some(Ok(frame)) = body.frame().await {
            read += frame.data_ref().map_or(0, Bytes::len) as u64;
            if read > READS_ON_UP_TO {
                return;
            }
        }
    }));
    Failure::invalid(StatusCode::PAYLOAD_TOO_LARGE, format!("the request's body has more than {limit} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_that_generate_text_from_one_prompt_are_split() {
        for path in ["/v1/completions", "/v1/chat/completions", "/completions", "/x/v1/chat/completions"] {
            assert!(is_split(path), "{path}");
        }
        for path in ["/v1/embeddings", "/v1/responses", "/v1/completions/", "/generate", "/xcompletions", "/"] {
            assert!(!is_split(path), "{path}");
        }
    }

    #[test]
    fn bodies_that_cannot_be_looked_at_are_told_from_those_that_can() {
        let headers = |name: header::HeaderName, value: &'static str| {
            HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
        };
        let split = "/v1/completions";
        assert!(!is_opaque(&HeaderMap::new(), split));
        assert!(!is_opaque(&headers(header::CONTENT_ENCODING, " Identity "), split));
        assert!(is_opaque(&headers(header::CONTENT_ENCODING, "gzip"), split));
        assert!(is_opaque(&headers(header::CONTENT_TYPE, "Multipart/form-data; boundary=x"), "/v1/audio/x"));
        assert!(!is_opaque(&headers(header::CONTENT_TYPE, "multipart/form-data; boundary=x"), split));
    }
}
