//! Clients that leave, that mean harm, that are slow, and a proxy that is told to stop: nothing goes on behind them, no
//! engine ends, and nothing is kept.

#![expect(clippy::unwrap_used, reason = "a suite fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures::future::{join_all, try_join_all};
use gco_bed::wait::until;
use gco_local::engine::{CompletionOrder, Orders, TransferOrder};
use gco_local::loopback::{LoopbackClient, json_request};
use gco_tests::proxy::{BOUND, EngineSpec, Reply, Split, raw};
use http::Request;
use nix::sys::signal::Signal;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An engine must be rid of a request this long after its client left. The aim is 0.1 s; suites run beside each other
/// on two cores.
const LEFT_BOUND: Duration = Duration::from_secs(2);

fn streamed(tokens: usize) -> Value {
    json!({"prompt": "déjà vu, said the cat", "max_tokens": tokens, "ignore_eos": true, "stream": true})
}

/// Engines slow enough that a client can leave in the middle, and that remember what they were asked.
async fn slow_pair(token_milliseconds: &str) -> Split {
    let slow = |spec: EngineSpec| {
        spec.with("GCO_ENGINE_TOKEN_MILLISECONDS", token_milliseconds).with("GCO_ENGINE_RECORDED_REQUESTS", "1000")
    };
    let (prefill, decode) = (slow(EngineSpec::prefill("p-0")), slow(EngineSpec::decode("d-0")));
    let mut split = Split::start(vec![prefill], vec![decode], &[]).await.unwrap();
    split.note_rest().await.unwrap();
    split
}

async fn both_are_idle(split: &Split) -> Duration {
    let (prefill, decode) = tokio::join!(split.prefills[0].is_idle(LEFT_BOUND), split.decodes[0].is_idle(LEFT_BOUND));
    prefill.unwrap().max(decode.unwrap())
}

#[tokio::test]
async fn a_client_that_leaves_in_any_phase_ends_both_legs_and_decode_is_not_called_after_it() {
    let mut split = slow_pair("20").await;
    let body = streamed(500).to_string();
    let whole = json!({"prompt": "a", "max_tokens": 500, "ignore_eos": true}).to_string();
    let mut worst = Duration::ZERO;

    // While prefill computes; decode's leg waits for KV.
    split.prefills[0].order(&Orders { completions: Some(CompletionOrder::Hang), ..Orders::default() }).await.unwrap();
    for body in [&body, &whole] {
        let stream = raw::open(split.port, &raw::post("/v1/completions", &[], body.as_bytes())).await.unwrap();
        split.decodes[0].is_busy().await.unwrap();
        drop(stream);
        worst = worst.max(both_are_idle(&split).await);
    }
    // While the KV is on its way.
    split.prefills[0].order(&Orders { transfer: Some(TransferOrder::Stall), ..Orders::default() }).await.unwrap();
    for body in [&body, &whole] {
        let stream = raw::open(split.port, &raw::post("/v1/completions", &[], body.as_bytes())).await.unwrap();
        split.decodes[0].is_busy().await.unwrap();
        drop(stream);
        worst = worst.max(both_are_idle(&split).await);
    }
    // While decode answers, as a stream and as a whole.
    split.prefills[0].order(&Orders::default()).await.unwrap();
    let mut stream = raw::open(split.port, &raw::post("/v1/completions", &[], body.as_bytes())).await.unwrap();
    raw::read(&mut stream, 1500).await.unwrap();
    drop(stream);
    worst = worst.max(both_are_idle(&split).await);
    let stream = raw::open(split.port, &raw::post("/v1/completions", &[], whole.as_bytes())).await.unwrap();
    until("decode to generate", BOUND, async || {
        let running = split.decodes[0].metric("vllm:num_requests_running", "").await.unwrap();
        if running > 0.5 { Ok(()) } else { Err(running.to_string()) }
    })
    .await
    .unwrap();
    drop(stream);
    worst = worst.max(both_are_idle(&split).await);
    // While the body is on its way: nobody is called.
    let before = split.decodes[0].requests().await.unwrap().len();
    let mut part = raw::post("/v1/completions", &[], body.as_bytes());
    part.truncate(part.len() - 10);
    drop(raw::open(split.port, &part).await.unwrap());
    split.rests_as_before().await.unwrap();
    assert_eq!(split.decodes[0].requests().await.unwrap().len(), before);
    println!("engines were idle at the latest {worst:?} after their client had left");
}

