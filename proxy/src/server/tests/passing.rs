//! What goes through.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::client::{Exchange, post};
use super::engine::{STREAM_HEAD, Step, answer, chunk, json as json_answer, stream};
use super::{ANSWER, Engines, Proxy, eventually, options};
use crate::exchange::{Connector, Fallback, Outcome, Reason};

const BODY: &str = r#"{"model":"m", "prompt" : "hi", "max_tokens":7,"seed":12345678901234567890123, "stream":false}"#;

#[tokio::test]
async fn both_legs_of_mooncake_carry_one_transfer_id_and_decode_the_clients_bytes() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let got = post(proxy.address, "/v1/completions?x=1", BODY).await;
    assert_eq!((got.status, got.text().as_str(), got.is_whole), (200, ANSWER, true));
    assert_eq!(got.header("x-gco-exchange"), Some("transferred"));

    let decode = &engines.decode[0].received()[0];
    assert_eq!(decode.line, "POST /v1/completions?x=1");
    let text = String::from_utf8(decode.body.clone()).unwrap();
    let (before, set) = text.split_once(",\"kv_transfer_params\":").unwrap();
    assert_eq!(format!("{before}}}"), BODY, "decode got other bytes than the client's");
    let set: Value = serde_json::from_str(set.strip_suffix('}').unwrap()).unwrap();
    let prefill = eventually("prefill was asked", || engines.prefill[0].received().first().cloned()).await.json();
    let transfer = prefill["kv_transfer_params"]["transfer_id"].as_str().unwrap();
    assert!(transfer.starts_with("xfer-"));
    let bootstrap = format!("http://{}", engines.bootstrap[0].address);
    assert_eq!(
        set,
        json!({"do_remote_prefill": true, "do_remote_decode": false, "transfer_id": transfer,
            "remote_engine_id": "engine-0", "remote_bootstrap_addr": bootstrap})
    );
    assert_eq!(prefill["max_tokens"], 1);
    assert_eq!(prefill["stream"], false);
    assert_eq!(engines.bootstrap[0].received()[0].line, "GET /query");
    assert_eq!(proxy.outcomes(), [Some(Outcome::Transferred)]);
    proxy.end().await;
}

#[tokio::test]
async fn a_nixl_decode_gets_what_prefill_answered_and_a_plain_one_gets_nothing() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Nixl, Fallback::DecodeOnly)).await;
    assert_eq!(post(proxy.address, "/v1/completions", BODY).await.header("x-gco-exchange"), Some("transferred"));
    let set = engines.decode[0].received()[0].json()["kv_transfer_params"].clone();
    assert_eq!(set, serde_json::from_str::<Value>(super::NIXL_ANSWER).unwrap()["kv_transfer_params"]);
    assert_eq!(engines.bootstrap[0].count(), 0);
    proxy.end().await;

    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Plain, Fallback::DecodeOnly)).await;
    assert_eq!(post(proxy.address, "/v1/completions", BODY).await.header("x-gco-exchange"), Some("primed"));
    assert_eq!(engines.decode[0].received()[0].body, BODY.as_bytes());
    assert_eq!(engines.prefill[0].received()[0].json()["kv_transfer_params"], Value::Null);
    proxy.end().await;
}

#[tokio::test]
async fn status_headers_and_body_of_decode_reach_the_client_as_they_are() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    for status in [
        "200 OK",
        "202 Accepted",
        "400 Bad Request",
        "404 Not Found",
        "422 Unprocessable Entity",
        "500 Internal Server Error",
    ] {
        let odd = "content-type: text/x-odd\r\nset-cookie: a\r\nset-cookie: b\r\nx-own: ä\r\nkeep-alive: 5\r\n";
        // A 500 with parameters is a failed hand-over; the second one is decode's own.
        engines.decode[0].usually(answer(status, odd, "{ \"odd\" :1}\n"));
        let got = post(proxy.address, "/v1/chat/completions", r#"{"messages":[]}"#).await;
        assert_eq!(got.status.to_string(), status[..3]);
        assert_eq!(got.text(), "{ \"odd\" :1}\n");
        assert_eq!(got.header("content-type"), Some("text/x-odd"));
        assert_eq!(got.header("keep-alive"), None);
        assert_eq!(got.header("content-length"), Some("12"));
        assert_eq!(got.headers.iter().filter(|(name, _)| name == "set-cookie").count(), 2);
    }
    proxy.end().await;
}

