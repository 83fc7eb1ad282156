//! What a real engine does without a proxy before it: the rows of the table in `docs/real-engines.md` that the simulated
//! engine is held to. The last ones end the engine.

use std::fmt::Display;
use std::time::Duration;

use gco_local::loopback::{LoopbackClient, json_request};
use gco_tests::real::engine::{ABORT_SECONDS, ANSWER_BOUND};
use gco_tests::real::{RealEngine, Report};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::pair::{Kind, Pair};
use super::seconds;

/// Longer than decode waits for a prefill that never comes.
const LATE: Duration = Duration::from_secs(ABORT_SECONDS + 60);

fn prompt(text: &str) -> Value {
    json!({"model": "tiny", "prompt": text, "max_tokens": 6, "temperature": 0})
}

fn keep(transfer_id: &str) -> Value {
    json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": transfer_id})
}

async fn fetch(prefill: &RealEngine, transfer_id: &str) -> anyhow::Result<Value> {
    Ok(json!({
        "do_remote_decode": false, "do_remote_prefill": true, "remote_bootstrap_addr": prefill.bootstrap(),
        "remote_engine_id": prefill.engine_id().await?, "transfer_id": transfer_id,
    }))
}

fn verdict<T: Display>(good: bool, seen: T) -> Result<T, T> {
    if good { Ok(seen) } else { Err(seen) }
}

/// `/v1/responses` and `/v1/embeddings`, by the proxy and with parameters at the engines themselves.
pub(crate) async fn other_routes(pair: &Pair, report: &mut Report) -> anyhow::Result<()> {
    let body = json!({"model": "tiny", "input": "responses", "max_output_tokens": 6, "temperature": 0});
    let reply = pair.proxy.ask("/v1/responses", &body).await?;
    let seen = format!("{}: {}", reply.status, reply.exchange());
    let good = reply.status == 200 && reply.exchange() == "decode-only; reason=path";
    report.check(&pair.named("/v1/responses is served whole by decode"), verdict(good, seen));
    let reply = pair.proxy.ask("/v1/embeddings", &json!({"model": "tiny", "input": "x"})).await?;
    report.saw(
        &pair.named("/v1/embeddings of a model that generates text"),
        format!("{}: {}", reply.status, reply.text()),
    );
    if pair.kind == Kind::Nixl {
        return Ok(());
    }
    // Whether engines would take the parameters there.
    let before = pair.decode.tokens().await?;
    let mut first = body.clone();
    first["input"] = json!("responses with parameters");
    let mut second = first.clone();
    first["max_output_tokens"] = json!(1);
    first["kv_transfer_params"] = keep("responses");
    second["kv_transfer_params"] = fetch(&pair.prefill, "responses").await?;
    let (first, second) =
        tokio::join!(pair.prefill.post("/v1/responses", &first), pair.decode.post("/v1/responses", &second));
    let (first, second) = (first?, second?);
    let moved = pair.decode.tokens().await? - before;
    let seen = format!("{} and {}, decode's prompt tokens: {moved:?}", first.status, second.status);
    let good = second.status == 200 && moved.external > 0.0 && moved.local_compute == 0.0;
    report.check(
        &pair.named("engines take kv_transfer_params on /v1/responses when asked directly"),
        verdict(good, seen),
    );
    Ok(())
}

/// What was seen once and the simulated engine is built on.
pub(crate) async fn check(pair: &Pair, report: &mut Report) -> anyhow::Result<()> {
    match pair.kind {
        Kind::Mooncake => mooncake(pair, report).await,
        Kind::Nixl => nixl(pair, report).await,
    }
}

async fn mooncake(pair: &Pair, report: &mut Report) -> anyhow::Result<()> {
    let Pair { prefill, decode, .. } = pair;
    head_before_kv(pair, report).await?;

    let mut body = prompt("whole and late");
    body["kv_transfer_params"] = fetch(prefill, "nobody-prefills-this-either").await?;
    let began = Instant::now();
    let answer = LoopbackClient::new().post(decode.port(), "/v1/completions", &body, LATE).await?;
    let good = answer.status == 500
        && answer.json()["error"]["type"] == "InternalServerError"
        && began.elapsed() >= Duration::from_secs(ABORT_SECONDS);
    let seen = format!("{} after {}: {}", answer.status, seconds(began.elapsed()), answer.text());
    report.check(&pair.named("decode alone, prefill never comes: 500 after the abort time-out"), verdict(good, seen));

    body["kv_transfer_params"]["remote_engine_id"] = json!("not-an-engine");
    let began = Instant::now();
    let answer = decode.post("/v1/completions", &body).await?;
    let at_once = began.elapsed() < Duration::from_secs(ABORT_SECONDS);
    let seen = format!("{} after {}: {}", answer.status, seconds(began.elapsed()), answer.text());
    report.check(
        &pair.named("decode alone, unknown engine id: 500 before the abort time-out"),
        verdict(answer.status == 500 && at_once, seen),
    );

    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "failing chat"}], "stream": true});
    body["kv_transfer_params"] = fetch(prefill, "nobody-prefills-for-a-chat").await?;
    body["kv_transfer_params"]["remote_engine_id"] = json!("not-an-engine");
    let text = decode.post("/v1/chat/completions", &body).await?.text();
    let events: Vec<&str> = text.split_terminator("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    let parsed =
        |index: usize| events.get(index).and_then(|event| serde_json::from_str(event).ok()).unwrap_or(json!({}));
    let good = parsed(0)["choices"][0]["delta"] == json!({"role": "assistant", "content": ""})
        && parsed(1)["error"]["code"] == 500
        && events.last() == Some(&"[DONE]");
    report.check(
        &pair.named("decode alone, a streamed chat without KV: its role, the failure, then [DONE]"),
        verdict(good, format!("{text:?}")),
    );

    let mut body = prompt("nothing kept");
    body["kv_transfer_params"] = json!({"do_remote_decode": true});
    let answer = prefill.post("/v1/completions", &body).await?;
    let good = answer.status == 200 && answer.json()["kv_transfer_params"].is_null();
    report.check(&pair.named("prefill alone, no transfer id: 200 and no parameters"), verdict(good, answer.text()));

    // Waits for ever, and when the client leaves nothing worse happens as long as only the transfer id is missing.
    let mut body = prompt("incomplete");
    body["kv_transfer_params"] = json!({
        "do_remote_prefill": true, "remote_engine_id": "e", "remote_bootstrap_addr": "http://127.0.0.1:1",
    });
    let waited =
        LoopbackClient::without_reuse().post(decode.port(), "/v1/completions", &body, Duration::from_secs(5)).await;
    decode.tokens().await?;
    let lives = decode.lives().await.is_ok();
    let seen = format!("{}, then {}", said(&waited), if lives { "it lives" } else { "it ended" });
    report.check(
        &pair.named("decode alone, transfer id missing: waits, and lives on when the client leaves"),
        verdict(waited.is_err() && lives, seen),
    );

    body["prompt"] = json!("too long ".repeat(3_000));
    body["kv_transfer_params"] = json!({"do_remote_prefill": true, "transfer_id": "x"});
    let answer = decode.post("/v1/completions", &body).await;
    ends(pair, report, decode, "decode alone, only the transfer id and a prompt that is too long", &said(&answer))
        .await;

    let mut body = prompt("the other role");
    body["kv_transfer_params"] = fetch(prefill, "misdirected").await?;
    let answer = LoopbackClient::new().post(prefill.port(), "/v1/completions", &body, LATE).await;
    ends(pair, report, prefill, "prefill alone, told to fetch", &said(&answer)).await;
    Ok(())
}

