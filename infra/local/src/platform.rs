//! The platform's own manifests, as they are installed in a cluster of the fleet, and a way to apply them.

use anyhow::{Context as _, bail, ensure};
use http::{Method, Request};
use kube::Client;
use serde_json::Value;

/// Where endpoints' objects are.
pub const INFERENCE_NAMESPACE: &str = "gco-inference";

/// Where the monitor's account is.
pub const SYSTEM_NAMESPACE: &str = "gco-system";

/// The monitor's account, in [`SYSTEM_NAMESPACE`].
pub const MONITOR_ACCOUNT: &str = "gco-inference-monitor-sa";

/// The account of model pods, in [`INFERENCE_NAMESPACE`].
pub const MODEL_ACCOUNT: &str = "gco-service-account";

/// The account of prefill-decode proxies, in [`INFERENCE_NAMESPACE`].
pub const PROXY_ACCOUNT: &str = "gco-inference-proxy-sa";

/// Both namespaces.
pub const NAMESPACES: &str = include_str!("../../../deploy/monitor/namespaces.yaml");
/// The accounts of monitor, models and proxies.
pub const ACCOUNTS: &str = include_str!("../../../deploy/monitor/service-accounts.yaml");
/// The monitor's Role in the models' namespace, and its binding.
pub const ROLE: &str = include_str!("../../../deploy/monitor/role.yaml");
/// The right of prefill-decode proxies to see EndpointSlices, and its binding.
pub const PROXY_ROLE: &str = include_str!("../../../deploy/monitor/proxy-role.yaml");
/// The monitor's right to read the fence's bindings.
pub const FENCE_READER: &str = include_str!("../../../deploy/monitor/fence-reader.yaml");
/// What keeps API servers following the Lease.
pub const FENCE_KEEPER: &str = include_str!("../../../deploy/monitor/fence-keeper.yaml");
/// Where the monitor's Lease calls queue.
pub const FLOW_SCHEMA: &str = include_str!("../../../deploy/monitor/flow-schema.yaml");
/// The monitor's settings.
pub const SETTINGS: &str = include_str!("../../../deploy/monitor/settings.yaml");
/// The monitor's Deployment, its budget and its priority.
pub const MONITOR: &str = include_str!("../../../deploy/monitor/monitor.yaml");
/// The admission fence's policies, which do nothing by themselves.
pub const FENCE_POLICIES: &str = include_str!("../../../deploy/fence/policies.yaml");
/// What puts the admission fence in force.
pub const FENCE_BINDINGS: &str = include_str!("../../../deploy/fence/bindings.yaml");
/// The policies that keep others off the monitor's objects, which do nothing by themselves.
pub const OUTSIDERS_POLICIES: &str = include_str!("../../../deploy/outsiders/policies.yaml");
/// What puts them in force.
pub const OUTSIDERS_BINDINGS: &str = include_str!("../../../deploy/outsiders/bindings.yaml");

/// What a monitor outside of the cluster needs of it.
pub const FOR_A_MONITOR_OUTSIDE: [&str; 7] =
    [NAMESPACES, ACCOUNTS, ROLE, PROXY_ROLE, FENCE_READER, FENCE_KEEPER, FLOW_SCHEMA];

/// Everything that is installed, but for the bindings that put the fence and the outsiders' rule in force.
pub const WITHOUT_BINDINGS: [&str; 11] = [
    NAMESPACES,
    ACCOUNTS,
    ROLE,
    PROXY_ROLE,
    FENCE_READER,
    FENCE_KEEPER,
    FLOW_SCHEMA,
    SETTINGS,
    MONITOR,
    FENCE_POLICIES,
    OUTSIDERS_POLICIES,
];

