//! Child processes that cannot outlive the process that started them.
//!
//! Each program is started by a small shell script. The script leaves a watcher behind and then
//! *becomes* the program (`exec`), so the process id, the exit status and every signal are the
//! program's own. The watcher reads a pipe whose other end only the owner holds: when the owner lets
//! go of it, by design or because it was killed, the watcher ends the program's whole process group,
//! first politely, after a grace for good. As the watcher is itself a member of the group, the group's
//! number cannot have been given to anybody else by then.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, getpgid};
use tokio::sync::watch;

/// `$1` is the grace in whole seconds, the rest is the program and its arguments.
///
/// Standard input is the pipe to the owner; the program gets none of it. The watcher ignores the polite
/// signals because it sends them to its own group; `sleep` inherits that.
const SUPERVISOR: &str = r#"
grace=$1
shift
exec 3<&0 </dev/null
{
    trap '' HUP INT TERM
    read -r _ <&3
    kill -s TERM 0
    kill -s CONT 0
    sleep "$grace"
    kill -s KILL 0
} >/dev/null 2>&1 &
exec "$@" 3<&-
"#;

/// How long dropping a child waits for the kernel to end it.
const LONGEST_DEATH: Duration = Duration::from_secs(5);

/// How much of a log an error message shows.
const SHOWN_LOG_BYTES: u64 = 2_000;

/// What to start, and how.
#[derive(Clone, Debug)]
pub struct ProcessSettings {
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    inherits_environment: bool,
    working_dir: Option<PathBuf>,
    log_file: PathBuf,
    orphan_grace_seconds: u32,
}

impl ProcessSettings {
    /// Settings to run `program` (a path, or a name to look up in `PATH`), with its standard output
    /// and error appended to `log_file`.
    pub fn new(program: impl Into<PathBuf>, log_file: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
            inherits_environment: true,
            working_dir: None,
            log_file: log_file.into(),
            orphan_grace_seconds: 1,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn arguments<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Gives the program only the variables set here, none of the owner's.
    #[must_use]
    pub fn without_our_environment(mut self) -> Self {
        self.inherits_environment = false;
        self
    }

    /// Runs the program in this folder instead of the owner's.
    #[must_use]
    pub fn working_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.working_dir = Some(folder.into());
        self
    }

    /// How many whole seconds the program has between SIGTERM and SIGKILL when its owner is gone
    /// (default 1).
    #[must_use]
    pub fn orphan_grace_seconds(mut self, seconds: u32) -> Self {
        self.orphan_grace_seconds = seconds;
        self
    }
}

/// A running child process in a process group of its own.
///
/// When the program ends, for whatever reason, so does what it left behind in its group, a second later.
/// Dropping the handle kills the program. It may be kept in a `static` and used from any runtime: a process that
/// ends without dropping it takes the child along all the same.
#[derive(Debug)]
pub struct Supervised {
    name: String,
    pid: Pid,
    log_file: PathBuf,
    shared: Arc<Shared>,
    exited: watch::Receiver<Option<ExitStatus>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    reaped: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct State {
    /// Set once the process was reaped: from then on its id may be somebody else's.
    reaped: bool,
    /// The owner's end of the watcher's pipe; dropping it ends what is left of the group.
    leash: Option<ChildStdin>,
}

impl Supervised {
    /// Starts the program.
    ///
    /// # Errors
    /// When it does not exist, its log cannot be written or the kernel refuses another process.
    pub fn start(settings: ProcessSettings) -> anyhow::Result<Self> {
        let program = resolve(&settings.program)?;
        let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
        let log_file = settings.log_file;
        let log = open_log(&log_file)?;
        let log_of_errors = log.try_clone().with_context(|| format!("sharing the log {}", log_file.display()))?;

        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(SUPERVISOR).arg("supervisor");
        command.arg(settings.orphan_grace_seconds.to_string()).arg(&program).args(&settings.arguments);
        if !settings.inherits_environment {
            command.env_clear();
        }
        command.envs(settings.variables);
        if let Some(folder) = &settings.working_dir {
            command.current_dir(folder);
        }
        // A group of its own keeps a terminal's Ctrl-C away from the program: its owner decides the order.
        command.process_group(0).stdin(Stdio::piped()).stdout(log).stderr(log_of_errors);
        let mut child = command.spawn().with_context(|| format!("starting {}", program.display()))?;

        let pid = Pid::from_raw(i32::try_from(child.id()).context("process id out of range")?);
        let state = Mutex::new(State { reaped: false, leash: child.stdin.take() });
        let shared = Arc::new(Shared { state, reaped: Condvar::new() });
        let (publish, exited) = watch::channel(None);
        std::thread::Builder::new()
            .name(format!("wait-{name}"))
            .spawn({
                let shared = shared.clone();
                move || reap(pid, child, &shared, &publish)
            })
            .context("starting the thread that waits for a child")?;
        Ok(Self { name, pid, log_file, shared, exited })
    }

    /// The program's file name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id of the program itself.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// The ids of the program and of what it started and kept in its group; not the watcher's.
    pub fn members(&self) -> Vec<i32> {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        ids.filter(|id| self.is_member(*id)).collect()
    }

