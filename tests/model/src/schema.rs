//! What the server makes of a body before it stores it: types, unknown fields, what it leaves out, what it fills in, what it
//! refuses. Only as far as the objects of this project need it; the conformance suite says where that ends.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::{Ingress, NetworkPolicy};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::object::{Resource, text};

/// Why a body cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// A value has a wrong type.
    Type(String),
    /// A field that the kind does not have, by path.
    Unknown(Vec<String>),
}

/// A mistake that the server names by field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// `FieldValueRequired`, `FieldValueInvalid` …
    pub reason: &'static str,
    /// In words.
    pub message: String,
    /// Where.
    pub field: String,
}

impl Cause {
    fn required(field: &str) -> Self {
        Self { reason: "FieldValueRequired", message: "Required value".to_owned(), field: field.to_owned() }
    }

    fn invalid(field: &str, why: &str) -> Self {
        Self { reason: "FieldValueInvalid", message: format!("Invalid value: {why}"), field: field.to_owned() }
    }
}

fn through<T: Serialize + DeserializeOwned>(body: &Value) -> Result<Value, String> {
    let typed = T::deserialize(body).map_err(|error| error.to_string())?;
    serde_json::to_value(&typed).map_err(|error| error.to_string())
}

/// The body as its kind reads it: without `null`s and empty values, quantities in their canonical form.
///
/// # Errors
/// A wrong type; with `strict`, a field that the kind does not have.
pub fn read(resource: &Resource, body: &Value, strict: bool) -> Result<Value, Unreadable> {
    let read = match resource.kind {
        "ConfigMap" => through::<ConfigMap>(body),
        "Secret" => through::<Secret>(body),
        "Service" => through::<Service>(body),
        "ServiceAccount" => through::<ServiceAccount>(body),
        "Pod" => through::<Pod>(body),
        "Deployment" => through::<Deployment>(body),
        "ReplicaSet" => through::<ReplicaSet>(body),
        "HorizontalPodAutoscaler" => through::<HorizontalPodAutoscaler>(body),
        "PodDisruptionBudget" => through::<PodDisruptionBudget>(body),
        "Ingress" => through::<Ingress>(body),
        "NetworkPolicy" => through::<NetworkPolicy>(body),
        "Lease" => through::<Lease>(body),
        "ScaledObject" => Ok(defined(body)),
        // Other custom resources and events: what is sent is what is stored.
        _ => Ok(body.clone()),
    };
    let mut read = read.map_err(Unreadable::Type)?;
    if strict {
        let mut unknown = Vec::new();
        lost("", body, &read, &mut unknown);
        if !unknown.is_empty() {
            return Err(Unreadable::Unknown(unknown));
        }
    }
    if let Some(metadata) = read.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        metadata.remove("selfLink");
    }
    if !resource.optional {
        without_empties(&mut read, "");
    } else if let Some(metadata) = read.get_mut("metadata") {
        // Of a custom resource the server reads nothing but the metadata into types of its own.
        without_empties(metadata, "metadata");
    }
    Ok(read)
}

/// A ScaledObject with the fields that the suites' definition of the kind has; the server drops others.
fn defined(body: &Value) -> Value {
    let mut body = body.clone();
    for (pointer, fields) in [
        ("", ["apiVersion", "kind", "metadata", "spec", "status"].as_slice()),
        ("/spec", &["scaleTargetRef", "minReplicaCount", "maxReplicaCount", "triggers"]),
    ] {
        if let Some(map) = body.pointer_mut(pointer).and_then(Value::as_object_mut) {
            map.retain(|name, _| fields.contains(&name.as_str()));
        }
    }
    body
}

