//! Objects that are not (or not plainly) ours.

use super::*;

#[test]
fn objects_of_a_dead_lifecycle_are_handed_off_all_at_once_and_replaced_once_they_are_gone() {
    // D-23: the original deletes one an aborted pass.
    let (old, new) = (identity('1'), identity('2'));
    let mut server = settled(&old);
    for name in ["chat-canary", "chat-prefill", "chat-decode", "chat-proxy"] {
        put(&mut server, Kind::Deployment, name, &our_labels(name), &marks(&old));
    }
    server.known = [new.lifecycle_id.clone()].into();
    let set = desired(&new, |_| {});
    let plan = server.hold(NAME, &new, &set);
    assert_eq!(
        short(&plan),
        [
            "delete deployment/chat-canary",
            "delete deployment/chat-decode",
            "delete deployment/chat-prefill",
            "delete deployment/chat-proxy",
            "delete deployment/chat",
            "delete service/chat",
        ]
    );
    assert!(plan.obstacles.is_empty());
    server.apply(&plan);
    assert_eq!(short(&server.hold(NAME, &new, &set)), ["create deployment/chat", "create service/chat"]);
}

#[test]
fn objects_of_an_earlier_generation_of_the_region_are_handed_off_too() {
    let old = identity('1');
    let new = RowIdentity { region_generation: "8".repeat(64), ..old.clone() };
    let server = settled(&old);
    assert_eq!(
        short(&server.hold(NAME, &new, &desired(&new, |_| {}))),
        ["delete deployment/chat", "delete service/chat"]
    );
    // But a clean-up of the region takes any generation of the lifecycle.
    assert_eq!(
        short(&server.remove(NAME, &CleanUp::RegionRemoved(new))),
        ["delete deployment/chat", "delete service/chat"]
    );
}

#[test]
fn an_object_of_another_row_is_never_touched() {
    // D-5: with the original, `chat` deleted the objects of the endpoint `chat-canary` in every pass.
    let (ours, other) = (identity('1'), identity('2'));
    let mut server = settled(&ours);
    put(&mut server, Kind::Deployment, "chat-canary", &our_labels("chat-canary"), &marks(&other));
    server.known.insert(other.lifecycle_id.clone());
    let set = desired(&ours, |_| {});
    assert_eq!(server.hold(NAME, &ours, &set), Plan::default());
    assert_eq!(short(&server.stop(NAME, &ours)), ["replace deployment/chat"]);
    let plan = server.remove(NAME, &deleted(&ours));
    assert_eq!(short(&plan), ["delete deployment/chat", "delete service/chat"]);
    assert_eq!(obstacles(&plan), [("deployment/chat-canary".to_owned(), obstacle::OTHER_ENDPOINT)]);
    // Under our own name it is in the way, and the rest is done.
    let mut server = Server::new();
    server.known.insert(other.lifecycle_id.clone());
    put(&mut server, Kind::Service, NAME, &our_labels(NAME), &marks(&other));
    let plan = server.hold(NAME, &ours, &set);
    assert_eq!(short(&plan), ["create deployment/chat"]);
    assert_eq!(obstacles(&plan), [("service/chat".to_owned(), obstacle::OTHER_ENDPOINT)]);
}

#[test]
fn a_foreign_object_blocks_only_itself() {
    // D-22.
    let identity = identity('1');
    let strangers: [(Value, Value); 4] = [
        (json!({}), json!({})),
        (json!({"app": NAME}), json!({})),
        // Our labels, but of another app.
        (our_labels("something-else"), json!({})),
        // A dead lifecycle without our labels.
        (json!({"app": NAME}), json!({"gco.io/lifecycle-id": "dead"})),
    ];
    for (labels, annotations) in strangers {
        let mut server = Server::new();
        put(&mut server, Kind::Service, NAME, &labels, &annotations);
        let plan = server.hold(NAME, &identity, &desired(&identity, |_| {}));
        assert_eq!(short(&plan), ["create deployment/chat"]);
        assert_eq!(obstacles(&plan), [("service/chat".to_owned(), obstacle::FOREIGN)]);
        server.apply(&plan);
        let plan = server.remove(NAME, &deleted(&identity));
        assert_eq!(short(&plan), ["delete deployment/chat"], "the rest is finished");
        assert_eq!(obstacles(&plan), [("service/chat".to_owned(), obstacle::FOREIGN)]);
        server.apply(&plan);
        let plan = server.remove(NAME, &deleted(&identity));
        assert_eq!(short(&plan), ["prove absence"]);
        assert_eq!(obstacles(&plan), [("service/chat".to_owned(), obstacle::FOREIGN)], "and it stays visible");
    }
}

/// The objects that the original made for a fixture, as they are in the cluster.
fn original(server: &mut Server, fixture: &str) {
    let path = tests_folder().join(format!("fixtures/original-objects/{fixture}.objects.json"));
    let all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for body in all["objects"].as_array().unwrap() {
        if ["Deployment", "Service"].contains(&body["kind"].as_str().unwrap()) {
            server.post(body.clone());
        }
    }
}

