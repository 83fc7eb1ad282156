//! What stands in the cluster for an endpoint: its Deployment, pods and rollout.

use gco_store::problem::bounded;
use gco_store::spec::Spec;
use gco_store::status::{ObservedSpec, Rollout};
use serde_json::Value;

use crate::identity::{ANNOTATION_RENDERER, RENDERER_ORIGINAL};
use crate::object::{Kind, ObjectKey, Observed, ObservedObject, ObservedPod, ObservedReplicaSet};
use crate::plan::ownership::{
    Owner, Viewpoint, is_of_the_template, is_pod_of, live_input_hash, newest, pod_input_hash,
};
use crate::plan::{body, differences_from_original};
use crate::render::RENDERER_VERSION;

/// What stands under one Deployment name.
pub(super) struct Standing<'a> {
    observed: &'a Observed,
    /// The Deployment, if it is of our lifecycle or at least carries our labels exactly.
    pub(super) deployment: Option<&'a ObservedObject>,
    /// Pods of the endpoint under this name.
    pub(super) pods: Vec<&'a ObservedPod>,
    newest: Option<&'a ObservedReplicaSet>,
}

/// A template that is kept though the current renderer would write another.
pub(super) struct Kept {
    /// CamelCase.
    pub(super) reason: &'static str,
    /// For people; names fields, never values.
    pub(super) message: String,
}

/// Longest message about a kept template, in characters.
const LONGEST_KEPT: usize = 300;

/// How a rollout stands.
pub(super) struct Progress {
    /// Counts, when it is under way or stuck.
    pub(super) rollout: Option<Rollout>,
    /// The controller's words when it is stuck.
    pub(super) message: String,
}

impl<'a> Standing<'a> {
    pub(super) fn of(observed: &'a Observed, name: &str, lifecycle_id: &str) -> Self {
        let Observed { objects: _, pods, replica_sets: _, missing_kinds: _ } = observed;
        let key = ObjectKey { kind: Kind::Deployment, name: name.to_owned() };
        let deployment = Self::ours(observed, &key, lifecycle_id);
        let pods =
            pods.iter().filter(|pod| pod.app == name && is_pod_of(observed, deployment, pod, lifecycle_id)).collect();
        let newest = deployment.and_then(|deployment| newest(observed, deployment));
        Self { observed, deployment, pods, newest }
    }

    /// An object of our lifecycle, or one that at least carries our labels exactly.
    pub(super) fn ours(observed: &'a Observed, key: &ObjectKey, lifecycle_id: &str) -> Option<&'a ObservedObject> {
        let known = std::collections::BTreeSet::new();
        let viewpoint = Viewpoint { lifecycle_id, region_generation: None, known_lifecycles: &known };
        let ours = |object: &&ObservedObject| matches!(viewpoint.owner_of(object), Owner::Ours | Owner::Unmarked);
        observed.objects.get(key).filter(ours)
    }

    /// Pods that serve.
    pub(super) fn ready(&self) -> u32 {
        count(self.pods.iter().filter(|pod| pod.ready).count())
    }

    /// Pods of the newest template.
    pub(super) fn new_pods(&self) -> Vec<&'a ObservedPod> {
        let template = self.newest.and_then(|newest| newest.template.as_ref());
        self.pods.iter().copied().filter(|pod| template.is_none() || pod.template.as_ref() == template).collect()
    }

    /// Replicas that the Deployment asks for now.
    pub(super) fn live_replicas(&self) -> Option<u32> {
        let replicas = body::replicas(&self.deployment?.body);
        Some(u32::try_from(replicas).unwrap_or(u32::MAX))
    }

    /// Whether pods exist or are about to: what a stop waits for. A pod that ended for good (evicted, for example) stays
    /// as an object without being a replica of anything.
    pub(super) fn holds_pods(&self) -> bool {
        let replicas = |deployment: &ObservedObject| {
            body::replicas(&deployment.body) > 0 || status_count(deployment, "replicas") > 0
        };
        match self.deployment {
            Some(deployment) => replicas(deployment) || self.pods.iter().any(|pod| pod.ready || pod.terminating),
            None => !self.pods.is_empty(),
        }
    }

