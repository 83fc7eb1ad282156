//! A long run with everything that changes: clients that leave, engines that fail and are started again, backends that come
//! and go. In the end the proxy holds what it held before, and no more memory than after the first part of the same load.

#![expect(clippy::unwrap_used, reason = "a suite fails by panicking")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use gco_local::engine::{CompletionOrder, CutEnd, CutPoint, Orders};
use gco_local::loopback::{LoopbackClient, json_request};
use gco_runtime::random::SeededRandomness;
use gco_tests::dice::roll;
use gco_tests::proxy::{EngineSpec, Reply, Split, raw};
use gco_tests::size::Size;
use serde_json::json;
use tokio::time::Instant;

/// Clients at the same time.
const CLIENTS: usize = 24;

/// How far resident memory may be from what it was after the first part.
const DRIFT_BYTES: i64 = 5 * 1024 * 1024;

#[derive(Debug, Default)]
struct Counts {
    whole: AtomicU64,
    transferred: AtomicU64,
    left: AtomicU64,
    broken: AtomicU64,
    wrong: AtomicU64,
}

async fn client(number: usize, port: u16, over: &AtomicBool, counts: &Counts) {
    let dice = SeededRandomness::new(number as u64);
    let mut client = LoopbackClient::new();
    let mut sent = 0_usize;
    while !over.load(Ordering::Relaxed) {
        sent += 1;
        let nonce = format!("c{number}r{sent}x");
        let body = json!({
            "prompt": format!("{nonce} {}", "word ".repeat(roll(&dice) % 400)),
            "max_tokens": 20 + roll(&dice) % 60,
            "stream": !roll(&dice).is_multiple_of(3),
        });
        match roll(&dice) % 10 {
            0 => {
                // Leaves at some byte of the answer.
                let request = raw::post("/v1/completions", &[], body.to_string().as_bytes());
                if let Ok(mut stream) = raw::open(port, &request).await {
                    let _ = raw::read(&mut stream, roll(&dice) % 600).await;
                    counts.left.fetch_add(1, Ordering::Relaxed);
                }
            }
            1 => client = LoopbackClient::new(),
            _ => {
                let reply = Reply::to(&client, port, json_request("/v1/completions", &body).unwrap()).await;
                match reply {
                    Ok(reply) if reply.status == 200 && reply.whole && !reply.text().contains("{\"error\"") => {
                        let right = reply.said().is_ok_and(|said| said.contains(&format!("you said \"{nonce}")));
                        let counter = if right { &counts.whole } else { &counts.wrong };
                        counter.fetch_add(1, Ordering::Relaxed);
                        if reply.exchange() == "transferred" {
                            counts.transferred.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    _ => {
                        counts.broken.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }
}

/// One change after the other, until the time is over.
async fn churn(split: &mut Split, pause: Duration, until: Instant) {
    let mut turn = 0_usize;
    while Instant::now() + pause < until {
        tokio::time::sleep(pause).await;
        turn += 1;
        let engine = turn % 2;
        match turn % 6 {
            0 => split.prefills[engine].restart().await.unwrap(),
            1 => split.decodes[engine].restart().await.unwrap(),
            2 => {
                let failing =
                    Orders { completions: Some(CompletionOrder::Status(500)), times: Some(20), ..Orders::default() };
                split.prefills[engine].order(&failing).await.unwrap();
            }
            3 => {
                let at = CutPoint::Bytes(400);
                let cut = CompletionOrder::Cut { at, then: CutEnd::Close };
                split.decodes[engine]
                    .order(&Orders { completions: Some(cut), times: Some(5), ..Orders::default() })
                    .await
                    .unwrap();
            }
            4 => split.write_backends(&[&split.prefills[0]], &[&split.decodes[1]]).unwrap(),
            _ => {
                let prefills: Vec<_> = split.prefills.iter().collect();
                let decodes: Vec<_> = split.decodes.iter().collect();
                split.write_backends(&prefills, &decodes).unwrap();
            }
        }
    }
    for engine in split.prefills.iter().chain(&split.decodes) {
        engine.order(&Orders::default()).await.unwrap();
    }
    let prefills: Vec<_> = split.prefills.iter().collect();
    let decodes: Vec<_> = split.decodes.iter().collect();
    split.write_backends(&prefills, &decodes).unwrap();
}

#[tokio::test]
async fn a_long_run_with_churn_keeps_no_file_no_task_and_no_memory() {
    let size = Size::asked();
    let (first_part, whole) = size.choose((8, 24), (60, 1200));
    let pause = Duration::from_secs(size.choose(1, 5));
    let prefills = vec![EngineSpec::prefill("p-0"), EngineSpec::prefill("p-1")];
    let decodes = vec![EngineSpec::decode("d-0"), EngineSpec::decode("d-1")];
    let settings = [
        ("GCO_PROXY_ACCESS_LOG_SAMPLE", "0"),
        ("GCO_PROXY_HANDOFF_TIMEOUT_SECONDS", "3"),
        ("GCO_PROXY_BREAKER_OPEN_SECONDS", "0.2"),
    ];
    let settings = &settings[..];
    let mut split = Split::start(prefills, decodes, settings).await.unwrap();
    let before = split.note_rest().await.unwrap();
    let idle = split.process.resident_bytes().unwrap();

    let (over, counts, port) = (AtomicBool::new(false), Counts::default(), split.port);
    let began = Instant::now();
    let run = async {
        churn(&mut split, pause, began + Duration::from_secs(first_part)).await;
        let first = split.process.resident_bytes().unwrap();
        churn(&mut split, pause, began + Duration::from_secs(whole)).await;
        let last = split.process.resident_bytes().unwrap();
        over.store(true, Ordering::Relaxed);
        (first, last)
    };
    let clients = join_all((0..CLIENTS).map(|number| client(number, port, &over, &counts)));
    let ((first, last), _) = tokio::join!(run, clients);
    println!(
        "{whole} s: {counts:?}; idle {} KiB, after the first {first_part} s {} KiB, in the end {} KiB; at rest {before:?}",
        idle / 1024,
        first / 1024,
        last / 1024
    );
    assert_eq!(counts.wrong.load(Ordering::Relaxed), 0, "an answer was another's, or not whole: {counts:?}");
    assert!(counts.transferred.load(Ordering::Relaxed) > 50, "hardly anything was transferred: {counts:?}");
    let drift = i64::try_from(last).unwrap() - i64::try_from(first).unwrap();
    assert!(drift <= DRIFT_BYTES, "grew by {drift} bytes after the first part");
    split.rests_as_before().await.unwrap();
}
