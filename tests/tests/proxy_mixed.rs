//! Thousands of requests of every kind, with faults among them: none is lost, none gets another's answer, each is counted as
//! what it was, and the engines' own accounts of which KV moved agree with the proxy's.

#![expect(clippy::unwrap_used, reason = "a suite fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use gco_local::engine::{CompletionOrder, Moved, Orders, QueryOrder};
use gco_local::loopback::json_request;
use gco_runtime::random::SeededRandomness;
use gco_tests::dice::roll;
use gco_tests::proxy::{EngineSpec, Reply, Split};
use gco_tests::size::Size;
use serde_json::{Value, json};

/// Requests at the same time.
const AT_ONCE: usize = 64;

/// A request and what its answer must be.
struct Planned {
    path: &'static str,
    body: Value,
    nonce: String,
    /// What serves it whole for what it is, or refuses it.
    expected: Expected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Exchange,
    Whole,
    Refused,
}

fn plan(number: usize, dice: &SeededRandomness) -> Planned {
    let roll = |sides: usize| roll(dice) % sides;
    let nonce = format!("n{number}x");
    let filler = ["", "déjà vu", "日本語のテキスト", "a\"quoted\\ \n line", "😀"][roll(5)];
    // Some prompts are longer than the pieces in which bytes are read.
    let long = if roll(20) == 0 { "word ".repeat(3000) } else { String::new() };
    let text = format!("{nonce} {filler} {long}");
    let (path, mut body) = if roll(2) == 0 {
        ("/v1/completions", json!({"prompt": text}))
    } else {
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "system", "content": filler}, {"role": "user", "content": text}]}),
        )
    };
    body["max_tokens"] = json!(30 + roll(40));
    if roll(2) == 0 {
        body["stream"] = json!(true);
        if roll(2) == 0 {
            body["stream_options"] = json!({"include_usage": true});
        }
    }
    if roll(3) == 0 {
        body["min_tokens"] = json!(20);
    }
    if roll(4) == 0 {
        body["kv_transfer_params"] = json!({"do_remote_prefill": true, "transfer_id": nonce});
    }
    let expected = match roll(25) {
        0 => {
            body["n"] = json!(2);
            Expected::Whole
        }
        1 => {
            body["min_tokens"] = json!(500);
            Expected::Refused
        }
        2 => {
            body["model"] = json!("nobody/serves-this");
            Expected::Refused
        }
        _ => Expected::Exchange,
    };
    Planned { path, body, nonce, expected }
}

fn check(planned: &Planned, reply: &Reply) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{}: {what}: {} {}", planned.nonce, reply.exchange(), reply.text()));
    if !reply.whole {
        return wrong("not whole");
    }
    match planned.expected {
        Expected::Refused => {
            if !(400..500).contains(&reply.status) || !reply.json()["error"].is_object() {
                return wrong("not refused");
            }
        }
        Expected::Exchange | Expected::Whole => {
            let said = reply.said().map_err(|problem| format!("{}: {problem:#}", planned.nonce))?;
            if !said.contains(&format!("you said \"{} ", planned.nonce))
                && !said.contains(&format!("\"{}", planned.nonce))
            {
                return wrong("another's answer");
            }
            if !said.contains("pod d-") {
                return wrong("not decode's answer");
            }
        }
    }
    let exchange = reply.exchange();
    let fits = match planned.expected {
        Expected::Exchange => exchange == "transferred" || exchange.starts_with("decode-only; reason="),
        Expected::Whole => exchange.starts_with("decode-only; reason=many-"),
        Expected::Refused => exchange.starts_with("refused; reason="),
    };
    if fits { Ok(()) } else { wrong("counted as something else") }
}

fn ids(moved: &[Moved]) -> BTreeSet<String> {
    moved.iter().map(|one| one.transfer_id.clone()).collect()
}

