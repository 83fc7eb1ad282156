//! The canary, from the row to the status: what is rendered, when it goes, and what is told to routers (the wire contract,
//! C.11 and E.2).

use gco_monitor::identity::RowIdentity;
use gco_monitor::object::{DesiredSet, Kind, ObservedPod};
use gco_monitor::plan::{Plan, Step};
use gco_monitor::report::{Done, ReportInput, report};
use gco_store::row::EndpointRow;
use gco_store::spec::{Canary, Spec};
use gco_store::status::{RegionEntry, State};
use gco_store::wire::{Item, Value as Attribute};
use serde_json::{Value, json};

use super::server::{Server, key};
use super::support::{
    NOW, REGION, decide, identity_of, map, ready_pod, rendered, row_with, small_spec, spec_of, texts, waiting_pod,
};

const NAME: &str = "chat-canary-on";
const CANARY: &str = "chat-canary-on-canary";
const NEW: &str = "vllm/vllm-openai:v0.29.0";

/// A running row: three replicas, and a canary of one replica that gets a tenth.
fn row() -> EndpointRow {
    row_with("classic-canary", |_| {})
}

fn edited(row: &EndpointRow, change: impl FnOnce(&mut Item)) -> EndpointRow {
    let mut item = row.item.clone();
    change(map(&mut item, "spec"));
    EndpointRow::parse(item).unwrap()
}

/// A region under a row: the cluster, and what the row's entry says.
struct Scene {
    row: EndpointRow,
    server: Server,
}

impl Scene {
    /// At rest, all pods ready.
    fn at_rest() -> Self {
        let mut scene = Self { row: row(), server: Server::new() };
        scene.server.known.insert(scene.identity().lifecycle_id);
        scene.reconcile();
        scene.pods(NAME, 3);
        scene.pods(CANARY, 1);
        scene
    }

    fn identity(&self) -> RowIdentity {
        identity_of(&self.row, REGION)
    }

    fn desired(&self) -> DesiredSet {
        rendered(NAME, &self.identity(), &spec_of(&self.row))
    }

    fn plan(&self) -> Plan {
        self.server.hold(NAME, &self.identity(), &self.desired())
    }

    /// One pass.
    fn reconcile(&mut self) -> Vec<String> {
        let plan = self.plan();
        self.server.apply(&plan);
        short(&plan)
    }

    /// The Deployment's pods are replaced by this many ready ones of its template, as its controller reports.
    fn pods(&mut self, app: &str, count: usize) {
        let identity = self.identity();
        self.server.pods.retain(|pod| pod.app != app);
        let deployment = key(Kind::Deployment, app);
        let place = "/spec/template/metadata/annotations/gco.io~1input-hash";
        let hash = self.server.objects[&deployment].pointer(place).and_then(Value::as_str).map(str::to_owned);
        for number in 0..count {
            self.server.pods.push(ready_pod(&format!("{app}-{number}"), app, &identity, hash.as_deref()));
        }
        self.status(app, count, count, count);
    }

