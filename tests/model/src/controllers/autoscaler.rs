//! The HPA controller: keeps a Deployment's count within the bounds, and follows a load that a suite sets; and KEDA, which
//! makes an HPA of a ScaledObject and copies its labels and annotations to it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Round;
use super::deployment::{owned_by, owner};
use crate::object::{Resource, is_terminating, number, text};
use crate::state::Place;

pub(super) fn round(round: &mut Round<'_>) {
    let all: Vec<(Place, Arc<Value>)> = round
        .state
        .all(Resource::of("horizontalpodautoscalers"), round.namespace)
        .map(|(place, object)| (place.clone(), object.clone()))
        .collect();
    for (place, autoscaler) in all {
        if !is_terminating(&autoscaler) {
            one(round, &place, &autoscaler);
        }
    }
}

fn one(round: &mut Round<'_>, place: &Place, autoscaler: &Value) {
    let target = text(autoscaler, "/spec/scaleTargetRef/name").to_owned();
    let deployment = Place::of(Resource::of("deployments"), round.namespace, &target);
    let Some(live) = round.state.get(&deployment).cloned() else { return };
    let current = number(&live, "/spec/replicas");
    // A target without replicas is left alone: scaling is disabled.
    if current == 0 || is_terminating(&live) {
        return;
    }
    let (least, most) = (number(autoscaler, "/spec/minReplicas").max(1), number(autoscaler, "/spec/maxReplicas"));
    let wanted = round.settings.wanted_replicas.get(&target).copied().unwrap_or(current).clamp(least, most.max(least));
    if wanted != current {
        let mut object = (*live).clone();
        object["spec"]["replicas"] = json!(wanted);
        object["metadata"]["generation"] = json!(number(&object, "/metadata/generation") + 1);
        round.state.put(&deployment, object);
    }
    let status = json!({"currentReplicas": number(&live, "/status/replicas"), "desiredReplicas": wanted});
    if autoscaler.get("status") != Some(&status)
        && let Some(live) = round.state.get(place).cloned()
    {
        let mut object = (*live).clone();
        object["status"] = status;
        round.state.put(place, object);
    }
}

/// KEDA's part.
pub(super) fn keda(round: &mut Round<'_>) {
    let all: Vec<(Place, Arc<Value>)> = round
        .state
        .all(Resource::of("scaledobjects"), round.namespace)
        .map(|(place, object)| (place.clone(), object.clone()))
        .collect();
    for (place, scaled) in all {
        if !is_terminating(&scaled) {
            follow(round, &place, &scaled);
        }
    }
}

fn follow(round: &mut Round<'_>, place: &Place, scaled: &Value) {
    let name = format!("keda-hpa-{}", place.name);
    let at = Place::of(Resource::of("horizontalpodautoscalers"), round.namespace, &name);
    let live = round.state.get(&at).cloned();
    if live.as_ref().is_some_and(|live| !owned_by(live, text(scaled, "/metadata/uid")) || is_terminating(live)) {
        return;
    }
    let count = |field: &str, default: i64| {
        scaled.pointer(&format!("/spec/{field}")).and_then(Value::as_i64).unwrap_or(default)
    };
    let spec = json!({
        "scaleTargetRef": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": text(scaled, "/spec/scaleTargetRef/name"),
        },
        // KEDA scales to zero itself; its HPA keeps at least one.
        "minReplicas": count("minReplicaCount", 0).max(1),
        "maxReplicas": count("maxReplicaCount", 100),
        "metrics": [{"type": "External", "external": {
            "metric": {"name": "s0-prometheus"},
            "target": {"type": "AverageValue", "averageValue": "1"},
        }}],
    });
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
            "status": {},
        }),
    };
    for part in ["labels", "annotations"] {
        if let Some(copied) = scaled["metadata"].get(part) {
            object["metadata"][part] = copied.clone();
        }
    }
    object["spec"] = spec;
    if live.as_deref() != Some(&object) {
        round.state.put(&at, object);
    }
}
