//! Objects that no row owns.

use gco_monitor::object::{Kind, ObservedObject};
use gco_monitor::orphans::{Suspect, Suspicion, suspects};
use gco_store::row::EndpointRow;
use serde_json::{Value, json};

use super::server::{key, observed};
use super::support::{REGION, identity_of, item, row};

fn object(kind: Kind, name: &str, labels: &Value, lifecycle: Option<&str>) -> ObservedObject {
    let mut annotations = json!({});
    if let Some(lifecycle) = lifecycle {
        annotations["gco.io/lifecycle-id"] = json!(lifecycle);
    }
    let body = json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "1", "labels": labels,
        "annotations": annotations}});
    observed(&key(kind, name), &body)
}

fn ours(kind: Kind, name: &str, lifecycle: Option<&str>) -> ObservedObject {
    object(kind, name, &json!({"app": name, "project": "gco", "gco.io/type": "inference"}), lifecycle)
}

fn names(objects: &[ObservedObject], rows: &[EndpointRow]) -> Vec<String> {
    let found = suspects(objects, rows, REGION, |app| if app == "gone" { 3 } else { 0 });
    found.into_iter().map(|suspect| format!("{} {}", suspect.orphan.object, suspect.orphan.pods)).collect()
}

#[test]
fn an_object_is_an_orphan_when_no_row_has_its_lifecycle_and_none_here_its_name() {
    let here = row("classic-minimal");
    let lifecycle = identity_of(&here, REGION).lifecycle_id;
    let gone = "e".repeat(64);
    let objects = [
        ours(Kind::Deployment, "chat-small", Some(&lifecycle)),
        // Of a row, under a name that nobody expects: its owner is known.
        ours(Kind::Deployment, "odd", Some(&lifecycle)),
        // Of an earlier life: the plan of the row that has the name now hands it off.
        ours(Kind::Service, "chat-small", Some(&gone)),
        ours(Kind::Deployment, "chat-small-canary", Some(&gone)),
        // Nobody's.
        ours(Kind::Deployment, "gone", Some(&gone)),
        ours(Kind::Service, "gone", Some(&gone)),
        ours(Kind::Deployment, "older-than-lifecycles", None),
        // Our labels and no name in them: who made it cannot be told.
        object(Kind::Service, "elsewhere", &json!({"project": "gco", "gco.io/type": "inference"}), None),
    ];
    let orphans = ["deployment/gone 3", "service/gone 0", "deployment/older-than-lifecycles 0"];
    assert_eq!(names(&objects, &[here]), orphans);
}

#[test]
fn a_row_of_the_name_that_does_not_concern_this_region_owns_nothing_here() {
    // It never will look at them, and the purge of the row that made them is long past.
    let mut elsewhere = item("classic-minimal");
    for attribute in ["target_regions", "cleanup_regions"] {
        elsewhere.insert(attribute.to_owned(), gco_store::wire::Value::List(vec!["ap-south-1".into()]));
    }
    let elsewhere = EndpointRow::parse(elsewhere).unwrap();
    let objects = [ours(Kind::Deployment, "chat-small", Some(&"e".repeat(64)))];
    assert_eq!(names(&objects, &[elsewhere]), ["deployment/chat-small 0"]);
    assert!(names(&objects, &[row("classic-minimal")]).is_empty());
}

#[test]
fn what_is_being_deleted_is_no_orphan() {
    let mut dying = ours(Kind::Deployment, "gone", Some(&"e".repeat(64)));
    dying.terminating = true;
    assert!(names(&[dying], &[]).is_empty());
}

#[test]
fn an_orphan_is_told_of_only_after_a_later_complete_read_has_confirmed_it() {
    // The caches may hear of a new endpoint's objects before this process has read its row.
    let objects = [ours(Kind::Deployment, "gone", Some(&"e".repeat(64)))];
    let look = |rows: &[EndpointRow]| -> Vec<Suspect> { suspects(&objects, rows, REGION, |_| 0) };
    let mut suspicion = Suspicion::<u64>::default();
    assert!(suspicion.confirmed(look(&[]), 10, None).is_empty());
    assert!(suspicion.confirmed(look(&[]), 20, Some(9)).is_empty(), "an older read proves nothing");
    assert_eq!(suspicion.confirmed(look(&[]), 30, Some(25)).len(), 1);
    // Gone in between: it begins anew, also for one that has the name again.
    assert!(suspicion.confirmed(Vec::new(), 40, Some(35)).is_empty());
    assert!(suspicion.confirmed(look(&[]), 50, Some(45)).is_empty());
    let mut again = look(&[]);
    again[0].uid = "another".to_owned();
    assert!(suspicion.confirmed(again, 60, Some(55)).is_empty());
}
