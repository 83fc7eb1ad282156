//! A region's address for people: the shared inference proxy's place, without its authentication.
//!
//! `http://127.0.0.1:PORT/inference/<name>/v1/…` goes to a ready pod of the endpoint, and only when
//! the row says that the endpoint should run and that this region runs it.

mod route;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, Request, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures::StreamExt as _;
use gco_runtime::random::{Randomness as _, SystemRandomness};
use gco_store::row::EndpointRow;
use gco_store::table::{Consistency, Table};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::kubelet::DialMap;
use crate::loopback::{LoopbackClient, LoopbackError};

/// The largest request body, in bytes, as the shared proxy has it.
const MAXIMUM_BODY_BYTES: usize = 1_048_576;

/// How long a pod has for the head of its answer.
const ANSWER_BOUND: Duration = Duration::from_secs(300);

/// How long open requests may go on when the gateway stops.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// Request headers that are passed on.
const PASSED_ON: [&str; 12] = [
    "accept",
    "accept-encoding",
    "cache-control",
    "content-encoding",
    "content-type",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "prefer",
    "range",
    "user-agent",
    "x-request-id",
];

/// Response headers that belong to one connection.
const OF_THE_CONNECTION: [&str; 9] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What a gateway needs.
#[derive(Clone, Debug)]
pub struct GatewaySettings {
    /// Its region.
    pub region: String,
    /// Where the endpoints' objects are.
    pub namespace: String,
    /// The port that it had before, if it is still free.
    pub preferred_port: Option<u16>,
}

/// A running gateway. Dropping it ends it.
#[derive(Debug)]
pub struct Gateway {
    port: u16,
    stop: CancellationToken,
    tasks: TaskTracker,
}

struct Shared {
    settings: GatewaySettings,
    table: Arc<dyn Table>,
    slices: reflector::Store<EndpointSlice>,
    dial_map: DialMap,
    client: LoopbackClient,
    turn: AtomicUsize,
}

impl Gateway {
    /// Opens a port on loopback and serves.
    ///
    /// # Errors
    ///
    /// When no port can be opened.
    pub async fn start(
        client: Client,
        table: Arc<dyn Table>,
        dial_map: DialMap,
        settings: GatewaySettings,
    ) -> anyhow::Result<Self> {
        let listener = listen(settings.preferred_port).await.context("opening the gateway's port")?;
        let port = listener.local_addr()?.port();
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (slices, writer) = reflector::store();
        tasks.spawn(
            stop.clone().run_until_cancelled_owned(watch_slices(Api::namespaced(client, &settings.namespace), writer)),
        );
        let shared = Arc::new(Shared {
            settings,
            table,
            slices,
            dial_map,
            client: LoopbackClient::new(),
            turn: AtomicUsize::new(0),
        });
        let router = Router::new()
            .route("/healthz", get(async || "ok"))
            .route("/inference/{name}", get(bare).post(bare))
            .route("/inference/{name}/{*path}", get(below).post(below))
            .fallback(async || detail(StatusCode::NOT_FOUND, "Not Found"))
            .layer(axum::extract::DefaultBodyLimit::disable())
            .with_state(shared);
        let server = axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
        tasks.spawn(server.into_future());
        Ok(Self { port, stop, tasks })
    }

    /// Where it listens on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Takes no more requests and lets open ones end, for two seconds at most.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        // What is left is dropped with the runtime.
        let _ = tokio::time::timeout(STOP_GRACE, self.tasks.wait()).await;
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn listen(preferred: Option<u16>) -> std::io::Result<TcpListener> {
    if let Some(port) = preferred
        && let Ok(listener) = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await
    {
        return Ok(listener);
    }
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await
}

async fn watch_slices(slices: Api<EndpointSlice>, writer: reflector::store::Writer<EndpointSlice>) {
    let events = watcher(slices, watcher::Config::default()).default_backoff().reflect(writer);
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        if let Err(problem) = event {
            tracing::debug!(%problem, "watching EndpointSlices");
        }
    }
}

fn detail(status: StatusCode, text: impl Into<String>) -> Response {
    (status, Json(json!({"detail": text.into()}))).into_response()
}

async fn bare(State(shared): State<Arc<Shared>>, Path(name): Path<String>, request: Request<Body>) -> Response {
    pass_on(&shared, &name, "", request).await
}

async fn below(
    State(shared): State<Arc<Shared>>,
    Path((name, path)): Path<(String, String)>,
    request: Request<Body>,
) -> Response {
    pass_on(&shared, &name, &path, request).await
}