/// Runs the whole of it with one connector.
async fn mixed(connector: &str, count: usize, prefill: fn(&str) -> EngineSpec, decode: fn(&str) -> EngineSpec) {
    let prefills = vec![prefill("p-0"), prefill("p-1")];
    let decodes = vec![decode("d-0"), decode("d-1")];
    let settings = [("GCO_PROXY_CONNECTOR", connector), ("GCO_PROXY_BREAKER_OPEN_SECONDS", "0.2")];
    let mut split = Split::start(prefills, decodes, &settings).await.unwrap();
    split.note_rest().await.unwrap();
    for engine in split.prefills.iter().chain(&split.decodes) {
        engine.clear_accounts().await.unwrap();
    }
    let counted_before = split.get("/metrics").await.unwrap().text();
    let log_before = split.access_log().unwrap().len();

    let dice = SeededRandomness::new(5);
    let planned: Vec<Planned> = (0..count).map(|number| plan(number, &dice)).collect();
    let ask = async |(number, planned): (usize, &Planned)| {
        // Faults come and go among the requests, on one prefill, then on both.
        let faults = Orders { completions: Some(CompletionOrder::Status(500)), times: Some(3), ..Orders::default() };
        if number % 200 == 150 {
            split.prefills[0].order(&faults).await.unwrap();
            split.prefills[1].order(&faults).await.unwrap();
        } else if number % 200 == 50 {
            split.prefills[0].order(&Orders { query: Some(QueryOrder::Empty), ..faults }).await.unwrap();
        } else if number % 200 == 100 {
            split.prefills[0].order(&Orders::default()).await.unwrap();
        }
        let request = json_request(planned.path, &planned.body).unwrap();
        let reply = split.send(request).await.map_err(|problem| format!("{}: {problem:#}", planned.nonce))?;
        check(planned, &reply).map(|()| reply.exchange().to_owned())
    };
    let began = tokio::time::Instant::now();
    let outcomes: Vec<Result<String, String>> =
        stream::iter(planned.iter().enumerate()).map(ask).buffer_unordered(AT_ONCE).collect().await;
    let took: Duration = began.elapsed();
    let failed: Vec<&String> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert!(
        failed.is_empty(),
        "{} of {count} lost, mixed or wrongly counted: {:#?}",
        failed.len(),
        &failed[..failed.len().min(3)]
    );

    split.rests_as_before().await.unwrap();
    let mut said = BTreeMap::<String, usize>::new();
    for exchange in outcomes.into_iter().flatten() {
        *said.entry(exchange).or_default() += 1;
    }
    // Each is counted once, as its own header says.
    let counted = split.get("/metrics").await.unwrap().text();
    for (exchange, times) in &said {
        let (outcome, reason) = exchange.split_once("; reason=").unwrap_or((exchange, ""));
        let both = |scrape: &str| -> f64 {
            let lines = scrape.lines().filter(|line| line.starts_with("gco_proxy_exchanges_total{"));
            let lines = lines.filter(|line| line.contains(&format!("outcome=\"{outcome}\"")));
            let lines = lines.filter(|line| reason.is_empty() || line.contains(&format!("reason=\"{reason}\"")));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        let counted = both(&counted) - both(&counted_before);
        #[expect(clippy::cast_precision_loss, reason = "a count")]
        let times = *times as f64;
        assert_eq!(counted, times, "{exchange}");
    }
    // The engines moved bytes under exactly the transfer ids that the proxy counts as transferred.
    let mut received = Vec::new();
    for engine in &split.decodes {
        let accounts = engine.accounts().await.unwrap();
        assert_eq!((accounts.mixed, accounts.refused_stale), (0, 0), "{}", engine.name());
        received.extend(accounts.received);
    }
    let mut sent = Vec::new();
    for engine in &split.prefills {
        sent.extend(engine.accounts().await.unwrap().sent);
    }
    assert!(received.iter().all(|moved| moved.bytes > 0));
    assert_eq!((ids(&sent).len(), ids(&received).len()), (sent.len(), received.len()), "an id was used twice");
    assert_eq!(ids(&sent), ids(&received));
    let log = split.access_log().unwrap();
    let log = &log[log_before..];
    assert_eq!(log.len(), count, "every request is in the access log once");
    let transferred: Vec<&Value> = log.iter().filter(|line| line["outcome"] == "transferred").collect();
    assert_eq!(transferred.len(), said.get("transferred").copied().unwrap_or_default());
    if connector == "mooncake" {
        let by_log = transferred.iter().filter_map(|line| line["transfer_id"].as_str().map(str::to_owned)).collect();
        assert_eq!(ids(&received), by_log);
    } else {
        assert_eq!(received.len(), transferred.len());
    }
    let computed = split.decodes[0].metric("vllm:prompt_tokens_by_source_total", "local_compute").await.unwrap();
    println!("{connector}: {count} requests in {took:.1?}: {said:#?}; {computed} prompt tokens computed by d-0");
    assert!(said.keys().any(|exchange| exchange.starts_with("decode-only; reason=")), "no fall-back among them");
}

#[tokio::test]
async fn ten_thousand_mixed_requests_are_all_answered_and_counted_as_what_they_were_with_mooncake() {
    mixed("mooncake", Size::asked().choose(1000, 10_000), EngineSpec::prefill, EngineSpec::decode).await;
}

#[tokio::test]
async fn mixed_requests_are_all_answered_and_counted_as_what_they_were_with_nixl() {
    mixed("nixl", Size::asked().choose(400, 10_000), EngineSpec::nixl, EngineSpec::nixl).await;
}
