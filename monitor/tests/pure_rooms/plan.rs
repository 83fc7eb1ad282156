//! Plans, situation by situation.

mod adoption;
mod drift;
mod restarts;
mod scaling;
mod whose;

use gco_monitor::identity::{ANNOTATION_LEADER_EPOCH, ANNOTATION_LEADER_TERM, RowIdentity};
use gco_monitor::intent::CleanUp;
use gco_monitor::object::{DesiredSet, Kind, ObjectKey};
use gco_monitor::plan::{Plan, Step, digest, inventory, inventory_of, obstacle};
use gco_monitor::render::RENDERER_VERSION;
use gco_store::spec::Spec;
use gco_store::wire::{Item, Value as Attribute};
use serde_json::{Value, json};

use crate::server::{Server, key};
use crate::support::{
    NAMESPACE, REGION, identity, identity_of, leader, map, ready_pod, rendered, row, row_with, small_spec, spec_of,
    tests_folder, texts,
};

const NAME: &str = "chat";

/// A change of a spec.
type Edit = fn(&mut Spec);
/// A change of a live object by hand.
type Drift = fn(&mut Value);

fn spec(change: impl FnOnce(&mut Spec)) -> Spec {
    let mut spec = small_spec();
    spec.replicas = 2;
    spec.env = texts(&[("MODEL", "secret-model"), ("TOKEN", "secret-token")]);
    change(&mut spec);
    spec
}

fn desired(identity: &RowIdentity, change: impl FnOnce(&mut Spec)) -> DesiredSet {
    rendered(NAME, identity, &spec(change))
}

/// A server on which the endpoint is at rest, its lifecycle known.
fn settled(identity: &RowIdentity) -> Server {
    let mut server = Server::new();
    server.known.insert(identity.lifecycle_id.clone());
    let set = desired(identity, |_| {});
    server.apply(&server.hold(NAME, identity, &set));
    assert_eq!(server.hold(NAME, identity, &set), Plan::default(), "at rest a plan is empty");
    server
}

fn deployment() -> ObjectKey {
    key(Kind::Deployment, NAME)
}

fn service() -> ObjectKey {
    key(Kind::Service, NAME)
}

/// A step in short.
fn short(plan: &Plan) -> Vec<String> {
    let word = |step: &Step| match step {
        Step::Create { key, .. } => format!("create {key}"),
        Step::Replace { key, .. } => format!("replace {key}"),
        Step::Stamp { key, .. } => format!("stamp {key}"),
        Step::Delete { key, .. } => format!("delete {key}"),
        Step::ProveAbsence => "prove absence".to_owned(),
    };
    plan.steps.iter().map(word).collect()
}

fn obstacles(plan: &Plan) -> Vec<(String, &'static str)> {
    plan.obstacles.iter().map(|one| (one.key.to_string(), one.reason)).collect()
}

/// The only step, which is a replacement: reason, restarts, scales down, body.
fn replacement(plan: &Plan) -> (String, bool, bool, Value) {
    match plan.steps.as_slice() {
        [Step::Replace { reason, restarts, scales_down, body, .. }] => {
            (reason.clone(), *restarts, *scales_down, body.clone())
        }
        other => panic!("{other:#?}"),
    }
}

