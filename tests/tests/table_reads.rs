//! Full reads, start-up checks and errors by category, on real table servers and behind the rewriting proxy.
#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::collections::BTreeSet;
use std::time::Duration;

use gco_bed::rewriting_proxy::{Answer, Decision, RequestFacts, RewritingProxy};
use gco_bed::table_server::TableServer;
use gco_store::table::{Consistency, ErrorCategory, FullRead, Outcome, Table, TableError};
use gco_store::transition::{Change, Condition, Operation, Path, Transition, Write};
use gco_store::wire::{Item, Value};
use gco_tests::tables::backends::{Servers, Times, connect};
use gco_tests::tables::generator::put_if_absent;
use gco_tests::tables::raw::RawClient;
use gco_tests::tables::scenarios::{Kind, Scenarios};
use serde_json::{Value as Json, json};

/// Rows of 30 KB: more than one page of 1 MB together.
const ROWS: usize = 60;
const ROW_BYTES: usize = 30 * 1024;

const IMPATIENT: Times = Times { call: Duration::from_secs(10), total: Duration::from_millis(1500) };

async fn fill(table: &dyn Table) {
    for number in 0..ROWS {
        let name = format!("endpoint-{number}");
        let item = Item::from([
            ("endpoint_name".to_owned(), Value::from(name.as_str())),
            ("filler".to_owned(), Value::from("x".repeat(ROW_BYTES).as_str())),
        ]);
        let outcome = table.execute(&put_if_absent(&name, item)).await.unwrap();
        assert!(matches!(outcome, Outcome::Applied(_)), "{outcome:?}");
    }
}

