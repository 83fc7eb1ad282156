//! Bodies that are sent: what is desired, with the live object's identity and others' metadata carried over.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use gco_store::wire::Value as Attribute;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::identity::{
    ANNOTATION_LEADER_EPOCH, ANNOTATION_LEADER_TERM, ANNOTATION_RESTART_CAUSE, LABEL_APP, LABEL_PROJECT, LABEL_TYPE,
    LeaderMark,
};
use crate::object::ObservedObject;

/// Fields of a Service that the server fills in and that stay with the object.
pub(super) const SERVICE_ADDRESS_FIELDS: [&str; 4] = ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"];
/// Metadata of others that a replacement must not lose.
const CARRIED_METADATA: [&str; 2] = ["finalizers", "ownerReferences"];

/// A new object's body: as rendered, with the leader's marks.
#[must_use]
pub fn created(desired: &Value, leader: &LeaderMark) -> Value {
    let mut body = desired.clone();
    overlay(&mut body, "annotations", leader.annotations());
    body
}

/// The body that replaces `live`: `content` (apiVersion, kind, our metadata, spec), uid and resourceVersion, labels,
/// annotations, finalizers and owner references of others, the Service's addresses, the leader's marks.
#[must_use]
pub fn replaced(content: &Value, live: &ObservedObject, leader: &LeaderMark) -> Value {
    let mut body = content.clone();
    for part in ["labels", "annotations"] {
        let ours = string_map(content.pointer(&format!("/metadata/{part}")));
        let mut merged = string_map(live.body.pointer(&format!("/metadata/{part}")));
        merged.extend(ours);
        overlay(&mut body, part, merged);
    }
    overlay(&mut body, "annotations", leader.annotations());
    if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in CARRIED_METADATA {
            if let Some(value) = live.body.get("metadata").and_then(|metadata| metadata.get(field)) {
                metadata.insert(field.to_owned(), value.clone());
            }
        }
        metadata.insert("uid".to_owned(), json!(live.uid));
        metadata.insert("resourceVersion".to_owned(), json!(live.resource_version));
    }
    if body.get("kind").and_then(Value::as_str) == Some("Service")
        && let Some(spec) = body.get_mut("spec").and_then(Value::as_object_mut)
    {
        for field in SERVICE_ADDRESS_FIELDS {
            if let Some(value) = live.body.get("spec").and_then(|spec| spec.get(field)) {
                spec.entry(field).or_insert_with(|| value.clone());
            }
        }
    }
    body
}

/// The live object as content for [`replaced`], with another replica count and nothing else changed.
#[must_use]
pub fn rescaled(live: &ObservedObject, replicas: u64) -> Value {
    let mut content = Map::new();
    for field in ["apiVersion", "kind", "spec"] {
        if let Some(value) = live.body.get(field) {
            content.insert(field.to_owned(), value.clone());
        }
    }
    let mut metadata = Map::new();
    for field in ["name", "namespace"] {
        if let Some(value) = live.body.get("metadata").and_then(|metadata| metadata.get(field)) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    content.insert("metadata".to_owned(), Value::Object(metadata));
    // Items of a list have neither: the cache may hold them without.
    content.entry("apiVersion").or_insert_with(|| json!("apps/v1"));
    content.entry("kind").or_insert_with(|| json!("Deployment"));
    let mut content = Value::Object(content);
    set_replicas(&mut content, replicas);
    content
}

/// Sets `spec.replicas`.
pub(super) fn set_replicas(body: &mut Value, replicas: u64) {
    if let Some(spec) = body.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("replicas".to_owned(), json!(replicas));
    }
}

/// `spec.replicas` of a Deployment; the server's default is 1.
#[must_use]
pub fn replicas(body: &Value) -> u64 {
    body.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1)
}