/// Fields of `sent` that `read` lacks.
fn lost(path: &str, sent: &Value, read: &Value, unknown: &mut Vec<String>) {
    match (sent, read) {
        (Value::Object(sent), Value::Object(read)) => {
            for (name, value) in sent {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match read.get(name) {
                    Some(read) => lost(&path, value, read, unknown),
                    None if value.is_null() || *value == json!([]) || *value == json!({}) => {}
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(sent), Value::Array(read)) => {
            for (index, (sent, read)) in sent.iter().zip(read).enumerate() {
                lost(&format!("{path}[{index}]"), sent, read, unknown);
            }
        }
        _ => {}
    }
}

/// Fields that the server keeps although they are zero, empty or false: pointers in its types.
const KEPT: [&str; 26] = [
    "replicas",
    "minReplicas",
    "revisionHistoryLimit",
    "progressDeadlineSeconds",
    "terminationGracePeriodSeconds",
    "leaseTransitions",
    "maxSurge",
    "maxUnavailable",
    "minAvailable",
    "stabilizationWindowSeconds",
    "automountServiceAccountToken",
    "enableServiceLinks",
    "allowPrivilegeEscalation",
    "privileged",
    "readOnlyRootFilesystem",
    "runAsNonRoot",
    "runAsUser",
    "runAsGroup",
    "optional",
    "holderIdentity",
    "allocateLoadBalancerNodePorts",
    "targetPort",
    "deletionGracePeriodSeconds",
    "blockOwnerDeletion",
    "controller",
    "averageUtilization",
];

/// Maps that the server keeps although they are empty.
const KEPT_MAPS: [&str; 6] = ["resources", "securityContext", "emptyDir", "podSelector", "strategy", "selector"];

/// Maps of free keys: their values are never left out.
const FREE_MAPS: [&str; 8] =
    ["labels", "annotations", "matchLabels", "data", "binaryData", "nodeSelector", "limits", "requests"];

fn without_empties(value: &mut Value, name: &str) {
    match value {
        Value::Object(map) => {
            let free = FREE_MAPS.contains(&name);
            for (name, value) in map.iter_mut() {
                without_empties(value, name);
                if matches!(name.as_str(), "limits" | "requests" | "averageValue" | "sizeLimit" | "value") {
                    canonical_quantities(value);
                }
            }
            map.retain(|name, value| {
                let name = name.as_str();
                match value {
                    Value::Null => false,
                    _ if free || KEPT.contains(&name) => true,
                    Value::Object(map) => !map.is_empty() || KEPT_MAPS.contains(&name),
                    Value::Array(list) => !list.is_empty(),
                    Value::String(text) => !text.is_empty(),
                    Value::Bool(truth) => *truth,
                    Value::Number(number) => number.as_f64() != Some(0.0),
                }
            });
        }
        Value::Array(list) => list.iter_mut().for_each(|value| without_empties(value, "")),
        _ => {}
    }
}

/// `1000m` is stored as `1`.
fn canonical_quantities(value: &mut Value) {
    match value {
        Value::Object(map) => map.values_mut().for_each(canonical_quantities),
        Value::String(text) => {
            if let Some(thousandths) = text.strip_suffix('m').and_then(|number| number.parse::<u64>().ok())
                && thousandths.is_multiple_of(1_000)
            {
                *text = (thousandths / 1_000).to_string();
            }
        }
        _ => {}
    }
}

fn set(map: &mut Map<String, Value>, name: &str, value: Value) {
    map.entry(name).or_insert(value);
}

/// Fills in what the server fills in. `fresh`: something that the cluster has not given to a Service yet.
pub fn fill_in(resource: &Resource, object: &mut Value, fresh: &mut dyn FnMut() -> u64) {
    let Some(map) = object.as_object_mut() else { return };
    match resource.kind {
        "Deployment" => {
            let spec = spec_of(map);
            set(spec, "replicas", json!(1));
            set(spec, "revisionHistoryLimit", json!(10));
            set(spec, "progressDeadlineSeconds", json!(600));
            if spec.get("strategy").is_none_or(|strategy| *strategy == json!({})) {
                spec.insert("strategy".to_owned(), json!({"type": "RollingUpdate"}));
            }
            if let Some(strategy) = spec.get_mut("strategy").and_then(Value::as_object_mut) {
                set(strategy, "type", json!("RollingUpdate"));
                if strategy["type"] == "RollingUpdate" {
                    set(strategy, "rollingUpdate", json!({}));
                    if let Some(rolling) = strategy.get_mut("rollingUpdate").and_then(Value::as_object_mut) {
                        set(rolling, "maxUnavailable", json!("25%"));
                        set(rolling, "maxSurge", json!("25%"));
                    }
                }
            }
            template(spec);
        }
        "ReplicaSet" => {
            let spec = spec_of(map);
            set(spec, "replicas", json!(1));
            template(spec);
        }
        "Pod" => pod_spec(spec_of(map)),
        "Service" => service(spec_of(map), fresh),
        "HorizontalPodAutoscaler" => {
            let spec = spec_of(map);
            set(spec, "minReplicas", json!(1));
            let cpu = json!([{"type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]);
            set(spec, "metrics", cpu);
        }
        "Secret" => {
            if let Some(Value::Object(plain)) = map.remove("stringData") {
                let data = map.entry("data").or_insert_with(|| json!({}));
                for (name, value) in plain {
                    use std::fmt::Write as _;
                    // The model keeps what it is given in hexadecimal: nothing ever reads it back.
                    let mut coded = String::new();
                    for byte in value.as_str().unwrap_or_default().bytes() {
                        let _ = write!(coded, "{byte:02x}");
                    }
                    data[name] = json!(coded);
                }
            }
            set(map, "type", json!("Opaque"));
        }
        "NetworkPolicy" => {
            let spec = spec_of(map);
            for direction in ["ingress", "egress"] {
                for rule in spec.get_mut(direction).and_then(Value::as_array_mut).into_iter().flatten() {
                    for port in rule.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                        if let Some(port) = port.as_object_mut() {
                            set(port, "protocol", json!("TCP"));
                        }
                    }
                }
            }
        }
        _ => {}
    }
}

fn spec_of(map: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let spec = map.entry("spec").or_insert_with(|| json!({}));
    if !spec.is_object() {
        *spec = json!({});
    }
    match spec {
        Value::Object(spec) => spec,
        // It was made an object just above.
        _ => unreachable!("an object"),
    }
}

fn service(spec: &mut Map<String, Value>, fresh: &mut dyn FnMut() -> u64) {
    set(spec, "type", json!("ClusterIP"));
    set(spec, "sessionAffinity", json!("None"));
    set(spec, "ipFamilies", json!(["IPv4"]));
    set(spec, "ipFamilyPolicy", json!("SingleStack"));
    set(spec, "internalTrafficPolicy", json!("Cluster"));
    if spec.get("clusterIP").is_none() {
        let number = fresh();
        spec.insert("clusterIP".to_owned(), json!(format!("10.96.{}.{}", number / 250 % 250, number % 250 + 1)));
    }
    let address = spec["clusterIP"].clone();
    set(spec, "clusterIPs", json!([address]));
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            set(port, "protocol", json!("TCP"));
            if port.get("targetPort").is_none_or(|target| *target == json!(0) || *target == json!("")) {
                let number = port.get("port").cloned().unwrap_or_default();
                port.insert("targetPort".to_owned(), number);
            }
        }
    }
}

fn template(spec: &mut Map<String, Value>) {
    let template = spec.entry("template").or_insert_with(|| json!({}));
    if let Some(template) = template.as_object_mut() {
        pod_spec(spec_of(template));
    }
}

fn pod_spec(spec: &mut Map<String, Value>) {
    set(spec, "restartPolicy", json!("Always"));
    set(spec, "terminationGracePeriodSeconds", json!(30));
    set(spec, "dnsPolicy", json!("ClusterFirst"));
    set(spec, "securityContext", json!({}));
    set(spec, "schedulerName", json!("default-scheduler"));
    if let Some(account) = spec.get("serviceAccountName").cloned() {
        spec.insert("serviceAccount".to_owned(), account);
    }
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(container) = container.as_object_mut() {
                container_defaults(container);
            }
        }
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        for (source, mode) in [("configMap", "defaultMode"), ("secret", "defaultMode")] {
            if let Some(source) = volume.get_mut(source).and_then(Value::as_object_mut) {
                set(source, mode, json!(420));
            }
        }
    }
}

