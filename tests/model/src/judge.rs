//! What must hold of a run: how it ended, and what happened to pods on the way.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use gco_store::row::{DesiredState, EndpointRow};
use gco_store::wire::item_to_plain_json;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::object::{annotation, is_ready, is_terminating, label, number, text};
use crate::scenario::ENDPOINT;
use crate::state::{Change, State};
use crate::table::ModelTable;
use crate::world::{REGION, World};

/// Kinds whose objects are compared as they are; the others are generated.
const COMPARED: [&str; 8] = [
    "deployments",
    "services",
    "configmaps",
    "secrets",
    "horizontalpodautoscalers",
    "scaledobjects",
    "poddisruptionbudgets",
    "networkpolicies",
];

/// Annotations that differ between two runs with the same end.
const PASSING: [&str; 3] = ["gco.io/leader-epoch", "gco.io/leader-term", "deployment.kubernetes.io/revision"];

/// How a run ended: every object, the pods, the row, without what differs between two runs that ended the same way.
#[must_use]
pub fn end_of(world: &World) -> Value {
    let row = world.table.row(ENDPOINT).map(|row| item_to_plain_json(&row));
    let lifecycle = row.as_ref().map(|row| text(row, "/lifecycle_id").to_owned()).unwrap_or_default();
    let generation = row.as_ref().map(|row| text(row, &format!("/region_generations/{}", REGION)).to_owned());
    let tokens = BTreeMap::from([
        (lifecycle, "the row's lifecycle"),
        (generation.unwrap_or_default(), "the region's generation"),
    ]);
    world.model.look(|state| {
        let mut objects: BTreeMap<String, Value> = BTreeMap::new();
        let mut sets: Vec<Value> = Vec::new();
        let mut pods: BTreeMap<String, usize> = BTreeMap::new();
        for (place, object) in state.objects() {
            match place.plural {
                plural if COMPARED.contains(&plural) => {
                    objects.insert(place.to_string(), cleaned(object, &tokens));
                }
                "replicasets" if number(object, "/spec/replicas") > 0 => {
                    let hash = object.pointer("/spec/template/metadata/annotations/gco.io~1input-hash");
                    sets.push(json!([label(object, "app"), number(object, "/spec/replicas"), hash]));
                }
                "pods" => {
                    let word = if is_ready(object) { "ready" } else { "not ready" };
                    let app = label(object, "app").unwrap_or_default();
                    *pods.entry(format!("{app} {word} {:?}", annotation(object, "gco.io/input-hash"))).or_default() +=
                        1;
                }
                _ => {}
            }
        }
        sets.sort_by_key(Value::to_string);
        json!({"objects": objects, "sets": sets, "pods": pods, "row": row.as_ref().map(cleaned_row)})
    })
}

fn cleaned(object: &Value, tokens: &BTreeMap<String, &'static str>) -> Value {
    let mut object = object.clone();
    if let Some(map) = object.as_object_mut() {
        map.remove("status");
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for passing in ["uid", "resourceVersion", "generation", "creationTimestamp"] {
            metadata.remove(passing);
        }
    }
    for owner in object.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut).into_iter().flatten() {
        owner["uid"] = json!("the owner's");
    }
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    for pointer in ["/metadata/annotations", "/spec/template/metadata/annotations"] {
        let Some(annotations) = object.pointer_mut(pointer).and_then(Value::as_object_mut) else { continue };
        annotations.retain(|name, _| !PASSING.contains(&name.as_str()));
        for value in annotations.values_mut() {
            if let Some(word) = value.as_str().and_then(|value| tokens.get(value)) {
                *value = json!(word);
            }
        }
    }
    object
}

