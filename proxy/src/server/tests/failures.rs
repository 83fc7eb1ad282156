//! What happens when something fails.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::client::{Exchange, post};
use super::engine::{Engine, STREAM_HEAD, Step, answer, chunk, stream};
use super::{ANSWER, Engines, Proxy, eventually, options};
use crate::backends::{FleetSettings, Role};
use crate::exchange::{Connector, Fallback, Outcome, Reason};

const BODY: &str = r#"{"prompt":"hi"}"#;
const STREAMED: &str = r#"{"prompt":"hi","stream":true}"#;
/// How fast an engine must see that its request is no longer wanted.
const SEEN_WITHIN: Duration = Duration::from_millis(100);

fn never() -> Vec<Step> {
    vec![Step::Wait(Arc::new(Notify::new()))]
}

fn broken() -> Vec<Step> {
    answer("503 Service Unavailable", "", "busy")
}

/// An engine whose port is closed.
async fn dead() -> Engine {
    let mut engine = Engine::start(Vec::new()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    engine.address = listener.local_addr().unwrap();
    engine
}

#[tokio::test]
async fn with_one_of_two_engines_dead_or_unwell_no_request_fails() {
    for connector in [Connector::Mooncake, Connector::Nixl] {
        for role in Role::ALL {
            for is_dead in [true, false] {
                let mut engines = Engines::start(2, 2).await;
                let group = if role == Role::Prefill { &mut engines.prefill } else { &mut engines.decode };
                if is_dead {
                    group[1] = dead().await;
                } else {
                    group[1].usually(broken());
                }
                let settings = FleetSettings { breaker_open: Duration::from_secs(60), ..FleetSettings::default() };
                let proxy = Proxy::with_fleet(&engines, options(connector, Fallback::Fail), settings).await;
                for index in 0..1_000 {
                    let got = post(proxy.address, "/v1/completions", BODY).await;
                    assert_eq!((got.status, got.text().as_str()), (200, ANSWER), "{connector:?} {role:?} {index}");
                    assert_eq!(got.header("x-gco-exchange"), Some("transferred"));
                }
                let unwell = if role == Role::Prefill { &engines.prefill[1] } else { &engines.decode[1] };
                assert!(unwell.count() <= 1, "{connector:?} {role:?}: asked {} times after it failed", unwell.count());
                proxy.end().await;
            }
        }
    }
}

#[tokio::test]
async fn a_refusal_by_prefill_reaches_the_client_byte_for_byte_and_nothing_of_decode_does() {
    let refusal =
        answer("400 Bad Request", "content-type: application/json\r\nx-own: 1\r\n", "{\"error\": {\"m\":1} }");
    for connector in [Connector::Nixl, Connector::Plain, Connector::Mooncake] {
        let engines = Engines::start(1, 1).await;
        engines.prefill[0].usually(refusal.clone());
        engines.decode[0].usually(never());
        let proxy = Proxy::start(&engines, options(connector, Fallback::DecodeOnly)).await;
        let got = post(proxy.address, "/v1/completions", BODY).await;
        assert_eq!((got.status, got.text().as_str()), (400, "{\"error\": {\"m\":1} }"));
        assert_eq!(got.header("x-own"), Some("1"));
        if connector.is_concurrent() {
            eventually("decode's leg is closed", || (engines.decode[0].running() == 0).then_some(())).await;
        } else {
            assert_eq!(engines.decode[0].count(), 0);
        }
        assert_eq!(proxy.outcomes(), [Some(Outcome::Refused(Reason::PrefillRefused))]);
        proxy.end().await;
    }
}

#[tokio::test]
async fn refusals_never_open_a_breaker() {
    let engines = Engines::start(1, 1).await;
    engines.prefill[0].usually(answer("422 Unprocessable Entity", "", "{}"));
    engines.decode[0].usually(answer("422 Unprocessable Entity", "", "{}"));
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::Fail)).await;
    for _ in 0..200 {
        assert_eq!(post(proxy.address, "/v1/completions", BODY).await.status, 422);
    }
    engines.prefill[0].usually(super::json(ANSWER));
    engines.decode[0].usually(super::json(ANSWER));
    assert_eq!(post(proxy.address, "/v1/completions", BODY).await.header("x-gco-exchange"), Some("transferred"));
    proxy.end().await;
}