fn assert_complete(backend: &str, read: &FullRead) {
    let names: BTreeSet<_> =
        read.items.iter().filter_map(|item| item.get("endpoint_name")).filter_map(Value::as_str).collect();
    assert_eq!((read.items.len(), names.len()), (ROWS, ROWS), "{backend}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_several_pages_is_read_completely() {
    let servers = Servers::start().await.unwrap();
    for backend in servers.fresh_tables("pages").await.unwrap() {
        fill(&*backend.table).await;
        for consistency in [Consistency::Strong, Consistency::Eventual] {
            let read = backend.table.read_all(consistency).await.unwrap();
            assert_complete(backend.name, &read);
            let pages_expected = if backend.name == "embedded" { 1..=1 } else { 2..=3 };
            assert!(pages_expected.contains(&read.pages), "{}: {} pages", backend.name, read.pages);
            let FullRead { pages, consumed_read_units, .. } = read;
            println!("{}: {ROWS} rows in {pages} pages, {consistency:?}, units {consumed_read_units:?}", backend.name);
        }
    }
}

fn is_second_page(request: &RequestFacts) -> bool {
    request.is_operation("Scan") && request.json().is_some_and(|body| body.get("ExclusiveStartKey").is_some())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_fails_between_pages_fails_as_a_whole_and_one_that_recovers_is_complete() {
    let servers = Servers::start().await.unwrap();
    for (name, server) in servers.both() {
        let direct = connect(&server.url(), "torn", Times::PATIENT).await.unwrap();
        direct.create_tables().await.unwrap();
        fill(&direct).await;
        let proxy = RewritingProxy::start(server.upstream()).await.unwrap();
        let table = connect(&proxy.url(), "torn", IMPATIENT).await.unwrap();

        proxy.once(is_second_page, Decision::AnswerInstead(Answer::dynamodb_internal_error()));
        proxy.once(is_second_page, Decision::DropBefore);
        assert_complete(name, &table.read_all(Consistency::Strong).await.unwrap());

        type Failing = fn() -> Decision;
        let failures: [(Failing, ErrorCategory); 4] = [
            (|| Decision::AnswerInstead(Answer::dynamodb_internal_error()), ErrorCategory::Unavailable),
            (|| Decision::DropBefore, ErrorCategory::Unavailable),
            (|| Decision::AnswerInstead(Answer::dynamodb_throttled()), ErrorCategory::Throttled),
            (
                || Decision::AnswerInstead(Answer::dynamodb_error("AccessDeniedException", "no dynamodb:Scan")),
                ErrorCategory::Forbidden,
            ),
        ];
        for (failing, category) in failures {
            proxy.set_hook(move |request| if is_second_page(request) { failing() } else { Decision::Forward });
            let error = table.read_all(Consistency::Strong).await.unwrap_err();
            assert_eq!(error.category, category, "{name}: {error}");
        }
    }
}

/// The answer of DescribeTable with these attributes added.
fn described_with(more: Json) -> Decision {
    Decision::rewrite(move |mut answer| {
        let mut body: Json = serde_json::from_slice(&answer.body).unwrap();
        body["Table"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        answer.body = body.to_string().into();
        answer
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eventually_consistent_global_table_is_refused_at_start_up() {
    let servers = Servers::start().await.unwrap();
    for (name, server) in servers.both() {
        let proxy = RewritingProxy::start(server.upstream()).await.unwrap();
        let table = connect(&proxy.url(), "global", IMPATIENT).await.unwrap();
        table.create_tables().await.unwrap();
        assert_eq!(table.check().await.unwrap().replicas, Vec::<String>::new(), "{name}");
        let describe = |request: &RequestFacts| request.is_operation("DescribeTable");
        let replicas = json!([{"RegionName": "eu-west-1", "ReplicaStatus": "ACTIVE"}]);
        for more in [
            json!({"Replicas": replicas}),
            json!({"Replicas": replicas, "MultiRegionConsistency": "EVENTUAL"}),
            json!({"Replicas": replicas, "MultiRegionConsistency": "SOMETHING_NEW"}),
        ] {
            proxy.once(describe, described_with(more.clone()));
            let error = table.check().await.unwrap_err();
            assert_eq!(error.category, ErrorCategory::Table, "{name}: {more}: {error}");
            assert!(error.message.contains("eu-west-1"), "{name}: {error}");
        }
        proxy.once(describe, described_with(json!({"Replicas": replicas, "MultiRegionConsistency": "STRONG"})));
        let description = table.check().await.unwrap();
        assert_eq!(description.replicas, ["eu-west-1"], "{name}");
        assert_eq!(description.multi_region_consistency.as_deref(), Some("STRONG"), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_given_a_replica_is_refused_and_one_with_another_key_too() {
    let servers = Servers::start().await.unwrap();
    let server = &servers.ministack;
    let table = connect(&server.url(), "replicated", IMPATIENT).await.unwrap();
    table.create_tables().await.unwrap();
    table.check().await.unwrap();
    let raw = RawClient::new(server.url());
    let replica = json!({"TableName": "replicated", "ReplicaUpdates": [{"Create": {"RegionName": "eu-west-1"}}]});
    assert!(raw.call("UpdateTable", &replica).await.unwrap().succeeded());
    let error = table.check().await.unwrap_err();
    assert_eq!(error.category, ErrorCategory::Table, "{error}");

    for (_, server) in servers.both() {
        let other = json!({
            "TableName": "keyed-otherwise",
            "AttributeDefinitions": [{"AttributeName": "name", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "name", "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
        });
        assert!(RawClient::new(server.url()).call("CreateTable", &other).await.unwrap().succeeded());
        let table = connect(&server.url(), "keyed-otherwise", IMPATIENT).await.unwrap();
        let error = table.check().await.unwrap_err();
        assert_eq!(error.category, ErrorCategory::Table, "{error}");
        assert!(error.message.contains("endpoint_name"), "{error}");
    }
}

/// Each call of the table, once.
async fn every_call(table: &dyn Table, transition: &Transition) -> Vec<(&'static str, TableError)> {
    vec![
        ("get", table.get("chat", Consistency::Strong).await.unwrap_err()),
        ("read_all", table.read_all(Consistency::Eventual).await.unwrap_err()),
        ("execute", table.execute(transition).await.unwrap_err()),
        ("check", table.check().await.unwrap_err()),
        ("read_region", table.read_region("us-east-1").await.unwrap_err()),
        ("read_regions", table.read_regions().await.unwrap_err()),
        ("set_frozen", table.set_frozen("us-east-1", true).await.unwrap_err()),
    ]
}

fn transitions() -> Vec<Transition> {
    let mut scenarios = Scenarios::new("chat", 1);
    let mut transitions = scenarios.history(Kind::Promote).unwrap();
    let row = match &transitions[0].write {
        Write::Put(row) => row.clone(),
        other => panic!("{other:?}"),
    };
    transitions.push(scenarios.transition(Kind::Scale, Some(&row)).unwrap());
    transitions
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_does_not_exist_is_named_as_such_by_every_call() {
    let servers = Servers::start().await.unwrap();
    for (name, server) in servers.both() {
        let table = connect(&server.url(), "never-made", IMPATIENT).await.unwrap();
        for transition in transitions() {
            for (call, error) in every_call(&table, &transition).await {
                assert_eq!(error.category, ErrorCategory::Table, "{name}, {call}: {error}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_a_policy_denies_is_named_as_such_and_not_sent_again() {
    let servers = Servers::start().await.unwrap();
    for (name, server) in servers.both() {
        let proxy = RewritingProxy::start(server.upstream()).await.unwrap();
        let table = connect(&proxy.url(), "denied", IMPATIENT).await.unwrap();
        let words = "User: arn:aws:sts::123456789012:assumed-role/monitor is not authorized to perform this action";
        proxy.set_hook(move |_| Decision::AnswerInstead(Answer::dynamodb_error("AccessDeniedException", words)));
        let mark = proxy.mark();
        let errors = every_call(&table, &transitions()[0]).await;
        let (calls, requests) = (errors.len(), proxy.exchanges_since(mark).len());
        for (call, error) in errors {
            assert_eq!(error.category, ErrorCategory::Forbidden, "{name}, {call}: {error}");
            assert!(error.message.contains("not authorized"), "{name}, {call}: {error}");
        }
        assert_eq!(requests, calls, "{name}: a denied call was sent again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_grows_over_400_kb_is_refused_clearly_and_nothing_changes() {
    let servers = Servers::start().await.unwrap();
    let filler = |kilobytes: usize| Value::from("x".repeat(kilobytes * 1024).as_str());
    let key = Path::of(["endpoint_name"]);
    let whole = |kilobytes: usize| {
        Item::from([("endpoint_name".to_owned(), Value::from("large")), ("filler".to_owned(), filler(kilobytes))])
    };
    for backend in servers.fresh_tables("large").await.unwrap() {
        let error = backend.table.execute(&put_if_absent("large", whole(401))).await.unwrap_err();
        assert_eq!(error.category, ErrorCategory::Invalid, "{}: {error}", backend.name);
        assert!(error.message.contains("40"), "{}: {error}", backend.name);
        assert_eq!(backend.table.get("large", Consistency::Strong).await.unwrap(), None, "{}", backend.name);

        let made = backend.table.execute(&put_if_absent("large", whole(250))).await.unwrap();
        assert!(matches!(made, Outcome::Applied(_)), "{}: {made:?}", backend.name);
        let growing = Transition {
            operation: Operation::UpdateSpec,
            name: "large".to_owned(),
            condition: Condition::Exists(key.clone()),
            write: Write::Update(vec![Change::Set(Path::of(["more"]), filler(200))]),
            base_updated_at: None,
            new_updated_at: None,
        };
        let error = backend.table.execute(&growing).await.unwrap_err();
        assert_eq!(error.category, ErrorCategory::Invalid, "{}: {error}", backend.name);
        assert!(
            error.message.to_lowercase().contains("size") || error.message.contains("bytes"),
            "{}: {error}",
            backend.name
        );
        println!("{}: {error}", backend.name);
        assert_eq!(
            backend.table.get("large", Consistency::Strong).await.unwrap(),
            Some(whole(250)),
            "{}",
            backend.name
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_the_row_has_no_place_for_is_refused_as_invalid_and_nothing_changes() {
    let servers = Servers::start().await.unwrap();
    let exists = || Condition::Exists(Path::of(["endpoint_name"]));
    let row = Item::from([
        ("endpoint_name".to_owned(), Value::from("chat")),
        ("text".to_owned(), Value::from("no map")),
        ("updated_at".to_owned(), Value::from("1")),
    ]);
    let below_nothing = Change::Set(Path::of(["region_status", "us-east-1"]), Value::Bool(true));
    let below_a_text = Change::Set(Path::of(["text", "key"]), Value::Bool(true));
    let copy_of_nothing =
        Change::CopyIfAbsent { to: Path::of(["deletion_regions"]), from: Path::of(["cleanup_regions"]) };
    let update = |condition: Condition, change: &Change| Transition {
        operation: Operation::WriteRegionStatus,
        name: "chat".to_owned(),
        condition,
        write: Write::Update(vec![Change::Set(Path::of(["updated_at"]), Value::from("2")), change.clone()]),
        base_updated_at: Some("1".to_owned()),
        new_updated_at: Some("2".to_owned()),
    };
    // A known gap of moto's (`ParentThatIsNoMapRefused`): it leaves such a change out and makes the others.
    let backends = servers.fresh_tables("places").await.unwrap();
    for backend in backends.into_iter().filter(|backend| backend.name != "moto") {
        let (name, table) = (backend.name, &backend.table);
        table.execute(&put_if_absent("chat", row.clone())).await.unwrap();
        for change in [&below_nothing, &below_a_text, &copy_of_nothing] {
            let error = table.execute(&update(exists(), change)).await.unwrap_err();
            assert_eq!(error.category, ErrorCategory::Invalid, "{name}, {change:?}: {error}");
            // The condition comes first: a writer that lost learns that, not that its change was impossible.
            let lost = table.execute(&update(Condition::Not(Box::new(exists())), change)).await.unwrap();
            assert_eq!(lost, Outcome::Refused(Some(row.clone())), "{name}, {change:?}");
            assert_eq!(table.get("chat", Consistency::Strong).await.unwrap().as_ref(), Some(&row), "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_gone_is_unavailable_for_reads_and_writes_alike() {
    let server = TableServer::start(gco_bed::table_server::Kind::Dynalite).await.unwrap();
    let table = connect(&server.url(), "gone", IMPATIENT).await.unwrap();
    table.create_tables().await.unwrap();
    server.stop().await;
    let transition = &transitions()[0];
    for (call, error) in every_call(&table, transition).await {
        assert_eq!(error.category, ErrorCategory::Unavailable, "{call}: {error}");
    }
}
