//! The prefill-decode proxy finds decode pods by the EndpointSlices of a real API server, under its own Role, and passes a
//! rolling update of them without a failed request; a while without the API server changes nothing for clients.
//!
//! `GCO_SUITE_SIZE=full` rolls ten times.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use axum::body::Body;
use gco_bed::wait;
use gco_local::loopback::{LoopbackClient, json_request};
use gco_local::platform::{INFERENCE_NAMESPACE, PROXY_ACCOUNT, PROXY_ROLE, objects};
use gco_tests::proxy::engine::sum;
use gco_tests::proxy::{BOUND, Engine, EngineSpec, Logged};
use gco_tests::region::Pods;
use gco_tests::region::monitor::program;
use gco_tests::region::planes::{Plane, plane};
use gco_tests::size::Size;
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// The Service and the Deployment of the decode pods.
const DECODE: &str = "marble-decode";

/// How many pods there are.
const REPLICAS: i32 = 3;

/// How many requests are under way at once.
const LANES: usize = 4;

/// How many answers are waited for while something is as it is.
const SOME: usize = 40;

/// A pod of the simulated engine with the flags of a real decode engine, which leaves its Service a moment before it ends.
fn deployment() -> Value {
    let transfer = json!({"kv_connector": "MooncakeConnector", "kv_role": "kv_consumer"});
    let container = json!({
        "name": "inference",
        "image": "vllm/vllm-openai:v0.32.0",
        "args": ["--model", "demo/model", "--kv-transfer-config", transfer.to_string()],
        "env": [{"name": "GCO_ENGINE_TOKEN_MILLISECONDS", "value": "10"}, {"name": "EDIT", "value": "none"}],
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1},
        "lifecycle": {"preStop": {"sleep": {"seconds": 2}}},
    });
    json!({
        "metadata": {"name": DECODE},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": {"app": DECODE}},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": {"app": DECODE}},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 30},
            },
        },
    })
}

fn service() -> Value {
    json!({
        "metadata": {"name": DECODE},
        "spec": {"selector": {"app": DECODE}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    })
}

/// The decode pods in the cluster.
struct Decodes {
    deployments: Api<Deployment>,
    pods: Api<Pod>,
}

impl Decodes {
    async fn start(client: &Client) -> anyhow::Result<Self> {
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), INFERENCE_NAMESPACE);
        let services: Api<Service> = Api::namespaced(client.clone(), INFERENCE_NAMESPACE);
        services.create(&PostParams::default(), &serde_json::from_value(service())?).await?;
        deployments.create(&PostParams::default(), &serde_json::from_value(deployment())?).await?;
        let decodes = Self { deployments, pods: Api::namespaced(client.clone(), INFERENCE_NAMESPACE) };
        decodes.rolled_out(REPLICAS).await?;
        Ok(decodes)
    }

    /// Waits until all pods are of the latest template, ready, and the others gone; gives the UIDs.
    async fn rolled_out(&self, replicas: i32) -> anyhow::Result<Vec<String>> {
        let looks = async || -> anyhow::Result<Result<Vec<String>, String>> {
            let deployment = self.deployments.get(DECODE).await?;
            let status = deployment.status.unwrap_or_default();
            let wanted = (deployment.metadata.generation, Some(replicas), Some(replicas), Some(replicas));
            let seen =
                (status.observed_generation, status.replicas, status.updated_replicas, status.available_replicas);
            let pods = self.pods.list(&ListParams::default().labels(&format!("app={DECODE}"))).await?.items;
            if seen != wanted || pods.len() != usize::try_from(replicas)? {
                return Ok(Err(format!("{seen:?} instead of {wanted:?}, {} pods", pods.len())));
            }
            let mut uids: Vec<String> = pods.into_iter().filter_map(|pod| pod.metadata.uid).collect();
            uids.sort();
            Ok(Ok(uids))
        };
        let uids = wait::until("the decode pods to be rolled out", BOUND * 2, async || {
            looks().await.unwrap_or_else(|error| Err(format!("{error:#}")))
        });
        Ok(uids.await?)
    }

    /// Another template: every pod is replaced.
    async fn roll(&self, edit: &str) -> anyhow::Result<Vec<String>> {
        let env = json!([{"name": "EDIT", "value": edit}]);
        let container = json!({"name": "inference", "env": env});
        let change = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
        self.deployments.patch(DECODE, &PatchParams::default(), &Patch::Strategic(change)).await?;
        self.rolled_out(REPLICAS).await
    }

    async fn scale(&self, replicas: i32) -> anyhow::Result<Vec<String>> {
        let change = json!({"spec": {"replicas": replicas}});
        self.deployments.patch(DECODE, &PatchParams::default(), &Patch::Merge(change)).await?;
        self.rolled_out(replicas).await
    }
}

