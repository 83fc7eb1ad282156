//! The mock engine: a prefill port and a decode port that do what the prompt's [`Tag`] says, and nothing else.
//!
//! Prefill answers JSON with `kv_transfer_params` in the shape that vLLM's NIXL connector gives them. Decode answers JSON, or
//! streams events, each in a write of its own with the time at which it was written.

use std::io::Result;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Context as _;
use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::clock::now_nanos;
use crate::event::{DONE, EventChunk, answer_id};
use crate::http::{Head, bad};
use crate::tag::Tag;

/// Room that a request is read into at least.
const READ_BYTES: usize = 16 * 1024;

/// Longest request, for the bench sends none over 64 KiB.
const MOST_REQUEST_BYTES: usize = 4 << 20;

/// What the engine saw and did since it started.
#[derive(Debug, Default)]
pub struct Accounts {
    /// Requests that prefill answered.
    pub prefills: AtomicU64,
    /// Of these, those that were asked to keep their KV cache for a decode.
    pub prefills_for_remote: AtomicU64,
    /// Requests that decode took.
    pub decodes: AtomicU64,
    /// Of these, those that brought the parameters that prefill gave.
    pub decodes_from_remote: AtomicU64,
    /// Bytes of events that the kernel took from decode.
    pub event_bytes: AtomicU64,
    /// Streams that are open now.
    pub open_streams: AtomicU64,
    /// Requests without a tag, or with one that cannot be obeyed.
    pub refused: AtomicU64,
}

/// A number of the accounts at one moment.
pub(crate) fn read(account: &AtomicU64) -> u64 {
    account.load(Relaxed)
}

/// The two ports of a running engine.
#[derive(Clone, Debug)]
pub struct Mock {
    /// Where prefill listens.
    pub prefill: SocketAddr,
    /// Where decode listens.
    pub decode: SocketAddr,
    /// What it saw and did.
    pub accounts: Arc<Accounts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Prefill,
    Decode,
}

impl Mock {
    /// Starts it on free ports of loopback; it ends with the runtime that it runs on.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(runtime: &Handle) -> anyhow::Result<Self> {
        let accounts = Arc::new(Accounts::default());
        let mut ports = Vec::new();
        for role in [Role::Prefill, Role::Decode] {
            let accounts = accounts.clone();
            let listening = runtime.spawn(async move {
                // Everything that has to do with the port must be made on the runtime that serves it.
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
                let address = listener.local_addr()?;
                tokio::spawn(serve(listener, role, accounts));
                Result::Ok(address)
            });
            ports.push(listening.await.context("the runtime of the engine ended")?.context("no port for the engine")?);
        }
        match ports.as_slice() {
            [prefill, decode] => Ok(Self { prefill: *prefill, decode: *decode, accounts }),
            _ => anyhow::bail!("an engine has two ports"),
        }
    }
}

async fn serve(listener: TcpListener, role: Role, accounts: Arc<Accounts>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let accounts = accounts.clone();
                // A peer that closes, well or badly, is no failure of the engine.
                tokio::spawn(async move { connection(stream, role, &accounts).await });
            }
            // Out of descriptors for a moment; the load counts what fails because of it.
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

async fn connection(mut stream: TcpStream, role: Role, accounts: &Accounts) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut input = Input::default();
    while let Some((method, target)) = input.request(&mut stream).await? {
        if method == "POST" {
            match Tag::find(&input.body) {
                Ok(tag) if role == Role::Prefill => prefill(&mut stream, &tag, &input.body, accounts).await?,
                Ok(tag) => decode(&mut stream, &tag, &input.body, accounts).await?,
                Err(problem) => {
                    accounts.refused.fetch_add(1, Relaxed);
                    let body = serde_json::json!({"error": {"message": problem, "type": "invalid_request_error"}});
                    stream.write_all(&whole(400, &body.to_string())).await?;
                }
            }
        } else {
            // What routers ask before they send anything.
            let body = match target.as_str() {
                "/v1/models" => r#"{"object":"list","data":[{"id":"bench","object":"model","owned_by":"vllm"}]}"#,
                "/version" => r#"{"version":"0.11.0"}"#,
                _ => "{}",
            };
            stream.write_all(&whole(200, body)).await?;
        }
    }
    Ok(())
}

