//! Who owns the replica count (the wire contract, C.13).

use gco_monitor::plan::body;
use gco_store::spec::{Autoscaling, Metric, MetricKind};
use proptest::prelude::*;

use super::*;

const KEDA_HPA: &str = "keda-hpa-chat";

fn hpa() -> ObjectKey {
    key(Kind::HorizontalPodAutoscaler, NAME)
}

fn scaled_object() -> ObjectKey {
    key(Kind::ScaledObject, NAME)
}

fn keda_hpa() -> ObjectKey {
    key(Kind::HorizontalPodAutoscaler, KEDA_HPA)
}

/// Between 3 and 6 replicas by this metric.
fn scaled_by(kind: MetricKind) -> impl FnOnce(&mut Spec) {
    move |spec| {
        let metrics = vec![Metric { kind, target_percent: 60 }];
        spec.autoscaling = Some(Autoscaling { enabled: true, min_replicas: 3, max_replicas: 6, metrics });
    }
}

fn by_kubernetes(identity: &RowIdentity) -> DesiredSet {
    desired(identity, scaled_by(MetricKind::Cpu))
}

fn by_keda(identity: &RowIdentity) -> DesiredSet {
    desired(identity, scaled_by(MetricKind::Gpu))
}

fn live_count(server: &Server) -> u64 {
    body::replicas(&server.objects[&deployment()])
}

fn set_count(server: &mut Server, count: u64) {
    server.edit(&deployment(), |body| body["spec"]["replicas"] = json!(count));
}

fn terminate(server: &mut Server, key: &ObjectKey) {
    server.edit(key, |body| body["metadata"]["deletionTimestamp"] = json!("2026-11-29T10:00:00Z"));
}

/// KEDA makes its autoscaler: labels and annotations of the ScaledObject, and it as the controller.
fn keda_acts(server: &mut Server) {
    let body = server.objects[&scaled_object()].clone();
    let owner = json!([{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": NAME,
        "uid": body["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true}]);
    server.post(json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": KEDA_HPA, "namespace": NAMESPACE, "labels": body["metadata"]["labels"],
            "annotations": body["metadata"]["annotations"], "ownerReferences": owner},
        "spec": {"minReplicas": 3, "maxReplicas": 6, "metrics": [],
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME}}}));
}

/// At rest under `set`, from nothing.
fn settled_as(identity: &RowIdentity, set: &DesiredSet) -> Server {
    let mut server = Server::new();
    server.known.insert(identity.lifecycle_id.clone());
    server.apply(&server.hold(NAME, identity, set));
    if server.objects.contains_key(&scaled_object()) {
        keda_acts(&mut server);
    }
    assert_eq!(server.hold(NAME, identity, set), Plan::default());
    server
}

#[test]
fn an_autoscaled_endpoint_starts_within_its_bounds_and_its_autoscaler_comes_last() {
    let identity = identity('1');
    let server = Server::new();
    let plan = server.hold(NAME, &identity, &by_kubernetes(&identity));
    assert_eq!(short(&plan), ["create deployment/chat", "create service/chat", "create hpa/chat"]);
    let Step::Create { body, .. } = &plan.steps[0] else { panic!() };
    assert_eq!(body::replicas(body), 3, "the row's 2 are below the least");
    let plan = server.hold(NAME, &identity, &by_keda(&identity));
    assert_eq!(short(&plan).last().unwrap(), "create scaledobject/chat");
}

#[test]
fn a_count_of_an_autoscaler_is_never_a_difference_and_is_carried_by_every_edit() {
    let identity = identity('1');
    for kind in [MetricKind::Cpu, MetricKind::Gpu] {
        let mut server = settled_as(&identity, &desired(&identity, scaled_by(kind)));
        for count in [3, 5, 9, 1] {
            set_count(&mut server, count);
            assert_eq!(server.hold(NAME, &identity, &desired(&identity, scaled_by(kind))), Plan::default());
            let edited = desired(&identity, |spec| {
                scaled_by(kind)(spec);
                spec.image = format!("vllm/vllm-openai:v{count}");
            });
            let plan = server.hold(NAME, &identity, &edited);
            let (_, _, scales_down, body) = replacement(&plan);
            assert_eq!((body::replicas(&body), scales_down), (count, false));
        }
    }
}

