//! Endpoints of the control plane that came before: taken over by ours, given back, taken over again; no pod is restarted by
//! any of it. And what may restart them afterwards: an edit, and a refresh within its limits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_bed::wait;
use gco_runtime::clock::{Clock as _, SystemClock};
use gco_store::row::Refresh;
use gco_store::status::State;
use gco_tests::original::Original;
use gco_tests::region::keda::PREFIX;
use gco_tests::region::objects::{annotation, is_ready, model_container, number, text};
use gco_tests::region::rows::IMAGE;
use gco_tests::region::{BOUND, Monitor, MonitorSettings, Region, Snapshot};
use gco_tests::size::Size;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

type TestResult = anyhow::Result<()>;

/// How many replicas a classic endpoint of a kind has, and its spec as the original's command line writes it.
fn kinds() -> Vec<(&'static str, Value)> {
    let image = IMAGE;
    vec![
        ("small", json!({"image": image, "port": 8000, "replicas": 1, "gpu_count": 1, "health_check_path": "/health"})),
        (
            "full",
            json!({
                "image": image, "region_image_uris": {"us-east-1": "registry.example/vllm:regional"}, "port": 9000,
                "replicas": 3, "gpu_count": 2, "gpu_type": "g5", "health_check_path": "/v1/models",
                "env": {"MODEL": "x", "PYTHONHASHSEED": "7"}, "args": ["--port", "9000"], "capacity_type": "on-demand",
                "node_selector": {"eks.amazonaws.com/instance-family": "p5"},
            }),
        ),
        ("source", json!({"image": image, "replicas": 1, "model_source": "s3://models/x"})),
        ("tgi", json!({"image": "ghcr.io/huggingface/text-generation-inference:3", "replicas": 2, "framework": "tgi"})),
        ("neuron", json!({"image": image, "replicas": 1, "accelerator": "neuron"})),
        (
            "cpu",
            json!({"image": "registry.example/tritonserver:1", "replicas": 1, "gpu_count": 0,
            "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "20Gi"}}}),
        ),
        (
            "command",
            json!({"image": image, "replicas": 1, "command": ["vllm", "serve"], "args": ["--root-path", "/x"]}),
        ),
        (
            "canaried",
            json!({
                "image": image, "replicas": 2, "model_source": "s3://models/x",
                "canary": {"image": "vllm/vllm-openai:v0.29.0", "weight": 20, "replicas": 1},
            }),
        ),
        ("hpa", scaled(&[("cpu", 70), ("memory", 80)])),
        ("keda", scaled(&[("gpu", 60), ("cpu", 70)])),
        (STOPPED, json!({"image": image, "replicas": 2})),
    ]
}

/// The kind whose endpoints are stopped once they have served.
const STOPPED: &str = "stopped";

/// An endpoint that an autoscaler scales, KEDA's when one of the metrics is of GPUs.
fn scaled(metrics: &[(&str, i64)]) -> Value {
    let metrics: Vec<Value> = metrics.iter().map(|(kind, target)| json!({"type": kind, "target": target})).collect();
    json!({
        "image": IMAGE, "replicas": 2, "gpu_count": 1,
        "autoscaling": {"enabled": true, "min_replicas": 2, "max_replicas": 4, "metrics": metrics},
    })
}

/// The endpoints that are stopped.
fn stopped_ones(names: &[String]) -> Vec<&String> {
    names.iter().filter(|name| name.starts_with(STOPPED)).collect()
}

/// A region in which the original serves so many endpoints, of these kinds in turn.
async fn served_by_the_original<'r>(
    region: &'r Region,
    kinds: Vec<(&str, Value)>,
    count: usize,
) -> anyhow::Result<(Original<'r>, Vec<String>)> {
    region.make_model_storage().await?;
    let mut names = Vec::new();
    for (number, (kind, spec)) in (0..count).zip(kinds.iter().cycle()) {
        let name = format!("{kind}-{number}");
        region.deploy(&name, spec.clone()).await?;
        names.push(name);
    }
    let original = Original::start(region).await?;
    original.pass(&names).await?;
    all_ready(region, &names).await?;
    // Canaries come with the second pass.
    original.pass(&names).await?;
    all_ready(region, &names).await?;
    original.pass(&names).await?;
    for name in &names {
        let row = region.row(name).await?.context("no row")?;
        ensure!(row.desired_state.as_str() == "running", "{name} is {:?}", row.desired_state);
    }
    for name in stopped_ones(&names) {
        region.stop(name).await?;
    }
    original.pass(&names).await?;
    // Stopped ones have no pods once this holds, and each autoscaled one its autoscaler.
    all_ready(region, &names).await?;
    autoscalers_are_there(region, &names).await?;
    Ok((original, names))
}

/// Waits until each autoscaled endpoint has its autoscaler, and no other has one.
async fn autoscalers_are_there(region: &Region, names: &[String]) -> TestResult {
    let wanted: BTreeSet<String> = names
        .iter()
        .filter_map(|name| match name.split('-').next() {
            Some("hpa") => Some(name.clone()),
            Some("keda") => Some(format!("{PREFIX}{name}")),
            _ => None,
        })
        .collect();
    region
        .wait_for("the autoscalers", BOUND, |snapshot| {
            let there: BTreeSet<String> = snapshot.autoscalers.keys().cloned().collect();
            if there == wanted { Ok(()) } else { Err(format!("{there:?}, not {wanted:?}")) }
        })
        .await?;
    Ok(())
}

async fn all_ready(region: &Region, names: &[String]) -> TestResult {
    region
        .wait_for("every pod to be ready", BOUND, |snapshot| {
            let is_ready = |deployment: &Value| {
                let wanted = number(deployment, "/spec/replicas");
                let counters = ["replicas", "readyReplicas"];
                counters.iter().all(|counter| number(deployment, &format!("/status/{counter}")) == wanted)
                    && number(deployment, "/status/observedGeneration") == number(deployment, "/metadata/generation")
            };
            let missing = names.iter().filter(|name| !snapshot.deployments.contains_key(*name));
            let unready =
                snapshot.deployments.iter().filter(|(_, deployment)| !is_ready(deployment)).map(|(name, _)| name);
            let waiting: Vec<&String> = missing.chain(unready).collect();
            if waiting.is_empty() { Ok(()) } else { Err(format!("{waiting:?}")) }
        })
        .await?;
    Ok(())
}

/// Uids of pods and ReplicaSets: equal when nothing was restarted.
fn what_runs(snapshot: &Snapshot) -> (BTreeSet<String>, BTreeSet<String>) {
    let uids = |objects: &BTreeMap<String, Value>| -> BTreeSet<String> {
        objects
            .iter()
            .map(|(name, object)| format!("{name} {}", text(object, "/metadata/uid").unwrap_or_default()))
            .collect()
    };
    (uids(&snapshot.replica_sets), uids(&snapshot.pods))
}

/// That nothing that ran before is gone, and no ReplicaSet is new.
fn restarted_nothing(before: &Snapshot, after: &Snapshot) -> TestResult {
    let ((sets, pods), (sets_now, pods_now)) = (what_runs(before), what_runs(after));
    ensure!(sets == sets_now, "ReplicaSets: {:?}", sets.symmetric_difference(&sets_now).collect::<Vec<_>>());
    let gone: Vec<&String> = pods.difference(&pods_now).collect();
    ensure!(gone.is_empty(), "pods that are gone: {gone:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_originals_endpoints_are_taken_over_given_back_and_taken_over_again_without_a_restart() -> TestResult {
    let region = Region::start().await?;
    let _keda = region.start_keda().await?;
    let count = Size::asked().choose(kinds().len(), 50);
    let (original, names) = served_by_the_original(&region, kinds(), count).await?;
    let before = region.snapshot().await?;
    original.stop();

    // Ours.
    let monitor = Monitor::leading(&region).await?;
    region.all_agree(&names, BOUND * 2).await.with_context(|| monitor.described())?;
    monitor.full_pass().await?;
    restarted_nothing(&before, &region.snapshot().await?)?;
    for name in names.iter().filter(|name| !name.starts_with(STOPPED)) {
        let row = region.row(name).await?.context("no row")?;
        let entry = row.region_status.get(region.name()).context("no entry")?;
        let kept = entry.conditions.iter().find(|condition| condition.kind == "TemplateCurrent").context("not kept")?;
        ensure!(kept.reason == "Adopted" && !kept.message.contains("never applied"), "{name}: {kept:?}");
    }
    // A scale adds pods and restarts none.
    region.scale(&names[0], 3).await?;
    region.all_agree(&names, BOUND).await?;
    let grown = region.snapshot().await?;
    restarted_nothing(&before, &grown)?;
    monitor.terminate(Duration::from_secs(20)).await?;

    // The original again: it claims everything, scales one, and rolls out one image that is edited under it.
    let original = Original::start(&region).await?;
    for _ in 0..3 {
        original.pass(&names).await?;
    }
    region.scale(&names[0], 4).await?;
    original.pass(&names).await?;
    all_ready(&region, &names).await?;
    restarted_nothing(&grown, &region.snapshot().await?)?;
    let edited = &names[4];
    region.set(edited, "image", "vllm/vllm-openai:v0.29.0").await?;
    original.pass(&names).await?;
    region
        .wait_for("the original's own rollout", BOUND, |snapshot| {
            let deployment = snapshot.deployments.get(edited).ok_or("no Deployment")?;
            let updated = number(deployment, "/status/updatedReplicas");
            let whole = updated == number(deployment, "/spec/replicas")
                && number(deployment, "/status/replicas") == updated
                && number(deployment, "/status/readyReplicas") == updated
                && text(&model_container(deployment), "/image") == Some("vllm/vllm-openai:v0.29.0");
            if whole { Ok(()) } else { Err(deployment["status"].to_string()) }
        })
        .await?;
    original.pass(&names).await?;
    let before = region.snapshot().await?;
    original.stop();

    // And ours again.
    let monitor = Monitor::leading_with(&region, MonitorSettings::named("m2")).await?;
    region.all_agree(&names, BOUND * 2).await.with_context(|| monitor.described())?;
    monitor.full_pass().await?;
    restarted_nothing(&before, &region.snapshot().await?)?;
    println!("{count} endpoints, three changes of the control plane: 0 new ReplicaSets, 0 pods deleted");
    // Stopped ones come up again.
    for name in stopped_ones(&names) {
        region.start_endpoint(name).await?;
    }
    region.all_agree(&names, BOUND * 2).await.with_context(|| monitor.described())?;
    println!("{} versions of objects and rows hold the original's predicates", region.checker().versions());
    Ok(())
}

/// Ready addresses of a Service and the port each is reached on, with the port of the pod behind it.
async fn reached(region: &Region, name: &str) -> anyhow::Result<Vec<(i64, i64)>> {
    let slices: Api<EndpointSlice> = Api::namespaced(region.client().clone(), region.namespace());
    let slices = slices.list(&ListParams::default().labels(&format!("kubernetes.io/service-name={name}"))).await?;
    let pods = region.snapshot().await?.pods;
    let mut reached = Vec::new();
    for slice in slices {
        let slice = serde_json::to_value(slice)?;
        let port = number(&slice, "/ports/0/port");
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            let pod = text(endpoint, "/targetRef/name").and_then(|pod| pods.get(pod));
            if endpoint["conditions"]["ready"] == json!(true)
                && let Some(pod) = pod.filter(|pod| is_ready(pod))
            {
                reached.push((port, number(pod, "/spec/containers/0/ports/0/containerPort")));
            }
        }
    }
    Ok(reached)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_port_of_a_taken_over_endpoint_changes_in_two_steps_and_every_ready_pod_stays_reached() -> TestResult {
    let region = Region::start().await?;
    let spec = json!({"image": IMAGE, "port": 8000, "replicas": 3, "gpu_count": 1, "drain_seconds": 0});
    region.deploy("chat", spec).await?;
    let names = ["chat".to_owned()];
    let original = Original::start(&region).await?;
    original.pass(&names).await?;
    all_ready(&region, &names).await?;
    original.stop();
    let monitor = Monitor::leading(&region).await?;
    region.all_agree(&names, BOUND).await.with_context(|| monitor.described())?;
    let history = region.history("chat");
    region
        .edit("chat", |spec| {
            spec["port"] = json!(9000);
            spec["args"] = json!(["--port", "9000"]);
        })
        .await?;
    let ends = tokio::time::Instant::now() + BOUND;
    let mut least = usize::MAX;
    let mut looks = 0_u32;
    loop {
        let now = reached(&region, "chat").await?;
        least = least.min(now.len());
        looks += 1;
        let wrong: Vec<_> = now.iter().filter(|(port, of_pod)| port != of_pod).collect();
        ensure!(wrong.is_empty(), "reached on another port than the pod has: {wrong:?}");
        let Some(difference) = region.disagreement("chat").await? else { break };
        ensure!(tokio::time::Instant::now() < ends, "{difference}; {}", monitor.described());
    }
    println!("{looks} looks: at least {least} pods of 3 reached, each on its own port");
    ensure!(least >= 1, "at some time nothing was reached");
    ensure!(history.unroutable().is_empty(), "{:?}", history.unroutable());
    let snapshot = region.objects_of("chat").await?;
    ensure!(snapshot.replica_sets.len() == 3, "two steps after the original's: {:?}", snapshot.replica_sets.keys());
    ensure!(snapshot.services["chat"]["spec"]["ports"][0]["targetPort"] == "http");
    Ok(())
}

/// Endpoints that the original serves, whose pods of any newer template never start.
async fn endpoints_that_would_not_come_back(region: &Region, count: usize) -> anyhow::Result<Vec<String>> {
    let spec = json!({"image": "vllm/vllm-openai:fault-crash", "replicas": 1, "gpu_count": 1});
    let marks = |row: &gco_store::row::EndpointRow| {
        json!({
            "gco.io/lifecycle-id": row.lifecycle_id, "gco.io/leader-epoch": "e".repeat(64),
            "gco.io/region-generation": row.region_generation(region.name()),
        })
    };
    let deployments: Api<Deployment> = Api::namespaced(region.client().clone(), region.namespace());
    let mut names = Vec::new();
    for number in 0..count {
        let name = format!("chat-{number:02}");
        let row = region.deploy(&name, spec.clone()).await?;
        let mut body = gco_tests::original::deployment(&name, &spec, "vllm/vllm-openai:fault-crash", &marks(&row));
        body["spec"]["template"]["metadata"]["annotations"]["gco.io/simulated-fault"] = json!("none");
        deployments.create(&Default::default(), &serde_json::from_value(body)?).await?;
        names.push(name);
    }
    all_ready(region, &names).await?;
    Ok(names)
}

/// What a look at all endpoints shows: those without a ready pod, and those whose pods were replaced.
fn away(snapshot: &Snapshot, names: &[String]) -> Vec<String> {
    let ready = |name: &&String| {
        snapshot.pods.values().any(|pod| is_ready(pod) && pod["metadata"]["labels"]["app"] == name.as_str())
    };
    names.iter().filter(|name| !ready(name)).cloned().collect()
}

/// Follows how many endpoints were away at once.
async fn most_away(
    region: &Region,
    names: &[String],
    until: impl AsyncFn() -> anyhow::Result<bool>,
) -> anyhow::Result<usize> {
    let mut most = 0;
    let ends = tokio::time::Instant::now() + BOUND * 2;
    loop {
        most = most.max(away(&region.snapshot().await?, names).len());
        if until().await? {
            return Ok(most);
        }
        ensure!(tokio::time::Instant::now() < ends, "not within the bound; {most} were away at once");
        tokio::task::yield_now().await;
    }
}

/// Limits on restarts that nobody asked for.
#[derive(Clone, Copy)]
struct Limits {
    at_once: usize,
    failures: usize,
}

/// Those of the monitors of these tests: the ones that are shipped in full size, smaller ones for few endpoints.
fn limits() -> Limits {
    Size::asked().choose(Limits { at_once: 3, failures: 2 }, Limits { at_once: 5, failures: 3 })
}

fn limited(name: &str) -> MonitorSettings {
    let settings = MonitorSettings::named(name);
    let Limits { at_once, failures } = limits();
    match Size::asked() {
        Size::Small => settings.with("UNASKED_RESTARTS_AT_ONCE", at_once).with("UNASKED_RESTARTS_FAILURES", failures),
        // Nothing is set: what is shipped.
        Size::Full => settings,
    }
}

/// How many failures the monitor counts.
async fn failures_of(monitor: &Monitor) -> anyhow::Result<usize> {
    let counted = monitor.metric("gco_monitor_unasked_restarts", &[("state", "failed")]).await?.unwrap_or_default();
    Ok(format!("{counted:.0}").parse()?)
}

/// Waits until restarts have stopped, and judges what became of the endpoints.
async fn stopped_after_a_few(region: &Region, monitor: &Monitor, names: &[String]) -> TestResult {
    let Limits { at_once, failures } = limits();
    let stopped = async || Ok(monitor.metric("gco_monitor_unasked_restarts_stopped", &[]).await? == Some(1.0));
    let most = most_away(region, names, stopped).await.with_context(|| monitor.described())?;
    // Every other endpoint says that it waits, and nothing more happens.
    let held = wait::until("the others to say that restarts have stopped", BOUND, || async {
        let mut held = 0;
        for name in names {
            let row = region.row(name).await.map_err(|error| format!("{error:#}"))?.ok_or("no row")?;
            let entry = row.region_status.get(region.name()).ok_or("no entry")?;
            let stopped = entry.conditions.iter().any(|condition| condition.reason == "RestartsStopped");
            held += usize::from(stopped && entry.state == State::Running);
        }
        if held + at_once >= names.len() { Ok(held) } else { Err(format!("{held} of {}", names.len())) }
    })
    .await
    .with_context(|| monitor.described())?;
    monitor.full_pass().await?;
    monitor.full_pass().await?;
    let snapshot = region.snapshot().await?;
    let gone = away(&snapshot, names);
    println!(
        "{} endpoints, {at_once} at once, stop after {failures} failures: {most} away at once, {} at the end, {held} wait and serve",
        names.len(),
        gone.len()
    );
    ensure!(most <= at_once && gone.len() <= at_once, "{most} at once; {gone:?}");
    ensure!(gone.len() >= failures, "the limit of failures was never reached: {gone:?}");
    let failed = failures_of(monitor).await?;
    ensure!(failed >= failures, "{failed}");
    ensure!(monitor.complaints(|line| line["action"] == "stop_restarts")?.len() == 1, "said once");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_of_all_whose_pods_do_not_come_up_stops_after_a_few_and_all_others_serve() -> TestResult {
    let Limits { at_once, failures } = limits();
    let region = Region::start().await?;
    let names = endpoints_that_would_not_come_back(&region, Size::asked().choose(8, 50)).await?;
    let monitor = Monitor::leading_with(&region, limited("m1")).await?;
    region.all_agree(&names, BOUND * 2).await.with_context(|| monitor.described())?;
    let before = region.snapshot().await?;
    let wish = Refresh { requested_at: "2026-11-29T12:00:00+00:00".to_owned(), at_once: None };
    for name in &names {
        region.operations().refresh(name, &wish).await?;
    }
    stopped_after_a_few(&region, &monitor, &names).await?;
    // A take-over forgets nothing.
    monitor.terminate(Duration::from_secs(20)).await?;
    let monitor = Monitor::leading_with(&region, limited("m2")).await?;
    monitor.full_pass().await?;
    let stopped = async || Ok(monitor.metric("gco_monitor_unasked_restarts_stopped", &[]).await? == Some(1.0));
    most_away(&region, &names, stopped).await.with_context(|| monitor.described())?;
    let gone = away(&region.snapshot().await?, &names);
    ensure!(gone.len() <= at_once, "{gone:?}");
    let others: Vec<String> = names.iter().filter(|name| !gone.contains(name)).cloned().collect();
    let pods = |snapshot: &Snapshot| -> BTreeSet<String> {
        let of_others = |pod: &&Value| others.iter().any(|name| pod["metadata"]["labels"]["app"] == name.as_str());
        snapshot.pods.values().filter(of_others).map(|pod| pod["metadata"]["uid"].to_string()).collect()
    };
    ensure!(pods(&before) == pods(&region.snapshot().await?), "a pod of another endpoint was touched");
    // Somebody mends those that failed: an edit, which needs no turn. The others go on, fail as well, and stop again.
    for name in &gone {
        region.set(name, "image", IMAGE).await?;
    }
    region.all_agree(&gone, BOUND).await.with_context(|| monitor.described())?;
    let failed = async || Ok(failures_of(&monitor).await? >= failures);
    let most = most_away(&region, &names, failed).await.with_context(|| monitor.described())?;
    ensure!(most <= at_once, "{most}");
    // Or somebody says that they were looked at: the next ones go.
    let at = gco_store::time::format(SystemClock.wall());
    region.table().store().clear_restarts(region.name(), &at).await?;
    region
        .wait_for("further endpoints to be restarted", BOUND, |snapshot| {
            let now = away(snapshot, &names).len();
            if now > most { Ok(()) } else { Err(format!("{now} are away")) }
        })
        .await
        .with_context(|| monitor.described())?;
    let most = away(&region.snapshot().await?, &names).len();
    ensure!(most <= 2 * at_once, "{most}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_hash_that_changes_for_all_rows_restarts_a_few_at_most() -> TestResult {
    let region = Region::start().await?;
    let names = endpoints_that_would_not_come_back(&region, Size::asked().choose(8, 50)).await?;
    let monitor = Monitor::leading_with(&region, limited("m1")).await?;
    region.all_agree(&names, BOUND * 2).await.with_context(|| monitor.described())?;
    monitor.terminate(Duration::from_secs(20)).await?;
    let deployments: Api<Deployment> = Api::namespaced(region.client().clone(), region.namespace());
    let inject = async |renderer: &str| -> TestResult {
        for name in &names {
            let annotations = json!({"gco.io/input-hash": "0".repeat(64), "gco.io/renderer": renderer});
            let patch = json!({"metadata": {"annotations": annotations}});
            deployments.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        Ok(())
    };
    // As if the hash of every row had become another one. Pods that say what the row says are left alone whatever the hash:
    let before = region.snapshot().await?;
    inject("original").await?;
    let monitor = Monitor::leading_with(&region, limited("m2")).await?;
    region.all_agree(&names, BOUND).await.with_context(|| monitor.described())?;
    restarted_nothing(&before, &region.snapshot().await?)?;
    monitor.terminate(Duration::from_secs(20)).await?;
    // Those of an older renderer would all be rendered anew.
    inject("0").await?;
    let monitor = Monitor::leading_with(&region, limited("m3")).await?;
    stopped_after_a_few(&region, &monitor, &names).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_brings_every_endpoint_to_the_current_rendering_a_few_at_once() -> TestResult {
    let region = Region::start().await?;
    let _keda = region.start_keda().await?;
    let serving = kinds().into_iter().filter(|(kind, _)| *kind != STOPPED).collect();
    let (original, names) = served_by_the_original(&region, serving, Size::asked().choose(5, 20)).await?;
    original.stop();
    let monitor = Monitor::leading_with(&region, limited("m1")).await?;
    region.all_agree(&names, BOUND * 2).await.with_context(|| monitor.described())?;
    let wish = Refresh { requested_at: gco_store::time::format(SystemClock.wall()), at_once: Some(2) };
    for name in &names {
        region.operations().refresh(name, &wish).await?;
    }
    let refreshed = async || {
        let snapshot = region.snapshot().await?;
        let current = |name: &String| {
            let deployment = &snapshot.deployments[name];
            annotation(deployment, "gco.io/renderer") != Some("original")
                && annotation(deployment, "gco.io/refreshed") == Some(wish.requested_at.as_str())
        };
        Ok(names.iter().all(current))
    };
    let most = most_away(&region, &names, refreshed).await.with_context(|| monitor.described())?;
    ensure!(most <= 2, "{most} endpoints were away at once");
    region.all_agree(&names, BOUND).await.with_context(|| monitor.described())?;
    let snapshot = region.snapshot().await?;
    for name in &names {
        ensure!(snapshot.services[name]["spec"]["ports"][0]["targetPort"] == "http", "{name}");
    }
    let mark = region.audit()?.mark()?;
    monitor.full_pass().await?;
    ensure!(region.monitor_writes_since(mark)?.is_empty(), "at rest");
    Ok(())
}

/// The shell commands of a section of the runbook, in order.
fn commands(section: &str) -> anyhow::Result<Vec<String>> {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/switch-over.md");
    let page = std::fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?;
    let section =
        page.split("\n## ").find(|text| text.starts_with(&format!("{section}\n"))).context("no such section")?;
    let blocks = section.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    Ok(blocks.flat_map(str::lines).map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_runbook_of_the_switch_is_executed_as_it_is_written() -> TestResult {
    let region = Region::start().await?;
    let (original, names) = served_by_the_original(&region, kinds(), 2).await?;
    let before = region.snapshot().await?;
    let (mut original, mut ours) = (Some(original), None);
    let there = commands("To ours")?;
    let back = commands("Back")?;
    ensure!(there.len() >= 4 && back.len() >= 2, "{there:?} {back:?}");
    for command in there.iter().chain(&back) {
        match command.as_str() {
            "kubectl -n gco-system scale deployment inference-monitor --replicas=0" => {
                if let Some(original) = original.take() {
                    original.stop();
                } else {
                    let monitor: Monitor = ours.take().context("nothing runs")?;
                    monitor.terminate(Duration::from_secs(20)).await?;
                }
            }
            "kubectl apply -k deploy/monitor" => {
                let monitor = Monitor::leading(&region).await?;
                region.all_agree(&names, BOUND).await.with_context(|| monitor.described())?;
                ours = Some(monitor);
            }
            "kubectl apply -f 32-inference-monitor.yaml" => {
                let back = Original::start(&region).await?;
                back.pass(&names).await?;
                original = Some(back);
            }
            gco if gco.starts_with("gco inference ") => {
                let arguments: Vec<&str> = gco.split_whitespace().skip(2).collect();
                let ran = region.gco(&arguments).await?;
                let names_all = names.iter().all(|name| ran.stdout.contains(name.as_str()));
                ensure!(ran.code == Some(0) && names_all, "{gco}: {ran:?}");
                if arguments.first() == Some(&"plan") {
                    ensure!(ran.stdout.contains(" 0 of them would restart pods"), "{gco}: {ran:?}");
                }
            }
            other => anyhow::bail!("the runbook has a step that this test does not know: {other}"),
        }
        restarted_nothing(&before, &region.snapshot().await?)?;
    }
    Ok(())
}
