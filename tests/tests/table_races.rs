//! Of several writers with one condition exactly one wins, on every backend.
#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::process::Stdio;
use std::sync::Arc;

use gco_store::embedded::EmbeddedTable;
use gco_store::table::{Consistency, Table};
use gco_store::wire::Value;
use gco_tests::tables::backends::{Servers, Times, connect};
use gco_tests::tables::races::{Raced, Racer};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const WRITERS: u32 = 8;
const ROUNDS: usize = 40;
const NAME: &str = "raced";

/// 40 rounds: all read, then all write at once; the row must be the only winner's.
async fn race(backend: &str, table: Arc<dyn Table>, racers: Vec<Racer>) {
    let mut racers = racers;
    let mut versions = Vec::new();
    for round in 1..=ROUNDS {
        for racer in &mut racers {
            racer.look().await.unwrap();
        }
        let mut writing = tokio::task::JoinSet::new();
        for mut racer in racers.drain(..) {
            writing.spawn(async move {
                let raced = racer.write().await.unwrap();
                (racer, raced)
            });
        }
        let mut winners = 0;
        while let Some(written) = writing.join_next().await {
            let (racer, raced) = written.unwrap();
            winners += usize::from(raced == Raced::Applied);
            racers.push(racer);
        }
        assert_eq!(winners, 1, "{backend}: {winners} winners in round {round}");
        versions.push(version(&*table).await);
    }
    assert_all_different(backend, &versions);
}

async fn version(table: &dyn Table) -> String {
    let row = table.get(NAME, Consistency::Strong).await.unwrap().unwrap();
    row.get("updated_at").and_then(Value::as_str).unwrap().to_owned()
}

fn assert_all_different(backend: &str, versions: &[String]) {
    let different: std::collections::BTreeSet<_> = versions.iter().collect();
    assert_eq!(different.len(), ROUNDS, "{backend}: a round changed nothing");
    println!("{backend}: {WRITERS} writers, {ROUNDS} rounds, one winner each");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_eight_writers_on_a_table_server_exactly_one_wins_each_round() {
    let servers = Servers::start().await.unwrap();
    for (name, server) in servers.all() {
        let table = Arc::new(connect(&server.url(), "races", Times::PATIENT).await.unwrap());
        table.create_tables().await.unwrap();
        let mut racers = Vec::new();
        for number in 0..WRITERS {
            // A client of its own has connections of its own.
            let client = Arc::new(connect(&server.url(), "races", Times::PATIENT).await.unwrap());
            racers.push(Racer::new(client, NAME, number));
        }
        race(name, table, racers).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_eight_handles_on_an_embedded_table_exactly_one_wins_each_round() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("races.sqlite");
    let open = || Arc::new(EmbeddedTable::open(&file).unwrap());
    let table = open();
    table.create_tables().await.unwrap();
    let racers = (0..WRITERS).map(|number| Racer::new(open(), NAME, number)).collect();
    race("embedded, eight handles", table, racers).await;
}

/// A process that writes to the embedded table.
struct Writer {
    _process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Writer {
    fn start(file: &std::path::Path, number: u32) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_table-writer"))
            .arg(file)
            .args([NAME, &number.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { _process: process, input, output }
    }

    async fn command(&mut self, command: &str) {
        self.input.write_all(format!("{command}\n").as_bytes()).await.unwrap();
    }

    async fn answer(&mut self) -> String {
        self.output.next_line().await.unwrap().unwrap_or_else(|| panic!("a writer ended"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_eight_processes_on_an_embedded_table_exactly_one_wins_each_round() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("races.sqlite");
    let table = EmbeddedTable::open(&file).unwrap();
    table.create_tables().await.unwrap();
    let mut writers: Vec<_> = (0..WRITERS).map(|number| Writer::start(&file, number)).collect();
    let mut versions = Vec::new();
    for round in 1..=ROUNDS {
        let mut answers = Vec::new();
        for command in ["look", "go"] {
            // Everybody has the command before anybody's answer is awaited.
            for writer in &mut writers {
                writer.command(command).await;
            }
            answers.clear();
            for writer in &mut writers {
                answers.push(writer.answer().await);
            }
        }
        let told = |word: &str| answers.iter().filter(|answer| *answer == word).count();
        assert_eq!((told("applied"), told("refused")), (1, 7), "round {round}: {answers:?}");
        versions.push(version(&table).await);
    }
    assert_all_different("embedded, eight processes", &versions);
}
