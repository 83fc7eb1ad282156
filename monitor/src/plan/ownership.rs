//! Whose an observed object is (the wire contract, C.5).

use std::collections::BTreeSet;

use crate::identity::{
    ANNOTATION_INPUT_HASH, ANNOTATION_LEADER_TERM, ANNOTATION_LIFECYCLE, ANNOTATION_REGION_GENERATION, LABEL_APP,
    LABEL_PROJECT, LABEL_TYPE,
};
use crate::object::{Kind, ObservedObject};

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

/// The input hash that a Deployment's pods were made from: the template's, which cannot be out of step with them; the
/// metadata's copy when somebody cut it from the template.
#[must_use]
pub fn live_input_hash(deployment: &ObservedObject) -> Option<&str> {
    deployment
        .body
        .pointer("/spec/template/metadata/annotations")
        .and_then(|annotations| annotations.get(ANNOTATION_INPUT_HASH)?.as_str())
        .or_else(|| deployment.annotation(ANNOTATION_INPUT_HASH))
}