async fn pass_on(shared: &Shared, name: &str, path: &str, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, MAXIMUM_BODY_BYTES).await else {
        let text = format!("Request body exceeds maximum size of {MAXIMUM_BODY_BYTES} bytes");
        return detail(StatusCode::PAYLOAD_TOO_LARGE, text);
    };
    if path.split('/').any(|segment| segment == "." || segment == "..") {
        return detail(StatusCode::BAD_REQUEST, "Invalid inference path");
    }
    if !route::is_label(name) {
        return detail(StatusCode::NOT_FOUND, "Invalid inference name");
    }
    let row = match shared.table.get(name, Consistency::Eventual).await {
        Ok(Some(item)) => EndpointRow::parse(item).ok(),
        Ok(None) => None,
        Err(problem) => {
            tracing::warn!(%problem, "reading the table");
            return detail(StatusCode::SERVICE_UNAVAILABLE, "Inference endpoint store is unavailable");
        }
    };
    let Some(row) = row else {
        return detail(StatusCode::NOT_FOUND, format!("Inference endpoint '{name}' not found"));
    };
    let settings = &shared.settings;
    let service = route::service(&row, &settings.region, &settings.namespace, &head.method, path, roll());
    let service = match service {
        Ok(service) => service,
        Err(refused) => return detail(refused.status, refused.detail),
    };
    let query = head.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let target = format!("/{path}{query}");
    forward(shared, &service, &target, &head.method, &head.headers, body).await
}

/// A number from 0 to 99 that nobody can foresee.
fn roll() -> u8 {
    let token = SystemRandomness.token();
    let number = token.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or_default();
    u8::try_from(number % 100).unwrap_or_default()
}

async fn forward(
    shared: &Shared,
    service: &str,
    target: &str,
    method: &Method,
    headers: &HeaderMap,
    body: Bytes,
) -> Response {
    let unavailable = || detail(StatusCode::BAD_GATEWAY, "Inference endpoint is unavailable");
    let mut ready = shared.ready(service);
    if ready.is_empty() {
        return unavailable();
    }
    let turn = shared.turn.fetch_add(1, Ordering::Relaxed) % ready.len();
    ready.rotate_left(turn);
    for (pod, port) in ready {
        let Ok(uri) = target.parse::<Uri>() else {
            return detail(StatusCode::BAD_REQUEST, "Invalid inference path");
        };
        let mut request = Request::new(Body::from(body.clone()));
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri;
        for (name, value) in headers.iter().filter(|(name, _)| PASSED_ON.contains(&name.as_str())) {
            request.headers_mut().append(name, value.clone());
        }
        match tokio::time::timeout(ANSWER_BOUND, shared.client.send(port, request)).await {
            Ok(Ok(response)) => return relay(response),
            // Nothing was sent: another pod may do it.
            Ok(Err(LoopbackError::Refused { .. })) => {
                tracing::info!(%pod, port, "a ready pod does not listen");
            }
            Ok(Err(problem)) => {
                tracing::warn!(%problem, %pod, "asking a pod");
                return unavailable();
            }
            Err(_) => return detail(StatusCode::GATEWAY_TIMEOUT, "Inference endpoint timed out"),
        }
    }
    unavailable()
}

fn relay(response: http::Response<hyper::body::Incoming>) -> Response {
    let (mut head, body) = response.into_parts();
    for name in OF_THE_CONNECTION {
        head.headers.remove(name);
    }
    head.headers.entry(header::CONTENT_TYPE).or_insert(header::HeaderValue::from_static("application/json"));
    Response::from_parts(head, Body::new(body))
}

impl Shared {
    /// The pods behind a Service that are ready, and where they listen on this machine.
    fn ready(&self, service: &str) -> Vec<(IpAddr, u16)> {
        let mut ready = Vec::new();
        for slice in self.slices.state() {
            let labels = slice.metadata.labels.as_ref();
            if labels.and_then(|labels| labels.get("kubernetes.io/service-name")).map(String::as_str) != Some(service) {
                continue;
            }
            let ports: Vec<u16> = slice
                .ports
                .iter()
                .flatten()
                .filter_map(|port| port.port.and_then(|port| u16::try_from(port).ok()))
                .collect();
            let endpoints = slice.endpoints.iter();
            for endpoint in endpoints.filter(|one| one.conditions.as_ref().is_none_or(|seen| seen.ready != Some(false)))
            {
                for address in endpoint.addresses.iter().filter_map(|address| address.parse::<IpAddr>().ok()) {
                    let local = ports.iter().find_map(|port| self.dial_map.resolve(address, *port));
                    ready.extend(local.map(|local| (address, local.port())));
                }
            }
        }
        ready.sort_unstable();
        ready
    }
}
