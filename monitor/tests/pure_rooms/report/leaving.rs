//! Stopped and removed endpoints.

use super::*;

#[test]
fn a_stop_is_stopping_while_pods_exist_and_then_stopped() {
    let key = key(Kind::Deployment, "chat-small");
    let scene = stopped(Scene::of(2).pods(2, 0));
    let entry = scene.entry();
    assert_eq!((entry.state.clone(), entry.replicas_ready, entry.replicas_desired), (State::Stopping, 2, 2));

    // Scaled down; one pod still drains.
    let mut scene = stopped(Scene::of(2));
    scene.server.edit(&key, |body| body["spec"]["replicas"] = json!(0));
    let draining =
        ObservedPod { ready: false, terminating: true, ..ready_pod("a", "chat-small", &scene.identity(), None) };
    scene.server.pods = vec![draining];
    let entry = scene.entry();
    assert_eq!((entry.state.clone(), entry.replicas_ready, entry.replicas_desired), (State::Stopping, 0, 0));

    // An evicted pod stays as an object for days and is no replica of anything.
    scene.server.pods = vec![waiting_pod("a", "chat-small", &scene.identity(), "Evicted", "")];
    let entry = scene.entry();
    assert_eq!((entry.state.clone(), entry.replicas_ready, entry.replicas_desired), (State::Stopped, 0, 0));
    assert_eq!((entry.error, entry.pods, entry.degraded), (None, Vec::new(), false));

    scene.server.pods.clear();
    scene.server.objects.clear();
    assert_eq!(scene.entry().state, State::Stopped);
}

#[test]
fn a_stop_counts_the_canary_and_the_roles_too() {
    // D-14.
    let mut scene = stopped(Scene::of(1));
    scene.server.edit(&key(Kind::Deployment, "chat-small"), |body| body["spec"]["replicas"] = json!(0));
    scene.server.pods.push(ready_pod("c", "chat-small-canary", &scene.identity(), None));
    let entry = scene.entry();
    assert_eq!((entry.state, entry.replicas_ready), (State::Stopping, 1));
}

#[test]
fn a_removal_is_deleted_after_two_complete_sweeps_and_not_before() {
    let complete = absence(true, &[], &[], &[]);
    for (observations, state) in [(0, State::Deleting), (1, State::Deleting), (2, State::Deleted), (3, State::Deleted)]
    {
        let scene = deleting().done(swept(observations, complete.clone()));
        let entry = scene.entry();
        assert_eq!((entry.state.clone(), entry.absence_observations), (state, Some(observations)));
        assert_eq!((entry.replicas_ready, entry.replicas_desired), (0, 0));
        assert_eq!(entry.lifecycle_id, scene.row.lifecycle_id);
        assert_eq!(entry.deletion_generation, scene.row.deletion_generation);
        assert_eq!(entry.region_generation, None, "the acknowledgement is the deletion's");
        assert_eq!(entry.error, None);
    }
}

#[test]
fn the_acknowledgement_of_a_removed_region_is_the_regions() {
    let row = row("region-removed");
    let intent = crate::support::decide_in(&row, "eu-west-1");
    let done = swept(2, absence(true, &[], &[], &[]));
    let observed = Observed::default();
    let input = ReportInput {
        row: &row,
        region: "eu-west-1",
        intent: &intent,
        observed: &observed,
        done: &done,
        spec_hash: None,
        now: NOW,
    };
    let entry = report(&input).unwrap();
    assert_eq!(entry.state, State::Deleted);
    assert_eq!(entry.region_generation.as_deref(), row.region_generation("eu-west-1"));
    assert_eq!(entry.deletion_generation, None);
}

#[test]
fn what_is_in_the_way_of_a_clean_up_is_told_in_the_contracts_words() {
    // D-22: the original keeps `running` 1/1 on a deleted row.
    let done = swept(
        0,
        absence(false, &["pod/gone-chat-1"], &["service/gone-chat"], &["list pods gone-chat failed (status 500)"]),
    );
    let entry = deleting().done(done).entry();
    assert_eq!(entry.state, State::Deleting);
    assert_eq!(
        entry.error.as_deref(),
        Some(
            "Endpoint cleanup could not be completed: pod/gone-chat-1; list pods gone-chat failed (status 500); \
             service/gone-chat is not ours"
        )
    );
    assert_eq!(entry.blocked_by, ["service/gone-chat"]);
    // While deletes are simply under way, nothing is wrong.
    assert_eq!(deleting().done(swept(0, None)).entry().error, None);
    // Seen by the plan already.
    let done = Done { obstacles: obstructed(obstacle::FOREIGN).obstacles, ..swept(0, None) };
    let entry = deleting().done(done).entry();
    assert_eq!(entry.blocked_by, ["service/chat-small"]);
    assert!(entry.error.unwrap().starts_with("Endpoint cleanup could not be completed: "));
    // Bounded.
    let many = vec!["pod/gone-chat-with-a-long-name"; 200];
    let entry = deleting().done(swept(0, absence(false, &many, &[], &[]))).entry();
    assert!(entry.error.unwrap().chars().count() <= codes::LONGEST_ERROR);
}
