//! When a row and a cluster agree: a second, independent opinion, written from the row's documentation and not from the
//! monitor's code.

use std::collections::BTreeMap;
use std::time::Duration;

use gco_bed::wait::{self, WaitError};
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::status::State;
use gco_store::table::Consistency;
use serde_json::{Value, json};

use super::objects::{annotation, is_ready, model_container, number, text, variable};
use super::{BOUND, Region, Snapshot};

/// How long nothing may change before a state counts as the end: several passes and renewals of a monitor with a suite's
/// settings.
pub const QUIET: Duration = Duration::from_millis(1500);

/// What differs between what a live row asks of `region` and what is there; `None` when nothing does.
#[must_use]
pub fn disagreement(row: &EndpointRow, region: &str, objects: &Snapshot) -> Option<String> {
    match row.desired_state {
        DesiredState::Deploying | DesiredState::Running => serving(row, region, objects).err(),
        DesiredState::Stopped => stopped(row, objects).err(),
        DesiredState::Deleted => (!objects.is_empty()).then(|| format!("still there: {:?}", objects.versions())),
        DesiredState::Unknown(_) => Some(format!("the desired state is {:?}", row.desired_state)),
    }
}

fn serving(row: &EndpointRow, region: &str, objects: &Snapshot) -> Result<(), String> {
    let spec = row.spec.to_plain_json();
    let live = objects.deployments.get(&row.name).map_or(0, |deployment| number(deployment, "/spec/replicas"));
    let replicas = replicas(row, region, objects, &spec, live)?;
    workload(row, region, objects, &row.name, &spec, replicas)?;
    let canary = spec.get("canary").filter(|canary| canary.as_object().is_some_and(|canary| !canary.is_empty()));
    if let Some(canary) = canary {
        // Everything of the endpoint's own, with the canary's image and count.
        let mut spec = spec.clone();
        spec["image"] = canary["image"].clone();
        spec["region_image_uris"] = Value::Null;
        workload(row, region, objects, &format!("{}-canary", row.name), &spec, replicas_of(canary))?;
    }
    let workloads = 1 + usize::from(canary.is_some());
    same("Deployments", objects.deployments.len(), workloads)?;
    same("Services", objects.services.len(), workloads)?;
    let ready = objects.pods.values().filter(|pod| is_ready(pod)).count();
    let all = replicas + canary.map_or(0, replicas_of);
    same("ready pods", i64::try_from(ready).unwrap_or_default(), all)?;
    same("pods", objects.pods.len(), ready)?;
    same("desired_state", &row.desired_state, &DesiredState::Running)?;
    let entry = row.region_status.get(region).ok_or("the region has no status")?;
    same("state", &entry.state, &State::Running)?;
    same("replicas_ready", i64::from(entry.replicas_ready), replicas)?;
    same("replicas_desired", i64::from(entry.replicas_desired), replicas)?;
    same("degraded", entry.degraded, false)?;
    same("error", entry.error.as_deref(), None)?;
    let told = entry.extra.get("canary").map(gco_store::wire::Value::to_plain_json);
    let wanted = canary.map(|canary| {
        let (weight, replicas) = (canary.get("weight").and_then(Value::as_i64).unwrap_or(10), replicas_of(canary));
        json!({"state": "running", "image": canary["image"], "weight": weight, "replicas_ready": replicas,
            "replicas_desired": replicas})
    });
    same("canary", told, wanted)?;
    let observed = entry.observed_spec.clone().unwrap_or_default();
    if observed.seen.is_none() || observed.seen != observed.applied || observed.seen != observed.serving {
        return Err(format!("observed_spec is {observed:?}"));
    }
    let deployment = objects.deployments.get(&row.name).ok_or("there is no Deployment")?;
    same("observed_spec", observed.seen.as_deref(), annotation(deployment, "gco.io/input-hash"))?;
    Ok(())
}

fn replicas_of(map: &Value) -> i64 {
    map.get("replicas").and_then(Value::as_i64).unwrap_or(1)
}