/// Digest of what a body asks for, for `PlanInput::futile`: the same for every replacement that asks for the same,
/// whatever the live object's version, its addresses and the metadata of others, and whoever leads.
///
/// It does not tell what the write was made against. Whoever keeps it forgets it when somebody else changes the object's
/// content (its `metadata.generation`, where there is one): then the same write may have an effect.
#[must_use]
pub fn digest(body: &Value) -> String {
    let metadata = |field: &str| string_map(body.pointer(&format!("/metadata/{field}")));
    let mut labels = metadata("labels");
    labels.retain(|name, _| [LABEL_APP, LABEL_PROJECT.0, LABEL_TYPE.0].contains(&name.as_str()));
    let mut annotations = metadata("annotations");
    annotations.retain(|name, _| {
        // Marks of who leads and when say nothing of what is asked.
        const PASSING: [&str; 3] = [ANNOTATION_LEADER_EPOCH, ANNOTATION_LEADER_TERM, ANNOTATION_RESTART_CAUSE];
        name.starts_with("gco.io/") && !PASSING.contains(&name.as_str())
    });
    let mut spec = body.get("spec").cloned().unwrap_or_default();
    if body.get("kind").and_then(Value::as_str) == Some("Service")
        && let Some(spec) = spec.as_object_mut()
    {
        for field in SERVICE_ADDRESS_FIELDS {
            spec.remove(field);
        }
    }
    let asked = json!({
        "kind": body.get("kind"),
        "name": body.pointer("/metadata/name"),
        "labels": labels,
        "annotations": annotations,
        "spec": spec,
    });
    hexadecimal_digest(&asked)
}

/// Keys of a spec that no pod template is made from: an edit of them does not ask for a restart.
const KEYS_OF_COUNTS: [&str; 3] = ["replicas", "autoscaling", "max_surge"];
/// The same inside of `canary`, whose image pods are made from.
const KEYS_OF_CANARY_COUNTS: [&str; 2] = ["replicas", "weight"];

/// Digests of a row's spec as it is written, but for what only changes counts: they tell whether the row was edited since an
/// object was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecDigests {
    /// What the endpoint's own pods are made from: all but the canary, whose edits must not touch them.
    pub own: String,
    /// What the canary's pods are made from: all of it.
    pub canary: String,
}

/// Digests a row's spec.
///
/// On purpose it shares no code with the input hashes: a fault in those must not look like an edit. The prefix is the version
/// of this digest.
#[must_use]
pub fn spec_digests(spec: &Attribute) -> SpecDigests {
    let digest = |json: &Value| format!("1-{}", hexadecimal_digest(json));
    let mut json = spec.to_plain_json();
    let map = json.as_object_mut();
    let canary = map.and_then(|map| {
        map.retain(|key, _| !KEYS_OF_COUNTS.contains(&key.as_str()));
        map.remove("canary")
    });
    let own = digest(&json);
    let Some(mut canary) = canary else { return SpecDigests { canary: own.clone(), own } };
    if let Some(canary) = canary.as_object_mut() {
        canary.retain(|key, _| !KEYS_OF_CANARY_COUNTS.contains(&key.as_str()));
    }
    json["canary"] = canary;
    SpecDigests { canary: digest(&json), own }
}

fn hexadecimal_digest(value: &Value) -> String {
    let mut text = String::new();
    canonical(value, &mut text);
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut digest, byte| {
        // Writing to a String cannot fail.
        let _ = write!(digest, "{byte:02x}");
        digest
    })
}

/// JSON with sorted keys: the order in a map depends on build features of a dependency and must not change a digest.
fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<&String, &Value> = map.iter().filter(|(_, value)| !value.is_null()).collect();
            text.push('{');
            for (key, value) in sorted {
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                canonical(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(list) => {
            text.push('[');
            for value in list {
                canonical(value, text);
                text.push(',');
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

/// Sets entries of `metadata.<part>`.
fn overlay(body: &mut Value, part: &str, entries: BTreeMap<String, String>) {
    let Some(body) = body.as_object_mut() else { return };
    let metadata = body.entry("metadata").or_insert_with(|| json!({}));
    let Some(metadata) = metadata.as_object_mut() else { return };
    let map = metadata.entry(part).or_insert_with(|| json!({}));
    if let Some(map) = map.as_object_mut() {
        map.extend(entries.into_iter().map(|(name, value)| (name, Value::String(value))));
    }
}

fn string_map(value: Option<&Value>) -> BTreeMap<String, String> {
    value
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
        .collect()
}