    fn status(&mut self, app: &str, all: usize, updated: usize, available: usize) {
        self.server.edit(&key(Kind::Deployment, app), |body| {
            body["status"] = json!({"observedGeneration": 1, "replicas": all, "updatedReplicas": updated,
                "availableReplicas": available, "conditions": [
                    {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]});
        });
    }

    fn entry(&self) -> RegionEntry {
        report(&ReportInput {
            row: &self.row,
            region: REGION,
            intent: &decide(&self.row),
            observed: &self.server.observed(),
            done: &Done::default(),
            spec_hash: None,
            now: NOW,
        })
        .expect("something to say")
    }

    /// The row with what this region says in it.
    fn told(&self) -> EndpointRow {
        let mut item = self.row.item.clone();
        map(&mut item, "region_status").insert(REGION.to_owned(), Attribute::Map(self.entry().to_item()));
        EndpointRow::parse(item).unwrap()
    }

    /// What the entry says of the canary: state, image, ready, desired.
    fn canary(&self) -> (String, String, i64, i64) {
        let entry = self.entry();
        let canary = entry.extra.get("canary").expect("a canary in the entry");
        let text = |name: &str| canary.at(&[name]).and_then(Attribute::as_str).unwrap().to_owned();
        let number = |name: &str| canary.at(&[name]).and_then(Attribute::as_integer).unwrap();
        (text("state"), text("image"), number("replicas_ready"), number("replicas_desired"))
    }
}

/// The shared router's rule (the wire contract, E.2), written down once more, from the contract.
fn canary_gets_its_share(row: &EndpointRow) -> bool {
    let Some(asked) = row.spec.at(&["canary"]) else { return false };
    let Some(entry) = row.region_status.get(REGION) else { return false };
    let Some(told) = entry.extra.get("canary") else { return false };
    let number = |value: &Attribute, name: &str| value.at(&[name]).and_then(Attribute::as_integer).unwrap_or_default();
    entry.state == State::Running
        && told.at(&["state"]).and_then(Attribute::as_str) == Some("running")
        && told.at(&["image"]) == asked.at(&["image"])
        && number(told, "replicas_desired") > 0
        && number(told, "replicas_ready") >= number(told, "replicas_desired")
        && (1..=99).contains(&number(asked, "weight"))
}

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

fn promoted(row: &EndpointRow) -> EndpointRow {
    edited(row, |spec| {
        spec.insert("image".to_owned(), Attribute::from(NEW));
        spec.remove("canary");
    })
}

fn rolled_back(row: &EndpointRow) -> EndpointRow {
    edited(row, |spec| {
        spec.remove("canary");
    })
}

fn canary_of(scene: &mut Scene, image: &str, replicas: i64) {
    scene.row = edited(&scene.row, |spec| {
        let canary = map(spec, "canary");
        canary.insert("image".to_owned(), Attribute::from(image));
        canary.insert("replicas".to_owned(), Attribute::from(replicas));
    });
}

#[test]
fn d37_a_canary_shares_the_endpoints_model_directory_and_path() {
    let mut spec = small_spec();
    spec.model_source = Some("s3://models/chat".to_owned());
    spec.env = texts(&[("MODEL", "/models/chat")]);
    spec.region_image_uris = texts(&[(REGION, "mirror.example/vllm:v0.28.0")]);
    spec.canary = Some(Canary { image: NEW.to_owned(), weight: 10, replicas: 2 });
    let set = rendered("chat", &identity_of(&row(), REGION), &spec);
    let template = |index: usize| set.objects[index].body["spec"]["template"]["spec"].clone();
    let (own, canary) = (template(0), template(2));
    assert_eq!(set.objects[2].key.to_string(), "deployment/chat-canary");
    assert_eq!(own["initContainers"], canary["initContainers"], "the model is downloaded into one directory");
    for field in ["args", "env", "volumeMounts", "readinessProbe", "resources"] {
        assert_eq!(own["containers"][0][field], canary["containers"][0][field], "{field}");
    }
    // The canary's image is the canary's everywhere: images by region were made from the endpoint's.
    assert_eq!(canary["containers"][0]["image"], json!(NEW));
}

#[test]
fn a_canary_is_what_a_promotion_will_run_and_costs_the_endpoints_own_pods_nothing() {
    let (with, without) = (spec_of(&row()), spec_of(&rolled_back(&row())));
    let set = |spec: &Spec| rendered(NAME, &identity_of(&row(), REGION), spec);
    assert_eq!(set(&with).objects[..2], set(&without).objects[..], "a canary changes nothing of the endpoint itself");
    let promoted = set(&spec_of(&promoted(&row())));
    assert_eq!(set(&with).objects[2].input_hash, promoted.objects[0].input_hash);
}

#[test]
fn a_canary_that_runs_gets_its_share_and_its_entry_survives_every_kind_of_pass() {
    // D-37: with the original the canary's data vanish in any pass that changes something.
    let mut scene = Scene::at_rest();
    assert_eq!(scene.plan(), Plan::default());
    assert_eq!(scene.canary(), ("running".to_owned(), NEW.to_owned(), 1, 1));
    assert!(canary_gets_its_share(&scene.told()));
    // An edit of the endpoint itself, under way.
    scene.row = edited(&scene.row, |spec| {
        spec.insert("replicas".to_owned(), Attribute::from(5));
        spec.insert("image".to_owned(), Attribute::from("vllm/vllm-openai:v0.28.1"));
    });
    assert!(canary_gets_its_share(&scene.told()));
    assert_eq!(scene.reconcile(), [format!("replace deployment/{NAME}")]);
    assert!(canary_gets_its_share(&scene.told()));
    let entry = scene.entry();
    assert_eq!((entry.state, entry.replicas_ready, entry.replicas_desired), (State::Running, 3, 5));
}

#[test]
fn a_canary_gets_nothing_before_all_its_pods_run_the_image_that_is_asked_for_and_have_settled() {
    let mut scene = Scene::at_rest();
    // Not ready yet.
    scene.server.pods.retain(|pod| pod.app != CANARY);
    let waiting = waiting_pod("c-1", CANARY, &scene.identity(), "ImagePullBackOff", "no such image");
    scene.server.pods.push(waiting);
    scene.status(CANARY, 1, 1, 0);
    assert_eq!(scene.canary(), ("creating".to_owned(), NEW.to_owned(), 0, 1));
    assert!(!canary_gets_its_share(&scene.told()));
    let entry = scene.entry();
    assert_eq!(
        (entry.state, entry.degraded, entry.error),
        (State::Running, false, None),
        "the endpoint itself is fine"
    );
    assert_eq!(entry.pods[0].reason, "ImagePullBackOff");
    let condition = entry.conditions.iter().find(|one| one.kind == "CanaryReady").unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "PodsNotReady"));
    // Ready, and not for long enough.
    scene.pods(CANARY, 1);
    scene.status(CANARY, 1, 1, 0);
    assert_eq!(scene.canary().0, "updating");
    assert!(!canary_gets_its_share(&scene.told()));
    scene.status(CANARY, 1, 1, 1);
    assert!(canary_gets_its_share(&scene.told()));
    // Another image: the pods of the one before do not count for it, whoever of them is still ready.
    canary_of(&mut scene, "vllm/vllm-openai:v0.30.0", 1);
    assert_eq!(scene.canary(), ("updating".to_owned(), "vllm/vllm-openai:v0.30.0".to_owned(), 0, 1));
    assert_eq!(scene.reconcile(), [format!("replace deployment/{CANARY}")]);
    assert!(!canary_gets_its_share(&scene.told()));
    // One pod of each.
    let old = scene.server.pods.iter().find(|pod| pod.app == CANARY).cloned().unwrap();
    scene.pods(CANARY, 1);
    scene.server.pods.push(ObservedPod { name: "old".to_owned(), ..old });
    scene.status(CANARY, 2, 1, 2);
    assert!(!canary_gets_its_share(&scene.told()), "half of its share would go to the image before");
    scene.pods(CANARY, 1);
    assert!(canary_gets_its_share(&scene.told()));
    // More replicas than are there.
    canary_of(&mut scene, "vllm/vllm-openai:v0.30.0", 3);
    assert_eq!(scene.canary().0, "updating");
    assert!(!canary_gets_its_share(&scene.told()));
}