#[test]
fn an_edit_of_bounds_or_metrics_writes_the_autoscaler_and_nothing_else() {
    let identity = identity('1');
    for (kind, place) in [(MetricKind::Cpu, "replace hpa/chat"), (MetricKind::Gpu, "replace scaledobject/chat")] {
        let server = settled_as(&identity, &desired(&identity, scaled_by(kind)));
        let edited = desired(&identity, |spec| {
            scaled_by(kind)(spec);
            spec.autoscaling.as_mut().unwrap().max_replicas = 30;
        });
        assert_eq!(short(&server.hold(NAME, &identity, &edited)), [place]);
    }
}

#[test]
fn a_static_endpoint_is_handed_to_an_autoscaler_without_a_write_to_its_deployment() {
    let identity = identity('1');
    let mut server = settled(&identity);
    set_count(&mut server, 2);
    for (set, last) in [(by_kubernetes(&identity), "create hpa/chat"), (by_keda(&identity), "create scaledobject/chat")]
    {
        assert_eq!(short(&server.hold(NAME, &identity, &set)), [last]);
    }
}

#[test]
fn the_static_count_is_written_only_after_the_autoscaler_is_really_gone() {
    let identity = identity('1');
    let mut server = settled_as(&identity, &by_kubernetes(&identity));
    set_count(&mut server, 5);
    // Another edit at the same time carries the count.
    let set = desired(&identity, |spec| spec.image = "vllm/vllm-openai:v2".to_owned());
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(short(&plan), ["delete hpa/chat", "replace deployment/chat"]);
    let Step::Replace { body, scales_down, .. } = &plan.steps[1] else { panic!() };
    assert_eq!((body::replicas(body), *scales_down), (5, false));
    terminate(&mut server, &hpa());
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(obstacles(&plan), [("hpa/chat".to_owned(), obstacle::TERMINATING)]);
    server.apply(&plan);
    assert_eq!(live_count(&server), 5);
    server.objects.remove(&hpa());
    let (_, _, scales_down, body) = replacement(&server.hold(NAME, &identity, &set));
    assert_eq!((body::replicas(&body), scales_down), (2, true));
}

#[test]
fn keda_lets_go_only_with_its_own_autoscaler() {
    let identity = identity('1');
    for set in [desired(&identity, |_| {}), by_kubernetes(&identity)] {
        let mut server = settled_as(&identity, &by_keda(&identity));
        set_count(&mut server, 5);
        assert_eq!(short(&server.hold(NAME, &identity, &set)), ["delete scaledobject/chat"], "its own is left to it");
        terminate(&mut server, &scaled_object());
        let plan = server.hold(NAME, &identity, &set);
        assert_eq!(short(&plan), Vec::<String>::new());
        assert_eq!(obstacles(&plan), [("scaledobject/chat".to_owned(), obstacle::TERMINATING)]);
        // The events of two kinds have no order: it may seem left behind, and then is removed like one that is.
        server.objects.remove(&scaled_object());
        assert_eq!(short(&server.hold(NAME, &identity, &set)), ["delete hpa/keda-hpa-chat"]);
        terminate(&mut server, &keda_hpa());
        assert_eq!(short(&server.hold(NAME, &identity, &set)), Vec::<String>::new());
        server.objects.remove(&keda_hpa());
        let plan = server.hold(NAME, &identity, &set);
        assert_eq!(plan.steps.len(), 1, "{plan:?}");
        server.apply(&plan);
        assert_eq!(server.hold(NAME, &identity, &set), Plan::default());
    }
}

