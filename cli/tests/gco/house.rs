//! A folder with a home and a table file, and `gco` run in it.

use std::future::Future;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use gco_store::embedded::EmbeddedTable;
use gco_store::row::EndpointRow;
use gco_store::status::{RegionEntry, State};
use gco_store::table::{Consistency, Outcome, Table};
use gco_store::transition::{self, Condition, Operation, StatusAuthority, Transition, Write};
use gco_store::wire::{Item, item_from_dynamodb_json};
use jiff::Timestamp;
use serde_json::Value as Json;
use tempfile::TempDir;

/// Longest time that a test waits for something that happens in milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_gco");

/// What one run of `gco` left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Asserts the exit code.
    #[track_caller]
    pub(crate) fn code(self, expected: i32) -> Self {
        assert_eq!(self.code, expected, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Asserts that standard output contains every text.
    #[track_caller]
    pub(crate) fn says(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.stdout.contains(text), "no {text:?} in:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        }
        self
    }

    /// Asserts that standard error contains every text.
    #[track_caller]
    pub(crate) fn complains(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.stderr.contains(text), "no {text:?} in:\n{}\nstdout:\n{}", self.stderr, self.stdout);
        }
        self
    }

    /// Standard output, which must be one JSON document.
    #[track_caller]
    pub(crate) fn json(&self) -> Json {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in:\n{}", self.stdout))
    }
}

/// A folder with a home and a table file.
pub(crate) struct House {
    pub(crate) folder: TempDir,
    pub(crate) table: Arc<EmbeddedTable>,
    runtime: tokio::runtime::Runtime,
}

impl House {
    /// A house with an empty table.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let table = Arc::new(EmbeddedTable::open(&folder.path().join("table.sqlite")).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(table.create_tables()).unwrap();
        Self { folder, table, runtime }
    }

    /// A house with the endpoint `chat` in two regions.
    pub(crate) fn with_chat() -> Self {
        let house = Self::new();
        let arguments =
            ["inference", "deploy", "chat", "-i", "vllm/vllm-openai:v1", "-r", "us-east-1", "-r", "eu-west-1"];
        house.run(&arguments).code(0);
        house
    }

    pub(crate) fn table_file(&self) -> PathBuf {
        self.folder.path().join("table.sqlite")
    }

    /// `gco` with these arguments, this house's table, and nothing of the caller's environment.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.command_of(Path::new(BINARY), arguments)
    }

    /// Another copy of `gco`.
    pub(crate) fn command_of(&self, binary: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary);
        command
            .args(arguments)
            .env_clear()
            .env("HOME", self.folder.path())
            .env("GCO_TABLE", format!("embedded:{}", self.table_file().display()))
            .env("GCO_WATCH_INTERVAL_SECONDS", "0.02")
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs `gco` to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        run(self.command(arguments))
    }

    /// Starts `gco`, whose standard output is read line by line.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        let mut child = self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        Running { child, stdout, stderr }
    }

    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// The row as the table holds it.
    pub(crate) fn row(&self, name: &str) -> Option<EndpointRow> {
        let item = self.block_on(self.table.get(name, Consistency::Strong)).unwrap();
        item.map(|item| EndpointRow::parse(item).unwrap())
    }

    /// Every row.
    pub(crate) fn rows(&self) -> Vec<Item> {
        self.block_on(self.table.read_all(Consistency::Strong)).unwrap().items
    }

    /// Puts a row as it is, whatever stood there.
    pub(crate) fn put(&self, item: Item) {
        let name = item["endpoint_name"].as_str().unwrap().to_owned();
        self.execute(&Transition {
            operation: Operation::Create,
            name,
            condition: Condition::All(Vec::new()),
            write: Write::Put(item),
            base_updated_at: None,
            new_updated_at: None,
        });
    }

    /// Puts a row of the fixtures.
    pub(crate) fn put_fixture(&self, fixture: &str) -> EndpointRow {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/rows").join(fixture);
        let json = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let item = item_from_dynamodb_json(&json).unwrap();
        self.put(item.clone());
        EndpointRow::parse(item).unwrap()
    }

    /// Executes a transition that must be applied.
    pub(crate) fn execute(&self, transition: &Transition) {
        let outcome = self.block_on(self.table.execute(transition)).unwrap();
        assert!(matches!(outcome, Outcome::Applied(_)), "{outcome:?}");
    }

    /// Does what a region's monitor does: writes the region's entry.
    pub(crate) fn report(&self, name: &str, region: &str, entry: &RegionEntry) {
        let row = self.row(name).unwrap();
        let authority = StatusAuthority::Live {
            lifecycle_id: row.lifecycle_id.clone().unwrap(),
            region_generation: row.region_generation(region).unwrap().to_owned(),
        };
        self.execute(&transition::write_region_status(&row, region, entry, &authority, noon()).unwrap());
    }

    /// Does what a region's monitor does when the endpoint serves there.
    pub(crate) fn serve(&self, name: &str, region: &str) {
        let entry = RegionEntry { replicas_ready: 1, replicas_desired: 1, ..RegionEntry::new(State::Running) };
        self.report(name, region, &entry);
    }

    /// Does what a region's monitor does once any region serves.
    pub(crate) fn promote(&self, name: &str) {
        self.execute(&transition::promote(&self.row(name).unwrap(), noon()).unwrap());
    }
}

/// Some time; versions are made later than what is stored by the store itself.
pub(crate) fn noon() -> Timestamp {
    "2026-11-29T12:00:00Z".parse().unwrap()
}

pub(crate) fn run(mut command: Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A `gco` that runs.
pub(crate) struct Running {
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Running {
    /// Reads standard output up to a line that contains `text`; returns what was read.
    pub(crate) fn until_stdout(&self, text: &str) -> String {
        until(&self.stdout, text)
    }

    /// Reads standard error up to a line that contains `text`; returns what was read.
    pub(crate) fn until_stderr(&self, text: &str) -> String {
        until(&self.stderr, text)
    }

    /// Ctrl-C.
    pub(crate) fn interrupt(&self) {
        let process = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &process]).status().unwrap().success());
    }

    /// Waits for the end; returns its exit code and what it still wrote to standard output.
    pub(crate) fn end(mut self) -> (i32, String, String) {
        // Both streams close when the process ends, or the bound of the reads reports a hang.
        let stdout = rest(&self.stdout);
        let stderr = rest(&self.stderr);
        let status: ExitStatus = self.child.wait().unwrap();
        (status.code().unwrap_or(-1), stdout, stderr)
    }
}

fn lines(stream: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn until(lines: &Receiver<String>, text: &str) -> String {
    let mut read = String::new();
    loop {
        let line = lines.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{error}: no {text:?} in:\n{read}"));
        read.push_str(&line);
        read.push('\n');
        if line.contains(text) {
            return read;
        }
    }
}

fn rest(lines: &Receiver<String>) -> String {
    let mut read = String::new();
    loop {
        match lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                read.push_str(&line);
                read.push('\n');
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return read,
            Err(error) => panic!("{error}: gco does not end; so far:\n{read}"),
        }
    }
}
