//! The simulated engine as a process, spoken to over HTTP.

#![expect(clippy::unwrap_used, reason = "a suite fails by panicking")]

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use gco_bed::wait::until;
use gco_local::loopback::{LoopbackClient, json_request};
use http_body_util::BodyExt as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// Longer than anything here takes on a busy machine.
const BOUND: Duration = Duration::from_secs(30);

struct EngineProcess {
    child: Child,
    log: Lines<BufReader<ChildStdout>>,
    port: u16,
    client: LoopbackClient,
}

fn command(arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gco-engine"));
    command
        .args(arguments)
        .args(["--port", "0"])
        .env_clear()
        .env("GCO_REGION", "us-east-1")
        .env("POD_NAME", "demo-0")
        .env("GCO_ENGINE_TOKEN_MILLISECONDS", "0")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}

impl EngineProcess {
    /// Starts an engine and reads in its log where it listens.
    async fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut child = command(arguments, environment).spawn().unwrap();
        let mut log = BufReader::new(child.stdout.take().unwrap()).lines();
        let listening = line_with(&mut log, "listening").await;
        let port = u16::try_from(listening["port"].as_u64().unwrap()).unwrap();
        Self { child, log, port, client: LoopbackClient::new() }
    }

    /// Starts an engine and waits until it says that its model is loaded.
    async fn loaded(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut engine = Self::start(arguments, environment).await;
        line_with(&mut engine.log, "the model is loaded").await;
        engine
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let answer = self.client.get(self.port, path, BOUND).await.unwrap();
        (answer.status.as_u16(), answer.json())
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.client.post(self.port, path, body, BOUND).await.unwrap();
        (answer.status.as_u16(), answer.json())
    }

    async fn metrics(&self) -> String {
        self.client.get(self.port, "/metrics", BOUND).await.unwrap().text()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().unwrap().try_into().unwrap()), signal).unwrap();
    }

    async fn exit(&mut self) -> ExitStatus {
        tokio::time::timeout(BOUND, self.child.wait()).await.unwrap().unwrap()
    }
}

/// The first log line with this message. Every line on the way must be a JSON object.
async fn line_with(log: &mut Lines<BufReader<ChildStdout>>, message: &str) -> Value {
    let mut seen = Vec::new();
    let search = async {
        while let Some(line) = log.next_line().await.unwrap() {
            let value: Value = serde_json::from_str(&line).unwrap();
            if value["message"] == message {
                return Some(value);
            }
            seen.push(line);
        }
        None
    };
    let found = tokio::time::timeout(BOUND, search).await.ok().flatten();
    found.unwrap_or_else(|| panic!("no log line {message:?}; seen: {seen:#?}"))
}

/// The `data:` values of a stream's text.
fn events(stream: &str) -> Vec<&str> {
    stream.split("\n\n").filter(|event| !event.is_empty()).map(|event| event.strip_prefix("data: ").unwrap()).collect()
}

fn chat(content: &str) -> Value {
    json!({"model": "demo/model", "messages": [{"role": "user", "content": content}]})
}

const MODEL: [&str; 2] = ["--model", "demo/model"];

#[tokio::test]
async fn a_chat_completion_says_region_and_pod_and_counts_its_tokens() {
    let engine = EngineProcess::loaded(&MODEL, &[]).await;
    let (status, answer) = engine.post("/v1/chat/completions", &chat("who are you?")).await;
    assert_eq!(status, 200, "{answer}");
    let said = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(said.starts_with("Region us-east-1, pod demo-0, model demo/model: you said \"who are you?\"."), "{said}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["object"], "chat.completion");
    let usage = &answer["usage"];
    assert_eq!(usage["prompt_tokens"], 6);
    assert_eq!(usage["total_tokens"], 6 + usage["completion_tokens"].as_u64().unwrap());
    let again = engine.post("/v1/chat/completions", &chat("who are you?")).await.1;
    assert_eq!(again["choices"], answer["choices"], "the same question gets the same answer");
}

#[tokio::test]
async fn a_streamed_chat_arrives_in_pieces_and_ends_with_done() {
    let engine = EngineProcess::loaded(&MODEL, &[]).await;
    let whole = engine.post("/v1/chat/completions", &chat("hello")).await.1;
    let mut body = chat("hello");
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let request = json_request("/v1/chat/completions", &body).unwrap();
    let response = engine.client.send(engine.port, request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    let stream = response.into_body().collect().await.unwrap().to_bytes();
    let stream = String::from_utf8(stream.to_vec()).unwrap();
    let events = events(&stream);
    assert_eq!(events.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> =
        events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let said: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(whole["choices"][0]["message"]["content"], json!(said));
    assert_eq!(chunks.last().unwrap()["usage"], whole["usage"]);
    assert!(chunks.len() > 10, "one event for each token: {}", chunks.len());
}

#[tokio::test]
async fn a_text_completion_stops_at_max_tokens() {
    let engine = EngineProcess::loaded(&MODEL, &[]).await;
    let (status, answer) = engine.post("/v1/completions", &json!({"prompt": "once upon", "max_tokens": 3})).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5, "prompt_tokens_details": null})
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["choices"][0]["text"], "Region us-east-1, pod");
}

