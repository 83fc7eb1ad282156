//! The Deployment controller: one ReplicaSet per pod template, rolling updates within surge and unavailability, status.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Round;
use crate::object::{Resource, annotation, is_terminating, map_at, number, text};
use crate::server;
use crate::state::Place;

const REVISION: &str = "deployment.kubernetes.io/revision";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MOST: &str = "deployment.kubernetes.io/max-replicas";
const HASH_LABEL: &str = "pod-template-hash";

/// A ReplicaSet of a Deployment.
struct Set {
    place: Place,
    object: Arc<Value>,
}

impl Set {
    fn wanted(&self) -> i64 {
        number(&self.object, "/spec/replicas")
    }
    fn available(&self) -> i64 {
        number(&self.object, "/status/availableReplicas")
    }
    fn revision(&self) -> i64 {
        annotation(&self.object, REVISION).and_then(|revision| revision.parse().ok()).unwrap_or(0)
    }
}

pub(super) fn round(round: &mut Round<'_>) {
    let namespace = round.namespace;
    let all: Vec<(Place, Arc<Value>)> = round
        .state
        .all(Resource::of("deployments"), namespace)
        .map(|(place, object)| (place.clone(), object.clone()))
        .collect();
    for (place, object) in all {
        one(round, &place, &object);
    }
}

fn sets_of(round: &Round<'_>, uid: &str) -> Vec<Set> {
    let mut sets: Vec<Set> = round
        .state
        .all(Resource::of("replicasets"), round.namespace)
        .filter(|(_, object)| owned_by(object, uid) && !is_terminating(object))
        .map(|(place, object)| Set { place: place.clone(), object: object.clone() })
        .collect();
    sets.sort_by_key(Set::revision);
    sets
}

/// Whether an object is controlled by the object with this uid.
pub(super) fn owned_by(object: &Value, uid: &str) -> bool {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().any(|owner| text(owner, "/uid") == uid && owner["controller"] == json!(true))
}

/// Whether two objects have the same pod template, but for the label that a ReplicaSet adds.
fn same_template(one: &Value, other: &Value) -> bool {
    let part = |object: &'_ Value, pointer: &str| object.pointer(pointer).cloned().unwrap_or_default();
    if one.pointer("/spec/template/spec") != other.pointer("/spec/template/spec") {
        return false;
    }
    let metadata = |object: &Value| {
        let mut metadata = part(object, "/spec/template/metadata");
        if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
            labels.remove(HASH_LABEL);
        }
        metadata
    };
    metadata(one) == metadata(other)
}

/// A pod template without the label that its ReplicaSet adds.
fn plain_template(object: &Value) -> Value {
    let mut template = object.pointer("/spec/template").cloned().unwrap_or_default();
    if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove(HASH_LABEL);
    }
    template
}

/// Ten letters that depend on the template alone.
fn hash_of(template: &Value) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    // FNV-1a, 64 bits.
    let mut hash = template
        .to_string()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (0..10)
        .map(|_| {
            let letter = LETTERS[usize::try_from(hash % 27).unwrap_or(0)];
            hash /= 27;
            char::from(letter)
        })
        .collect()
}

/// A count or a share of `total`, rounded up or down.
fn share(value: Option<&Value>, total: i64, up: bool) -> i64 {
    match value {
        Some(Value::Number(number)) => number.as_i64().unwrap_or(0),
        Some(Value::String(text)) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let hundredths = total * percent;
            if up { (hundredths + 99) / 100 } else { hundredths / 100 }
        }
        _ => 0,
    }
}

struct Rollout {
    replicas: i64,
    surge: i64,
    unavailable: i64,
    recreate: bool,
}

impl Rollout {
    fn of(deployment: &Value) -> Self {
        let replicas = number(deployment, "/spec/replicas");
        let recreate = text(deployment, "/spec/strategy/type") == "Recreate";
        let at = |name: &str| deployment.pointer(&format!("/spec/strategy/rollingUpdate/{name}"));
        let surge = if recreate { 0 } else { share(at("maxSurge"), replicas, true) };
        let mut unavailable = if recreate { 0 } else { share(at("maxUnavailable"), replicas, false) };
        if surge == 0 && unavailable == 0 {
            unavailable = 1;
        }
        Self { replicas, surge, unavailable: unavailable.min(replicas), recreate }
    }
}

