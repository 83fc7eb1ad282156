//! What becomes of a live pod template: every change of it restarts pods, so it is changed for a reason only.
//!
//! Two facts decide: the input hash that the object was last written for, and what the live template says. A template that
//! already says what is asked for is never written again, whoever wrote it and whatever hash it was written for; so a fault in
//! the hash alone restarts nothing. A template of another renderer (an earlier version of this program, or the original) is
//! kept until the row's spec changes or somebody asks for a refresh.

use gco_store::spec::Spec;
use serde_json::{Value, json};

use super::compare::{self, Change, Difference};
use super::ownership::{live_input_hash, serving_pods};
use super::{Upkeep, body};
use crate::identity::{
    ANNOTATION_INPUT_HASH, ANNOTATION_LEADER_EPOCH, ANNOTATION_LEADER_TERM, ANNOTATION_LIFECYCLE, ANNOTATION_REFRESHED,
    ANNOTATION_REGION_GENERATION, ANNOTATION_RENDERER, ANNOTATION_SPEC_DIGEST, RENDERER_ORIGINAL,
};
use crate::object::{Kind, MODEL_CONTAINER, Observed, ObservedObject, ObservedPort, model_container, model_port};
use crate::render::{PORT_NAME, RENDERER_VERSION, original};

/// Marks in a template that say for whom and from what it was made, not what runs.
const MARKS: [&str; 3] = [ANNOTATION_INPUT_HASH, ANNOTATION_LEADER_EPOCH, ANNOTATION_LEADER_TERM];
/// Marks that may be absent from a template that is older than they are.
const OWNERS: [&str; 2] = [ANNOTATION_LIFECYCLE, ANNOTATION_REGION_GENERATION];

/// Why pods are restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The row's spec changed.
    Edit,
    /// The original left an image that the row does not ask for.
    Adoption,
    /// Somebody asked for the current rendering.
    Refresh,
    /// Nothing in the row changed: the template was changed by hand, or this program has a fault.
    Repair,
}

impl Cause {
    /// Whether an edit of the row asks for it.
    pub(super) fn is_asked_for(self) -> bool {
        self == Self::Edit
    }

    /// Value of the annotation that counts restarts which no edit asked for.
    pub(super) fn annotation(self, now: &str) -> String {
        match self {
            Self::Edit => "edit".to_owned(),
            Self::Adoption => format!("{now} adoption"),
            Self::Refresh => format!("{now} refresh"),
            Self::Repair => format!("{now} repair"),
        }
    }
}

/// What becomes of a live template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The rendered one is written.
    Render(Cause),
    /// It says what the rendered one says.
    Same,
    /// The original's: kept, and from now on it stands for the row's inputs as they are.
    Adopt,
    /// Kept, with what is recorded of it.
    Keep,
}

/// A live Deployment and what is asked of it.
pub(super) struct Question<'a> {
    /// As it is.
    pub(super) live: &'a ObservedObject,
    /// Rendered body.
    pub(super) rendered: &'a Value,
    /// Hash of the row's inputs.
    pub(super) input_hash: &'a str,
    /// What else is known.
    pub(super) upkeep: &'a Upkeep<'a>,
    /// Everything of the endpoint.
    pub(super) observed: &'a Observed,
}

