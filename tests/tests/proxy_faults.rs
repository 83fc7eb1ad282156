//! What a client sees, and what the proxy says of it, when an engine fails: one test for each row of the table of faults.
//! After each, the proxy holds what it held before, and every engine that was not killed on purpose lives and is idle.

#![expect(clippy::unwrap_used, reason = "a suite fails by panicking")]

use std::time::Duration;

use futures::future::join_all;
use gco_bed::wait::until;
use gco_local::engine::{CompletionOrder, CutEnd, CutPoint, Orders, QueryOrder, TransferOrder};
use gco_tests::proxy::{BOUND, EngineSpec, Reply, Split};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Deadlines that a test can wait for. The engines' own are the real ones: 480 and 540 seconds.
const SHORT: [(&str, &str); 4] = [
    ("GCO_PROXY_PREFILL_TIMEOUT_SECONDS", "1.5"),
    ("GCO_PROXY_HANDOFF_TIMEOUT_SECONDS", "1.5"),
    ("GCO_PROXY_IDLE_TIMEOUT_SECONDS", "1.5"),
    ("GCO_PROXY_BREAKER_OPEN_SECONDS", "0.2"),
];

fn prompt() -> Value {
    json!({"prompt": "déjà vu, said the cat", "max_tokens": 40})
}

fn streamed() -> Value {
    json!({"prompt": "déjà vu, said the cat", "max_tokens": 40, "stream": true})
}

fn completions(order: CompletionOrder) -> Orders {
    Orders { completions: Some(order), ..Orders::default() }
}

fn once(order: CompletionOrder) -> Orders {
    Orders { completions: Some(order), times: Some(1), ..Orders::default() }
}

async fn pair() -> Split {
    let mut split = Split::pair(&SHORT).await.unwrap();
    split.note_rest().await.unwrap();
    split
}

async fn nixl() -> Split {
    let settings = [&SHORT[..], &[("GCO_PROXY_CONNECTOR", "nixl")]].concat();
    let mut split =
        Split::start(vec![EngineSpec::nixl("p-0")], vec![EngineSpec::nixl("d-0")], &settings).await.unwrap();
    split.note_rest().await.unwrap();
    split
}

/// Asks whole and as a stream; both must be whole answers, served as `exchange` says.
async fn is_served(split: &Split, exchange: &str) {
    for body in [prompt(), streamed()] {
        let reply = split.complete(&body).await.unwrap();
        let said = reply.said().unwrap();
        assert!(said.contains("pod d-") && said.contains("you said \"déjà vu, said the cat\""), "{said}");
        assert_eq!(reply.exchange(), exchange, "{said}");
    }
}

/// The exchange works again, as soon as the breaker lets a request through.
async fn is_transferred_again(split: &Split) {
    until("an exchange to transfer KV again", BOUND, async || {
        let reply = split.complete(&prompt()).await.map_err(|problem| format!("{problem:#}"))?;
        reply.said().map_err(|problem| format!("{problem:#}"))?;
        if reply.exchange() == "transferred" { Ok(()) } else { Err(reply.exchange().to_owned()) }
    })
    .await
    .unwrap();
    is_served(split, "transferred").await;
}

#[tokio::test]
async fn without_a_fault_every_exchange_transfers_kv() {
    for mut split in [pair().await, nixl().await] {
        is_served(&split, "transferred").await;
        let received = split.decodes[0].accounts().await.unwrap().received.len();
        assert_eq!(received, 3, "the warm-up and two exchanges");
        let computed = split.decodes[0].metric("vllm:prompt_tokens_by_source_total", "local_compute").await.unwrap();
        assert!(computed < 0.5, "{computed} tokens were computed by decode");
        split.rests_as_before().await.unwrap();
    }
}

