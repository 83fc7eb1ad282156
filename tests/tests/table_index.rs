//! The change index on every backend: what it shows is what the rows say, and making it touches no row.
#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::collections::BTreeSet;
use std::time::Duration;

use gco_bed::rewriting_proxy::{Answer, Decision, RequestFacts, RewritingProxy};
use gco_bed::wait;
use gco_store::index::{IndexEntry, Part, PartState, entry_of};
use gco_store::table::{Consistency, ErrorCategory, Table};
use gco_store::transition::{Change, Condition, Operation, Path, Transition, Write};
use gco_store::wire::{Item, Value};
use gco_tests::tables::backends::{Backend, Servers, Times, connect};
use gco_tests::tables::generator::put_if_absent;
use gco_tests::tables::raw::RawClient;
use gco_tests::tables::seed::Seed;
use serde_json::{Value as Json, json};

const SETTLES: Duration = Duration::from_secs(30);

const WORDS: [&str; 6] = ["deploying", "running", "stopped", "deleted", "paused-by-another-version", ""];

fn version(minute: usize) -> String {
    format!("2026-11-29T12:{minute:02}:00.000001+00:00")
}

/// A row; some lack a version or a state, or have one that nobody knows.
fn row(number: usize, dice: &mut Seed) -> Item {
    let name = format!("endpoint-{number:02}");
    let mut row = Item::from([
        ("endpoint_name".to_owned(), Value::from(name.as_str())),
        ("lifecycle_id".to_owned(), Value::from(format!("life-{number}").as_str())),
    ]);
    let word = WORDS[dice.below(6)];
    if !word.is_empty() {
        row.insert("desired_state".to_owned(), Value::from(word));
    }
    if dice.below(8) > 0 {
        let minute = dice.below(60);
        row.insert("updated_at".to_owned(), Value::from(version(minute).as_str()));
    }
    row
}

fn change(name: &str, changes: Vec<Change>) -> Transition {
    Transition {
        operation: Operation::UpdateSpec,
        name: name.to_owned(),
        condition: Condition::Exists(Path::of(["endpoint_name"])),
        write: Write::Update(changes),
        base_updated_at: None,
        new_updated_at: None,
    }
}

fn set(attribute: &str, text: &str) -> Change {
    Change::Set(Path::of([attribute]), Value::from(text))
}

/// What the rows say that the index must show.
async fn wanted(table: &dyn Table, since: &str) -> BTreeSet<IndexEntry> {
    let rows = table.read_all(Consistency::Strong).await.unwrap().items;
    rows.iter().filter_map(entry_of).filter(|entry| entry.updated_at.as_str() >= since).collect()
}

async fn agrees(backend: &Backend, since: &str) -> usize {
    let what = format!("the index of {} to show what the rows say from {since:?} on", backend.name);
    wait::until(&what, SETTLES, || async {
        let told = backend.table.changed_since(since).await.map_err(|error| error.to_string())?.entries;
        let wanted = wanted(&*backend.table, since).await;
        let count = told.len();
        let told: BTreeSet<IndexEntry> = told.into_iter().collect();
        if told == wanted && count == wanted.len() { Ok(count) } else { Err(format!("{told:?}, not {wanted:?}")) }
    })
    .await
    .unwrap()
}

