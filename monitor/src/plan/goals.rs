//! The three things a plan can be for.

use std::collections::BTreeSet;

use gco_store::problem::bounded;
use serde_json::Value;

use super::ownership::{Owner, Viewpoint, live_input_hash, made_by_us};
use super::{Obstacle, Plan, PlanInput, Precondition, Step, body, compare, inventory, obstacle};
use crate::identity::{ANNOTATION_LEADER_TERM, ANNOTATION_LIFECYCLE, ANNOTATION_RENDERER, RowIdentity};
use crate::intent::CleanUp;
use crate::object::{DesiredObject, DesiredSet, Kind, ObjectKey, ObservedObject};
use crate::render::RENDERER_VERSION;

/// Longest reason, in characters; it goes into logs and plans for people.
const LONGEST_REASON: usize = 300;
/// Differences that a reason names; the rest is counted.
const NAMED_DIFFERENCES: usize = 6;
/// Characters of a token that tell two apart for a person.
const SHOWN_TOKEN: usize = 8;

/// What a plan is put together from.
struct Draft<'a> {
    input: &'a PlanInput<'a>,
    viewpoint: Viewpoint<'a>,
    /// Names that belong to the endpoint. Whatever else is handed in is not looked at: a fault in whoever collects the
    /// view must not let one endpoint's plan reach another's objects.
    names: BTreeSet<ObjectKey>,
    stale: Vec<Step>,
    steps: Vec<Step>,
    obstacles: Vec<Obstacle>,
    /// Objects of ours that this plan leaves alone whole, stamps included.
    left_alone: BTreeSet<ObjectKey>,
}

impl<'a> Draft<'a> {
    fn new(input: &'a PlanInput<'a>, lifecycle_id: &'a str, region_generation: Option<&'a str>) -> Self {
        let viewpoint = Viewpoint { lifecycle_id, region_generation, known_lifecycles: input.known_lifecycles };
        Self {
            input,
            viewpoint,
            names: inventory(input.name).into_iter().collect(),
            stale: Vec::new(),
            steps: Vec::new(),
            obstacles: Vec::new(),
            left_alone: BTreeSet::new(),
        }
    }

    /// What is there of the endpoint's names.
    fn objects(&self) -> Vec<&'a ObservedObject> {
        self.input.observed.objects.values().filter(|object| self.names.contains(&object.key)).collect()
    }

    fn obstruct(&mut self, key: &ObjectKey, reason: &'static str) {
        self.obstacles.push(Obstacle { key: key.clone(), reason });
    }

    /// Hands a stale object off: it is deleted, and what replaces it is made once it is gone.
    fn hand_off(&mut self, object: &ObservedObject, owner: Owner) {
        if object.terminating {
            return self.obstruct(&object.key, obstacle::TERMINATING);
        }
        if self.input.table_away {
            return self.obstruct(&object.key, obstacle::TABLE_AWAY);
        }
        let shown = |token: Option<&str>| token.unwrap_or_default().chars().take(SHOWN_TOKEN).collect::<String>();
        let reason = match owner {
            Owner::StaleGeneration => "stale: belongs to an earlier generation of this region".to_owned(),
            _ => format!(
                "stale: belongs to lifecycle {}, which no row has",
                shown(object.annotation(ANNOTATION_LIFECYCLE))
            ),
        };
        self.stale.push(delete(object, reason));
    }

    /// A replacement, unless the server already answered the same one with unchanged content.
    fn replace(&mut self, live: &ObservedObject, body: Value, reason: String, restarts: bool, scales_down: bool) {
        if self.input.futile.get(&live.key) == Some(&body::digest(&body)) {
            return self.obstruct(&live.key, obstacle::WRITE_WITHOUT_EFFECT);
        }
        self.steps.push(Step::Replace {
            key: live.key.clone(),
            of: precondition(live),
            body,
            reason,
            restarts,
            scales_down,
        });
    }

    /// The plan: stamps first, if anything is written at all.
    fn finish(self) -> Plan {
        let objects = self.objects();
        let Self { input, viewpoint, names: _, stale, steps, obstacles, left_alone } = self;
        let mut all = stale;
        all.extend(steps);
        let writes = |step: &&Step| matches!(step, Step::Create { .. } | Step::Replace { .. } | Step::Delete { .. });
        if !all.iter().any(|step| writes(&step)) {
            return Plan { steps: all, obstacles };
        }
        let written: BTreeSet<&ObjectKey> = all.iter().filter_map(Step::key).collect();
        let term = input.leader.term.to_string();
        let stamps = objects.into_iter().filter(|object| {
            viewpoint.owner_of(object) == Owner::Ours
                && !object.terminating
                && !written.contains(&object.key)
                && !left_alone.contains(&object.key)
                && object.annotation(ANNOTATION_LEADER_TERM) != Some(term.as_str())
        });
        let mut steps: Vec<Step> = stamps.map(|object| stamp(object, input)).collect();
        steps.extend(all);
        Plan { steps, obstacles }
    }
}