impl Question<'_> {
    fn app(&self) -> &str {
        &self.live.key.name
    }

    /// Whether a change of the template would restart anything.
    pub(super) fn has_pods(&self) -> bool {
        body::replicas(&self.live.body) > 0 || serving_pods(self.observed, self.app()).next().is_some()
    }

    /// Whether a refresh was asked for that this object has not taken part in.
    fn refresh_is_due(&self) -> bool {
        self.upkeep.refresh.is_some() && self.live.annotation(ANNOTATION_REFRESHED) != self.upkeep.refresh
    }

    /// An edit, if the row's spec is another one than when the object was last written.
    fn edit_or(&self, otherwise: Cause) -> Cause {
        match self.live.annotation(ANNOTATION_SPEC_DIGEST) {
            Some(recorded) if recorded != self.upkeep.spec_digest => Cause::Edit,
            _ => otherwise,
        }
    }

    /// What becomes of the template.
    pub(super) fn fate(&self) -> Fate {
        let Self { live, rendered, input_hash, upkeep, observed: _ } = self;
        let Some(template) = live.body.pointer("/spec/template") else {
            return Fate::Render(self.edit_or(Cause::Repair));
        };
        let recorded = live_input_hash(live);
        if !self.has_pods() {
            // Nothing restarts, so nothing speaks for an old rendering.
            return Fate::Render(self.edit_or(Cause::Repair));
        }
        if differences(rendered, template).is_empty() {
            return Fate::Same;
        }
        let image = |pod: Option<&Value>| image_of(pod).map(str::to_owned);
        let wanted_image = image(rendered.pointer("/spec/template/spec"));
        let same_image = image(template.get("spec")) == wanted_image;
        let Some(recorded) = recorded else {
            // The original applies images to pods that exist, and nothing else: an image that differs is an edit that it had
            // not come to. Whatever else differs it never would have applied, so it waits for an edit or a refresh.
            return if same_image { Fate::Adopt } else { Fate::Render(Cause::Adoption) };
        };
        let renderer = live.annotation(ANNOTATION_RENDERER);
        if recorded == *input_hash {
            return match renderer {
                Some(ours) if ours == RENDERER_VERSION.to_string() => Fate::Render(Cause::Repair),
                _ if self.refresh_is_due() => Fate::Render(Cause::Refresh),
                // The image is the one thing that every renderer says alike.
                _ if !same_image => Fate::Render(Cause::Repair),
                _ => Fate::Keep,
            };
        }
        if renderer == Some(RENDERER_ORIGINAL)
            && let Some(image) = wanted_image
            && differences_from_original(self.app(), &image, upkeep.spec, template).is_empty()
        {
            // The row changed while the original was back, and it applied the change.
            return Fate::Adopt;
        }
        Fate::Render(self.edit_or(Cause::Repair))
    }

    /// The rendered body with what a Deployment of ours records besides.
    pub(super) fn recorded(rendered: &Value, upkeep: &Upkeep<'_>) -> Value {
        let mut content = rendered.clone();
        annotate(&mut content, ANNOTATION_SPEC_DIGEST, Some(upkeep.spec_digest));
        if upkeep.refresh.is_some() {
            annotate(&mut content, ANNOTATION_REFRESHED, upkeep.refresh);
        }
        content
    }

    /// What is asked of the object, with the template that its fate leaves.
    pub(super) fn content(&self, fate: Fate) -> Value {
        let Self { live, rendered, input_hash, upkeep, observed: _ } = self;
        let mut content = Self::recorded(rendered, upkeep);
        if !matches!(fate, Fate::Render(_)) {
            set_template(&mut content, live.body.pointer("/spec/template"));
        }
        match fate {
            Fate::Render(_) => {}
            Fate::Same => {
                // The renderer stays named as long as the hash does: a renaming would be a write for nothing.
                let renderer =
                    live.annotation(ANNOTATION_RENDERER).filter(|_| live_input_hash(live) == Some(input_hash));
                if let Some(renderer) = renderer {
                    annotate(&mut content, ANNOTATION_RENDERER, Some(renderer));
                }
            }
            Fate::Adopt => annotate(&mut content, ANNOTATION_RENDERER, Some(RENDERER_ORIGINAL)),
            Fate::Keep => annotate(&mut content, ANNOTATION_RENDERER, live.annotation(ANNOTATION_RENDERER)),
        }
        content
    }

    /// What is asked of the object while its restart has to wait: everything but the template and what is recorded of it.
    pub(super) fn content_held(&self) -> Value {
        let mut content = self.rendered.clone();
        set_template(&mut content, self.live.body.pointer("/spec/template"));
        for name in [ANNOTATION_INPUT_HASH, ANNOTATION_RENDERER] {
            annotate(&mut content, name, self.live.annotation(name));
        }
        content
    }

    /// The first of two steps by which a port changes under pods that the Service reaches by number: the live template
    /// with its port named, nothing else. `None` when the port can change at once.
    ///
    /// Old and new pods can only both be reached by the name. So the pods that serve get the name first, the Service
    /// follows, and the edit comes last. Taking anything else of the edit into the first step could start a server on
    /// another port than the one that is probed.
    pub(super) fn content_with_port_named_first(&self, service: Option<&ObservedObject>) -> Option<Value> {
        let template = self.live.body.pointer("/spec/template")?;
        let port = template.get("spec").and_then(model_port)?;
        let wanted = self.rendered.pointer("/spec/template/spec").and_then(model_port)?;
        if port.number == wanted.number {
            return None;
        }
        let named = is_named(Some(&port));
        let by_name = service.is_none_or(|service| {
            service.body.pointer("/spec/ports/0/targetPort").and_then(Value::as_str) == Some(PORT_NAME)
        });
        if named && by_name && pods_name_the_port(self.observed, self.app()) {
            return None;
        }
        let mut template = template.clone();
        let containers = template.pointer_mut("/spec/containers").and_then(Value::as_array_mut)?;
        let index = containers.iter().position(|one| one.get("name") == Some(&json!(MODEL_CONTAINER))).unwrap_or(0);
        let port = containers.get_mut(index)?.pointer_mut("/ports/0")?;
        port.as_object_mut()?.insert("name".to_owned(), json!(PORT_NAME));
        let mut content = self.content_held();
        set_template(&mut content, Some(&template));
        Some(content)
    }
}

