//! Limits, slow clients, and the end.

use std::sync::Arc;
use std::time::Duration;

use gco_runtime::shutdown::Drained;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::client::{Exchange, PATIENCE, post};
use super::engine::{STREAM_HEAD, Step, chunk};
use super::{ANSWER, Engines, Proxy, eventually, options};
use crate::exchange::{Connector, Fallback};

const STREAMED: &str = r#"{"prompt":"hi","stream":true}"#;

#[tokio::test]
async fn a_body_that_is_too_long_gets_413_and_never_a_reset() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let long = 100_000_000;
    for head in ["content-length: 100000000\r\n\r\n", "transfer-encoding: chunked\r\n\r\n5f5e100\r\n"] {
        let head = format!("POST /v1/completions HTTP/1.1\r\nhost: p\r\nconnection: close\r\n{head}");
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        // All of it is sent before the answer is looked at, as simple clients do.
        stream.write_all(head.as_bytes()).await.unwrap();
        let piece = vec![b' '; 1_000_000];
        for _ in 0..long / piece.len() {
            stream.write_all(&piece).await.unwrap();
        }
        let _ = stream.write_all(b"\r\n0\r\n\r\n").await;
        let mut got = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut got)).await.unwrap().unwrap();
        let text = String::from_utf8(got).unwrap();
        assert!(text.starts_with("HTTP/1.1 413 ") && text.contains("\"code\":413"), "{text}");
    }
    // One that asks first sends nothing.
    let ask = b"POST /v1/completions HTTP/1.1\r\nhost: p\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: 100000000\r\n\r\n";
    let mut exchange = Exchange::raw(proxy.address, ask).await;
    exchange.read_text("HTTP/1.1 413 ").await;
    assert!(!exchange.has_read("100 Continue"));
    assert_eq!(engines.decode[0].count(), 0);
    proxy.end().await;
}

