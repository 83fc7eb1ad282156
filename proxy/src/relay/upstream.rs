//! Connections to engines, kept per backend.
//!
//! A connection is driven by the task of the request that uses it: no task of its own, no channel between threads. So
//! dropping a call closes its socket at once, which is how an engine learns that a request is cancelled.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, Uri, header, response};
use http_body::{Body as _, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::headers;
use super::joined::Joined;
use super::nudge::Nudge;
use super::spliced::Spliced;
use crate::backends::{Backend, BackendKey, Dial};
use crate::exchange::Fault;

/// The most that is read at once of an engine's answer, and the longest head of one. hyper begins with 8 KiB and grows the
/// buffer while reads fill it: events never do, long answers soon.
const LARGEST_READ: usize = 64 * 1024;

/// What one request to an engine is made of; it can be sent again on another connection.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// Path and query as the client wrote them.
    pub path: PathAndQuery,
    /// The headers for engines, as [`headers::to_engine`] makes them. Shared: both legs and every try copy them once, into
    /// the request that is sent.
    pub headers: Arc<HeaderMap>,
    /// Prefill's leg gets fewer of them, and a rank: [`headers::for_prefill`].
    pub for_prefill: Option<ForPrefill>,
    /// The body.
    pub body: Spliced,
}

/// What makes a prefill leg's headers differ from decode's.
#[derive(Clone, Copy, Debug)]
pub struct ForPrefill {
    /// The data-parallel rank that the request is for.
    pub rank: Option<u32>,
}

type Sender = http1::SendRequest<Spliced>;
type Driver = http1::Connection<TokioIo<Joined<TcpStream>>, Spliced>;

/// One connection: hyper's two halves of it.
struct Link {
    sender: Sender,
    driver: Driver,
    /// Whether the driver has nothing more to do: the connection is closed.
    has_ended: bool,
    nudge: Nudge,
}

impl Link {
    /// Whether it can take a request: nothing is under way on it and the engine has not closed it.
    ///
    /// On one that was looked at before and to which nothing has happened since, this polls nothing.
    fn is_usable(&mut self, context: &mut Context<'_>) -> bool {
        let _ = self.look(context, |_| Poll::<()>::Pending);
        !self.has_ended && self.sender.is_ready()
    }

    /// Drives the connection as far as it goes, and polls what waits for it when that may have become ready.
    fn look<T>(&mut self, context: &mut Context<'_>, take: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let Self { driver, has_ended, nudge, .. } = self;
        let drive =
            |context: &mut Context<'_>| *has_ended = *has_ended || Pin::new(&mut *driver).poll(context).is_ready();
        nudge.look(context, drive, take)
    }
}

struct Idle {
    link: Box<Link>,
    since: Instant,
}

/// The connections of one worker that are not in use.
///
/// Without a limit in number: there are as many as there were requests at once, until they have been idle for too long.
pub struct Pool {
    kept_for: Duration,
    idle: Mutex<HashMap<BackendKey, Vec<Idle>>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pool").field("idle", &self.idle()).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool that keeps a connection for so long. Engines close theirs, too (uvicorn after 5 s).
    #[must_use]
    pub fn new(kept_for: Duration) -> Self {
        Self { kept_for, idle: Mutex::default() }
    }

    /// Takes a connection to the backend that still works; the last one used comes first.
    fn take(&self, key: &BackendKey, now: Instant, context: &mut Context<'_>) -> Option<Box<Link>> {
        loop {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            let Idle { mut link, since } = idle.get_mut(key)?.pop()?;
            drop(idle);
            // One that the engine is about to close is not worth the risk.
            if now.saturating_duration_since(since) < self.kept_for && link.is_usable(context) {
                return Some(link);
            }
        }
    }

    fn put(&self, key: &BackendKey, link: Box<Link>, now: Instant) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = Idle { link, since: now };
        match idle.get_mut(key) {
            Some(links) => links.push(entry),
            None => {
                idle.insert(key.clone(), vec![entry]);
            }
        }
    }

    /// Drops what the engines have closed and what nobody used for long. Called now and then.
    pub fn sweep(&self, now: Instant) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut context = Context::from_waker(Waker::noop());
        for links in idle.values_mut() {
            links.retain_mut(|entry| {
                now.saturating_duration_since(entry.since) < self.kept_for && entry.link.is_usable(&mut context)
            });
        }
        idle.retain(|_, links| !links.is_empty());
    }

    /// How many connections are kept.
    pub fn idle(&self) -> usize {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).values().map(Vec::len).sum()
    }
}

/// Sends a call at `now` and waits for the head of the answer.
///
/// A connection that was kept may have been closed by the engine at the very moment; then the call is sent once more on a new
/// one.
///
/// # Errors
/// When there is no connection within `connect_time_out`, or it broke before the head.
pub async fn send(
    pool: &Arc<Pool>,
    backend: &Arc<Backend>,
    call: &Call,
    connect_time_out: Duration,
    now: Instant,
) -> Result<(response::Parts, Answer), Fault> {
    if let Some(mut link) = poll_fn(|context| Poll::Ready(pool.take(backend.key(), now, context))).await
        && let Ok(response) = exchange_heads(&mut link, request(call, backend)).await
    {
        return Ok(begun(response, link, pool, backend));
    }
    let connected = tokio::time::timeout(connect_time_out, connect(backend.dial())).await;
    let mut link = match connected {
        Ok(Ok(link)) => link,
        Ok(Err(_)) | Err(_) => return Err(Fault::Unreachable),
    };
    match exchange_heads(&mut link, request(call, backend)).await {
        Ok(response) => Ok(begun(response, link, pool, backend)),
        Err(_) => Err(Fault::Broken),
    }
}