    fn is_member(&self, id: i32) -> bool {
        let in_group = getpgid(Some(Pid::from_raw(id))) == Ok(self.pid);
        let is_watcher = || {
            // It is the shell that became the program, split off before that.
            let words = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).nth(2) == Some(SUPERVISOR.as_bytes())
        };
        in_group && !is_watcher()
    }

    /// How the program ended; `None` while it runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.exited.borrow()
    }

    /// Whether the program still runs.
    pub fn is_running(&self) -> bool {
        self.exit_status().is_none()
    }

    /// Waits until the program ends, for whatever reason.
    pub async fn wait(&self) -> ExitStatus {
        let mut exited = self.exited.clone();
        loop {
            if let Some(status) = *exited.borrow_and_update() {
                return status;
            }
            if exited.changed().await.is_err() {
                // The waiting thread publishes before it ends; without a status it has died itself.
                return (*exited.borrow()).unwrap_or_default();
            }
        }
    }

    /// Sends a signal to the program; returns whether it was still there to receive it.
    ///
    /// # Errors
    /// When the kernel refuses, which it does not for one's own child.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<bool> {
        let state = self.shared.lock();
        if state.reaped {
            return Ok(false);
        }
        kill(self.pid, signal).with_context(|| format!("sending {signal} to {}", self.name))?;
        Ok(true)
    }

    /// Stops the program's clockwork without ending it (SIGSTOP).
    ///
    /// # Errors
    /// As [`Supervised::signal`].
    pub fn pause(&self) -> anyhow::Result<bool> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets a paused program go on (SIGCONT).
    ///
    /// # Errors
    /// As [`Supervised::signal`].
    pub fn resume(&self) -> anyhow::Result<bool> {
        self.signal(Signal::SIGCONT)
    }

    /// Asks the program to end (SIGTERM) and kills it when it has not within `grace`. Returns how it
    /// ended; a program that had ended before is fine.
    pub async fn stop(&self, grace: Duration) -> ExitStatus {
        // Errors cannot be for a child of ours, and the wait below ends in a kill anyway.
        let _ = self.signal(Signal::SIGTERM);
        let _ = self.signal(Signal::SIGCONT);
        match tokio::time::timeout(grace, self.wait()).await {
            Ok(status) => status,
            Err(_) => self.kill().await,
        }
    }

    /// Kills the program at once (SIGKILL) and waits until it is gone.
    pub async fn kill(&self) -> ExitStatus {
        let _ = self.signal(Signal::SIGKILL);
        self.wait().await
    }

    /// Where its output goes.
    pub fn log_file(&self) -> &Path {
        &self.log_file
    }

    /// The end of its output, for messages.
    pub fn log_tail(&self) -> String {
        tail(&self.log_file)
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        let _ = self.signal(Signal::SIGKILL);
        // A killed process is gone within milliseconds. Whoever removes its folder next counts on that.
        let state = self.shared.lock();
        let _ = self.shared.reaped.wait_timeout_while(state, LONGEST_DEATH, |state| !state.reaped);
    }
}

/// Waits for the child without reaping it, then reaps it under the lock, so that nobody can signal
/// an id that is no longer the child's.
fn reap(pid: Pid, mut child: Child, shared: &Shared, publish: &watch::Sender<Option<ExitStatus>>) {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    while waitid(Id::Pid(pid), flags) == Err(nix::errno::Errno::EINTR) {}
    let mut state = shared.lock();
    let status = child.wait().unwrap_or_default();
    state.reaped = true;
    // What the program left behind in its group ends with it.
    state.leash = None;
    publish.send_replace(Some(status));
    drop(state);
    shared.reaped.notify_all();
}

fn open_log(path: &Path) -> anyhow::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.with_context(|| format!("opening the log {}", path.display()))
}

/// The program's path; a name without a slash is looked up in `PATH`.
fn resolve(program: &Path) -> anyhow::Result<PathBuf> {
    if program.components().count() > 1 || program.is_absolute() {
        ensure!(program.is_file(), "there is no program {}", program.display());
        return std::path::absolute(program).with_context(|| format!("resolving {}", program.display()));
    }
    match find_in_path(program.as_os_str()) {
        Some(found) => Ok(found),
        None => bail!("there is no program {} in PATH", program.display()),
    }
}

/// Where a program of this name is in `PATH`.
#[must_use]
pub fn find_in_path(name: &OsStr) -> Option<PathBuf> {
    let environment = gco_runtime::environment::Environment::process();
    let folders = std::env::split_paths(environment.get("PATH")?).map(|folder| folder.join(name));
    folders.filter(|candidate| candidate.is_file()).find_map(|candidate| std::path::absolute(candidate).ok())
}

/// The last part of a text file, from the beginning of a line; empty when it cannot be read.
pub(crate) fn tail(path: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(SHOWN_LOG_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(SHOWN_LOG_BYTES).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let cut = length > SHOWN_LOG_BYTES;
        Ok(match text.split_once('\n') {
            Some((_, rest)) if cut => format!("…\n{rest}"),
            _ => text,
        })
    };
    read().unwrap_or_default().trim_end().to_owned()
}