/// Where each kind is kept: API prefix and plural.
const PLACES: [(&str, &str, &str); 16] = [
    ("Namespace", "/api/v1", "namespaces"),
    ("ServiceAccount", "/api/v1", "serviceaccounts"),
    ("ConfigMap", "/api/v1", "configmaps"),
    ("PersistentVolume", "/api/v1", "persistentvolumes"),
    ("PersistentVolumeClaim", "/api/v1", "persistentvolumeclaims"),
    ("Deployment", "/apis/apps/v1", "deployments"),
    ("Role", "/apis/rbac.authorization.k8s.io/v1", "roles"),
    ("RoleBinding", "/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    ("ClusterRole", "/apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    ("ClusterRoleBinding", "/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    ("PodDisruptionBudget", "/apis/policy/v1", "poddisruptionbudgets"),
    ("PriorityClass", "/apis/scheduling.k8s.io/v1", "priorityclasses"),
    ("FlowSchema", "/apis/flowcontrol.apiserver.k8s.io/v1", "flowschemas"),
    ("ValidatingAdmissionPolicy", "/apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicies"),
    ("ValidatingAdmissionPolicyBinding", "/apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings"),
    ("CustomResourceDefinition", "/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
];

/// The objects of a manifest, in order.
///
/// # Errors
/// When it is no YAML.
pub fn objects(manifest: &str) -> anyhow::Result<Vec<Value>> {
    serde_saphyr::from_multiple(manifest).context("reading a manifest of the platform")
}

/// The path of an object.
///
/// # Errors
/// When it has no name, or its kind has no place here.
pub fn path(object: &Value) -> anyhow::Result<String> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (kind, name, namespace) = (text("/kind"), text("/metadata/name"), text("/metadata/namespace"));
    ensure!(!name.is_empty(), "a manifest of the platform has no name");
    let Some((_, prefix, plural)) = PLACES.iter().find(|(known, _, _)| *known == kind) else {
        bail!("{kind} has no place here");
    };
    Ok(match namespace {
        "" => format!("{prefix}/{plural}/{name}"),
        namespace => format!("{prefix}/namespaces/{namespace}/{plural}/{name}"),
    })
}

/// Applies one object; a second time changes nothing. Unknown fields and doubled keys are errors.
///
/// # Errors
/// When the API server refuses it.
pub async fn apply(client: &Client, object: &Value) -> anyhow::Result<Value> {
    let uri = format!("{}?fieldManager=gco-local&force=true&fieldValidation=Strict", path(object)?);
    let request =
        Request::builder().method(Method::PATCH).uri(uri).header("content-type", "application/apply-patch+yaml");
    // JSON is YAML.
    let request = request.body(serde_json::to_vec(object)?)?;
    let answer = client.request::<Value>(request).await;
    answer.with_context(|| format!("applying {} {}", object["kind"], object["metadata"]["name"]))
}

/// Applies every object of some manifests, in order.
///
/// # Errors
/// When the API server refuses one.
pub async fn apply_all(client: &Client, manifests: &[&str]) -> anyhow::Result<()> {
    for manifest in manifests {
        for object in objects(manifest)? {
            apply(client, &object).await?;
        }
    }
    Ok(())
}

/// Deletes every object of a manifest; what is not there is fine.
///
/// # Errors
/// When the API server refuses.
pub async fn delete_all(client: &Client, manifest: &str) -> anyhow::Result<()> {
    for object in objects(manifest)? {
        let request = Request::builder().method(Method::DELETE).uri(path(&object)?).body(Vec::new())?;
        match client.request::<Value>(request).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error).with_context(|| format!("deleting {}", object["metadata"]["name"])),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_that_is_installed_has_a_place_and_fits_the_others() {
        let mut paths = std::collections::BTreeSet::new();
        for manifest in WITHOUT_BINDINGS.iter().chain(&[FENCE_BINDINGS, OUTSIDERS_BINDINGS]) {
            for object in objects(manifest).unwrap() {
                assert!(paths.insert(path(&object).unwrap()), "{object} is there twice");
            }
        }
        let account = |namespace: &str, name: &str| format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}");
        assert!(paths.contains(&account(SYSTEM_NAMESPACE, MONITOR_ACCOUNT)));
        assert!(paths.contains(&account(INFERENCE_NAMESPACE, MODEL_ACCOUNT)));
        assert!(paths.contains(&account(INFERENCE_NAMESPACE, PROXY_ACCOUNT)));
    }
}