impl Step {
    /// The object that the step is about, if it is about one.
    #[must_use]
    pub fn key(&self) -> Option<&ObjectKey> {
        match self {
            Self::Create { key, .. }
            | Self::Replace { key, .. }
            | Self::Stamp { key, .. }
            | Self::Delete { key, .. } => Some(key),
            Self::ProveAbsence => None,
        }
    }
}

fn precondition(object: &ObservedObject) -> Precondition {
    Precondition { uid: object.uid.clone(), resource_version: object.resource_version.clone() }
}

fn delete(object: &ObservedObject, reason: String) -> Step {
    Step::Delete { key: object.key.clone(), of: precondition(object), reason }
}

fn stamp(object: &ObservedObject, input: &PlanInput<'_>) -> Step {
    Step::Stamp {
        key: object.key.clone(),
        of: precondition(object),
        annotations: input.leader.annotations(),
        reason: format!("first act of term {} on this endpoint", input.leader.term),
    }
}

/// Exactly the desired objects.
pub(super) fn hold<'a>(input: &'a PlanInput<'a>, identity: &'a RowIdentity, desired: &DesiredSet) -> Plan {
    let mut draft = Draft::new(input, &identity.lifecycle_id, Some(&identity.region_generation));
    let wanted: BTreeSet<&ObjectKey> = desired.objects.iter().map(|object| &object.key).collect();

    // Objects that are not wanted: stale ones go, others' are none of our business here.
    for object in draft.objects().into_iter().filter(|object| !wanted.contains(&object.key)) {
        let owner = draft.viewpoint.owner_of(object);
        if matches!(owner, Owner::StaleLifecycle | Owner::StaleGeneration) && !object.terminating {
            draft.hand_off(object, owner);
        }
    }
    let originals = names_of_originals(&draft, &wanted);
    for object in &desired.objects {
        hold_one(&mut draft, object, &originals);
    }
    if draft.obstacles.is_empty() && draft.stale.is_empty() && draft.steps.is_empty() {
        prune(&mut draft, desired, &wanted);
    }
    draft.finish()
}

/// Names whose Deployment the original made and pods still run under: Deployment and Service are left alone together,
/// because the Service targets the port in the way that this Deployment names it.
///
/// Where no pod exists, nothing restarts by being taken over, so an original's Deployment that was stopped is ours at the
/// next start.
fn names_of_originals(draft: &Draft<'_>, wanted: &BTreeSet<&ObjectKey>) -> BTreeSet<String> {
    let observed = draft.input.observed;
    let originals = draft.objects().into_iter().filter(|object| {
        object.key.kind == Kind::Deployment
            && wanted.contains(&object.key)
            && matches!(draft.viewpoint.owner_of(object), Owner::Ours | Owner::Unmarked)
            && !made_by_us(object)
            && (body::replicas(&object.body) > 0 || observed.pods.iter().any(|pod| pod.app == object.key.name))
    });
    originals.map(|object| object.key.name.clone()).collect()
}