fn one(round: &mut Round<'_>, place: &Place, deployment: &Value) {
    let uid = text(deployment, "/metadata/uid").to_owned();
    let sets = sets_of(round, &uid);
    if is_terminating(deployment) {
        status(round, place, &sets);
        return;
    }
    let newest = sets.iter().position(|set| same_template(&set.object, deployment));
    let rollout = Rollout::of(deployment);
    let Some(newest) = newest else {
        if rollout.recreate && sets.iter().any(|set| set.wanted() > 0 || number(&set.object, "/status/replicas") > 0) {
            for set in &sets {
                scale(round, set, 0, &rollout);
            }
            status(round, place, &sets);
            return;
        }
        create_set(round, deployment, &plain_template(deployment), &sets, &rollout);
        let sets = sets_of(round, &uid);
        status(round, place, &sets);
        return;
    };
    let revision = sets.iter().enumerate().filter(|(index, _)| *index != newest).map(|(_, set)| set.revision()).max();
    let revision = revision.unwrap_or(0).max(0) + 1;
    let revision = revision.max(sets[newest].revision());
    if annotate_set(round, deployment, &sets[newest], revision, &rollout) | annotate_deployment(round, place, revision)
    {
        return;
    }
    if !scaling(round, &sets, newest, &rollout) {
        roll(round, &sets, newest, &rollout);
    }
    let sets = sets_of(round, &uid);
    clean_up(round, deployment, &sets, newest);
    let sets = sets_of(round, &uid);
    status(round, place, &sets);
}

/// Annotations that a Deployment does not hand down to its ReplicaSets.
fn is_handed_down(name: &str) -> bool {
    !name.starts_with("deployment.kubernetes.io/") && name != "kubectl.kubernetes.io/last-applied-configuration"
}

fn annotations_of_set(deployment: &Value, revision: i64, rollout: &Rollout) -> Vec<(String, Value)> {
    let handed = deployment.pointer("/metadata/annotations").and_then(Value::as_object);
    let handed = handed.into_iter().flatten().filter(|(name, _)| is_handed_down(name));
    let mut annotations: Vec<(String, Value)> = handed.map(|(name, value)| (name.clone(), value.clone())).collect();
    annotations.push((REVISION.to_owned(), json!(revision.to_string())));
    annotations.push((DESIRED.to_owned(), json!(rollout.replicas.to_string())));
    annotations.push((MOST.to_owned(), json!((rollout.replicas + rollout.surge).to_string())));
    annotations
}

fn annotate_set(round: &mut Round<'_>, deployment: &Value, set: &Set, revision: i64, rollout: &Rollout) -> bool {
    let wanted = annotations_of_set(deployment, revision, rollout);
    let there = |name: &str| set.object["metadata"]["annotations"].get(name);
    let fits = |(name, value): &(String, Value)| {
        there(name).is_some_and(|there| there == value || name == DESIRED || name == MOST)
    };
    if wanted.iter().all(fits) {
        return false;
    }
    let mut object = (*set.object).clone();
    let annotations = map_at(&mut object, &["metadata", "annotations"]);
    for (name, value) in wanted {
        // A scale of the Deployment is noticed by this annotation; whoever scales sets it.
        if name == DESIRED || name == MOST {
            annotations.entry(name).or_insert(value);
        } else {
            annotations.insert(name, value);
        }
    }
    if object == *set.object {
        return false;
    }
    round.state.put(&set.place, object);
    true
}

fn annotate_deployment(round: &mut Round<'_>, place: &Place, revision: i64) -> bool {
    let Some(live) = round.state.get(place).cloned() else { return false };
    if annotation(&live, REVISION) == Some(revision.to_string().as_str()) {
        return false;
    }
    let mut object = (*live).clone();
    map_at(&mut object, &["metadata", "annotations"]).insert(REVISION.to_owned(), json!(revision.to_string()));
    round.state.put(place, object);
    true
}

fn create_set(round: &mut Round<'_>, deployment: &Value, template: &Value, sets: &[Set], rollout: &Rollout) {
    let name = text(deployment, "/metadata/name");
    let hash = hash_of(template);
    let total: i64 = sets.iter().map(Set::wanted).sum();
    let room = (rollout.replicas + rollout.surge - total).max(0);
    let replicas = if sets.is_empty() || rollout.recreate { rollout.replicas } else { room.min(rollout.replicas) };
    let revision = sets.iter().map(Set::revision).max().unwrap_or(0) + 1;
    let mut template = template.clone();
    map_at(&mut template, &["metadata", "labels"]).insert(HASH_LABEL.to_owned(), json!(hash));
    let mut selector = deployment.pointer("/spec/selector").cloned().unwrap_or_default();
    map_at(&mut selector, &["matchLabels"]).insert(HASH_LABEL.to_owned(), json!(hash));
    let annotations: serde_json::Map<String, Value> =
        annotations_of_set(deployment, revision, rollout).into_iter().collect();
    let labels = template.pointer("/metadata/labels").cloned().unwrap_or_default();
    let identity = round.state.identity();
    let set_name = format!("{name}-{hash}");
    let object = json!({
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": set_name,
            "namespace": round.namespace,
            "uid": identity,
            "creationTimestamp": round.state.now.stamp,
            "generation": 1,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner("apps/v1", "Deployment", deployment)],
        },
        "spec": {"replicas": replicas, "selector": selector, "template": template},
        "status": {},
    });
    let place = Place::of(Resource::of("replicasets"), round.namespace, &set_name);
    round.state.put(&place, object);
}

