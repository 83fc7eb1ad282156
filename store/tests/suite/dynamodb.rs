//! The DynamoDB backend against a server of a few lines that answers by script: lost answers, throttling and servers that
//! tell less than AWS cannot be had from a real one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{item, now, request, row, tokens};
use gco_store::dynamodb::{DynamoDbSettings, DynamoDbTable};
use gco_store::row::EndpointRow;
use gco_store::status::{RegionEntry, State};
use gco_store::table::{
    CallOutcome, Consistency, ErrorCategory, ObservedCall, Observer, Outcome, RegionHeartbeat, RegionItem, Table,
};
use gco_store::transition::{self, StatusAuthority, Transition, Write};
use gco_store::wire::{Item, Value, item_to_dynamodb_json};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// What the server does with one request.
enum Step {
    /// Answers with a status and a body.
    Answer(u16, Json),
    /// Reads the request and closes the connection.
    HangUp,
    /// Reads the request and never answers.
    Silence,
}

/// The requests that a server got: operation and body.
type Requests = Arc<Mutex<Vec<(String, Json)>>>;

#[derive(Debug, Default)]
struct Calls(Mutex<Vec<ObservedCall>>);

impl Observer for Calls {
    fn observe(&self, call: &ObservedCall) {
        self.0.lock().expect("unpoisoned").push(call.clone());
    }
}

/// A client of a server that follows a script; every request past its end is hung up on.
struct Bench {
    table: DynamoDbTable,
    requests: Requests,
    calls: Arc<Calls>,
}

impl Bench {
    async fn of(script: Vec<Step>) -> Self {
        Self::with(script, |_| {}).await
    }

    async fn with(script: Vec<Step>, adjust: impl FnOnce(&mut DynamoDbSettings)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let requests = Requests::default();
        tokio::spawn(serve(listener, script, requests.clone()));
        let calls = Arc::new(Calls::default());
        let began = tokio::time::Instant::now();
        let mut settings = DynamoDbSettings::new("endpoints", "us-east-2", Arc::new(move || began.elapsed()));
        settings.endpoint_url = Some(format!("http://{address}"));
        settings.observer = Some(calls.clone());
        adjust(&mut settings);
        Self { table: DynamoDbTable::connect(settings).await.expect("settings"), requests, calls }
    }

    /// The operations that the server saw, in order.
    fn seen(&self) -> Vec<String> {
        self.requests.lock().expect("unpoisoned").iter().map(|(operation, _)| operation.clone()).collect()
    }

    fn body(&self, index: usize) -> Json {
        self.requests.lock().expect("unpoisoned")[index].1.clone()
    }

    fn outcomes(&self) -> Vec<CallOutcome> {
        self.calls.0.lock().expect("unpoisoned").iter().map(|call| call.outcome).collect()
    }
}

/// One request per connection, so that a connection that was hung up on hits no other request.
async fn serve(listener: TcpListener, script: Vec<Step>, requests: Requests) {
    let mut script = script.into_iter();
    let mut silent = Vec::new();
    while let Ok((mut connection, _)) = listener.accept().await {
        let mut bytes = Vec::new();
        let body_start = loop {
            if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            if connection.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                break 0;
            }
        };
        let head = String::from_utf8_lossy(&bytes[..body_start]).to_ascii_lowercase();
        let header = |name: &str| {
            head.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).unwrap_or_default().trim().to_owned()
        };
        let length: usize = header("content-length").parse().unwrap_or(0);
        while bytes.len() < body_start + length && connection.read_buf(&mut bytes).await.unwrap_or(0) > 0 {}
        let operation = header("x-amz-target").rsplit('.').next().unwrap_or_default().to_owned();
        let body = serde_json::from_slice(&bytes[body_start..]).unwrap_or(Json::Null);
        requests.lock().expect("unpoisoned").push((operation, body));
        match script.next() {
            Some(Step::Answer(status, body)) => {
                let body = body.to_string();
                let answer = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {}\r\nconnection: \
                     close\r\n\r\n{body}",
                    body.len()
                );
                connection.write_all(answer.as_bytes()).await.expect("answered");
            }
            Some(Step::Silence) => silent.push(connection),
            Some(Step::HangUp) | None => drop(connection),
        }
    }
}

