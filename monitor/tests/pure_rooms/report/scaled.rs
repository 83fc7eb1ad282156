//! What a region says of an endpoint whose count belongs to an autoscaler.

use gco_store::status::Autoscaler;

use super::*;

fn hpa_key(name: &str) -> gco_monitor::object::ObjectKey {
    key(Kind::HorizontalPodAutoscaler, name)
}

/// An autoscaled fixture, its objects rendered, with this live count and this many ready pods.
fn scaled(fixture: &str, count: u32, ready: usize) -> Scene {
    let row = row_with(fixture, |item| {
        item.insert("desired_state".to_owned(), Attribute::from("running"));
        item.insert("region_status".to_owned(), Attribute::Map(Item::new()));
    });
    let mut scene = Scene { row, server: Server::new(), sets: Vec::new(), done: Done::default(), now: NOW };
    let set = rendered(&scene.row.name, &scene.identity(), &spec_of(&scene.row));
    scene.server.apply(&scene.server.hold(&scene.row.name, &scene.identity(), &set));
    let deployment = key(Kind::Deployment, &scene.row.name);
    scene.server.edit(&deployment, |body| body["spec"]["replicas"] = json!(count));
    scene.pods(ready, 0)
}

/// Conditions of a HorizontalPodAutoscaler.
fn says(scene: &mut Scene, name: &str, conditions: &[(&str, &str, &str)]) {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(kind, status, reason)| json!({"type": kind, "status": status, "reason": reason, "message": "17 s ago"}))
        .collect();
    scene.server.edit(&hpa_key(name), |body| body["status"] = json!({"conditions": conditions}));
}

const WORKS: [(&str, &str, &str); 2] =
    [("AbleToScale", "True", "ReadyForNewScale"), ("ScalingActive", "True", "ValidMetricFound")];

#[test]
fn an_autoscaled_endpoint_says_who_scales_it_between_which_bounds_and_how_many_it_has() {
    let mut scene = scaled("classic-hpa", 5, 5);
    says(&mut scene, "chat-hpa", &WORKS);
    let entry = scene.entry();
    let autoscaler = Autoscaler { kind: "hpa".to_owned(), min_replicas: 2, max_replicas: 8, replicas: 5 };
    assert_eq!(entry.autoscaler, Some(autoscaler));
    assert_eq!((entry.state.clone(), entry.replicas_ready, entry.replicas_desired), (State::Running, 5, 5));
    assert_eq!(said(&entry, "Autoscaling"), ("True", "Active"));
}

#[test]
fn fewer_pods_than_the_autoscaler_wishes_are_no_degradation_as_long_as_the_least_are_ready() {
    for (ready, degraded, reason) in [(5, false, "PodsReady"), (2, false, "PodsReady"), (1, true, "FewerPodsThanAsked")]
    {
        let entry = scaled("classic-hpa", 5, ready).entry();
        assert_eq!((entry.degraded, said(&entry, "Ready").1), (degraded, reason), "{ready}");
        assert_eq!(entry.state, State::Running);
    }
}

#[test]
fn an_autoscaler_that_cannot_work_is_told_in_words_that_do_not_change_from_look_to_look() {
    let cases = [
        (vec![], ("False", "NotYetActive")),
        (vec![("AbleToScale", "False", "FailedGetScale")], ("False", "FailedGetScale")),
        (vec![WORKS[0], ("ScalingActive", "False", "FailedGetResourceMetric")], ("False", "FailedGetResourceMetric")),
        (vec![WORKS[0], WORKS[1], ("ScalingLimited", "True", "TooManyReplicas")], ("True", "AtMaximum")),
        // At its least an endpoint is simply idle.
        (vec![WORKS[0], WORKS[1], ("ScalingLimited", "True", "TooFewReplicas")], ("True", "Active")),
    ];
    for (conditions, expected) in cases {
        let mut scene = scaled("classic-hpa", 2, 2);
        says(&mut scene, "chat-hpa", &conditions);
        let entry = scene.entry();
        assert_eq!(said(&entry, "Autoscaling"), expected);
        let words = &condition(&entry, "Autoscaling").unwrap().message;
        assert!(!words.contains("17 s"), "{words}");
        assert_eq!(scene.stored(&entry).report(), None);
    }
}

#[test]
fn a_cluster_without_keda_serves_on_and_says_what_is_missing() {
    let mut scene = scaled("classic-keda-gpu", 4, 4);
    scene.server.objects.remove(&key(Kind::ScaledObject, "chat-keda"));
    scene.server.missing.insert(Kind::ScaledObject);
    let entry = scene.entry();
    assert_eq!((entry.state.clone(), entry.replicas_ready, entry.replicas_desired), (State::Running, 4, 4));
    assert_eq!(said(&entry, "Autoscaling"), ("False", "KedaNotInstalled"));
    assert!(condition(&entry, "Autoscaling").unwrap().message.contains("install KEDA"));
    assert_eq!((entry.autoscaler, entry.error), (None, None));
}

#[test]
fn kedas_own_autoscaler_speaks_for_it() {
    let mut scene = scaled("classic-keda-gpu", 4, 4);
    assert_eq!(said(&scene.entry(), "Autoscaling"), ("False", "NotYetActive"));
    let owner =
        json!([{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "chat-keda", "controller": true}]);
    scene.server.post(json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "spec": {},
        "metadata": {"name": "keda-hpa-chat-keda", "namespace": NAMESPACE, "ownerReferences": owner}}));
    says(&mut scene, "keda-hpa-chat-keda", &WORKS);
    let entry = scene.entry();
    assert_eq!(said(&entry, "Autoscaling"), ("True", "Active"));
    assert_eq!(entry.autoscaler.as_ref().map(|one| (one.kind.as_str(), one.max_replicas)), Some(("keda", 10)));
    // What KEDA itself refuses comes first.
    let refused = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "ScaledObjectCheckFailed"}]});
    scene.server.edit(&key(Kind::ScaledObject, "chat-keda"), |body| body["status"] = refused);
    assert_eq!(said(&scene.entry(), "Autoscaling"), ("False", "ScaledObjectCheckFailed"));
}

#[test]
fn a_static_endpoint_has_no_word_about_autoscaling() {
    let entry = Scene::of(2).pods(2, 0).entry();
    assert_eq!(condition(&entry, "Autoscaling"), None);
    assert_eq!(entry.autoscaler, None);
}

#[test]
fn a_stop_is_not_over_before_the_autoscaler_is_gone() {
    let mut scene = scaled("classic-hpa", 0, 0);
    let mut item = scene.row.item.clone();
    item.insert("desired_state".to_owned(), Attribute::from("stopped"));
    scene.row = EndpointRow::parse(item).unwrap();
    assert_eq!(scene.entry().state, State::Stopping);
    scene.server.objects.remove(&hpa_key("chat-hpa"));
    assert_eq!(scene.entry().state, State::Stopped);
}
