//! A stand-in for KEDA: it does to a namespace what KEDA's operator does with ScaledObjects, and nothing that needs a real
//! source of metrics.
//!
//! What it does, from KEDA's documentation of ScaledObjects and its published behaviour: puts a finalizer and the label
//! `scaledobject.keda.sh/name` on the ScaledObject; makes `keda-hpa-<name>` with the ScaledObject's labels **and**
//! annotations and the ScaledObject as controller; keeps that autoscaler as the ScaledObject says; lifts a target that has
//! no pods to the least count; says `Ready`; and lets the ScaledObject go when it is deleted.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use gco_bed::wait;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::objects::{number, text};
use super::{BOUND, Region};

/// The definition of the kind.
const DEFINITION: &str = include_str!("../../fixtures/keda/scaledobjects.yaml");
/// The finalizer that KEDA's operator puts on every ScaledObject.
const FINALIZER: &str = "finalizer.keda.sh";
/// What KEDA puts before a ScaledObject's name to name its autoscaler.
pub const PREFIX: &str = "keda-hpa-";
/// How often KEDA looks at targets by itself; the real one every 30 s by default.
const POLL: Duration = Duration::from_millis(100);

/// The kind, for dynamic clients.
#[must_use]
pub fn scaled_object_resource() -> ApiResource {
    ApiResource {
        group: "keda.sh".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "keda.sh/v1alpha1".to_owned(),
        kind: "ScaledObject".to_owned(),
        plural: "scaledobjects".to_owned(),
    }
}

/// Makes the kind known to a cluster; it may be there already.
///
/// # Errors
/// When the API server refuses it, or does not serve it within the bound.
pub async fn install_kind(client: &Client) -> anyhow::Result<()> {
    let resource = ApiResource {
        group: "apiextensions.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "apiextensions.k8s.io/v1".to_owned(),
        kind: "CustomResourceDefinition".to_owned(),
        plural: "customresourcedefinitions".to_owned(),
    };
    let definition: DynamicObject = serde_saphyr::from_str(DEFINITION).context("the definition")?;
    let definitions: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    match definitions.create(&PostParams::default(), &definition).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(error).context("making the kind ScaledObject"),
    }
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), &scaled_object_resource());
    wait::until("ScaledObjects to be served", BOUND, || async {
        objects.list(&ListParams::default()).await.map(|_| ()).map_err(|error| error.to_string())
    })
    .await?;
    Ok(())
}