/// A reference to the controller of an object.
pub(super) fn owner(api_version: &str, kind: &str, of: &Value) -> Value {
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "name": text(of, "/metadata/name"),
        "uid": text(of, "/metadata/uid"),
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

fn scale(round: &mut Round<'_>, set: &Set, replicas: i64, rollout: &Rollout) {
    let Some(live) = round.state.get(&set.place).cloned() else { return };
    let mut object = (*live).clone();
    let annotations = map_at(&mut object, &["metadata", "annotations"]);
    annotations.insert(DESIRED.to_owned(), json!(rollout.replicas.to_string()));
    annotations.insert(MOST.to_owned(), json!((rollout.replicas + rollout.surge).to_string()));
    if number(&object, "/spec/replicas") != replicas {
        object["spec"]["replicas"] = json!(replicas);
        object["metadata"]["generation"] = json!(number(&object, "/metadata/generation") + 1);
    }
    if object != *live {
        round.state.put(&set.place, object);
    }
}

/// Follows a change of the Deployment's own count; returns whether there was one. With several ReplicaSets at work the real
/// controller scales them in proportion; the model scales the newest, within the same bounds.
fn scaling(round: &mut Round<'_>, sets: &[Set], newest: usize, rollout: &Rollout) -> bool {
    let told = rollout.replicas.to_string();
    let changed = sets.iter().any(|set| set.wanted() > 0 && annotation(&set.object, DESIRED) != Some(told.as_str()));
    let idle = sets.iter().all(|set| set.wanted() == 0);
    if !(changed || idle && rollout.replicas > 0 && sets.len() == 1) {
        return false;
    }
    let others: i64 = sets.iter().enumerate().filter(|(index, _)| *index != newest).map(|(_, set)| set.wanted()).sum();
    if others == 0 {
        scale(round, &sets[newest], rollout.replicas, rollout);
        return true;
    }
    for (index, set) in sets.iter().enumerate() {
        let wanted = if rollout.replicas == 0 { 0 } else { set.wanted().min(rollout.replicas + rollout.surge) };
        if index == newest || wanted != set.wanted() || annotation(&set.object, DESIRED) != Some(told.as_str()) {
            scale(round, set, wanted, rollout);
        }
    }
    true
}

/// One step of a rollout: the new ReplicaSet grows within the surge, old ones shrink within the unavailability.
fn roll(round: &mut Round<'_>, sets: &[Set], newest: usize, rollout: &Rollout) {
    let new = &sets[newest];
    let total: i64 = sets.iter().map(Set::wanted).sum();
    if new.wanted() > rollout.replicas {
        return scale(round, new, rollout.replicas, rollout);
    }
    if new.wanted() < rollout.replicas {
        let room = rollout.replicas + rollout.surge - total;
        let alone = total == new.wanted();
        let grown =
            if alone { rollout.replicas } else { new.wanted() + room.clamp(0, rollout.replicas - new.wanted()) };
        if grown > new.wanted() {
            return scale(round, new, grown, rollout);
        }
    }
    let old: Vec<&Set> = sets
        .iter()
        .enumerate()
        .filter(|(index, set)| *index != newest && set.wanted() > 0)
        .map(|(_, set)| set)
        .collect();
    if old.is_empty() {
        return;
    }
    let least = rollout.replicas - rollout.unavailable;
    let new_unavailable = new.wanted() - new.available();
    let mut may_go = total - least - new_unavailable;
    if may_go <= 0 {
        return;
    }
    let mut sizes: Vec<i64> = old.iter().map(|set| set.wanted()).collect();
    // Pods of old ReplicaSets that do not serve go first.
    for (index, set) in old.iter().enumerate() {
        let unhealthy = (set.wanted() - set.available()).clamp(0, may_go);
        sizes[index] -= unhealthy;
        may_go -= unhealthy;
    }
    let available: i64 = sets.iter().map(Set::available).sum();
    let mut may_go = available - least;
    for size in &mut sizes {
        if may_go <= 0 {
            break;
        }
        let going = (*size).min(may_go);
        *size -= going;
        may_go -= going;
    }
    for (set, size) in old.iter().zip(sizes) {
        if size != set.wanted() {
            scale(round, set, size, rollout);
        }
    }
}

/// Removes old ReplicaSets beyond the history.
fn clean_up(round: &mut Round<'_>, deployment: &Value, sets: &[Set], newest: usize) {
    let kept = usize::try_from(number(deployment, "/spec/revisionHistoryLimit")).unwrap_or(0);
    let newest = sets.get(newest).map(|set| set.place.clone());
    let complete = sets.iter().all(|set| Some(&set.place) == newest.as_ref() || set.wanted() == 0);
    let idle: Vec<&Set> = sets
        .iter()
        .filter(|set| Some(&set.place) != newest.as_ref())
        .filter(|set| set.wanted() == 0 && number(&set.object, "/status/replicas") == 0)
        .collect();
    if !complete || idle.len() <= kept {
        return;
    }
    for set in idle.iter().take(idle.len() - kept) {
        server::remove(round.state, &set.place, false, None);
    }
}

/// Zero counters are left out.
pub(super) fn counted(status: &mut Value, name: &str, count: i64) {
    if count > 0 {
        status[name] = json!(count);
    }
}

fn status(round: &mut Round<'_>, place: &Place, sets: &[Set]) {
    let Some(live) = round.state.get(place).cloned() else { return };
    let sum = |field: &str| sets.iter().map(|set| number(&set.object, &format!("/status/{field}"))).sum::<i64>();
    let newest = sets.iter().find(|set| same_template(&set.object, &live));
    let rollout = Rollout::of(&live);
    let (replicas, available) = (sum("replicas"), sum("availableReplicas"));
    let updated = newest.map_or(0, |set| number(&set.object, "/status/replicas"));
    let wanted: i64 = sets.iter().map(Set::wanted).sum();
    let mut status = json!({"observedGeneration": number(&live, "/metadata/generation")});
    counted(&mut status, "replicas", replicas);
    counted(&mut status, "updatedReplicas", updated);
    counted(&mut status, "readyReplicas", sum("readyReplicas"));
    counted(&mut status, "availableReplicas", available);
    counted(&mut status, "unavailableReplicas", wanted - available);
    let enough = available >= rollout.replicas - rollout.unavailable;
    let complete = updated == rollout.replicas && replicas == rollout.replicas && available == rollout.replicas;
    let condition = |kind: &str, truth: bool, reason: &str, message: String| json!({"type": kind, "status": if truth { "True" } else { "False" }, "reason": reason, "message": message});
    let name = newest.map(|set| set.place.name.clone()).unwrap_or_default();
    let available_condition = if enough {
        condition("Available", true, "MinimumReplicasAvailable", "Deployment has minimum availability.".to_owned())
    } else {
        let message = "Deployment does not have minimum availability.".to_owned();
        condition("Available", false, "MinimumReplicasUnavailable", message)
    };
    let (progress, stuck_at) = progress(round, &live, &name, complete, &status);
    if let Some(stuck_at) = stuck_at {
        round.look_again_at(stuck_at);
    }
    status["conditions"] = json!([available_condition, progress]);
    if live.get("status") != Some(&status) {
        let mut object = (*live).clone();
        object["status"] = status;
        round.state.put(place, object);
    }
}

/// The condition `Progressing`, and when it runs out of time.
fn progress(round: &Round<'_>, live: &Value, set: &str, complete: bool, status: &Value) -> (Value, Option<u128>) {
    let before = live.pointer("/status/conditions").and_then(Value::as_array);
    let before = before.into_iter().flatten().find(|one| text(one, "/type") == "Progressing");
    let told = |status: &str, reason: &str, message: String, since: &str| json!({"type": "Progressing", "status": status, "reason": reason, "message": message, "lastUpdateTime": since});
    let now = round.state.now.stamp.as_str();
    let last = before.map_or(now, |one| text(one, "/lastUpdateTime"));
    if complete {
        let done = before.is_some_and(|one| text(one, "/reason") == "NewReplicaSetAvailable");
        let message = format!("ReplicaSet \"{set}\" has successfully progressed.");
        return (told("True", "NewReplicaSetAvailable", message, if done { last } else { now }), None);
    }
    let counters = ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"];
    let moved = counters.iter().any(|one| status.get(one) != live.pointer(&format!("/status/{one}")));
    let rolled = before.is_some_and(|one| text(one, "/reason") == "NewReplicaSetAvailable")
        && status.get("updatedReplicas") == status.get("replicas");
    if rolled && !moved {
        // Once rolled out, a lack of pods starts no deadline.
        return (before.cloned().unwrap_or_default(), None);
    }
    let since = if moved { now } else { last };
    let seconds = |stamp: &str| stamp.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_second);
    let left = seconds(since) + number(live, "/spec/progressDeadlineSeconds") - seconds(now);
    if left <= 0 {
        let message = format!("ReplicaSet \"{set}\" has timed out progressing.");
        return (told("False", "ProgressDeadlineExceeded", message, since), None);
    }
    let message = format!("ReplicaSet \"{set}\" is progressing.");
    let deadline = round.now + u128::try_from(left).unwrap_or(0) * 1_000;
    (told("True", "ReplicaSetUpdated", message, since), Some(deadline))
}