fn container_defaults(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let name = image.rsplit('/').next().unwrap_or_default();
    let moving = !image.contains('@') && (!name.contains(':') || name.ends_with(":latest"));
    set(container, "imagePullPolicy", json!(if moving { "Always" } else { "IfNotPresent" }));
    set(container, "terminationMessagePath", json!("/dev/termination-log"));
    set(container, "terminationMessagePolicy", json!("File"));
    set(container, "resources", json!({}));
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            set(port, "protocol", json!("TCP"));
        }
    }
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) else { continue };
        set(probe, "timeoutSeconds", json!(1));
        set(probe, "periodSeconds", json!(10));
        set(probe, "successThreshold", json!(1));
        set(probe, "failureThreshold", json!(3));
        if let Some(get) = probe.get_mut("httpGet").and_then(Value::as_object_mut) {
            set(get, "scheme", json!("HTTP"));
            set(get, "path", json!("/"));
        }
    }
}

/// What the server refuses, as far as the model knows it. `before`: the object that is replaced.
#[must_use]
pub fn problems(resource: &Resource, object: &Value, before: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = text(object, "/metadata/name");
    if before.is_none() && !good_name(resource, name) {
        causes.push(Cause::invalid("metadata.name", name));
    }
    for (field, pointer) in
        [("metadata.labels", "/metadata/labels"), ("spec.template.labels", "/spec/template/metadata/labels")]
    {
        for value in object.pointer(pointer).and_then(Value::as_object).into_iter().flat_map(Map::values) {
            if !good_label_value(value.as_str().unwrap_or_default()) {
                causes.push(Cause::invalid(field, "a label value"));
            }
        }
    }
    match resource.kind {
        "Deployment" | "ReplicaSet" => workload(object, before, &mut causes),
        "Service" => service_problems(object, before, &mut causes),
        "HorizontalPodAutoscaler" => autoscaler(object, &mut causes),
        "ScaledObject" => {
            for field in ["scaleTargetRef", "triggers"] {
                if object.pointer(&format!("/spec/{field}")).is_none() {
                    causes.push(Cause::required(&format!("spec.{field}")));
                }
            }
        }
        _ => {}
    }
    causes
}

