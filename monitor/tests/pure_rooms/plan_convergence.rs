//! Properties of plans, over generated specs and disturbances: one pass is enough, and then there is rest.

use std::collections::BTreeMap;

use gco_monitor::object::{DesiredSet, Kind, Observed};
use gco_monitor::plan::{Plan, Step};
use gco_store::spec::{Accelerator, CapacityType, Framework, Resources, Spec};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::server::{Server, key};
use super::support::{identity, leader, ready_pod, rendered, small_spec};

const NAME: &str = "chat";

fn word() -> impl Strategy<Value = String> {
    "[a-z]{1,6}"
}

fn words() -> impl Strategy<Value = BTreeMap<String, String>> {
    prop::collection::btree_map("[A-Z]{1,3}", "[a-z0-9]{0,4}", 0..5)
}

fn quantities() -> impl Strategy<Value = BTreeMap<String, String>> {
    let cpu = prop::option::of(prop::sample::select(vec!["1000m", "0.5", "2", "2.0"]));
    let memory = prop::option::of(prop::sample::select(vec!["1Gi", "1024Mi", "32Gi", "32768Mi"]));
    (cpu, memory).prop_map(|(cpu, memory)| {
        let entries = [("cpu", cpu), ("memory", memory)];
        entries.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect()
    })
}

prop_compose! {
    fn shape()(
        image in prop::sample::select(vec!["vllm/vllm:v1", "vllm/vllm:latest", "tgi", "r.io:5000/x@sha256:00"]),
        port in 1_u16..,
        replicas in 0_u32..7,
        gpu_count in 0_u32..9,
        max_surge in 0_u32..3,
        startup_timeout_seconds in 30_u32..21_600,
        drain_seconds in 0_u32..3_600,
        model_path in prop::option::of(word()),
        model_source in prop::option::of(prop::sample::select(vec!["s3://b/m".to_owned(), "hub".to_owned()])),
    ) -> Spec {
        Spec {
            image: image.to_owned(), port, replicas, gpu_count, max_surge, startup_timeout_seconds, drain_seconds, model_path,
            model_source,
            ..small_spec()
        }
    }
}

prop_compose! {
    fn any_spec()(
        shape in shape(),
        env in words(),
        requests in quantities(),
        command in prop::option::of(prop::collection::vec(word(), 0..2)),
        args in prop::collection::vec(word(), 0..4),
        node_selector in prop::collection::btree_map("[a-z]{1,4}", "[a-z]{0,3}", 0..3),
        accelerator in prop::sample::select(vec![Accelerator::Nvidia, Accelerator::Neuron]),
        capacity_type in prop::option::of(prop::sample::select(vec![CapacityType::Spot, CapacityType::OnDemand])),
        framework in prop::option::of(prop::sample::select(vec![Framework::Vllm, Framework::Tgi])),
    ) -> Spec {
        Spec {
            env, command, args, node_selector, accelerator, capacity_type, framework,
            resources: Resources { requests, limits: BTreeMap::new() },
            ..shape
        }
    }
}

