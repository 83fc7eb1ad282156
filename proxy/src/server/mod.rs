//! The listening side: connections, limits, one future per request, drain.
//!
//! | Part | What it holds |
//! |---|---|
//! | [`Server`] | accepts connections and gives each to the worker with the fewest; ends them in order |
//! | `worker` | a runtime per core with its connections to engines |
//! | `request` | one request: routes, limits, its body |
//! | `drive` | the shell around an [`crate::exchange::Exchange`] |
//! | `legs` | the calls to prefill and decode |
//! | `answer` | decode's answer on its way to the client |
//! | [`client_io`] | clients that do nothing are not waited for |

mod account;
mod answer;
pub mod client_io;
mod drive;
pub mod gaps;
mod hand_off;
mod ids;
mod legs;
mod request;
mod worker;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use gco_runtime::random::Randomness;
use gco_runtime::shutdown::{Drained, drain};
use http::StatusCode;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use account::{Ended, Observer};
pub use worker::{Options, Routes, Shared, Worker};

use client_io::{Busy, ClientIo};

use crate::relay::errors::Failure;
use crate::relay::joined::Joined;

/// How often connections that nobody uses are looked through.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// How long nothing is accepted after a failure that lasts, such as no free file descriptor.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// hyper's least buffer for the head of a request.
const LEAST_BUFFER: usize = 8 * 1024;

/// The most that is read at once of a request, at least; long bodies are read faster with more.
const LARGEST_READ: usize = 64 * 1024;

/// One runtime on a thread of its own.
struct Core {
    worker: Arc<Worker>,
    runtime: Handle,
    thread: Option<JoinHandle<()>>,
}

/// The proxy's listening side.
pub struct Server {
    shared: Arc<Shared>,
    cores: Vec<Core>,
    connections: TaskTracker,
    /// Cancelled when the runtimes are to end.
    end: CancellationToken,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Server").field("cores", &self.cores.len()).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts the workers.
    ///
    /// # Errors
    /// When the kernel gives no thread or no event queue.
    pub fn start(shared: Shared, randomness: &dyn Randomness) -> io::Result<Self> {
        let shared = Arc::new(shared);
        let end = CancellationToken::new();
        let mut cores = Vec::new();
        for index in 0..shared.options.workers.max(1) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let worker = Worker::new(shared.clone(), randomness);
            let (end, pool) = (end.clone(), worker.pool.clone());
            let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
                runtime.block_on(async move {
                    let mut sweep = tokio::time::interval(SWEEP_EVERY);
                    loop {
                        tokio::select! {
                            () = end.cancelled() => return,
                            _ = sweep.tick() => pool.sweep(Instant::now()),
                        }
                    }
                });
                // What still runs has used up its time; waiting for it would be for ever.
                runtime.shutdown_background();
            })?;
            cores.push(Core { worker, runtime: handle, thread: Some(thread) });
        }
        Ok(Self { shared, cores, connections: TaskTracker::new(), end })
    }

    /// The workers' runtimes, for their counts of tasks.
    #[must_use]
    pub fn runtimes(&self) -> Vec<Handle> {
        self.cores.iter().map(|core| core.runtime.clone()).collect()
    }

    /// How many connections of clients are open, whenever it is asked.
    pub fn connections(&self) -> impl Fn() -> usize + Send + Sync + use<> {
        let connections = self.connections.clone();
        move || connections.len()
    }

    /// Accepts connections until the stop, then lets what runs finish within the time for it.
    ///
    /// From the stop on nobody is listened to; connections without a request are closed, others after their answer.
    pub async fn run(mut self, listener: TcpListener) -> Drained {
        let stop = self.shared.stop.clone();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.take(stream, peer),
                Err(error) => {
                    // A connection that was gone before it was accepted is nothing; no free file descriptor lasts.
                    tracing::warn!(error = %error, "a connection was not accepted");
                    if error.kind() != io::ErrorKind::ConnectionAborted {
                        tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                    }
                }
            }
        }
        drop(listener);
        self.cores.iter().for_each(|core| core.worker.leave());
        self.connections.close();
        tracing::info!(connections = self.connections.len(), "no longer listening; running requests may finish");
        let drained = drain("running requests", self.shared.options.drain, self.connections.wait()).await;
        self.end.cancel();
        for core in &mut self.cores {
            if let Some(thread) = core.thread.take()
                && thread.join().is_err()
            {
                tracing::error!("a worker ended by a panic");
            }
        }
        drained
    }

    /// Gives a connection to the worker that has the fewest.
    fn take(&self, stream: TcpStream, peer: SocketAddr) {
        if self.connections.len() >= self.shared.options.max_connections {
            tracing::debug!(peer = %peer, "too many connections");
            self.connections.spawn(async move {
                let mut stream = stream;
                let object = Failure::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "service_unavailable",
                    "there are as many connections as there may be",
                )
                .object();
                let answer = format!(
                    "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
                     connection: close\r\ncontent-length: {}\r\n\r\n{object}",
                    object.len()
                );
                // Whoever does not take even this is not waited for.
                let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(answer.as_bytes())).await;
            });
            return;
        }
        let Some(core) = self.cores.iter().min_by_key(|core| core.worker.load()) else { return };
        // A socket belongs to the event queue of one runtime; it goes over as a plain one.
        let stream = match stream.set_nodelay(true).and_then(|()| stream.into_std()) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(error = %error, "a connection was gone at once");
                return;
            }
        };
        let worker = core.worker.clone();
        worker.connections.fetch_add(1, Ordering::Relaxed);
        let guard = Connected(worker.clone());
        let task = self.connections.track_future(async move {
            let _guard = guard;
            let stream = match TcpStream::from_std(stream) {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(error = %error, "a connection was not taken over");
                    return;
                }
            };
            let Some(tls) = worker.shared.tls.clone() else { return serve_connection(worker, stream).await };
            match tls.accept(stream, worker.options().patience.header).await {
                Ok(stream) => serve_connection(worker, stream).await,
                Err(error) => tracing::debug!(error = %error, "no TLS connection"),
            }
        });
        core.runtime.spawn(task);
    }
}

