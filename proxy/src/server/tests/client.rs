//! A client that sees every byte.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long a test waits for anything; far more than it takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// What a client got.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// Whether the body came to its end as announced.
    pub(super) is_whole: bool,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A connection with a request under way.
pub(super) struct Exchange {
    pub(super) stream: TcpStream,
    bytes: Vec<u8>,
}

impl Exchange {
    /// Sends bytes as they are.
    pub(super) async fn raw(to: SocketAddr, bytes: &[u8]) -> Self {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        Self { stream, bytes: Vec::new() }
    }

    /// Sends a request after which the connection is to be closed.
    pub(super) async fn send(to: SocketAddr, line: &str, headers: &str, body: &str) -> Self {
        let head = format!(
            "{line} HTTP/1.1\r\nhost: proxy\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        Self::raw(to, [head.as_bytes(), body.as_bytes()].concat().as_slice()).await
    }

    /// Reads until `enough` bytes were seen in all, or the end; says how many there are.
    pub(super) async fn read_until(&mut self, enough: usize) -> usize {
        while self.bytes.len() < enough {
            let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.bytes)).await;
            match read.unwrap_or_else(|_| panic!("nothing more after {:?}", String::from_utf8_lossy(&self.bytes))) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        self.bytes.len()
    }

    /// Reads so many bytes and not one more.
    pub(super) async fn read_exactly(&mut self, count: usize) {
        let mut bytes = vec![0; count];
        let read = tokio::time::timeout(PATIENCE, self.stream.read_exact(&mut bytes)).await;
        read.expect("fewer bytes came").unwrap();
    }

    /// Reads until the text is there.
    pub(super) async fn read_text(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.bytes).contains(text) {
            let before = self.bytes.len();
            let now = self.read_until(before + 1).await;
            assert!(now > before, "{text:?} never came: {:?}", String::from_utf8_lossy(&self.bytes));
        }
    }

    /// Whether the text is among what was read so far.
    pub(super) fn has_read(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.bytes).contains(text)
    }

    /// Reads to the end of the connection.
    pub(super) async fn end(mut self) -> Answer {
        self.read_until(usize::MAX).await;
        parse(&self.bytes)
    }
}

/// One whole request.
pub(super) async fn post(to: SocketAddr, path: &str, body: &str) -> Answer {
    Exchange::send(to, &format!("POST {path}"), "content-type: application/json\r\n", body).await.end().await
}

fn parse(bytes: &[u8]) -> Answer {
    let shown = || String::from_utf8_lossy(bytes).into_owned();
    let end =
        bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or_else(|| panic!("no head: {:?}", shown()));
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse().ok());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let find = |name: &str| headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone());
    let rest = &bytes[end + 4..];
    let (body, is_whole) = if find("transfer-encoding").is_some_and(|value| value == "chunked") {
        dechunk(rest)
    } else if let Some(length) = find("content-length") {
        (rest.to_vec(), rest.len() == length.parse::<usize>().unwrap())
    } else {
        (rest.to_vec(), true)
    };
    Answer { status: status.unwrap_or_else(|| panic!("no status: {:?}", shown())), headers, body, is_whole }
}

fn dechunk(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") else { return (body, false) };
        let size = std::str::from_utf8(&bytes[..end]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let Some(size) = size else { return (body, false) };
        bytes = &bytes[end + 2..];
        if size == 0 {
            return (body, bytes == b"\r\n");
        }
        if bytes.len() < size + 2 {
            body.extend_from_slice(&bytes[..bytes.len().min(size)]);
            return (body, false);
        }
        body.extend_from_slice(&bytes[..size]);
        bytes = &bytes[size + 2..];
    }
}
