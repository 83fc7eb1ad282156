//! How KV moves between two simulated engines: decode connects to prefill's worker, names an engine id and a transfer id in
//! one line of JSON, and gets one line of JSON and then the bytes. The bytes follow from the prompt, so that decode notices
//! when they are another's.

use std::io;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::shelf::Kv;

/// How many bytes are written and read at once.
const CHUNK_BYTES: usize = 16 * 1024;

/// The longest first line: two ids of the longest header value that a server takes.
const MAXIMUM_LINE_BYTES: u64 = 64 * 1024;

/// What decode asks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) engine_id: String,
    pub(super) transfer_id: String,
}

/// What prefill says before the bytes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Offer {
    /// The bytes follow.
    Kv { prompt_hash: u64, prompt_tokens: usize, bytes: usize },
    /// The engine id is not one of this process.
    UnknownEngine,
}

/// Why a pull came to nothing.
#[derive(Debug)]
pub(super) enum PullError {
    /// Nobody is there, or whoever was has gone.
    Connection(io::Error),
    /// The engine that was meant is not there any more.
    UnknownEngine,
    /// The bytes are not what was offered.
    Corrupt,
}

impl From<io::Error> for PullError {
    fn from(problem: io::Error) -> Self {
        Self::Connection(problem)
    }
}

/// One chunk of the KV of a prompt; every chunk is the same.
fn chunk_of(prompt_hash: u64) -> Vec<u8> {
    prompt_hash.to_le_bytes().repeat(CHUNK_BYTES / 8)
}

/// Fetches KV.
pub(super) async fn pull(address: SocketAddr, ask: &Ask) -> Result<Kv, PullError> {
    let mut stream = BufReader::with_capacity(CHUNK_BYTES, TcpStream::connect(address).await?);
    let line = serde_json::to_string(ask).map_err(io::Error::from)?;
    stream.write_all(format!("{line}\n").as_bytes()).await?;
    match read_line(&mut stream).await? {
        Offer::UnknownEngine => Err(PullError::UnknownEngine),
        Offer::Kv { prompt_hash, prompt_tokens, bytes } => {
            let expected = chunk_of(prompt_hash);
            let mut chunk = vec![0; CHUNK_BYTES];
            let mut left = bytes;
            while left > 0 {
                let length = left.min(CHUNK_BYTES);
                stream.read_exact(&mut chunk[..length]).await?;
                if chunk[..length] != expected[..length] {
                    return Err(PullError::Corrupt);
                }
                left -= length;
            }
            Ok(Kv { prompt_hash, prompt_tokens, bytes })
        }
    }
}

/// What decode asks for on a connection that it opened.
pub(super) async fn read_ask(stream: &mut BufReader<TcpStream>) -> io::Result<Ask> {
    read_line(stream).await
}

async fn read_line<T: for<'de> Deserialize<'de>>(stream: &mut BufReader<TcpStream>) -> io::Result<T> {
    let mut line = Vec::new();
    stream.take(MAXIMUM_LINE_BYTES).read_until(b'\n', &mut line).await?;
    if line.last() != Some(&b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&line).map_err(io::Error::from)
}

/// Says that the engine is not here.
pub(super) async fn refuse(stream: &mut BufReader<TcpStream>) -> io::Result<()> {
    let line = serde_json::to_string(&Offer::UnknownEngine)?;
    stream.write_all(format!("{line}\n").as_bytes()).await
}

/// Sends KV.
pub(super) async fn send(stream: &mut BufReader<TcpStream>, kv: Kv) -> io::Result<()> {
    let offer = Offer::Kv { prompt_hash: kv.prompt_hash, prompt_tokens: kv.prompt_tokens, bytes: kv.bytes };
    stream.write_all(format!("{}\n", serde_json::to_string(&offer)?).as_bytes()).await?;
    let chunk = chunk_of(kv.prompt_hash);
    let mut left = kv.bytes;
    while left > 0 {
        let length = left.min(CHUNK_BYTES);
        stream.write_all(&chunk[..length]).await?;
        left -= length;
    }
    stream.flush().await
}

/// Completes when the other side has closed the connection.
pub(super) async fn closed(stream: &mut BufReader<TcpStream>) {
    let mut byte = [0];
    // Nothing more is sent on such a connection: whatever comes is its end.
    let _ = stream.read(&mut byte).await;
}
