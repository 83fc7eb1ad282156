//! The simulated engine hands its KV over as real ones do, fails as they do, and ends where they end. What was seen with
//! real engines is compared line by line in `docs/real-engines.md`.

#![expect(clippy::unwrap_used, reason = "a suite fails by panicking")]

use std::time::Duration;

use gco_bed::wait::until;
use gco_local::engine::{CompletionOrder, CutEnd, CutPoint, Orders, QueryOrder, TransferOrder};
use gco_local::loopback::{LoopbackClient, json_request};
use gco_tests::proxy::{BOUND, Engine, EngineSpec};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

const PROMPT: &str = "one two three four";
/// The prompt's tokens with the default of 1,024 bytes each.
const KV_BYTES: usize = 4 * 1024;

fn prompt() -> Value {
    json!({"prompt": PROMPT, "max_tokens": 6})
}

fn prefill_body(transfer_id: &str) -> Value {
    json!({"prompt": PROMPT, "max_tokens": 1, "min_tokens": 1, "stream": false, "kv_transfer_params": {
        "do_remote_decode": true, "do_remote_prefill": false, "transfer_id": transfer_id,
    }})
}

fn decode_body(engine_id: &str, bootstrap: &str, transfer_id: &str) -> Value {
    let mut body = prompt();
    body["kv_transfer_params"] = json!({
        "do_remote_decode": false, "do_remote_prefill": true, "remote_bootstrap_addr": bootstrap,
        "remote_engine_id": engine_id, "transfer_id": transfer_id,
    });
    body
}

async fn engine_id(prefill: &Engine) -> String {
    let client = LoopbackClient::new();
    let answer = client.get(prefill.bootstrap_port(), "/query", BOUND).await.unwrap().json();
    let worker = answer["0"]["worker_addr"]["0"]["0"].as_str().unwrap();
    assert!(worker.starts_with("tcp://127.0.0.1:"), "{answer}");
    answer["0"]["engine_id"].as_str().unwrap().to_owned()
}

async fn pair() -> (Engine, Engine) {
    (EngineSpec::prefill("p-0").start().await.unwrap(), decode().start().await.unwrap())
}