/// What somebody does to a Deployment of ours by hand.
fn disturb(body: &mut Value, which: usize) {
    let spec = &mut body["spec"];
    match which {
        0 => spec["replicas"] = json!(spec["replicas"].as_u64().unwrap() + 1),
        1 => spec["template"]["spec"]["containers"][0]["image"] = json!("other:1"),
        2 => spec["template"]["spec"]["containers"][0]["env"] = json!([{"name": "X", "value": "y"}]),
        3 => spec["template"]["spec"]["hostPID"] = json!(true),
        4 => spec["template"]["spec"]["tolerations"] = json!([]),
        5 => {
            let container = spec["template"]["spec"]["containers"][0].as_object_mut().unwrap();
            container.remove("startupProbe");
        }
        6 => spec["strategy"] = json!({"type": "Recreate"}),
        7 => body["metadata"]["labels"]["project"] = json!("other"),
        8 => spec["template"]["metadata"]["annotations"]["x"] = json!("y"),
        9 => spec["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] = json!(65_535),
        10 => spec["template"]["spec"]["initContainers"] = json!([{"name": "x", "image": "i"}]),
        _ => spec["progressDeadlineSeconds"] = json!(1),
    }
}
const DISTURBANCES: usize = 12;

fn at_rest(server: &Server, set: &DesiredSet) -> Result<(), TestCaseError> {
    let plan = server.hold(NAME, &identity('1'), set);
    prop_assert!(plan == Plan::default(), "not at rest: {plan:#?}");
    Ok(())
}

fn specs_of(server: &Server) -> Vec<Value> {
    server.objects.values().map(|body| body["spec"].clone()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_pass_reaches_any_spec_from_nothing_and_then_there_is_rest(spec in any_spec(), term in 1_u64..1_000) {
        let identity = identity('1');
        let set = rendered(NAME, &identity, &spec);
        let mut server = Server::new();
        server.apply(&server.hold(NAME, &identity, &set));
        at_rest(&server, &set)?;
        // Under any later leader too.
        server.leader = leader(term);
        at_rest(&server, &set)?;
    }

    #[test]
    fn one_pass_leads_from_any_spec_to_any_other_and_back_to_the_very_same_objects(one in any_spec(), other in any_spec()) {
        let identity = identity('1');
        let (one, other) = (rendered(NAME, &identity, &one), rendered(NAME, &identity, &other));
        let mut server = Server::new();
        server.apply(&server.hold(NAME, &identity, &one));
        let first = specs_of(&server);
        for set in [&other, &one] {
            let plan = server.hold(NAME, &identity, set);
            for step in &plan.steps {
                prop_assert!(matches!(step, Step::Replace { .. }), "an edit creates and deletes nothing: {step:?}");
            }
            server.apply(&plan);
            at_rest(&server, set)?;
        }
        prop_assert_eq!(specs_of(&server), first);
    }

    #[test]
    fn any_disturbance_by_hand_is_noticed_and_undone_in_one_pass(
        spec in any_spec(),
        which in prop::collection::vec(0..DISTURBANCES, 1..4),
    ) {
        let identity = identity('1');
        let set = rendered(NAME, &identity, &spec);
        let mut server = Server::new();
        server.apply(&server.hold(NAME, &identity, &set));
        let before = specs_of(&server);
        let deployment = key(Kind::Deployment, NAME);
        let untouched = server.objects[&deployment].clone();
        server.edit(&deployment, |body| which.iter().for_each(|which| disturb(body, *which)));
        let same = |field: &str| untouched[field] == server.objects[&deployment][field];
        let nothing_changed = same("spec") && untouched["metadata"]["labels"] == server.objects[&deployment]["metadata"]["labels"];
        let plan = server.hold(NAME, &identity, &set);
        prop_assert_eq!(plan.steps.len(), usize::from(!nothing_changed));
        server.apply(&plan);
        at_rest(&server, &set)?;
        prop_assert_eq!(specs_of(&server), before);
    }

    #[test]
    fn a_plan_says_truthfully_whether_it_restarts_pods_or_scales_down(one in any_spec(), other in any_spec()) {
        let identity = identity('1');
        let mut server = Server::new();
        server.apply(&server.hold(NAME, &identity, &rendered(NAME, &identity, &one)));
        let before = server.objects[&key(Kind::Deployment, NAME)].clone();
        let plan = server.hold(NAME, &identity, &rendered(NAME, &identity, &other));
        let mut said = (false, false);
        for step in &plan.steps {
            if let Step::Replace { restarts, scales_down, .. } = step {
                said = (said.0 || *restarts, said.1 || *scales_down);
            }
        }
        server.apply(&plan);
        let after = &server.objects[&key(Kind::Deployment, NAME)];
        let replicas = |body: &Value| body["spec"]["replicas"].as_u64().unwrap();
        let restarts = replicas(&before) > 0 && before["spec"]["template"] != after["spec"]["template"];
        prop_assert_eq!(said, (restarts, replicas(after) < replicas(&before)));
    }

    #[test]
    fn the_order_in_which_pods_and_objects_were_seen_does_not_matter(spec in any_spec(), edited in any_spec()) {
        let identity = identity('1');
        let mut server = Server::new();
        server.apply(&server.hold(NAME, &identity, &rendered(NAME, &identity, &spec)));
        server.pods = (0..4).map(|number| ready_pod(&format!("p{number}"), NAME, &identity, None)).collect();
        let set = rendered(NAME, &identity, &edited);
        let forward = server.hold(NAME, &identity, &set);
        server.pods.reverse();
        prop_assert_eq!(forward, server.hold(NAME, &identity, &set));
    }

    #[test]
    fn stopping_and_starting_again_gives_the_very_same_objects(spec in any_spec()) {
        let identity = identity('1');
        let set = rendered(NAME, &identity, &spec);
        let mut server = Server::new();
        server.apply(&server.hold(NAME, &identity, &set));
        let first = specs_of(&server);
        server.apply(&server.stop(NAME, &identity));
        prop_assert_eq!(&server.objects[&key(Kind::Deployment, NAME)]["spec"]["replicas"], &json!(0));
        prop_assert_eq!(server.stop(NAME, &identity), Plan::default());
        server.apply(&server.hold(NAME, &identity, &set));
        prop_assert_eq!(specs_of(&server), first);
        at_rest(&server, &set)?;
    }
}

#[test]
fn an_empty_view_is_never_a_reason_to_delete() {
    assert_eq!(Observed::default(), Server::new().observed());
    let identity = identity('1');
    let plan = Server::new().hold(NAME, &identity, &rendered(NAME, &identity, &small_spec()));
    assert!(plan.steps.iter().all(|step| matches!(step, Step::Create { .. })));
}