#[tokio::test]
async fn a_client_that_leaves_at_any_of_the_first_200_bytes_of_the_answer_leaves_nothing_behind() {
    let mut split = slow_pair("5").await;
    let request = raw::post("/v1/completions", &[], streamed(2000).to_string().as_bytes());
    for bytes in 1..=200 {
        let mut stream = raw::open(split.port, &request).await.unwrap();
        raw::read(&mut stream, bytes).await.unwrap();
        drop(stream);
    }
    both_are_idle(&split).await;
    split.rests_as_before().await.unwrap();
    let outcomes: Vec<Value> = split.access_log().unwrap();
    assert_eq!(outcomes.len(), 201, "every one of them, and the warm-up, is in the access log");
}

#[tokio::test]
async fn a_stop_signal_under_load_finishes_every_stream_that_runs() {
    let split = slow_pair("20").await;
    let client = LoopbackClient::new();
    let streams = (0..40).map(async |number| {
        let body = json!({"prompt": format!("stream {number}"), "max_tokens": 100, "ignore_eos": true, "stream": true});
        let request = json_request("/v1/completions", &body)?;
        Reply::to(&client, split.port, request).await
    });
    let streams = try_join_all(streams);
    tokio::pin!(streams);
    let generating = until("forty streams to run", BOUND, async || {
        let running = split.decodes[0].metric("vllm:num_requests_running", "").await.unwrap();
        if running > 39.5 { Ok(()) } else { Err(running.to_string()) }
    });
    tokio::select! {
        replies = &mut streams => panic!("the streams are over already: {}", replies.unwrap().len()),
        generating = generating => generating.unwrap(),
    }
    split.process.signal(Signal::SIGTERM).unwrap();
    let refused = until("new requests to be turned away", BOUND, async || {
        // Either nobody listens any more, or the answer says that this one goes.
        match split.get("/readyz").await {
            Ok(reply) if reply.status == 200 => Err("it says that it is ready".to_owned()),
            _ => Ok(()),
        }
    });
    let (replies, refused) = tokio::join!(streams, refused);
    refused.unwrap();
    for (number, reply) in replies.unwrap().into_iter().enumerate() {
        let said = reply.said().unwrap();
        assert!(said.contains(&format!("you said \"stream {number}\"")), "{said}");
    }
    // The clients' connections are still open: an idle one does not keep a proxy from ending.
    assert_eq!(split.process.ended().await.unwrap().code(), Some(0));
}

/// A connection by a client that trusts this certificate only.
async fn trusting(port: u16, certificate: &str) -> std::io::Result<TlsStream<TcpStream>> {
    gco_runtime::tls::install_provider();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

#[tokio::test]
async fn a_swapped_certificate_is_used_for_new_connections_and_breaks_no_stream() {
    let first = (
        include_str!("../../proxy/src/front/test_certificates/first.crt"),
        include_str!("../../proxy/src/front/test_certificates/first.key"),
    );
    let second = (
        include_str!("../../proxy/src/front/test_certificates/second.crt"),
        include_str!("../../proxy/src/front/test_certificates/second.key"),
    );
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    let write = |(text, private): (&str, &str)| {
        std::fs::write(&key, private).unwrap();
        std::fs::write(&certificate, text).unwrap();
    };
    write(first);
    let settings = [
        ("GCO_PROXY_TLS_CERTIFICATE_FILE", certificate.to_str().unwrap()),
        ("GCO_PROXY_TLS_KEY_FILE", key.to_str().unwrap()),
        ("GCO_PROXY_TLS_RELOAD_SECONDS", "0.1"),
    ];
    let decode = EngineSpec::decode("d-0").with("GCO_ENGINE_TOKEN_MILLISECONDS", "20");
    let split = Split::start(vec![EngineSpec::prefill("p-0")], vec![decode], &settings).await.unwrap();
    let ask = |tokens| raw::post("/v1/completions", &[], streamed(tokens).to_string().as_bytes());
    // The backends are known once a request is answered.
    until("an answer over TLS", BOUND, async || {
        let mut stream = trusting(split.port, first.0).await.map_err(|problem| problem.to_string())?;
        stream.write_all(&ask(1)).await.map_err(|problem| problem.to_string())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.map_err(|problem| problem.to_string())?;
        if answer.contains("[DONE]") { Ok(()) } else { Err(answer) }
    })
    .await
    .unwrap();
    let mut running = trusting(split.port, first.0).await.unwrap();
    running.write_all(&ask(300)).await.unwrap();
    let mut beginning = vec![0; 400];
    running.read_exact(&mut beginning).await.unwrap();
    write(second);
    until("the second certificate", BOUND, async || {
        trusting(split.port, second.0).await.map(|_| ()).map_err(|problem| problem.to_string())
    })
    .await
    .unwrap();
    assert!(trusting(split.port, first.0).await.is_err(), "the first certificate is still shown");
    let mut rest = String::new();
    running.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("[DONE]"), "the stream that ran was cut off: {rest}");
    // Half a certificate changes nothing.
    std::fs::write(&certificate, "-----BEGIN CERTIFICATE-----").unwrap();
    let mut after = trusting(split.port, second.0).await.unwrap();
    after.write_all(&ask(1)).await.unwrap();
    let mut answer = String::new();
    after.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("[DONE]"), "{answer}");
}