#[tokio::test]
async fn without_prefill_the_policy_holds_and_says_why() {
    let cases: [(&str, Vec<Step>, Reason, u16); 3] = [
        ("500", answer("500 Internal Server Error", "", "x"), Reason::PrefillFailed, 502),
        ("closed", vec![Step::Close], Reason::PrefillBroken, 502),
        (
            "dies in its answer",
            vec![Step::Write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec()), Step::Close],
            Reason::PrefillBroken,
            502,
        ),
    ];
    for (what, steps, reason, status) in cases {
        for connector in [Connector::Mooncake, Connector::Nixl] {
            let engines = Engines::start(1, 1).await;
            engines.prefill[0].usually(steps.clone());
            // With parameters decode waits for KV that never comes; without them it answers.
            let proxy = Proxy::start(&engines, options(connector, Fallback::DecodeOnly)).await;
            if connector.is_concurrent() {
                engines.decode[0].next(never());
            }
            let got = post(proxy.address, "/v1/completions", BODY).await;
            assert_eq!((got.status, got.text().as_str()), (200, ANSWER), "{what} {connector:?}");
            assert_eq!(
                got.header("x-gco-exchange").unwrap(),
                format!("decode-only; reason={}", reason.word()),
                "{what}"
            );
            assert_eq!(engines.decode[0].received().pop().unwrap().body, BODY.as_bytes());
            proxy.end().await;

            let proxy = Proxy::start(&engines, options(connector, Fallback::Fail)).await;
            engines.decode[0].usually(never());
            let got = post(proxy.address, "/v1/completions", BODY).await;
            assert_eq!((got.status, got.json()["error"]["code"].as_u64()), (status, Some(u64::from(status))), "{what}");
            assert_eq!(proxy.outcomes(), [Some(Outcome::Refused(reason))]);
            proxy.end().await;
        }
    }
}

