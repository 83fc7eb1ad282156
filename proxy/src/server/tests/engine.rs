//! An engine in the test's own process, which writes exactly the bytes that it is told.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// What an engine got.
#[derive(Clone, Debug)]
pub(super) struct Received {
    /// The request line without the version.
    pub(super) line: String,
    /// Header lines, names in lower case.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Received {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// One step of an answer.
#[derive(Clone)]
pub(super) enum Step {
    /// Writes these bytes, in one call.
    Write(Vec<u8>),
    /// Goes on when told, or never; sees it when the other side leaves.
    Wait(Arc<Notify>),
    /// Ends the connection.
    Close,
}

#[derive(Default)]
struct State {
    received: Mutex<Vec<Received>>,
    /// Answers for the next requests; when there are none left, the usual one.
    scripts: Mutex<VecDeque<Vec<Step>>>,
    usual: Mutex<Vec<Step>>,
    running: AtomicUsize,
    connections: AtomicUsize,
    left: Mutex<Vec<Instant>>,
}

/// The engine; it ends when this is dropped.
pub(super) struct Engine {
    pub(super) address: SocketAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An answer with a length.
pub(super) fn answer(status: &str, headers: &str, body: &str) -> Vec<Step> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len());
    vec![Step::Write(head.into_bytes())]
}

/// A good answer of JSON.
pub(super) fn json(body: &str) -> Vec<Step> {
    answer("200 OK", "content-type: application/json\r\n", body)
}

/// The head of an event stream.
pub(super) const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

/// One chunk.
pub(super) fn chunk(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

/// A stream of these pieces, each written by itself.
pub(super) fn stream(pieces: &[&str]) -> Vec<Step> {
    let mut steps = vec![Step::Write(STREAM_HEAD.as_bytes().to_vec())];
    steps.extend(pieces.iter().map(|piece| Step::Write(chunk(piece))));
    steps.push(Step::Write(b"0\r\n\r\n".to_vec()));
    steps
}

impl Engine {
    /// An engine that answers `usual` to everything.
    pub(super) async fn start(usual: Vec<Step>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { usual: Mutex::new(usual), ..State::default() });
        let shared = state.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                shared.connections.fetch_add(1, Ordering::SeqCst);
                connections.spawn(serve(stream, shared.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { address, state, task }
    }

    /// A bootstrap server that knows one engine.
    pub(super) async fn bootstrap(engine_id: &str) -> Self {
        Self::start(json(&format!(r#"{{"0":{{"engine_id":"{engine_id}","worker_addr":{{}}}}}}"#))).await
    }

    /// The next request gets this answer.
    pub(super) fn next(&self, steps: Vec<Step>) {
        self.state.scripts.lock().unwrap().push_back(steps);
    }

    /// From now on requests get this answer.
    pub(super) fn usually(&self, steps: Vec<Step>) {
        *self.state.usual.lock().unwrap() = steps;
    }

    pub(super) fn received(&self) -> Vec<Received> {
        self.state.received.lock().unwrap().clone()
    }

    pub(super) fn count(&self) -> usize {
        self.state.received.lock().unwrap().len()
    }

    /// Requests that are being answered now.
    pub(super) fn running(&self) -> usize {
        self.state.running.load(Ordering::SeqCst)
    }

    /// Connections that were ever made.
    pub(super) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// When the other side left in the middle of an answer, each time.
    pub(super) fn left(&self) -> Vec<Instant> {
        self.state.left.lock().unwrap().clone()
    }
}

async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Received> {
    let head = loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8(buffer[..head].to_vec()).unwrap();
    let mut lines = text.lines();
    let line = lines.next()?.trim_end_matches(" HTTP/1.1").to_owned();
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, value)| value.parse().unwrap());
    while buffer.len() < head + length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = buffer[head..head + length].to_vec();
    buffer.drain(..head + length);
    Some(Received { line, headers, body })
}

async fn serve(mut stream: TcpStream, state: Arc<State>) {
    let mut buffer = Vec::new();
    while let Some(received) = read_request(&mut stream, &mut buffer).await {
        state.received.lock().unwrap().push(received);
        state.running.fetch_add(1, Ordering::SeqCst);
        let script = state.scripts.lock().unwrap().pop_front();
        let steps = script.unwrap_or_else(|| state.usual.lock().unwrap().clone());
        let goes_on = answer_with(&mut stream, steps, &state).await;
        state.running.fetch_sub(1, Ordering::SeqCst);
        if !goes_on {
            return;
        }
    }
}

async fn answer_with(stream: &mut TcpStream, steps: Vec<Step>, state: &State) -> bool {
    for step in steps {
        match step {
            Step::Write(bytes) => {
                if stream.write_all(&bytes).await.is_err() {
                    state.left.lock().unwrap().push(Instant::now());
                    return false;
                }
            }
            Step::Wait(told) => {
                let mut byte = [0];
                tokio::select! {
                    () = told.notified() => {}
                    _ = stream.read(&mut byte) => {
                        state.left.lock().unwrap().push(Instant::now());
                        return false;
                    }
                }
            }
            Step::Close => return false,
        }
    }
    true
}
