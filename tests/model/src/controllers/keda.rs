//! KEDA's operator, as its stand-in on real servers is (`gco_tests::region::keda`): finalizer and label on a ScaledObject; an
//! HPA with its labels and annotations; a target without pods gets the least count; `Ready`; and on deletion it lets go.
//!
//! A round is one moment, so what it writes is always of the ScaledObject that is there.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Round;
use super::deployment::{owned_by, owner};
use crate::object::{Resource, finalizers, is_terminating, map_at, number, text};
use crate::state::Place;

/// The finalizer that the operator puts on every ScaledObject.
const FINALIZER: &str = "finalizer.keda.sh";
/// The label that the operator puts on every ScaledObject: its own name.
const LABEL: &str = "scaledobject.keda.sh/name";
/// What is put before a ScaledObject's name to name its HPA.
const PREFIX: &str = "keda-hpa-";

pub(super) fn round(round: &mut Round<'_>) {
    let all: Vec<(Place, Arc<Value>)> = round
        .state
        .all(Resource::of("scaledobjects"), round.namespace)
        .map(|(place, object)| (place.clone(), object.clone()))
        .collect();
    for (place, scaled) in all {
        one(round, &place, &scaled);
    }
}

fn one(round: &mut Round<'_>, place: &Place, scaled: &Value) {
    if is_terminating(scaled) {
        return let_go(round, place, scaled);
    }
    if !finalizers(scaled).contains(&FINALIZER) {
        let mut object = scaled.clone();
        let mut all: Vec<&str> = finalizers(scaled);
        all.push(FINALIZER);
        object["metadata"]["finalizers"] = json!(all);
        map_at(&mut object, &["metadata", "labels"]).insert(LABEL.to_owned(), json!(place.name));
        round.state.put(place, object);
        return;
    }
    keep_autoscaler(round, place, scaled);
    lift(round, scaled);
    if scaled.pointer("/status/conditions").is_none() {
        let mut object = scaled.clone();
        let condition = json!({"type": "Ready", "status": "True", "reason": "ScaledObjectReady"});
        object["status"] = json!({"hpaName": format!("{PREFIX}{}", place.name), "conditions": [condition]});
        round.state.put(place, object);
    }
}

fn let_go(round: &mut Round<'_>, place: &Place, scaled: &Value) {
    let all = finalizers(scaled);
    let left: Vec<&str> = all.iter().copied().filter(|one| *one != FINALIZER).collect();
    if left.len() == all.len() {
        return;
    }
    if left.is_empty() {
        return round.state.remove(place);
    }
    let mut object = scaled.clone();
    object["metadata"]["finalizers"] = json!(left);
    round.state.put(place, object);
}

fn keep_autoscaler(round: &mut Round<'_>, place: &Place, scaled: &Value) {
    let name = format!("{PREFIX}{}", place.name);
    let at = Place::of(Resource::of("horizontalpodautoscalers"), round.namespace, &name);
    let live = round.state.get(&at).cloned();
    // A former one that is still going is waited for.
    if live.as_ref().is_some_and(|live| !owned_by(live, text(scaled, "/metadata/uid")) || is_terminating(live)) {
        return;
    }
    let mut object = match &live {
        Some(live) => (**live).clone(),
        None => json!({
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {
                "name": name,
                "namespace": round.namespace,
                "uid": round.state.identity(),
                "creationTimestamp": round.state.now.stamp,
                "ownerReferences": [owner("keda.sh/v1alpha1", "ScaledObject", scaled)],
            },
            "status": {"desiredReplicas": 0},
        }),
    };
    let mut labels = scaled["metadata"]["labels"].clone();
    for (label, value) in [
        ("app.kubernetes.io/managed-by", "keda-operator"),
        ("app.kubernetes.io/part-of", place.name.as_str()),
        ("app.kubernetes.io/name", name.as_str()),
    ] {
        labels[label] = json!(value);
    }
    object["metadata"]["labels"] = labels;
    object["metadata"]["annotations"] = scaled["metadata"]["annotations"].clone();
    object["spec"] = spec(scaled, &place.name);
    if live.as_deref() != Some(&object) {
        round.state.put(&at, object);
    }
}

/// What the HPA of a ScaledObject says.
fn spec(scaled: &Value, name: &str) -> Value {
    let triggers = scaled.pointer("/spec/triggers").and_then(Value::as_array);
    let metrics: Vec<Value> =
        triggers.into_iter().flatten().enumerate().map(|(index, trigger)| metric(index, trigger, name)).collect();
    json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": text(scaled, "/spec/scaleTargetRef/name")},
        // KEDA scales to none itself; its HPA keeps at least one.
        "minReplicas": number(scaled, "/spec/minReplicaCount").max(1),
        "maxReplicas": number(scaled, "/spec/maxReplicaCount"),
        "metrics": metrics,
    })
}

fn metric(index: usize, trigger: &Value, name: &str) -> Value {
    let target = |key: &str| trigger["metadata"][key].as_str().unwrap_or("1").to_owned();
    match text(trigger, "/type") {
        resource @ ("cpu" | "memory") => {
            let utilization = target("value").parse::<i64>().unwrap_or(1);
            json!({"type": "Resource", "resource": {"name": resource,
                "target": {"type": "Utilization", "averageUtilization": utilization}}})
        }
        other => json!({"type": "External", "external": {
            "metric": {"name": format!("s{index}-{other}"), "selector": {"matchLabels": {LABEL: name}}},
            "target": {"type": "AverageValue", "averageValue": target("targetMetricValue")},
        }}),
    }
}

/// A target without pods gets the least count: its triggers have a count above none to keep.
fn lift(round: &mut Round<'_>, scaled: &Value) {
    let least = number(scaled, "/spec/minReplicaCount");
    let target = text(scaled, "/spec/scaleTargetRef/name");
    let place = Place::of(Resource::of("deployments"), round.namespace, target);
    let Some(live) = round.state.get(&place).cloned() else { return };
    if least == 0 || number(&live, "/spec/replicas") > 0 || is_terminating(&live) {
        return;
    }
    let mut object = (*live).clone();
    object["spec"]["replicas"] = json!(least);
    object["metadata"]["generation"] = json!(number(&object, "/metadata/generation") + 1);
    round.state.put(&place, object);
}
