//! The bodies that the original sends (the wire contract, C.12 and C.13).

use serde_json::{Map, Value as Json, json};

use crate::region::Region;

/// The image for a region.
pub(super) fn image(spec: &Json, region: &str) -> String {
    let regional = spec["region_image_uris"][region].as_str();
    regional.or_else(|| spec["image"].as_str()).unwrap_or_default().to_owned()
}

/// The spec of the canary: the primary's with the canary's image and count, without its block and images by region (C.11).
#[must_use]
pub fn canary_spec(spec: &Json) -> Option<Json> {
    let canary = spec.get("canary").filter(|canary| canary.is_object())?;
    let mut spec = spec.clone();
    let map = spec.as_object_mut()?;
    map.remove("canary");
    map.remove("region_image_uris");
    map.insert("image".to_owned(), canary["image"].clone());
    map.insert("replicas".to_owned(), canary.get("replicas").cloned().unwrap_or(json!(1)));
    Some(spec)
}

fn labels(app: &str) -> Json {
    json!({"app": app, "project": "gco", "gco.io/type": "inference"})
}

/// C.12.1.
#[must_use]
pub fn deployment(app: &str, spec: &Json, image: &str, marks: &Json) -> Json {
    let neuron = spec["accelerator"].as_str() == Some("neuron");
    let accelerator = if neuron { "aws.amazon.com/neuron" } else { "nvidia.com/gpu" };
    let gpus = spec["gpu_count"].as_i64().unwrap_or(1);
    let framework = spec["framework"].as_str().map(str::to_owned).unwrap_or_else(|| {
        let image = image.to_lowercase();
        if image.contains("vllm") {
            "vllm".to_owned()
        } else if image.contains("text-generation-inference") || image.contains("/tgi") {
            "tgi".to_owned()
        } else {
            String::new()
        }
    });
    let mut args: Vec<Json> = spec["args"].as_array().cloned().unwrap_or_default();
    let rooted = |args: &[Json]| args.iter().any(|argument| argument == "--root-path");
    if spec.get("command").is_none() && framework == "vllm" && !rooted(&args) {
        args.extend([json!("--root-path"), json!(format!("/inference/{app}"))]);
    }
    let health = spec["health_check_path"].as_str().unwrap_or("/health");
    let path = if rooted(&args) { format!("/inference/{app}{health}") } else { health.to_owned() };
    let port = spec["port"].as_i64().unwrap_or(8000);
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": port}});
    let mut env: Vec<Json> = Vec::new();
    let given = spec["env"].as_object().cloned().unwrap_or_default();
    let seed = given.get("PYTHONHASHSEED").cloned().unwrap_or(json!("0"));
    env.push(json!({"name": "PYTHONHASHSEED", "value": seed}));
    env.extend(
        given
            .iter()
            .filter(|(name, _)| *name != "PYTHONHASHSEED")
            .map(|(name, value)| json!({"name": name, "value": value})),
    );
    let part = |part: &str, cpu: &str, memory: &str| {
        let mut map = spec["resources"][part].as_object().cloned().unwrap_or_default();
        map.entry("cpu").or_insert(json!(cpu));
        map.entry("memory").or_insert(json!(memory));
        if gpus > 0 {
            map.insert(accelerator.to_owned(), json!(gpus.to_string()));
        }
        Json::Object(map)
    };
    let mut container = json!({
        "name": "inference", "image": image, "env": env,
        "ports": [{"containerPort": port}],
        "resources": {"requests": part("requests", "1", "4Gi"), "limits": part("limits", "4", "16Gi")},
        "livenessProbe": probe(&path), "readinessProbe": probe(&path),
    });
    container["livenessProbe"]["initialDelaySeconds"] = json!(120);
    container["livenessProbe"]["periodSeconds"] = json!(15);
    container["livenessProbe"]["failureThreshold"] = json!(5);
    container["readinessProbe"]["initialDelaySeconds"] = json!(30);
    container["readinessProbe"]["periodSeconds"] = json!(10);
    if framework == "tgi" {
        container["startupProbe"] = probe(health);
        container["startupProbe"]["periodSeconds"] = json!(15);
        container["startupProbe"]["failureThreshold"] = json!(80);
    }
    if !args.is_empty() {
        container["args"] = json!(args);
    }
    if let Some(command) = spec.get("command") {
        container["command"] = command.clone();
    }
    let mut pod = json!({
        "serviceAccountName": "gco-service-account", "automountServiceAccountToken": false,
        "tolerations": [{"key": accelerator, "operator": "Equal", "value": "true", "effect": "NoSchedule"}],
    });
    if spec.get("model_path").is_some() || spec.get("model_source").is_some() {
        pod["volumes"] = json!([{"name": "model-storage", "persistentVolumeClaim": {"claimName": "efs-claim"}}]);
        container["volumeMounts"] = json!([{"name": "model-storage", "mountPath": "/models"}]);
    }
    if let Some(source) = spec["model_source"].as_str().filter(|source| source.starts_with("s3://")) {
        pod["initContainers"] = json!([{
            "name": "model-sync",
            "image": "public.ecr.aws/aws-cli/aws-cli:2.36.44@sha256:e8467f2c319f9bc9a1471808a69949a76915e9c95eaf4a09ece9f9e85fd32747",
            "command": ["aws"], "args": ["s3", "sync", source, format!("/models/{app}"), "--quiet"],
            "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}},
            "volumeMounts": [{"name": "model-storage", "mountPath": "/models"}],
        }]);
    }
    pod["containers"] = json!([container]);
    let mut selector: Map<String, Json> = spec["node_selector"].as_object().cloned().unwrap_or_default();
    if selector.is_empty() && gpus > 0 {
        let (label, value) =
            if neuron { ("accelerator", "neuron") } else { ("eks.amazonaws.com/instance-gpu-manufacturer", "nvidia") };
        selector.insert(label.to_owned(), json!(value));
    }
    if let Some(capacity @ ("spot" | "on-demand")) = spec["capacity_type"].as_str() {
        selector.insert("karpenter.sh/capacity-type".to_owned(), json!(capacity));
    }
    if !selector.is_empty() {
        pod["nodeSelector"] = Json::Object(selector);
    }
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": app, "labels": labels(app), "annotations": marks},
        "spec": {
            "replicas": spec["replicas"].as_i64().unwrap_or(1),
            "selector": {"matchLabels": {"app": app}},
            "template": {"metadata": {"labels": labels(app), "annotations": marks}, "spec": pod},
        },
    })
}