#[test]
fn kubernetes_own_autoscaler_goes_before_keda_gets_its_instruction() {
    let identity = identity('1');
    let mut server = settled_as(&identity, &by_kubernetes(&identity));
    let set = by_keda(&identity);
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(short(&plan), ["delete hpa/chat"]);
    server.apply(&plan);
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(short(&plan), ["create scaledobject/chat"]);
    server.apply(&plan);
    keda_acts(&mut server);
    assert_eq!(server.hold(NAME, &identity, &set), Plan::default());
}

#[test]
fn the_autoscaler_that_keda_made_is_not_ours_however_much_it_looks_like_it() {
    let identity = identity('1');
    let mut server = settled_as(&identity, &by_keda(&identity));
    server.leader = leader(7);
    let set = desired(&identity, |spec| {
        scaled_by(MetricKind::Gpu)(spec);
        spec.image = "vllm/vllm-openai:v2".to_owned();
    });
    // Not stamped, not removed, not in the way.
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(short(&plan), ["stamp scaledobject/chat", "stamp service/chat", "replace deployment/chat"]);
    assert!(plan.obstacles.is_empty());
    // Once a person cut the tie to its ScaledObject, it is one more autoscaler that nobody asked for.
    server.edit(&keda_hpa(), |body| remove(&mut body["metadata"], "ownerReferences"));
    assert!(short(&server.hold(NAME, &identity, &set)).contains(&"delete hpa/keda-hpa-chat".to_owned()));
}

#[test]
fn without_keda_in_the_cluster_the_row_that_needs_it_says_so_and_keeps_what_it_has() {
    let identity = identity('1');
    let mut server = Server::new();
    server.missing.insert(Kind::ScaledObject);
    let set = by_keda(&identity);
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(short(&plan), ["create deployment/chat", "create service/chat"]);
    assert_eq!(obstacles(&plan), [("scaledobject/chat".to_owned(), obstacle::KIND_MISSING)]);
    server.apply(&plan);
    set_count(&mut server, 5);
    assert_eq!(short(&server.hold(NAME, &identity, &set)), Vec::<String>::new(), "the count stays");
    // An autoscaler that was there before stays until KEDA can take over.
    let mut server = settled_as(&identity, &by_kubernetes(&identity));
    server.missing.insert(Kind::ScaledObject);
    assert_eq!(short(&server.hold(NAME, &identity, &set)), Vec::<String>::new());
    server.missing.clear();
    assert_eq!(short(&server.hold(NAME, &identity, &set)), ["delete hpa/chat"]);
}

#[test]
fn a_stop_removes_the_autoscaler_first_and_a_start_begins_within_the_bounds() {
    let identity = identity('1');
    // Kubernetes' own leaves a count of none alone.
    let mut server = settled_as(&identity, &by_kubernetes(&identity));
    let plan = server.stop(NAME, &identity);
    assert_eq!(short(&plan), ["delete hpa/chat", "replace deployment/chat"]);
    server.apply(&plan);
    assert_eq!((live_count(&server), server.stop(NAME, &identity)), (0, Plan::default()));
    let plan = server.hold(NAME, &identity, &by_kubernetes(&identity));
    assert_eq!(short(&plan), ["replace deployment/chat", "create hpa/chat"]);
    server.apply(&plan);
    assert_eq!(live_count(&server), 3);
    // KEDA lifts it, until it knows that it must not.
    let mut server = settled_as(&identity, &by_keda(&identity));
    assert_eq!(short(&server.stop(NAME, &identity)), ["delete scaledobject/chat"]);
    terminate(&mut server, &scaled_object());
    assert_eq!(short(&server.stop(NAME, &identity)), ["replace deployment/chat"]);
    server.apply(&server.stop(NAME, &identity));
    assert_eq!(live_count(&server), 0);
}