fn workload(object: &Value, before: Option<&Value>, causes: &mut Vec<Cause>) {
    let wanted = object.pointer("/spec/selector/matchLabels").and_then(Value::as_object);
    let labels = object.pointer("/spec/template/metadata/labels");
    let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else {
        causes.push(Cause::required("spec.selector"));
        return;
    };
    if wanted.iter().any(|(name, value)| labels.and_then(|labels| labels.get(name)) != Some(value)) {
        causes.push(Cause::invalid("spec.template.metadata.labels", "`selector` does not match template `labels`"));
    }
    let containers = object.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    match containers {
        None => causes.push(Cause::required("spec.template.spec.containers")),
        Some(containers) => {
            for (index, container) in containers.iter().enumerate() {
                let at = |field: &str| format!("spec.template.spec.containers[{index}].{field}");
                if text(container, "/name").is_empty() {
                    causes.push(Cause::required(&at("name")));
                }
                if text(container, "/image").is_empty() {
                    causes.push(Cause::required(&at("image")));
                }
            }
        }
    }
    if object.pointer("/spec/replicas").and_then(Value::as_i64).is_some_and(|count| count < 0) {
        causes.push(Cause::invalid("spec.replicas", "must be greater than or equal to 0"));
    }
    if let Some(before) = before
        && before.pointer("/spec/selector") != object.pointer("/spec/selector")
    {
        causes.push(Cause::invalid("spec.selector", "field is immutable"));
    }
}

fn service_problems(object: &Value, before: Option<&Value>, causes: &mut Vec<Cause>) {
    let ports = object.pointer("/spec/ports").and_then(Value::as_array);
    let headless = text(object, "/spec/clusterIP") == "None";
    match ports {
        None if !headless => causes.push(Cause::required("spec.ports")),
        None => {}
        Some(ports) => {
            for (index, port) in ports.iter().enumerate() {
                if ports.len() > 1 && text(port, "/name").is_empty() {
                    causes.push(Cause::required(&format!("spec.ports[{index}].name")));
                }
                let number = port.get("port").and_then(Value::as_i64).unwrap_or_default();
                if !(1..=65_535).contains(&number) {
                    causes.push(Cause::invalid(&format!("spec.ports[{index}].port"), "must be between 1 and 65535"));
                }
            }
        }
    }
    if let Some(before) = before
        && text(before, "/spec/clusterIP") != text(object, "/spec/clusterIP")
    {
        // Both spellings of the address are looked at.
        causes.push(Cause::invalid("spec.clusterIPs[0]", "may not change once set"));
    }
}

fn autoscaler(object: &Value, causes: &mut Vec<Cause>) {
    let count = |field: &str| object.pointer(&format!("/spec/{field}")).and_then(Value::as_i64).unwrap_or_default();
    let (least, most) = (count("minReplicas"), count("maxReplicas"));
    if least < 1 {
        causes.push(Cause::invalid("spec.minReplicas", "must be greater than or equal to 1"));
        if least == 0 {
            causes.push(Cause::required("spec.metrics"));
        }
    }
    if most < 1 {
        causes.push(Cause::invalid("spec.maxReplicas", "must be greater than 0"));
    }
    if most < least {
        causes.push(Cause::invalid("spec.maxReplicas", "must be greater than or equal to `minReplicas`"));
    }
}

fn good_name(resource: &Resource, name: &str) -> bool {
    let lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = |name: &str| name.bytes().next().is_some_and(lower) && name.bytes().last().is_some_and(lower);
    if resource.kind == "PodDisruptionBudget" {
        // The server does not look at it.
        return true;
    }
    if resource.kind == "Service" {
        let first_is_letter = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
        return first_is_letter
            && name.len() <= 63
            && ends(name)
            && name.bytes().all(|byte| lower(byte) || byte == b'-');
    }
    !name.is_empty()
        && name.len() <= 253
        && name.split('.').all(|part| ends(part) && part.bytes().all(|byte| lower(byte) || byte == b'-'))
}

fn good_label_value(value: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    let inner = |byte: u8| plain(byte) || matches!(byte, b'-' | b'_' | b'.');
    value.is_empty()
        || (value.len() <= 63
            && value.bytes().all(inner)
            && value.bytes().next().is_some_and(plain)
            && value.bytes().last().is_some_and(plain))
}