/// dynalite adds no index to a table that exists: there the table is made with one.
async fn make_with_index(url: &str, name: &str) {
    let text = |name: &str| json!({"AttributeName": name, "AttributeType": "S"});
    let key = |name: &str, kind: &str| json!({"AttributeName": name, "KeyType": kind});
    let table = json!({
        "TableName": name,
        "AttributeDefinitions": [text("endpoint_name"), text("desired_state"), text("updated_at")],
        "KeySchema": [key("endpoint_name", "HASH")],
        "GlobalSecondaryIndexes": [{
            "IndexName": "made-elsewhere",
            "KeySchema": [key("desired_state", "HASH"), key("updated_at", "RANGE")],
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        }],
        "BillingMode": "PAY_PER_REQUEST",
    });
    assert!(RawClient::new(url).call("CreateTable", &table).await.unwrap().succeeded());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_shows_what_the_rows_say_on_every_backend() {
    let servers = Servers::start().await.unwrap();
    make_with_index(&servers.dynalite.url(), "indexed").await;
    for backend in servers.fresh_tables("indexed").await.unwrap() {
        let (name, table) = (backend.name, &backend.table);
        let mut dice = Seed::new(7);
        for number in 0..40 {
            let item = row(number, &mut dice);
            table.execute(&put_if_absent(&format!("endpoint-{number:02}"), item)).await.unwrap();
        }
        let before = table.read_all(Consistency::Strong).await.unwrap().items;
        if name == "dynalite" {
            assert_eq!(table.check().await.unwrap().change_index, PartState::Ready, "{name}");
        } else {
            assert_eq!(table.check().await.unwrap().change_index, PartState::Missing, "{name}");
            let error = table.changed_since("").await.unwrap_err();
            assert!(!error.category.retryable(), "{name}: without an index: {error}");
        }
        // Making it is idempotent and touches no row.
        for _ in 0..2 {
            table.create(Part::ChangeIndex).await.unwrap();
            wait::until(&format!("the index of {name}"), SETTLES, || async {
                match table.inspect(Part::ChangeIndex).await {
                    Ok(PartState::Ready) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await
            .unwrap();
        }
        let sorted = |mut items: Vec<Item>| {
            items.sort_by_key(|item| item["endpoint_name"].as_str().unwrap().to_owned());
            items
        };
        assert_eq!(sorted(table.read_all(Consistency::Strong).await.unwrap().items), sorted(before), "{name}");
        let entries = agrees(&backend, "0").await;
        assert!(entries > 10, "{name}: {entries}");
        for step in 0..40 {
            let row = format!("endpoint-{:02}", dice.below(40));
            let minute = dice.below(60);
            match dice.below(4) {
                0 => {
                    let gone = Transition { write: Write::Delete, ..change(&row, Vec::new()) };
                    table.execute(&gone).await.unwrap();
                }
                1 => {
                    let word = WORDS[dice.below(4)];
                    let changes = vec![set("desired_state", word), set("updated_at", &version(minute))];
                    table.execute(&change(&row, changes)).await.unwrap();
                }
                2 => {
                    let word = Change::Remove(Path::of(["desired_state"]));
                    table.execute(&change(&row, vec![word, set("updated_at", &version(minute))])).await.unwrap();
                }
                _ => {
                    table.execute(&change(&row, vec![set("updated_at", &version(minute))])).await.unwrap();
                }
            }
            if step % 8 == 7 {
                agrees(&backend, &version(minute)).await;
            }
        }
        println!("{name}: {} entries at the end", agrees(&backend, "0").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_of_the_index_that_fails_for_one_state_fails_as_a_whole() {
    let servers = Servers::start().await.unwrap();
    let impatient = Times { call: Duration::from_secs(10), total: Duration::from_millis(500) };
    let proxy = RewritingProxy::start(servers.ministack.upstream()).await.unwrap();
    let table = connect(&proxy.url(), "failing", impatient).await.unwrap();
    table.create_tables().await.unwrap();
    table.create(Part::ChangeIndex).await.unwrap();
    let of_stopped = |request: &RequestFacts| {
        let body = request.json().unwrap_or(Json::Null);
        request.is_operation("Query") && body.to_string().contains("stopped")
    };
    type Failing = fn() -> Decision;
    let failures: [(Failing, ErrorCategory); 3] = [
        (|| Decision::AnswerInstead(Answer::dynamodb_throttled()), ErrorCategory::Throttled),
        (|| Decision::DropBefore, ErrorCategory::Unavailable),
        (
            || Decision::AnswerInstead(Answer::dynamodb_error("AccessDeniedException", "no dynamodb:Query")),
            ErrorCategory::Forbidden,
        ),
    ];
    for (failing, category) in failures {
        proxy.set_hook(move |request| if of_stopped(request) { failing() } else { Decision::Forward });
        assert_eq!(table.changed_since("0").await.unwrap_err().category, category);
    }
    proxy.pass_everything();
    proxy.once(of_stopped, Decision::AnswerInstead(Answer::dynamodb_throttled()));
    assert_eq!(table.changed_since("0").await.unwrap().entries, []);
}