#[tokio::test]
async fn each_clock_ends_what_takes_too_long() {
    let short = |connector, fallback| {
        let mut options = options(connector, fallback);
        options.prefill_time_out = Duration::from_millis(80);
        options.hand_off_time_out = Duration::from_millis(80);
        options.answer_time_out = Duration::from_millis(80);
        options
    };
    // A prefill that never answers.
    let engines = Engines::start(1, 1).await;
    engines.prefill[0].usually(never());
    engines.decode[0].next(never());
    let proxy = Proxy::start(&engines, short(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let got = post(proxy.address, "/v1/completions", BODY).await;
    assert_eq!(got.header("x-gco-exchange"), Some("decode-only; reason=prefill-timed-out"));
    // A decode that never gets its KV, with its head sent and without.
    engines.prefill[0].usually(super::json(ANSWER));
    for waiting in [never(), [vec![Step::Write(STREAM_HEAD.as_bytes().to_vec())], never()].concat()] {
        engines.decode[0].next(waiting);
        let got = post(proxy.address, "/v1/completions", STREAMED).await;
        assert_eq!(got.header("x-gco-exchange"), Some("decode-only; reason=hand-off-timed-out"));
        assert_eq!(got.text(), ANSWER);
    }
    assert_eq!(engines.bootstrap[0].count(), 3, "engine ids are asked for again after a failed exchange");
    // A decode that never answers at all.
    engines.decode[0].usually(never());
    let got = post(proxy.address, "/v1/completions", r#"{"n":2}"#).await;
    assert_eq!((got.status, got.json()["error"]["type"].as_str()), (504, Some("upstream_timeout")));
    proxy.end().await;

    let proxy = Proxy::start(&engines, short(Connector::Mooncake, Fallback::Fail)).await;
    assert_eq!(post(proxy.address, "/v1/completions", BODY).await.status, 504);
    proxy.end().await;
}

#[tokio::test]
async fn a_failed_hand_over_is_seen_in_the_first_event_and_nothing_of_it_reaches_the_client() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let failed = stream(&["data: {\"err", "or\":{\"message\":\"Internal server error\"}}\n\n", "data: [DONE]\n\n"]);
    let role = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    let failed_chat =
        stream(&[role, "data: {\"error\":{\"message\":\"Internal server error\"}}\n\n", "data: [DONE]\n\n"]);
    let good = stream(&["data: {\"id\":1}\n\n", "data: [DONE]\n\n"]);
    for failure in [failed, failed_chat, answer("500 Internal Server Error", "", "{\"error\":1}")] {
        engines.decode[0].next(failure);
        engines.decode[0].next(good.clone());
        let got = post(proxy.address, "/v1/completions", STREAMED).await;
        assert_eq!(got.header("x-gco-exchange"), Some("decode-only; reason=hand-off-failed"));
        assert_eq!((got.text().as_str(), got.is_whole), ("data: {\"id\":1}\n\ndata: [DONE]\n\n", true));
    }
    assert_eq!(engines.bootstrap[0].count(), 3, "engine ids are asked for again after a failed hand-over");
    // A parser of tool calls may keep the first texts to itself: the client gets the role before the next event is there.
    let held = Arc::new(Notify::new());
    let mut steps = stream(&[role, "data: {\"id\":2}\n\n", "data: [DONE]\n\n"]);
    let second = steps
        .iter()
        .position(|step| matches!(step, Step::Write(bytes) if String::from_utf8_lossy(bytes).contains("\"id\":2")))
        .unwrap();
    steps.insert(second, Step::Wait(held.clone()));
    engines.decode[0].next(steps);
    let mut exchange = Exchange::send(proxy.address, "POST /v1/chat/completions", "", STREAMED).await;
    exchange.read_text("assistant").await;
    assert!(exchange.has_read("x-gco-exchange: transferred"));
    held.notify_one();
    assert!(exchange.end().await.text().ends_with("data: {\"id\":2}\n\ndata: [DONE]\n\n"));
    proxy.end().await;
}

#[tokio::test]
async fn an_instance_without_an_engine_yet_gets_no_leg() {
    let engines = Engines::start(1, 1).await;
    engines.bootstrap[0].usually(super::json("{}"));
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let got = post(proxy.address, "/v1/completions", BODY).await;
    assert_eq!(got.header("x-gco-exchange"), Some("decode-only; reason=engine-unknown"));
    assert_eq!(engines.prefill[0].count(), 0);
    engines.bootstrap[0].usually(super::json(r#"{"0":{"engine_id":"late"}}"#));
    let found = eventually("the engine is found", || Some(())).await;
    let until = Instant::now() + super::client::PATIENCE;
    while post(proxy.address, "/v1/completions", BODY).await.header("x-gco-exchange") != Some("transferred") {
        assert!(Instant::now() < until, "the engine that registered late is never used");
    }
    let () = found;
    proxy.end().await;
}

#[tokio::test]
async fn a_stream_that_dies_ends_with_an_error_event_and_a_broken_connection() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let head = Step::Write(STREAM_HEAD.as_bytes().to_vec());
    // At an event's end, in its middle, and in the middle of a character.
    let in_a_character = [format!("{:x}\r\n", 8).as_bytes(), b"data: \xc3\xa4"].concat();
    let cases = [
        (chunk("data: 2\n\n"), "data: 2\n\n"),
        (chunk("data: 2"), "data: 2\n\n"),
        (in_a_character[..10].to_vec(), "data: \u{fffd}\n\n"),
    ];
    for (last, before) in cases {
        engines.decode[0].next(vec![head.clone(), Step::Write(chunk("data: 1\n\n")), Step::Write(last), Step::Close]);
        let got = post(proxy.address, "/v1/completions", STREAMED).await;
        assert_eq!(got.status, 200);
        assert!(!got.is_whole, "the end looks clean: {:?}", got.text());
        let text = got.text();
        let event =
            text.strip_prefix(&format!("data: 1\n\n{before}data: ")).unwrap_or_else(|| panic!("other bytes: {text:?}"));
        let error: serde_json::Value = serde_json::from_str(event.trim()).unwrap();
        assert_eq!(
            (error["error"]["type"].as_str(), error["error"]["code"].as_u64()),
            (Some("upstream_error"), Some(502))
        );
        let note = eventually("it is noted", || proxy.last_note().filter(|note| note.broken)).await;
        assert_eq!(note.outcome, Some(Outcome::Transferred));
    }
    // Not a stream: nothing is added, but its end is not clean either.
    engines.decode[0]
        .next(vec![Step::Write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{\"a\"".to_vec()), Step::Close]);
    let got = post(proxy.address, "/v1/completions", BODY).await;
    assert_eq!((got.text().as_str(), got.is_whole), ("{\"a\"", false));
    proxy.end().await;
}

#[tokio::test]
async fn a_stream_that_falls_silent_is_ended() {
    let engines = Engines::start(1, 1).await;
    let mut options = options(Connector::Mooncake, Fallback::DecodeOnly);
    options.idle_time_out = Duration::from_millis(80);
    let proxy = Proxy::start(&engines, options).await;
    engines.decode[0]
        .next([vec![Step::Write([STREAM_HEAD.as_bytes(), &chunk("data: 1\n\n")].concat())], never()].concat());
    let got = post(proxy.address, "/v1/completions", STREAMED).await;
    assert!(!got.is_whole && got.text().contains("\"code\":504"), "{}", got.text());
    eventually("the engine was left", || (engines.decode[0].running() == 0).then_some(())).await;
    proxy.end().await;
}

#[tokio::test]
async fn decode_that_breaks_before_its_first_event_is_replaced_by_another() {
    for connector in [Connector::Mooncake, Connector::Nixl] {
        let engines = Engines::start(1, 2).await;
        let proxy = Proxy::start(&engines, options(connector, Fallback::Fail)).await;
        for decode in &engines.decode {
            decode.next(vec![Step::Write(STREAM_HEAD.as_bytes().to_vec()), Step::Close]);
        }
        let good = stream(&["data: 1\n\n", "data: [DONE]\n\n"]);
        engines.decode.iter().for_each(|decode| decode.usually(good.clone()));
        let got = post(proxy.address, "/v1/completions", STREAMED).await;
        // Both broke once: there is no third.
        assert_eq!((got.status, got.json()["error"]["type"].as_str()), (502, Some("upstream_error")));
        let got = post(proxy.address, "/v1/completions", STREAMED).await;
        assert_eq!(got.header("x-gco-exchange"), Some("transferred"));
        let transfers: Vec<_> = engines.prefill[0]
            .received()
            .iter()
            .map(|got| got.json()["kv_transfer_params"]["transfer_id"].clone())
            .collect();
        if connector == Connector::Mooncake {
            let mut different = transfers.clone();
            different.dedup();
            assert_eq!(different.len(), 3, "every try has a transfer id of its own: {transfers:?}");
        }
        proxy.end().await;
    }
}

#[tokio::test]
async fn the_last_engines_own_answer_is_better_than_none() {
    let engines = Engines::start(1, 2).await;
    engines
        .decode
        .iter()
        .for_each(|decode| decode.usually(answer("503 Service Unavailable", "retry-after: 7\r\n", "own words")));
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let got = post(proxy.address, "/v1/completions", BODY).await;
    assert_eq!((got.status, got.text().as_str(), got.header("retry-after")), (503, "own words", Some("7")));
    assert_eq!(engines.decode.iter().map(Engine::count).sum::<usize>(), 2);
    proxy.end().await;
}

#[tokio::test]
async fn without_a_decode_engine_the_contracts_answer_is_given() {
    let mut engines = Engines::start(1, 0).await;
    let mut options = options(Connector::Mooncake, Fallback::DecodeOnly);
    options.no_decode_message = "nobody here".to_owned();
    let proxy = Proxy::start(&engines, options.clone()).await;
    let got = post(proxy.address, "/v1/completions", BODY).await;
    assert_eq!(got.status, 503);
    assert_eq!(
        (got.json()["error"]["type"].as_str(), got.json()["error"]["message"].as_str()),
        (Some("no_decode_backend"), Some("nobody here"))
    );
    proxy.end().await;
    engines.decode.push(dead().await);
    let proxy = Proxy::start(&engines, options).await;
    let got = post(proxy.address, "/v1/completions", BODY).await;
    assert_eq!((got.status, got.json()["error"]["type"].as_str()), (503, Some("no_decode_backend")));
    proxy.end().await;
}

#[tokio::test]
async fn own_limits_answer_429_and_open_no_breaker() {
    let engines = Engines::start(1, 1).await;
    let settings = FleetSettings { max_in_flight: 1, queue_length: 0, ..FleetSettings::default() };
    let proxy = Proxy::with_fleet(&engines, options(Connector::Mooncake, Fallback::DecodeOnly), settings).await;
    let hold = Arc::new(Notify::new());
    engines.decode[0].next([vec![Step::Wait(hold.clone())], super::json(ANSWER)].concat());
    let first = Exchange::send(proxy.address, "POST /v1/completions", "", BODY).await;
    eventually("the first is being served", || (engines.decode[0].running() == 1).then_some(())).await;
    for _ in 0..20 {
        let got = post(proxy.address, "/v1/completions", BODY).await;
        assert_eq!((got.status, got.header("retry-after")), (429, Some("1")));
    }
    hold.notify_one();
    assert_eq!(first.end().await.status, 200);
    eventually("its place is free", || (proxy.in_flight() == 0).then_some(())).await;
    assert_eq!(post(proxy.address, "/v1/completions", BODY).await.status, 200);
    proxy.end().await;
}

#[tokio::test]
async fn a_leg_that_was_closed_frees_its_place_at_once() {
    let engines = Engines::start(1, 1).await;
    engines.prefill[0].usually(never());
    engines.decode[0].next(answer("500 Internal Server Error", "", "no KV"));
    let hold = Arc::new(Notify::new());
    engines.decode[0].next([vec![Step::Wait(hold.clone())], super::json(ANSWER)].concat());
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let exchange = Exchange::send(proxy.address, "POST /v1/completions", "", BODY).await;
    eventually("decode is asked again", || (engines.decode[0].count() == 2).then_some(())).await;
    let places = |role| proxy.fleet.backends(role).iter().map(|backend| backend.in_flight()).sum::<usize>();
    eventually("prefill is left", || (places(Role::Prefill) == 0 && engines.prefill[0].running() == 0).then_some(()))
        .await;
    assert_eq!(places(Role::Decode), 1);
    hold.notify_one();
    assert_eq!(exchange.end().await.header("x-gco-exchange"), Some("decode-only; reason=hand-off-failed"));
    proxy.end().await;
}

/// Starts a request, waits until it is where it should be, leaves, and measures when the engines see it.
async fn leave(connector: Connector, body: &str, prefill: Vec<Step>, decode: Vec<Step>, until: &str) {
    let engines = Engines::start(1, 1).await;
    engines.prefill[0].usually(prefill);
    engines.decode[0].usually(decode);
    let proxy = Proxy::start(&engines, options(connector, Fallback::DecodeOnly)).await;
    let mut exchange = Exchange::send(proxy.address, "POST /v1/completions", "", body).await;
    let (first, second) = (&engines.prefill[0], &engines.decode[0]);
    match until {
        "prefill" => eventually("prefill runs", || (first.running() == 1).then_some(())).await,
        "both" => eventually("both run", || (first.running() == 1 && second.running() == 1).then_some(())).await,
        "decode" => eventually("decode runs", || (first.running() == 0 && second.running() == 1).then_some(())).await,
        text => exchange.read_text(text).await,
    }
    let running = first.running() + second.running();
    let calls = (first.count(), second.count());
    drop(exchange);
    let left = Instant::now();
    eventually("the engines see it", || (first.left().len() + second.left().len() == running).then_some(())).await;
    for seen in first.left().into_iter().chain(second.left()) {
        let after = seen.saturating_duration_since(left);
        assert!(after < SEEN_WITHIN, "{connector:?} {until}: seen after {after:?}");
    }
    eventually("nothing is in flight", || (proxy.in_flight() == 0).then_some(())).await;
    assert_eq!(
        (first.count(), second.count()),
        calls,
        "{connector:?} {until}: something was called after the client left"
    );
    let outcome = eventually("it is counted", || proxy.outcomes().pop()).await;
    let expected = if until.starts_with("data") { Outcome::Transferred } else { Outcome::Abandoned };
    assert_eq!(outcome, Some(expected));
    proxy.end().await;
}

#[tokio::test]
async fn when_the_client_leaves_every_engine_sees_it_at_once_and_nothing_is_called_after_it() {
    let quick = super::json(super::NIXL_ANSWER);
    let begun = [vec![Step::Write([STREAM_HEAD.as_bytes(), &chunk("data: 1\n\n")].concat())], never()].concat();
    let head_only = [vec![Step::Write(STREAM_HEAD.as_bytes().to_vec())], never()].concat();
    leave(Connector::Nixl, BODY, never(), never(), "prefill").await;
    leave(Connector::Nixl, BODY, quick.clone(), never(), "decode").await;
    leave(Connector::Nixl, STREAMED, quick.clone(), begun.clone(), "data: 1\n\n").await;
    leave(Connector::Mooncake, BODY, never(), never(), "both").await;
    leave(Connector::Mooncake, BODY, quick.clone(), never(), "decode").await;
    leave(Connector::Mooncake, STREAMED, quick.clone(), head_only, "decode").await;
    leave(Connector::Mooncake, STREAMED, quick, begun.clone(), "data: 1\n\n").await;
    // Decode was faster than prefill's own answer: both see it.
    leave(Connector::Mooncake, STREAMED, never(), begun, "data: 1\n\n").await;
}
