//! The proxy loses, delays, replaces and changes exactly what it was told to, and nothing else.
#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

mod common;

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use common::Tables;
use futures::{StreamExt as _, TryStreamExt as _};
use gco_bed::control_plane::{ControlPlane, ControlPlaneSettings};
use gco_bed::rewriting_proxy::{Answer, Decision, DecisionKind, Gate, RewritingProxy, Upstream};
use gco_bed::table_server::{Kind, TableServer};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;

const BOUND: Duration = Duration::from_secs(60);

/// A table server with a table, a proxy before it, and clients of both.
struct Bed {
    server: TableServer,
    proxy: RewritingProxy,
    direct: Tables,
    through: Tables,
}

impl Bed {
    async fn start() -> Self {
        let server = TableServer::start(Kind::Dynalite).await.unwrap();
        let proxy = RewritingProxy::start(server.upstream()).await.unwrap();
        let (direct, through) = (Tables::at(server.url()), Tables::at(proxy.url()));
        let (status, answer) = through.create_table().await.unwrap();
        assert_eq!(status, 200, "{answer}");
        direct.wait_until_active().await;
        Self { server, proxy, direct, through }
    }

    async fn stop(self) {
        self.proxy.stop().await;
        self.server.stop().await;
    }
}

#[tokio::test]
async fn every_request_is_passed_on_and_recorded() {
    let bed = Bed::start().await;
    let mark = bed.proxy.mark();
    assert_eq!(bed.through.put_new("a", "one").await.unwrap().0, 200);
    assert_eq!(bed.through.put_new("a", "two").await.unwrap().0, 400);
    assert_eq!(bed.through.writer_of("a").await.as_deref(), Some("one"));
    let exchanges = bed.proxy.exchanges_since(mark);
    let seen: Vec<_> = exchanges
        .iter()
        .map(|exchange| {
            let request = &exchange.request;
            assert!(exchange.finished && exchange.decision == DecisionKind::Forward);
            assert_eq!(exchange.upstream_status, exchange.client_status);
            (request.dynamodb_operation.as_deref().unwrap(), request.is_write(), exchange.client_status.unwrap())
        })
        .collect();
    assert_eq!(seen, [("PutItem", true, 200), ("PutItem", true, 400), ("GetItem", false, 200)]);
    assert_eq!(exchanges[1].request.json().unwrap()["Item"]["writer"]["S"], "two");
    bed.proxy.forget();
    assert!(bed.proxy.exchanges().is_empty());
    bed.stop().await;
}

#[tokio::test]
async fn a_throttled_write_never_reaches_the_table() {
    let bed = Bed::start().await;
    bed.proxy.once(|request| request.is_write(), Decision::AnswerInstead(Answer::dynamodb_throttled()));
    bed.proxy.once(|request| request.is_write(), Decision::AnswerInstead(Answer::dynamodb_internal_error()));
    let (status, answer) = bed.through.put_new("a", "one").await.unwrap();
    assert_eq!(status, 400);
    assert!(answer["__type"].as_str().unwrap().ends_with("#ProvisionedThroughputExceededException"));
    assert_eq!(bed.through.put_new("a", "two").await.unwrap().0, 500);
    assert_eq!(bed.direct.writer_of("a").await, None);
    assert_eq!(bed.through.put_new("a", "three").await.unwrap().0, 200, "each rule counts once");
    bed.stop().await;
}

#[tokio::test]
async fn a_write_can_be_done_and_its_answer_lost() {
    let bed = Bed::start().await;
    bed.proxy.once(|request| request.is_operation("PutItem"), Decision::ForwardThenDrop);
    bed.through.put_new("a", "one").await.unwrap_err();
    assert_eq!(bed.direct.writer_of("a").await.as_deref(), Some("one"));
    let exchanges = bed.proxy.exchanges();
    let last = exchanges.last().unwrap();
    assert_eq!((last.upstream_status, last.client_status, last.finished), (Some(200), None, true));
    bed.stop().await;
}

#[tokio::test]
async fn a_write_can_be_lost_before_it_is_done() {
    let bed = Bed::start().await;
    bed.proxy.once(|request| request.is_operation("PutItem"), Decision::DropBefore);
    bed.through.put_new("a", "one").await.unwrap_err();
    assert_eq!(bed.direct.writer_of("a").await, None);
    assert_eq!(bed.proxy.exchanges().last().unwrap().upstream_status, None);
    bed.stop().await;
}

