//! The embedded backend: one file, several handles and processes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::common::{all_rows, item, now, request, tokens};
use gco_store::embedded::EmbeddedTable;
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::table::{Consistency, ErrorCategory, Outcome, RegionHeartbeat, RegionItem, Table};
use gco_store::transition::{self, Condition, Operation, Path as Place, Transition, Write};
use gco_store::wire::{Item, Value};

async fn table(folder: &Path) -> EmbeddedTable {
    let table = EmbeddedTable::open(&folder.join("table")).expect("opened");
    table.create_tables().await.expect("created");
    table
}

/// Puts a row there, whatever was there.
fn put(item: &Item) -> Transition {
    Transition {
        operation: Operation::Create,
        name: item["endpoint_name"].as_str().expect("a name").to_owned(),
        condition: Condition::All(Vec::new()),
        write: Write::Put(item.clone()),
        base_updated_at: None,
        new_updated_at: None,
    }
}

#[tokio::test]
async fn rows_are_read_back_as_they_were_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = table(folder.path()).await;
    let rows = all_rows().into_iter().filter(|(name, _)| name.starts_with("rows/")).map(|(_, item)| item);
    let rows: Vec<Item> = rows.collect();
    for row in &rows {
        assert_eq!(table.execute(&put(row)).await, Ok(Outcome::Applied(Some(row.clone()))));
    }
    let read = table.read_all(Consistency::Eventual).await.expect("read");
    assert_eq!((read.items.len(), read.pages), (rows.len(), 1));
    for row in &rows {
        assert!(read.items.contains(row));
        let name = row["endpoint_name"].as_str().expect("a name");
        assert_eq!(table.get(name, Consistency::Strong).await, Ok(Some(row.clone())));
    }
    assert_eq!(table.get("none", Consistency::Strong).await, Ok(None));
}

#[tokio::test]
async fn transitions_are_applied_refused_and_purged() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = table(folder.path()).await;
    let create = transition::create(&request("chat"), now(), &mut tokens()).expect("valid");
    let Ok(Outcome::Applied(Some(created))) = table.execute(&create).await else { panic!("not created") };
    assert_eq!(table.execute(&create).await, Ok(Outcome::Refused(Some(created.clone()))));
    let row = EndpointRow::parse(created).expect("readable");
    let scale = transition::scale(&row, 3, now()).expect("possible");
    let Ok(Outcome::Applied(Some(scaled))) = table.execute(&scale).await else { panic!("not scaled") };
    assert_eq!(table.get("chat", Consistency::Strong).await, Ok(Some(scaled.clone())));
    assert_eq!(table.execute(&scale).await, Ok(Outcome::Refused(Some(scaled))));
    let absent = Transition { name: "none".to_owned(), ..scale };
    assert_eq!(table.execute(&absent).await, Ok(Outcome::Refused(None)));
    let delete = Transition { write: Write::Delete, condition: Condition::Exists(Place::of(["spec"])), ..create };
    assert_eq!(table.execute(&delete).await, Ok(Outcome::Applied(None)));
    assert_eq!(table.execute(&delete).await, Ok(Outcome::Refused(None)));
    assert_eq!(table.get("chat", Consistency::Strong).await, Ok(None));
}

#[tokio::test]
async fn invalid_writes_are_refused_and_change_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = table(folder.path()).await;
    let mut huge = item("classic-minimal");
    huge.insert("blob".to_owned(), Value::from("x".repeat(400 * 1024)));
    let error = table.execute(&put(&huge)).await.expect_err("too big");
    assert_eq!(error.category, ErrorCategory::Invalid);
    assert!(error.message.contains("at most 409600 bytes"), "{error}");
    assert_eq!(table.get("", Consistency::Strong).await.expect_err("no key").category, ErrorCategory::Invalid);
    assert_eq!(table.read_all(Consistency::Strong).await.expect("read").items.len(), 0);
}

#[tokio::test]
async fn a_file_without_tables_or_of_another_kind_is_not_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let empty = EmbeddedTable::open(&folder.path().join("empty")).expect("opened");
    assert_eq!(empty.check().await.expect_err("no table").category, ErrorCategory::Table);
    assert_eq!(empty.read_all(Consistency::Strong).await.expect_err("no table").category, ErrorCategory::Table);
    empty.create_tables().await.expect("created");
    empty.create_tables().await.expect("twice is once");
    assert_eq!(empty.check().await.expect("a table").replicas, [""; 0]);
    let other = folder.path().join("other");
    std::fs::write(&other, "x".repeat(5000)).expect("written");
    assert_eq!(EmbeddedTable::open(&other).expect_err("no table").category, ErrorCategory::Table);
    let nowhere = EmbeddedTable::open(&folder.path().join("no/such/folder")).expect_err("no folder");
    assert_eq!(nowhere.category, ErrorCategory::Forbidden);
}

