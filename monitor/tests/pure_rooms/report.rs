//! What a region says, situation by situation (the wire contract, C.15 and E.2).

use std::collections::BTreeSet;

use gco_monitor::intent::{CleanUp, Intent, RegionContext, reason};
use gco_monitor::object::{Kind, Observed, ObservedPod, ObservedReplicaSet};
use gco_monitor::plan::{Obstacle, obstacle};
use gco_monitor::report::{Absence, Category, Done, Failure, ReportInput, codes, report};
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::status::{RegionEntry, Rollout, State, StatusCondition};
use gco_store::wire::{Item, Value as Attribute};
use serde_json::{Value, json};

use super::server::{Server, key};
use super::support::{
    NAMESPACE, NOW, REGION, decide, identity_of, map, ready_pod, rendered, row, row_with, spec_of, waiting_pod,
};

const LATER: &str = "2026-11-29T13:00:00+00:00";

/// One look at a region: a row, what stands in the cluster, what the pass did.
struct Scene {
    row: EndpointRow,
    server: Server,
    sets: Vec<ObservedReplicaSet>,
    done: Done,
    now: &'static str,
}

impl Scene {
    /// A classic row with a replica count, its objects rendered and at rest, no pods.
    fn of(replicas: i64) -> Self {
        let row = row_with("classic-minimal", |item| {
            map(item, "spec").insert("replicas".to_owned(), Attribute::from(replicas));
            item.insert("desired_state".to_owned(), Attribute::from("running"));
        });
        let mut scene = Self { row, server: Server::new(), sets: Vec::new(), done: Done::default(), now: NOW };
        let identity = scene.identity();
        let set = rendered(&scene.row.name, &identity, &spec_of(&scene.row));
        scene.server.apply(&scene.server.hold(&scene.row.name, &identity, &set));
        scene.status(json!({"observedGeneration": 1, "conditions": [
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]}));
        scene
    }

    fn identity(&self) -> gco_monitor::identity::RowIdentity {
        identity_of(&self.row, REGION)
    }

    fn hash(&self) -> String {
        spec_of(&self.row).template_input_hash(REGION)
    }

    fn name(&self) -> String {
        self.row.name.clone()
    }

    /// The Deployment's status.
    fn status(&mut self, status: Value) {
        let key = key(Kind::Deployment, &self.row.name);
        self.server.edit(&key, |body| body["status"] = status);
    }

    /// Rolled out, with this many pods ready of those that exist.
    fn pods(mut self, ready: usize, waiting: usize) -> Self {
        let (identity, hash, name) = (self.identity(), self.hash(), self.name());
        for number in 0..ready {
            self.server.pods.push(ready_pod(&format!("{name}-r{number}"), &name, &identity, Some(&hash)));
        }
        for number in 0..waiting {
            self.server.pods.push(waiting_pod(
                &format!("{name}-w{number}"),
                &name,
                &identity,
                "NotReady",
                "probe failed",
            ));
        }
        let all = ready + waiting;
        self.status(json!({"observedGeneration": 1, "replicas": all, "updatedReplicas": all, "readyReplicas": ready,
            "conditions": [{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]}));
        self
    }

    fn pod(mut self, pod: ObservedPod) -> Self {
        self.server.pods.push(pod);
        self
    }

    fn done(mut self, done: Done) -> Self {
        self.done = done;
        self
    }

    /// What the row holds for this region.
    fn stored(mut self, entry: &RegionEntry) -> Self {
        let mut item = self.row.item.clone();
        map(&mut item, "region_status").insert(REGION.to_owned(), Attribute::Map(entry.to_item()));
        self.row = EndpointRow::parse(item).unwrap();
        self
    }

    fn observed(&self) -> Observed {
        Observed { replica_sets: self.sets.clone(), ..self.server.observed() }
    }

    fn report(&self) -> Option<RegionEntry> {
        self.report_as(&decide(&self.row))
    }

    fn report_as(&self, intent: &Intent) -> Option<RegionEntry> {
        let hash =
            gco_store::spec::Spec::check(&self.row.spec).ok().map(|checked| checked.spec.template_input_hash(REGION));
        report(&ReportInput {
            row: &self.row,
            region: REGION,
            intent,
            observed: &self.observed(),
            done: &self.done,
            spec_hash: hash.as_deref(),
            now: self.now,
        })
    }

    fn entry(&self) -> RegionEntry {
        self.report().expect("something to say")
    }
}

fn condition<'a>(entry: &'a RegionEntry, kind: &str) -> Option<&'a StatusCondition> {
    entry.conditions.iter().find(|condition| condition.kind == kind)
}