#[tokio::test]
async fn heads_that_are_too_long_and_clients_that_are_too_slow_are_not_waited_for() {
    let engines = Engines::start(1, 1).await;
    let mut options = options(Connector::Mooncake, Fallback::DecodeOnly);
    options.max_header_bytes = 8 * 1024;
    options.patience.header = Duration::from_millis(100);
    options.body_time_out = Duration::from_millis(100);
    let proxy = Proxy::start(&engines, options).await;
    let long = format!("GET / HTTP/1.1\r\nhost: p\r\nx: {}\r\n\r\n", "x".repeat(20_000));
    assert_eq!(Exchange::raw(proxy.address, long.as_bytes()).await.end().await.status, 431);
    let mut slow = Exchange::raw(proxy.address, b"GET / HT").await;
    assert_eq!(slow.read_until(1_000).await, 0, "the slow head got an answer");
    let slow = b"POST /v1/completions HTTP/1.1\r\nhost: p\r\nconnection: close\r\ncontent-length: 9\r\n\r\n{";
    let got = Exchange::raw(proxy.address, slow).await.end().await;
    assert_eq!((got.status, got.json()["error"]["code"].as_u64()), (408, Some(408)));
    assert_eq!(engines.decode[0].count(), 0);
    proxy.end().await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_holds_decode_back_and_is_given_up_in_the_end() {
    let engines = Engines::start(1, 1).await;
    let mut options = options(Connector::Mooncake, Fallback::DecodeOnly);
    options.patience.taking = Duration::from_millis(300);
    let proxy = Proxy::start(&engines, options).await;
    // 80 MB in pieces; the kernels' buffers on the way hold a few.
    let piece = chunk(&format!("data: {}\n\n", "x".repeat(100_000)));
    let mut steps = vec![Step::Write(STREAM_HEAD.as_bytes().to_vec())];
    steps.extend(std::iter::repeat_n(Step::Write(piece), 800));
    engines.decode[0].next(steps);
    let mut exchange = Exchange::send(proxy.address, "POST /v1/completions", "", STREAMED).await;
    exchange.read_until(1_000).await;
    eventually("decode is left", || (engines.decode[0].left().len() == 1).then_some(())).await;
    proxy.end().await;
}

#[tokio::test]
async fn two_thousand_streams_at_once_run_without_an_error() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    const STREAMS: usize = 2_000;
    // All run at once: the last event of each waits for the order.
    let last = Arc::new(Notify::new());
    engines.decode[0].usually(vec![
        Step::Write([STREAM_HEAD.as_bytes(), &chunk("data: 1\n\n")].concat()),
        Step::Wait(last.clone()),
        Step::Write([chunk("data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()].concat()),
    ]);
    let address = proxy.address;
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..STREAMS {
        clients.spawn(async move {
            let mut exchange = Exchange::send(address, "POST /v1/completions", "", STREAMED).await;
            exchange.read_text("data: 1\n\n").await;
            exchange.end().await
        });
    }
    eventually("all run at once", || (engines.decode[0].running() == STREAMS).then_some(())).await;
    let mut whole = 0;
    let release = tokio::spawn(async move {
        loop {
            last.notify_waiters();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    while let Some(got) = clients.join_next().await {
        let got = got.unwrap();
        assert_eq!((got.status, got.is_whole, got.text().as_str()), (200, true, "data: 1\n\ndata: [DONE]\n\n"));
        whole += 1;
    }
    release.abort();
    assert_eq!(whole, STREAMS);
    proxy.end().await;
}

#[tokio::test]
async fn on_the_order_to_stop_running_streams_finish_and_nobody_is_listened_to() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let go_on = Arc::new(Notify::new());
    engines.decode[0].next(vec![
        Step::Write([STREAM_HEAD.as_bytes(), &chunk("data: 1\n\n")].concat()),
        Step::Wait(go_on.clone()),
        Step::Write([chunk("data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()].concat()),
    ]);
    let mut running = Exchange::send(proxy.address, "POST /v1/completions", "", STREAMED).await;
    running.read_text("data: 1\n\n").await;
    let mut idle = Exchange::raw(proxy.address, b"GET /health HTTP/1.1\r\nhost: p\r\n\r\n").await;
    idle.read_text("ok").await;
    proxy.stop.cancel();
    let idle = idle.end().await;
    assert!(idle.is_whole, "an idle connection was not closed in order");
    eventually("nobody is listened to", || std::net::TcpStream::connect(proxy.address).is_err().then_some(())).await;
    assert!(!proxy.run.is_finished(), "it ended with a stream running");
    go_on.notify_one();
    let got = running.end().await;
    assert_eq!((got.text().as_str(), got.is_whole), ("data: 1\n\ndata: [DONE]\n\n", true));
    let drained = tokio::time::timeout(PATIENCE, proxy.run).await.unwrap().unwrap();
    assert_eq!(drained, Drained::Finished);
}

#[tokio::test]
async fn what_outlives_the_drain_is_cut_off() {
    let engines = Engines::start(1, 1).await;
    let mut options = options(Connector::Mooncake, Fallback::DecodeOnly);
    options.drain = Duration::from_millis(100);
    let proxy = Proxy::start(&engines, options).await;
    engines.decode[0].usually(vec![Step::Wait(Arc::new(Notify::new()))]);
    let running = Exchange::send(proxy.address, "POST /v1/completions", "", STREAMED).await;
    eventually("it runs", || (engines.decode[0].running() == 1).then_some(())).await;
    proxy.stop.cancel();
    let drained = tokio::time::timeout(PATIENCE, proxy.run).await.unwrap().unwrap();
    assert_eq!(drained, Drained::GaveUp);
    eventually("the engine is left", || (engines.decode[0].running() == 0).then_some(())).await;
    drop(running);
}

#[tokio::test]
async fn requests_on_one_connection_are_served_one_after_the_other() {
    let engines = Engines::start(1, 1).await;
    let proxy = Proxy::start(&engines, options(Connector::Mooncake, Fallback::DecodeOnly)).await;
    let body = r#"{"prompt":"x"}"#;
    let request = format!("POST /v1/completions HTTP/1.1\r\nhost: p\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let last = request.replace("host: p", "host: p\r\nconnection: close");
    let mut exchange = Exchange::raw(proxy.address, format!("{request}{request}{last}").as_bytes()).await;
    exchange.read_until(usize::MAX).await;
    assert_eq!(engines.decode[0].count(), 3);
    assert!(exchange.has_read(ANSWER));
    assert_eq!(post(proxy.address, "/v1/completions", body).await.status, 200);
    proxy.end().await;
}