/// A decode engine whose time-outs are short enough to be waited for.
fn decode() -> EngineSpec {
    EngineSpec::decode("d-0").with("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "1").with("GCO_ENGINE_DEAD_PEER_SECONDS", "1")
}

#[tokio::test]
async fn kv_moves_once_whichever_side_comes_first_and_the_answer_is_that_of_a_plain_request() {
    let (prefill, decode) = pair().await;
    let plain = decode.post("/v1/completions", &prompt()).await.unwrap().json();
    let id = engine_id(&prefill).await;
    for (transfer_id, decode_first) in [("xfer-1", false), ("xfer-2", true)] {
        let (keep, fetch) = (prefill_body(transfer_id), decode_body(&id, &prefill.bootstrap(), transfer_id));
        let answers = async {
            let keeping = async {
                if decode_first {
                    until("decode to wait for KV", BOUND, async || {
                        let waiting = decode.metric("vllm:num_requests_waiting_by_reason", "deferred").await.unwrap();
                        if waiting > 0.5 { Ok(()) } else { Err(waiting.to_string()) }
                    })
                    .await
                    .unwrap();
                }
                prefill.post("/v1/completions", &keep).await.unwrap()
            };
            if decode_first {
                tokio::join!(keeping, decode.post("/v1/completions", &fetch))
            } else {
                let kept = keeping.await;
                (kept, decode.post("/v1/completions", &fetch).await)
            }
        };
        let (kept, fetched) = answers.await;
        let (kept, fetched) = (kept.json(), fetched.unwrap().json());
        assert_eq!(kept["choices"][0]["finish_reason"], "length", "{kept}");
        assert_eq!(kept["kv_transfer_params"], Value::Null);
        assert_eq!(fetched["choices"], plain["choices"]);
    }
    let (sent, received) = (prefill.accounts().await.unwrap(), decode.accounts().await.unwrap());
    assert_eq!(sent.sent.iter().map(|one| one.transfer_id.as_str()).collect::<Vec<_>>(), ["xfer-1", "xfer-2"]);
    assert_eq!(received.received.iter().map(|one| one.bytes).collect::<Vec<_>>(), [KV_BYTES, KV_BYTES]);
    let tokens = async |source| decode.metric("vllm:prompt_tokens_by_source_total", source).await.unwrap();
    assert!((tokens("external_kv_transfer").await - 8.0).abs() < 0.1);
    assert!((tokens("local_compute").await - 4.0).abs() < 0.1, "only the plain request was computed here");
}

#[tokio::test]
async fn a_stream_that_waits_for_kv_has_its_head_at_once_and_its_failure_inside() {
    let (prefill, decode) = pair().await;
    let mut body = decode_body(&engine_id(&prefill).await, &prefill.bootstrap(), "nobody-prefills-this");
    body["stream"] = json!(true);
    let client = LoopbackClient::new();
    let response = client.send(decode.port(), json_request("/v1/completions", &body).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(text.to_vec()).unwrap();
    assert!(text.starts_with("data: {\"error\": {") && text.contains("\"code\": 500"), "{text}");
    assert!(text.ends_with("\n\ndata: [DONE]\n\n"), "{text}");
    let failed = decode.accounts().await.unwrap().failed_loads;
    assert_eq!(failed[0].reason, "Timeout waiting for P side ready");
    // A chat has begun before it fails: its role, and then the error.
    body["messages"] = json!([{"role": "user", "content": body["prompt"]}]);
    body.as_object_mut().unwrap().remove("prompt");
    let text = decode.post("/v1/chat/completions", &body).await.unwrap().text();
    let events: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!(events.len(), 3, "{text}");
    let first: Value = serde_json::from_str(events[0].trim_start_matches("data: ")).unwrap();
    assert_eq!(first["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert!(events[1].starts_with("data: {\"error\": {") && events[2] == "data: [DONE]", "{text}");
}

#[tokio::test]
async fn a_stale_engine_id_fails_at_once_and_a_dead_cached_peer_only_after_both_time_outs() {
    let (mut prefill, decode) = pair().await;
    let old = engine_id(&prefill).await;
    let bootstrap = prefill.bootstrap();
    prefill.post("/v1/completions", &prefill_body("before")).await.unwrap();
    assert_eq!(decode.post("/v1/completions", &decode_body(&old, &bootstrap, "before")).await.unwrap().status, 200);
    prefill.restart().await.unwrap();
    assert_ne!(engine_id(&prefill).await, old);
    let unknown = decode.post("/v1/completions", &decode_body("not-an-engine", &bootstrap, "x")).await.unwrap();
    assert_eq!(
        (unknown.status.as_u16(), unknown.json()["error"]["message"].clone()),
        (500, json!("Internal server error"))
    );
    let began = tokio::time::Instant::now();
    let dead = decode.post("/v1/completions", &decode_body(&old, &bootstrap, "y")).await.unwrap();
    assert_eq!(dead.status, 500);
    assert!(began.elapsed() >= Duration::from_secs(2), "decode knows the dead worker's address and waits for it");
    let reasons: Vec<String> =
        decode.accounts().await.unwrap().failed_loads.into_iter().map(|failed| failed.reason).collect();
    assert_eq!(reasons[0], "remote engine_id not-an-engine not found from bootstrap server");
    assert!(reasons[1].starts_with("transfer failed: "), "{reasons:?}");
}

#[tokio::test]
async fn a_bootstrap_server_that_is_away_is_asked_three_times_and_recompute_turns_failures_into_answers() {
    let prefill = EngineSpec::prefill("p-0").start().await.unwrap();
    let bootstrap = prefill.bootstrap();
    prefill.kill().await.unwrap();
    let failing = decode().start().await.unwrap();
    let failed = failing.post("/v1/completions", &decode_body("e", &bootstrap, "x")).await.unwrap();
    assert_eq!(failed.status, 500);
    let config = json!({
        "kv_connector": "MooncakeConnector", "kv_role": "kv_consumer", "kv_load_failure_policy": "recompute",
    });
    let recomputing =
        EngineSpec::plain("d-1").argument("--kv-transfer-config").argument(&config.to_string()).start().await.unwrap();
    let answered = recomputing.post("/v1/completions", &decode_body("e", &bootstrap, "x")).await.unwrap();
    assert_eq!(answered.status, 200, "{}", answered.text());
    assert!(
        (recomputing.metric("vllm:prompt_tokens_by_source_total", "local_compute").await.unwrap() - 4.0).abs() < 0.1
    );
}

#[tokio::test]
async fn incomplete_parameters_wait_for_ever_and_end_the_engine_when_the_client_leaves() {
    let decode = decode().start().await.unwrap();
    let client = LoopbackClient::without_reuse();
    let mut body = prompt();
    // Only the transfer id is missing: it hangs, and nothing worse.
    body["kv_transfer_params"] = json!({
        "do_remote_prefill": true, "remote_engine_id": "e", "remote_bootstrap_addr": "http://127.0.0.1:1",
    });
    let request = json_request("/v1/completions", &body).unwrap();
    let waited = client.call(decode.port(), request, Duration::from_millis(300)).await;
    assert!(waited.is_err(), "{waited:?}");
    until("decode to let go of the request", BOUND, async || {
        let waiting = decode.metric("vllm:num_requests_waiting", "").await.unwrap();
        if waiting < 0.5 { Ok(()) } else { Err(waiting.to_string()) }
    })
    .await
    .unwrap();
    body["kv_transfer_params"] = json!({"do_remote_prefill": true, "transfer_id": "x"});
    let request = json_request("/v1/completions", &body).unwrap();
    assert!(client.call(decode.port(), request, Duration::from_millis(300)).await.is_err());
    assert_eq!(decode.ended().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn a_refused_request_with_incomplete_parameters_ends_the_engine_too() {
    let decode = decode().start().await.unwrap();
    // Escaped, as a JSON parser reads it.
    let body = format!(
        "{{\"prompt\": \"{}\", \"\\u006bv_transfer_params\": {{\"do_remote_prefill\": true, \"transfer_id\": \"x\"}}}}",
        "word ".repeat(9000)
    );
    let request = http::Request::post("/v1/completions").body(body.into()).unwrap();
    let refused = LoopbackClient::new().call(decode.port(), request, BOUND).await.unwrap();
    assert_eq!(refused.status, 400);
    assert_eq!(decode.ended().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn parameters_for_the_other_role_answer_500_and_end_the_engine() {
    let (prefill, decode) = pair().await;
    let id = engine_id(&prefill).await;
    let answer = decode.post("/v1/completions", &prefill_body("x")).await.unwrap();
    assert_eq!(answer.status, 500);
    assert!(answer.text().contains("EngineCore encountered an issue."), "{}", answer.text());
    assert_eq!(decode.ended().await.unwrap().code(), Some(0));
    let misdirected = decode_body(&id, &prefill.bootstrap(), "x");
    assert_eq!(prefill.post("/v1/completions", &misdirected).await.unwrap().status, 500);
    assert_eq!(prefill.ended().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn kv_is_kept_only_for_an_answer_that_its_length_ended() {
    let (prefill, decode) = pair().await;
    let id = engine_id(&prefill).await;
    prefill.order(&Orders { completions: Some(CompletionOrder::FirstTokenEnds), ..Orders::default() }).await.unwrap();
    let with_minimum = prefill.post("/v1/completions", &prefill_body("kept")).await.unwrap().json();
    assert_eq!(with_minimum["choices"][0]["finish_reason"], "length");
    let mut body = prefill_body("freed");
    body.as_object_mut().unwrap().remove("min_tokens");
    let without = prefill.post("/v1/completions", &body).await.unwrap().json();
    assert_eq!(without["choices"][0]["finish_reason"], "stop");
    let fetch = async |transfer_id| {
        let body = decode_body(&id, &prefill.bootstrap(), transfer_id);
        decode.post("/v1/completions", &body).await.unwrap().status.as_u16()
    };
    assert_eq!((fetch("kept").await, fetch("freed").await), (200, 500));
    // A transfer id has one consumer, and one who left keeps nothing from being freed.
    assert_eq!(fetch("kept").await, 500);
    assert_eq!(decode.accounts().await.unwrap().received.len(), 1);
}

#[tokio::test]
async fn what_the_api_refuses_is_refused_before_any_kv_moves() {
    let (prefill, decode) = pair().await;
    let id = engine_id(&prefill).await;
    let mut body = prefill_body("x");
    body["stream_options"] = json!({"include_usage": true});
    assert_eq!(prefill.post("/v1/completions", &body).await.unwrap().status, 400);
    let mut body = decode_body(&id, &prefill.bootstrap(), "x");
    body["min_tokens"] = json!(7);
    assert_eq!(decode.post("/v1/completions", &body).await.unwrap().status, 400);
    let (prefill, decode) = (prefill.accounts().await.unwrap(), decode.accounts().await.unwrap());
    assert_eq!((prefill.prefilled, prefill.kept, decode.received.len(), decode.failed_loads.len()), (0, 0, 0, 0));
}

#[tokio::test]
async fn every_data_parallel_rank_has_an_engine_of_its_own() {
    let prefill = EngineSpec::prefill("p-0").argument("--data-parallel-size").argument("2").start().await.unwrap();
    let decode = decode().start().await.unwrap();
    let client = LoopbackClient::new();
    let query = client.get(prefill.bootstrap_port(), "/query", BOUND).await.unwrap().json();
    let ids: Vec<&str> = ["0", "1"].iter().map(|rank| query[rank]["engine_id"].as_str().unwrap()).collect();
    assert_ne!(ids[0], ids[1]);
    let mut request = json_request("/v1/completions", &prefill_body("on-one")).unwrap();
    request.headers_mut().insert("x-data-parallel-rank", "1".parse().unwrap());
    assert_eq!(client.call(prefill.port(), request, BOUND).await.unwrap().status, 200);
    let other = decode_body(ids[0], &prefill.bootstrap(), "on-one");
    assert_eq!(decode.post("/v1/completions", &other).await.unwrap().status, 500, "another rank has nothing");
    let right = decode_body(ids[1], &prefill.bootstrap(), "on-one");
    assert_eq!(decode.post("/v1/completions", &right).await.unwrap().status, 200);
}

#[tokio::test]
async fn nixl_prefill_answers_with_what_decode_is_told() {
    let (prefill, decode) =
        (EngineSpec::nixl("p-0").start().await.unwrap(), EngineSpec::nixl("d-0").start().await.unwrap());
    let mut body = prefill_body("ignored");
    body["kv_transfer_params"] = json!({"do_remote_decode": true, "do_remote_prefill": false});
    let answer = prefill.post("/v1/completions", &body).await.unwrap().json();
    let parameters = answer["kv_transfer_params"].clone();
    assert_eq!((&parameters["do_remote_prefill"], &parameters["remote_num_tokens"]), (&json!(true), &json!(4)));
    let mut body = prompt();
    body["kv_transfer_params"] = parameters;
    assert_eq!(decode.post("/v1/completions", &body).await.unwrap().status, 200);
    assert_eq!(decode.accounts().await.unwrap().received[0].bytes, KV_BYTES);
    // A prefill that is gone is noticed by the connection, long before the engine's own time-outs.
    let mut kept = prefill_body("ignored");
    kept["kv_transfer_params"] = json!({"do_remote_decode": true, "do_remote_prefill": false});
    body["kv_transfer_params"] =
        prefill.post("/v1/completions", &kept).await.unwrap().json()["kv_transfer_params"].clone();
    prefill.kill().await.unwrap();
    assert_eq!(decode.post("/v1/completions", &body).await.unwrap().status, 500);
    decode.lives().unwrap();
    body["kv_transfer_params"] = json!({"do_remote_prefill": true});
    assert_eq!(decode.post("/v1/completions", &body).await.unwrap().status, 500);
    assert_eq!(decode.ended().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn kv_of_another_prompt_is_noticed() {
    let (prefill, decode) = pair().await;
    let id = engine_id(&prefill).await;
    prefill.post("/v1/completions", &prefill_body("x")).await.unwrap();
    let mut body = decode_body(&id, &prefill.bootstrap(), "x");
    body["prompt"] = json!("another prompt of four");
    assert_eq!(decode.post("/v1/completions", &body).await.unwrap().status, 500);
    assert_eq!(decode.accounts().await.unwrap().mixed, 1);
}

#[tokio::test]
async fn an_engine_fails_as_it_is_ordered_to_and_not_any_longer() {
    let (prefill, _decode) = pair().await;
    let order = async |engine: &Engine, orders| engine.order(&orders).await.unwrap();
    let client = LoopbackClient::without_reuse();
    let query = async |bound| client.get(prefill.bootstrap_port(), "/query", bound).await;
    order(&prefill, Orders { query: Some(QueryOrder::Empty), ..Orders::default() }).await;
    assert_eq!(query(BOUND).await.unwrap().json(), json!({}));
    order(&prefill, Orders { query: Some(QueryOrder::Hang), ..Orders::default() }).await;
    assert!(query(Duration::from_millis(200)).await.is_err());
    let status = Orders { completions: Some(CompletionOrder::Status(503)), times: Some(1), ..Orders::default() };
    order(&prefill, status).await;
    assert_eq!(prefill.post("/v1/completions", &prompt()).await.unwrap().status, 503);
    assert_eq!(prefill.post("/v1/completions", &prompt()).await.unwrap().status, 200);
    order(&prefill, Orders { transfer: Some(TransferOrder::Lose), ..Orders::default() }).await;
    prefill.post("/v1/completions", &prefill_body("lost")).await.unwrap();
    assert_eq!(prefill.accounts().await.unwrap().kept, 0);

    let cut = |at, then| Orders { completions: Some(CompletionOrder::Cut { at, then }), ..Orders::default() };
    let body = json!({"prompt": "déjà vu", "max_tokens": 300, "stream": true});
    let read = async || {
        let request = json_request("/v1/completions", &body).unwrap();
        let mut stream = client.send(prefill.port(), request).await.unwrap().into_body();
        let mut seen = Vec::new();
        while let Some(frame) = stream.frame().await {
            match frame {
                Ok(frame) => seen.extend_from_slice(frame.data_ref().unwrap()),
                Err(_) => return (seen, false),
            }
        }
        (seen, true)
    };
    order(&prefill, cut(CutPoint::Bytes(100), CutEnd::Close)).await;
    let (seen, complete) = read().await;
    assert_eq!((seen.len(), complete), (100, false));
    order(&prefill, cut(CutPoint::InsideCharacter, CutEnd::Close)).await;
    let (seen, complete) = read().await;
    assert_eq!((seen.last(), complete), (Some(&0xc3), false), "the first byte of é is the last that comes");
    order(&prefill, cut(CutPoint::Bytes(40), CutEnd::Exit)).await;
    let (seen, complete) = read().await;
    assert_eq!((seen.len(), complete), (40, false));
    assert_eq!(prefill.ended().await.unwrap().code(), Some(0));
}
