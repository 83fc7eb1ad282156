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

#[test]
fn what_the_original_made_can_be_deleted_canary_and_roles_included() {
    for (fixture, count) in [("classic-minimal", 2), ("classic-canary", 4), ("mooncake-disaggregated", 6)] {
        let row = row(fixture);
        let mut server = Server::new();
        made_by_the_original(&mut server, fixture);
        let identity = identity_of(&row, REGION);
        let plan = server.remove(&row.name, &deleted(&identity));
        assert_eq!(plan.steps.len(), count, "{fixture}: {:?}", short(&plan));
        assert!(plan.steps.iter().all(|step| matches!(step, Step::Delete { .. })), "{fixture}");
        assert!(plan.obstacles.is_empty());
    }
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
