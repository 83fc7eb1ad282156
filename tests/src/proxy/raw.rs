//! A client that controls every byte: it reads as much as it wants, or nothing, and leaves when it wants.

use std::net::Ipv4Addr;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::BOUND;

/// The bytes of a POST of JSON on a connection that ends with it.
#[must_use]
pub fn post(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("connection: close\r\n\r\n");
    let mut request = request.into_bytes();
    request.extend_from_slice(body);
    request
}

/// Opens a connection and writes these bytes.
///
/// # Errors
/// When nobody listens, or the connection breaks.
pub async fn open(port: u16, bytes: &[u8]) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.context("connecting")?;
    stream.set_nodelay(true)?;
    stream.write_all(bytes).await.context("writing a request")?;
    Ok(stream)
}

/// Reads exactly so many bytes.
///
/// # Errors
/// When fewer come.
pub async fn read(stream: &mut TcpStream, bytes: usize) -> anyhow::Result<Vec<u8>> {
    let mut read = vec![0; bytes];
    let reading = tokio::time::timeout(BOUND, stream.read_exact(&mut read)).await;
    reading.context("the bytes do not come")?.context("the connection ended")?;
    Ok(read)
}

/// Reads until the end of the connection, however it ends.
///
/// # Errors
/// When it does not end.
pub async fn read_all(stream: &mut TcpStream) -> anyhow::Result<Vec<u8>> {
    let mut read = Vec::new();
    let reading = tokio::time::timeout(BOUND, stream.read_to_end(&mut read)).await;
    // A reset is an end, too.
    let _ = reading.context("the connection does not end")?;
    Ok(read)
}