/// Counts a connection until it ends.
struct Connected(Arc<Worker>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves the requests of one connection, one after the other.
async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin>(worker: Arc<Worker>, stream: S) {
    let options = worker.options();
    let busy = Busy::default();
    let io = TokioIo::new(ClientIo::new(Joined(stream), options.patience, busy.clone()));
    let mut builder = http1::Builder::new();
    builder
        // Clients that go on sending while they wait for an answer have not left; those that end their side have.
        .half_close(false)
        .max_header_size(options.max_header_bytes)
        .max_buf_size(options.max_header_bytes.max(LEAST_BUFFER).max(LARGEST_READ));
    let leaves = worker.clone();
    let service = service_fn(move |request| {
        // Boxed, or every connection would keep the room of the largest request for as long as it lasts.
        let served = Box::pin(request::serve(worker.clone(), request, busy.begin()));
        async move { Ok::<_, Infallible>(served.await) }
    });
    let connection = builder.serve_connection(io, service);
    if let Err(error) = until_it_leaves(&leaves, connection, |connection| connection.graceful_shutdown()).await {
        tracing::debug!(error = %error, "a connection ended early");
    }
}

/// Drives a connection, and tells it once when the worker leaves.
///
/// The call that tells of it is waited for once and not at every step: an event must not cost the lock of what all
/// connections wait for.
async fn until_it_leaves<C: Future>(worker: &Worker, connection: C, shut_down: impl Fn(Pin<&mut C>)) -> C::Output {
    let (mut connection, mut left) = (pin!(connection), pin!(worker.left()));
    let mut waits_with: Option<Waker> = None;
    let mut told = false;
    poll_fn(|context| {
        if !told {
            let waits = waits_with.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
            if !waits {
                waits_with = Some(context.waker().clone());
                let _ = left.as_mut().poll(context);
            }
            // After the wait has begun: a call in between would be missed.
            if worker.is_leaving() {
                told = true;
                shut_down(connection.as_mut());
            }
        }
        connection.as_mut().poll(context)
    })
    .await
}

#[cfg(test)]
mod tests;