#[tokio::test]
async fn ten_thousand_events_arrive_byte_for_byte_however_they_are_cut() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let events: Vec<String> = (0..10_000).map(|index| format!("data: {{\"i\":{index},\"t\":\"äöü🦀\"}}\n\n")).collect();
    let whole: String = events.concat();
    // Pieces that end in the middle of events and of characters, of all sizes.
    let mut steps = vec![Step::Write(STREAM_HEAD.as_bytes().to_vec())];
    let (mut at, mut size) = (0, 1);
    while at < whole.len() {
        let end = (at + size).min(whole.len());
        let piece = &whole.as_bytes()[at..end];
        steps.push(Step::Write([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()));
        (at, size) = (end, size * 7 % 1_021 + 1);
    }
    steps.push(Step::Write(b"0\r\n\r\n".to_vec()));
    engines.decode[0].usually(steps);
    let got = post(proxy.address, "/v1/completions", r#"{"prompt":"x","stream":true}"#).await;
    assert!(got.is_whole);
    assert_eq!(got.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert!(got.body == whole.as_bytes(), "the stream's bytes are not decode's");
    proxy.end().await;
}

#[tokio::test]
async fn the_head_is_held_back_until_the_first_event_and_each_event_goes_out_at_once() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let (first, second) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    engines.decode[0].next(vec![
        Step::Write(STREAM_HEAD.as_bytes().to_vec()),
        Step::Wait(first.clone()),
        Step::Write(chunk("data: 1\n\n")),
        Step::Wait(second.clone()),
        Step::Write([chunk("data: 2\n\n"), b"0\r\n\r\n".to_vec()].concat()),
    ]);
    let mut exchange = Exchange::send(proxy.address, "POST /v1/completions", "", r#"{"stream":true}"#).await;
    eventually("decode is asked", || (engines.decode[0].running() == 1).then_some(())).await;
    let nothing = tokio::time::timeout(Duration::from_millis(100), exchange.read_until(1)).await;
    assert!(nothing.is_err(), "the head came before the first event");
    first.notify_one();
    exchange.read_text("data: 1\n\n").await;
    assert!(!exchange.has_read("data: 2"));
    second.notify_one();
    let got = exchange.end().await;
    assert_eq!((got.text().as_str(), got.is_whole), ("data: 1\n\ndata: 2\n\n", true));
    proxy.end().await;
}

#[tokio::test]
async fn headers_reach_both_engines_as_the_rules_say() {
    let engines = Engines::start(1, 1).await;
    let mut options = options(Connector::Nixl, Fallback::DecodeOnly);
    options.forwarded = crate::relay::headers::Forwarded::All;
    let proxy = Proxy::start(&engines, options).await;
    let headers = "content-type: application/json\r\nauthorization: Bearer k\r\nx-request-id: mine\r\ntraceparent: 00-a\r\nx-custom: 1\r\nX-Data-Parallel-Rank: 3\r\nkeep-alive: 9\r\nproxy-authorization: no\r\n";
    Exchange::send(proxy.address, "POST /v1/completions", headers, BODY).await.end().await;
    for engine in [&engines.prefill[0], &engines.decode[0]] {
        let got = &engine.received()[0];
        assert_eq!(got.header("host"), Some(engine.address.to_string().as_str()));
        for (name, value) in
            [("authorization", "Bearer k"), ("x-request-id", "mine"), ("traceparent", "00-a"), ("x-custom", "1")]
        {
            assert_eq!(got.header(name), Some(value), "{name}");
        }
        for name in ["x-data-parallel-rank", "keep-alive", "proxy-authorization", "connection", "transfer-encoding"] {
            assert_eq!(got.header(name), None, "{name}");
        }
    }
    proxy.end().await;
}

#[tokio::test]
async fn a_rank_is_named_when_there_are_several_and_an_id_when_the_client_gave_none() {
    let engines = Engines::start(1, 1).await;
    engines.bootstrap[0].usually(json_answer(r#"{"0":{"engine_id":"e0"},"1":{"engine_id":"e1"}}"#));
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    for _ in 0..4 {
        post(proxy.address, "/v1/completions", BODY).await;
    }
    let prefills =
        eventually("four prefills", || Some(engines.prefill[0].received()).filter(|all| all.len() == 4)).await;
    for (prefill, decode) in prefills.iter().zip(engines.decode[0].received()) {
        let rank = prefill.header("x-data-parallel-rank").unwrap();
        assert_eq!(decode.json()["kv_transfer_params"]["remote_engine_id"], format!("e{rank}"));
        assert_eq!(decode.header("x-data-parallel-rank"), None);
        assert_eq!(prefill.header("x-request-id"), decode.header("x-request-id"));
        assert!(decode.header("x-request-id").unwrap().starts_with("req-"));
    }
    let ranks: Vec<_> = prefills.iter().filter_map(|prefill| prefill.header("x-data-parallel-rank")).collect();
    assert_eq!(ranks.iter().filter(|rank| **rank == "0").count(), 2, "{ranks:?}");
    assert_eq!(engines.bootstrap[0].count(), 1, "engine ids are asked for once");
    proxy.end().await;
}

#[tokio::test]
async fn what_a_split_would_change_and_what_is_no_generation_goes_whole_to_decode() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let whole = [
        ("/v1/completions", r#"{"n":2}"#, Reason::ManyAnswers),
        ("/v1/completions", r#"{"prompt":["a","b"]}"#, Reason::ManyPrompts),
        ("/v1/completions", r#"{"echo":true,"kv_transfer_params":{"do_remote_prefill":true}}"#, Reason::Echo),
        ("/v1/responses", r#"{"input":"x"}"#, Reason::Path),
        ("/v1/embeddings", r#"{"input":"x"}"#, Reason::Path),
    ];
    for (path, body, reason) in whole {
        let got = post(proxy.address, path, body).await;
        assert_eq!(got.header("x-gco-exchange").unwrap(), format!("decode-only; reason={}", reason.word()));
        assert_eq!(proxy.outcomes().pop(), Some(Some(Outcome::DecodeOnly(reason))));
    }
    let bodies: Vec<_> =
        engines.decode[0].received().iter().map(|got| String::from_utf8(got.body.clone()).unwrap()).collect();
    assert_eq!(bodies[2], r#"{"echo":true}"#);
    assert_eq!(bodies[3], r#"{"input":"x"}"#);
    let gzip = "content-encoding: gzip\r\ncontent-type: application/json\r\n";
    let got = Exchange::send(proxy.address, "POST /v1/completions", gzip, "\u{1f}not gzip").await.end().await;
    assert_eq!(got.header("x-gco-exchange"), Some("decode-only; reason=encoding"));
    let last = engines.decode[0].received().pop().unwrap();
    assert_eq!((last.header("content-encoding"), last.body.as_slice()), (Some("gzip"), "\u{1f}not gzip".as_bytes()));
    assert_eq!(engines.prefill[0].count(), 0);
    proxy.end().await;
}

#[tokio::test]
async fn reads_pass_to_decode_and_have_no_exchange() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let got = Exchange::send(proxy.address, "GET /v1/models?x=y", "", "").await.end().await;
    assert_eq!((got.status, got.text().as_str(), got.header("x-gco-exchange")), (200, ANSWER, None));
    engines.decode[0].next(vec![Step::Write(b"HTTP/1.1 200 OK\r\ncontent-length: 44\r\nx-h: 1\r\n\r\n".to_vec())]);
    let head = Exchange::send(proxy.address, "HEAD /v1/models", "", "").await.end().await;
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, Some("44"), 0));
    let lines: Vec<_> = engines.decode[0].received().into_iter().map(|got| got.line).collect();
    assert_eq!(lines, ["GET /v1/models?x=y", "HEAD /v1/models"]);
    let refused = Exchange::send(proxy.address, "DELETE /v1/models", "", "").await.end().await;
    assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD, POST")));
    assert_eq!(refused.json()["error"]["type"], "invalid_request_error");
    assert_eq!(proxy.outcomes(), [None, None, None]);
    proxy.end().await;
}

#[tokio::test]
async fn bad_bodies_are_refused_before_any_engine_is_asked() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let wrong = [
        ("{", "invalid JSON body"),
        ("[]", "JSON body must be an object"),
        (
            r#"{"kv_transfer_params":1,"\u006bv_transfer_params":2}"#,
            "the member \"kv_transfer_params\" is in the JSON body twice",
        ),
        (
            r#"{"vllm_xargs":{"kv_transfer_params":"x"}}"#,
            "vllm_xargs may not hold kv_transfer_params or another member that steers a hand-over",
        ),
    ];
    for (body, message) in wrong {
        let got = post(proxy.address, "/v1/completions", body).await;
        let error = json!({"error": {"message": message, "type": "invalid_request_error", "param": null, "code": 400}});
        assert_eq!((got.status, got.json()), (400, error), "{body}");
    }
    assert_eq!(engines.prefill[0].count() + engines.decode[0].count(), 0);
    // Contract D.2: no body at all is an object without members.
    assert_eq!(post(proxy.address, "/v1/completions", "").await.status, 200);
    assert!(engines.decode[0].received()[0].body.starts_with(b"{\"kv_transfer_params\":"));
    proxy.end().await;
}

#[tokio::test]
async fn connections_to_engines_are_used_again_and_one_that_went_stale_costs_nothing() {
    let engines = Engines::start(1, 1).await;
    let mut options = options(Connector::Mooncake, Fallback::DecodeOnly);
    options.workers = 1;
    let proxy = Proxy::start(&engines, options).await;
    for _ in 0..20 {
        assert_eq!(post(proxy.address, "/v1/completions", BODY).await.status, 200);
    }
    assert_eq!(engines.decode[0].connections(), 1);
    let body = stream(&["data: 1\n\n", "data: [DONE]\n\n"]);
    engines.decode[0].next(body);
    assert!(post(proxy.address, "/v1/completions", BODY).await.is_whole);
    assert_eq!(engines.decode[0].connections(), 1, "a connection is not kept after a stream");
    // The engine closes after this answer, without saying so.
    engines.decode[0].next([json_answer(ANSWER), vec![Step::Close]].concat());
    assert_eq!(post(proxy.address, "/v1/completions", BODY).await.status, 200);
    for _ in 0..3 {
        assert_eq!(post(proxy.address, "/v1/completions", BODY).await.header("x-gco-exchange"), Some("transferred"));
    }
    assert_eq!(engines.decode[0].connections(), 2);
    proxy.end().await;
}