#[tokio::test]
async fn bad_requests_are_refused_in_the_shape_of_the_api() {
    let engine = EngineProcess::loaded(&MODEL, &[]).await;
    let client = &engine.client;
    let not_json = http::Request::post("/v1/completions").body(axum::body::Body::from("{")).unwrap();
    let refused = client.call(engine.port, not_json, BOUND).await.unwrap();
    assert_eq!((refused.status.as_u16(), refused.json()["error"]["type"].clone()), (400, json!("BadRequestError")));
    let (status, answer) = engine.post("/v1/chat/completions", &json!({"model": "other", "messages": []})).await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!(404)), "{answer}");
    let (status, answer) = engine.post("/v1/chat/completions", &json!({"messages": []})).await;
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("messages")), "{answer}");
    assert_eq!(engine.get("/nothing").await, (404, json!({"detail": "Not Found"})));
    assert_eq!(engine.get("/v1/completions").await, (405, json!({"detail": "Method Not Allowed"})));
}

#[tokio::test]
async fn behind_a_root_path_both_paths_answer() {
    let arguments = ["--model", "demo/model", "--root-path", "/inference/demo", "--tensor-parallel-size", "8"];
    let shown = [("PYTHONHASHSEED", "0"), ("GCO_ENGINE_SHOWN_VARIABLES", "PYTHONHASHSEED")];
    let engine = EngineProcess::loaded(&arguments, &shown).await;
    for prefix in ["", "/inference/demo"] {
        assert_eq!(engine.get(&format!("{prefix}/health")).await.0, 200, "{prefix}");
        let models = engine.get(&format!("{prefix}/v1/models")).await.1;
        assert_eq!(models["data"][0]["id"], "demo/model", "{prefix}");
        let (status, answer) = engine.post(&format!("{prefix}/v1/completions"), &json!({"prompt": "a"})).await;
        assert_eq!(status, 200, "{prefix}: {answer}");
    }
    assert_eq!(engine.get("/inference/other/health").await.0, 404);
    let info = engine.get("/inference/demo/server_info").await.1;
    assert_eq!(info["arguments"][2], json!({"flag": "--tensor-parallel-size", "values": ["8"]}));
    assert_eq!(info["environment"], json!({"PYTHONHASHSEED": "0"}));
    assert_eq!(engine.get("/version").await.0, 200);
}

#[tokio::test]
async fn tokenize_counts_as_the_completions_do() {
    let engine = EngineProcess::loaded(&MODEL, &[]).await;
    let (status, answer) = engine.post("/tokenize", &json!({"prompt": "one two two", "return_token_strs": true})).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["count"], 3);
    assert_eq!(answer["tokens"][1], answer["tokens"][2]);
    assert_eq!(answer["token_strs"], json!(["one", " two", " two"]));
    assert_eq!(engine.post("/tokenize", &json!({})).await.0, 400);
}

#[tokio::test]
async fn metrics_count_tokens_and_what_runs() {
    let engine = EngineProcess::loaded(&MODEL, &[("GCO_ENGINE_TOKEN_MILLISECONDS", "20")]).await;
    let mut body = json!({"prompt": "count", "max_tokens": 500, "ignore_eos": true, "stream": true});
    let request = json_request("/v1/completions", &body).unwrap();
    let mut stream = engine.client.send(engine.port, request).await.unwrap().into_body();
    stream.frame().await.unwrap().unwrap();
    let during = engine.metrics().await;
    assert!(during.contains("vllm:num_requests_running{engine=\"0\",model_name=\"demo/model\"} 1.0\n"), "{during}");
    drop(stream);
    until("the engine notices that its client left", BOUND, || async {
        let now = engine.metrics().await;
        let idle = now.contains("vllm:num_requests_running{engine=\"0\",model_name=\"demo/model\"} 0.0\n");
        if idle { Ok(()) } else { Err(now) }
    })
    .await
    .unwrap();

    body["stream"] = json!(false);
    body["max_tokens"] = json!(5);
    let before = engine.metrics().await;
    engine.post("/v1/completions", &body).await;
    let after = engine.metrics().await;
    let generated = |text: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with("vllm:generation_tokens_total{")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!((generated(&after) - generated(&before) - 5.0).abs() < 0.1, "{before}{after}");
}