/// Status and reason of a condition.
fn said<'a>(entry: &'a RegionEntry, kind: &str) -> (&'a str, &'a str) {
    condition(entry, kind).map_or(("", ""), |condition| (&condition.status, &condition.reason))
}

fn failure(category: Category) -> Done {
    let key = Some(key(Kind::Deployment, "chat-small"));
    Done { failures: vec![Failure { key, category, message: "the server's words".to_owned() }], ..Done::default() }
}

fn obstructed(reason: &'static str) -> Done {
    let key = key(Kind::Service, "chat-small");
    Done { obstacles: vec![Obstacle { key, reason }], ..Done::default() }
}

/// The shared router's rule (contract E.2).
fn routable(row: &EndpointRow, entry: &RegionEntry) -> bool {
    row.desired_state == DesiredState::Running && entry.state == State::Running
}

#[test]
fn a_region_is_running_exactly_while_a_pod_is_ready() {
    // D-3: one unready replica out of N stopped the whole region.
    for (asked, ready, state, degraded) in [
        (1, 0, State::Creating, false),
        (1, 1, State::Running, false),
        (3, 0, State::Creating, false),
        (3, 1, State::Running, true),
        (3, 2, State::Running, true),
        (3, 3, State::Running, false),
        (2, 3, State::Running, false),
    ] {
        let scene = Scene::of(i64::from(asked)).pods(ready, usize::try_from(asked).unwrap().saturating_sub(ready));
        let entry = scene.entry();
        assert_eq!((&entry.state, entry.degraded), (&state, degraded), "{ready} of {asked}");
        assert_eq!((entry.replicas_ready as usize, entry.replicas_desired), (ready, asked));
        assert_eq!(routable(&scene.row, &entry), ready > 0);
        assert_eq!(said(&entry, "Ready").0, if ready > 0 { "True" } else { "False" });
        assert_eq!(entry.lifecycle_id, scene.row.lifecycle_id);
        assert_eq!(entry.region_generation.as_deref(), scene.row.region_generation(REGION));
        assert_eq!(entry.deletion_generation, None);
        assert_eq!(entry.last_sync.as_deref(), Some(NOW));
    }
}

#[test]
fn one_region_says_running_whatever_the_others_say_so_that_each_can_be_promoted_by_itself() {
    // D-1, D-4.
    let mut scene = Scene::of(1).pods(1, 0);
    let mut other = RegionEntry::new(State::Creating);
    other.error = Some("no capacity".to_owned());
    let mut item = scene.row.item.clone();
    map(&mut item, "region_status").insert("eu-west-1".to_owned(), Attribute::Map(other.to_item()));
    item.insert("desired_state".to_owned(), Attribute::from("deploying"));
    scene.row = EndpointRow::parse(item).unwrap();
    assert_eq!(scene.entry().state, State::Running);
}

#[test]
fn a_created_endpoint_is_creating_with_what_it_asks_for() {
    let mut scene = Scene::of(2);
    scene.server.objects.clear();
    let entry = scene.entry();
    assert_eq!((entry.state.clone(), entry.replicas_ready, entry.replicas_desired), (State::Creating, 0, 2));
    assert_eq!(said(&entry, "RolledOut"), ("False", "NoDeployment"));
    assert_eq!(entry.error, None);
}