#[tokio::test]
async fn prefill_down_is_served_by_decode_alone_and_noticed_when_it_is_back() {
    for mut split in [pair().await, nixl().await] {
        split.prefills[0].kill().await.unwrap();
        for body in [prompt(), streamed()] {
            let reply = split.complete(&body).await.unwrap();
            reply.said().unwrap();
            // Once its connection failed, its engine id is asked for again, and nobody answers that either.
            let reason = reply.exchange().strip_prefix("decode-only; reason=").unwrap_or_default();
            let known = ["prefill-unreachable", "prefill-broken", "prefill-down", "engine-unknown"];
            assert!(known.contains(&reason), "{}", reply.exchange());
        }
        split.prefills[0].restart().await.unwrap();
        is_transferred_again(&split).await;
        split.rests_as_before().await.unwrap();
    }
}

#[tokio::test]
async fn one_of_two_prefills_down_costs_no_transfer() {
    let prefills = vec![EngineSpec::prefill("p-0"), EngineSpec::prefill("p-1")];
    let mut split = Split::start(prefills, vec![EngineSpec::decode("d-0")], &SHORT).await.unwrap();
    split.note_rest().await.unwrap();
    split.prefills[0].kill().await.unwrap();
    for _ in 0..10 {
        is_served(&split, "transferred").await;
    }
    split.prefills[0].restart().await.unwrap();
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn prefill_slow_is_given_up_at_its_deadline_and_decode_answers_alone() {
    for mut split in [pair().await, nixl().await] {
        split.prefills[0].order(&completions(CompletionOrder::Delay(60_000))).await.unwrap();
        is_served(&split, "decode-only; reason=prefill-timed-out").await;
        split.prefills[0].order(&Orders::default()).await.unwrap();
        is_transferred_again(&split).await;
        split.rests_as_before().await.unwrap();
    }
}

#[tokio::test]
async fn prefill_answers_500_and_decode_answers_alone_or_nobody_as_configured() {
    for mut split in [pair().await, nixl().await] {
        split.prefills[0].order(&completions(CompletionOrder::Status(500))).await.unwrap();
        let reply = split.complete(&streamed()).await.unwrap();
        reply.said().unwrap();
        assert_eq!(reply.exchange(), "decode-only; reason=prefill-failed");
        split.prefills[0].order(&Orders::default()).await.unwrap();
        is_transferred_again(&split).await;
        split.rests_as_before().await.unwrap();
    }
    let settings = [&SHORT[..], &[("GCO_PROXY_FALLBACK", "fail")]].concat();
    let mut split = Split::pair(&settings).await.unwrap();
    split.note_rest().await.unwrap();
    split.prefills[0].order(&completions(CompletionOrder::Status(500))).await.unwrap();
    for body in [prompt(), streamed()] {
        let reply = split.complete(&body).await.unwrap();
        assert!([502, 503].contains(&reply.status), "{}", reply.status);
        assert!(reply.json()["error"]["message"].is_string(), "{}", reply.text());
    }
    let plain = split.decodes[0].accounts().await.unwrap().plain;
    assert_eq!(plain, 0, "decode was asked to compute a prompt although the policy forbids it");
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn prefill_answers_400_and_the_client_gets_that_answer() {
    let mut split = pair().await;
    let bad = json!({"prompt": "a", "max_tokens": 4, "min_tokens": 5});
    let direct = split.decodes[0].post("/v1/completions", &bad).await.unwrap();
    let reply = split.complete(&bad).await.unwrap();
    assert_eq!((reply.status, reply.json()["error"]["type"].clone()), (400, direct.json()["error"]["type"].clone()));
    let long = json!({"prompt": "word ".repeat(9000)});
    let reply = split.complete(&long).await.unwrap();
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(reply.exchange().starts_with("refused"), "{}", reply.exchange());
    is_served(&split, "transferred").await;
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn prefill_dies_in_mid_call_and_decode_answers_alone() {
    for mut split in [pair().await, nixl().await] {
        split.prefills[0].order(&once(CompletionOrder::Exit)).await.unwrap();
        let reply = split.complete(&streamed()).await.unwrap();
        reply.said().unwrap();
        assert!(reply.exchange().starts_with("decode-only; reason=prefill-"), "{}", reply.exchange());
        split.prefills[0].ended().await.unwrap();
        split.prefills[0].restart().await.unwrap();
        is_transferred_again(&split).await;
        split.rests_as_before().await.unwrap();
    }
}

#[tokio::test]
async fn prefill_without_parameters_is_noticed_at_once_with_nixl_and_at_the_hand_off_deadline_with_mooncake() {
    let mut split = nixl().await;
    split.prefills[0].order(&completions(CompletionOrder::WithoutParameters)).await.unwrap();
    is_served(&split, "decode-only; reason=no-parameters").await;
    split.rests_as_before().await.unwrap();
    let mut split = pair().await;
    split.prefills[0].order(&completions(CompletionOrder::WithoutParameters)).await.unwrap();
    is_served(&split, "decode-only; reason=hand-off-timed-out").await;
    split.prefills[0].order(&Orders::default()).await.unwrap();
    is_transferred_again(&split).await;
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn prefill_whose_first_token_would_be_the_end_keeps_its_kv_all_the_same() {
    let mut split = pair().await;
    split.prefills[0].order(&completions(CompletionOrder::FirstTokenEnds)).await.unwrap();
    is_served(&split, "transferred").await;
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn prefill_restarted_with_a_new_engine_id_loses_no_request_before_or_while_in_flight() {
    let mut split = pair().await;
    is_served(&split, "transferred").await;
    split.prefills[0].restart().await.unwrap();
    // The engine id that the proxy knows is stale: decode says so at once, or the proxy asks again first.
    split.complete(&streamed()).await.unwrap().said().unwrap();
    is_transferred_again(&split).await;

    split.prefills[0].order(&completions(CompletionOrder::Delay(60_000))).await.unwrap();
    let body = streamed();
    let reply = {
        let asked = split.complete(&body);
        tokio::pin!(asked);
        // Decode waits for the KV of a prefill that has not begun.
        tokio::select! {
            reply = &mut asked => panic!("an answer before prefill's: {reply:?}"),
            waits = split.decodes[0].is_busy() => waits.unwrap(),
        }
        split.prefills[0].signal(Signal::SIGKILL).unwrap();
        asked.await.unwrap()
    };
    reply.said().unwrap();
    assert!(reply.exchange().starts_with("decode-only; reason=prefill-"), "{}", reply.exchange());
    split.prefills[0].restart().await.unwrap();
    is_transferred_again(&split).await;
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn a_query_that_is_empty_and_then_filled_is_asked_again() {
    let mut split = pair().await;
    split.prefills[0].restart().await.unwrap();
    split.prefills[0].order(&Orders { query: Some(QueryOrder::Empty), ..Orders::default() }).await.unwrap();
    until("the old engine id to be forgotten", BOUND, async || {
        let reply = split.complete(&streamed()).await.map_err(|problem| format!("{problem:#}"))?;
        reply.said().map_err(|problem| format!("{problem:#}"))?;
        let expected = reply.exchange() == "decode-only; reason=engine-unknown";
        if expected { Ok(()) } else { Err(reply.exchange().to_owned()) }
    })
    .await
    .unwrap();
    for query in [QueryOrder::Status(500), QueryOrder::Body("[1]".to_owned()), QueryOrder::Body("{".to_owned())] {
        split.prefills[0].order(&Orders { query: Some(query), ..Orders::default() }).await.unwrap();
        is_served(&split, "decode-only; reason=engine-unknown").await;
    }
    split.prefills[0].order(&Orders::default()).await.unwrap();
    is_transferred_again(&split).await;
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn kv_that_does_not_come_is_waited_for_until_the_hand_off_deadline_and_not_for_the_engines_eight_minutes() {
    let mut split = pair().await;
    for order in [TransferOrder::Lose, TransferOrder::Stall] {
        split.prefills[0].order(&Orders { transfer: Some(order), ..Orders::default() }).await.unwrap();
        let began = tokio::time::Instant::now();
        is_served(&split, "decode-only; reason=hand-off-timed-out").await;
        assert!(began.elapsed() < Duration::from_secs(60), "two deadlines of 1.5 s took {:?}", began.elapsed());
    }
    split.prefills[0].order(&Orders::default()).await.unwrap();
    is_transferred_again(&split).await;
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn a_whole_answer_that_takes_longer_than_the_hand_off_deadline_is_no_lost_hand_over() {
    // An answer that is no stream says nothing before its end: 3 s here, twice the deadline.
    let decode = EngineSpec::decode("d-0").with("GCO_ENGINE_TOKEN_MILLISECONDS", "75");
    let mut split = Split::start(vec![EngineSpec::prefill("p-0")], vec![decode], &SHORT).await.unwrap();
    split.note_rest().await.unwrap();
    split.decodes[0].clear_accounts().await.unwrap();
    is_served(&split, "transferred").await;
    let accounts = split.decodes[0].accounts().await.unwrap();
    assert_eq!((accounts.received.len(), accounts.plain), (2, 0), "nothing was asked for twice");
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn the_only_decode_down_is_answered_with_the_configured_error_and_noticed_when_it_is_back() {
    let settings = [&SHORT[..], &[("PD_PROXY_NO_DECODE_BACKEND_MESSAGE", "come back later")]].concat();
    let mut split = Split::pair(&settings).await.unwrap();
    split.note_rest().await.unwrap();
    split.decodes[0].kill().await.unwrap();
    for body in [prompt(), streamed()] {
        let reply = split.complete(&body).await.unwrap();
        assert_eq!((reply.status, reply.json()["error"]["message"].clone()), (503, json!("come back later")));
    }
    assert_eq!(split.get("/health").await.unwrap().status, 200, "the process is well");
    split.decodes[0].restart().await.unwrap();
    is_transferred_again(&split).await;
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn one_of_two_decodes_down_or_answering_503_fails_no_request() {
    let decodes = vec![EngineSpec::decode("d-0"), EngineSpec::decode("d-1")];
    let mut split = Split::start(vec![EngineSpec::prefill("p-0")], decodes, &SHORT).await.unwrap();
    split.note_rest().await.unwrap();
    split.decodes[0].order(&completions(CompletionOrder::Status(503))).await.unwrap();
    for _ in 0..20 {
        is_served(&split, "transferred").await;
    }
    split.decodes[0].kill().await.unwrap();
    for _ in 0..20 {
        is_served(&split, "transferred").await;
    }
    split.decodes[0].restart().await.unwrap();
    split.rests_as_before().await.unwrap();
}

/// A stream that broke: what came of it begins as decode's, has no end that looks like one, and the connection was cut.
fn broke_visibly(reply: &Reply) {
    assert_eq!(reply.status, 200);
    assert!(!reply.whole, "the connection ended as if all were well: {}", reply.text());
    assert!(!reply.text().contains("[DONE]"), "{}", reply.text());
    let last = reply.events().pop().unwrap_or_default();
    let last: Value = serde_json::from_str(last.trim()).unwrap_or_default();
    assert!(last["error"]["message"].is_string(), "the last event tells nothing of it: {}", reply.text());
}

#[tokio::test]
async fn decode_dead_in_mid_stream_ends_with_an_error_event_and_a_broken_connection_also_inside_a_character() {
    let mut split = pair().await;
    for at in [CutPoint::Bytes(700), CutPoint::InsideCharacter] {
        for then in [CutEnd::Close, CutEnd::Exit] {
            split.decodes[0].order(&completions(CompletionOrder::Cut { at, then })).await.unwrap();
            broke_visibly(&split.complete(&streamed()).await.unwrap());
            split.decodes[0].order(&Orders::default()).await.ok();
            if then == CutEnd::Exit {
                split.decodes[0].ended().await.unwrap();
                split.decodes[0].restart().await.unwrap();
            }
            is_transferred_again(&split).await;
        }
    }
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn decode_dead_in_mid_answer_breaks_the_connection_too() {
    let mut split = pair().await;
    let order = CompletionOrder::Cut { at: CutPoint::Bytes(100), then: CutEnd::Close };
    split.decodes[0].order(&completions(order)).await.unwrap();
    let reply = split.complete(&prompt()).await;
    // Either the part, visibly broken, or an error instead of it: the engine's head had come.
    if let Ok(reply) = reply {
        assert!(!reply.whole || reply.status >= 500, "status {}, whole: {}", reply.status, reply.whole);
    }
    split.decodes[0].order(&Orders::default()).await.unwrap();
    is_transferred_again(&split).await;
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn decode_stalled_is_given_up_after_the_idle_time_out() {
    let mut split = pair().await;
    let order = CompletionOrder::Cut { at: CutPoint::Bytes(700), then: CutEnd::Stall };
    split.decodes[0].order(&completions(order)).await.unwrap();
    broke_visibly(&split.complete(&streamed()).await.unwrap());
    split.decodes[0].order(&Orders::default()).await.unwrap();
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn decode_that_says_nothing_after_prefill_is_asked_again_without_parameters() {
    let mut split = pair().await;
    split.decodes[0].order(&once(CompletionOrder::Hang)).await.unwrap();
    let reply = split.complete(&streamed()).await.unwrap();
    reply.said().unwrap();
    assert_eq!(reply.exchange(), "decode-only; reason=hand-off-timed-out");
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn a_first_token_that_is_the_end_is_a_whole_answer() {
    let mut split = pair().await;
    split.decodes[0].order(&completions(CompletionOrder::FirstTokenEnds)).await.unwrap();
    for body in [prompt(), streamed()] {
        let reply = split.complete(&body).await.unwrap();
        assert_eq!((reply.said().unwrap().as_str(), reply.exchange()), ("", "transferred"));
        assert!(reply.text().contains("\"finish_reason\":\"stop\""), "{}", reply.text());
    }
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn a_thousand_refused_requests_open_no_breaker() {
    let mut split = pair().await;
    let bad = json!({"prompt": "a", "max_tokens": 4, "min_tokens": 5});
    for _ in 0..20 {
        let replies = join_all((0..50).map(|_| split.complete(&bad))).await;
        for reply in replies {
            assert_eq!(reply.unwrap().status, 400);
        }
        is_served(&split, "transferred").await;
    }
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn more_than_the_engines_may_have_is_answered_429_and_opens_no_breaker() {
    let limits = [
        ("GCO_PROXY_MAX_IN_FLIGHT_PER_BACKEND", "2"),
        ("GCO_PROXY_QUEUE_LENGTH", "3"),
        ("GCO_PROXY_QUEUE_TIMEOUT_SECONDS", "30"),
    ];
    let decode = EngineSpec::decode("d-0").with("GCO_ENGINE_TOKEN_MILLISECONDS", "20");
    let mut split = Split::start(vec![EngineSpec::prefill("p-0")], vec![decode], &limits).await.unwrap();
    split.note_rest().await.unwrap();
    let body = streamed();
    let replies = join_all((0..20).map(|_| split.complete(&body))).await;
    let (mut served, mut refused) = (0, 0);
    for reply in replies {
        let reply = reply.unwrap();
        if reply.status == 429 {
            refused += 1;
            let after = reply.headers.get("retry-after").and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
            assert!(after.is_some_and(|seconds| seconds > 0), "{:?}", reply.headers);
            assert!(reply.json()["error"]["message"].is_string(), "{}", reply.text());
        } else {
            reply.said().unwrap();
            served += 1;
        }
    }
    assert_eq!((served, refused), (5, 15), "two at once, three that wait");
    is_served(&split, "transferred").await;
    split.rests_as_before().await.unwrap();
}
