//! The HPA controller: keeps a Deployment's count within the bounds, and follows a load that a suite sets.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Round;
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
