//! What a region's cluster has before a monitor comes: the platform's own manifests, and the claim
//! for shared model storage.

use std::path::Path;

use anyhow::{Context as _, bail};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

/// The manifests that a cluster of the fleet has, too.
const PLATFORM: [&str; 3] = [
    include_str!("../../../../deploy/monitor/namespaces.yaml"),
    include_str!("../../../../deploy/monitor/service-accounts.yaml"),
    include_str!("../../../../deploy/monitor/role.yaml"),
];

/// Where endpoints' objects are.
pub const INFERENCE_NAMESPACE: &str = "gco-inference";

/// Where the monitor's account is.
pub(super) const SYSTEM_NAMESPACE: &str = "gco-system";

/// The monitor's account.
pub(super) const MONITOR_ACCOUNT: &str = "gco-inference-monitor-sa";

/// Applies everything; a second time changes nothing.
///
/// # Errors
///
/// When the API server refuses one of the objects.
pub(super) async fn apply_all(client: &Client, models: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(models).with_context(|| format!("creating {}", models.display()))?;
    for text in PLATFORM {
        let objects: Vec<Value> = serde_saphyr::from_multiple(text).context("reading a manifest of the platform")?;
        for object in objects {
            apply(client, object).await?;
        }
    }
    for object in model_storage(models) {
        apply(client, object).await?;
    }
    Ok(())
}

/// The claim `efs-claim`, bound to a folder of this machine: pods that ask for it can be scheduled.
fn model_storage(models: &Path) -> [Value; 2] {
    let common = |claim: Value| {
        let mut spec = json!({"accessModes": ["ReadWriteMany"], "storageClassName": "efs-sc"});
        for (key, value) in claim.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        spec
    };
    let volume = common(json!({
        "capacity": {"storage": "1Ti"},
        "hostPath": {"path": models},
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": INFERENCE_NAMESPACE, "name": "efs-claim"},
    }));
    let claim = common(json!({
        "volumeName": "gco-local-models",
        "resources": {"requests": {"storage": "1Ti"}},
    }));
    [
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "gco-local-models"}, "spec": volume}),
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "efs-claim", "namespace": INFERENCE_NAMESPACE},
            "spec": claim,
        }),
    ]
}

async fn apply(client: &Client, object: Value) -> anyhow::Result<()> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("/apiVersion"), text("/kind"));
    let (name, namespace) = (text("/metadata/name"), text("/metadata/namespace"));
    if kind.is_empty() || name.is_empty() {
        bail!("a manifest of the platform has no kind or no name");
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    let objects: Api<DynamicObject> = match namespace.as_str() {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    let parameters = PatchParams::apply("gco-local").force();
    let applied = objects.patch(&name, &parameters, &Patch::Apply(object)).await;
    applied.with_context(|| format!("applying {kind} {name}"))?;
    Ok(())
}