/// A running stand-in; ends when dropped.
#[derive(Debug)]
pub struct Keda {
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Keda {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Region {
    /// Installs the kind and starts the stand-in for this region's namespace.
    ///
    /// # Errors
    /// When the kind cannot be installed.
    pub async fn start_keda(&self) -> anyhow::Result<Keda> {
        install_kind(self.client()).await?;
        let actor = Actor { client: self.client().clone(), namespace: self.namespace().to_owned() };
        Ok(Keda { task: tokio::spawn(async move { actor.run().await }) })
    }
}

struct Actor {
    client: Client,
    namespace: String,
}

impl Actor {
    async fn run(&self) {
        let objects = self.scaled_objects();
        let mut events = std::pin::pin!(watcher(objects.clone(), watcher::Config::default()));
        let mut ticks = tokio::time::interval(POLL);
        loop {
            tokio::select! {
                event = events.next() => {
                    let Some(event) = event else { return };
                    if let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event {
                        self.act(&object).await;
                    }
                }
                _ = ticks.tick() => {
                    // What was refused is tried again, and targets are looked at.
                    let Ok(all) = objects.list(&ListParams::default()).await else { continue };
                    for object in &all.items {
                        self.act(object).await;
                    }
                }
            }
        }
    }

    fn scaled_objects(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &scaled_object_resource())
    }

    /// Acts on what the object is now: an event, or a list of a while ago, only says that there is something to look at. An
    /// autoscaler made from an old one would have the bounds of a ScaledObject that is gone.
    ///
    /// A refusal is a reason to look again, which the next tick does.
    async fn act(&self, noticed: &DynamicObject) {
        let Some(name) = noticed.metadata.name.as_deref() else { return };
        let Ok(Some(object)) = self.scaled_objects().get_opt(name).await else { return };
        let Ok(body) = serde_json::to_value(object) else { return };
        drop(self.try_to_act(&body).await);
    }

    async fn try_to_act(&self, object: &Value) -> anyhow::Result<()> {
        let name = text(object, "/metadata/name").context("no name")?;
        let finalizers: Vec<Value> =
            object.pointer("/metadata/finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
        let has_finalizer = finalizers.contains(&json!(FINALIZER));
        if object.pointer("/metadata/deletionTimestamp").is_some() {
            if has_finalizer {
                let left: Vec<Value> = finalizers.into_iter().filter(|one| *one != json!(FINALIZER)).collect();
                self.patch(object, json!({"metadata": {"finalizers": left}})).await?;
            }
            return Ok(());
        }
        if !has_finalizer {
            let all: Vec<Value> = finalizers.into_iter().chain([json!(FINALIZER)]).collect();
            let labels = json!({"scaledobject.keda.sh/name": name});
            return self.patch(object, json!({"metadata": {"finalizers": all, "labels": labels}})).await;
        }
        self.keep_autoscaler(object, name).await?;
        self.lift(object).await?;
        if object.pointer("/status/conditions").is_none() {
            let condition = json!({"type": "Ready", "status": "True", "reason": "ScaledObjectReady"});
            let status = json!({"status": {"hpaName": format!("{PREFIX}{name}"), "conditions": [condition]}});
            let merge = Patch::Merge(status);
            self.scaled_objects().patch_status(name, &PatchParams::default(), &merge).await?;
        }
        Ok(())
    }

    /// A merge patch of exactly the version that was looked at.
    async fn patch(&self, object: &Value, mut change: Value) -> anyhow::Result<()> {
        let name = text(object, "/metadata/name").context("no name")?;
        change["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
        self.scaled_objects().patch(name, &PatchParams::default(), &Patch::Merge(change)).await?;
        Ok(())
    }

    async fn keep_autoscaler(&self, object: &Value, name: &str) -> anyhow::Result<()> {
        let autoscalers: Api<HorizontalPodAutoscaler> = Api::namespaced(self.client.clone(), &self.namespace);
        let wanted = autoscaler(object)?;
        let Some(live) = autoscalers.get_opt(&format!("{PREFIX}{name}")).await? else {
            autoscalers.create(&PostParams::default(), &serde_json::from_value(wanted)?).await?;
            return Ok(());
        };
        ensure!(live.metadata.deletion_timestamp.is_none(), "the former autoscaler is still going");
        let (version, live) = (live.metadata.resource_version.clone(), serde_json::to_value(live)?);
        let parts = ["/metadata/labels", "/metadata/annotations", "/spec"];
        if parts.iter().any(|part| wanted.pointer(part) != live.pointer(part)) {
            let mut changed: HorizontalPodAutoscaler = serde_json::from_value(wanted)?;
            changed.metadata.resource_version = version;
            autoscalers.replace(&format!("{PREFIX}{name}"), &PostParams::default(), &changed).await?;
        }
        Ok(())
    }

    /// A target without pods gets the least count: its triggers have a count above none to keep.
    async fn lift(&self, object: &Value) -> anyhow::Result<()> {
        let least = number(object, "/spec/minReplicaCount");
        let target = text(object, "/spec/scaleTargetRef/name").context("no target")?;
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        let Some(deployment) = deployments.get_opt(target).await? else { return Ok(()) };
        if least > 0 && deployment.spec.and_then(|spec| spec.replicas) == Some(0) {
            let mut scale = deployments.get_scale(target).await?;
            scale.spec.get_or_insert_default().replicas = Some(i32::try_from(least)?);
            deployments.replace_scale(target, &PostParams::default(), &scale).await?;
        }
        Ok(())
    }
}

/// The autoscaler that KEDA makes for a ScaledObject.
fn autoscaler(object: &Value) -> anyhow::Result<Value> {
    let name = text(object, "/metadata/name").context("no name")?;
    let metadata = &object["metadata"];
    let mut labels = metadata["labels"].clone();
    for (label, value) in [
        ("app.kubernetes.io/managed-by", "keda-operator"),
        ("app.kubernetes.io/part-of", name),
        ("app.kubernetes.io/name", &format!("{PREFIX}{name}")),
    ] {
        labels[label] = json!(value);
    }
    let triggers = object.pointer("/spec/triggers").and_then(Value::as_array).context("no triggers")?;
    let metrics: Vec<Value> =
        triggers.iter().enumerate().map(|(index, trigger)| metric(index, trigger, name)).collect();
    Ok(json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {
            "name": format!("{PREFIX}{name}"),
            "namespace": metadata["namespace"],
            "labels": labels,
            "annotations": metadata["annotations"],
            "ownerReferences": [{
                "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": name, "uid": metadata["uid"],
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "apps/v1", "kind": "Deployment", "name": object["spec"]["scaleTargetRef"]["name"],
            },
            "minReplicas": object["spec"]["minReplicaCount"],
            "maxReplicas": object["spec"]["maxReplicaCount"],
            "metrics": metrics,
        },
    }))
}

fn metric(index: usize, trigger: &Value, name: &str) -> Value {
    let target = |key: &str| trigger["metadata"][key].as_str().unwrap_or("1").to_owned();
    match trigger["type"].as_str() {
        Some(resource @ ("cpu" | "memory")) => {
            let utilization = target("value").parse::<i64>().unwrap_or(1);
            json!({"type": "Resource", "resource": {"name": resource,
                "target": {"type": "Utilization", "averageUtilization": utilization}}})
        }
        other => {
            let metric = format!("s{index}-{}", other.unwrap_or_default());
            let selector = json!({"matchLabels": {"scaledobject.keda.sh/name": name}});
            json!({"type": "External", "external": {"metric": {"name": metric, "selector": selector},
                "target": {"type": "AverageValue", "averageValue": target("targetMetricValue")}}})
        }
    }
}