#[test]
fn an_edit_never_takes_a_serving_region_off_the_routers() {
    // D-4, D-11: old pods serve while new ones start; the original says `updating` and the routers answer 503.
    let mut scene = Scene::of(3).pods(3, 0);
    scene.status(json!({"observedGeneration": 1, "replicas": 3, "updatedReplicas": 1, "readyReplicas": 2,
        "conditions": [{"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}]}));
    let revision = |revision, ready, hash: &str| ObservedReplicaSet {
        name: format!("chat-small-{revision}"),
        app: scene.row.name.clone(),
        revision,
        input_hash: Some(hash.to_owned()),
        replicas: 1,
        ready,
    };
    // The Deployment says revision 1; a rollback gives an old ReplicaSet a new number.
    scene.sets = vec![revision(7, 2, "old"), revision(1, 0, &scene.hash())];
    let entry = scene.entry();
    assert_eq!(entry.state, State::Running);
    assert_eq!(entry.rollout, Some(Rollout { updated: 1, updated_ready: 0, total: 3, stuck: None }));
    assert_eq!(said(&entry, "RolledOut"), ("False", "InProgress"));
    assert_eq!(entry.error, None);
}

#[test]
fn a_scale_up_is_never_an_outage() {
    // D-11.
    let mut scene = Scene::of(5).pods(2, 0);
    scene.status(json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2,
        "conditions": [{"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]}));
    let entry = scene.entry();
    assert_eq!((entry.state.clone(), entry.degraded), (State::Running, true));
    assert_eq!((entry.replicas_ready, entry.replicas_desired), (2, 5));
}

#[test]
fn a_stuck_rollout_is_named_and_goes_on_serving() {
    let cases = [
        (
            json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}]),
            "ProgressDeadlineExceeded",
            codes::ROLLOUT_STUCK,
        ),
        (
            json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"},
                {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}]),
            "FailedCreate",
            codes::PODS_REFUSED,
        ),
    ];
    for (conditions, reason, code) in cases {
        let mut scene = Scene::of(2).pods(2, 0);
        scene.status(json!({"observedGeneration": 1, "replicas": 3, "updatedReplicas": 1, "readyReplicas": 2,
            "conditions": conditions}));
        let entry = scene.entry();
        assert_eq!(entry.state, State::Running);
        assert_eq!(entry.rollout.as_ref().unwrap().stuck.as_deref(), Some(reason));
        assert_eq!(said(&entry, "RolledOut"), ("False", reason));
        assert!(entry.error.unwrap().starts_with(code.code));
    }
}

#[test]
fn a_stamp_alone_is_no_rollout_and_an_unseen_template_is_one() {
    let key = key(Kind::Deployment, "chat-small");
    let set = |hash: &str| ObservedReplicaSet {
        name: "chat-small-1".to_owned(),
        app: "chat-small".to_owned(),
        revision: 1,
        input_hash: Some(hash.to_owned()),
        replicas: 1,
        ready: 1,
    };
    let mut scene = Scene::of(1).pods(1, 0);
    scene.server.edit(&key, |body| body["metadata"]["generation"] = json!(2));
    scene.sets = vec![set(&scene.hash())];
    assert_eq!(scene.entry().rollout, None, "the counts are still about this template");
    scene.sets = vec![set("the template before")];
    assert_eq!(said(&scene.entry(), "RolledOut"), ("False", "InProgress"));
}

#[test]
fn a_transient_failure_changes_neither_state_nor_counts_and_is_a_condition_only() {
    // D-9: the original writes `error` with 0/0, and the routers leave healthy pods.
    for category in [Category::Conflict, Category::Throttled, Category::Unavailable] {
        let calm = Scene::of(3).pods(3, 0).entry();
        let entry = Scene::of(3).pods(3, 0).done(failure(category)).entry();
        assert_eq!(entry.state, State::Running);
        assert_eq!((entry.replicas_ready, entry.replicas_desired), (3, 3));
        assert_eq!((entry.error.clone(), entry.degraded), (None, false));
        let others = |entry: &RegionEntry| {
            entry.conditions.iter().filter(|one| one.kind != "Reconciled").cloned().collect::<Vec<_>>()
        };
        assert_eq!(others(&entry), others(&calm));
        assert_eq!(
            said(&entry, "Reconciled"),
            (
                "False",
                match category {
                    Category::Conflict => "Conflict",
                    Category::Throttled => "Throttled",
                    _ => "Unavailable",
                }
            )
        );
        // Without a pod, it is still only not there yet.
        assert_eq!(Scene::of(3).done(failure(category)).entry().state, State::Creating);
    }
}

#[test]
fn a_lasting_failure_is_an_error_text_and_takes_nothing_off_the_routers() {
    for (category, code, alone) in [
        (Category::Invalid, codes::REFUSED, State::Failed),
        (Category::Forbidden, codes::FORBIDDEN, State::Error),
        (Category::Bug, codes::UNEXPECTED, State::Error),
    ] {
        let entry = Scene::of(1).pods(1, 0).done(failure(category)).entry();
        assert_eq!(entry.state, State::Running, "{category:?}");
        assert_eq!(entry.error.unwrap(), format!("{}: deployment/chat-small: the server's words", code.code));
        assert_eq!(Scene::of(1).done(failure(category)).entry().state, alone, "{category:?}");
    }
}

#[test]
fn of_several_failures_the_one_that_waiting_does_not_mend_is_told() {
    let mut done = failure(Category::Conflict);
    done.failures.extend(failure(Category::Forbidden).failures);
    done.failures.extend(failure(Category::Throttled).failures);
    let entry = Scene::of(1).pods(1, 0).done(done).entry();
    assert_eq!(said(&entry, "Reconciled"), ("False", "Forbidden"));
    assert!(entry.error.unwrap().starts_with(codes::FORBIDDEN.code));
}

#[test]
fn a_fenced_pass_says_nothing() {
    let mut done = failure(Category::Fenced);
    done.failures.extend(failure(Category::Invalid).failures);
    assert_eq!(Scene::of(1).pods(1, 0).done(done).report(), None);
}

#[test]
fn an_error_text_is_a_code_and_a_bounded_clean_message() {
    // D-48.
    let mut done = failure(Category::Invalid);
    done.failures[0].message = format!("line one\nline two\u{1b}[31m {}", "x".repeat(5_000));
    let error = Scene::of(1).done(done).entry().error.unwrap();
    assert!(error.starts_with("GCO-1101: deployment/chat-small: line one line two"), "{error}");
    assert!(error.chars().count() <= codes::LONGEST_ERROR);
    assert!(!error.chars().any(char::is_control));
}

#[test]
fn codes_are_distinct_and_say_what_to_do() {
    let distinct: BTreeSet<&str> = codes::ALL.iter().map(|code| code.code).collect();
    assert_eq!(distinct.len(), codes::ALL.len());
    for code in codes::ALL {
        let number = code.code.strip_prefix("GCO-").unwrap();
        assert!(number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit()), "{}", code.code);
        assert!(code.meaning.ends_with('.') && code.meaning.len() > 40, "{}", code.code);
    }
}

#[test]
fn objects_in_the_way_are_named_and_what_runs_goes_on() {
    // D-22: the original keeps the last word and says nothing.
    for (reason, code, not_ours) in [
        (obstacle::FOREIGN, codes::FOREIGN_OBJECT, true),
        (obstacle::OTHER_ENDPOINT, codes::OTHER_ENDPOINT, true),
        (obstacle::ADOPTION_NOT_SUPPORTED, codes::ADOPTION_NOT_SUPPORTED, false),
    ] {
        let entry = Scene::of(1).pods(1, 0).done(obstructed(reason)).entry();
        assert_eq!(entry.state, State::Running);
        assert_eq!(said(&entry, "Blocked"), ("True", reason));
        assert_eq!(entry.blocked_by, if not_ours { vec!["service/chat-small".to_owned()] } else { Vec::new() });
        let error = entry.error.unwrap();
        assert!(error.starts_with(code.code) && error.contains("service/chat-small"), "{error}");
    }
    let entry = Scene::of(1).pods(1, 0).done(obstructed(obstacle::TERMINATING)).entry();
    assert_eq!(said(&entry, "Progressing"), ("True", "Terminating"));
    assert_eq!((entry.error, entry.blocked_by), (None, Vec::new()), "waiting is no error");
    let entry = Scene::of(1).pods(1, 0).done(obstructed(obstacle::WRITE_WITHOUT_EFFECT)).entry();
    assert_eq!(said(&entry, "Reconciled"), ("False", "WriteWithoutEffect"));
}

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
    let stranger = super::support::identity('f');
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
    let entry = scene.pod(pod).done(obstructed(obstacle::ADOPTION_NOT_SUPPORTED)).entry();
    assert_eq!(entry.state, State::Running);
}

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

/// What the original last wrote.
fn original_entry(row: &EndpointRow, state: State, ready: u32, desired: u32) -> RegionEntry {
    let identity = identity_of(row, REGION);
    let mut entry = RegionEntry::new(state);
    entry.replicas_ready = ready;
    entry.replicas_desired = desired;
    entry.lifecycle_id = Some(identity.lifecycle_id);
    entry.region_generation = Some(identity.region_generation);
    entry.last_sync = Some("2026-11-29T10:00:00+00:00".to_owned());
    for key in ["canary", "roles", "store", "from_the_future"] {
        entry.extra.insert(key.to_owned(), Attribute::Map(Item::from([("x".to_owned(), Attribute::from(1))])));
    }
    entry
}

fn scene_of(fixture: &str) -> Scene {
    Scene { row: row(fixture), server: Server::new(), sets: Vec::new(), done: Done::default(), now: NOW }
}

#[test]
fn a_kind_that_this_version_does_not_serve_keeps_what_the_original_wrote() {
    for fixture in
        ["classic-canary", "classic-hpa", "mooncake-disaggregated", "mooncake-store", "mooncake-both-autoscaled"]
    {
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
    let scene = scene_of("classic-hpa");
    let stored = original_entry(&scene.row, State::Updating, 0, 2);
    let identity = identity_of(&scene.row, REGION);
    let name = scene.row.name.clone();
    let scene = scene.stored(&stored).pod(ready_pod("a", &name, &identity, None));
    assert_eq!(rejected(&scene, reason::NOT_YET_SUPPORTED).state, State::Running);
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
    let others: BTreeSet<String> = ["chat-small-canary".to_owned()].into();
    let context = RegionContext { region: REGION, namespace: NAMESPACE, other_names: &others, frozen: false };
    let entry = scene.report_as(&gco_monitor::intent::decide(&scene.row, &context)).unwrap();
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

fn stopped(mut scene: Scene) -> Scene {
    let mut item = scene.row.item.clone();
    item.insert("desired_state".to_owned(), Attribute::from("stopped"));
    scene.row = EndpointRow::parse(item).unwrap();
    scene
}

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

fn deleting() -> Scene {
    scene_of("deleting-half-acknowledged")
}

fn swept(observations: u32, absence: Option<Absence>) -> Done {
    Done { absence, absence_observations: observations, ..Done::default() }
}

fn absence(complete: bool, pending: &[&str], foreign: &[&str], failures: &[&str]) -> Option<Absence> {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    Some(Absence { complete, pending: texts(pending), foreign: texts(foreign), failures: texts(failures) })
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
    let intent = super::support::decide_in(&row, "eu-west-1");
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

#[test]
fn a_stored_entry_that_says_the_same_is_not_written_again() {
    // D-15.
    let complete = swept(1, absence(true, &[], &[], &[]));
    let scenes: Vec<fn() -> Scene> = vec![
        || Scene::of(1),
        || Scene::of(3).pods(2, 1),
        || Scene::of(1).pods(1, 0).done(failure(Category::Throttled)),
        || Scene::of(1).done(obstructed(obstacle::FOREIGN)),
        || stopped(Scene::of(1).pods(1, 0)),
        || scene_of("classic-hpa"),
        || scene_of("invalid-many-fields"),
        || scene_of("unknown-keys"),
    ];
    for (number, scene) in scenes.into_iter().enumerate() {
        let entry = scene().entry();
        let mut again = scene().stored(&entry);
        again.now = LATER;
        assert_eq!(again.report(), None, "scene {number}");
    }
    let entry = deleting().done(complete.clone()).entry();
    let mut again = deleting().done(complete).stored(&entry);
    again.now = LATER;
    assert_eq!(again.report(), None);
}

#[test]
fn the_time_since_when_a_condition_holds_is_kept_until_its_status_changes() {
    let first = Scene::of(3).pods(3, 0).entry();
    let mut scene = Scene::of(3).pods(1, 2).stored(&first);
    scene.now = LATER;
    let second = scene.entry();
    assert_eq!(second.last_sync.as_deref(), Some(LATER));
    let since = |entry: &RegionEntry, kind| condition(entry, kind).unwrap().since.clone();
    assert_eq!(since(&second, "Ready"), NOW, "still ready, though with fewer pods");
    let mut scene = Scene::of(3).pods(0, 3).stored(&second);
    scene.now = LATER;
    assert_eq!(since(&scene.entry(), "Ready"), LATER);
}

#[test]
fn an_entry_of_another_lifecycle_or_generation_is_replaced_whole() {
    for change in [
        (|entry: &mut RegionEntry| entry.lifecycle_id = Some("another".to_owned())) as fn(&mut RegionEntry),
        |entry| entry.region_generation = Some("another".to_owned()),
        |entry| entry.lifecycle_id = None,
    ] {
        let mut stored = Scene::of(1).pods(1, 0).entry();
        change(&mut stored);
        stored.extra.insert("roles".to_owned(), Attribute::from(1));
        let mut scene = Scene::of(1).pods(1, 0).stored(&stored);
        scene.now = LATER;
        let entry = scene.entry();
        assert!(entry.extra.is_empty());
        assert!(entry.conditions.iter().all(|condition| condition.since == LATER));
        // Nor is it a word to fall back on.
        let scene = scene_of("classic-hpa");
        let mut stored = original_entry(&scene.row, State::Running, 2, 2);
        change(&mut stored);
        assert_eq!(scene.stored(&stored).entry().state, State::Failed);
    }
}

#[test]
fn leftovers_of_a_canary_vanish_from_the_entry_of_an_endpoint_that_is_served() {
    let mut stored = Scene::of(1).pods(1, 0).entry();
    stored.extra.insert("canary".to_owned(), Attribute::Map(Item::new()));
    assert!(Scene::of(1).pods(1, 0).stored(&stored).entry().extra.is_empty());
}

#[test]
fn a_pause_is_told_wherever_it_holds() {
    let others = BTreeSet::new();
    let context = RegionContext { region: REGION, namespace: NAMESPACE, other_names: &others, frozen: true };
    for scene in [Scene::of(1).pods(1, 0), stopped(Scene::of(1)), deleting()] {
        let intent = gco_monitor::intent::decide(&scene.row, &context);
        let entry = scene.report_as(&intent).unwrap();
        assert_eq!(said(&entry, "Paused").0, "True", "{intent:?}");
        let calm = scene.entry();
        assert_eq!(said(&calm, "Paused").0, "");
        assert_eq!(entry.state, calm.state, "a pause changes no word");
    }
}

#[test]
fn a_region_with_nothing_to_say_says_nothing() {
    let scene = Scene::of(1).pods(1, 0);
    for intent in
        [Intent::Ignore, Intent::BackFill, Intent::AwaitPurge, Intent::Unusable { reason: reason::NO_VERSION }]
    {
        assert_eq!(scene.report_as(&intent), None, "{intent:?}");
    }
    let clean_up = CleanUp::RegionRemoved(scene.identity());
    assert!(scene.report_as(&Intent::Remove { clean_up, paused: false }).is_some());
}
