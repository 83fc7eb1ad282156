//! Templates that are kept though the current renderer would write another, and restarts that no edit asked for.

use super::*;
use gco_monitor::report::restarts::{RestartState, unasked_restart};

/// The scene's Deployment with a template of the original's, taken over, and a ready pod of it.
fn adopted(env: Option<Value>) -> Scene {
    let mut scene = Scene::of(1);
    let key = key(Kind::Deployment, "chat-small");
    let spec = spec_of(&scene.row);
    let mut pod_spec = gco_monitor::render::original::pod_spec("chat-small", &spec.image, &spec);
    if let Some(env) = env {
        pod_spec["containers"][0]["env"] = env;
    }
    scene.server.edit(&key, |body| {
        body["metadata"]["annotations"]["gco.io/renderer"] = json!("original");
        body["spec"]["template"]["spec"] = pod_spec;
        body["spec"]["template"]["metadata"]["annotations"] = json!({});
    });
    let pod = ready_pod("a", "chat-small", &scene.identity(), None);
    scene.pod(pod)
}

#[test]
fn a_template_that_was_taken_over_is_named_with_what_the_original_never_applied() {
    let scene = adopted(None);
    let entry = scene.entry();
    assert_eq!(said(&entry, "TemplateCurrent"), ("False", "Adopted"));
    let observed = entry.observed_spec.clone().unwrap();
    assert_eq!((&observed.seen, &observed.applied), (&observed.serving, &observed.serving), "it stands for the row");
    assert_eq!(entry.state, State::Running);
    let message = |entry: &RegionEntry| {
        entry.conditions.iter().find(|one| one.kind == "TemplateCurrent").unwrap().message.clone()
    };
    assert!(!message(&entry).contains("never applied"), "{}", message(&entry));
    let scene = adopted(Some(json!([{"name": "OLD", "value": "secret"}])));
    let message = message(&scene.entry());
    assert!(message.contains("env.OLD") && message.contains("refresh") && !message.contains("secret"), "{message}");
    // What we rendered ourselves says nothing of the kind.
    let entry = Scene::of(1).pods(1, 0).entry();
    assert!(!entry.conditions.iter().any(|one| one.kind == "TemplateCurrent"));
}

#[test]
fn a_restart_that_is_held_back_is_said_and_is_no_error() {
    for reason in [obstacle::RESTART_WAITS, obstacle::RESTARTS_STOPPED] {
        let entry = Scene::of(1).pods(1, 0).done(obstructed(reason)).entry();
        assert_eq!(said(&entry, "RestartHeld"), ("True", reason));
        assert_eq!((entry.state, entry.error), (State::Running, None));
    }
}

#[test]
fn a_restart_counts_until_it_is_over_and_as_failed_when_a_new_pod_says_why() {
    let key = key(Kind::Deployment, "chat-small");
    let state = |scene: &Scene| {
        let observed = Observed { replica_sets: scene.sets.clone(), ..scene.server.observed() };
        unasked_restart(&observed, &observed.objects[&key]).map(|restart| restart.state)
    };
    let under_way = json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "conditions": [
        {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}]});
    let mut scene = Scene::of(1);
    scene.status(under_way.clone());
    assert_eq!(state(&scene), None, "an edit asked for it");
    scene.server.edit(&key, |body| body["metadata"]["annotations"]["gco.io/restart-cause"] = json!("edit"));
    assert_eq!(state(&scene), None);
    scene.server.edit(&key, |body| {
        body["metadata"]["annotations"]["gco.io/restart-cause"] = json!(format!("{NOW} refresh"));
    });
    assert_eq!(state(&scene), Some(RestartState::UnderWay));
    let identity = scene.identity();
    let set = |revision: u64, template: &str| ObservedReplicaSet {
        name: format!("chat-small-{template}"),
        app: "chat-small".to_owned(),
        revision,
        input_hash: None,
        template: Some(template.to_owned()),
        replicas: 1,
        ready: 0,
    };
    scene.sets = vec![set(7, "old"), set(1, "new")];
    let crashing = |template: &str| ObservedPod {
        template: Some(template.to_owned()),
        exit_code: Some(1),
        ..waiting_pod("a", "chat-small", &identity, "CrashLoopBackOff", "")
    };
    let mut scene = scene.pod(crashing("old"));
    assert_eq!(state(&scene), Some(RestartState::UnderWay), "a pod of before says nothing about it");
    scene.server.pods = vec![crashing("new")];
    assert_eq!(state(&scene), Some(RestartState::Failed));
    scene.server.pods.clear();
    scene.status(json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "conditions": [
        {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "m"}]}));
    assert_eq!(state(&scene), Some(RestartState::Failed));
    scene.status(json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "conditions": [
        {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]}));
    assert_eq!(state(&scene), None, "over");
    // Also where the template carries the hash of before: what changed is something else.
    scene.sets = vec![ObservedReplicaSet { input_hash: Some(scene.hash()), ..set(1, "new") }];
    assert_eq!(state(&scene), None);
    scene.server.edit(&key, |body| body["metadata"]["generation"] = json!(2));
    assert_eq!(state(&scene), Some(RestartState::UnderWay), "written, and not seen by its controller yet");
}