fn ok(body: Json) -> Step {
    Step::Answer(200, body)
}

fn error(code: &str) -> Step {
    Step::Answer(400, json!({"__type": format!("com.amazonaws.dynamodb.v20120810#{code}"), "message": "because"}))
}

fn found(item: &Item) -> Step {
    ok(
        json!({"Item": item_to_dynamodb_json(item), "ConsumedCapacity": {"TableName": "endpoints", "CapacityUnits": 0.5}}),
    )
}

fn absent() -> Step {
    ok(json!({}))
}

fn updated(item: &Item) -> Step {
    ok(
        json!({"Attributes": item_to_dynamodb_json(item), "ConsumedCapacity": {"TableName": "endpoints", "CapacityUnits": 2.0}}),
    )
}

fn condition_failed(item: Option<&Item>) -> Step {
    let mut body =
        json!({"__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException", "message": "no"});
    if let Some(item) = item {
        body["Item"] = item_to_dynamodb_json(item);
    }
    Step::Answer(400, body)
}

/// An edit, the row before it and the row after it.
fn edit() -> (Transition, Item, Item) {
    let row = row("classic-minimal");
    let transition = transition::scale(&row, 3, now()).expect("possible");
    let after = transition.write.apply(Some(row.item.clone())).expect("valid").expect("a row");
    (transition, row.item, after)
}

/// The row as somebody else left it meanwhile.
fn by_somebody_else(item: &Item) -> Item {
    let mut item = item.clone();
    item.insert("updated_at".to_owned(), Value::from("2027-02-02T00:00:00+00:00"));
    item
}

#[tokio::test]
async fn an_update_asks_for_everything_in_one_request() {
    let (transition, _, after) = edit();
    let bench = Bench::of(vec![updated(&after)]).await;
    assert_eq!(bench.table.execute(&transition).await, Ok(Outcome::Applied(Some(after))));
    assert_eq!(bench.seen(), ["updateitem"]);
    let body = bench.body(0);
    assert_eq!(body["TableName"], "endpoints");
    assert_eq!(body["Key"], json!({"endpoint_name": {"S": "chat-small"}}));
    assert_eq!(body["ReturnValues"], "ALL_NEW");
    assert_eq!(body["ReturnValuesOnConditionCheckFailure"], "ALL_OLD");
    assert_eq!(body["ReturnConsumedCapacity"], "TOTAL");
    assert!(body["UpdateExpression"].as_str().expect("a text").starts_with("SET #n"), "{body}");
    let calls = bench.calls.0.lock().expect("unpoisoned");
    assert_eq!(
        (calls[0].operation, calls[0].outcome, calls[0].consumed_units),
        ("UpdateItem", CallOutcome::Success, Some(2.0))
    );
}

#[tokio::test]
async fn a_refusal_carries_the_row_that_was_sent_along() {
    let (transition, before, _) = edit();
    let other = by_somebody_else(&before);
    let bench = Bench::of(vec![condition_failed(Some(&other))]).await;
    assert_eq!(bench.table.execute(&transition).await, Ok(Outcome::Refused(Some(other))));
    assert_eq!(bench.seen(), ["updateitem"]);
    assert_eq!(bench.outcomes(), [CallOutcome::Refused]);
}

#[tokio::test]
async fn a_refusal_by_a_server_that_sends_no_row_is_completed_by_a_strong_read() {
    let (transition, before, _) = edit();
    let other = by_somebody_else(&before);
    let bench = Bench::of(vec![condition_failed(None), found(&other)]).await;
    assert_eq!(bench.table.execute(&transition).await, Ok(Outcome::Refused(Some(other))));
    assert_eq!(bench.seen(), ["updateitem", "getitem"]);
    assert_eq!(bench.body(1)["ConsistentRead"], true);
    let bench = Bench::of(vec![condition_failed(None), absent()]).await;
    assert_eq!(bench.table.execute(&transition).await, Ok(Outcome::Refused(None)));
}