/// A row without what differs between two runs that ended the same way.
#[must_use]
pub fn cleaned_row(row: &Value) -> Value {
    let mut row = row.clone();
    for passing in
        ["lifecycle_id", "region_generations", "deletion_generation", "created_at", "updated_at", "deleted_at"]
    {
        if !row[passing].is_null() {
            row[passing] = json!("there");
        }
    }
    if let Some(previous) = row["previous_spec"].as_object_mut() {
        previous.insert("replaced_at".to_owned(), json!("there"));
    }
    for entry in row["region_status"].as_object_mut().into_iter().flat_map(serde_json::Map::values_mut) {
        for passing in ["last_sync", "lifecycle_id", "region_generation", "deletion_generation"] {
            if !entry[passing].is_null() {
                entry[passing] = json!("there");
            }
        }
        for condition in entry["conditions"].as_array_mut().into_iter().flatten() {
            condition["since"] = Value::Null;
        }
    }
    row
}

/// What happened to pods since the world's mark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodHistory {
    /// Serving pods that were told to end, by the Deployment that they belong to.
    pub removed: BTreeMap<String, usize>,
    /// The fewest serving pods at any moment, by Deployment, of those that had one at the mark.
    pub fewest: BTreeMap<String, usize>,
    /// The least and the most `spec.replicas` of each Deployment from the mark on, the count at the mark included.
    pub replicas: BTreeMap<String, (i64, i64)>,
}

/// Follows the pods.
#[must_use]
pub fn pods_of(world: &World) -> PodHistory {
    world.model.look(|state| {
        let mut history = PodHistory::default();
        let mut serving: BTreeMap<String, String> = BTreeMap::new();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for entry in state.history() {
            let after_mark = entry.version > world.mark;
            let app = label(&entry.object, "app").unwrap_or_default().to_owned();
            if entry.place.plural == "deployments" {
                let name = entry.place.name.clone();
                if entry.change == Change::Deleted {
                    // What comes after it begins anew; what it had after the mark counts.
                    if !after_mark {
                        history.replicas.remove(&name);
                    }
                } else {
                    let count = number(&entry.object, "/spec/replicas");
                    let range = history.replicas.entry(name).or_insert((count, count));
                    *range = if after_mark { (range.0.min(count), range.1.max(count)) } else { (count, count) };
                }
            }
            if entry.place.plural != "pods" {
                continue;
            }
            let serves = entry.change != Change::Deleted && is_ready(&entry.object) && !is_terminating(&entry.object);
            let served = serving.contains_key(&entry.place.name);
            if after_mark && history.fewest.is_empty() {
                history.fewest.clone_from(&counts);
            }
            if serves && !served {
                serving.insert(entry.place.name.clone(), app.clone());
                *counts.entry(app.clone()).or_default() += 1;
            }
            if served && !serves {
                serving.remove(&entry.place.name);
                if let Some(count) = counts.get_mut(&app) {
                    *count -= 1;
                }
                if after_mark {
                    *history.removed.entry(app.clone()).or_default() += 1;
                }
            }
            if after_mark && let Some(fewest) = history.fewest.get_mut(&app) {
                *fewest = (*fewest).min(counts.get(&app).copied().unwrap_or(0));
            }
        }
        history
    })
}

impl PodHistory {
    /// What this run did to pods beyond what the undisturbed run did.
    #[must_use]
    pub fn beyond(&self, undisturbed: &Self) -> Vec<String> {
        let mut found = Vec::new();
        for (app, count) in &self.removed {
            let usual = undisturbed.removed.get(app).copied().unwrap_or(0);
            if *count > usual {
                found.push(format!("{count} serving pods of {app} were removed, not {usual}"));
            }
        }
        for (app, count) in &undisturbed.fewest {
            let here = self.fewest.get(app).copied().unwrap_or(*count);
            if here < *count {
                found.push(format!("{app} was down to {here} serving pods, not {count}"));
            }
        }
        for (name, (least, most)) in &self.replicas {
            if let Some((usual_least, usual_most)) = undisturbed.replicas.get(name)
                && (least < usual_least || most > usual_most)
            {
                found.push(format!("spec.replicas of {name} was {least} to {most}, not {usual_least} to {usual_most}"));
            }
        }
        found
    }
}