#[tokio::test]
async fn hostile_bodies_and_headers_end_no_engine_and_reach_none() {
    let mut split = slow_pair("0").await;
    let partial = r#"{"do_remote_prefill": true, "transfer_id": "mine"}"#;
    let keep = r#"{"do_remote_decode": true, "transfer_id": "mine"}"#;
    let long = "word ".repeat(9000);
    let names =
        ["kv_transfer_params", r"\u006bv_transfer_params", r"\u006Bv\u005ftransfer_params", r"kv_transfer_param\u0073"];
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    for name in names {
        for parameters in [partial, keep, "null", "[1]", "\"x\"", "{}", r#"{"do_remote_prefill": true}"#] {
            bodies.push(format!(r#"{{"prompt": "a", "{name}": {parameters}}}"#).into());
            bodies.push(format!(r#"{{"{name}": {parameters}, "prompt": "a", "stream": true}}"#).into());
            // Refused by the engine: its clean-up must find nothing to trip over.
            bodies.push(format!(r#"{{"prompt": "{long}", "{name}": {parameters}}}"#).into());
            bodies.push(format!(r#"{{"prompt": ["a", "b"], "{name}": {parameters}}}"#).into());
            bodies.push(format!(r#"{{"prompt": "a", "n": 2, "{name}": {parameters}}}"#).into());
        }
        // Doubled, under the same and under another spelling.
        for other in names {
            bodies.push(format!(r#"{{"prompt": "a", "{name}": {{}}, "{other}": {partial}}}"#).into());
        }
    }
    for (name, value) in [
        ("bootstrap_host", "\"127.0.0.1\""),
        ("bootstrap_port", "1"),
        ("bootstrap_room", "7"),
        (r"\u0062ootstrap_room", "7"),
        ("ec_transfer_params", r#"{"hash": {"peer_host": "127.0.0.1", "peer_port": 1}}"#),
        (r"\u0065c_transfer_params", "{}"),
    ] {
        bodies.push(format!(r#"{{"prompt": "a", "{name}": {value}}}"#).into());
    }
    for doubled in [r#""stream": false, "stream": true"#, r#""max_tokens": 1, "max_tokens": 9"#, r#""n": 1, "n": 2"#] {
        bodies.push(format!(r#"{{"prompt": "a", {doubled}}}"#).into());
    }
    for odd in [
        "",
        "{",
        "[]",
        "null",
        "7",
        "\"x\"",
        "{}",
        "{\"prompt\"}",
        "{\"prompt\": \"a\",}",
        "{\"prompt\": \"a\"} {}",
        "{\"prompt\": \"\u{0}\"}",
        "\u{feff}{\"prompt\": \"a\"}",
    ] {
        bodies.push(odd.into());
    }
    bodies.push(b"{\"prompt\": \"\xff\xfe\"}".to_vec());
    bodies.push(format!("{{\"prompt\": \"a\", \"x\": {}1{}}}", "[".repeat(50_000), "]".repeat(50_000)).into());
    assert!(bodies.len() >= 150, "{}", bodies.len());

    let headers = [
        ("x-data-parallel-rank", "7"),
        ("X-Data-Parallel-Rank", "-1"),
        ("x-prefill-host-port", "127.0.0.1:1"),
        ("content-length", "3"),
    ];
    let client = LoopbackClient::new();
    for (number, body) in bodies.iter().enumerate() {
        let path = if number % 3 == 0 { "/v1/chat/completions" } else { "/v1/completions" };
        let mut request = Request::post(path).header("content-type", "application/json");
        if number % 2 == 0 {
            let (name, value) = headers[number / 2 % 3];
            request = request.header(name, value);
        }
        let shown = String::from_utf8_lossy(&body[..body.len().min(160)]).into_owned();
        let reply = Reply::to(&client, split.port, request.body(Body::from(body.clone())).unwrap()).await;
        let reply = reply.unwrap_or_else(|problem| panic!("no answer to {shown}: {problem:#}"));
        assert!(reply.whole && (reply.status < 500), "{shown}: status {}, {}", reply.status, reply.text());
        if reply.status >= 400 {
            assert!(reply.json()["error"].is_object(), "{shown}: {}", reply.text());
        }
        for engine in split.prefills.iter_mut().chain(&mut split.decodes) {
            engine.lives().unwrap_or_else(|problem| panic!("after {shown}: {problem:#}"));
        }
    }
    drop(client);
    // Two lengths make two readings of where the body ends.
    let twice = raw::post("/v1/completions", &[("content-length", "3")], br#"{"prompt": "a"}"#);
    let answer = raw::read_all(&mut raw::open(split.port, &twice).await.unwrap()).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));

    for (engine, is_prefill) in [(&split.prefills[0], true), (&split.decodes[0], false)] {
        for request in engine.requests().await.unwrap() {
            let names = request.headers.iter().map(|(name, _)| name.as_str());
            for name in names {
                assert!(!name.starts_with("x-data-parallel") && !name.starts_with("x-prefill"), "{request:?}");
            }
            let Ok(body) = serde_json::from_str::<Value>(&request.body) else { continue };
            for member in ["bootstrap_host", "bootstrap_port", "bootstrap_room", "ec_transfer_params"] {
                assert!(body.get(member).is_none(), "{request:?}");
            }
            let parameters = &body["kv_transfer_params"];
            assert_ne!(parameters["transfer_id"], "mine", "{request:?}");
            if !parameters.is_null() {
                let needed: &[&str] = if is_prefill {
                    &["do_remote_decode", "transfer_id"]
                } else {
                    &["do_remote_prefill", "transfer_id", "remote_engine_id", "remote_bootstrap_addr"]
                };
                for name in needed {
                    assert!(!parameters[*name].is_null(), "{request:?} has a part of a set");
                }
            }
        }
    }
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn a_request_reaches_decode_as_the_client_wrote_it_but_for_the_parameters() {
    let mut split = slow_pair("0").await;
    let members = [
        r#""prompt" : "d\u00e9j\u00e0 \ud83d\ude00 vu""#,
        r#""seed":12345678901234567890123"#,
        r#""temperature": 1.0e-0"#,
        r#""unknown": {"a": [1, 2.50, {"kv_transfer_params": 1}], "b" : null}"#,
        r#""max_tokens": 7 "#,
    ];
    let written = format!("{{ {} }}", members.join(" ,\n\t"));
    let request = Request::post("/v1/completions?trace=1").header("content-type", "application/json; charset=utf-8");
    let request = request.header("x-request-id", "mine-7").header("authorization", "Bearer secret");
    let reply = split.send(request.body(Body::from(written.clone())).unwrap()).await.unwrap();
    assert_eq!((reply.status, reply.exchange()), (200, "transferred"), "{}", reply.text());
    assert_eq!(reply.json()["id"], "cmpl-mine-7");
    let last = |requests: Vec<gco_local::engine::RecordedRequest>| requests.into_iter().next_back().unwrap();
    let decode = last(split.decodes[0].requests().await.unwrap());
    for member in members {
        assert!(decode.body.contains(member.trim_end()), "{member} is not in {}", decode.body);
    }
    let parsed: Value = serde_json::from_str(&decode.body).unwrap();
    assert_eq!(parsed.as_object().unwrap().len(), members.len() + 1, "{}", decode.body);
    let prefill = last(split.prefills[0].requests().await.unwrap());
    let parsed: Value = serde_json::from_str(&prefill.body).unwrap();
    let asked = ["stream", "max_tokens", "min_tokens"].map(|name| parsed[name].clone());
    assert_eq!(asked, [json!(false), json!(1), json!(1)], "{}", prefill.body);
    for request in [&decode, &prefill] {
        let header = |name: &str| request.headers.iter().filter(|(other, _)| other == name).count();
        assert_eq!((header("x-request-id"), header("authorization")), (1, 0), "{request:?}");
    }
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn the_bytes_of_ten_thousand_events_are_the_engines() {
    let decode = EngineSpec::decode("d-0").argument("--max-model-len").argument("20000");
    let mut split = Split::start(vec![EngineSpec::prefill("p-0")], vec![decode], &[]).await.unwrap();
    split.note_rest().await.unwrap();
    let request = || {
        let mut request = json_request("/v1/completions", &streamed(10_000)).unwrap();
        request.headers_mut().insert("x-request-id", "the-same".parse().unwrap());
        request
    };
    let through = split.send(request()).await.unwrap();
    let direct = Reply::to(&LoopbackClient::new(), split.decodes[0].port(), request()).await.unwrap();
    assert_eq!(through.exchange(), "transferred");
    // The second in which an answer was made is all that may differ.
    let timeless = |reply: &Reply| {
        let text = String::from_utf8(reply.body.to_vec()).unwrap();
        let mut parts = text.split("\"created\":");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |said, part| {
            said + "\"created\":" + part.trim_start_matches(|digit: char| digit.is_ascii_digit())
        })
    };
    assert_eq!(direct.events().len(), 10_001);
    assert!(through.whole && timeless(&through) == timeless(&direct), "the bytes differ");
    let header = |reply: &Reply, name: &str| reply.headers.get(name).cloned();
    for name in ["content-type", "cache-control"] {
        assert_eq!(header(&through, name), header(&direct, name));
    }
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn two_thousand_streams_at_once_are_all_whole() {
    let size = gco_tests::size::Size::asked().choose(300, 2000);
    let mut split = slow_pair("20").await;
    let client = LoopbackClient::new();
    let replies = join_all((0..size).map(async |number| {
        let body = json!({"prompt": format!("stream {number}"), "max_tokens": 30, "ignore_eos": true, "stream": true});
        let reply = Reply::to(&client, split.port, json_request("/v1/completions", &body)?).await?;
        anyhow::ensure!(reply.said()?.contains(&format!("you said \"stream {number}\"")), "{}", reply.text());
        Ok(reply.exchange().to_owned())
    }))
    .await;
    let failed: Vec<String> =
        replies.iter().filter_map(|reply| reply.as_ref().err().map(|problem| format!("{problem:#}"))).collect();
    assert_eq!(failed, Vec::<String>::new(), "{} of {size} failed", failed.len());
    let transferred = replies.iter().flatten().filter(|exchange| *exchange == "transferred").count();
    assert_eq!(transferred, size);
    drop(client);
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn readers_that_do_not_read_hold_decode_back_and_cost_no_memory() {
    // Decode would say 80 MB to each of them: 400,000 tokens of some 200 bytes.
    let decode = EngineSpec::decode("d-0").argument("--max-model-len").argument("500000");
    let mut split = Split::start(vec![EngineSpec::prefill("p-0")], vec![decode], &[]).await.unwrap();
    split.note_rest().await.unwrap();
    let before = split.process.resident_bytes().unwrap();
    let request = raw::post("/v1/completions", &[], streamed(400_000).to_string().as_bytes());
    // Some 10 MB of each stream fit into the kernel's buffers on the way, which takes a while to be said.
    let count = gco_tests::size::Size::asked().choose(2, 4);
    let mut readers = Vec::new();
    for _ in 0..count {
        let mut reader = raw::open(split.port, &request).await.unwrap();
        raw::read(&mut reader, 100).await.unwrap();
        readers.push(reader);
    }
    let still = until("decode to stand still", 3 * BOUND, async || {
        let first = split.decodes[0].metric("vllm:generation_tokens_total", "").await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        let second = split.decodes[0].metric("vllm:generation_tokens_total", "").await.unwrap();
        if first == second { Ok(second) } else { Err(format!("{first} tokens, then {second}")) }
    })
    .await
    .unwrap();
    let growth = split.process.resident_bytes().unwrap().saturating_sub(before);
    println!(
        "{count} readers that do not read: {still} of {count} x 400,000 tokens generated, growth {} KiB",
        growth / 1024
    );
    assert!(still < 200_000.0 * f64::from(count), "decode said nearly everything: {still} tokens");
    assert!(growth <= 10 * 1024 * 1024, "grew by {growth} bytes");
    drop(readers);
    split.rests_as_before().await.unwrap();
}

#[tokio::test]
async fn a_slow_stream_costs_little_memory() {
    let size: u64 = gco_tests::size::Size::asked().choose(200, 1000);
    let mut split = slow_pair("1000").await;
    let idle = split.process.resident_bytes().unwrap();
    let request = raw::post("/v1/completions", &[], streamed(5000).to_string().as_bytes());
    let mut streams = Vec::new();
    for _ in 0..size {
        streams.push(raw::open(split.port, &request).await.unwrap());
    }
    join_all(streams.iter_mut().map(async |stream| raw::read(stream, 300).await.unwrap())).await;
    let open = split.process.resident_bytes().unwrap();
    let each = open.saturating_sub(idle) / size;
    println!("idle {} KiB; {size} open streams: {} bytes each", idle / 1024, each);
    // What ships is optimized and has smaller futures: its figure is the bench's.
    assert!(each <= 96 * 1024, "{each} bytes for each stream");
    drop(streams);
    split.rests_as_before().await.unwrap();
}
