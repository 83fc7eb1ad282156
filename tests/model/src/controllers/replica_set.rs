//! The ReplicaSet controller: as many pods as asked for, and their count in the status.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Round;
use super::deployment::{counted, owned_by, owner};
use crate::object::{Resource, is_ready, is_terminating, number, text};
use crate::server;
use crate::state::Place;

pub(super) fn round(round: &mut Round<'_>) {
    let sets: Vec<(Place, Arc<Value>)> = round
        .state
        .all(Resource::of("replicasets"), round.namespace)
        .map(|(place, object)| (place.clone(), object.clone()))
        .collect();
    for (place, set) in sets {
        one(round, &place, &set);
    }
}

fn one(round: &mut Round<'_>, place: &Place, set: &Value) {
    let uid = text(set, "/metadata/uid");
    let mut pods: Vec<(Place, Arc<Value>)> = round
        .state
        .all(Resource::of("pods"), round.namespace)
        .filter(|(_, pod)| owned_by(pod, uid) && !is_terminating(pod))
        .map(|(place, pod)| (place.clone(), pod.clone()))
        .collect();
    let wanted = usize::try_from(number(set, "/spec/replicas")).unwrap_or(0);
    if !is_terminating(set) {
        for _ in pods.len()..wanted {
            let (place, pod) = make_pod(round, set);
            pods.push((place, pod));
        }
        if pods.len() > wanted {
            // Those that do not serve go first, then the newest.
            pods.sort_by_key(|(place, pod)| (is_ready(pod), std::cmp::Reverse(place.name.clone())));
            for (place, _) in pods.drain(..pods.len() - wanted) {
                server::remove(round.state, &place, false, None);
            }
        }
    }
    let ready = pods.iter().filter(|(_, pod)| is_ready(pod)).count();
    let (total, ready) = (i64::try_from(pods.len()).unwrap_or(0), i64::try_from(ready).unwrap_or(0));
    let mut status = json!({"observedGeneration": number(set, "/metadata/generation"), "replicas": total});
    counted(&mut status, "fullyLabeledReplicas", total);
    counted(&mut status, "readyReplicas", ready);
    counted(&mut status, "availableReplicas", ready);
    if set.get("status") != Some(&status)
        && let Some(live) = round.state.get(place).cloned()
    {
        let mut object = (*live).clone();
        object["status"] = status;
        round.state.put(place, object);
    }
}

fn make_pod(round: &mut Round<'_>, set: &Value) -> (Place, Arc<Value>) {
    let name = format!("{}-{}", text(set, "/metadata/name"), round.state.suffix());
    let template = set.pointer("/spec/template").cloned().unwrap_or_default();
    let mut metadata = template.get("metadata").cloned().unwrap_or_else(|| json!({}));
    metadata["name"] = json!(name);
    metadata["namespace"] = json!(round.namespace);
    metadata["uid"] = json!(round.state.identity());
    metadata["creationTimestamp"] = json!(round.state.now.stamp);
    metadata["ownerReferences"] = json!([owner("apps/v1", "ReplicaSet", set)]);
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": template.get("spec").cloned().unwrap_or_default(),
        "status": {"phase": "Pending"},
    });
    let place = Place::of(Resource::of("pods"), round.namespace, &name);
    let pod = round.state.put(&place, pod);
    (place, pod)
}