fn hold_one(draft: &mut Draft<'_>, desired: &DesiredObject, originals: &BTreeSet<String>) {
    let DesiredObject { key, body: rendered, input_hash } = desired;
    let of_original = originals.contains(&key.name);
    let Some(live) = draft.input.observed.objects.get(key) else {
        if !of_original {
            let body = body::created(rendered, draft.input.leader);
            draft.steps.push(Step::Create { key: key.clone(), body, reason: "absent".to_owned() });
        }
        return;
    };
    let owner = draft.viewpoint.owner_of(live);
    match owner {
        Owner::Foreign => return draft.obstruct(key, obstacle::FOREIGN),
        Owner::OtherEndpoint => return draft.obstruct(key, obstacle::OTHER_ENDPOINT),
        Owner::StaleLifecycle | Owner::StaleGeneration => return draft.hand_off(live, owner),
        Owner::Ours | Owner::Unmarked => {}
    }
    if live.terminating {
        // A write to a dying object is accepted and lost.
        return draft.obstruct(key, obstacle::TERMINATING);
    }
    if of_original {
        draft.left_alone.insert(key.clone());
        if key.kind == Kind::Deployment {
            draft.obstruct(key, obstacle::ADOPTION_NOT_SUPPORTED);
        }
        return;
    }
    if owner == Owner::Unmarked && !made_by_us(live) && key.kind != Kind::Deployment {
        // A Service without lifecycle and without our term: who made it cannot be told.
        draft.left_alone.insert(key.clone());
        return draft.obstruct(key, obstacle::ADOPTION_NOT_SUPPORTED);
    }
    let adoption = owner == Owner::Unmarked || (key.kind == Kind::Deployment && !made_by_us(live));
    if adoption && draft.input.table_away {
        draft.left_alone.insert(key.clone());
        return draft.obstruct(key, obstacle::TABLE_AWAY);
    }
    let mut content = with_template_kept(rendered, input_hash.as_deref(), live);
    let live_replicas = body::replicas(&live.body);
    let is_deployment = key.kind == Kind::Deployment;
    if is_deployment && draft.input.table_away && body::replicas(&content) < live_replicas {
        body::set_replicas(&mut content, live_replicas);
    }
    let differences = compare::differences(key.kind, &content, &live.body);
    if differences.is_empty() {
        return;
    }
    let restarts = is_deployment && live_replicas > 0 && differences.iter().any(compare::Difference::is_of_template);
    let scales_down = is_deployment && body::replicas(&content) < live_replicas;
    let body = body::replaced(&content, live, draft.input.leader);
    draft.replace(live, body, reason(&differences), restarts, scales_down);
}

/// What is rendered, with the live pod template where only the renderer changed: an upgrade (or a downgrade) of this
/// program never restarts a pod. The annotation then goes on naming the renderer that wrote the template; with ours, the
/// next pass would take the old template for drift and restore it.
fn with_template_kept(rendered: &Value, input_hash: Option<&str>, live: &ObservedObject) -> Value {
    let mut content = rendered.clone();
    let ours = RENDERER_VERSION.to_string();
    let live_renderer = live.annotation(ANNOTATION_RENDERER);
    if input_hash.is_none() || live_input_hash(live) != input_hash || live_renderer == Some(ours.as_str()) {
        return content;
    }
    if let Some(template) = live.body.pointer("/spec/template")
        && let Some(place) = content.pointer_mut("/spec/template")
    {
        *place = template.clone();
    }
    if let Some(annotations) = content.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        match live_renderer {
            Some(renderer) => annotations.insert(ANNOTATION_RENDERER.to_owned(), Value::from(renderer)),
            None => annotations.remove(ANNOTATION_RENDERER),
        };
    }
    content
}

fn reason(differences: &[compare::Difference]) -> String {
    let mut text = differences.iter().take(NAMED_DIFFERENCES).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if differences.len() > NAMED_DIFFERENCES {
        text.push_str(&format!("; and {} more", differences.len() - NAMED_DIFFERENCES));
    }
    bounded(&text, LONGEST_REASON)
}