/// The proxy, under its own account.
struct Proxy {
    process: Logged,
    port: u16,
    client: LoopbackClient,
}

impl Proxy {
    async fn start(plane: &Plane, prefill: &Engine, folder: &Path) -> anyhow::Result<Self> {
        let token = plane.control_plane().service_account_token(INFERENCE_NAMESPACE, PROXY_ACCOUNT).await?;
        let kubeconfig = folder.join("proxy.kubeconfig");
        plane.control_plane().write_kubeconfig(&kubeconfig, &token)?;
        let proxy = program("gco-proxy", &["proxy/src", "infra/runtime/src"])?;
        let process = Logged::start(
            "gco-proxy",
            proxy,
            [],
            [
                ("PD_PROXY_HOST", "127.0.0.1"),
                ("PD_PROXY_PORT", "0"),
                ("PD_PROXY_PREFILL_URL", &prefill.url()),
                ("GCO_PROXY_BOOTSTRAP_PORT", &prefill.bootstrap_port().to_string()),
                ("GCO_PROXY_DECODE_SERVICE", &format!("{DECODE}:http")),
                ("GCO_PROXY_NAMESPACE", INFERENCE_NAMESPACE),
                ("GCO_PROXY_DIAL_MAP_FILE", &plane.dial_map_file().to_string_lossy()),
                ("ADMIN_API_KEY", "suite-key"),
                ("KUBECONFIG", &kubeconfig.to_string_lossy()),
            ],
        )?;
        let port = process.port().await?;
        let proxy = Self { process, port, client: LoopbackClient::without_reuse() };
        wait::until("the proxy to be ready", BOUND, async || {
            let answer = proxy.get("/readyz", "").await.map_err(|problem| format!("{problem:#}"))?;
            if answer.status == 200 { Ok(()) } else { Err(answer.body) }
        })
        .await
        .with_context(|| proxy.process.said())?;
        Ok(proxy)
    }

    async fn get(&self, path: &str, key: &str) -> anyhow::Result<Whole> {
        let request = Request::get(path).header("x-admin-api-key", key).body(Body::empty())?;
        whole(&self.client, self.port, request).await
    }

    /// Waits until it knows exactly these pods, and each as ready.
    async fn knows(&self, uids: &[String]) -> anyhow::Result<()> {
        let known = async || -> anyhow::Result<Vec<String>> {
            let list: Value = serde_json::from_str(&self.get("/admin/backends", "suite-key").await?.body)?;
            let backends = list["decode"].as_array().cloned().unwrap_or_default();
            let mut known: Vec<String> =
                backends.iter().map(|one| format!("{} {}", one["key"], one["state"])).collect();
            known.sort();
            Ok(known)
        };
        let wanted: Vec<String> = uids.iter().map(|uid| format!("\"{uid}\" \"ready\"")).collect();
        wait::until("the proxy to know the pods that there are", BOUND, async || {
            let known = known().await.map_err(|problem| format!("{problem:#}"))?;
            if known == wanted { Ok(()) } else { Err(format!("{known:?} instead of {wanted:?}")) }
        })
        .await?;
        Ok(())
    }
}