#[tokio::test]
async fn a_lost_answer_of_a_write_that_was_done_is_found_out_and_nothing_is_sent_again() {
    let (transition, _, after) = edit();
    for lost in
        [Step::HangUp, Step::Answer(500, json!({"__type": "InternalServerError"})), Step::Answer(503, json!({}))]
    {
        let bench = Bench::of(vec![lost, found(&after)]).await;
        assert_eq!(bench.table.execute(&transition).await, Ok(Outcome::Applied(Some(after.clone()))));
        assert_eq!(bench.seen(), ["updateitem", "getitem"]);
    }
}

#[tokio::test]
async fn a_lost_write_is_sent_again_under_the_version_that_was_read() {
    let (transition, before, after) = edit();
    let bench = Bench::of(vec![Step::HangUp, found(&before), updated(&after)]).await;
    assert_eq!(bench.table.execute(&transition).await, Ok(Outcome::Applied(Some(after))));
    assert_eq!(bench.seen(), ["updateitem", "getitem", "updateitem"]);
    let (first, second) = (bench.body(0), bench.body(2));
    assert_eq!(first["UpdateExpression"].as_str().map(str::len), second["UpdateExpression"].as_str().map(str::len));
    let condition = |body: &Json| body["ConditionExpression"].as_str().expect("a condition").to_owned();
    assert_eq!(
        condition(&second).strip_prefix(&format!("({})", condition(&first))).map(|rest| &rest[..7]),
        Some(" AND #n")
    );
    assert_eq!(
        first["ExpressionAttributeValues"], second["ExpressionAttributeValues"],
        "the version was in it already"
    );
}

#[tokio::test]
async fn a_time_out_after_sending_counts_as_a_lost_answer() {
    let (transition, before, after) = edit();
    let script = vec![Step::Silence, found(&before), Step::Silence, found(&after)];
    let bench = Bench::with(script, |settings| settings.call_time_out = Duration::from_millis(300)).await;
    assert_eq!(bench.table.execute(&transition).await, Ok(Outcome::Applied(Some(after))));
    assert_eq!(bench.seen(), ["updateitem", "getitem", "updateitem", "getitem"]);
}

#[tokio::test]
async fn a_lost_answer_and_a_row_changed_by_somebody_else_is_unknown_and_nothing_is_sent_again() {
    let (transition, before, after) = edit();
    let mut same_version = before.clone();
    same_version.insert("updated_at".to_owned(), after["updated_at"].clone());
    for seen in [found(&by_somebody_else(&after)), found(&same_version), absent()] {
        let bench = Bench::of(vec![Step::HangUp, seen]).await;
        let failure = bench.table.execute(&transition).await.expect_err("unknown");
        assert_eq!(failure.category, ErrorCategory::Unknown);
        assert_eq!(bench.seen(), ["updateitem", "getitem"]);
    }
}

#[tokio::test]
async fn a_refusal_of_the_second_sending_is_judged_by_the_row() {
    let (transition, before, after) = edit();
    // The first request arrived late, after the look.
    let bench = Bench::of(vec![Step::HangUp, found(&before), condition_failed(Some(&after))]).await;
    assert_eq!(bench.table.execute(&transition).await, Ok(Outcome::Applied(Some(after.clone()))));
    // The operation's own condition does not hold, and never did.
    let bench = Bench::of(vec![Step::HangUp, found(&before), condition_failed(Some(&before))]).await;
    assert_eq!(bench.table.execute(&transition).await, Ok(Outcome::Refused(Some(before.clone()))));
    // Somebody else wrote: perhaps over our own change.
    let other = by_somebody_else(&after);
    let bench = Bench::of(vec![Step::HangUp, found(&before), condition_failed(Some(&other))]).await;
    assert_eq!(bench.table.execute(&transition).await.expect_err("unknown").category, ErrorCategory::Unknown);
}