/// C.12.2.
#[must_use]
pub fn service(app: &str, spec: &Json, marks: &Json) -> Json {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": app, "labels": labels(app), "annotations": marks},
        "spec": {
            "type": "ClusterIP", "selector": {"app": app, "gco.io/type": "inference"},
            "ports": [{"port": 80, "targetPort": spec["port"].as_i64().unwrap_or(8000), "protocol": "TCP"}],
        },
    })
}

/// C.13, the native one.
pub(super) fn autoscaler(name: &str, spec: &Json, marks: &Json) -> Json {
    let autoscaling = &spec["autoscaling"];
    let metric = |resource: &str, target: i64| {
        json!({"type": "Resource", "resource": {"name": resource,
            "target": {"type": "Utilization", "averageUtilization": target}}})
    };
    let mut metrics: Vec<Json> = autoscaling["metrics"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| metric(one["type"].as_str().unwrap_or("cpu"), one["target"].as_i64().unwrap_or(70)))
        .collect();
    if metrics.is_empty() {
        metrics.push(metric("cpu", 70));
    }
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "labels": labels(name), "annotations": marks},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": autoscaling["min_replicas"].as_i64().unwrap_or(1),
            "maxReplicas": autoscaling["max_replicas"].as_i64().unwrap_or(10),
            "metrics": metrics,
        },
    })
}

/// C.13, KEDA's.
pub(super) fn scaled_object(name: &str, spec: &Json, marks: &Json, region: &Region) -> Json {
    let autoscaling = &spec["autoscaling"];
    let of_cloudwatch = |metric: &str, target: i64| {
        json!({"type": "aws-cloudwatch", "metadata": {
            "namespace": "ContainerInsights", "metricName": metric, "dimensionName": "ClusterName;Namespace;PodName",
            "dimensionValue": format!("suite-{};{};{name}", region.name(), region.namespace()),
            "targetMetricValue": target.to_string(), "minMetricValue": "0", "metricStat": "Average",
            "awsRegion": region.name(), "identityOwner": "operator",
        }})
    };
    let trigger = |one: &Json| {
        let target = one["target"].as_i64().unwrap_or(70);
        match one["type"].as_str() {
            Some("gpu") => of_cloudwatch("pod_gpu_utilization", target),
            Some("gpu_memory") => of_cloudwatch("pod_gpu_memory_utilization", target),
            other => json!({"type": other.unwrap_or("cpu"), "metricType": "Utilization",
                "metadata": {"value": target.to_string()}}),
        }
    };
    let triggers: Vec<Json> = autoscaling["metrics"].as_array().into_iter().flatten().map(trigger).collect();
    json!({
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
        "metadata": {"name": name, "labels": labels(name), "annotations": marks},
        "spec": {
            "scaleTargetRef": {"name": name},
            "minReplicaCount": autoscaling["min_replicas"].as_i64().unwrap_or(1),
            "maxReplicaCount": autoscaling["max_replicas"].as_i64().unwrap_or(10),
            "triggers": triggers,
        },
    })
}
