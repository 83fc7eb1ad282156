//! The labels and annotations that say whose an object is (the wire contract, C.5), and under which authority a pass acts.

use std::collections::BTreeMap;

/// Label `project`, on everything of ours.
pub const LABEL_PROJECT: (&str, &str) = ("project", "gco");
/// Label `gco.io/type`, on everything of ours.
pub const LABEL_TYPE: (&str, &str) = ("gco.io/type", "inference");
/// Selector of all our objects, for watches.
pub const SELECTOR: &str = "project=gco,gco.io/type=inference";

/// Annotation: the row's lifecycle.
pub const ANNOTATION_LIFECYCLE: &str = "gco.io/lifecycle-id";
/// Annotation: the region's generation.
pub const ANNOTATION_REGION_GENERATION: &str = "gco.io/region-generation";
/// Annotation: the leader's random epoch. Object metadata only, never a pod template (D-8).
pub const ANNOTATION_LEADER_EPOCH: &str = "gco.io/leader-epoch";
/// Annotation (ours): the leader's ordered term. Object metadata only.
pub const ANNOTATION_LEADER_TERM: &str = "gco.io/leader-term";
/// Annotation (ours), on Deployments and their pod templates: hash of the row's inputs that the template was rendered from.
pub const ANNOTATION_INPUT_HASH: &str = "gco.io/input-hash";
/// Annotation (ours), on Deployments: version of the renderer that wrote the template.
pub const ANNOTATION_RENDERER: &str = "gco.io/renderer";

/// What [`ANNOTATION_RENDERER`] says of a pod template that the original wrote and that we keep.
pub const RENDERER_ORIGINAL: &str = "original";
/// Annotation (ours), on Deployments: digest of the row's spec as it was written down when the template was last asked for.
/// A restart under an unchanged digest is one that no edit asked for.
pub const ANNOTATION_SPEC_DIGEST: &str = "gco.io/spec-digest";
/// Annotation (ours), on Deployments: the row's last refresh that this object has taken part in.
pub const ANNOTATION_REFRESHED: &str = "gco.io/refreshed";
/// Annotation (ours), on Deployments: why the pods were last restarted. `edit`, or the time and a word for a restart that no
/// edit asked for (`2026-11-29T12:00:00+00:00 refresh`): these are counted by the limits on such restarts.
pub const ANNOTATION_RESTART_CAUSE: &str = "gco.io/restart-cause";

/// Under which leadership a pass writes. Plain data: the right to write is `leadership::Claim`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderMark {
    /// Random, 64 hexadecimal digits.
    pub epoch: String,
    /// Ordered: grows with every take-over.
    pub term: u64,
}

/// Whose objects a pass acts on: what the row said when it was last read strongly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowIdentity {
    /// `lifecycle_id`
    pub lifecycle_id: String,
    /// This region's generation.
    pub region_generation: String,
}

/// Label `app`: the name of the Deployment that an object or pod belongs to.
pub const LABEL_APP: &str = "app";

/// The labels of everything of ours that belongs to the Deployment `app`.
#[must_use]
pub fn labels(app: &str) -> BTreeMap<String, String> {
    [(LABEL_APP, app), LABEL_PROJECT, LABEL_TYPE].map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

impl RowIdentity {
    /// The annotations that say whose an object is, without leader marks: those belong on metadata only, and only the
    /// plan knows them.
    #[must_use]
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let Self { lifecycle_id, region_generation } = self;
        [(ANNOTATION_LIFECYCLE, lifecycle_id), (ANNOTATION_REGION_GENERATION, region_generation)]
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .into()
    }
}

impl LeaderMark {
    /// The annotations that every write of this leader carries.
    #[must_use]
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let Self { epoch, term } = self;
        [(ANNOTATION_LEADER_EPOCH, epoch.clone()), (ANNOTATION_LEADER_TERM, term.to_string())]
            .map(|(name, value)| (name.to_owned(), value))
            .into()
    }
}
