//! Proof that nothing of an endpoint is left: quorum reads of every name, and of generated children. A cache is never
//! evidence of absence.

use std::collections::BTreeSet;

use futures::StreamExt as _;
use serde_json::Value;

use super::Cluster;
use super::error::ApiError;
use super::execute::observed;
use crate::identity::{ANNOTATION_LIFECYCLE, SELECTOR};
use crate::leadership::Claim;
use crate::object::{Kind, ObjectKey, ObservedObject};
use crate::plan::Precondition;
use crate::plan::ownership::{Owner, Viewpoint};
use crate::report::{Absence, Category};

/// Reads in flight at once, of one sweep.
const CONCURRENT_READS: usize = 8;

/// What entries of ScaledObjects begin with.
const SCALED_OBJECT: &str = "scaledobject/";

/// Entries of each list that are kept; they go into a status entry.
const MOST_ENTRIES: usize = 20;

/// Whose absence is to be proven.
#[derive(Debug)]
pub struct AbsenceQuestion<'a> {
    /// Every name that belongs to the endpoint, in deletion order.
    pub keys: &'a [ObjectKey],
    /// The row's lifecycle.
    pub lifecycle_id: &'a str,
    /// Lifecycles of all rows.
    pub known_lifecycles: &'a BTreeSet<String>,
}

/// One sweep.
#[derive(Debug)]
pub struct Sweep {
    /// What it found.
    pub absence: Absence,
    /// The claim ended in its course; nothing may be reported.
    pub fenced: bool,
}

#[derive(Default)]
struct Found {
    pending: Vec<String>,
    foreign: Vec<String>,
    failures: Vec<String>,
    /// Names of Deployments and Services that belong to somebody else: their children are none of our business.
    others: BTreeSet<ObjectKey>,
    fenced: bool,
}

impl Found {
    fn fail(&mut self, what: &str, error: &ApiError) {
        self.fenced |= error.category == Category::Fenced;
        let status = error.status.map_or_else(|| "no answer".to_owned(), |status| format!("status {status}"));
        self.failures.push(format!("{what} failed ({status})"));
    }
}

impl Cluster {
    /// One sweep, begun now: the caller has made sure that every delete before it was answered. What is still there and
    /// ours is deleted, which makes the sweep incomplete; what is not ours is named and left alone.
    pub async fn prove_absence(&self, question: &AbsenceQuestion<'_>, claim: &Claim) -> Sweep {
        let mut found = Found::default();
        self.sweep_names(question, claim, &mut found).await;
        if found.failures.is_empty() {
            self.sweep_children(question, &mut found).await;
        }
        if found.failures.is_empty() {
            self.api.telemetry().steps.with_label_values(&["prove_absence"]).inc();
        }
        let complete = found.pending.is_empty() && found.foreign.is_empty() && found.failures.is_empty();
        let bounded = |mut list: Vec<String>| {
            list.truncate(MOST_ENTRIES);
            list
        };
        Sweep {
            absence: Absence {
                complete,
                pending: bounded(found.pending),
                foreign: bounded(found.foreign),
                failures: bounded(found.failures),
            },
            fenced: found.fenced,
        }
    }

    /// Which of the optional kinds this cluster has.
    async fn missing_kinds(&self, keys: &[ObjectKey], found: &mut Found) -> BTreeSet<Kind> {
        let mut missing = BTreeSet::new();
        for kind in [Kind::ScaledObject, Kind::HttpRoute] {
            if !keys.iter().any(|key| key.kind == kind) {
                continue;
            }
            match self.api.has_kind(kind).await {
                Ok(true) => {}
                Ok(false) => {
                    missing.insert(kind);
                }
                Err(error) => found.fail(&format!("discovery of {}", kind.word()), &error),
            }
        }
        missing
    }