#[tokio::test]
async fn a_lost_create_is_told_by_its_lifecycle() {
    let create = transition::create(&request("chat"), now(), &mut tokens()).expect("valid");
    let Write::Put(ours) = create.write.clone() else { panic!("not a put") };
    let mut theirs = ours.clone();
    theirs.insert("lifecycle_id".to_owned(), Value::from("theirs"));
    let bench = Bench::of(vec![Step::HangUp, found(&ours)]).await;
    assert_eq!(bench.table.execute(&create).await, Ok(Outcome::Applied(Some(ours.clone()))));
    let bench = Bench::of(vec![Step::HangUp, found(&theirs)]).await;
    assert_eq!(bench.table.execute(&create).await, Ok(Outcome::Refused(Some(theirs))));
    let bench = Bench::of(vec![Step::HangUp, absent(), ok(json!({}))]).await;
    assert_eq!(bench.table.execute(&create).await, Ok(Outcome::Applied(Some(ours.clone()))));
    assert_eq!(bench.seen(), ["putitem", "getitem", "putitem"]);
    let bench = Bench::of(vec![Step::HangUp, absent(), condition_failed(Some(&ours))]).await;
    assert_eq!(bench.table.execute(&create).await, Ok(Outcome::Applied(Some(ours))));
}

#[tokio::test]
async fn a_lost_purge_is_done_when_the_row_is_gone() {
    let row = row("deleting-half-acknowledged");
    let status = row.item["region_status"].at(&["eu-west-1"]).expect("a status").clone();
    let mut whole = row.item;
    whole.insert(
        "region_status".to_owned(),
        Value::Map([("eu-west-1".to_owned(), status.clone()), ("us-east-1".to_owned(), status)].into()),
    );
    let purge = transition::purge(&EndpointRow::parse(whole.clone()).expect("readable")).expect("the quorum stands");
    let bench = Bench::of(vec![Step::HangUp, absent()]).await;
    assert_eq!(bench.table.execute(&purge).await, Ok(Outcome::Applied(None)));
    let bench = Bench::of(vec![Step::HangUp, found(&whole), ok(json!({}))]).await;
    assert_eq!(bench.table.execute(&purge).await, Ok(Outcome::Applied(None)));
    assert_eq!(bench.seen(), ["deleteitem", "getitem", "deleteitem"]);
    let bench = Bench::of(vec![Step::HangUp, found(&by_somebody_else(&whole))]).await;
    assert_eq!(bench.table.execute(&purge).await.expect_err("unknown").category, ErrorCategory::Unknown);
}

#[tokio::test]
async fn a_lost_status_write_is_told_by_its_entry() {
    let row = row("classic-hpa");
    let authority = StatusAuthority::Live {
        lifecycle_id: row.lifecycle_id.clone().expect("a lifecycle"),
        region_generation: row.region_generation("us-east-1").expect("a generation").to_owned(),
    };
    let entry = RegionEntry::new(State::Running);
    let write = transition::write_region_status(&row, "us-east-1", &entry, &authority, now()).expect("possible");
    let after = write.write.apply(Some(row.item.clone())).expect("valid").expect("a row");
    let bench = Bench::of(vec![Step::HangUp, found(&after)]).await;
    assert_eq!(bench.table.execute(&write).await, Ok(Outcome::Applied(Some(after))));
    let names = bench.body(0)["ExpressionAttributeNames"].clone();
    assert!(names.as_object().expect("names").values().any(|name| name == "us-east-1"), "{names}");
}

#[tokio::test]
async fn throttled_requests_are_sent_again_after_a_wait() {
    let (transition, before, after) = edit();
    let script = vec![
        error("ProvisionedThroughputExceededException"),
        error("ReplicatedWriteConflictException"),
        updated(&after),
        error("ThrottlingException"),
        found(&before),
    ];
    let bench = Bench::of(script).await;
    assert_eq!(bench.table.execute(&transition).await, Ok(Outcome::Applied(Some(after))));
    assert_eq!(bench.table.get("chat-small", Consistency::Eventual).await, Ok(Some(before)));
    assert_eq!(bench.seen(), ["updateitem", "updateitem", "updateitem", "getitem", "getitem"]);
    assert_eq!(bench.body(4)["ConsistentRead"], false);
    let throttled = CallOutcome::Failed(ErrorCategory::Throttled);
    assert_eq!(bench.outcomes()[..3], [throttled, throttled, CallOutcome::Success]);
}

