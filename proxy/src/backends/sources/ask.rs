//! One small GET, for questions to bootstrap servers. Requests of clients go through the pools of `relay`.

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::backends::Dial;

/// Asks, and gives the status and the body. The caller bounds the time.
///
/// # Errors
/// When it cannot connect, the exchange breaks off, or the body has more than `longest` bytes.
pub async fn get(dial: &Dial, authority: &str, path: &str, longest: usize) -> anyhow::Result<(u16, Bytes)> {
    let stream = match dial {
        Dial::Address(address) => TcpStream::connect(address).await,
        Dial::Name { host, port } => TcpStream::connect((host.as_str(), *port)).await,
    };
    let stream = stream.with_context(|| format!("connecting to {dial}"))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path).header(header::HOST, authority).body(Empty::<Bytes>::new())?;
    let exchange = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), longest).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("{error}")).context("reading the answer")?;
        anyhow::Ok((status, body.to_bytes()))
    };
    // The connection is driven here and ends here: no task is left behind by a question that is given up.
    let mut connection = std::pin::pin!(connection);
    let mut exchange = std::pin::pin!(exchange);
    let mut ended = false;
    loop {
        tokio::select! {
            biased;
            answer = &mut exchange => return answer,
            result = &mut connection, if !ended => {
                result?;
                ended = true;
            }
        }
    }
}