    async fn sweep_names(&self, question: &AbsenceQuestion<'_>, claim: &Claim, found: &mut Found) {
        let missing = self.missing_kinds(question.keys, found).await;
        if !found.failures.is_empty() {
            return;
        }
        let keys: Vec<ObjectKey> = question.keys.iter().filter(|key| !missing.contains(&key.kind)).cloned().collect();
        let mut reads = futures::stream::iter(keys)
            .map(|key| async move {
                let answer = self.api.get_metadata(&key).await;
                (key, answer)
            })
            .buffered(CONCURRENT_READS);
        let mut seen: Vec<ObservedObject> = Vec::new();
        while let Some((key, answer)) = reads.next().await {
            match answer {
                Ok(None) => {}
                Ok(Some(body)) => match observed(&key, body) {
                    Some(object) => seen.push(object),
                    None => found.failures.push(format!("read {} {} failed (no identity)", key.kind.word(), key.name)),
                },
                Err(error) => {
                    found.fail(&format!("read {} {}", key.kind.word(), key.name), &error);
                    // A server that does not answer one read would keep the others waiting for their time-outs.
                    return;
                }
            }
        }
        drop(reads);
        for object in seen {
            self.sweep_one(&object, question, claim, found).await;
        }
    }

    async fn sweep_one(
        &self,
        object: &ObservedObject,
        question: &AbsenceQuestion<'_>,
        claim: &Claim,
        found: &mut Found,
    ) {
        let viewpoint = Viewpoint {
            lifecycle_id: question.lifecycle_id,
            region_generation: None,
            known_lifecycles: question.known_lifecycles,
        };
        let key = &object.key;
        match viewpoint.owner_of(object) {
            // Another row's object that only has one of our names: that row's monitor removes it, not we.
            Owner::OtherEndpoint => {
                found.others.insert(key.clone());
                return;
            }
            Owner::Foreign => {
                found.others.insert(key.clone());
                found.foreign.push(key.to_string());
                return;
            }
            // A key that cannot be told to be ours may be a user's; deleting it would be beyond repair.
            Owner::StaleLifecycle | Owner::Unmarked if key.kind == Kind::Secret => {
                found
                    .failures
                    .push(format!("ambiguous secret {} is not owned by lifecycle {}", key.name, question.lifecycle_id));
                return;
            }
            // KEDA's autoscaler goes with its ScaledObject; left behind alone, it is ours to remove.
            Owner::OfKeda if found.pending.iter().any(|one| one.starts_with(SCALED_OBJECT)) => {
                found.pending.push(key.to_string());
                return;
            }
            Owner::Ours | Owner::StaleGeneration | Owner::StaleLifecycle | Owner::Unmarked | Owner::OfKeda => {}
        }
        found.pending.push(key.to_string());
        if object.terminating {
            return;
        }
        let of = Precondition { uid: object.uid.clone(), resource_version: object.resource_version.clone() };
        match self.claim_and_delete(claim, key, &of).await {
            Ok(()) => {
                self.api.telemetry().steps.with_label_values(&["delete"]).inc();
                tracing::info!(action = "delete", object = %key, reason = "left over", "changed an object");
            }
            // Somebody wrote it since; the next sweep looks again.
            Err(error) if error.category == Category::Conflict => {}
            Err(error) => found.fail(&format!("delete {} {}", key.kind.word(), key.name), &error),
        }
    }

