//! One of our programs, whose log says what it does, and what it holds of the machine.

use std::path::PathBuf;
use std::process::ExitStatus;

use anyhow::{Context as _, ensure};
use gco_bed::process::{ProcessSettings, Supervised};
use gco_bed::wait;
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::BOUND;
use crate::log::lines_of;

/// A process that writes one JSON object per line. It is killed when this is dropped, and when the tests are.
#[derive(Debug)]
pub struct Logged {
    name: String,
    process: Supervised,
    /// Holds the log.
    _folder: TempDir,
}

impl Logged {
    /// Starts it with these arguments and this environment, and nothing of this process's.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start<'a>(
        name: &str,
        program: PathBuf,
        arguments: impl IntoIterator<Item = &'a str>,
        environment: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("gco-suite-log-").tempdir().context("making a folder")?;
        let settings =
            ProcessSettings::new(program, folder.path().join("log")).without_our_environment().arguments(arguments);
        let settings = environment.into_iter().fold(settings, |settings, (name, value)| settings.variable(name, value));
        let process = Supervised::start(settings).with_context(|| format!("starting {name}"))?;
        Ok(Self { name: name.to_owned(), process, _folder: folder })
    }

    /// All lines of the log that are objects with this message.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn messages(&self, message: &str) -> anyhow::Result<Vec<Value>> {
        let mut lines =
            lines_of(self.process.log_file()).with_context(|| format!("reading what {} says", self.name))?;
        lines.retain(|line| line["message"] == message);
        Ok(lines)
    }

    /// The first line of the log with this message, waited for.
    ///
    /// # Errors
    /// When it does not come, with what came last.
    pub async fn line(&self, message: &str) -> anyhow::Result<Value> {
        let description = format!("{} to say {message:?}", self.name);
        let found = wait::until(&description, BOUND, || {
            // In this order: a process that ended says nothing after that.
            let ended = self.exited();
            let found = self.messages(message).map(|found| found.into_iter().next());
            std::future::ready(match (found, ended) {
                (Ok(Some(value)), _) => Ok(Some(value)),
                (_, Some(_)) => Ok(None),
                (Ok(None), None) => Err(self.said()),
                (Err(error), None) => Err(format!("{error:#}")),
            })
        });
        let found = found.await?;
        found.with_context(|| format!("{} ended: {}", self.name, self.said()))
    }

    /// The port that it says to listen on, waited for.
    ///
    /// # Errors
    /// When it does not say one.
    pub async fn port(&self) -> anyhow::Result<u16> {
        port_in(&self.line("listening").await?).with_context(|| format!("{} says no port", self.name))
    }

    /// The end of its log.
    #[must_use]
    pub fn said(&self) -> String {
        self.process.log_tail()
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn exited(&self) -> Option<ExitStatus> {
        self.process.exit_status()
    }

    /// Its process id, which is also its group's.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// The ids of its processes: see [`Supervised::members`].
    #[must_use]
    pub fn members(&self) -> Vec<i32> {
        self.process.members()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        ensure!(self.process.signal(signal)?, "{} has ended: {}", self.name, self.said());
        Ok(())
    }

    /// SIGKILL, and a wait until it is gone.
    ///
    /// # Errors
    /// When it has ended already.
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.ended().await.map(|_| ())
    }

    /// SIGTERM, and a wait until it is gone.
    ///
    /// # Errors
    /// When it has ended already, or does not end.
    pub async fn stop(&self) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.ended().await
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ended(&self) -> anyhow::Result<ExitStatus> {
        let waited = tokio::time::timeout(BOUND, self.process.wait()).await;
        waited.with_context(|| format!("{} does not end", self.name))
    }

    /// How many file descriptors it has open.
    ///
    /// # Errors
    /// When it has ended.
    pub fn file_descriptors(&self) -> anyhow::Result<usize> {
        let folder = format!("/proc/{}/fd", self.process.pid());
        Ok(std::fs::read_dir(&folder).with_context(|| format!("{} has ended", self.name))?.count())
    }

    /// Its resident memory.
    ///
    /// # Errors
    /// When it has ended.
    pub fn resident_bytes(&self) -> anyhow::Result<u64> {
        let file = format!("/proc/{}/status", self.process.pid());
        let text = std::fs::read_to_string(&file).with_context(|| format!("{} has ended", self.name))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kibibytes: u64 = line.trim().trim_end_matches(" kB").trim().parse().context("VmRSS is no number")?;
        Ok(kibibytes * 1024)
    }
}

/// The port of a line of a log.
pub(super) fn port_in(line: &Value) -> Option<u16> {
    u16::try_from(line["port"].as_u64()?).ok()
}