/// Removes what is ours and no longer wanted, once everything that is wanted is there and its pods serve (D-13): until then
/// the old objects may be what answers requests.
fn prune(draft: &mut Draft<'_>, desired: &DesiredSet, wanted: &BTreeSet<&ObjectKey>) {
    let observed = draft.input.observed;
    let serves = |object: &DesiredObject| {
        object.key.kind != Kind::Deployment
            || body::replicas(&object.body) == 0
            || observed
                .pods
                .iter()
                .any(|pod| pod.app == object.key.name && pod.ready && pod.input_hash == object.input_hash)
    };
    if draft.input.table_away || !desired.objects.iter().all(serves) {
        return;
    }
    let unwanted = draft.objects().into_iter().filter(|object| {
        Kind::WATCHED.contains(&object.key.kind)
            && !wanted.contains(&object.key)
            && !object.terminating
            && draft.viewpoint.owner_of(object) == Owner::Ours
    });
    let deletes: Vec<Step> =
        unwanted.map(|object| delete(object, "not part of what the row asks for any more".to_owned())).collect();
    draft.steps.extend(deletes);
}

/// No pods: every Deployment of the endpoint, canary and roles included (D-14), whoever made it.
pub(super) fn stop<'a>(input: &'a PlanInput<'a>, identity: &'a RowIdentity) -> Plan {
    let mut draft = Draft::new(input, &identity.lifecycle_id, Some(&identity.region_generation));
    for object in draft.objects() {
        let owner = draft.viewpoint.owner_of(object);
        match owner {
            Owner::StaleLifecycle | Owner::StaleGeneration => draft.hand_off(object, owner),
            Owner::Ours if object.key.kind == Kind::Deployment => stop_one(&mut draft, object),
            Owner::Unmarked if object.key.kind == Kind::Deployment && body::replicas(&object.body) > 0 => {
                draft.obstruct(&object.key, obstacle::ADOPTION_NOT_SUPPORTED);
            }
            Owner::Ours | Owner::Unmarked | Owner::OtherEndpoint | Owner::Foreign => {}
        }
    }
    draft.finish()
}

fn stop_one(draft: &mut Draft<'_>, live: &ObservedObject) {
    let replicas = body::replicas(&live.body);
    if live.terminating {
        return draft.obstruct(&live.key, obstacle::TERMINATING);
    }
    // A stop scales down, which is not done on the word of a table that cannot be read.
    if replicas == 0 || draft.input.table_away {
        return;
    }
    // The live body, not a rendered one: a stop must work for any spec, and must not roll what it stops.
    let body = body::replaced(&body::rescaled(live, 0), live, draft.input.leader);
    draft.replace(live, body, format!("spec.replicas: stopped, {replicas} to 0"), false, true);
}

/// Nothing. One object that is not ours blocks only itself (D-22).
pub(super) fn remove<'a>(input: &'a PlanInput<'a>, clean_up: &'a CleanUp, region_generation: Option<&'a str>) -> Plan {
    // Any generation of the lifecycle: the row (or the region's part of it) is going, so all of it goes.
    let _ = region_generation;
    let lifecycle_id = match clean_up {
        CleanUp::Deleted { lifecycle_id, deletion_generation: _ } => lifecycle_id,
        CleanUp::RegionRemoved(RowIdentity { lifecycle_id, region_generation: _ }) => lifecycle_id,
    };
    let mut draft = Draft::new(input, lifecycle_id, None);
    if input.table_away {
        return draft.finish();
    }
    let mut left = 0_usize;
    for object in draft.objects() {
        match draft.viewpoint.owner_of(object) {
            Owner::Foreign => draft.obstruct(&object.key, obstacle::FOREIGN),
            Owner::OtherEndpoint => draft.obstruct(&object.key, obstacle::OTHER_ENDPOINT),
            Owner::Ours | Owner::StaleGeneration | Owner::StaleLifecycle | Owner::Unmarked => {
                left += 1;
                if object.terminating {
                    draft.obstruct(&object.key, obstacle::TERMINATING);
                } else {
                    draft.steps.push(delete(object, removal_reason(clean_up).to_owned()));
                }
            }
        }
    }
    // A pod outlives its Deployment; its last event wakes us. Counting absence before it would only count to none.
    let pods = input.observed.pods.iter().any(|pod| pod.lifecycle_id.as_deref() == Some(lifecycle_id));
    if left == 0 && !pods {
        draft.steps.push(Step::ProveAbsence);
    }
    draft.finish()
}

fn removal_reason(clean_up: &CleanUp) -> &'static str {
    match clean_up {
        CleanUp::Deleted { .. } => "the endpoint is deleted",
        CleanUp::RegionRemoved(_) => "the endpoint is no longer asked for in this region",
    }
}