    /// Whether pods run a template that the current renderer did not write, and where the original's says something else
    /// than the row.
    pub(super) fn kept_template(&self, spec: &Spec, region: &str) -> Option<Kept> {
        let deployment = self.deployment?;
        let template = deployment.body.pointer("/spec/template")?;
        let refresh = format!("'gco inference refresh' brings {} to the current one", deployment.key.name);
        match deployment.annotation(ANNOTATION_RENDERER)? {
            RENDERER_ORIGINAL => {
                let image = spec.image_for(region);
                let differing = differences_from_original(&deployment.key.name, image, spec, template);
                let fields: Vec<&str> =
                    differing.iter().map(|one| one.field.trim_start_matches("spec.template.")).collect();
                let message = if fields.is_empty() {
                    format!("pods run the template of the earlier control plane; {refresh}")
                } else {
                    format!(
                        "pods run the template of the earlier control plane, which never applied what the row says of {}; \
                         {refresh}",
                        fields.join(", ")
                    )
                };
                Some(Kept { reason: "Adopted", message: bounded(&message, LONGEST_KEPT) })
            }
            other if other != RENDERER_VERSION.to_string() => {
                let message = format!("pods run a template of another version of this program; {refresh}");
                Some(Kept { reason: "OtherRenderer", message })
            }
            _ => None,
        }
    }

    /// Hashes as seen, applied and serving.
    pub(super) fn observed_spec(&self, seen: Option<&str>) -> Option<ObservedSpec> {
        let ready = self.pods.iter().filter(|pod| pod.ready);
        let mut hashes = ready.map(|pod| pod_input_hash(self.observed, self.deployment, pod));
        let serving = hashes.next().flatten().filter(|first| hashes.all(|hash| hash == Some(first)));
        let spec = ObservedSpec {
            seen: seen.map(str::to_owned),
            applied: self.deployment.and_then(live_input_hash).map(str::to_owned),
            serving: serving.map(str::to_owned),
        };
        (spec != ObservedSpec::default()).then_some(spec)
    }

    /// How the rollout of the newest template stands; `None` without a Deployment.
    pub(super) fn progress(&self) -> Option<Progress> {
        let deployment = self.deployment?;
        let wanted = body::replicas(&deployment.body);
        let updated = status_count(deployment, "updatedReplicas");
        let total = status_count(deployment, "replicas");
        let failed = condition(deployment, "ReplicaFailure").filter(|condition| is(condition, "status", "True"));
        let progressing = condition(deployment, "Progressing");
        let expired = progressing.filter(|condition| is(condition, "status", "False"));
        // Words of a refused pod say more than those of a deadline that passed because of it.
        let stuck = failed.or(expired);
        let started = progressing.is_some_and(|condition| {
            is(condition, "status", "True") && !is(condition, "reason", "NewReplicaSetAvailable")
        });
        let under_way = wanted > 0 && (started || updated < wanted || updated < total || self.is_unseen(deployment));
        let text =
            |condition: &Value, field: &str| condition.get(field).and_then(Value::as_str).unwrap_or("").to_owned();
        let rollout = (under_way || stuck.is_some()).then(|| Rollout {
            updated: narrow(updated),
            // The Deployment's own count mixes old and new pods.
            updated_ready: self.newest.map_or(0, |newest| newest.ready),
            total: narrow(total),
            stuck: stuck.map(|condition| text(condition, "reason")).filter(|reason| !reason.is_empty()),
        });
        Some(Progress { rollout, message: stuck.map(|condition| text(condition, "message")).unwrap_or_default() })
    }

    /// Whether the controller has not seen the newest template yet, so that its counts are still about the one before.
    /// A stamp also bumps the generation; that alone is no rollout, hence the look at the hash.
    fn is_unseen(&self, deployment: &ObservedObject) -> bool {
        let generation = deployment.body.pointer("/metadata/generation").and_then(Value::as_u64);
        let seen = deployment.body.pointer("/status/observedGeneration").and_then(Value::as_u64);
        generation > seen && self.newest.is_none_or(|newest| !is_of_the_template(newest, deployment))
    }
}

pub(super) fn status_count(deployment: &ObservedObject, field: &str) -> u64 {
    // Zero counters are left out.
    deployment.body.get("status").and_then(|status| status.get(field)).and_then(Value::as_u64).unwrap_or(0)
}

/// A condition that an object's controller wrote.
pub(super) fn condition<'a>(deployment: &'a ObservedObject, kind: &str) -> Option<&'a Value> {
    let conditions = deployment.body.pointer("/status/conditions")?.as_array()?;
    conditions.iter().find(|condition| is(condition, "type", kind))
}

fn is(condition: &Value, field: &str, text: &str) -> bool {
    condition.get(field).and_then(Value::as_str) == Some(text)
}

pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
