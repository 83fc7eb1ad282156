//! The load goes through gco-proxy to the engine, and everything that was asked for comes back.
#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gco_proxy_bench::lane::Lane;
use gco_proxy_bench::load::{Load, Pace, Plan, Target, probe};
use gco_proxy_bench::machine::Cores;
use gco_proxy_bench::mock::Mock;
use gco_proxy_bench::tag::Tag;
use gco_tests::proxy::Logged;
use gco_tests::region::monitor::program;

const CONNECTIONS: usize = 20;

fn plan(tag: Tag) -> Plan {
    Plan {
        connections: CONNECTIONS,
        pace: Pace::Once,
        tag,
        body_bytes: 1024,
        stagger: Duration::ZERO,
        times_events: true,
    }
}

fn lane() -> Lane {
    let Cores { proxy, load } = Cores::find().unwrap();
    Lane::start("test-load", &[proxy, load]).unwrap()
}

async fn proxy(mock: &Mock) -> (Logged, Target) {
    let (prefill, decode) = (format!("http://{}", mock.prefill), format!("http://{}", mock.decode));
    let environment = [
        ("PD_PROXY_HOST", "127.0.0.1"),
        ("PD_PROXY_PORT", "0"),
        ("PD_PROXY_PREFILL_URL", prefill.as_str()),
        ("PD_PROXY_DECODE_URL", decode.as_str()),
        ("GCO_PROXY_CONNECTOR", "nixl"),
    ];
    let program = program("gco-proxy", &["proxy/src", "infra/runtime/src"]).unwrap();
    let process = Logged::start("gco-proxy", program, [], environment).unwrap();
    let port = process.port().await.unwrap();
    (process, Target { address: ([127, 0, 0, 1], port).into(), prefill: None })
}

#[tokio::test]
async fn every_request_through_the_proxy_is_answered_by_both_roles_with_its_own_answer() {
    let lane = lane();
    let mock = Mock::start(lane.handle()).await.unwrap();
    let (_process, target) = proxy(&mock).await;
    for tag in [Tag::whole(), Tag::stream(30, 200, 2_000)] {
        let load = Load::start(lane.handle(), target, plan(tag));
        let tally = load.tally.clone();
        tally.measure(true);
        load.finish().await;
        let counts = [&tally.good, &tally.wrong, &tally.failed].map(|count| count.load(Relaxed));
        assert_eq!(counts, [CONNECTIONS as u64, 0, 0], "{:?}", tally.last_problem());
        let samples = tally.take_samples();
        let events = if tag.streams { CONNECTIONS * 30 } else { 0 };
        assert_eq!((samples.total_nanos.len(), samples.event_nanos.len()), (CONNECTIONS, events));
    }
    let accounts = &mock.accounts;
    let handed = [&accounts.prefills_for_remote, &accounts.decodes, &accounts.decodes_from_remote];
    assert_eq!(handed.map(|count| count.load(Relaxed)), [2 * CONNECTIONS as u64; 3]);
}

#[tokio::test]
async fn the_client_that_does_both_hops_hands_over_too_and_the_direct_one_does_not() {
    let lane = lane();
    let mock = Mock::start(lane.handle()).await.unwrap();
    let both = Target { address: mock.decode, prefill: Some(mock.prefill) };
    let one = Target { address: mock.decode, prefill: None };
    for (target, handed) in [(both, CONNECTIONS), (one, CONNECTIONS)] {
        let load = Load::start(lane.handle(), target, plan(Tag::stream(3, 200, 0)));
        let tally = load.tally.clone();
        load.finish().await;
        assert_eq!(tally.good.load(Relaxed), CONNECTIONS as u64, "{:?}", tally.last_problem());
        assert_eq!(mock.accounts.decodes_from_remote.load(Relaxed), handed as u64);
    }
    assert_eq!(mock.accounts.decodes.load(Relaxed), 2 * CONNECTIONS as u64);
}

#[tokio::test]
async fn an_answer_that_was_not_asked_for_is_wrong() {
    let lane = lane();
    let mock = Mock::start(lane.handle()).await.unwrap();
    // The port that prefills answers in one piece, whatever is asked.
    let wrong = Target { address: mock.prefill, prefill: None };
    let problem = probe(lane.handle(), wrong, Tag::stream(3, 200, 0)).await.unwrap_err();
    assert!(problem.contains("events: 0"), "{problem}");
}