#[tokio::test]
async fn a_held_write_is_done_when_the_gate_opens_even_if_its_writer_gave_up() {
    let bed = Bed::start().await;
    let gate = Gate::new();
    let mark = bed.proxy.mark();
    bed.proxy.once(|request| request.is_operation("PutItem"), Decision::HoldThenForward(gate.clone()));
    let writing = tokio::spawn({
        let through = bed.through.clone();
        async move { through.put_new("a", "late").await }
    });
    let held = |exchange: &gco_bed::rewriting_proxy::Exchange| exchange.decision == DecisionKind::HoldThenForward;
    let exchange = bed.proxy.wait_for("the write to be held", BOUND, mark, held).await.unwrap();
    assert!(!exchange.finished);
    assert_eq!(bed.direct.writer_of("a").await, None);
    writing.abort();
    assert!(writing.await.unwrap_err().is_cancelled());
    let given_up = bed.proxy.wait_for("the writer to give up", BOUND, mark, |exchange| exchange.finished);
    assert_eq!(given_up.await.unwrap().upstream_status, None);

    gate.open();
    let done = bed.proxy.wait_for("the late write", BOUND, mark, |exchange| exchange.upstream_status.is_some());
    assert_eq!(done.await.unwrap().client_status, None);
    assert_eq!(bed.direct.writer_of("a").await.as_deref(), Some("late"));
    bed.stop().await;
}

#[tokio::test]
async fn an_answer_can_be_held_after_the_write_was_done() {
    let bed = Bed::start().await;
    let gate = Gate::new();
    let mark = bed.proxy.mark();
    bed.proxy.once(|request| request.is_operation("PutItem"), Decision::ForwardThenHold(gate.clone()));
    let writing = tokio::spawn({
        let through = bed.through.clone();
        async move { through.put_new("a", "one").await }
    });
    let done = bed.proxy.wait_for("the write", BOUND, mark, |exchange| exchange.upstream_status == Some(200));
    assert!(!done.await.unwrap().finished);
    assert_eq!(bed.direct.writer_of("a").await.as_deref(), Some("one"));
    assert!(!writing.is_finished());
    gate.open();
    assert_eq!(writing.await.unwrap().unwrap().0, 200);
    bed.stop().await;
}

#[tokio::test]
async fn an_answer_can_be_rewritten() {
    let bed = Bed::start().await;
    bed.through.put_new("a", "one").await.unwrap();
    bed.proxy.set_hook(|request| match request.is_operation("GetItem") {
        true => Decision::rewrite(|mut answer| {
            let text = String::from_utf8(answer.body.to_vec()).unwrap();
            answer.body = text.replace("one", "somebody else entirely").into();
            answer
        }),
        false => Decision::Forward,
    });
    assert_eq!(bed.through.writer_of("a").await.as_deref(), Some("somebody else entirely"));
    bed.proxy.pass_everything();
    assert_eq!(bed.through.writer_of("a").await.as_deref(), Some("one"));
    bed.stop().await;
}

#[tokio::test]
async fn a_stopped_proxy_lets_go_of_everything() {
    let bed = Bed::start().await;
    let mark = bed.proxy.mark();
    bed.proxy.set_hook(|_| Decision::HoldThenForward(Gate::new()));
    let writing = tokio::spawn({
        let through = bed.through.clone();
        async move { through.put_new("a", "one").await }
    });
    bed.proxy.wait_for("the write to be held", BOUND, mark, |_| true).await.unwrap();
    bed.proxy.stop().await;
    writing.await.unwrap().unwrap_err();
    assert_eq!(bed.direct.writer_of("a").await, None);
    bed.through.put_new("a", "two").await.unwrap_err();
    bed.server.stop().await;
}