/// Where a live template differs from a rendered Deployment's, marks aside.
fn differences(rendered: &Value, live_template: &Value) -> Vec<Difference> {
    let mut wanted = rendered.pointer("/spec/template").cloned().unwrap_or_default();
    let mut live = live_template.clone();
    for template in [&mut wanted, &mut live] {
        for mark in MARKS {
            annotations_of(template).map(|annotations| annotations.remove(mark));
        }
    }
    for owner in OWNERS {
        if annotations_of(&mut live).is_none_or(|annotations| !annotations.contains_key(owner)) {
            annotations_of(&mut wanted).map(|annotations| annotations.remove(owner));
        }
    }
    let body = |template: Value| json!({"spec": {"template": template}});
    compare::differences(Kind::Deployment, &body(wanted), &body(live))
}

/// Where live pods of the Deployment `app` that the original made differ from what it would make of the spec now. Empty: they
/// say the same.
#[must_use]
pub fn differences_from_original(app: &str, image: &str, spec: &Spec, live_template: &Value) -> Vec<Difference> {
    let body = |pod: &Value| json!({"spec": {"template": {"spec": pod}}});
    let live = live_template.get("spec").cloned().unwrap_or_default();
    let mut found = compare::differences(Kind::Deployment, &body(&original::pod_spec(app, image, spec)), &body(&live));
    // A row's map has no order, so the order of the original's environment says nothing.
    found.retain(|difference| difference.change != Change::Reordered);
    found
}

fn annotations_of(template: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    template.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
}

fn image_of(pod: Option<&Value>) -> Option<&str> {
    model_container(pod?)?.get("image")?.as_str()
}

fn set_template(content: &mut Value, template: Option<&Value>) {
    if let (Some(place), Some(template)) = (content.pointer_mut("/spec/template"), template) {
        *place = template.clone();
    }
}

/// Sets an annotation of the metadata, or takes it out.
pub(super) fn annotate(content: &mut Value, name: &str, value: Option<&str>) {
    let Some(annotations) = content.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else { return };
    match value {
        Some(value) => annotations.insert(name.to_owned(), json!(value)),
        None => annotations.remove(name),
    };
}

fn is_named(port: Option<&ObservedPort>) -> bool {
    port.is_some_and(|port| port.name.as_deref() == Some(PORT_NAME))
}

/// Whether every pod under this name has the port's name.
fn pods_name_the_port(observed: &Observed, app: &str) -> bool {
    serving_pods(observed, app).all(|pod| is_named(pod.port.as_ref()))
}

/// The number that a Service must target because not every template that serves names the port; `None`: the name is fine.
///
/// `template` is the port of the Deployment's template as it will be after this plan, when there is a Deployment.
pub(super) fn number_to_target(
    observed: &Observed,
    app: &str,
    template: Option<&ObservedPort>,
    service: Option<&ObservedObject>,
) -> Option<u64> {
    if template.is_none_or(|port| is_named(Some(port))) && pods_name_the_port(observed, app) {
        return None;
    }
    let mut ready: Vec<u64> =
        serving_pods(observed, app).filter(|pod| pod.ready).filter_map(|pod| Some(pod.port.as_ref()?.number)).collect();
    let targeted = service.and_then(|service| service.body.pointer("/spec/ports/0/targetPort")?.as_u64());
    // What serves now goes on serving; without a pod that does, the template says where one will.
    if let Some(targeted) = targeted.filter(|targeted| ready.contains(targeted)) {
        return Some(targeted);
    }
    ready.sort_unstable();
    ready.first().copied().or_else(|| template.map(|port| port.number))
}
