//! What is kept of an object when it enters a cache. Pure.

use std::sync::Arc;

use gco_store::problem::bounded;
use serde_json::Value;

use crate::identity::{ANNOTATION_INPUT_HASH, ANNOTATION_LIFECYCLE};
use crate::object::{ObjectKey, ObservedObject, ObservedPod, ObservedReplicaSet, model_port};

/// Longest message of a pod, in characters: the scheduler lists every group of nodes.
const MESSAGE_CHARACTERS: usize = 300;

/// Label by which the Deployment controller tells the pods of one template from those of another.
const LABEL_TEMPLATE: &str = "pod-template-hash";

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}

fn map_entry<'a>(value: &'a Value, map: &str, key: &str) -> Option<&'a str> {
    value.pointer(map)?.get(key)?.as_str()
}

/// The label `app`.
#[must_use]
pub fn app_of(body: &Value) -> Option<&str> {
    map_entry(body, "/metadata/labels", "app")
}

/// An object without managedFields; `None` when it lacks name, uid or version.
#[must_use]
pub fn object(kind: crate::object::Kind, mut body: Value) -> Option<ObservedObject> {
    if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    let name = text(&body, "/metadata/name")?.to_owned();
    let uid = text(&body, "/metadata/uid")?.to_owned();
    let resource_version = text(&body, "/metadata/resourceVersion")?.to_owned();
    let terminating = body.pointer("/metadata/deletionTimestamp").is_some_and(|stamp| !stamp.is_null());
    Some(ObservedObject { key: ObjectKey { kind, name }, uid, resource_version, terminating, body: Arc::new(body) })
}

/// What matters of a ReplicaSet; `None` when it has no name or no `app`.
#[must_use]
pub fn replica_set(body: &Value) -> Option<ObservedReplicaSet> {
    let count = |pointer: &str| {
        body.pointer(pointer).and_then(Value::as_u64).and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
    };
    let revision = map_entry(body, "/metadata/annotations", "deployment.kubernetes.io/revision");
    Some(ObservedReplicaSet {
        name: text(body, "/metadata/name")?.to_owned(),
        app: app_of(body)?.to_owned(),
        revision: revision.and_then(|revision| revision.parse().ok()).unwrap_or(0),
        input_hash: map_entry(body, "/spec/template/metadata/annotations", ANNOTATION_INPUT_HASH).map(str::to_owned),
        template: map_entry(body, "/metadata/labels", LABEL_TEMPLATE).map(str::to_owned),
        replicas: count("/spec/replicas"),
        ready: count("/status/readyReplicas"),
    })
}

/// Why a pod is not ready.
#[derive(Debug, Default)]
struct Why {
    reason: Option<String>,
    message: Option<String>,
}

impl Why {
    fn of(reason: &str, message: Option<&str>) -> Self {
        let message = message.filter(|message| !message.is_empty());
        Self { reason: Some(reason.to_owned()), message: message.map(|message| bounded(message, MESSAGE_CHARACTERS)) }
    }
}

/// What matters of a pod; `None` when it has no name or no `app`.
#[must_use]
pub fn pod(body: &Value) -> Option<ObservedPod> {
    let terminating = body.pointer("/metadata/deletionTimestamp").is_some_and(|stamp| !stamp.is_null());
    let containers: Vec<&Value> = ["/status/initContainerStatuses", "/status/containerStatuses"]
        .iter()
        .filter_map(|pointer| body.pointer(pointer).and_then(Value::as_array))
        .flatten()
        .collect();
    let ready = !terminating && condition(body, "Ready").is_some_and(|ready| text(ready, "/status") == Some("True"));
    let why = if ready { Why::default() } else { why_not_ready(body, &containers, terminating) };
    let restarts = containers
        .iter()
        .filter_map(|container| container.get("restartCount").and_then(Value::as_u64))
        .fold(0_u32, |sum, count| sum.saturating_add(u32::try_from(count).unwrap_or(u32::MAX)));
    let exit_code = if ready { None } else { containers.iter().find_map(|container| crash_of(container)?.1) };
    Some(ObservedPod {
        name: text(body, "/metadata/name")?.to_owned(),
        app: app_of(body)?.to_owned(),
        ready,
        terminating,
        ended: matches!(text(body, "/status/phase"), Some("Failed" | "Succeeded")),
        input_hash: map_entry(body, "/metadata/annotations", ANNOTATION_INPUT_HASH).map(str::to_owned),
        template: map_entry(body, "/metadata/labels", LABEL_TEMPLATE).map(str::to_owned),
        port: body.get("spec").and_then(model_port),
        lifecycle_id: map_entry(body, "/metadata/annotations", ANNOTATION_LIFECYCLE).map(str::to_owned),
        reason: why.reason,
        message: why.message,
        exit_code,
        restarts,
    })
}