async fn prefill(stream: &mut TcpStream, tag: &Tag, body: &[u8], accounts: &Accounts) -> Result<()> {
    if tag.prefill_micros > 0 {
        tokio::time::sleep(Duration::from_micros(tag.prefill_micros.into())).await;
    }
    if memmem::find(body, b"\"do_remote_decode\"").is_some() {
        accounts.prefills_for_remote.fetch_add(1, Relaxed);
    }
    let id = answer_id(tag.ticket);
    let answer = format!(
        concat!(
            r#"{{"id":"{id}","object":"text_completion","created":0,"model":"bench","choices":[{{"index":0,"text":" a","#,
            r#""logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":null}}],"#,
            r#""service_tier":null,"system_fingerprint":null,"usage":{{"prompt_tokens":256,"total_tokens":257,"#,
            r#""completion_tokens":1,"prompt_tokens_details":null}},"kv_transfer_params":{{"do_remote_prefill":true,"#,
            r#""do_remote_decode":false,"remote_block_ids":[[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]],"#,
            r#""remote_engine_id":"5d7fb8a4-31c1-4f7e-9d0b-6a3b1c2d4e5f","remote_request_id":"{id}","#,
            r#""remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}}}}"#
        ),
        id = id
    );
    stream.write_all(&whole(200, &answer)).await?;
    accounts.prefills.fetch_add(1, Relaxed);
    Ok(())
}

async fn decode(stream: &mut TcpStream, tag: &Tag, body: &[u8], accounts: &Accounts) -> Result<()> {
    accounts.decodes.fetch_add(1, Relaxed);
    if memmem::find(body, b"\"remote_block_ids\":[[1").is_some() {
        accounts.decodes_from_remote.fetch_add(1, Relaxed);
    }
    if tag.streams {
        accounts.open_streams.fetch_add(1, Relaxed);
        let ended = events(stream, tag, accounts).await;
        accounts.open_streams.fetch_sub(1, Relaxed);
        return ended;
    }
    let text = "x".repeat(200);
    let answer = format!(
        concat!(
            r#"{{"id":"{id}","object":"text_completion","created":0,"model":"bench","choices":[{{"index":0,"#,
            r#""text":"{text}","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_logprobs":null}}],"#,
            r#""usage":{{"prompt_tokens":256,"total_tokens":272,"completion_tokens":16,"prompt_tokens_details":null}}}}"#
        ),
        id = answer_id(tag.ticket),
        text = text
    );
    stream.write_all(&whole(200, &answer)).await
}

async fn events(stream: &mut TcpStream, tag: &Tag, accounts: &Accounts) -> Result<()> {
    stream
        .write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        .await?;
    let gap = Duration::from_micros(tag.gap_micros.into());
    let mut due = Instant::now();
    let mut chunk = EventChunk::new(tag.ticket, tag.event_bytes as usize);
    for number in 0..tag.events {
        let bytes = chunk.at(now_nanos());
        stream.write_all(bytes).await?;
        accounts.event_bytes.fetch_add(bytes.len() as u64, Relaxed);
        if tag.gap_micros >= 1_000 {
            due += gap;
            tokio::time::sleep_until(due).await;
        } else if number == 0 {
            // The load runs on the same thread: it must not get the first event together with the last.
            tokio::task::yield_now().await;
        }
    }
    let mut end = format!("{:x}\r\n", DONE.len()).into_bytes();
    end.extend_from_slice(DONE);
    end.extend_from_slice(b"\r\n0\r\n\r\n");
    stream.write_all(&end).await
}

/// An answer in one piece.
fn whole(status: u16, body: &str) -> Vec<u8> {
    let reason = if status == 200 { "OK" } else { "Bad Request" };
    format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// What came on a connection.
#[derive(Debug, Default)]
struct Input {
    bytes: Vec<u8>,
    body: Vec<u8>,
}

impl Input {
    /// Reads one request; its method and target. `None` when the connection ended before another began.
    async fn request(&mut self, stream: &mut TcpStream) -> Result<Option<(String, String)>> {
        self.bytes.clear();
        self.body.clear();
        let mut head: Option<Head> = None;
        loop {
            self.bytes.reserve(READ_BYTES);
            if stream.read_buf(&mut self.bytes).await? == 0 {
                let is_between = head.is_none() && self.bytes.is_empty();
                return if is_between { Ok(None) } else { Err(bad("the connection ended within a request")) };
            }
            if head.is_none() {
                head = Head::parse(&self.bytes, false)?;
                if let Some(head) = &head {
                    self.bytes.drain(..head.length);
                }
            }
            if let Some(head) = &mut head {
                let body = &mut self.body;
                let is_whole = head.framing.feed(&self.bytes, |piece| body.extend_from_slice(piece))?;
                self.bytes.clear();
                if is_whole {
                    return Ok(Some(std::mem::take(&mut head.words)));
                }
            }
            if self.bytes.len() + self.body.len() > MOST_REQUEST_BYTES {
                return Err(bad("the request is too long"));
            }
        }
    }
}
