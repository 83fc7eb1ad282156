//! What an endpoint came to: row and objects without what differs between two runs that ended the same way.

use std::collections::BTreeMap;

use gco_store::row::EndpointRow;
use serde_json::{Value, json};

use crate::region::Snapshot;
use crate::region::objects::{is_ready, number};

/// Fields, labels and annotations that hold identities, versions, times or places.
const PASSING: [&str; 25] = [
    "uid",
    "resourceVersion",
    "generation",
    "observedGeneration",
    "creationTimestamp",
    "managedFields",
    "clusterIP",
    "clusterIPs",
    "nodeName",
    "topology.kubernetes.io/zone",
    "pod-template-hash",
    "generateName",
    "status",
    "gco.io/leader-epoch",
    "gco.io/leader-term",
    "gco.io/lifecycle-id",
    "gco.io/region-generation",
    "lifecycle_id",
    "region_generation",
    "region_generations",
    "created_at",
    "updated_at",
    "last_sync",
    "since",
    "replaced_at",
];

/// The end of one endpoint, in all regions; equal for two endpoints that ended the same way.
#[must_use]
pub fn ending(name: &str, row: Option<&EndpointRow>, objects: &BTreeMap<String, Snapshot>) -> Value {
    let row = row.map(|row| stripped(&gco_store::wire::item_to_plain_json(&row.item)));
    let regions: BTreeMap<&String, Value> =
        objects.iter().map(|(region, objects)| (region, of_region(objects))).collect();
    named_alike(&json!({"row": row, "regions": regions}), name)
}

fn of_region(objects: &Snapshot) -> Value {
    let named = |objects: &BTreeMap<String, Value>| -> BTreeMap<String, Value> {
        objects.iter().map(|(name, object)| (name.clone(), counted(object))).collect()
    };
    // Names of ReplicaSets and pods hold hashes and dice: they are compared as sets, in the order of their content.
    let unnamed = |objects: &BTreeMap<String, Value>| -> Vec<Value> {
        let mut all: Vec<Value> = objects.values().map(without_name).collect();
        all.sort_by_key(Value::to_string);
        all
    };
    json!({
        "deployments": named(&objects.deployments),
        "services": named(&objects.services),
        "replica_sets": unnamed(&objects.replica_sets),
        "pods": unnamed(&objects.pods),
    })
}

/// An object with the counters of its status.
fn counted(object: &Value) -> Value {
    let mut counted = stripped(object);
    let counters = ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas"];
    let counters = counters.map(|counter| (counter, number(object, &format!("/status/{counter}"))));
    counted["counters"] = json!(BTreeMap::from(counters));
    counted
}

fn without_name(object: &Value) -> Value {
    let mut unnamed = counted(object);
    unnamed["ready"] = is_ready(object).into();
    if let Some(metadata) = unnamed.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("name");
        for owner in metadata.get_mut("ownerReferences").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(owner) = owner.as_object_mut().filter(|owner| owner.get("kind") == Some(&json!("ReplicaSet"))) {
                owner.remove("name");
            }
        }
    }
    unnamed
}

/// Without passing fields, wherever they stand. A row's `state` and counts stand under other names than an object's
/// `status`, so that nothing of a row is lost.
fn stripped(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, value)| !is_passing(name, value));
            Value::Object(kept.map(|(name, value)| (name.clone(), stripped(value))).collect())
        }
        Value::Array(values) => Value::Array(values.iter().map(stripped).collect()),
        other => other.clone(),
    }
}

fn is_passing(name: &str, value: &Value) -> bool {
    // The `status` of a condition is a word.
    PASSING.contains(&name) && (name != "status" || value.is_object())
}

/// With one name for every endpoint, so that those with different names can be compared.
fn named_alike(value: &Value, name: &str) -> Value {
    match value {
        Value::Object(fields) => {
            let renamed = fields.iter().map(|(key, value)| (key.replace(name, "NAME"), named_alike(value, name)));
            Value::Object(renamed.collect())
        }
        Value::Array(values) => Value::Array(values.iter().map(|value| named_alike(value, name)).collect()),
        Value::String(text) => Value::String(text.replace(name, "NAME")),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, hash: &str, ready: &str) -> Value {
        json!({
            "metadata": {
                "name": format!("{name}-{hash}-x"), "uid": hash, "generateName": format!("{name}-{hash}-"),
                "labels": {"app": name, "pod-template-hash": hash},
                "ownerReferences": [{"kind": "ReplicaSet", "name": format!("{name}-{hash}"), "uid": hash}],
            },
            "spec": {"nodeName": hash, "containers": [{"image": "x:1"}]},
            "status": {"podIP": hash, "conditions": [{"type": "Ready", "status": ready}]},
        })
    }

    fn end(name: &str, pods: &[Value]) -> Value {
        let pods = pods.iter().enumerate().map(|(number, pod)| (number.to_string(), pod.clone())).collect();
        let snapshot = Snapshot { pods, ..Snapshot::default() };
        ending(name, None, &BTreeMap::from([("us-east-1".to_owned(), snapshot)]))
    }

    #[test]
    fn ends_of_two_endpoints_are_alike_when_only_names_and_hashes_differ() {
        assert_eq!(end("ember", &[pod("ember", "1", "True")]), end("flint", &[pod("flint", "2", "True")]));
    }

    #[test]
    fn a_pod_more_or_one_that_is_not_ready_is_another_end() {
        let one = pod("ember", "1", "True");
        assert_ne!(end("ember", std::slice::from_ref(&one)), end("ember", &[one.clone(), pod("ember", "2", "True")]));
        assert_ne!(end("ember", &[one]), end("ember", &[pod("ember", "1", "False")]));
    }
}