fn condition<'a>(body: &'a Value, kind: &str) -> Option<&'a Value> {
    let all = body.pointer("/status/conditions").and_then(Value::as_array)?;
    all.iter().find(|condition| text(condition, "/type") == Some(kind))
}

/// The last crash of a container that is not ready: its reason, and its exit code. A container that ended well (an init
/// container) did not crash.
fn crash_of(container: &Value) -> Option<(&str, Option<i64>)> {
    let terminated = ["/state/terminated", "/lastState/terminated"].iter().find_map(|pointer| {
        container.pointer(pointer).filter(|terminated| terminated.get("exitCode").and_then(Value::as_i64) != Some(0))
    })?;
    Some((text(terminated, "/reason").unwrap_or("Error"), terminated.get("exitCode").and_then(Value::as_i64)))
}

fn why_not_ready(body: &Value, containers: &[&Value], terminating: bool) -> Why {
    if terminating {
        return Why::of("Terminating", None);
    }
    if let Some(scheduled) = condition(body, "PodScheduled")
        && text(scheduled, "/status") == Some("False")
    {
        let reason = text(scheduled, "/reason").unwrap_or("Unschedulable");
        return Why::of(reason, text(scheduled, "/message"));
    }
    if text(body, "/status/phase") == Some("Failed") {
        let reason = text(body, "/status/reason").or_else(|| containers.iter().find_map(|one| Some(crash_of(one)?.0)));
        return Why::of(reason.unwrap_or("Failed"), text(body, "/status/message"));
    }
    // Words of the kubelet that only say "soon" are left for last.
    const SOON: [&str; 2] = ["ContainerCreating", "PodInitializing"];
    let waiting = |soon: bool| {
        containers.iter().find_map(|container| {
            let waiting = container.pointer("/state/waiting")?;
            let reason = text(waiting, "/reason")?;
            (SOON.contains(&reason) == soon).then_some((container, reason, text(waiting, "/message")))
        })
    };
    if let Some((container, reason, message)) = waiting(false) {
        // A crash loop's cause says more than that it is one.
        return match crash_of(container) {
            Some(("OOMKilled", _)) => Why::of("OOMKilled", message),
            _ => Why::of(reason, message),
        };
    }
    let crashed = containers.iter().find_map(|container| {
        container.pointer("/state/terminated")?;
        crash_of(container)
    });
    if let Some((reason, _)) = crashed {
        return Why::of(reason, None);
    }
    if let Some((_, reason, message)) = waiting(true) {
        return Why::of(reason, message);
    }
    match condition(body, "Ready") {
        Some(ready) => Why::of("NotReady", text(ready, "/message")),
        None => Why::of("Pending", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Kind;
    use serde_json::json;

    fn reduced(status: &Value) -> ObservedPod {
        pod(&json!({
            "metadata": {"name": "a-1", "labels": {"app": "a"}, "annotations": {"gco.io/input-hash": "h"}},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_says_why_it_is_not_ready() {
        let unschedulable = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."});
        let not_ready = json!({"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "m"});
        let container = |state: Value, last: Value| {
            json!({"conditions": [not_ready], "phase": "Running",
                "containerStatuses": [{"restartCount": 3, "state": state, "lastState": last}]})
        };
        let oom = json!({"terminated": {"reason": "OOMKilled", "exitCode": 137}});
        let crash = json!({"terminated": {"reason": "Error", "exitCode": 2}});
        let loops = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
        let cases: Vec<(Value, &str, Option<&str>, Option<i64>)> = vec![
            (json!({"phase": "Pending"}), "Pending", None, None),
            (
                json!({"phase": "Pending", "conditions": [unschedulable]}),
                "Unschedulable",
                Some("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
                None,
            ),
            (
                container(json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}), json!({})),
                "ImagePullBackOff",
                Some("no such image"),
                None,
            ),
            (container(loops.clone(), crash.clone()), "CrashLoopBackOff", Some("back-off 10s"), Some(2)),
            (container(loops, oom.clone()), "OOMKilled", Some("back-off 10s"), Some(137)),
            (container(crash, json!({})), "Error", None, Some(2)),
            (
                container(json!({"waiting": {"reason": "ContainerCreating"}}), json!({})),
                "ContainerCreating",
                None,
                None,
            ),
            (container(json!({"running": {}}), json!({})), "NotReady", Some("m"), None),
            (container(json!({"running": {}}), oom), "NotReady", Some("m"), Some(137)),
            (
                json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
                "Evicted",
                Some("low on memory"),
                None,
            ),
        ];
        for (status, reason, message, exit_code) in cases {
            let pod = reduced(&status);
            assert!(!pod.ready);
            assert_eq!(
                (pod.reason.as_deref(), pod.message.as_deref(), pod.exit_code),
                (Some(reason), message, exit_code),
                "{status}"
            );
        }
    }

    #[test]
    fn a_finished_init_container_is_no_crash_and_a_ready_pod_has_no_reason() {
        let done = json!({"state": {"terminated": {"reason": "Completed", "exitCode": 0}}, "restartCount": 1});
        let pod = reduced(&json!({
            "conditions": [{"type": "Ready", "status": "True"}],
            "initContainerStatuses": [done],
            "containerStatuses": [{"restartCount": 2, "state": {"running": {}},
                "lastState": {"terminated": {"reason": "Error", "exitCode": 1}}}],
        }));
        assert!(pod.ready);
        assert_eq!((pod.reason, pod.exit_code, pod.restarts), (None, None, 3));
        assert_eq!(pod.input_hash.as_deref(), Some("h"));
    }

    #[test]
    fn a_terminating_pod_is_never_ready() {
        let pod = pod(&json!({
            "metadata": {"name": "a-1", "labels": {"app": "a"}, "deletionTimestamp": "2025-01-01T00:00:00Z"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap();
        assert!(!pod.ready && pod.terminating);
        assert_eq!(pod.reason.as_deref(), Some("Terminating"));
    }

    #[test]
    fn objects_lose_their_managed_fields_and_nothing_else() {
        let body = json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "5", "managedFields": [{}],
            "labels": {"x": "y"}}, "spec": {"replicas": 1}});
        let object = object(Kind::Deployment, body).unwrap();
        assert_eq!(object.label("x"), Some("y"));
        assert!(object.body["metadata"].get("managedFields").is_none());
        assert!(!object.terminating);
        assert!(super::object(Kind::Deployment, json!({"metadata": {"name": "a"}})).is_none());
    }

    #[test]
    fn a_replica_set_keeps_its_revision_and_hash() {
        let set = replica_set(&json!({
            "metadata": {"name": "a-5d", "labels": {"app": "a"},
                "annotations": {"deployment.kubernetes.io/revision": "12"}},
            "spec": {"replicas": 3, "template": {"metadata": {"annotations": {"gco.io/input-hash": "h"}}}},
            "status": {"readyReplicas": 2},
        }))
        .unwrap();
        assert_eq!((set.revision, set.replicas, set.ready), (12, 3, 2));
        assert_eq!(set.input_hash.as_deref(), Some("h"));
    }
}
