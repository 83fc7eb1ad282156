//! A thread with a runtime of its own, on a core of its own when one is named.

use std::sync::mpsc;
use std::thread::JoinHandle;

use anyhow::Context as _;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::machine;

/// The thread. Dropping it ends everything that runs on it.
#[derive(Debug)]
pub struct Lane {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Lane {
    /// Starts it on these cores.
    ///
    /// # Errors
    /// When it cannot be started or pinned.
    pub fn start(name: &str, cores: &[usize]) -> anyhow::Result<Self> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (started, start) = mpsc::channel();
        let cores = cores.to_owned();
        let run = move || {
            let runtime = machine::pin(&cores)
                .and_then(|()| Builder::new_current_thread().enable_all().build().context("no runtime"));
            match runtime {
                Ok(runtime) => {
                    let _ = started.send(Ok(runtime.handle().clone()));
                    // Ends when the owner says so or is gone.
                    let _ = runtime.block_on(stopped);
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run).context("no thread")?;
        let handle = start.recv().context("the thread ended at once")??;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Its runtime.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed already.
            let _ = thread.join();
        }
    }
}