/// An object under one of the endpoint's names, as its row (or a stranger) would have made it.
fn put(server: &mut Server, kind: Kind, name: &str, labels: &Value, annotations: &Value) -> ObjectKey {
    let (api, word, spec) = match kind {
        Kind::Service => ("v1", "Service", json!({"ports": [{"port": 80}], "selector": {"app": name}})),
        _ => (
            "apps/v1",
            "Deployment",
            json!({"replicas": 1, "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}},
                    "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}),
        ),
    };
    server.post(json!({"apiVersion": api, "kind": word, "spec": spec,
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels, "annotations": annotations}}))
}

fn our_labels(name: &str) -> Value {
    json!({"app": name, "project": "gco", "gco.io/type": "inference"})
}

fn marks(identity: &RowIdentity) -> Value {
    json!({"gco.io/lifecycle-id": identity.lifecycle_id, "gco.io/region-generation": identity.region_generation})
}

/// The objects that the original made for a fixture, as they are in the cluster.
fn made_by_the_original(server: &mut Server, fixture: &str) {
    let path = tests_folder().join(format!("fixtures/original-objects/{fixture}.objects.json"));
    let all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for body in all["objects"].as_array().unwrap() {
        if ["Deployment", "Service"].contains(&body["kind"].as_str().unwrap()) {
            server.post(body.clone());
        }
    }
}

#[test]
fn an_absent_endpoint_is_created_deployment_first_with_the_leaders_marks_on_metadata_only() {
    let identity = identity('1');
    let server = Server::new();
    let plan = server.hold(NAME, &identity, &desired(&identity, |_| {}));
    assert_eq!(short(&plan), ["create deployment/chat", "create service/chat"]);
    for step in &plan.steps {
        let Step::Create { body, .. } = step else { panic!() };
        let annotations = &body["metadata"]["annotations"];
        assert_eq!(annotations[ANNOTATION_LEADER_TERM], json!("1"));
        assert_eq!(annotations[ANNOTATION_LEADER_EPOCH], json!(leader(1).epoch));
        assert!(!body["spec"].to_string().contains("leader"), "never in a template (D-8)");
    }
}

#[test]
fn a_new_leader_writes_nothing_to_an_endpoint_at_rest() {
    // D-8: with the original, each change of leader rolled every proxy.
    let identity = identity('1');
    let mut server = settled(&identity);
    server.leader = leader(7);
    assert_eq!(server.hold(NAME, &identity, &desired(&identity, |_| {})), Plan::default());
}

#[test]
fn the_first_act_of_a_term_stamps_every_other_object_of_the_endpoint_before_it_acts() {
    let identity = identity('1');
    let mut server = settled(&identity);
    server.leader = leader(7);
    let set = desired(&identity, |spec| spec.image = "vllm/vllm-openai:v2".to_owned());
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(short(&plan), ["stamp service/chat", "replace deployment/chat"]);
    let Step::Stamp { annotations, .. } = &plan.steps[0] else { panic!() };
    assert_eq!(*annotations, leader(7).annotations());
    server.apply(&plan);
    // The second act of the term stamps nothing more.
    let set = desired(&identity, |spec| spec.image = "vllm/vllm-openai:v3".to_owned());
    assert_eq!(short(&server.hold(NAME, &identity, &set)), ["replace deployment/chat"]);
}

#[test]
fn every_field_of_an_edit_reaches_a_running_workload_with_a_reason_that_names_it() {
    // D-7.
    let identity = identity('1');
    let edits: Vec<(Edit, &str, bool)> = vec![
        (
            |spec| spec.image = "vllm/vllm-openai:v2".into(),
            "spec.template.spec.containers[inference].image: changed",
            true,
        ),
        (|spec| spec.args = vec!["--x".into()], "spec.template.spec.containers[inference].args: changed", true),
        (
            |spec| spec.command = Some(vec!["x".into()]),
            "spec.template.spec.containers[inference].command: missing",
            true,
        ),
        (
            |spec| {
                spec.env.remove("MODEL");
            },
            "spec.template.spec.containers[inference].env.MODEL: unexpected",
            true,
        ),
        (
            |spec| {
                spec.env.insert("TOKEN".into(), "other-secret".into());
            },
            "spec.template.spec.containers[inference].env.TOKEN: changed",
            true,
        ),
        (|spec| spec.port = 9000, "spec.template.spec.containers[inference].ports[9000]: missing", true),
        (
            |spec| spec.gpu_count = 2,
            "spec.template.spec.containers[inference].resources.limits.nvidia.com/gpu: changed",
            true,
        ),
        (
            |spec| spec.health_check_path = "/ok".into(),
            "spec.template.spec.containers[inference].livenessProbe.httpGet.path: changed",
            true,
        ),
        (|spec| spec.model_path = Some("/m".into()), "spec.template.spec.volumes: missing", true),
        (|spec| spec.node_selector = texts(&[("a", "b")]), "spec.template.spec.nodeSelector.a: missing", true),
        (|spec| spec.replicas = 5, "spec.replicas: changed", false),
        (|spec| spec.max_surge = 1, "spec.strategy.rollingUpdate.maxSurge: changed", false),
        (|spec| spec.drain_seconds = 5, "spec.template.spec.terminationGracePeriodSeconds: changed", true),
    ];
    for (edit, words, restarts) in edits {
        let mut server = settled(&identity);
        let set = desired(&identity, edit);
        let plan = server.hold(NAME, &identity, &set);
        // All differences, not only those that a bounded reason shows.
        let live = server.objects[&deployment()].clone();
        let found = gco_monitor::plan::compare::differences(Kind::Deployment, &set.objects[0].body, &live);
        assert!(found.iter().any(|one| one.to_string() == words), "{words}: {found:#?}");
        let (reason, restarted, scales_down, _) = replacement(&plan);
        assert_eq!(restarted, restarts, "{reason}");
        assert!(!scales_down, "{reason}");
        assert!(!reason.contains("secret"), "values of variables are nobody's business: {reason}");
        server.apply(&plan);
        assert_eq!(server.hold(NAME, &identity, &set), Plan::default(), "{words}");
    }
}

#[test]
fn scaling_restarts_nothing_and_says_when_it_goes_down() {
    // D-11, D-36.
    let identity = identity('1');
    for (replicas, down) in [(3, false), (1, true), (0, true)] {
        let server = settled(&identity);
        let plan = server.hold(NAME, &identity, &desired(&identity, |spec| spec.replicas = replicas));
        let (reason, restarts, scales_down, body) = replacement(&plan);
        assert_eq!((restarts, scales_down), (false, down), "{reason}");
        assert_eq!(body["spec"]["replicas"], json!(replicas));
    }
}

#[test]
fn a_dying_object_is_not_written_and_its_place_is_waited_for() {
    let identity = identity('1');
    let mut server = settled(&identity);
    server.edit(&deployment(), |body| body["metadata"]["deletionTimestamp"] = json!("2026-11-29T11:00:00Z"));
    let set = desired(&identity, |spec| spec.replicas = 9);
    for plan in [server.hold(NAME, &identity, &set), server.stop(NAME, &identity)] {
        assert_eq!(short(&plan), Vec::<String>::new());
        assert_eq!(obstacles(&plan), [("deployment/chat".to_owned(), obstacle::TERMINATING)]);
    }
    let plan = server.remove(NAME, &deleted(&identity));
    assert_eq!(short(&plan), ["delete service/chat"], "no proof of absence while something is seen");
    assert_eq!(obstacles(&plan), [("deployment/chat".to_owned(), obstacle::TERMINATING)]);
}

#[test]
fn a_stopped_endpoint_holds_no_pods_at_all_and_then_rests() {
    // D-14: with the original the canary's pods go on running.
    let identity = identity('1');
    let mut server = settled(&identity);
    put(&mut server, Kind::Deployment, "chat-canary", &our_labels("chat-canary"), &marks(&identity));
    let plan = server.stop(NAME, &identity);
    assert_eq!(
        short(&plan),
        ["stamp service/chat", "replace deployment/chat", "replace deployment/chat-canary"].map(str::to_owned)[1..]
    );
    for step in &plan.steps {
        let Step::Replace { body, restarts, scales_down, .. } = step else { panic!() };
        assert_eq!(body["spec"]["replicas"], json!(0));
        assert_eq!((*restarts, *scales_down), (false, true));
    }
    server.apply(&plan);
    assert_eq!(server.stop(NAME, &identity), Plan::default());
    // Started again, with another spec: the new template comes with the replicas, and no pod is restarted.
    server.objects.remove(&key(Kind::Deployment, "chat-canary"));
    let set = desired(&identity, |spec| spec.image = "vllm/vllm-openai:v2".to_owned());
    let (_, restarts, scales_down, body) = replacement(&server.hold(NAME, &identity, &set));
    assert_eq!((restarts, scales_down), (false, false));
    assert_eq!(body["spec"]["replicas"], json!(2));
}

fn deleted(identity: &RowIdentity) -> CleanUp {
    CleanUp::Deleted { lifecycle_id: identity.lifecycle_id.clone(), deletion_generation: "d".repeat(64) }
}

#[test]
fn absence_is_proven_only_when_nothing_is_seen_any_more_pods_included() {
    let identity = identity('1');
    let mut server = settled(&identity);
    let plan = server.remove(NAME, &deleted(&identity));
    assert_eq!(short(&plan), ["delete deployment/chat", "delete service/chat"]);
    server.apply(&plan);
    server.pods.push(ready_pod("chat-1", NAME, &identity, None));
    assert_eq!(server.remove(NAME, &deleted(&identity)), Plan::default(), "its last event wakes us");
    server.pods.clear();
    assert_eq!(short(&server.remove(NAME, &deleted(&identity))), ["prove absence"]);
    // Pods of others under the same label are not ours to wait for.
    server.pods.push(ready_pod("chat-2", NAME, &crate::support::identity('2'), None));
    assert_eq!(short(&server.remove(NAME, &deleted(&identity))), ["prove absence"]);
}

#[test]
fn while_the_table_is_away_nothing_is_deleted_scaled_down_or_taken_over() {
    let identity = identity('1');
    let mut server = settled(&identity);
    server.table_away = true;
    // What was reconciled before is still re-created and restored.
    server.objects.remove(&service());
    server.edit(&deployment(), |body| container(body)["image"] = json!("evil:1"));
    let set = desired(&identity, |_| {});
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(short(&plan), ["replace deployment/chat", "create service/chat"]);
    server.apply(&plan);
    // Scaled up by hand: left, with everything else restored.
    server.edit(&deployment(), |body| body["spec"]["replicas"] = json!(9));
    assert_eq!(server.hold(NAME, &identity, &set), Plan::default());
    server.edit(&deployment(), |body| container(body)["image"] = json!("evil:1"));
    let (_, _, scales_down, body) = replacement(&server.hold(NAME, &identity, &set));
    assert!(!scales_down);
    assert_eq!(body["spec"]["replicas"], json!(9));
    // No stop, no removal, no hand-off, no adoption.
    assert_eq!(server.stop(NAME, &identity), Plan::default());
    assert_eq!(server.remove(NAME, &deleted(&identity)), Plan::default());
    let newer = crate::support::identity('2');
    server.known = [newer.lifecycle_id.clone()].into();
    let plan = server.hold(NAME, &newer, &desired(&newer, |_| {}));
    assert_eq!(short(&plan), Vec::<String>::new());
    assert_eq!(plan.obstacles.iter().map(|one| one.reason).collect::<Vec<_>>(), [obstacle::TABLE_AWAY; 2]);
    server.edit(&deployment(), |body| remove(&mut body["metadata"]["annotations"], "gco.io/lifecycle-id"));
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(short(&plan), Vec::<String>::new());
    assert_eq!(obstacles(&plan), [("deployment/chat".to_owned(), obstacle::TABLE_AWAY)]);
}

#[test]
fn a_write_without_effect_is_not_repeated_for_the_same_desire() {
    let identity = identity('1');
    let mut server = settled(&identity);
    server.edit(&deployment(), |body| container(body)["image"] = json!("defaulted:1"));
    let set = desired(&identity, |_| {});
    let (_, _, _, body) = replacement(&server.hold(NAME, &identity, &set));
    server.futile.insert(deployment(), digest(&body));
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(short(&plan), Vec::<String>::new());
    assert_eq!(obstacles(&plan), [("deployment/chat".to_owned(), obstacle::WRITE_WITHOUT_EFFECT)]);
    // Another desire is tried.
    let plan = server.hold(NAME, &identity, &desired(&identity, |spec| spec.replicas = 8));
    assert_eq!(short(&plan), ["replace deployment/chat"]);
}

#[test]
fn a_digest_is_of_the_desire_and_not_of_versions_leaders_addresses_or_others_metadata() {
    let identity = identity('1');
    let mut server = settled(&identity);
    let set = desired(&identity, |spec| spec.replicas = 8);
    let (_, _, _, first) = replacement(&server.hold(NAME, &identity, &set));
    server.leader = leader(9);
    server.edit(&deployment(), |body| body["metadata"]["labels"]["team"] = json!("search"));
    let plan = server.hold(NAME, &identity, &set);
    let Some(Step::Replace { body, .. }) = plan.steps.last() else { panic!() };
    assert_ne!(&first, body);
    assert_eq!(digest(&first), digest(body));
    assert_ne!(digest(&set.objects[0].body), digest(&desired(&identity, |_| {}).objects[0].body));
    assert_eq!(digest(&first).len(), 64);
}

#[test]
fn what_is_not_asked_for_any_more_is_removed_after_what_is_asked_for_serves() {
    // D-13.
    let identity = identity('1');
    let mut server = settled(&identity);
    for (kind, name) in [(Kind::Deployment, "chat-decode"), (Kind::Service, "chat-proxy")] {
        put(&mut server, kind, name, &our_labels(name), &marks(&identity));
    }
    let set = desired(&identity, |_| {});
    let hash = set.objects[0].input_hash.clone();
    assert_eq!(server.hold(NAME, &identity, &set), Plan::default(), "nothing serves yet");
    server.pods.push(ready_pod("chat-1", NAME, &identity, Some("an older spec")));
    assert_eq!(server.hold(NAME, &identity, &set), Plan::default());
    server.pods.push(ready_pod("chat-2", NAME, &identity, hash.as_deref()));
    let edited = desired(&identity, |spec| spec.replicas = 5);
    assert_eq!(
        short(&server.hold(NAME, &identity, &edited)).last().unwrap(),
        "replace deployment/chat",
        "one thing after the other"
    );
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(short(&plan), ["delete deployment/chat-decode", "delete service/chat-proxy"]);
    server.apply(&plan);
    assert_eq!(server.hold(NAME, &identity, &set), Plan::default());
}

#[test]
fn the_inventory_is_the_contracts_in_its_order() {
    let names: Vec<String> = inventory("n").iter().map(ToString::to_string).collect();
    let expected = "scaledobject/n scaledobject/n-prefill scaledobject/n-decode \
        hpa/n hpa/n-prefill hpa/n-decode hpa/keda-hpa-n hpa/keda-hpa-n-prefill hpa/keda-hpa-n-decode \
        deployment/n deployment/n-canary deployment/n-prefill deployment/n-decode deployment/n-proxy \
        service/n service/n-canary service/n-prefill service/n-decode service/n-proxy \
        configmap/n-mooncake configmap/n-pd-proxy configmap/n-tls-proxy \
        ingress/n ingress/n-canary ingress/n-proxy httproute/n httproute/n-canary httproute/n-proxy secret/n-admin";
    assert_eq!(names.join(" "), expected);
}

#[test]
fn a_secret_that_the_row_names_itself_is_not_in_its_inventory() {
    let named = |secret: &str| {
        row_with("mooncake-store", |item| {
            let proxy = Item::from([("admin_api_key_secret".to_owned(), Attribute::from(secret))]);
            let block = map(map(item, "spec"), "mooncake");
            block.insert("proxy".to_owned(), Attribute::Map(proxy));
        })
    };
    let secrets = |row| inventory_of(&row).iter().filter(|key| key.kind == Kind::Secret).count();
    assert_eq!(secrets(named("shared-store-admin")), 0);
    assert_eq!(secrets(named("another")), 1);
    assert_eq!(secrets(row("mooncake-store")), 1);
}

fn pod(body: &mut Value) -> &mut Value {
    &mut body["spec"]["template"]["spec"]
}

fn container(body: &mut Value) -> &mut Value {
    &mut pod(body)["containers"][0]
}

fn remove(map: &mut Value, name: &str) {
    map.as_object_mut().unwrap().remove(name).unwrap();
}