#[tokio::test]
async fn trying_ends_with_the_total_time() {
    let (transition, before, _) = edit();
    let brief = |settings: &mut DynamoDbSettings| settings.total_time = Duration::ZERO;
    let bench = Bench::with(vec![error("ThrottlingException")], brief).await;
    assert_eq!(bench.table.execute(&transition).await.expect_err("throttled").category, ErrorCategory::Throttled);
    // Seen without its effect, but a request may still be on its way.
    let bench = Bench::with(vec![Step::HangUp, found(&before)], brief).await;
    assert_eq!(bench.table.execute(&transition).await.expect_err("unknown").category, ErrorCategory::Unknown);
    // Not even that could be found out.
    let bench = Bench::with(vec![Step::HangUp, Step::HangUp], brief).await;
    assert_eq!(bench.table.execute(&transition).await.expect_err("unknown").category, ErrorCategory::Unknown);
    let bench = Bench::with(vec![Step::HangUp], brief).await;
    let failure = bench.table.get("chat-small", Consistency::Strong).await.expect_err("away");
    assert_eq!(failure.category, ErrorCategory::Unavailable);
}

#[tokio::test]
async fn failures_that_no_repetition_cures_are_told_at_once() {
    let (transition, _, _) = edit();
    for (code, category) in [
        ("AccessDeniedException", ErrorCategory::Forbidden),
        ("UnrecognizedClientException", ErrorCategory::Forbidden),
        ("ResourceNotFoundException", ErrorCategory::Table),
        ("ValidationException", ErrorCategory::Invalid),
    ] {
        let bench = Bench::of(vec![error(code)]).await;
        let failure = bench.table.execute(&transition).await.expect_err(code);
        assert_eq!((failure.category, failure.operation), (category, "UpdateItem"));
        assert!(failure.message.contains(code) && failure.message.contains("because"), "{failure}");
        assert_eq!(bench.seen().len(), 1);
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_did_not_do_a_write() {
    let (transition, _, _) = edit();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let away = |settings: &mut DynamoDbSettings| {
        settings.endpoint_url = Some(format!("http://{address}"));
        settings.total_time = Duration::from_millis(200);
    };
    let bench = Bench::with(Vec::new(), away).await;
    let failure = bench.table.execute(&transition).await.expect_err("away");
    assert_eq!(failure.category, ErrorCategory::Unavailable, "{failure}");
}

#[tokio::test]
async fn a_full_read_follows_every_page_and_adds_up_its_cost() {
    let (one, other) = (item("classic-minimal"), item("classic-hpa"));
    let key = json!({"endpoint_name": {"S": "chat-small"}});
    let cost = json!({"TableName": "endpoints", "CapacityUnits": 128.0});
    let bench = Bench::of(vec![
        ok(json!({"Items": [item_to_dynamodb_json(&one)], "LastEvaluatedKey": key, "ConsumedCapacity": cost})),
        error("ThrottlingException"),
        ok(json!({"Items": [item_to_dynamodb_json(&other)], "ConsumedCapacity": cost})),
    ])
    .await;
    let read = bench.table.read_all(Consistency::Strong).await.expect("read");
    assert_eq!(read.items, [one, other]);
    assert_eq!((read.pages, read.consumed_read_units), (2, Some(256.0)));
    assert_eq!(bench.body(0)["ExclusiveStartKey"], Json::Null);
    assert_eq!(bench.body(2)["ExclusiveStartKey"], key);
    assert_eq!(bench.body(2)["ConsistentRead"], true);
}

#[tokio::test]
async fn a_full_read_fails_rather_than_returning_a_part() {
    let page = || ok(json!({"Items": [], "LastEvaluatedKey": {"endpoint_name": {"S": "chat-small"}}}));
    let bench = Bench::of(vec![page(), error("AccessDeniedException")]).await;
    let failure = bench.table.read_all(Consistency::Eventual).await.expect_err("a part");
    assert_eq!(failure.category, ErrorCategory::Forbidden);
    let bench = Bench::of(vec![page(), page()]).await;
    let failure = bench.table.read_all(Consistency::Eventual).await.expect_err("in a circle");
    assert_eq!(failure.category, ErrorCategory::Unavailable);
}

#[tokio::test]
async fn the_second_table_is_read_whole_too() {
    let item = |region: &str| json!({"region": {"S": region}, "freeze": {"BOOL": true}});
    let key = json!({"region": {"S": "eu-west-1"}});
    let bench = Bench::of(vec![
        ok(json!({"Items": [item("eu-west-1")], "LastEvaluatedKey": key})),
        ok(json!({"Items": [item("us-east-1")]})),
        error("ResourceNotFoundException"),
    ])
    .await;
    let frozen = RegionItem { heartbeat: None, frozen: true, restarts_cleared_at: None };
    let all = [("eu-west-1".to_owned(), frozen.clone()), ("us-east-1".to_owned(), frozen)];
    assert_eq!(bench.table.read_regions().await, Ok(all.into()));
    assert_eq!(bench.body(1)["ExclusiveStartKey"], key);
    assert_eq!(
        (&bench.body(0)["TableName"], &bench.body(0)["ConsistentRead"]),
        (&json!("endpoints-regions"), &json!(true))
    );
    let absent = bench.table.read_regions().await.expect_err("a fleet of the original has none");
    assert_eq!(absent.category, ErrorCategory::Table);
}

/// An answer of DescribeTable.
fn description(changes: Json) -> Step {
    let mut table = json!({
        "TableName": "endpoints", "TableStatus": "ACTIVE",
        "KeySchema": [{"AttributeName": "endpoint_name", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "endpoint_name", "AttributeType": "S"}],
    });
    for (key, value) in changes.as_object().expect("an object") {
        table[key] = value.clone();
    }
    ok(json!({"Table": table}))
}

#[tokio::test]
async fn only_a_table_in_which_conditions_hold_is_used() {
    let replicas = json!([{"RegionName": "us-west-2"}, {"RegionName": "us-east-1"}]);
    let check = |changes: Json| async { Bench::of(vec![description(changes)]).await.table.check().await };
    assert_eq!(check(json!({})).await.expect("usable").replicas, [""; 0]);
    let strong = check(json!({"Replicas": replicas, "MultiRegionConsistency": "STRONG"})).await.expect("usable");
    assert_eq!((strong.replicas.len(), strong.multi_region_consistency.as_deref()), (2, Some("STRONG")));
    for changes in [json!({"Replicas": replicas}), json!({"Replicas": replicas, "MultiRegionConsistency": "EVENTUAL"})]
    {
        let failure = check(changes).await.expect_err("refused");
        assert_eq!(failure.category, ErrorCategory::Table);
        assert!(failure.message.contains("eventually consistent global table (us-west-2, us-east-1)"), "{failure}");
        assert!(failure.message.contains("strong multi-region consistency"), "{failure}");
    }
    for changes in [
        json!({"KeySchema": [{"AttributeName": "name", "KeyType": "HASH"}]}),
        json!({"KeySchema": [{"AttributeName": "endpoint_name", "KeyType": "HASH"}, {"AttributeName": "x", "KeyType": "RANGE"}]}),
        json!({"AttributeDefinitions": [{"AttributeName": "endpoint_name", "AttributeType": "N"}]}),
    ] {
        let failure = check(changes).await.expect_err("refused");
        assert!(failure.message.contains("must have the one key endpoint_name of type S"), "{failure}");
    }
    let missing = Bench::of(vec![error("ResourceNotFoundException")]).await;
    assert_eq!(missing.table.check().await.expect_err("absent").category, ErrorCategory::Table);
}

#[tokio::test]
async fn a_heartbeat_goes_to_the_second_table_and_leaves_the_freeze_switch_alone() {
    let heartbeat = RegionHeartbeat {
        region: "us-east-1".to_owned(),
        last_heartbeat: "2026-11-29T16:04:51+00:00".to_owned(),
        version: "0.1.0".to_owned(),
        leader: "monitor-a".to_owned(),
        last_complete_read_age_seconds: 3,
        orphans: None,
        admission_fence: "order effective, lease effective".to_owned(),
    };
    let mut stored = heartbeat.to_attributes();
    stored.insert("region".to_owned(), Value::from("us-east-1"));
    stored.insert("freeze".to_owned(), Value::Bool(true));
    let bench = Bench::of(vec![updated(&stored), found(&stored), updated(&stored)]).await;
    let written = bench.table.write_heartbeat(&heartbeat, Duration::from_secs(60)).await.expect("written");
    assert_eq!((written.frozen, written.heartbeat.as_ref()), (true, Some(&heartbeat)));
    let body = bench.body(0);
    assert_eq!(
        (&body["TableName"], &body["Key"]),
        (&json!("endpoints-regions"), &json!({"region": {"S": "us-east-1"}}))
    );
    assert!(!body.to_string().contains("freeze"), "{body}");
    assert_eq!(bench.table.read_region("us-east-1").await, Ok(Some(written)));
    bench.table.set_frozen("us-east-1", true).await.expect("written");
    let names = bench.body(2)["ExpressionAttributeNames"].clone();
    assert_eq!(names, json!({"#n0": "freeze"}));
    let late = Bench::of(vec![Step::Silence]).await;
    let failure = late.table.write_heartbeat(&heartbeat, Duration::from_millis(100)).await.expect_err("late");
    assert_eq!(failure.category, ErrorCategory::Unavailable);
}

#[tokio::test]
async fn a_row_that_is_too_large_is_not_sent() {
    let create = transition::create(&request("chat"), now(), &mut tokens()).expect("valid");
    let Write::Put(mut item) = create.write.clone() else { panic!("not a put") };
    item.insert("blob".to_owned(), Value::from("x".repeat(400 * 1024)));
    let bench = Bench::of(Vec::new()).await;
    let failure = bench.table.execute(&Transition { write: Write::Put(item), ..create }).await.expect_err("too large");
    assert_eq!(failure.category, ErrorCategory::Invalid);
    assert!(failure.message.contains("400 KB"), "{failure}");
    assert_eq!(bench.seen(), [""; 0]);
}

#[tokio::test]
async fn tables_are_created_once_and_waited_for() {
    let made = || ok(json!({"TableDescription": {"TableName": "endpoints", "TableStatus": "CREATING"}}));
    let bench = Bench::of(vec![
        made(),
        description(json!({"TableStatus": "CREATING"})),
        description(json!({})),
        error("ResourceInUseException"),
        description(json!({})),
    ])
    .await;
    bench.table.create_tables().await.expect("created");
    assert_eq!(bench.seen(), ["createtable", "describetable", "describetable", "createtable", "describetable"]);
    assert_eq!(bench.body(0)["BillingMode"], "PAY_PER_REQUEST");
    assert_eq!(bench.body(3)["TableName"], "endpoints-regions");
}

#[tokio::test]
async fn credentials_are_only_given_to_servers_on_this_machine() {
    let mut settings = DynamoDbSettings::new("endpoints", "us-east-2", Arc::new(|| Duration::ZERO));
    settings.local_credentials = Some(("id".to_owned(), "secret".to_owned()));
    for elsewhere in [None, Some("https://example.org".to_owned())] {
        settings.endpoint_url = elsewhere;
        let failure = DynamoDbTable::connect(settings.clone()).await.expect_err("refused");
        assert_eq!(failure.category, ErrorCategory::Invalid);
    }
}