/// A server that sends every request's body back, in parts.
async fn echo() -> Upstream {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = hyper::service::service_fn(|request: Request<Incoming>| async {
                assert!(request.headers().get("connection").is_none());
                let length = request.headers().get("content-length").cloned();
                let parts = http_body_util::BodyStream::new(request.into_body());
                let mut answer = Response::new(StreamBody::new(parts));
                if let Some(length) = length {
                    answer.headers_mut().insert("x-length", length);
                }
                Ok::<_, Infallible>(answer)
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Upstream::Http { address }
}

#[tokio::test]
async fn bodies_of_any_size_and_framing_arrive_whole() {
    let proxy = RewritingProxy::start(echo().await).await.unwrap();
    let url = format!("{}/path?query=a%20b", proxy.url());
    for size in [0, 1, 65_536, 1024 * 1024, 1024 * 1024 + 1, 5_000_000] {
        let body: Bytes = (0..size).map(|index| (index % 251) as u8).collect::<Vec<_>>().into();
        // With a known length.
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let request = Request::put(&url).body(Full::new(body.clone())).unwrap();
        let answer = client.request(request).await.unwrap();
        let length = answer.headers().get("x-length").map(|length| length.to_str().unwrap().to_owned());
        assert_eq!(length.unwrap_or("0".to_owned()), size.to_string());
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), body);
        // Chunked.
        let parts: Vec<_> =
            body.chunks(10_007).map(|part| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(part)))).collect();
        let client = Client::builder(TokioExecutor::new()).build_http();
        let request = Request::put(&url).body(StreamBody::new(futures::stream::iter(parts))).unwrap();
        let answer = client.request(request).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), body);
    }
    for exchange in proxy.exchanges() {
        let request = &exchange.request;
        assert_eq!((request.path.as_str(), request.query.as_str()), ("/path", "query=a%20b"));
        assert_eq!(request.body_is_complete, request.body.len() < 1024 * 1024 || exchange.request.sequence < 8);
        assert!(request.body.len() <= 1024 * 1024);
    }
    proxy.stop().await;
}

#[tokio::test]
async fn an_unreachable_server_is_a_lost_connection_and_on_record() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = RewritingProxy::start(Upstream::Http { address: free }).await.unwrap();
    Tables::at(proxy.url()).create_table().await.unwrap_err();
    let exchanges = proxy.exchanges();
    assert!(exchanges[0].error.is_some() && exchanges[0].client_status.is_none(), "{exchanges:?}");
}

#[tokio::test]
async fn a_proxy_before_an_api_server_streams_watches_and_loses_answers() {
    let plane = ControlPlane::start(ControlPlaneSettings::named("proxied")).await.unwrap();
    let proxy = RewritingProxy::start(plane.upstream().unwrap()).await.unwrap();
    let client = plane.client_through(&proxy.url()).unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let map = |name: &str| -> ConfigMap { serde_json::from_value(json!({"metadata": {"name": name}})).unwrap() };

    let version = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut watch = maps.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    for number in 0..5 {
        let name = format!("map-{number}");
        maps.create(&PostParams::default(), &map(&name)).await.unwrap();
        // Each event comes while the watch goes on: nothing buffers it.
        let event = tokio::time::timeout(BOUND, watch.try_next()).await.unwrap().unwrap().unwrap();
        let WatchEvent::Added(added) = event else { panic!("{event:?}") };
        assert_eq!(added.metadata.name, Some(name));
    }
    let exchanges = proxy.exchanges();
    let watches: Vec<_> = exchanges.iter().filter(|exchange| exchange.request.is_watch()).collect();
    assert_eq!((watches.len(), watches[0].client_status), (1, Some(200)));
    assert_eq!(exchanges.iter().filter(|exchange| exchange.request.is_write()).count(), 5);

    proxy.once(|request| request.is_request("create", "configmaps"), Decision::ForwardThenDrop);
    let error = maps.create(&PostParams::default(), &map("lost")).await.unwrap_err();
    assert!(!matches!(error, kube::Error::Api(_)), "no answer, not a refusal: {error}");
    let direct: Api<ConfigMap> = Api::namespaced(plane.client().await.unwrap(), "default");
    assert!(direct.get_opt("lost").await.unwrap().is_some());

    proxy.once(|request| request.is_write(), Decision::AnswerInstead(Answer::kubernetes_too_many_requests()));
    let refuse = Answer::kubernetes_status(StatusCode::CONFLICT, "Conflict", "changed by somebody");
    proxy.once(|request| request.is_request("patch", "configmaps"), Decision::AnswerInstead(refuse));
    let change = Patch::Merge(json!({"data": {"key": "y"}}));
    let patch = async || maps.patch("map-0", &PatchParams::default(), &change).await;
    let (throttled, conflict) = (patch().await.unwrap_err(), patch().await.unwrap_err());
    assert!(matches!(&throttled, kube::Error::Api(status) if status.code == 429), "{throttled}");
    let kube::Error::Api(status) = conflict else { panic!("{conflict}") };
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    assert!(direct.get("map-0").await.unwrap().data.is_none());

    proxy.stop().await;
    assert!(tokio::time::timeout(BOUND, watch.collect::<Vec<_>>()).await.is_ok(), "the watch ended with the proxy");
    plane.stop().await;
}