#[test]
fn what_the_original_made_is_left_alone_whole_while_its_pods_run() {
    let row = row("classic-minimal");
    let identity = identity_of(&row, REGION);
    let set = rendered(&row.name, &identity, &spec_of(&row));
    let mut server = Server::new();
    original(&mut server, "classic-minimal");
    server.leader = leader(5);
    let plan = server.hold(&row.name, &identity, &set);
    assert_eq!(short(&plan), Vec::<String>::new(), "not even a stamp");
    assert_eq!(obstacles(&plan), [("deployment/chat-small".to_owned(), obstacle::ADOPTION_NOT_SUPPORTED)]);
    // Nor is a Service made for a Deployment whose port has no name.
    server.objects.remove(&key(Kind::Service, "chat-small"));
    assert_eq!(short(&server.hold(&row.name, &identity, &set)), Vec::<String>::new());
}

#[test]
fn what_the_original_made_can_be_stopped_and_is_ours_at_the_next_start() {
    let row = row("classic-minimal");
    let identity = identity_of(&row, REGION);
    let set = rendered(&row.name, &identity, &spec_of(&row));
    let mut server = Server::new();
    original(&mut server, "classic-minimal");
    server.pods.push(ready_pod("chat-small-1", "chat-small", &identity, None));
    let key = key(Kind::Deployment, "chat-small");
    let template = server.objects[&key]["spec"]["template"].clone();
    let plan = server.stop(&row.name, &identity);
    assert_eq!(short(&plan), ["stamp service/chat-small", "replace deployment/chat-small"]);
    server.apply(&plan);
    assert_eq!(server.objects[&key]["spec"]["replicas"], json!(0));
    assert_eq!(server.objects[&key]["spec"]["template"], template, "the template is untouched");
    assert_eq!(server.stop(&row.name, &identity), Plan::default());
    // While its last pod is there, it is still the original's.
    assert_eq!(short(&server.hold(&row.name, &identity, &set)), Vec::<String>::new());
    server.pods.clear();
    let plan = server.hold(&row.name, &identity, &set);
    assert_eq!(short(&plan), ["replace deployment/chat-small", "replace service/chat-small"]);
    let Step::Replace { restarts, .. } = &plan.steps[0] else { panic!() };
    assert!(!restarts, "there is no pod to restart");
    server.apply(&plan);
    assert_eq!(server.hold(&row.name, &identity, &set), Plan::default());
}

#[test]
fn what_the_original_made_can_be_deleted_canary_and_roles_included() {
    for (fixture, count) in [("classic-minimal", 2), ("classic-canary", 4), ("mooncake-disaggregated", 6)] {
        let row = row(fixture);
        let mut server = Server::new();
        original(&mut server, fixture);
        let identity = identity_of(&row, REGION);
        let plan = server.remove(&row.name, &deleted(&identity));
        assert_eq!(plan.steps.len(), count, "{fixture}: {:?}", short(&plan));
        assert!(plan.steps.iter().all(|step| matches!(step, Step::Delete { .. })), "{fixture}");
        assert!(plan.obstacles.is_empty());
    }
}

#[test]
fn an_object_with_our_labels_and_no_lifecycle_is_taken_over_only_if_we_made_it() {
    let identity = identity('1');
    let set = desired(&identity, |_| {});
    let mut server = settled(&identity);
    for key in [deployment(), service()] {
        server.edit(&key, |body| {
            remove(&mut body["metadata"]["annotations"], "gco.io/lifecycle-id");
            remove(&mut body["metadata"]["annotations"], "gco.io/region-generation");
        });
    }
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(short(&plan), ["replace deployment/chat", "replace service/chat"]);
    let Step::Replace { restarts, .. } = &plan.steps[0] else { panic!() };
    assert!(!restarts, "taking over never restarts a pod");

    let mut server = Server::new();
    put(&mut server, Kind::Deployment, NAME, &our_labels(NAME), &json!({}));
    put(&mut server, Kind::Service, NAME, &our_labels(NAME), &json!({}));
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(short(&plan), Vec::<String>::new());
    assert_eq!(obstacles(&plan), [("deployment/chat".to_owned(), obstacle::ADOPTION_NOT_SUPPORTED)]);
    // Deleting needs no more than the exact labels (contract C.5.6).
    assert_eq!(short(&server.remove(NAME, &deleted(&identity))), ["delete deployment/chat", "delete service/chat"]);
}

#[test]
fn another_renderer_keeps_the_live_pod_template_until_the_spec_changes() {
    let identity = identity('1');
    let set = desired(&identity, |_| {});
    for renderer in ["0", "99", "unreadable"] {
        let mut server = settled(&identity);
        server.edit(&deployment(), |body| {
            body["metadata"]["annotations"]["gco.io/renderer"] = json!(renderer);
            pod(body)["terminationGracePeriodSeconds"] = json!(77);
            container(body)["env"] = json!([]);
        });
        assert_eq!(server.hold(NAME, &identity, &set), Plan::default(), "{renderer}: no restart for an upgrade");
        // Everything but the template converges at once, without a restart, and keeps the template's renderer.
        let scaled = desired(&identity, |spec| spec.replicas = 6);
        let (_, restarts, _, body) = replacement(&server.hold(NAME, &identity, &scaled));
        assert!(!restarts);
        assert_eq!(body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"], json!(77));
        assert_eq!(body["metadata"]["annotations"]["gco.io/renderer"], json!(renderer));
        // An edit of the spec renders anew.
        let edited = desired(&identity, |spec| spec.image = "vllm/vllm-openai:v2".to_owned());
        let (_, restarts, _, body) = replacement(&server.hold(NAME, &identity, &edited));
        assert!(restarts);
        assert_eq!(body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"], json!(75));
        assert_eq!(body["metadata"]["annotations"]["gco.io/renderer"], json!(RENDERER_VERSION.to_string()));
    }
}