/// Whether the Deployment and the Service `name` are there, rolled out, and what the spec asks for.
fn workload(
    row: &EndpointRow,
    region: &str,
    objects: &Snapshot,
    name: &str,
    spec: &Value,
    replicas: i64,
) -> Result<(), String> {
    let deployment = objects.deployments.get(name).ok_or_else(|| format!("there is no Deployment {name}"))?;
    owned(row, region, deployment)?;
    matches(spec, region, deployment)?;
    same("spec.replicas", number(deployment, "/spec/replicas"), replicas)?;
    same(
        "observedGeneration",
        number(deployment, "/status/observedGeneration"),
        number(deployment, "/metadata/generation"),
    )?;
    for counter in ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"] {
        same(&format!("status.{counter}"), number(deployment, &format!("/status/{counter}")), replicas)?;
    }
    let service = objects.services.get(name).ok_or_else(|| format!("there is no Service {name}"))?;
    owned(row, region, service)?;
    same("Service port", number(service, "/spec/ports/0/port"), 80)?;
    same("Service selector", text(service, "/spec/selector/app"), Some(name))
}

/// The count that should be: the row's, or the live one when an autoscaler has it and keeps it within the row's bounds.
fn replicas(row: &EndpointRow, region: &str, objects: &Snapshot, spec: &Value, live: i64) -> Result<i64, String> {
    let block = spec.get("autoscaling").filter(|block| block["enabled"] == Value::Bool(true));
    let Some(block) = block else {
        same("spec.replicas", live, spec.get("replicas").and_then(Value::as_i64).unwrap_or(1))?;
        same("autoscalers", objects.autoscalers.keys().collect(), Vec::<&String>::new())?;
        same("ScaledObjects", objects.scaled_objects.keys().collect(), Vec::<&String>::new())?;
        return Ok(live);
    };
    let bound = |key: &str, default: i64| block.get(key).and_then(Value::as_i64).unwrap_or(default);
    let (least, most) = (bound("min_replicas", 1), bound("max_replicas", 10));
    if !(least..=most).contains(&live) {
        return Err(format!("spec.replicas is {live}, not within {least} and {most}"));
    }
    let metrics = block.get("metrics").and_then(Value::as_array).cloned().unwrap_or_default();
    let needs_keda = metrics.iter().any(|metric| metric["type"].as_str().is_some_and(|kind| kind.starts_with("gpu")));
    let entry = row.region_status.get(region).ok_or("the region has no status")?;
    if needs_keda && objects.lacks_keda {
        let said = entry.conditions.iter().any(|condition| condition.reason == "KedaNotInstalled");
        same("said that KEDA is missing", said, true)?;
        return Ok(live);
    }
    let (autoscaler, [least_field, most_field], kind) = if needs_keda {
        same("ScaledObjects", objects.scaled_objects.len(), 1)?;
        same("autoscalers", objects.autoscalers.keys().collect(), vec![&format!("keda-hpa-{}", row.name)])?;
        (objects.scaled_objects.get(&row.name), ["/spec/minReplicaCount", "/spec/maxReplicaCount"], "keda")
    } else {
        same("ScaledObjects", objects.scaled_objects.len(), 0)?;
        same("autoscalers", objects.autoscalers.keys().collect(), vec![&row.name])?;
        (objects.autoscalers.get(&row.name), ["/spec/minReplicas", "/spec/maxReplicas"], "hpa")
    };
    let autoscaler = autoscaler.ok_or("there is no autoscaler")?;
    owned(row, region, autoscaler)?;
    same("its least", number(autoscaler, least_field), least)?;
    same("its most", number(autoscaler, most_field), most)?;
    let said = entry.autoscaler.as_ref().ok_or("the entry names no autoscaler")?;
    same("autoscaler", (said.kind.as_str(), i64::from(said.replicas)), (kind, live))?;
    same("its bounds", (i64::from(said.min_replicas), i64::from(said.max_replicas)), (least, most))?;
    Ok(live)
}