/// An answer that came to its end.
struct Whole {
    status: u16,
    /// The header `x-gco-exchange`.
    exchange: String,
    body: String,
}

async fn whole(client: &LoopbackClient, port: u16, request: Request<Body>) -> anyhow::Result<Whole> {
    let answer = async {
        let (parts, body) = client.send(port, request).await?.into_parts();
        let exchange = parts.headers.get("x-gco-exchange").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let body = body.collect().await.context("the answer broke off")?.to_bytes();
        let body = String::from_utf8(body.to_vec()).context("the answer is no text")?;
        anyhow::Ok(Whole { status: parts.status.as_u16(), exchange: exchange.to_owned(), body })
    };
    tokio::time::timeout(BOUND, answer).await.context("the answer does not end")?
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicUsize,
    good: AtomicUsize,
    streams: AtomicUsize,
    failures: Mutex<Vec<String>>,
    exchanges: Mutex<BTreeMap<String, usize>>,
}

/// Requests through the proxy, one after the other in each lane, until they are stopped.
struct Load {
    counts: Arc<Counts>,
    stopping: Arc<AtomicBool>,
    lanes: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(port: u16) -> Self {
        let (counts, stopping) = (Arc::<Counts>::default(), Arc::<AtomicBool>::default());
        let lanes = (0..LANES).map(|lane| tokio::spawn(run_lane(lane, port, counts.clone(), stopping.clone())));
        Self { lanes: lanes.collect(), counts, stopping }
    }

    /// Waits until so many more answers were good, or one was not.
    async fn goes_on(&self, what: &str) -> anyhow::Result<()> {
        let before = self.counts.good.load(Ordering::SeqCst);
        wait::until(what, BOUND, || {
            let good = self.counts.good.load(Ordering::SeqCst) - before;
            let failures = self.failures();
            std::future::ready(if good >= SOME || !failures.is_empty() {
                Ok(())
            } else {
                Err(format!("{good} answers"))
            })
        })
        .await?;
        ensure!(self.failures().is_empty(), "{what}: {:?}", self.failures());
        Ok(())
    }

