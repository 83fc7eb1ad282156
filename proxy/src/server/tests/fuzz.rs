//! Many requests and answers that a generator makes, through the whole proxy.

use gco_runtime::environment::Environment;

use super::client::{Exchange, post};
use super::engine::{STREAM_HEAD, Step};
use super::{Engines, Proxy, options};
use crate::exchange::{Connector, Fallback};

/// `GCO_SUITE_SIZE=full` asks for more.
fn rounds() -> u64 {
    if Environment::process().get("GCO_SUITE_SIZE") == Some("full") { 20_000 } else { 300 }
}

/// SplitMix64: the same seed gives the same inputs.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[tokio::test]
async fn whatever_decode_answers_in_whatever_pieces_the_client_gets_the_same_bytes() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    const PARTS: [&str; 10] = [
        "data: {\"a\":1}\n\n",
        "data: ä🦀\n\n",
        ": ping\n\n",
        "\n",
        "\r\n",
        "data: [DONE]\n\n",
        "x",
        "\0",
        "data: ",
        "\u{feff}",
    ];
    for seed in 0..rounds() {
        let mut state = seed;
        // The first event is good: one that is an error is another matter.
        let mut body = b"data: {\"id\":0}\n\n".to_vec();
        for _ in 0..next(&mut state) % 40 {
            body.extend_from_slice(PARTS[(next(&mut state) % 10) as usize].as_bytes());
            if next(&mut state).is_multiple_of(8) {
                body.push(next(&mut state) as u8);
            }
        }
        // HTTP's own bytes, cut anywhere: in the head, in the length of a chunk, in a character.
        let mut wire = STREAM_HEAD.as_bytes().to_vec();
        let mut at = 0;
        while at < body.len() {
            let end = (at + 1 + (next(&mut state) % 60) as usize).min(body.len());
            wire.extend_from_slice(format!("{:X}\r\n", end - at).as_bytes());
            wire.extend_from_slice(&body[at..end]);
            wire.extend_from_slice(b"\r\n");
            at = end;
        }
        wire.extend_from_slice(b"0\r\n\r\n");
        let mut steps = Vec::new();
        let mut at = 0;
        while at < wire.len() {
            let end = (at + 1 + (next(&mut state) % 90) as usize).min(wire.len());
            steps.push(Step::Write(wire[at..end].to_vec()));
            at = end;
        }
        engines.decode[0].next(steps);
        let got = post(proxy.address, "/v1/completions", r#"{"prompt":"x","stream":true}"#).await;
        assert!(
            got.is_whole && got.body == body,
            "seed {seed}: {:?} became {:?}",
            String::from_utf8_lossy(&body),
            got.text()
        );
        assert_eq!(got.header("x-gco-exchange"), Some("transferred"), "seed {seed}");
    }
    proxy.end().await;
}

#[tokio::test]
async fn a_client_that_leaves_after_any_of_the_first_200_bytes_of_an_answer_leaves_nothing_behind() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let never = std::sync::Arc::new(tokio::sync::Notify::new());
    let events: String = (0..20).map(|index| format!("data: {index}\n\n")).collect();
    engines.decode[0].usually(vec![
        Step::Write([STREAM_HEAD.as_bytes(), &super::engine::chunk(&events)].concat()),
        Step::Wait(never),
    ]);
    for byte in 1..=200 {
        let before = engines.decode[0].left().len();
        let mut exchange = Exchange::send(proxy.address, "POST /v1/completions", "", r#"{"stream":true}"#).await;
        exchange.read_exactly(byte).await;
        drop(exchange);
        super::eventually("decode sees it", || (engines.decode[0].left().len() > before).then_some(())).await;
        super::eventually("nothing is in flight", || (proxy.in_flight() == 0).then_some(())).await;
    }
    assert_eq!(engines.prefill[0].count(), 200);
    assert_eq!(engines.decode[0].count(), 200);
    proxy.end().await;
}