#[tokio::test]
async fn heartbeats_leave_the_freeze_switch_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = table(folder.path()).await;
    assert_eq!(table.read_region("us-east-1").await, Ok(None));
    let frozen = RegionItem { heartbeat: None, frozen: true, restarts_cleared_at: None };
    assert_eq!(table.set_frozen("us-east-1", true).await, Ok(frozen));
    let heartbeat = RegionHeartbeat {
        region: "us-east-1".to_owned(),
        last_heartbeat: "2026-11-29T16:04:51+00:00".to_owned(),
        version: "0.1.0".to_owned(),
        leader: "monitor-a".to_owned(),
        last_complete_read_age_seconds: 3,
        orphans: None,
        admission_fence: "order effective, lease effective".to_owned(),
    };
    let long = Duration::from_secs(60);
    let written = table.write_heartbeat(&heartbeat, long).await.expect("written");
    assert_eq!(written, RegionItem { heartbeat: Some(heartbeat), frozen: true, restarts_cleared_at: None });
    assert_eq!(table.read_region("us-east-1").await, Ok(Some(written.clone())));
    let thawed = table.set_frozen("us-east-1", false).await.expect("written");
    assert_eq!(thawed, RegionItem { frozen: false, ..written });
    let cleared = table.clear_restarts("us-east-1", "2026-11-29T17:00:00+00:00").await.expect("written");
    assert_eq!(cleared, RegionItem { restarts_cleared_at: Some("2026-11-29T17:00:00+00:00".to_owned()), ..thawed });
    let thawed = cleared;
    let frozen = table.set_frozen("eu-west-1", true).await.expect("written");
    let all = [("eu-west-1".to_owned(), frozen), ("us-east-1".to_owned(), thawed)];
    assert_eq!(table.read_regions().await, Ok(all.into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_racing_creates_through_several_handles_exactly_one_wins() {
    let folder = tempfile::tempdir().expect("a folder");
    let _ = table(folder.path()).await;
    for round in 0..10 {
        let name = format!("chat{round}");
        let racers: Vec<_> = (0..8_u8)
            .map(|racer| {
                let table = EmbeddedTable::open(&folder.path().join("table")).expect("opened");
                let mut token = move || format!("{racer:064x}");
                let create = transition::create(&request(&name), now(), &mut token).expect("valid");
                tokio::spawn(async move { table.execute(&create).await.expect("answered") })
            })
            .collect();
        let mut winners = Vec::new();
        for racer in racers {
            if let Outcome::Applied(Some(item)) = racer.await.expect("no panic") {
                winners.push(item);
            }
        }
        assert_eq!(winners.len(), 1, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_increment_is_lost_among_racing_handles() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = table(folder.path()).await;
    first.execute(&put(&item("classic-minimal"))).await.expect("written");
    let racers: Vec<_> = (0..4)
        .map(|_| {
            let table = Arc::new(EmbeddedTable::open(&folder.path().join("table")).expect("opened"));
            tokio::spawn(async move {
                let mut won = 0;
                for _ in 0..25 {
                    let item = table.get("chat-small", Consistency::Strong).await.expect("read").expect("a row");
                    let row = EndpointRow::parse(item).expect("readable");
                    let count = row.spec.at(&["replicas"]).and_then(Value::as_integer).expect("a count");
                    let mut scale = transition::scale(&row, count + 1, now()).expect("possible");
                    let as_read = Condition::Equals(Place::of(["spec", "replicas"]), Value::from(count));
                    scale.condition = Condition::All(vec![scale.condition, as_read]);
                    won += i64::from(matches!(table.execute(&scale).await.expect("answered"), Outcome::Applied(_)));
                }
                won
            })
        })
        .collect();
    let mut won = 0;
    for racer in racers {
        won += racer.await.expect("no panic");
    }
    let item = first.get("chat-small", Consistency::Strong).await.expect("read").expect("a row");
    assert_eq!(item["spec"].at(&["replicas"]).and_then(Value::as_integer), Some(1 + won));
    assert!(won >= 25, "{won}");
}

/// Set in child processes: the folder of the table, and the racer's number.
const CHILD: &str = "GCO_STORE_TEST_RACER";

#[test]
fn of_racing_processes_exactly_one_creates_each_endpoint() {
    #[allow(clippy::disallowed_methods, reason = "how the child process learns that it is one")]
    let child = std::env::var(CHILD).ok();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    if let Some((racer, folder)) = child.as_deref().and_then(|text| text.split_once(' ')) {
        let won = runtime.block_on(async {
            let table = table(Path::new(folder)).await;
            let mut won = 0;
            for round in 0..20 {
                let mut token = || format!("{racer:0>64}");
                let create = transition::create(&request(&format!("chat{round}")), now(), &mut token).expect("valid");
                won += u32::from(matches!(table.execute(&create).await.expect("answered"), Outcome::Applied(_)));
            }
            won
        });
        println!("\nWON {won}");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let this = std::env::current_exe().expect("this program");
    let name = "embedded::of_racing_processes_exactly_one_creates_each_endpoint";
    let children: Vec<_> = (0..4)
        .map(|racer| {
            Command::new(&this)
                .args([name, "--exact", "--nocapture"])
                .env(CHILD, format!("{racer} {}", folder.path().display()))
                .stdout(Stdio::piped())
                .spawn()
                .expect("started")
        })
        .collect();
    let mut won = 0;
    for child in children {
        let output = child.wait_with_output().expect("ended");
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let count = text.lines().find_map(|line| line.strip_prefix("WON ")).expect("a count");
        won += count.parse::<u32>().expect("a number");
    }
    assert_eq!(won, 20);
    let rows =
        runtime.block_on(async { table(folder.path()).await.read_all(Consistency::Strong).await }).expect("read");
    assert_eq!(rows.items.len(), 20);
    let states = rows.items.into_iter().map(|item| EndpointRow::parse(item).expect("readable").desired_state);
    assert!(states.into_iter().all(|state| state == DesiredState::Deploying));
}