#[test]
fn while_the_table_is_away_no_autoscaler_is_removed_and_no_count_becomes_smaller() {
    let identity = identity('1');
    let mut server = settled_as(&identity, &by_kubernetes(&identity));
    set_count(&mut server, 5);
    server.table_away = true;
    let plan = server.hold(NAME, &identity, &desired(&identity, |_| {}));
    assert_eq!(short(&plan), Vec::<String>::new());
    assert_eq!(obstacles(&plan), [("hpa/chat".to_owned(), obstacle::TABLE_AWAY)]);
    assert_eq!(short(&server.stop(NAME, &identity)), Vec::<String>::new());
}

#[test]
fn a_deletion_leaves_kedas_autoscaler_to_keda_and_waits_for_it() {
    let identity = identity('1');
    let mut server = settled_as(&identity, &by_keda(&identity));
    let plan = server.remove(NAME, &deleted(&identity));
    assert_eq!(short(&plan), ["delete scaledobject/chat", "delete deployment/chat", "delete service/chat"]);
    server.apply(&plan);
    assert_eq!(short(&server.remove(NAME, &deleted(&identity))), ["delete hpa/keda-hpa-chat"], "left behind");
    server.objects.remove(&keda_hpa());
    assert_eq!(short(&server.remove(NAME, &deleted(&identity))), ["prove absence"]);
}

#[test]
fn autoscalers_of_strangers_and_of_other_rows_are_left_alone() {
    let (ours, other) = (identity('1'), identity('2'));
    let mut server = settled(&ours);
    server.known.insert(other.lifecycle_id.clone());
    let mut theirs = rendered(NAME, &other, &spec(scaled_by(MetricKind::Cpu))).objects.remove(2).body;
    server.post(theirs.clone());
    assert_eq!(server.hold(NAME, &ours, &desired(&ours, |_| {})), Plan::default());
    // Under the name that we need it is in the way, visibly.
    let plan = server.hold(NAME, &ours, &by_kubernetes(&ours));
    assert_eq!(obstacles(&plan), [("hpa/chat".to_owned(), obstacle::OTHER_ENDPOINT)]);
    theirs["metadata"]["labels"] = json!({});
    theirs["metadata"]["annotations"] = json!({});
    server.objects.remove(&hpa());
    server.post(theirs);
    let plan = server.hold(NAME, &ours, &by_kubernetes(&ours));
    assert_eq!(obstacles(&plan), [("hpa/chat".to_owned(), obstacle::FOREIGN)]);
    assert_eq!(short(&server.stop(NAME, &ours)), ["replace deployment/chat"]);
}

/// What a row may ask for, in short.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Fixed(u32),
    Kubernetes(u32, u32),
    Keda(u32, u32),
}

impl Asked {
    fn set(self, identity: &RowIdentity) -> DesiredSet {
        desired(identity, |spec| {
            let (kind, min_replicas, max_replicas) = match self {
                Self::Fixed(count) => {
                    spec.replicas = count;
                    return;
                }
                Self::Kubernetes(least, most) => (MetricKind::Cpu, least, most),
                Self::Keda(least, most) => (MetricKind::Gpu, least, most),
            };
            let metrics = vec![Metric { kind, target_percent: 60 }];
            spec.autoscaling = Some(Autoscaling { enabled: true, min_replicas, max_replicas, metrics });
        })
    }

    /// Where a count that is here ends.
    fn target(self, count: u64) -> u64 {
        match self {
            Self::Fixed(fixed) => fixed.into(),
            Self::Kubernetes(least, most) | Self::Keda(least, most) => count.clamp(least.into(), most.into()),
        }
    }
}

