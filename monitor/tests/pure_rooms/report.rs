//! What a region says, situation by situation (the wire contract, C.15 and E.2).

mod kept;
mod leaving;
mod pods;
mod rejected;
mod scaled;
mod writing;

use std::collections::BTreeSet;

use gco_monitor::intent::{CleanUp, Intent, RegionContext, reason};
use gco_monitor::object::{Kind, Observed, ObservedPod, ObservedReplicaSet};
use gco_monitor::plan::{Obstacle, obstacle};
use gco_monitor::report::{Absence, Category, Done, Failure, ReportInput, codes, report};
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::status::{RegionEntry, Rollout, State, StatusCondition};
use gco_store::wire::{Item, Value as Attribute};
use serde_json::{Value, json};

use crate::server::{Server, key};
use crate::support::{
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
        template: None,
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
        template: None,
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
    for (reason, code) in
        [(obstacle::FOREIGN, codes::FOREIGN_OBJECT), (obstacle::OTHER_ENDPOINT, codes::OTHER_ENDPOINT)]
    {
        let entry = Scene::of(1).pods(1, 0).done(obstructed(reason)).entry();
        assert_eq!(entry.state, State::Running);
        assert_eq!(said(&entry, "Blocked"), ("True", reason));
        assert_eq!(entry.blocked_by, ["service/chat-small"]);
        let error = entry.error.unwrap();
        assert!(error.starts_with(code.code) && error.contains("service/chat-small"), "{error}");
    }
    let entry = Scene::of(1).pods(1, 0).done(obstructed(obstacle::TERMINATING)).entry();
    assert_eq!(said(&entry, "Progressing"), ("True", "Terminating"));
    assert_eq!((entry.error, entry.blocked_by), (None, Vec::new()), "waiting is no error");
    let entry = Scene::of(1).pods(1, 0).done(obstructed(obstacle::WRITE_WITHOUT_EFFECT)).entry();
    assert_eq!(said(&entry, "Reconciled"), ("False", "WriteWithoutEffect"));
}

fn scene_of(fixture: &str) -> Scene {
    Scene { row: row(fixture), server: Server::new(), sets: Vec::new(), done: Done::default(), now: NOW }
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

fn swept(observations: u32, absence: Option<Absence>) -> Done {
    Done { absence, absence_observations: observations, ..Done::default() }
}

fn absence(complete: bool, pending: &[&str], foreign: &[&str], failures: &[&str]) -> Option<Absence> {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    Some(Absence { complete, pending: texts(pending), foreign: texts(foreign), failures: texts(failures) })
}

fn stopped(mut scene: Scene) -> Scene {
    let mut item = scene.row.item.clone();
    item.insert("desired_state".to_owned(), Attribute::from("stopped"));
    scene.row = EndpointRow::parse(item).unwrap();
    scene
}

fn deleting() -> Scene {
    scene_of("deleting-half-acknowledged")
}
