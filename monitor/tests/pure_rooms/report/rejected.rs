//! Rows that cannot be served as they are.

use super::*;
use gco_store::problem::FieldProblem;

fn rejected(scene: &Scene, why: &str) -> RegionEntry {
    let Intent::Reject { reason, .. } = decide(&scene.row) else { panic!() };
    assert_eq!(reason, why);
    scene.entry()
}

fn spec_with(item: &mut Item, key: &str, value: Attribute) {
    map(item, "spec").insert(key.to_owned(), value);
}

#[test]
fn an_invalid_spec_is_failed_only_while_nothing_serves() {
    let broken = |mut scene: Scene| {
        let mut item = scene.row.item.clone();
        spec_with(&mut item, "port", Attribute::from(70_000));
        spec_with(&mut item, "gpu_count", Attribute::from(-1));
        scene.row = EndpointRow::parse(item).unwrap();
        scene
    };
    let entry = rejected(&broken(Scene::of(2)), reason::INVALID_SPEC);
    assert_eq!((entry.state.clone(), entry.replicas_ready), (State::Failed, 0));
    assert_eq!(said(&entry, "SpecValid"), ("False", "InvalidSpec"));
    let error = entry.error.unwrap();
    assert!(
        error.starts_with("GCO-1001: ") && error.contains("spec.port") && error.contains("spec.gpu_count"),
        "{error}"
    );

    let scene = broken(Scene::of(2).pods(2, 0));
    let entry = rejected(&scene, reason::INVALID_SPEC);
    assert!(routable(&scene.row, &entry), "a bad edit is no outage");
    assert_eq!((entry.replicas_ready, entry.replicas_desired), (2, 2));
    assert_eq!(said(&entry, "SpecValid"), ("False", "InvalidSpec"));
    assert_eq!(entry.observed_spec.as_ref().unwrap().seen, None);
    assert!(entry.observed_spec.unwrap().serving.is_some());
    assert!(entry.error.is_some());

    let mut scene = Scene::of(1);
    scene.row = row("invalid-spec-not-a-map");
    let entry = rejected(&scene, reason::INVALID_SPEC);
    assert_eq!((entry.state.clone(), entry.replicas_ready, entry.replicas_desired), (State::Failed, 0, 0));
}

#[test]
fn a_kind_that_this_version_does_not_serve_keeps_what_the_original_wrote() {
    for fixture in ["mooncake-disaggregated", "mooncake-store", "mooncake-both-autoscaled"] {
        let scene = scene_of(fixture);
        let stored = original_entry(&scene.row, State::Running, 3, 4);
        let scene = scene.stored(&stored);
        let entry = rejected(&scene, reason::NOT_YET_SUPPORTED);
        assert_eq!(
            (entry.state.clone(), entry.replicas_ready, entry.replicas_desired),
            (State::Running, 3, 4),
            "{fixture}"
        );
        assert_eq!(entry.extra, stored.extra, "{fixture}");
        assert_eq!(said(&entry, "Accepted"), ("False", "NotYetSupported"));
        assert!(entry.error.as_ref().unwrap().starts_with("GCO-1002: spec."), "{fixture}");
        // And is not written again.
        assert_eq!(scene.stored(&entry).report(), None, "{fixture}");
    }
    // Nothing was ever written and nothing runs.
    assert_eq!(rejected(&scene_of("mooncake-store"), reason::NOT_YET_SUPPORTED).state, State::Failed);
}

#[test]
fn a_word_that_the_original_left_in_mid_change_does_not_keep_a_serving_endpoint_off_the_routers() {
    // A block that some later version serves.
    let scene = Scene::of(2);
    let identity = identity_of(&scene.row, REGION);
    let stored = original_entry(&scene.row, State::Updating, 0, 2);
    let name = scene.row.name.clone();
    let scene = scene.stored(&stored).pod(ready_pod("a", &name, &identity, None));
    let problems = vec![FieldProblem::new("spec.later", "is not supported by this version yet")];
    let intent = Intent::Reject { identity, reason: reason::NOT_YET_SUPPORTED, problems };
    assert_eq!(scene.report_as(&intent).unwrap().state, State::Running);
}

#[test]
fn a_split_endpoint_with_a_bad_edit_keeps_its_last_word() {
    let mut scene = scene_of("mooncake-disaggregated");
    let stored = original_entry(&scene.row, State::Running, 6, 6);
    scene = scene.stored(&stored);
    let mut item = scene.row.item.clone();
    spec_with(&mut item, "port", Attribute::from(-1));
    scene.row = EndpointRow::parse(item).unwrap();
    let entry = rejected(&scene, reason::INVALID_SPEC);
    assert_eq!((entry.state, entry.replicas_ready), (State::Running, 6));
}

#[test]
fn a_collision_or_a_wrong_namespace_is_told_and_what_runs_goes_on() {
    let scene = Scene::of(1).pods(1, 0);
    let others = BTreeSet::new();
    let context = RegionContext { region: REGION, namespace: NAMESPACE, other_names: &others, frozen: false };
    let Intent::Serve { identity, .. } = gco_monitor::intent::decide(&scene.row, &context) else {
        panic!("not served")
    };
    let problems = vec![FieldProblem::new("endpoint_name", "is another endpoint's")];
    let collision = Intent::Reject { identity, reason: reason::NAME_COLLISION, problems };
    let entry = scene.report_as(&collision).unwrap();
    assert_eq!(entry.state, State::Running);
    assert_eq!(said(&entry, "Accepted"), ("False", "NameCollision"));
    assert!(entry.error.unwrap().starts_with("GCO-1003"));
    let context = RegionContext { region: REGION, namespace: "elsewhere", other_names: &others, frozen: false };
    let entry = Scene::of(1).report_as(&gco_monitor::intent::decide(&scene.row, &context)).unwrap();
    assert_eq!(entry.state, State::Failed);
    assert!(entry.error.unwrap().starts_with("GCO-1004"));
}

#[test]
fn fields_without_effect_are_told() {
    let mut scene = scene_of("unknown-keys");
    scene.now = NOW;
    let entry = scene.entry();
    assert_eq!(said(&entry, "SpecValid"), ("True", "FieldsWithoutEffect"));
    let message = &condition(&entry, "SpecValid").unwrap().message;
    assert!(message.contains("spec.speculative") && message.contains("spec.temperature_default"), "{message}");
}
