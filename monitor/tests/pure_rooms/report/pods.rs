//! Pods and their reasons.

use super::*;

#[test]
fn pods_say_why_they_are_not_ready_one_line_per_reason() {
    let identity = Scene::of(1).identity();
    let pod = |name: &str, reason: &str, message: &str, exit_code| ObservedPod {
        exit_code,
        restarts: u32::from(exit_code.is_some()),
        ..waiting_pod(name, "chat-small", &identity, reason, message)
    };
    let words = "0/5 nodes are available: 5 Insufficient nvidia.com/gpu.";
    let cases = [
        (
            pod("a", "ErrImagePull", "manifest unknown", None),
            "ImagePullBackOff",
            "manifest unknown",
            Some(codes::IMAGE),
        ),
        (pod("a", "Unschedulable", words, None), "Unschedulable", words, Some(codes::UNSCHEDULABLE)),
        (
            pod("a", "CrashLoopBackOff", "back-off 2m40s restarting", Some(1)),
            "CrashLoopBackOff",
            "the container keeps ending with exit code 1",
            Some(codes::CRASHING),
        ),
        (
            pod("a", "OOMKilled", "back-off 20s", Some(137)),
            "OOMKilled",
            "the container keeps ending with exit code 137",
            Some(codes::OUT_OF_MEMORY),
        ),
        (
            pod("a", "CreateContainerConfigError", "secret \"x\" not found", None),
            "CreateContainerConfigError",
            "secret \"x\" not found",
            Some(codes::CONTAINER),
        ),
        (
            pod("a", "NotReady", "containers with unready status", None),
            "NotReady",
            "containers with unready status",
            None,
        ),
        (pod("a", "ContainerCreating", "", None), "ContainerCreating", "", None),
    ];
    for (pod, reason, message, code) in cases {
        let exit_code = pod.exit_code;
        let entry = Scene::of(1).pod(pod).entry();
        assert_eq!(entry.pods.len(), 1);
        let line = &entry.pods[0];
        assert_eq!((line.reason.as_str(), line.message.as_str(), line.count), (reason, message, 1));
        assert_eq!((line.example.as_str(), line.exit_code), ("a", exit_code));
        assert_eq!(entry.error.map(|error| error[..8].to_owned()), code.map(|code| code.code.to_owned()), "{reason}");
    }
    // Counted, the most frequent first, terminating ones left out, at most eight.
    let mut scene = Scene::of(3).pod(pod("z", "Unschedulable", words, None)).pod(pod("y", "NotReady", "m", None));
    scene = scene.pod(pod("b", "Unschedulable", "later words", None));
    scene = scene.pod(ObservedPod { terminating: true, ..pod("t", "Terminating", "", None) });
    for number in 0..12 {
        scene = scene.pod(pod("n", &format!("Reason{number}"), "", None));
    }
    let entry = scene.entry();
    assert_eq!(entry.pods.len(), 8);
    assert_eq!(
        (entry.pods[0].reason.as_str(), entry.pods[0].count, entry.pods[0].example.as_str()),
        ("Unschedulable", 2, "b")
    );
    // With a pod that serves, a failing one is told and is no error.
    let entry = Scene::of(2).pods(1, 0).pod(pod("a", "CrashLoopBackOff", "", Some(2))).entry();
    assert_eq!((entry.state.clone(), entry.degraded, entry.error.clone()), (State::Running, true, None));
    assert_eq!(entry.pods[0].exit_code, Some(2));
}

#[test]
fn a_crashing_pod_does_not_rewrite_the_row_with_every_phase_of_its_crash() {
    // D-15: each write of the row makes an operator's edit fail.
    let identity = Scene::of(1).identity();
    let phase = |reason: &str, message: &str, exit_code| ObservedPod {
        exit_code: Some(exit_code),
        restarts: 3,
        ..waiting_pod("a", "chat-small", &identity, reason, message)
    };
    for (exit_code, first, others) in [
        (1, "CrashLoopBackOff", vec!["NotReady", "Error", "CrashLoopBackOff"]),
        (137, "OOMKilled", vec!["NotReady", "CrashLoopBackOff", "OOMKilled"]),
    ] {
        let stored = Scene::of(1).pod(phase(first, "back-off 10s", exit_code)).entry();
        for (number, reason) in others.into_iter().enumerate() {
            let mut scene = Scene::of(1).pod(phase(reason, &format!("back-off {number}m"), exit_code)).stored(&stored);
            scene.now = LATER;
            assert_eq!(scene.report(), None, "{first} {reason}");
        }
    }
    let stored = Scene::of(1).pod(waiting_pod("a", "chat-small", &identity, "ErrImagePull", "m")).entry();
    let scene = Scene::of(1).pod(waiting_pod("a", "chat-small", &identity, "ImagePullBackOff", "m")).stored(&stored);
    assert_eq!(scene.report(), None);
}

#[test]
fn the_order_of_pods_changes_nothing() {
    let identity = Scene::of(1).identity();
    let pod = |name: &str, message: &str| waiting_pod(name, "chat-small", &identity, "NotReady", message);
    let one = Scene::of(1).pod(pod("a", "first")).pod(pod("b", "second")).entry();
    let other = Scene::of(1).pod(pod("b", "second")).pod(pod("a", "first")).entry();
    assert_eq!(one, other);
}

#[test]
fn hashes_say_what_was_seen_applied_and_serves() {
    let scene = Scene::of(2).pods(2, 0);
    let hash = Some(scene.hash());
    let spec = scene.entry().observed_spec.unwrap();
    assert_eq!((spec.seen.clone(), spec.applied.clone(), spec.serving), (hash.clone(), hash.clone(), hash.clone()));
    let mixed = Scene::of(2).pods(1, 0).pod(ready_pod("old", "chat-small", &scene.identity(), Some("old")));
    let spec = mixed.entry().observed_spec.unwrap();
    assert_eq!((spec.applied, spec.serving), (hash, None), "pods of several specs serve");
    let spec = Scene::of(2).entry().observed_spec.unwrap();
    assert_eq!(spec.serving, None, "nothing serves");
}

#[test]
fn pods_of_an_earlier_lifecycle_are_not_counted() {
    let stranger = crate::support::identity('f');
    let scene = Scene::of(1).pod(ready_pod("old", "chat-small", &stranger, None));
    assert_eq!(scene.entry().state, State::Creating);
    let scene = Scene::of(1).pod(ready_pod("other", "another-app", &Scene::of(1).identity(), None));
    assert_eq!(scene.entry().state, State::Creating);
}

#[test]
fn an_endpoint_from_before_lifecycles_goes_on_being_routed_to() {
    let mut scene = Scene::of(1);
    let key = key(Kind::Deployment, "chat-small");
    let unmark = |body: &mut Value| {
        body["metadata"]["annotations"] = json!({});
        body["spec"]["template"]["metadata"]["annotations"] = json!({});
    };
    scene.server.edit(&key, unmark);
    let pod = ObservedPod { lifecycle_id: None, ..ready_pod("a", "chat-small", &scene.identity(), None) };
    let entry = scene.pod(pod).entry();
    assert_eq!(entry.state, State::Running);
}