    async fn sweep_children(&self, question: &AbsenceQuestion<'_>, found: &mut Found) {
        let names = |kind: Kind| -> Vec<&str> {
            let keys = question.keys.iter().filter(|key| key.kind == kind && !found.others.contains(key));
            keys.map(|key| key.name.as_str()).collect()
        };
        let (deployments, services) = (names(Kind::Deployment), names(Kind::Service));
        let mut replica_sets: BTreeSet<String> = BTreeSet::new();
        if !deployments.is_empty() {
            let selector = format!("{SELECTOR},app in ({})", deployments.join(","));
            for (prefix, plural, word) in [("/apis/apps/v1", "replicasets", "replicaset"), ("/api/v1", "pods", "pod")] {
                match self.api.list_metadata(prefix, plural, &selector).await {
                    Ok(children) => {
                        for child in &children {
                            if is_child(child, &deployments, &replica_sets, question) {
                                let name = name_of(child);
                                found.pending.push(format!("{word}/{name}"));
                                if word == "replicaset" {
                                    replica_sets.insert(name.to_owned());
                                }
                            }
                        }
                    }
                    Err(error) => return found.fail(&format!("list {plural}"), &error),
                }
            }
        }
        if !services.is_empty() {
            let selector = format!("kubernetes.io/service-name in ({})", services.join(","));
            match self.api.list_metadata("/apis/discovery.k8s.io/v1", "endpointslices", &selector).await {
                Ok(slices) => {
                    found.pending.extend(slices.iter().map(|slice| format!("endpointslice/{}", name_of(slice))));
                }
                Err(error) => found.fail("list endpointslices", &error),
            }
        }
    }
}

fn name_of(child: &Value) -> &str {
    child.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}

/// Whether a selected ReplicaSet or pod belongs to the endpoint (the wire contract, C.9): without an owner, or owned by
/// one of its Deployments, or by one of its ReplicaSets; and not marked as another row's.
fn is_child(
    child: &Value,
    deployments: &[&str],
    replica_sets: &BTreeSet<String>,
    question: &AbsenceQuestion<'_>,
) -> bool {
    let lifecycle = child
        .pointer("/metadata/annotations")
        .and_then(|annotations| annotations.get(ANNOTATION_LIFECYCLE))
        .and_then(Value::as_str);
    if lifecycle.is_some_and(|its| its != question.lifecycle_id && question.known_lifecycles.contains(its)) {
        return false;
    }
    let owners = child.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let Some(owners) = owners.filter(|owners| !owners.is_empty()) else { return true };
    owners.iter().any(|owner| {
        let part = |name: &str| owner.get(name).and_then(Value::as_str).unwrap_or_default();
        match part("kind") {
            "Deployment" => deployments.contains(&part("name")),
            // A ReplicaSet may be gone before its pods are; its name still begins with its Deployment's.
            "ReplicaSet" => {
                replica_sets.contains(part("name"))
                    || part("name").rsplit_once('-').is_some_and(|(deployment, _)| deployments.contains(&deployment))
            }
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn known() -> BTreeSet<String> {
        ["mine".to_owned(), "other".to_owned()].into()
    }

    fn child(lifecycle: Option<&str>, owner: Option<(&str, &str)>) -> Value {
        let owners: Vec<Value> = owner.iter().map(|(kind, name)| json!({"kind": kind, "name": name})).collect();
        let mut child = json!({"metadata": {"name": "c", "ownerReferences": owners}});
        if let Some(lifecycle) = lifecycle {
            child["metadata"]["annotations"] = json!({ANNOTATION_LIFECYCLE: lifecycle});
        }
        child
    }

    #[test]
    fn children_are_told_by_owner_and_lifecycle() {
        let known = known();
        let question = AbsenceQuestion { keys: &[], lifecycle_id: "mine", known_lifecycles: &known };
        let sets: BTreeSet<String> = ["odd-name".to_owned()].into();
        let cases = [
            (child(None, None), true),
            (child(Some("mine"), None), true),
            (child(Some("long gone"), None), true),
            (child(Some("other"), None), false),
            (child(None, Some(("Deployment", "a"))), true),
            (child(None, Some(("Deployment", "b"))), false),
            (child(None, Some(("ReplicaSet", "odd-name"))), true),
            (child(None, Some(("ReplicaSet", "a-5d4f"))), true),
            (child(None, Some(("ReplicaSet", "b-5d4f"))), false),
            (child(None, Some(("Job", "a"))), false),
        ];
        for (child, expected) in cases {
            assert_eq!(is_child(&child, &["a"], &sets, &question), expected, "{child}");
        }
    }
}
