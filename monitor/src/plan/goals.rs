//! The three things a plan can be for.

use std::collections::{BTreeMap, BTreeSet};

use gco_store::problem::bounded;
use serde_json::Value;

use super::ownership::{Owner, Viewpoint, made_by_us, pod_input_hash};
use super::template::{self, Fate, Question};
use super::{Obstacle, Plan, PlanInput, Precondition, Step, Upkeep, autoscalers, body, compare, inventory, obstacle};
use crate::identity::{ANNOTATION_LEADER_TERM, ANNOTATION_LIFECYCLE, ANNOTATION_RESTART_CAUSE, RowIdentity};
use crate::intent::CleanUp;
use crate::object::{
    DesiredObject, DesiredSet, Kind, ObjectKey, Observed, ObservedObject, ObservedPod, ObservedPort, model_port,
};
use crate::render::canary_name;

/// Longest reason, in characters; it goes into logs and plans for people.
const LONGEST_REASON: usize = 300;
/// Differences that a reason names; the rest is counted.
const NAMED_DIFFERENCES: usize = 6;
/// Characters of a token that tell two apart for a person.
const SHOWN_TOKEN: usize = 8;

/// What a plan is put together from.
pub(super) struct Draft<'a> {
    pub(super) input: &'a PlanInput<'a>,
    pub(super) viewpoint: Viewpoint<'a>,
    /// Names that belong to the endpoint. Whatever else is handed in is not looked at: a fault in whoever collects the
    /// view must not let one endpoint's plan reach another's objects.
    names: BTreeSet<ObjectKey>,
    stale: Vec<Step>,
    pub(super) steps: Vec<Step>,
    obstacles: Vec<Obstacle>,
    /// Objects of ours that this plan leaves alone whole, stamps included.
    pub(super) left_alone: BTreeSet<ObjectKey>,
    /// The model's port in each Deployment's template, as it will be after this plan.
    ports: BTreeMap<String, Option<ObservedPort>>,
}