/// Whether a Deployment is what the spec asks for, field by field.
///
/// # Errors
/// The first difference.
pub fn matches(spec: &Value, region: &str, deployment: &Value) -> Result<(), String> {
    let container = model_container(deployment);
    let regional = spec.get("region_image_uris").and_then(|uris| uris.get(region));
    let image = regional.or_else(|| spec.get("image")).and_then(Value::as_str);
    same("image", text(&container, "/image"), image)?;
    let port = spec.get("port").and_then(Value::as_i64).unwrap_or(8000);
    same("containerPort", number(&container, "/ports/0/containerPort"), port)?;
    for (name, value) in spec.get("env").and_then(Value::as_object).into_iter().flatten() {
        same(&format!("env {name}"), variable(&container, name), value.as_str())?;
    }
    for (index, argument) in spec.get("args").and_then(Value::as_array).into_iter().flatten().enumerate() {
        same(&format!("args[{index}]"), text(&container, &format!("/args/{index}")), argument.as_str())?;
    }
    if let Some(command) = spec.get("command") {
        same("command", container.get("command"), Some(command))?;
    }
    let accelerator = match spec.get("accelerator").and_then(Value::as_str) {
        Some("neuron") => "aws.amazon.com/neuron",
        _ => "nvidia.com/gpu",
    };
    let count = spec.get("gpu_count").and_then(Value::as_i64).unwrap_or(1);
    let limit = container.pointer("/resources/limits").and_then(|limits| limits.get(accelerator));
    let limit = limit.and_then(Value::as_str);
    same("accelerators", limit, (count > 0).then(|| count.to_string()).as_deref())?;
    for part in ["requests", "limits"] {
        let wanted = spec.get("resources").and_then(|resources| resources.get(part)).and_then(Value::as_object);
        for (name, quantity) in wanted.into_iter().flatten() {
            let found = container.get("resources").and_then(|resources| resources.get(part)?.get(name));
            same(&format!("resources.{part}.{name}"), found, Some(quantity))?;
        }
    }
    for (name, value) in spec.get("node_selector").and_then(Value::as_object).into_iter().flatten() {
        let found = deployment.pointer("/spec/template/spec/nodeSelector").and_then(|selector| selector.get(name));
        same(&format!("node_selector {name}"), found, Some(value))?;
    }
    let path = spec.get("health_check_path").and_then(Value::as_str).unwrap_or("/health");
    let probe = text(&container, "/readinessProbe/httpGet/path").unwrap_or_default();
    if !probe.ends_with(path) {
        return Err(format!("the readiness probe asks {probe}, not …{path}"));
    }
    Ok(())
}

fn stopped(row: &EndpointRow, objects: &Snapshot) -> Result<(), String> {
    for (name, deployment) in &objects.deployments {
        same(&format!("replicas of {name}"), number(deployment, "/spec/replicas"), 0)?;
    }
    same("pods", objects.pods.len(), 0)?;
    same("autoscalers", objects.autoscalers.keys().collect(), Vec::<&String>::new())?;
    same("ScaledObjects", objects.scaled_objects.keys().collect(), Vec::<&String>::new())?;
    let regions: Vec<&String> =
        row.region_status.iter().filter(|(_, entry)| entry.state != State::Stopped).map(|(region, _)| region).collect();
    if row.region_status.is_empty() || !regions.is_empty() {
        return Err(format!("not stopped: {regions:?} of {} regions", row.region_status.len()));
    }
    Ok(())
}

fn owned(row: &EndpointRow, region: &str, object: &Value) -> Result<(), String> {
    same("lifecycle-id", annotation(object, "gco.io/lifecycle-id"), row.lifecycle_id.as_deref())?;
    same("region-generation", annotation(object, "gco.io/region-generation"), row.region_generation(region))
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, wanted: T) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("{what} is {found:?}, not {wanted:?}")) }
}