/// One act of somebody else in the cluster.
fn others_act(server: &mut Server, which: u8) {
    match which % 4 {
        // The HPA controller keeps the count within the bounds of any autoscaler that is there, a dying one included.
        0 => {
            for key in [hpa(), keda_hpa()] {
                let Some(spec) = server.objects.get(&key).map(|body| body["spec"].clone()) else { continue };
                let count = live_count(server);
                let (least, most) = (spec["minReplicas"].as_u64().unwrap(), spec["maxReplicas"].as_u64().unwrap());
                if count > 0 && !(least..=most).contains(&count) {
                    set_count(server, count.clamp(least, most));
                }
            }
        }
        // KEDA makes its autoscaler, or lets its ScaledObject go.
        1 => match server.objects.get(&scaled_object()).map(|body| body["metadata"].get("deletionTimestamp").is_some())
        {
            Some(true) => drop(server.objects.remove(&scaled_object())),
            Some(false) => {
                let bounds = server.objects[&scaled_object()]["spec"].clone();
                if !server.objects.contains_key(&keda_hpa()) {
                    keda_acts(server);
                }
                server.edit(&keda_hpa(), |body| {
                    body["spec"]["minReplicas"] = bounds["minReplicaCount"].clone();
                    body["spec"]["maxReplicas"] = bounds["maxReplicaCount"].clone();
                });
            }
            None => {}
        },
        // The collector ends what is deleted, and what KEDA left behind.
        2 => {
            let gone = |body: &Value| body["metadata"].get("deletionTimestamp").is_some();
            if server.objects.get(&hpa()).is_some_and(gone) {
                server.objects.remove(&hpa());
            }
            if !server.objects.contains_key(&scaled_object()) {
                server.objects.remove(&keda_hpa());
            }
        }
        _ => {}
    }
}

fn any_asked() -> impl Strategy<Value = Asked> {
    let bounds = || (1_u32..5, 0_u32..4).prop_map(|(least, more)| (least, least + more));
    prop_oneof![
        (1_u32..8).prop_map(Asked::Fixed),
        bounds().prop_map(|(least, most)| Asked::Kubernetes(least, most)),
        bounds().prop_map(|(least, most)| Asked::Keda(least, most)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the order in which the others act between our plans, and also when the row is edited again in mid-change.
    #[test]
    fn no_hand_over_moves_the_count_out_of_the_range_between_old_and_new_target(
        edits in prop::collection::vec((any_asked(), prop::collection::vec(0_u8..5, 0..14)), 1..6),
    ) {
        let identity = identity('1');
        let mut server = settled(&identity);
        let (mut low, mut high) = (2, 2);
        for (asked, acts) in &edits {
            let set = asked.set(&identity);
            let before = live_count(&server);
            // A change that is overtaken by the next one leaves old bounds behind; they are part of the old range.
            (low, high) = (low.min(asked.target(before)).min(before), high.max(asked.target(before)).max(before));
            for act in acts {
                // Foreground: an autoscaler that we delete stays for a while.
                let plan = server.hold(NAME, &identity, &set);
                apply_slowly(&mut server, &plan);
                others_act(&mut server, *act);
                let count = live_count(&server);
                prop_assert!((low..=high).contains(&count), "{count} is not from {low} to {high}: {edits:?}");
            }
            if acts.len() < 12 {
                continue;
            }
            // Everybody acts until there is rest; then the range is the new one alone.
            for round in 0..24 {
                let plan = server.hold(NAME, &identity, &set);
                apply_slowly(&mut server, &plan);
                others_act(&mut server, round);
                let count = live_count(&server);
                prop_assert!((low..=high).contains(&count), "{count} is not from {low} to {high}: {edits:?}");
            }
            prop_assert_eq!(server.hold(NAME, &identity, &set), Plan::default());
            let count = live_count(&server);
            prop_assert_eq!(asked.target(count), count);
            (low, high) = (count, count);
        }
    }
}

/// Applies a plan; what it deletes only begins to go, as a foreground deletion does.
fn apply_slowly(server: &mut Server, plan: &Plan) {
    for step in &plan.steps {
        match step {
            Step::Delete { key, .. } => terminate(server, key),
            other => drop(server.apply(&Plan { steps: vec![other.clone()], obstacles: Vec::new() })),
        }
    }
}