#[test]
fn without_a_service_of_ours_a_canary_gets_nothing() {
    let mut scene = Scene::at_rest();
    scene.server.objects.remove(&key(Kind::Service, CANARY));
    assert_eq!(scene.canary().0, "updating");
    scene.server.post(json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]},
        "metadata": {"name": CANARY, "labels": {"team": "search"}}}));
    assert!(!canary_gets_its_share(&scene.told()));
    assert_eq!(scene.entry().state, State::Running);
}

#[test]
fn a_rolled_back_canary_goes_with_its_service_last_and_the_endpoint_is_not_touched() {
    let mut scene = Scene::at_rest();
    scene.row = rolled_back(&scene.row);
    assert_eq!(scene.reconcile(), [format!("delete deployment/{CANARY}")]);
    assert!(scene.entry().extra.is_empty());
    // Its last pod is draining.
    let draining = ObservedPod { ready: false, terminating: true, ..ready_pod("c-1", CANARY, &scene.identity(), None) };
    scene.server.pods.push(draining);
    assert_eq!(scene.plan(), Plan::default(), "requests that are on their way still find the pods");
    scene.server.pods.retain(|pod| pod.app != CANARY);
    assert_eq!(scene.reconcile(), [format!("delete service/{CANARY}")]);
    assert_eq!(scene.plan(), Plan::default());
}

