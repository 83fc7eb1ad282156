//! A process whose log is read as it comes.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, ensure};
use gco_bed::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};

use super::BOUND;

/// How many lines of its log a message shows.
const SHOWN_LINES: usize = 10;

/// A process that writes one JSON object per line. It is killed when this is dropped.
#[derive(Debug)]
pub struct Logged {
    name: String,
    child: Child,
    pid: i32,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Logged {
    /// Starts it, with nothing of this process's environment.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(name: &str, mut command: Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("starting {name}"))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).context("it has ended already")?;
        let lines = Arc::default();
        read(child.stdout.take().context("it has no output")?, &lines);
        read(child.stderr.take().context("it has no error output")?, &lines);
        Ok(Self { name: name.to_owned(), child, pid, lines })
    }

    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All lines of the log that are objects with this message.
    #[must_use]
    pub fn messages(&self, message: &str) -> Vec<Value> {
        let lines = self.lines();
        let values = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        values.filter(|value| value["message"] == message).collect()
    }

    /// The first line of the log with this message, waited for.
    ///
    /// # Errors
    /// When it does not come, with what came last.
    pub async fn line(&mut self, message: &str) -> anyhow::Result<Value> {
        let description = format!("{} to say {message:?}", self.name);
        let found = wait::until(&description, BOUND, || {
            let found = self.messages(message).into_iter().next();
            let ended = self.exited();
            std::future::ready(match (found, ended) {
                (Some(value), _) => Ok(Some(value)),
                // Nothing more will come.
                (None, Some(_)) => Ok(None),
                (None, None) => Err(self.said()),
            })
        });
        let found = found.await?;
        found.with_context(|| format!("{} ended: {}", self.name, self.said()))
    }

    /// The last lines of its log.
    #[must_use]
    pub fn said(&self) -> String {
        let lines = self.lines();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }

    /// How it ended, if it has.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        // A process that has not been waited for keeps its number; one that was is not asked for again.
        ensure!(self.child.id().is_some(), "{} has ended: {}", self.name, self.said());
        kill(Pid::from_raw(self.pid), signal).with_context(|| format!("signalling {}", self.name))
    }

    /// SIGKILL, and a wait until it is gone.
    ///
    /// # Errors
    /// When it has ended already.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.ended().await.map(|_| ())
    }

    /// SIGTERM, and a wait until it is gone.
    ///
    /// # Errors
    /// When it has ended already, or does not end.
    pub async fn stop(&mut self) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.ended().await
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        let waited = tokio::time::timeout(BOUND, self.child.wait()).await;
        waited.with_context(|| format!("{} does not end", self.name))?.context("waiting for a process")
    }

    /// How many file descriptors it has open.
    ///
    /// # Errors
    /// When it has ended.
    pub fn file_descriptors(&self) -> anyhow::Result<usize> {
        let folder = format!("/proc/{}/fd", self.pid);
        Ok(std::fs::read_dir(&folder).with_context(|| format!("{} has ended", self.name))?.count())
    }

    /// Its resident memory.
    ///
    /// # Errors
    /// When it has ended.
    pub fn resident_bytes(&self) -> anyhow::Result<u64> {
        let file = format!("/proc/{}/status", self.pid);
        let text = std::fs::read_to_string(&file).with_context(|| format!("{} has ended", self.name))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kibibytes: u64 = line.trim().trim_end_matches(" kB").trim().parse().context("VmRSS is no number")?;
        Ok(kibibytes * 1024)
    }
}

fn read(pipe: impl AsyncRead + Send + Unpin + 'static, lines: &Arc<Mutex<Vec<String>>>) {
    let lines = Arc::clone(lines);
    let mut pipe = BufReader::new(pipe).lines();
    // It ends with the process.
    tokio::spawn(async move {
        while let Ok(Some(line)) = pipe.next_line().await {
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    });
}
