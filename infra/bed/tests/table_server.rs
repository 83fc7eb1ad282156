//! Every table server speaks the protocol and lets one writer win.
#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

mod common;

use common::Tables;
use gco_bed::table_server::{Kind, TableServer};

async fn one_writer_wins(kind: Kind) {
    let server = TableServer::start(kind).await.unwrap();
    assert!(server.address().ip().is_loopback());
    let tables = Tables::at(server.url());
    let (status, answer) = tables.create_table().await.unwrap();
    assert_eq!(status, 200, "{answer}");
    tables.wait_until_active().await;

    for round in 0..10 {
        let name = format!("row-{round}");
        let writers: Vec<String> = (0..8).map(|writer| format!("writer-{writer}")).collect();
        let puts = writers.iter().map(|writer| tables.put_new(&name, writer));
        let outcomes = futures::future::join_all(puts).await;
        let mut winners = Vec::new();
        for (writer, outcome) in writers.iter().zip(outcomes) {
            match outcome.unwrap() {
                (200, _) => winners.push(writer.clone()),
                (status, answer) => {
                    let kind = answer["__type"].as_str().unwrap();
                    assert!(status == 400 && kind.ends_with("ConditionalCheckFailedException"), "{answer}");
                }
            }
        }
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        assert_eq!(tables.writer_of(&name).await.as_ref(), winners.first());
    }
    assert_eq!(tables.writer_of("absent").await, None);
    let pid = server.process().pid();
    server.stop().await;
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[tokio::test]
async fn of_racing_conditional_puts_one_wins_on_ministack() {
    one_writer_wins(Kind::Ministack).await;
}

#[tokio::test]
async fn of_racing_conditional_puts_one_wins_on_dynalite() {
    one_writer_wins(Kind::Dynalite).await;
}

#[tokio::test]
async fn of_racing_conditional_puts_one_wins_on_moto_with_one_thread() {
    one_writer_wins(Kind::Moto).await;
}

/// The addresses that a process listens on, from the kernel's table of its sockets.
fn listening_addresses(pid: i32) -> Vec<String> {
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let target = std::fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
            Some(target.strip_prefix("socket:[")?.trim_end_matches(']').to_owned())
        })
        .collect();
    let mut found = Vec::new();
    for table in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            const LISTENING: &str = "0A";
            if fields[3] == LISTENING && sockets.iter().any(|socket| socket == fields[9]) {
                found.push(fields[1].to_owned());
            }
        }
    }
    found
}

#[tokio::test]
async fn a_table_server_listens_on_loopback_alone_and_on_one_port() {
    for kind in Kind::ALL {
        let server = TableServer::start(kind).await.unwrap();
        let expected = format!("0100007F:{:04X}", server.address().port());
        assert_eq!(listening_addresses(server.process().pid()), [expected], "{kind:?}");
        server.stop().await;
    }
}

#[tokio::test]
async fn ministack_can_be_told_to_enforce_permissions() {
    let server = TableServer::start_with(Kind::Ministack, &[("AUTH", "true")]).await.unwrap();
    let (status, answer) = Tables::at(server.url()).create_table().await.unwrap();
    assert!((400..500).contains(&status), "{status} {answer}");
    server.stop().await;
}