/// A stream has its head long before it is known whether there will be KV.
async fn head_before_kv(pair: &Pair, report: &mut Report) -> anyhow::Result<()> {
    let mut body = prompt("streamed and late");
    body["stream"] = json!(true);
    body["kv_transfer_params"] = fetch(&pair.prefill, "nobody-prefills-this").await?;
    let began = Instant::now();
    let response = LoopbackClient::new().send(pair.decode.port(), json_request("/v1/completions", &body)?).await?;
    let (status, head) = (response.status(), began.elapsed());
    let text = tokio::time::timeout(LATE, response.into_body().collect()).await??.to_bytes();
    let text = String::from_utf8_lossy(&text).into_owned();
    let (all, abort) = (began.elapsed(), Duration::from_secs(ABORT_SECONDS));
    let seen = format!("status {status} after {}, all after {}: {text:?}", seconds(head), seconds(all));
    let good = status == 200 && head < abort && all >= abort;
    report.check(&pair.named("decode alone, streaming: the head comes before the KV"), verdict(good, seen));
    let error = text.strip_prefix("data: ").and_then(|rest| rest.strip_suffix("\n\ndata: [DONE]\n\n"));
    let error: Value = error.and_then(|error| serde_json::from_str(error).ok()).unwrap_or_default();
    let good = error["error"]["code"] == 500 && error["error"]["type"] == "InternalServerError";
    report.check(&pair.named("decode alone, streaming: the failure is an event, then [DONE]"), verdict(good, text));
    Ok(())
}

async fn nixl(pair: &Pair, report: &mut Report) -> anyhow::Result<()> {
    let Pair { prefill, decode, .. } = pair;
    let mut body = prompt("nixl by hand");
    body["max_tokens"] = json!(1);
    body["kv_transfer_params"] = json!({"do_remote_decode": true, "do_remote_prefill": false});
    let answer = prefill.post("/v1/completions", &body).await?.json();
    let parameters = &answer["kv_transfer_params"];
    let members = ["remote_engine_id", "remote_block_ids", "remote_host", "remote_port", "remote_request_id"];
    let good = parameters["do_remote_prefill"] == true && members.iter().all(|member| !parameters[member].is_null());
    report.check(&pair.named("prefill alone answers with decode's parameters"), verdict(good, parameters.to_string()));
    let mut body = prompt("nixl by hand");
    body["kv_transfer_params"] = parameters.clone();
    let before = decode.tokens().await?;
    let answer = decode.post("/v1/completions", &body).await?;
    let moved = decode.tokens().await? - before;
    let good = answer.status == 200 && moved.external > 0.0 && moved.local_compute == 0.0;
    report.check(
        &pair.named("decode alone, with them: all is fetched"),
        verdict(good, format!("{}, {moved:?}", answer.status)),
    );
    body["prompt"] = json!("nixl without keys");
    body["kv_transfer_params"] = json!({"do_remote_prefill": true});
    let answer = decode.post("/v1/completions", &body).await;
    ends(pair, report, decode, "decode alone, do_remote_prefill and no other key", &said(&answer)).await;
    Ok(())
}

fn said(answer: &Result<gco_local::loopback::Answer, impl Display>) -> String {
    match answer {
        Ok(answer) => format!("{} {}", answer.status, answer.text()),
        Err(problem) => problem.to_string(),
    }
}

/// An engine ends by itself.
async fn ends(pair: &Pair, report: &mut Report, engine: &RealEngine, what: &str, answer: &str) {
    let ended = tokio::time::timeout(ANSWER_BOUND, engine.process().ended()).await;
    let outcome = match ended {
        Ok(Ok(status)) => verdict(status.success(), format!("{answer}; ended with {status}")),
        _ => Err(format!("{answer}; it lives")),
    };
    report.check(&pair.named(&format!("{what}: it ends, with status 0")), outcome);
}
