//! The EndpointSlice controller: one slice per Service with a selector, with the addresses of its pods.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Round;
use super::deployment::{owned_by, owner};
use crate::object::{Resource, is_ready, is_terminating, label, text};
use crate::state::Place;

pub(super) fn round(round: &mut Round<'_>) {
    let services: Vec<(Place, Arc<Value>)> = round
        .state
        .all(Resource::of("services"), round.namespace)
        .map(|(place, object)| (place.clone(), object.clone()))
        .collect();
    for (_, service) in services {
        if !is_terminating(&service) {
            one(round, &service);
        }
    }
}

fn one(round: &mut Round<'_>, service: &Value) {
    let Some(selector) = service.pointer("/spec/selector").and_then(Value::as_object) else { return };
    let takes = |pod: &Value| selector.iter().all(|(name, value)| label(pod, name) == value.as_str());
    let endpoints: Vec<Value> = round
        .state
        .all(Resource::of("pods"), round.namespace)
        .filter(|(_, pod)| takes(pod) && !text(pod, "/spec/nodeName").is_empty())
        .map(|(place, pod)| {
            let ready = is_ready(pod) && !is_terminating(pod);
            json!({"targetRef": {"kind": "Pod", "name": place.name}, "conditions": {"ready": ready}})
        })
        .collect();
    let uid = text(service, "/metadata/uid");
    let known = round
        .state
        .all(Resource::of("endpointslices"), round.namespace)
        .find(|(_, slice)| owned_by(slice, uid))
        .map(|(place, slice)| (place.clone(), slice.clone()));
    let mut labels = service.pointer("/metadata/labels").cloned().unwrap_or_else(|| json!({}));
    labels["kubernetes.io/service-name"] = json!(text(service, "/metadata/name"));
    labels["endpointslice.kubernetes.io/managed-by"] = json!("endpointslice-controller.k8s.io");
    let (place, mut slice) = match known {
        Some((place, slice)) => (place, (*slice).clone()),
        None => {
            let name = format!("{}-{}", text(service, "/metadata/name"), round.state.suffix());
            let metadata = json!({
                "name": name,
                "namespace": round.namespace,
                "uid": round.state.identity(),
                "creationTimestamp": round.state.now.stamp,
                "ownerReferences": [owner("v1", "Service", service)],
            });
            let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
                "addressType": "IPv4"});
            (Place::of(Resource::of("endpointslices"), round.namespace, &name), slice)
        }
    };
    let before = slice.clone();
    slice["metadata"]["labels"] = labels;
    slice["endpoints"] = json!(endpoints);
    if slice != before {
        round.state.put(&place, slice);
    }
}