    fn failures(&self) -> Vec<String> {
        self.counts.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn stop(self) -> anyhow::Result<Arc<Counts>> {
        self.stopping.store(true, Ordering::SeqCst);
        for lane in self.lanes {
            tokio::time::timeout(BOUND, lane).await.context("a lane does not end")??;
        }
        Ok(self.counts)
    }
}

async fn run_lane(lane: usize, port: u16, counts: Arc<Counts>, stopping: Arc<AtomicBool>) {
    let client = LoopbackClient::new();
    let mut number = lane;
    while !stopping.load(Ordering::SeqCst) {
        number += 1;
        let stream = number.is_multiple_of(2);
        counts.sent.fetch_add(1, Ordering::SeqCst);
        counts.streams.fetch_add(usize::from(stream), Ordering::SeqCst);
        let answer = ask(&client, port, &format!("lane {lane}, request {number}"), stream).await;
        match answer {
            Ok(exchange) => {
                counts.good.fetch_add(1, Ordering::SeqCst);
                *counts.exchanges.lock().unwrap_or_else(PoisonError::into_inner).entry(exchange).or_default() += 1;
            }
            Err(error) => {
                let mut failures = counts.failures.lock().unwrap_or_else(PoisonError::into_inner);
                failures.push(format!("lane {lane}, request {number}, stream {stream}: {error:#}"));
            }
        }
    }
}

/// One request; good is only a whole answer. Gives how it was served.
async fn ask(client: &LoopbackClient, port: u16, prompt: &str, stream: bool) -> anyhow::Result<String> {
    let body = json!({"prompt": prompt, "max_tokens": 16, "stream": stream});
    let answer = whole(client, port, json_request("/v1/completions", &body)?).await?;
    let Whole { status, exchange, body } = answer;
    ensure!(status == 200, "{status}: {body}");
    if stream {
        ensure!(body.ends_with("data: [DONE]\n\n") && !body.contains("\"error\""), "no good stream: {body}");
    } else {
        let answer: Value = serde_json::from_str(&body).with_context(|| body.clone())?;
        ensure!(answer["choices"][0]["text"].as_str().is_some_and(|text| !text.is_empty()), "{body}");
    }
    Ok(exchange)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_update_of_decode_pods_under_load_fails_no_request() -> anyhow::Result<()> {
    let plane = plane(0, Pods::Engines).await?;
    let audit = plane.audit()?;
    let mark = audit.mark()?;
    let client = plane.control_plane().client().await?;
    let folder = tempfile::tempdir()?;
    let prefill = EngineSpec::prefill("p-0").start().await?;
    let decodes = Decodes::start(&client).await?;
    let proxy = Proxy::start(plane, &prefill, folder.path()).await?;
    let load = Load::start(proxy.port);
    load.goes_on("answers before anything happens").await?;

    for round in 0..Size::asked().choose(2, 10) {
        let uids = decodes.roll(&format!("round {round}")).await?;
        proxy.knows(&uids).await?;
        load.goes_on("answers after a rolling update").await?;
    }
    for replicas in [1, REPLICAS] {
        let uids = decodes.scale(replicas).await?;
        proxy.knows(&uids).await?;
        load.goes_on("answers after a change of the count").await?;
    }
    // Without an API server that answers, what was known last is used.
    plane.control_plane().api_server().pause()?;
    let without = load.goes_on("answers without the API server").await;
    plane.control_plane().api_server().resume()?;
    without?;
    let uids = decodes.roll("after the API server was away").await?;
    proxy.knows(&uids).await?;
    load.goes_on("answers of the last pods").await?;

    let counts = load.stop().await?;
    let failures = counts.failures.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let exchanges = counts.exchanges.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (sent, good) = (counts.sent.load(Ordering::SeqCst), counts.good.load(Ordering::SeqCst));
    let streams = counts.streams.load(Ordering::SeqCst);
    println!("{sent} requests, {streams} of them streams, {} failed; {exchanges:?}", failures.len());
    ensure!(failures.is_empty() && good == sent, "{failures:?}");
    let transferred = exchanges.get("transferred").copied().unwrap_or_default();
    ensure!(transferred * 10 > sent * 9, "{transferred} of {sent} with the KV cache handed over: {exchanges:?}");

    // Every request is off the engines again, and the proxy ends as it should.
    wait::until("the proxy to be idle", BOUND, async || {
        let scrape = proxy.get("/metrics", "").await.map_err(|problem| format!("{problem:#}"))?.body;
        let in_flight = sum(&scrape, "gco_proxy_in_flight", "");
        if in_flight == 0.0 { Ok(()) } else { Err(format!("{in_flight} in flight")) }
    })
    .await?;
    ensure!(proxy.process.stop().await?.success(), "{}", proxy.process.said());

    // It asked for what its Role grants, nothing else, and was refused nothing.
    let user = format!("system:serviceaccount:{INFERENCE_NAMESPACE}:{PROXY_ACCOUNT}");
    let asked = audit.requests_of_user(mark, &user)?;
    let rights: Vec<String> = asked.iter().map(|event| format!("{} {}", event.verb, event.resource)).collect();
    ensure!(asked.iter().all(|event| !event.without_right), "{rights:?}");
    let granted = &objects(PROXY_ROLE)?[0]["rules"];
    ensure!(
        granted
            == &json!([{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}])
    );
    ensure!(
        rights.iter().all(|right| ["list endpointslices", "watch endpointslices"].contains(&right.as_str())),
        "{rights:?}"
    );
    ensure!(rights.len() >= 2, "{rights:?}");
    Ok(())
}
