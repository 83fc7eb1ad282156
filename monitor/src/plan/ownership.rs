//! Whose an observed object is (the wire contract, C.5).

use std::collections::BTreeSet;

use crate::identity::{
    ANNOTATION_INPUT_HASH, ANNOTATION_LEADER_TERM, ANNOTATION_LIFECYCLE, ANNOTATION_REGION_GENERATION, LABEL_APP,
    LABEL_PROJECT, LABEL_TYPE,
};
use crate::object::{Kind, Observed, ObservedObject, ObservedPod, ObservedReplicaSet};

/// Whose an object is, seen from one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Our lifecycle and generation.
    Ours,
    /// Our lifecycle, in an earlier generation of this region.
    StaleGeneration,
    /// A lifecycle that no row has any more.
    StaleLifecycle,
    /// Another row's lifecycle.
    OtherEndpoint,
    /// Our labels, exactly as the contract gives them, and no lifecycle: made before lifecycles were, or stripped.
    Unmarked,
    /// The autoscaler that KEDA made for a ScaledObject. It carries copies of the ScaledObject's labels and annotations, so
    /// it looks like ours, and comes and goes with the ScaledObject.
    OfKeda,
    /// Everything else.
    Foreign,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct Viewpoint<'a> {
    /// The row's lifecycle.
    pub lifecycle_id: &'a str,
    /// This region's generation; `None`: any generation of the lifecycle counts as ours.
    pub region_generation: Option<&'a str>,
    /// Lifecycles of all rows.
    pub known_lifecycles: &'a BTreeSet<String>,
}

impl Viewpoint<'_> {
    /// Whose `object` is.
    #[must_use]
    pub fn owner_of(&self, object: &ObservedObject) -> Owner {
        let Self { lifecycle_id, region_generation, known_lifecycles } = self;
        if object.is_of_keda() {
            return Owner::OfKeda;
        }
        let labelled = [LABEL_PROJECT, LABEL_TYPE].iter().all(|(name, value)| object.label(name) == Some(value));
        let Some(lifecycle) = object.annotation(ANNOTATION_LIFECYCLE) else {
            // Without a lifecycle the labels are all there is to go by, so they must all fit. An object that only shares
            // our project labels may be anybody's.
            let exact = labelled && object.label(LABEL_APP) == Some(object.key.name.as_str());
            return if exact { Owner::Unmarked } else { Owner::Foreign };
        };
        if lifecycle != *lifecycle_id {
            return if known_lifecycles.contains(lifecycle) {
                Owner::OtherEndpoint
            } else if labelled {
                Owner::StaleLifecycle
            } else {
                // Handing off means deleting, and that needs our labels too.
                Owner::Foreign
            };
        }
        match (region_generation, object.annotation(ANNOTATION_REGION_GENERATION)) {
            (Some(ours), Some(its)) if *ours != its => Owner::StaleGeneration,
            _ => Owner::Ours,
        }
    }
}

/// Whether this program rendered the object, as opposed to the original: only then is everything in it known to be ours.
#[must_use]
pub fn made_by_us(object: &ObservedObject) -> bool {
    match object.key.kind {
        Kind::Deployment => live_input_hash(object).is_some(),
        // The original knows no terms.
        _ => object.annotation(ANNOTATION_LEADER_TERM).is_some(),
    }
}

/// The input hash that a Deployment's template stands for: what we wrote down on the metadata, which also tells of a
/// template that was kept; the template's own when somebody cut that.
#[must_use]
pub fn live_input_hash(deployment: &ObservedObject) -> Option<&str> {
    deployment.annotation(ANNOTATION_INPUT_HASH).or_else(|| template_hash(deployment))
}

/// The hash that a Deployment's template carries, and so do its pods: absent on the original's, an earlier one on a template
/// that was kept.
fn template_hash(deployment: &ObservedObject) -> Option<&str> {
    template_annotation(deployment, ANNOTATION_INPUT_HASH)
}

fn template_annotation<'a>(deployment: &'a ObservedObject, name: &str) -> Option<&'a str> {
    deployment.body.pointer("/spec/template/metadata/annotations")?.get(name)?.as_str()
}

/// The ReplicaSet of a Deployment's newest template, as its controller numbers them.
#[must_use]
pub fn newest<'a>(observed: &'a Observed, deployment: &ObservedObject) -> Option<&'a ObservedReplicaSet> {
    let revision: u64 = deployment.annotation("deployment.kubernetes.io/revision")?.parse().ok()?;
    observed.replica_sets.iter().find(|set| set.app == deployment.key.name && set.revision == revision)
}

/// Whether the controller has made the ReplicaSet of the template as it is now.
#[must_use]
pub fn is_of_the_template(set: &ObservedReplicaSet, deployment: &ObservedObject) -> bool {
    set.input_hash.as_deref() == template_hash(deployment)
}

/// The input hash that a pod stands for: what is written down of its Deployment's template, if it is of that template; else
/// its own.
#[must_use]
pub fn pod_input_hash<'a>(
    observed: &'a Observed,
    deployment: Option<&'a ObservedObject>,
    pod: &'a ObservedPod,
) -> Option<&'a str> {
    let own = pod.input_hash.as_deref();
    let Some(deployment) = deployment.filter(|deployment| template_hash(deployment) == own) else { return own };
    // Pods without a hash are told apart by their ReplicaSet: the original changes images of templates that have none.
    let of_another = newest(observed, deployment)
        .is_some_and(|newest| own.is_none() && newest.template.is_some() && pod.template != newest.template);
    if of_another { own } else { live_input_hash(deployment) }
}

/// Pods under a Deployment's name that serve or may come to serve.
pub fn serving_pods<'a>(observed: &'a Observed, app: &'a str) -> impl Iterator<Item = &'a ObservedPod> {
    observed.pods.iter().filter(move |pod| pod.app == app && !pod.terminating && !pod.ended)
}

/// Whether a pod belongs to a lifecycle: it says so; or it is of a ReplicaSet of a Deployment of that lifecycle, and older
/// than lifecycles are.
#[must_use]
pub fn is_pod_of(
    observed: &Observed,
    deployment: Option<&ObservedObject>,
    pod: &ObservedPod,
    lifecycle_id: &str,
) -> bool {
    match pod.lifecycle_id.as_deref() {
        Some(lifecycle) => lifecycle == lifecycle_id,
        // Not counting these would take a serving endpoint off the routers the moment its row gets a lifecycle.
        None => deployment.is_some_and(|deployment| {
            template_annotation(deployment, ANNOTATION_LIFECYCLE).is_none()
                || observed
                    .replica_sets
                    .iter()
                    .any(|set| set.app == deployment.key.name && set.template.is_some() && set.template == pod.template)
        }),
    }
}
