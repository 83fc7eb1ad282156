//! Scheduler and kubelet: a pod is placed at once, becomes ready after a while, and ends a while after it was told to.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Round;
use crate::object::{Resource, is_ready, is_terminating, text};
use crate::state::Place;

/// A part of an image's name: such pods never become ready.
pub(super) const NEVER_READY: &str = "never-ready";

/// When each pod was first seen, and first seen ending.
#[derive(Debug, Default)]
pub(super) struct Timers {
    seen: BTreeMap<String, u128>,
    ending: BTreeMap<String, u128>,
}

impl Timers {
    pub(super) fn round(&mut self, round: &mut Round<'_>) {
        let pods: Vec<(Place, std::sync::Arc<Value>)> = round
            .state
            .all(Resource::of("pods"), round.namespace)
            .map(|(place, pod)| (place.clone(), pod.clone()))
            .collect();
        let now = round.now;
        for (place, pod) in pods {
            let uid = text(&pod, "/metadata/uid").to_owned();
            let born = *self.seen.entry(uid.clone()).or_insert(now);
            if is_terminating(&pod) {
                let told = *self.ending.entry(uid).or_insert(now);
                let end = told + round.settings.stopped_after.as_millis();
                if now >= end {
                    round.state.remove(&place)
                } else {
                    round.look_again_at(end)
                }
                continue;
            }
            let mut object = (*pod).clone();
            if text(&pod, "/spec/nodeName").is_empty() {
                object["spec"]["nodeName"] = json!("model-node");
                object["status"] = status(false);
                round.state.put(&place, object);
                round.look_again_at(born + round.settings.ready_after.as_millis());
                continue;
            }
            let images = pod.pointer("/spec/containers").and_then(Value::as_array);
            let never = images.into_iter().flatten().any(|one| text(one, "/image").contains(NEVER_READY));
            if is_ready(&pod) || never {
                continue;
            }
            let ready_at = born + round.settings.ready_after.as_millis();
            if now >= ready_at {
                object["status"] = status(true);
                round.state.put(&place, object);
            } else {
                round.look_again_at(ready_at);
            }
        }
    }
}

fn status(ready: bool) -> Value {
    let word = if ready { "True" } else { "False" };
    json!({
        "phase": "Running",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": word},
        ],
    })
}