/// What a replacement does besides its content.
#[derive(Clone, Copy, Debug, Default)]
struct Effects {
    restarts: bool,
    unasked: bool,
    scales_down: bool,
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
            ports: BTreeMap::new(),
        }
    }

    /// What is there of the endpoint's names.
    pub(super) fn objects(&self) -> Vec<&'a ObservedObject> {
        self.input.observed.objects.values().filter(|object| self.names.contains(&object.key)).collect()
    }

    pub(super) fn obstruct(&mut self, key: &ObjectKey, reason: &'static str) {
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

    fn is_ours(&self, object: &ObservedObject) -> bool {
        matches!(self.viewpoint.owner_of(object), Owner::Ours | Owner::Unmarked) && !object.terminating
    }

    /// Notes the port of a Deployment's template as it will be.
    fn note_port(&mut self, name: &str, content: &Value) {
        self.ports.insert(name.to_owned(), content.pointer("/spec/template/spec").and_then(model_port));
    }

    /// Makes a Service target what the pods behind it have.
    fn follow_pods(&self, name: &str, content: &mut Value, live: Option<&ObservedObject>) {
        let observed = self.input.observed;
        let template = match self.ports.get(name) {
            Some(port) => port.clone(),
            // A Deployment that is not held by this plan: as it is.
            None => {
                let key = ObjectKey { kind: Kind::Deployment, name: name.to_owned() };
                observed
                    .objects
                    .get(&key)
                    .and_then(|live| live.body.pointer("/spec/template/spec").and_then(model_port))
            }
        };
        if let Some(number) = template::number_to_target(observed, name, template.as_ref(), live)
            && let Some(target) = content.pointer_mut("/spec/ports/0/targetPort")
        {
            *target = Value::from(number);
        }
    }

    /// Replaces an object that restarts nothing, if it differs from its content.
    fn bring_to(&mut self, live: &ObservedObject, content: &Value) {
        let differences = compare::differences(live.key.kind, content, &live.body);
        if !differences.is_empty() {
            let body = body::replaced(content, live, self.input.leader);
            self.replace(live, body, reason(&differences), Effects::default());
        }
    }

    /// A replacement, unless the server already answered the same one with unchanged content.
    fn replace(&mut self, live: &ObservedObject, body: Value, reason: String, effects: Effects) {
        let Effects { restarts, unasked, scales_down } = effects;
        if self.input.futile.get(&live.key) == Some(&body::digest(&body)) {
            return self.obstruct(&live.key, obstacle::WRITE_WITHOUT_EFFECT);
        }
        self.steps.push(Step::Replace {
            key: live.key.clone(),
            of: precondition(live),
            body,
            reason,
            restarts,
            unasked,
            scales_down,
        });
    }

    /// The plan: stamps first, if anything is written at all.
    fn finish(self) -> Plan {
        let objects = self.objects();
        let Self { input, viewpoint, names: _, stale, steps, obstacles, left_alone, ports: _ } = self;
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

pub(super) fn delete(object: &ObservedObject, reason: String) -> Step {
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
pub(super) fn hold<'a>(
    input: &'a PlanInput<'a>,
    identity: &'a RowIdentity,
    desired: &DesiredSet,
    upkeep: &Upkeep<'_>,
) -> Plan {
    let mut draft = Draft::new(input, &identity.lifecycle_id, Some(&identity.region_generation));
    let wanted: BTreeSet<&ObjectKey> = desired.objects.iter().map(|object| &object.key).collect();

    // Objects that are not wanted: stale ones go, others' are none of our business here.
    for object in draft.objects().into_iter().filter(|object| !wanted.contains(&object.key)) {
        let owner = draft.viewpoint.owner_of(object);
        if matches!(owner, Owner::StaleLifecycle | Owner::StaleGeneration) && !object.terminating {
            draft.hand_off(object, owner);
        }
    }
    let held = autoscalers::release(&mut draft, desired);
    let canary = canary_name(input.name);
    let of_canary = Upkeep { spec_digest: upkeep.canary_spec_digest, ..*upkeep };
    for object in &desired.objects {
        hold_one(&mut draft, object, if object.key.name == canary { &of_canary } else { upkeep }, &held);
    }
    // A kind that the cluster lacks does not come by waiting.
    let in_the_way = draft.obstacles.iter().any(|one| one.reason != obstacle::KIND_MISSING);
    if !in_the_way && draft.stale.is_empty() && draft.steps.is_empty() {
        prune(&mut draft, desired, &wanted);
    }
    draft.finish()
}

/// One desired object. `held`: names of Deployments whose count belongs to an autoscaler that is to go.
fn hold_one(draft: &mut Draft<'_>, desired: &DesiredObject, upkeep: &Upkeep<'_>, held: &BTreeSet<String>) {
    let DesiredObject { key, body: rendered, input_hash: _, autoscaled: _ } = desired;
    let Some(live) = draft.input.observed.objects.get(key) else {
        let mut content = rendered.clone();
        match key.kind {
            Kind::Deployment => {
                draft.note_port(&key.name, &content);
                content = Question::recorded(&content, upkeep);
            }
            Kind::Service => draft.follow_pods(&key.name, &mut content, None),
            kind if kind.is_autoscaler() && !autoscalers::may_be_made(draft, key, held) => return,
            _ => {}
        }
        let body = body::created(&content, draft.input.leader);
        draft.steps.push(Step::Create { key: key.clone(), body, reason: "absent".to_owned() });
        return;
    };
    let owner = draft.viewpoint.owner_of(live);
    match owner {
        Owner::Foreign | Owner::OfKeda => return draft.obstruct(key, obstacle::FOREIGN),
        Owner::OtherEndpoint => return draft.obstruct(key, obstacle::OTHER_ENDPOINT),
        Owner::StaleLifecycle | Owner::StaleGeneration => return draft.hand_off(live, owner),
        Owner::Ours | Owner::Unmarked => {}
    }
    if live.terminating {
        // A write to a dying object is accepted and lost.
        return draft.obstruct(key, obstacle::TERMINATING);
    }
    if draft.input.table_away && (owner == Owner::Unmarked || !made_by_us(live)) {
        draft.left_alone.insert(key.clone());
        return draft.obstruct(key, obstacle::TABLE_AWAY);
    }
    match key.kind {
        Kind::Deployment => hold_deployment(draft, desired, live, upkeep, held),
        Kind::Service => {
            let mut content = rendered.clone();
            draft.follow_pods(&key.name, &mut content, Some(live));
            draft.bring_to(live, &content);
        }
        _ => draft.bring_to(live, rendered),
    }
}

/// A Deployment's metadata, counts and strategy follow at once; its template as [`Question::fate`] says.
fn hold_deployment(
    draft: &mut Draft<'_>,
    desired: &DesiredObject,
    live: &ObservedObject,
    upkeep: &Upkeep<'_>,
    held: &BTreeSet<String>,
) {
    let rendered = &desired.body;
    let input_hash = desired.input_hash.as_deref().unwrap_or_default();
    let question = Question { live, rendered, input_hash, upkeep, observed: draft.input.observed };
    let fate = question.fate();
    let mut content = question.content(fate);
    let mut unasked = false;
    let mut cause = None;
    if let Fate::Render(why) = fate
        && question.has_pods()
    {
        let service = ObjectKey { kind: Kind::Service, name: live.key.name.clone() };
        let service = draft.input.observed.objects.get(&service).filter(|service| draft.is_ours(service));
        if let Some(first) = question.content_with_port_named_first(service) {
            content = first;
        }
        let restarts = compare::differences(Kind::Deployment, &content, &live.body)
            .iter()
            .any(compare::Difference::is_of_template);
        unasked = restarts && !why.is_asked_for();
        if unasked && !upkeep.may_restart {
            draft.obstruct(&live.key, obstacle::RESTART_WAITS);
            (content, unasked) = (question.content_held(), false);
        } else if restarts {
            cause = Some(why.annotation(upkeep.now));
        }
    }
    draft.note_port(&live.key.name, &content);
    let live_replicas = body::replicas(&live.body);
    // An autoscaler's count is carried under the same precondition as everything else; none is where we start it from.
    let is_of_autoscaler = held.contains(&live.key.name) || (desired.autoscaled && live_replicas > 0);
    let would_shrink_alone = draft.input.table_away && body::replicas(&content) < live_replicas;
    if is_of_autoscaler || would_shrink_alone {
        body::set_replicas(&mut content, live_replicas);
    }
    let differences = compare::differences(Kind::Deployment, &content, &live.body);
    if differences.is_empty() {
        return;
    }
    let restarts = question.has_pods() && differences.iter().any(compare::Difference::is_of_template);
    let scales_down = body::replicas(&content) < live_replicas;
    if let Some(cause) = cause {
        template::annotate(&mut content, ANNOTATION_RESTART_CAUSE, Some(&cause));
    }
    let body = body::replaced(&content, live, draft.input.leader);
    draft.replace(live, body, reason(&differences), Effects { restarts, unasked, scales_down });
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
///
/// A Service goes after its Deployment and the last pod: a request that a router sent on the word of the row before still
/// finds the pods that are draining.
fn prune(draft: &mut Draft<'_>, desired: &DesiredSet, wanted: &BTreeSet<&ObjectKey>) {
    if draft.input.table_away {
        return;
    }
    let observed = draft.input.observed;
    let is_replaced = desired.objects.iter().all(|object| serves(object, observed));
    let canary = canary_name(draft.input.name);
    let canary_goes = is_replaced || canary_is_in_the_way(draft.input.name, observed);
    let holds_pods = |app: &str| {
        observed.objects.contains_key(&ObjectKey { kind: Kind::Deployment, name: app.to_owned() })
            || observed.pods.iter().any(|pod| pod.app == app)
    };
    let unwanted = draft.objects().into_iter().filter(|object| {
        let ObjectKey { kind, name } = &object.key;
        Kind::WATCHED.contains(kind)
            && !kind.is_autoscaler()
            && !wanted.contains(&object.key)
            && !object.terminating
            && draft.viewpoint.owner_of(object) == Owner::Ours
            && (if *name == canary { canary_goes } else { is_replaced })
            && (*kind != Kind::Service || !holds_pods(name))
    });
    let deletes: Vec<Step> =
        unwanted.map(|object| delete(object, "not part of what the row asks for any more".to_owned())).collect();
    draft.steps.extend(deletes);
}

/// Whether a pod of what is wanted is ready.
fn serves(object: &DesiredObject, observed: &Observed) -> bool {
    object.key.kind != Kind::Deployment
        || body::replicas(&object.body) == 0
        || observed
            .pods
            .iter()
            .filter(|pod| pod.app == object.key.name && pod.ready)
            .any(|pod| pod_input_hash(observed, observed.objects.get(&object.key), pod) == object.input_hash.as_deref())
}

/// Whether a canary that is not wanted any more holds the room that the endpoint's next pods wait for, while the endpoint
/// serves without them. No router sends to such a canary, so nothing is lost by its going first; waiting for each other,
/// neither would ever move.
fn canary_is_in_the_way(endpoint: &str, observed: &Observed) -> bool {
    let mut own = observed.pods.iter().filter(|pod| pod.app == endpoint);
    let waits_for_room = |pod: &ObservedPod| !pod.ready && pod.reason.as_deref() == Some("Unschedulable");
    own.clone().any(|pod| pod.ready) && own.any(waits_for_room)
}

/// No pods: every Deployment of the endpoint, canary and roles included (D-14), whoever made it.
pub(super) fn stop<'a>(input: &'a PlanInput<'a>, identity: &'a RowIdentity) -> Plan {
    let mut draft = Draft::new(input, &identity.lifecycle_id, Some(&identity.region_generation));
    for object in draft.objects() {
        let owner = draft.viewpoint.owner_of(object);
        match owner {
            Owner::StaleLifecycle | Owner::StaleGeneration => draft.hand_off(object, owner),
            _ if object.key.kind.is_autoscaler() => autoscalers::stop_one(&mut draft, object, owner),
            Owner::Ours | Owner::Unmarked if object.key.kind == Kind::Deployment => {
                stop_one(&mut draft, object, identity);
            }
            Owner::Ours | Owner::Unmarked | Owner::OtherEndpoint | Owner::Foreign | Owner::OfKeda => {}
        }
    }
    draft.finish()
}

fn stop_one(draft: &mut Draft<'_>, live: &ObservedObject, identity: &RowIdentity) {
    let replicas = body::replicas(&live.body);
    if live.terminating {
        return draft.obstruct(&live.key, obstacle::TERMINATING);
    }
    // A stop scales down, which is not done on the word of a table that cannot be read.
    if replicas == 0 || draft.input.table_away || autoscalers::may_raise_from_none(draft, &live.key.name) {
        return;
    }
    // The live body, not a rendered one: a stop must work for any spec, and must not roll what it stops.
    let mut content = body::rescaled(live, 0);
    // One that nobody marked is taken over on the way.
    content["metadata"]["annotations"] = serde_json::json!(identity.annotations());
    let body = body::replaced(&content, live, draft.input.leader);
    let effects = Effects { scales_down: true, ..Effects::default() };
    draft.replace(live, body, format!("spec.replicas: stopped, {replicas} to 0"), effects);
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
            // It goes with its ScaledObject, which is deleted here, too.
            Owner::OfKeda if autoscalers::goes_by_itself(&draft, object) => left += 1,
            Owner::OfKeda | Owner::Ours | Owner::StaleGeneration | Owner::StaleLifecycle | Owner::Unmarked => {
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
