//! What a region's cluster has before a monitor comes: the platform's own manifests, and the claim
//! for shared model storage.

use std::path::Path;

use anyhow::Context as _;
use kube::Client;
use serde_json::{Value, json};

pub use crate::platform::INFERENCE_NAMESPACE;
use crate::platform::{self, FOR_A_MONITOR_OUTSIDE};
pub(super) use crate::platform::{MONITOR_ACCOUNT, SYSTEM_NAMESPACE};

/// Applies everything; a second time changes nothing.
///
/// # Errors
///
/// When the API server refuses one of the objects.
pub(super) async fn apply_all(client: &Client, models: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(models).with_context(|| format!("creating {}", models.display()))?;
    platform::apply_all(client, &FOR_A_MONITOR_OUTSIDE).await?;
    for object in model_storage(models) {
        platform::apply(client, &object).await?;
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