impl Region {
    /// What differs now between the row and the cluster; `Ok(None)` when they agree. A row that is gone agrees with a
    /// cluster that holds nothing of it.
    ///
    /// # Errors
    /// When either cannot be read.
    pub async fn disagreement(&self, name: &str) -> anyhow::Result<Option<String>> {
        let objects = self.objects_of(name).await?;
        Ok(match self.row(name).await? {
            Some(row) => disagreement(&row, self.name(), &objects),
            None => (!objects.is_empty()).then(|| format!("the row is gone; left: {:?}", objects.versions())),
        })
    }

    /// Waits until row and cluster agree.
    ///
    /// # Errors
    /// When they do not within the bound.
    pub async fn agrees(&self, name: &str) -> Result<(), WaitError> {
        let agreed = || async {
            match self.disagreement(name).await {
                Ok(None) => Ok(()),
                Ok(Some(difference)) => Err(difference),
                Err(error) => Err(format!("{error:#}")),
            }
        };
        wait::until(&format!("row and cluster to agree on {name} in {}", self.name()), BOUND, agreed).await
    }

    /// Waits until rows and cluster agree on many endpoints, all seen at one look.
    ///
    /// # Errors
    /// When they do not within the bound.
    pub async fn all_agree(&self, names: &[String], bound: Duration) -> Result<(), WaitError> {
        let what = format!("rows and cluster to agree on {} endpoints in {}", names.len(), self.name());
        let look = async || {
            let snapshot = self.snapshot().await.map_err(|error| format!("{error:#}"))?;
            let read = self.table().store().read_all(Consistency::Strong).await.map_err(|error| error.to_string())?;
            let rows = read.items.into_iter().filter_map(|item| EndpointRow::parse(item).ok());
            let rows: BTreeMap<String, EndpointRow> = rows.map(|row| (row.name.clone(), row)).collect();
            let differing = |name: &String| match rows.get(name) {
                Some(row) => disagreement(row, self.name(), &snapshot.of(name)).map(|why| format!("{name}: {why}")),
                None => Some(format!("{name}: no row")),
            };
            let differences: Vec<String> = names.iter().filter_map(differing).collect();
            match differences.first() {
                None => Ok(()),
                Some(first) => Err(format!("{} do not, for example {first}", differences.len())),
            }
        };
        wait::until(&what, bound, look).await
    }

    /// Waits until the row is gone, and everything of it.
    ///
    /// # Errors
    /// When it does not go within the bound.
    pub async fn purged(&self, name: &str) -> Result<(), WaitError> {
        wait::until(&format!("{name} to be purged"), BOUND, || async {
            let (row, objects) = match (self.row(name).await, self.objects_of(name).await) {
                (Ok(row), Ok(objects)) => (row, objects),
                (Err(error), _) | (_, Err(error)) => return Err(format!("{error:#}")),
            };
            match row {
                None if objects.is_empty() => Ok(()),
                None => Err(format!("the row is gone; left: {:?}", objects.versions())),
                Some(row) => Err(format!("the row is there: {:?}", row.region_status)),
            }
        })
        .await
    }

    /// Waits until row and cluster agree and nothing changed for [`QUIET`]: neither an object nor the row.
    ///
    /// # Errors
    /// When that does not come within the bound.
    pub async fn settled(&self, name: &str) -> Result<Snapshot, WaitError> {
        let unchanged_since = std::sync::Mutex::new((None, tokio::time::Instant::now()));
        wait::until(&format!("{name} to settle in {}", self.name()), BOUND, || async {
            let objects = self.objects_of(name).await.map_err(|error| format!("{error:#}"))?;
            let row = self.row(name).await.map_err(|error| format!("{error:#}"))?;
            if let Some(difference) = self.disagreement(name).await.map_err(|error| format!("{error:#}"))? {
                return Err(difference);
            }
            let seen = Some((objects.versions(), row.and_then(|row| row.updated_at)));
            let mut last = unchanged_since.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let now = tokio::time::Instant::now();
            if last.0 != seen {
                *last = (seen, now);
            }
            let quiet = now.duration_since(last.1);
            if quiet < QUIET { Err(format!("they agree, unchanged for {} ms", quiet.as_millis())) } else { Ok(objects) }
        })
        .await
    }
}