#[test]
fn a_promoted_canary_goes_after_a_pod_of_the_promoted_image_serves() {
    // D-13.
    let mut scene = Scene::at_rest();
    scene.row = promoted(&scene.row);
    assert_eq!(scene.reconcile(), [format!("replace deployment/{NAME}")]);
    assert_eq!(scene.plan(), Plan::default(), "the canary stays until its image serves elsewhere");
    assert_eq!(scene.entry().state, State::Running);
    scene.pods(NAME, 3);
    assert_eq!(scene.reconcile(), [format!("delete deployment/{CANARY}")]);
}

#[test]
fn a_promoted_canary_gives_way_when_it_holds_the_room_that_the_promotion_needs() {
    let mut scene = Scene::at_rest();
    scene.row = promoted(&scene.row);
    scene.reconcile();
    let waiting = waiting_pod("new", NAME, &scene.identity(), "Unschedulable", "0/3 nodes are available");
    scene.server.pods.push(waiting);
    assert_eq!(short(&scene.plan()), [format!("delete deployment/{CANARY}")]);
    // Never while nothing of the endpoint serves.
    scene.server.pods.retain(|pod| pod.app != NAME || !pod.ready);
    assert_eq!(scene.plan(), Plan::default());
}

#[test]
fn d14_a_stop_takes_the_canarys_pods_too_and_a_start_brings_both_back() {
    let mut scene = Scene::at_rest();
    let plan = scene.server.stop(NAME, &scene.identity());
    assert_eq!(short(&plan), [NAME, CANARY].map(|name| format!("replace deployment/{name}")));
    scene.server.apply(&plan);
    assert_eq!(scene.reconcile(), [NAME, CANARY].map(|name| format!("replace deployment/{name}")));
    assert_eq!(scene.server.objects[&key(Kind::Deployment, CANARY)]["spec"]["replicas"], json!(1));
}

#[test]
fn a_bad_edit_leaves_the_canary_running_and_what_is_told_of_it_true() {
    let mut scene = Scene::at_rest();
    scene.row = scene.told();
    scene.row = edited(&scene.row, |spec| {
        spec.insert("port".to_owned(), Attribute::from(70_000));
    });
    assert_eq!(scene.canary(), ("running".to_owned(), NEW.to_owned(), 1, 1));
    assert!(canary_gets_its_share(&scene.told()));
    // Its pod dies meanwhile: routers must hear of it although the row cannot be served as it is.
    scene.server.pods.retain(|pod| pod.app != CANARY);
    scene.status(CANARY, 1, 1, 0);
    assert_eq!(scene.canary(), ("creating".to_owned(), NEW.to_owned(), 0, 1));
    assert!(!canary_gets_its_share(&scene.told()));
}

#[test]
fn a_canary_alone_does_not_make_an_endpoint_run() {
    let mut scene = Scene::at_rest();
    scene.server.pods.retain(|pod| pod.app == CANARY);
    let entry = scene.entry();
    assert_eq!((entry.state.clone(), entry.replicas_ready), (State::Creating, 0));
    assert!(!canary_gets_its_share(&scene.told()));
}
