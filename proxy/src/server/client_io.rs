//! A client's connection that does not wait for ever.
//!
//! | What the client does | How long it may |
//! |---|---|
//! | sends nothing between two requests | keep-alive time |
//! | sends the head of a request in pieces | header time |
//! | takes nothing of an answer | client time |
//!
//! The body of a request has a clock of its own, where it is read.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// How long a client may do nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Between two requests.
    pub keep_alive: Duration,
    /// From the first byte of a head to its end.
    pub header: Duration,
    /// While an answer waits to be taken.
    pub taking: Duration,
}

/// Whether a request is being served on the connection; kept by who serves it.
#[derive(Clone, Debug, Default)]
pub struct Busy(Arc<AtomicUsize>);

impl Busy {
    /// A request begins; it ends when the guard is dropped.
    #[must_use]
    pub fn begin(&self) -> BusyGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        BusyGuard(self.clone())
    }

    fn is_busy(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// Ends a request when it is dropped.
#[derive(Debug)]
pub struct BusyGuard(Busy);

impl BusyGuard {
    /// Another one, for work on the request that goes on after its answer.
    #[must_use]
    pub fn another(&self) -> Self {
        self.0.begin()
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connection.
#[derive(Debug)]
pub struct ClientIo<S> {
    stream: S,
    patience: Patience,
    busy: Busy,
    /// What the next read without a byte is measured from, while no request is served.
    waiting_since: Option<Instant>,
    /// Whether a byte of the next head has come.
    head_begun: bool,
    writing_since: Option<Instant>,
    /// Rings at the earliest time that any clock may be over; made when first needed.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<S> ClientIo<S> {
    /// A connection that waits as long as `patience` says.
    pub fn new(stream: S, patience: Patience, busy: Busy) -> Self {
        Self { stream, patience, busy, waiting_since: None, head_begun: false, writing_since: None, alarm: None }
    }

    /// Whether `deadline` is over; if not, the task is woken when it is.
    fn is_over(&mut self, deadline: Instant, context: &mut Context<'_>) -> bool {
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        // One that rings too early is set anew when it rings: most never do.
        if alarm.deadline() > deadline {
            alarm.as_mut().reset(deadline);
        }
        while alarm.as_mut().poll(context).is_ready() {
            if Instant::now() >= deadline {
                return true;
            }
            alarm.as_mut().reset(deadline);
        }
        false
    }

    fn has_taken(&mut self, taken: Poll<io::Result<usize>>, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if taken.is_ready() {
            self.writing_since = None;
            return taken;
        }
        let since = *self.writing_since.get_or_insert_with(Instant::now);
        if self.is_over(since + self.patience.taking, context) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        if this.busy.is_busy() {
            (this.waiting_since, this.head_begun) = (None, false);
            return read;
        }
        if read.is_ready() {
            if buffer.filled().len() > before && !this.head_begun {
                this.head_begun = true;
                this.waiting_since = None;
            }
            return read;
        }
        let since = *this.waiting_since.get_or_insert_with(Instant::now);
        let allowed = if this.head_begun { this.patience.header } else { this.patience.keep_alive };
        if this.is_over(since + allowed, context) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client sends no request")));
        }
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let taken = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.has_taken(taken, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let taken = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.has_taken(taken, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const PATIENCE: Patience = Patience {
        keep_alive: Duration::from_secs(75),
        header: Duration::from_secs(10),
        taking: Duration::from_secs(300),
    };

    #[tokio::test(start_paused = true)]
    async fn between_requests_a_client_has_the_keep_alive_time_and_in_a_head_the_header_time() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut io = ClientIo::new(server, PATIENCE, Busy::default());
        let started = Instant::now();
        let mut buffer = [0; 8];
        assert_eq!(io.read(&mut buffer).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), 75);

        let (mut other, server) = tokio::io::duplex(64);
        let mut io = ClientIo::new(server, PATIENCE, Busy::default());
        other.write_all(b"GET").await.unwrap();
        assert_eq!(io.read(&mut buffer).await.unwrap(), 3);
        let started = Instant::now();
        assert_eq!(io.read(&mut buffer).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), 10);
        client.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn while_a_request_is_served_a_client_may_be_silent() {
        let (client, server) = tokio::io::duplex(64);
        let busy = Busy::default();
        let mut io = ClientIo::new(server, PATIENCE, busy.clone());
        let guard = busy.begin();
        let mut buffer = [0; 8];
        let silent = tokio::time::timeout(Duration::from_secs(3_600), io.read(&mut buffer)).await;
        assert!(silent.is_err(), "it was ended");
        drop(guard);
        let started = Instant::now();
        assert_eq!(io.read(&mut buffer).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), 75);
        drop(client);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up_and_one_that_takes_a_little_is_not() {
        let (mut client, server) = tokio::io::duplex(4);
        let mut io = ClientIo::new(server, PATIENCE, Busy::default());
        io.write_all(b"four").await.unwrap();
        let slow = tokio::spawn(async move {
            let mut taken = Vec::new();
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(299)).await;
                taken.push(client.read_u8().await.unwrap());
            }
            (client, taken)
        });
        io.write_all(b"abc").await.unwrap();
        let (client, taken) = slow.await.unwrap();
        assert_eq!(taken, b"fou");
        let started = Instant::now();
        assert_eq!(io.write_all(b"more").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), 300);
        drop(client);
    }
}
