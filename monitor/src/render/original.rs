//! What the original control plane would have put into a pod (the wire contract, C.12.1): the plan tells by it whether pods
//! that it made say what the row says. Never sent anywhere.
//!
//! Only the fields that it renders; server defaults are written out where the comparison does not know them.

use gco_store::spec::{Accelerator, CapacityType, Framework, Spec};
use serde_json::{Value, json};

use super::pod::{MODEL_CLAIM, MODEL_DIRECTORY, MODEL_VOLUME, SERVICE_ACCOUNT, SYNC_IMAGE, framework, pull_policy};
use crate::object::MODEL_CONTAINER;

/// Requests and limits that the original fills in, whatever else the spec says.
const DEFAULTS: [(&str, &str, &str); 2] = [("cpu", "1", "4"), ("memory", "4Gi", "16Gi")];

/// The pod spec of the Deployment `app` with this image.
///
/// The original uses the Deployment's name in paths: a canary has a root path and a model folder of its own (C.11).
#[must_use]
pub fn pod_spec(app: &str, image: &str, spec: &Spec) -> Value {
    let framework = framework(spec, image);
    let mut args = spec.args.clone();
    let has_root_path = |args: &[String]| args.iter().any(|argument| argument == "--root-path");
    if spec.command.is_none() && framework == Some(Framework::Vllm) && !has_root_path(&args) {
        args.extend(["--root-path".to_owned(), format!("/inference/{app}")]);
    }
    let health = &spec.health_check_path;
    let path = if has_root_path(&args) { format!("/inference/{app}{health}") } else { health.clone() };
    let probe = |path: &str, initial: u32, period: u32, failures: u32| {
        let mut probe = json!({
            "httpGet": {"path": path, "port": spec.port, "scheme": "HTTP"},
            "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 1, "successThreshold": 1,
        });
        if initial > 0 {
            probe["initialDelaySeconds"] = json!(initial);
        }
        probe
    };
    let storage = spec.model_path.is_some() || spec.model_source.is_some();
    let mounts = json!([{"name": MODEL_VOLUME, "mountPath": MODEL_DIRECTORY}]);
    let mut container = json!({
        "name": MODEL_CONTAINER,
        "image": image,
        "imagePullPolicy": pull_policy(image),
        "env": environment(spec),
        "ports": [{"containerPort": spec.port, "protocol": "TCP"}],
        "resources": resources(spec),
        "livenessProbe": probe(&path, 120, 15, 5),
        "readinessProbe": probe(&path, 30, 10, 3),
    });
    if let Some(command) = spec.command.as_ref().filter(|command| !command.is_empty()) {
        container["command"] = json!(command);
    }
    if !args.is_empty() {
        container["args"] = json!(args);
    }
    if framework == Some(Framework::Tgi) {
        container["startupProbe"] = probe(health, 0, 15, 80);
    }
    let mut pod = json!({
        "serviceAccountName": SERVICE_ACCOUNT,
        "automountServiceAccountToken": false,
        "tolerations": [{
            "key": spec.accelerator.resource(), "operator": "Equal", "value": "true", "effect": "NoSchedule",
        }],
    });
    if storage {
        container["volumeMounts"] = mounts.clone();
        pod["volumes"] = json!([{"name": MODEL_VOLUME, "persistentVolumeClaim": {"claimName": MODEL_CLAIM}}]);
    }
    pod["containers"] = json!([container]);
    if let Some(source) = spec.model_source.as_ref().filter(|source| source.starts_with("s3://")) {
        pod["initContainers"] = json!([{
            "name": "model-sync",
            "image": SYNC_IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["aws"],
            "args": ["s3", "sync", source, format!("{MODEL_DIRECTORY}/{app}"), "--quiet"],
            "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}},
            "volumeMounts": mounts,
        }]);
    }
    let selector = node_selector(spec);
    if !selector.is_empty() {
        pod["nodeSelector"] = Value::Object(selector);
    }
    pod
}

fn environment(spec: &Spec) -> Value {
    const HASH_SEED: &str = "PYTHONHASHSEED";
    let seed = spec.env.get(HASH_SEED).map_or("0", String::as_str);
    let others = spec.env.iter().filter(|(name, _)| *name != HASH_SEED);
    let all = std::iter::once((HASH_SEED, seed)).chain(others.map(|(name, value)| (name.as_str(), value.as_str())));
    all.map(|(name, value)| json!({"name": name, "value": value})).collect()
}

fn resources(spec: &Spec) -> Value {
    let mut requests = json!(spec.resources.requests);
    let mut limits = json!(spec.resources.limits);
    for (resource, request, limit) in DEFAULTS {
        for (map, default) in [(&mut requests, request), (&mut limits, limit)] {
            if map.get(resource).is_none() {
                map[resource] = json!(default);
            }
        }
    }
    if spec.gpu_count > 0 {
        for map in [&mut requests, &mut limits] {
            map[spec.accelerator.resource()] = json!(spec.gpu_count.to_string());
        }
    }
    json!({"requests": requests, "limits": limits})
}

fn node_selector(spec: &Spec) -> serde_json::Map<String, Value> {
    let mut selector: serde_json::Map<String, Value> =
        spec.node_selector.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    if selector.is_empty() && spec.gpu_count > 0 {
        let (label, value) = match spec.accelerator {
            Accelerator::Nvidia => ("eks.amazonaws.com/instance-gpu-manufacturer", "nvidia"),
            Accelerator::Neuron => ("accelerator", "neuron"),
        };
        selector.insert(label.to_owned(), json!(value));
    }
    if let Some(capacity) = spec.capacity_type {
        let value = match capacity {
            CapacityType::Spot => "spot",
            CapacityType::OnDemand => "on-demand",
        };
        selector.insert("karpenter.sh/capacity-type".to_owned(), json!(value));
    }
    selector
}