/// Every place at which two values differ, with what stands there.
#[must_use]
pub fn differences(one: &Value, other: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk("", one, other, &mut found);
    found
}

fn walk(path: &str, one: &Value, other: &Value, found: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let names: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for name in names {
                let (one, other) = (one.get(name), other.get(name));
                walk(&format!("{path}/{name}"), one.unwrap_or(&Value::Null), other.unwrap_or(&Value::Null), found);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                walk(&format!("{path}/{index}"), one, other, found);
            }
        }
        _ if one == other => {}
        _ => found.push(format!("{path}: {one} and {other}")),
    }
}

/// The version of the last change of anything but the Lease.
#[must_use]
pub fn last_change(state: &State) -> u64 {
    let counts = |entry: &&crate::state::Entry| entry.place.plural != "leases" && entry.place.plural != "events";
    state.history().iter().rev().find(counts).map_or(0, |entry| entry.version)
}

/// What the row asked this region for, at the moments at which it changed.
#[derive(Debug)]
pub struct Guard {
    asked: Arc<Mutex<Vec<Asked>>>,
    _task: AbortOnDropHandle<()>,
}

/// What the row asked for from a moment on.
#[derive(Clone, Debug)]
struct Asked {
    from_milliseconds: u128,
    /// `None`: no objects are wanted.
    wanted: Option<Wanted>,
}

/// What a row that is served here asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    /// Lifecycle and generation of its objects.
    marks: (String, String),
    /// Whether a canary is among them.
    canary: bool,
}

fn asked_now(world_table: &ModelTable) -> Option<Wanted> {
    let row = EndpointRow::parse(world_table.row(ENDPOINT)?).ok()?;
    if row.desired_state == DesiredState::Deleted || !row.is_target(REGION) {
        return None;
    }
    let canary = row.spec.to_plain_json().get("canary").is_some_and(|canary| !canary.is_null());
    Some(Wanted { marks: (row.lifecycle_id.clone()?, row.region_generation(REGION)?.to_owned()), canary })
}

impl Guard {
    /// Follows the row from now on.
    #[must_use]
    pub fn set(world: &World) -> Self {
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (table, clock, into) = (world.table.clone(), world.clock, asked.clone());
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut changes = table.changes();
            loop {
                let entry = Asked { from_milliseconds: clock.elapsed().as_millis(), wanted: asked_now(&table) };
                into.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
                if changes.changed().await.is_err() {
                    return;
                }
            }
        }));
        Self { asked, _task: task }
    }

    /// Deployments and Services of the row's own lifecycle and generation that were told to go while the row asked for them.
    #[must_use]
    pub fn wrong_deletions(&self, world: &World) -> Vec<String> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        world.model.look(|state| {
            let mut wrong = Vec::new();
            for entry in state.history().iter().filter(|entry| entry.version > world.mark) {
                let Some(before) = &entry.before else { continue };
                let goes = entry.change == Change::Deleted || is_terminating(&entry.object);
                if is_terminating(before) || !goes || !matches!(entry.place.plural, "deployments" | "services") {
                    continue;
                }
                // The latest that was asked for before the message that did this was sent, and everything since.
                let of = |name: &str| annotation(before, name).unwrap_or_default().to_owned();
                let its = (of("gco.io/lifecycle-id"), of("gco.io/region-generation"));
                let at = entry.at_milliseconds;
                let last = asked.iter().rev().find(|one| one.from_milliseconds + 2 < at);
                let is_canary = entry.place.name.ends_with("-canary");
                let is_wanted = |wanted: &Wanted| wanted.marks == its && (wanted.canary || !is_canary);
                if last.is_some_and(|last| last.wanted.as_ref().is_some_and(is_wanted)) {
                    wrong.push(format!("{} at {at} ms by {}", entry.place, entry.by));
                }
            }
            wrong
        })
    }
}