#[tokio::test]
async fn a_loading_engine_is_not_healthy_and_takes_no_requests() {
    let mut engine = EngineProcess::start(&MODEL, &[("GCO_ENGINE_LOAD_SECONDS", "1")]).await;
    assert_eq!(engine.get("/health").await.0, 503);
    assert_eq!(engine.post("/v1/completions", &json!({"prompt": "a"})).await.0, 503);
    line_with(&mut engine.log, "the model is loaded").await;
    assert_eq!(engine.get("/health").await.0, 200);
}

#[tokio::test]
async fn a_terminated_engine_finishes_its_open_stream_and_exits_with_zero() {
    let mut engine = EngineProcess::loaded(&MODEL, &[("GCO_ENGINE_TOKEN_MILLISECONDS", "10")]).await;
    let body = json!({"prompt": "a", "max_tokens": 100, "ignore_eos": true, "stream": true});
    let request = json_request("/v1/completions", &body).unwrap();
    let mut stream = engine.client.send(engine.port, request).await.unwrap().into_body();
    stream.frame().await.unwrap().unwrap();
    engine.signal(Signal::SIGTERM);
    line_with(&mut engine.log, "stopping: no new connections, open requests finish").await;
    let other = LoopbackClient::without_reuse();
    until("the engine refuses new connections", BOUND, async || match other.get(engine.port, "/health", BOUND).await {
        Ok(answer) => Err(format!("{:?}", answer.status)),
        Err(_) => Ok(()),
    })
    .await
    .unwrap();
    let rest = stream.collect().await.unwrap().to_bytes();
    assert!(rest.ends_with(b"data: [DONE]\n\n"), "{rest:?}");
    assert_eq!(engine.exit().await.code(), Some(0));
}

#[tokio::test]
async fn an_engine_whose_grace_is_over_cuts_its_streams_off() {
    let environment = [("GCO_ENGINE_TOKEN_MILLISECONDS", "100"), ("GCO_ENGINE_GRACE_SECONDS", "0.2")];
    let mut engine = EngineProcess::loaded(&MODEL, &environment).await;
    let body = json!({"prompt": "a", "max_tokens": 1000, "ignore_eos": true, "stream": true});
    let request = json_request("/v1/completions", &body).unwrap();
    let mut stream = engine.client.send(engine.port, request).await.unwrap().into_body();
    stream.frame().await.unwrap().unwrap();
    engine.signal(Signal::SIGTERM);
    assert_eq!(engine.exit().await.code(), Some(0));
    assert!(stream.collect().await.is_err(), "a stream that was cut off must not look complete");
}

#[tokio::test]
async fn a_model_name_chooses_the_exit_code_of_a_crash() {
    let status = command(&["--model", "sample/fault-crash-7"], &[]).status();
    let status = tokio::time::timeout(BOUND, status).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(7));
}

#[tokio::test]
async fn an_engine_that_is_never_healthy_still_stops_when_asked() {
    let mut engine = EngineProcess::start(&MODEL, &[("GCO_ENGINE_FAULT", "never-healthy")]).await;
    assert_eq!(engine.get("/health").await.0, 503);
    engine.signal(Signal::SIGTERM);
    assert_eq!(engine.exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_taken_port_and_bad_arguments_have_their_own_exit_codes() {
    let engine = EngineProcess::start(&MODEL, &[]).await;
    let port = engine.port.to_string();
    let taken = command(&[], &[("GCO_ENGINE_PORT", &port)]).status();
    let taken = tokio::time::timeout(BOUND, taken).await.unwrap().unwrap();
    assert_eq!(taken.code(), Some(i32::from(gco_local::engine::EXIT_CODE_PORT_TAKEN)));
    let bad = command(&["--root-path", "no-slash"], &[]).stderr(Stdio::null()).status();
    let bad = tokio::time::timeout(BOUND, bad).await.unwrap().unwrap();
    assert_eq!(bad.code(), Some(2));
}