fn begun(
    response: Response<Incoming>,
    link: Box<Link>,
    pool: &Arc<Pool>,
    backend: &Arc<Backend>,
) -> (response::Parts, Answer) {
    let (parts, body) = response.into_parts();
    let mut answer = Answer { body, link: Some(link), pool: pool.clone(), backend: backend.clone() };
    if answer.body.is_end_stream() {
        answer.give_back();
    }
    (parts, answer)
}

async fn connect(dial: &Dial) -> io::Result<Box<Link>> {
    let stream = match dial {
        Dial::Address(address) => TcpStream::connect(address).await?,
        Dial::Name { host, port } => TcpStream::connect((host.as_str(), *port)).await?,
    };
    // An event of 200 bytes must not wait for the acknowledgement of the one before.
    stream.set_nodelay(true)?;
    let mut builder = http1::Builder::new();
    builder.max_buf_size(LARGEST_READ);
    let (sender, driver) = builder.handshake(TokioIo::new(Joined(stream))).await.map_err(io::Error::other)?;
    Ok(Box::new(Link { sender, driver, has_ended: false, nudge: Nudge::new() }))
}

fn request(call: &Call, backend: &Backend) -> Request<Spliced> {
    let mut request = Request::new(call.body.clone());
    *request.method_mut() = call.method.clone();
    *request.uri_mut() = Uri::from(call.path.clone());
    let mut headers = HeaderMap::clone(&call.headers);
    if let Some(ForPrefill { rank }) = call.for_prefill {
        headers::for_prefill(&mut headers, rank);
    }
    headers.insert(header::HOST, backend.host_header().clone());
    *request.headers_mut() = headers;
    request
}

async fn exchange_heads(link: &mut Link, request: Request<Spliced>) -> hyper::Result<Response<Incoming>> {
    link.nudge.begins();
    let mut response = pin!(link.sender.send_request(request));
    poll_fn(|context| link.look(context, |context| response.as_mut().poll(context))).await
}

/// The body of an engine's answer. Dropping it before its end closes the connection.
pub struct Answer {
    body: Incoming,
    /// `None` when the connection has ended or was given back.
    link: Option<Box<Link>>,
    pool: Arc<Pool>,
    backend: Arc<Backend>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Answer").field("backend", &self.backend).finish_non_exhaustive()
    }
}

impl Answer {
    /// The next piece: what one read of the socket brought. `None` at the end.
    ///
    /// # Errors
    /// When the connection broke before the end.
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            let frame = match &mut self.link {
                Some(link) => {
                    let body = &mut self.body;
                    let frame = link.look(context, |context| Pin::new(&mut *body).poll_frame(context));
                    if link.has_ended {
                        self.link = None;
                    }
                    frame
                }
                None => Pin::new(&mut self.body).poll_frame(context),
            };
            let piece = match frame {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => None,
                Poll::Ready(Some(Err(_))) => {
                    self.link = None;
                    return Poll::Ready(Some(Err(Fault::Broken)));
                }
                // Trailers concern this connection only.
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(piece) => Some(piece),
                    Err(_) => continue,
                },
            };
            if piece.is_none() || self.body.is_end_stream() {
                self.give_back();
            }
            return Poll::Ready(piece.map(Ok));
        }
    }

    /// The next piece.
    pub async fn piece(&mut self) -> Option<Result<Bytes, Fault>> {
        poll_fn(|context| self.poll_piece(context)).await
    }

    /// Whether the end is known without looking.
    pub fn is_at_end(&self) -> bool {
        self.body.is_end_stream()
    }

    /// How long the rest is.
    pub fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    /// The whole body, at most `limit` bytes.
    ///
    /// # Errors
    /// When it breaks, or is longer.
    pub async fn collect(mut self, limit: usize) -> Result<Bytes, Fault> {
        let mut whole = Vec::new();
        let mut only: Option<Bytes> = None;
        while let Some(piece) = self.piece().await {
            let piece = piece?;
            if whole.is_empty() && only.is_none() {
                only = Some(piece);
                continue;
            }
            if let Some(first) = only.take() {
                whole.extend_from_slice(&first);
            }
            if whole.len() + piece.len() > limit {
                return Err(Fault::Broken);
            }
            whole.extend_from_slice(&piece);
        }
        Ok(only.unwrap_or_else(|| Bytes::from(whole)))
    }

    /// After the last byte: keeps the connection if it can take another request.
    ///
    /// What happens to it while it is kept wakes nobody; who takes it looks.
    fn give_back(&mut self) {
        if let Some(mut link) = self.link.take()
            && link.is_usable(&mut Context::from_waker(Waker::noop()))
        {
            self.pool.put(self.backend.key(), link, Instant::now());
        }
    }
}
