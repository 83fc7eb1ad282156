//! Orderly shutdown: the first SIGTERM or SIGINT asks, the second insists.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Starts listening for SIGTERM and SIGINT and returns the token that the first of them cancels.
///
/// The second one ends the process at once with the customary exit code, 128 plus the signal's
/// number: whoever sends it again no longer wants to wait. Call it inside a tokio runtime, once.
///
/// # Errors
/// When the kernel refuses the signal handlers.
pub fn install() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let (arrived, signals) = mpsc::channel(2);
    tokio::spawn(async move {
        loop {
            let number = tokio::select! {
                _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
                _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            };
            if arrived.send(number).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(obey(signals, token.clone(), |code| std::process::exit(code)));
    Ok(token)
}

async fn obey(mut signals: mpsc::Receiver<i32>, token: CancellationToken, exit: impl FnOnce(i32)) {
    let Some(first) = signals.recv().await else { return };
    tracing::info!(signal = first, "shutting down; a second signal ends the process at once");
    token.cancel();
    let Some(second) = signals.recv().await else { return };
    tracing::warn!(signal = second, "second signal: ending at once");
    exit(128 + second);
}

/// How a bounded drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// The work finished within the bound.
    Finished,
    /// The bound passed first and the rest of the work was dropped.
    GaveUp,
}

/// Waits for `work` to finish, at most `bound`; logs when it gives up on it.
pub async fn drain(what: &str, bound: Duration, work: impl Future<Output = ()>) -> Drained {
    match tokio::time::timeout(bound, work).await {
        Ok(()) => Drained::Finished,
        Err(_) => {
            tracing::warn!(what, bound_seconds = bound.as_secs_f64(), "gave up draining");
            Drained::GaveUp
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::*;

    #[tokio::test]
    async fn the_first_signal_cancels_and_the_second_ends_the_process() {
        let (sender, receiver) = mpsc::channel(2);
        let token = CancellationToken::new();
        let code = std::sync::Arc::new(AtomicI32::new(0));
        let task = {
            let code = code.clone();
            let exit = move |value| code.store(value, Ordering::SeqCst);
            tokio::spawn(obey(receiver, token.clone(), exit))
        };
        sender.send(15).await.unwrap();
        token.cancelled().await;
        assert_eq!(code.load(Ordering::SeqCst), 0);
        sender.send(2).await.unwrap();
        task.await.unwrap();
        assert_eq!(code.load(Ordering::SeqCst), 130);
    }

    #[tokio::test]
    async fn a_real_terminate_signal_cancels_the_token() {
        let token = install().unwrap();
        assert!(!token.is_cancelled());
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM).unwrap();
        tokio::time::timeout(Duration::from_secs(10), token.cancelled()).await.unwrap();
    }

    #[tokio::test]
    async fn draining_is_bounded() {
        let bound = Duration::from_millis(20);
        assert_eq!(drain("nothing", bound, async {}).await, Drained::Finished);
        assert_eq!(drain("for ever", bound, std::future::pending()).await, Drained::GaveUp);
    }
}
