//! Every operation: what it writes, when its predicate holds and when not, and its words.

use crate::common::{all_rows, at, changed, now, request, row, tokens, value};
use gco_store::row::{DesiredState, EndpointRow, Quorum, Refresh};
use gco_store::status::{RegionEntry, State};
use gco_store::table::Outcome;
use gco_store::transition::{self, Operation, OperationError, StatusAuthority, Transition};
use gco_store::wire::{Item, Value};
use serde_json::json;

/// The row after a transition that must be applied.
fn after(transition: &Transition, row: Option<&EndpointRow>) -> EndpointRow {
    match transition.evaluate(row.map(|row| row.item.clone())) {
        Ok(Outcome::Applied(Some(item))) => EndpointRow::parse(item).expect("a readable row"),
        other => panic!("not applied: {other:?}"),
    }
}

fn refused(transition: &Transition, row: &EndpointRow) -> bool {
    matches!(transition.evaluate(Some(row.item.clone())), Ok(Outcome::Refused(Some(item))) if item == row.item)
}

fn set(row: &EndpointRow, attribute: &str, new: Value) -> EndpointRow {
    changed(row, |item| {
        item.insert(attribute.to_owned(), new);
    })
}

/// The row as somebody who knows nothing of us left it a moment before our write, at a version that ours follows.
fn touched(row: &EndpointRow) -> EndpointRow {
    set(row, "updated_at", Value::from("2026-12-31T23:59:59.5+00:00"))
}

fn words<T: std::fmt::Debug>(result: Result<T, OperationError>) -> String {
    result.expect_err("refused").to_string()
}

#[test]
fn create_writes_what_the_contract_lists() {
    let mut asked = request("chat");
    asked.target_regions = ["b", "a", "b"].map(str::to_owned).to_vec();
    let transition = transition::create(&asked, at("2026-11-03T09:15:27Z"), &mut tokens()).expect("valid");
    let row = after(&transition, None);
    assert_eq!(transition.operation, Operation::Create);
    assert_eq!(transition.new_updated_at, row.updated_at);
    assert_eq!(row.desired_state, DesiredState::Deploying);
    assert_eq!(
        (row.target_regions.clone(), row.cleanup_regions.clone()),
        (vec!["b".into(), "a".into()], Some(vec!["b".into(), "a".into()]))
    );
    assert_eq!(row.lifecycle_id, Some(format!("{:064x}", 1)));
    assert_eq!(
        (row.region_generation("b"), row.region_generation("a")),
        (Some(&*format!("{:064x}", 2)), Some(&*format!("{:064x}", 3)))
    );
    assert_eq!(row.created_at.as_deref(), Some("2026-11-03T09:15:27+00:00"));
    assert_eq!(row.updated_at, row.created_at);
    assert_eq!(row.ingress_path.as_deref(), Some("/inference/chat"));
    assert_eq!(row.item["region_status"], Value::Map(Item::new()));
    assert!(row.lifecycle_complete() && row.problems.is_empty());
    assert!(!row.item.contains_key("labels") && !row.item.contains_key("created_by"));
    asked.labels.insert("team".to_owned(), "search".to_owned());
    asked.created_by = Some("me".to_owned());
    let row = after(&transition::create(&asked, now(), &mut tokens()).expect("valid"), None);
    assert_eq!((row.labels["team"].as_str(), row.created_by.as_deref()), ("search", Some("me")));
}

#[test]
fn create_is_refused_when_the_name_is_taken_even_by_a_row_being_deleted() {
    for name in ["classic-minimal", "deleting-half-acknowledged"] {
        let row = row(name);
        let transition = transition::create(&request(&row.name), now(), &mut tokens()).expect("valid");
        assert!(refused(&transition, &row), "{name}");
    }
}

#[test]
fn create_names_every_bad_field_of_the_request() {
    let mut asked = request("Chat-proxy");
    asked.spec = value(json!({"image": "x", "port": 0, "tolerations": [], "gpu_type": "p5", "model_path": "/x"}));
    asked.namespace = "default".to_owned();
    asked.target_regions = vec!["us-east-1".to_owned(), "US".to_owned()];
    asked.labels.insert(String::new(), "x".to_owned());
    asked.created_by = Some("a\nb".to_owned());
    let OperationError::Invalid(problems) = transition::create(&asked, now(), &mut tokens()).expect_err("refused")
    else {
        panic!("not invalid")
    };
    let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(
        fields,
        ["endpoint_name", "spec.port", "spec.tolerations", "namespace", "target_regions[1]", "labels.", "created_by"]
    );
    asked.target_regions.clear();
    assert!(
        words(transition::create(&asked, now(), &mut tokens()))
            .contains("target_regions: must name at least one region")
    );
    asked.spec = value(json!({"image": "x", "args": vec!["x".repeat(1000); 210]}));
    assert!(words(transition::create(&asked, now(), &mut tokens())).contains("spec: must be at most 204800 bytes"));
}

#[test]
fn back_filling_completes_a_legacy_row_and_leaves_a_complete_one_alone() {
    let legacy = row("legacy-no-lifecycle");
    let transition = transition::back_fill(&legacy, now(), &mut tokens()).expect("possible").expect("needed");
    let filled = after(&transition, Some(&legacy));
    assert!(filled.lifecycle_complete());
    assert_eq!(
        filled.cleanup_regions.as_deref(),
        Some(&["us-east-1", "eu-west-1", "ap-south-1"].map(str::to_owned)[..])
    );
    assert_eq!(filled.desired_state, legacy.desired_state);
    assert!(refused(&transition, &touched(&legacy)));
    assert_eq!(transition::back_fill(&filled, now(), &mut tokens()), Ok(None));
    for (name, item) in all_rows() {
        let row = EndpointRow::parse(item).expect("readable");
        let needed = transition::back_fill(&row, now(), &mut tokens()).expect("possible").is_some();
        assert_eq!(needed, name == "rows/legacy-no-lifecycle", "{name}");
    }
}

#[test]
fn back_filling_keeps_tokens_that_are_there_and_drops_those_of_unknown_regions() {
    let complete = row("classic-minimal");
    let kept = complete.region_generation("us-east-1").expect("a token").to_owned();
    let partial = set(&complete, "region_generations", value(json!({"us-east-1": kept, "eu-west-1": "", "mars": "x"})));
    let filled =
        after(&transition::back_fill(&partial, now(), &mut tokens()).expect("ok").expect("needed"), Some(&partial));
    assert_eq!(filled.lifecycle_id, complete.lifecycle_id);
    assert_eq!(filled.region_generation("us-east-1"), complete.region_generation("us-east-1"));
    assert_eq!(filled.region_generation("eu-west-1"), Some(&*format!("{:064x}", 1)));
    assert_eq!(filled.region_generation("mars"), None);
}

#[test]
fn back_filling_replaces_an_identity_that_is_none_and_adds_the_status_map() {
    let empty = changed(&row("classic-minimal"), |item| {
        item.insert("lifecycle_id".to_owned(), Value::from(""));
        item.remove("region_status");
    });
    let filled =
        after(&transition::back_fill(&empty, now(), &mut tokens()).expect("ok").expect("needed"), Some(&empty));
    assert_eq!(filled.lifecycle_id, Some(format!("{:064x}", 1)));
    assert_eq!(filled.item["region_status"], Value::Map(Item::new()));
}

#[test]
fn nothing_is_built_upon_a_row_without_version() {
    let row = changed(&row("classic-minimal"), |item| {
        item.remove("updated_at");
    });
    let expected = "Endpoint 'chat-small' has no conditional migration timestamp";
    let entry = RegionEntry::new(State::Running);
    let live = StatusAuthority::Live { lifecycle_id: "x".to_owned(), region_generation: "y".to_owned() };
    assert_eq!(words(transition::back_fill(&row, now(), &mut tokens())), expected);
    assert_eq!(words(transition::set_desired_state(&row, DesiredState::Stopped, None, now(), &mut tokens())), expected);
    assert_eq!(words(transition::promote(&row, now())), expected);
    assert_eq!(words(transition::update_spec(&row, row.spec.clone(), now())), expected);
    assert_eq!(words(transition::scale(&row, 2, now())), expected);
    assert_eq!(words(transition::write_region_status(&row, "us-east-1", &entry, &live, now())), expected);
    assert_eq!(words(transition::update_target_regions(&row, &["a".to_owned()], now(), &mut tokens())), expected);
    assert_eq!(words(transition::set_paused(&row, true, now())), expected);
}

#[test]
fn every_operation_but_create_and_purge_sets_a_later_version() {
    let row = row("classic-minimal");
    let entry = RegionEntry::new(State::Running);
    let authority = live_authority(&row, "us-east-1");
    for transition in [
        transition::set_desired_state(&row, DesiredState::Stopped, None, now(), &mut tokens()),
        transition::promote(&row, now()),
        transition::update_spec(&row, row.spec.clone(), now()),
        transition::scale(&row, 2, now()),
        transition::write_region_status(&row, "us-east-1", &entry, &authority, now()),
        transition::update_target_regions(&row, &["us-east-1".to_owned()], now(), &mut tokens()),
        transition::set_paused(&row, true, now()),
    ] {
        let transition = transition.expect("possible");
        assert_eq!(transition.base_updated_at, row.updated_at);
        let left = after(&transition, Some(&row)).updated_at;
        assert_eq!(left, transition.new_updated_at);
        assert!(left > row.updated_at, "{:?}", transition.operation);
        // A second arrival of the same write does nothing.
        let once = after(&transition, Some(&row));
        assert!(refused(&transition, &once), "{:?}", transition.operation);
    }
}

#[test]
fn a_write_never_takes_the_version_back() {
    let row = row("classic-minimal");
    let transition = transition::scale(&row, 2, now()).expect("possible");
    let later = set(&row, "updated_at", Value::from("2027-01-01T00:00:00.250001+00:00"));
    let equal = set(&row, "updated_at", Value::from("2027-01-01T00:00:00.250000+00:00"));
    let earlier = set(&row, "updated_at", Value::from("2027-01-01T00:00:00.249999+00:00"));
    assert!(refused(&transition, &later) && refused(&transition, &equal));
    assert_eq!(after(&transition, Some(&earlier)).spec.at(&["replicas"]), Some(&Value::from(2)));
    // A version that no clock of ours would write is followed all the same, when it is the one that was read.
    let foreign = set(&row, "updated_at", Value::from("2027-01-01T02:00:00+02:00"));
    let transition = transition::scale(&foreign, 2, now()).expect("possible");
    assert_eq!(after(&transition, Some(&foreign)).updated_at.as_deref(), Some("2027-01-01T00:00:00.250000+00:00"));
}

#[test]
fn stopping_needs_the_lifecycle_and_a_live_row_and_survives_status_writes() {
    let row = row("classic-hpa");
    let stop =
        |row: &EndpointRow| transition::set_desired_state(row, DesiredState::Stopped, None, now(), &mut tokens());
    let transition = stop(&row).expect("possible");
    assert_eq!(after(&transition, Some(&row)).desired_state, DesiredState::Stopped);
    assert_eq!(after(&transition, Some(&touched(&row))).desired_state, DesiredState::Stopped);
    assert!(refused(&transition, &set(&row, "lifecycle_id", Value::from("another"))));
    assert!(refused(&transition, &set(&row, "desired_state", Value::from("deleted"))));
    assert!(matches!(transition.evaluate(None), Ok(Outcome::Refused(None))));
    assert_eq!(
        words(stop(&crate::common::row("legacy-no-lifecycle"))),
        "Ordinary state updates require an expected lifecycle id"
    );
    assert!(
        words(stop(&crate::common::row("deleting-half-acknowledged"))).contains("is deleted and cannot be stopped")
    );
    for target in [DesiredState::Running, DesiredState::Unknown("x".to_owned())] {
        assert!(transition::set_desired_state(&row, target, None, now(), &mut tokens()).is_err());
    }
}

#[test]
fn deleting_is_repeatable_and_keeps_the_first_generation_and_regions() {
    let row = row("region-removed");
    let delete =
        |row: &EndpointRow| transition::set_desired_state(row, DesiredState::Deleted, None, now(), &mut tokens());
    let first = after(&delete(&row).expect("possible"), Some(&row));
    assert_eq!(first.desired_state, DesiredState::Deleted);
    assert_eq!(first.deletion_generation, Some(format!("{:064x}", 1)));
    assert_eq!(first.deletion_regions, row.cleanup_regions);
    let moved = set(&first, "cleanup_regions", value(json!(["elsewhere"])));
    let mut others = || "another".to_owned();
    let again =
        transition::set_desired_state(&moved, DesiredState::Deleted, None, now(), &mut others).expect("possible");
    let second = after(&again, Some(&moved));
    assert_eq!(
        (second.deletion_generation, second.deletion_regions),
        (first.deletion_generation, first.deletion_regions)
    );
    assert_eq!(
        words(delete(&crate::common::row("legacy-no-lifecycle"))),
        "Endpoint 'legacy-chat' has no lifecycle identity"
    );
}

#[test]
fn deleting_can_be_limited_to_rows_with_a_label() {
    let row = row("classic-full");
    let delete = |label| transition::set_desired_state(&row, DesiredState::Deleted, Some(label), now(), &mut tokens());
    assert_eq!(after(&delete(("team", "search")).expect("possible"), Some(&row)).desired_state, DesiredState::Deleted);
    assert!(refused(&delete(("team", "ads")).expect("possible"), &row));
    assert!(refused(&delete(("owner", "search")).expect("possible"), &row));
    for label in [("", "x"), ("x", "")] {
        assert_eq!(words(delete(label)), "Expected endpoint label name and value must be non-empty");
    }
}

#[test]
fn promotion_happens_only_from_deploying_and_from_the_row_as_read() {
    let row = row("mooncake-disaggregated");
    let transition = transition::promote(&row, now()).expect("possible");
    assert_eq!(after(&transition, Some(&row)).desired_state, DesiredState::Running);
    assert!(refused(&transition, &touched(&row)));
    assert!(refused(&transition, &set(&row, "desired_state", Value::from("stopped"))));
    assert!(refused(&transition, &set(&row, "lifecycle_id", Value::from("another"))));
    assert!(transition::promote(&set(&row, "desired_state", Value::from("stopped")), now()).is_err());
    let silent = changed(&row, |item| {
        item.remove("desired_state");
    });
    let transition = transition::promote(&silent, now()).expect("possible");
    assert_eq!(after(&transition, Some(&silent)).desired_state, DesiredState::Running);
    assert!(refused(&transition, &row));
}

#[test]
fn only_stopped_endpoints_are_started() {
    let row = row("classic-stopped");
    let transition = transition::start(&row, now()).expect("possible");
    assert_eq!(after(&transition, Some(&row)).desired_state, DesiredState::Running);
    assert!(refused(&transition, &set(&row, "desired_state", Value::from("running"))));
    assert!(refused(&transition, &set(&row, "lifecycle_id", Value::from("another"))));
    for (fixture, expected) in [
        ("legacy-no-lifecycle", "Endpoint 'legacy-chat' has no lifecycle identity"),
        (
            "deleting-half-acknowledged",
            "Endpoint 'gone-chat' is deleted; wait for purge and redeploy it with 'gco inference deploy'.",
        ),
        ("classic-hpa", "Endpoint 'chat-hpa' is in 'running' state; only stopped endpoints can be started."),
    ] {
        assert_eq!(words(transition::start(&crate::common::row(fixture), now())), expected);
    }
}

#[test]
fn a_spec_edit_keeps_the_desired_state_and_needs_the_row_as_read() {
    for (fixture, state) in [
        ("classic-hpa", DesiredState::Running),
        ("classic-stopped", DesiredState::Stopped),
        ("classic-minimal", DesiredState::Deploying),
    ] {
        let row = row(fixture);
        let spec = value(json!({"image": "new:1"}));
        let transition = transition::update_spec(&row, spec.clone(), now()).expect("possible");
        let edited = after(&transition, Some(&row));
        assert_eq!((edited.spec, edited.desired_state), (spec, state));
        assert!(refused(&transition, &touched(&row)));
        assert!(refused(&transition, &set(&row, "desired_state", Value::from("deleted"))));
        assert!(refused(&transition, &set(&row, "lifecycle_id", Value::from("another"))));
    }
    let spec = || value(json!({"image": "x"}));
    assert_eq!(
        words(transition::update_spec(&row("legacy-no-lifecycle"), spec(), now())),
        "Spec updates require an expected lifecycle id"
    );
    assert!(transition::update_spec(&row("deleting-half-acknowledged"), spec(), now()).is_err());
}

#[test]
fn a_spec_edit_keeps_unknown_keys_but_adds_none() {
    let row = row("unknown-keys");
    let mut spec = row.spec.as_map().expect("a map").clone();
    spec.insert("image".to_owned(), Value::from("new:1"));
    let edited = after(&transition::update_spec(&row, Value::Map(spec.clone()), now()).expect("possible"), Some(&row));
    assert_eq!(edited.spec.at(&["speculative", "tokens"]), Some(&Value::from(5)));
    assert_eq!(edited.item["notes"], row.item["notes"]);
    spec.insert("tolerations".to_owned(), Value::List(Vec::new()));
    spec.insert("port".to_owned(), Value::from(0));
    assert_eq!(
        words(transition::update_spec(&row, Value::Map(spec), now())),
        "spec.port: must be an integer from 1 to 65535, got 0; spec.tolerations: is an unknown key; it would have no effect"
    );
}

#[test]
fn scaling_sets_only_the_count() {
    let row = row("classic-stopped");
    let transition = transition::scale(&row, 7, now()).expect("possible");
    let scaled = after(&transition, Some(&touched(&row)));
    assert_eq!(scaled.spec.at(&["replicas"]), Some(&Value::from(7)));
    assert_eq!((scaled.desired_state, scaled.spec.at(&["image"])), (DesiredState::Stopped, row.spec.at(&["image"])));
    let with = |key: &str, block: serde_json::Value| {
        changed(&row, |item| {
            let Some(Value::Map(spec)) = item.get_mut("spec") else { panic!("no spec") };
            spec.insert(key.to_owned(), value(block));
        })
    };
    assert!(refused(&transition, &with("mooncake", json!({"mode": "store"}))));
    assert!(refused(&transition, &with("autoscaling", json!({"enabled": true}))));
    assert!(refused(&transition, &set(&row, "desired_state", Value::from("deleted"))));
    assert!(refused(&transition, &set(&row, "lifecycle_id", Value::from("another"))));
    assert!(!refused(&transition, &with("autoscaling", json!({"enabled": false}))));
    assert!(!refused(&transition, &with("autoscaling", json!({"min_replicas": 1}))));
}

#[test]
fn scaling_says_why_it_is_not_possible() {
    for (fixture, replicas, expected) in [
        ("legacy-no-lifecycle", 1, "Scaling requires an expected lifecycle id"),
        (
            "classic-minimal",
            0,
            "spec.replicas: must be an integer from 1 to 1000, got 0 (to run no pods, stop the endpoint: gco inference stop)",
        ),
        ("classic-minimal", 1001, "spec.replicas: must be an integer from 1 to 1000, got 1001"),
        ("classic-minimal", -1, "spec.replicas: must be an integer from 1 to 1000, got -1"),
        (
            "mooncake-store",
            2,
            "Endpoint 'shared-store' uses Mooncake topology; use 'gco inference set-topology' instead of 'gco inference scale'.",
        ),
        (
            "classic-hpa",
            2,
            "Endpoint 'chat-hpa' is autoscaled; update its min/max autoscaling bounds or disable autoscaling before using 'gco inference scale'.",
        ),
        ("invalid-spec-not-a-map", 2, "Endpoint 'bad-spec' has an invalid spec"),
        (
            "deleting-half-acknowledged",
            2,
            "Endpoint 'gone-chat' is deleted and cannot be scaled; redeploy it after deletion completes.",
        ),
    ] {
        assert_eq!(words(transition::scale(&row(fixture), replicas, now())), expected);
    }
}

fn live_authority(row: &EndpointRow, region: &str) -> StatusAuthority {
    StatusAuthority::Live {
        lifecycle_id: row.lifecycle_id.clone().expect("a lifecycle"),
        region_generation: row.region_generation(region).expect("a generation").to_owned(),
    }
}

fn deletion_authority(row: &EndpointRow) -> StatusAuthority {
    StatusAuthority::Deletion {
        lifecycle_id: row.lifecycle_id.clone().expect("a lifecycle"),
        deletion_generation: row.deletion_generation.clone().expect("a deletion"),
    }
}

fn put_status(row: &EndpointRow, region: &str, status: serde_json::Value) -> EndpointRow {
    changed(row, |item| {
        let Some(Value::Map(statuses)) = item.get_mut("region_status") else { panic!("no statuses") };
        statuses.insert(region.to_owned(), value(status));
    })
}

#[test]
fn a_status_carries_its_authority_and_its_time() {
    let row = row("classic-hpa");
    let mut entry = RegionEntry::new(State::Running);
    entry.deletion_generation = Some("left over".to_owned());
    let authority = live_authority(&row, "us-east-1");
    let transition = transition::write_region_status(&row, "us-east-1", &entry, &authority, now()).expect("possible");
    let written = after(&transition, Some(&row));
    let entry = &written.region_status["us-east-1"];
    assert_eq!(entry.last_sync, written.updated_at);
    assert_eq!(entry.lifecycle_id, row.lifecycle_id);
    assert_eq!(entry.region_generation.as_deref(), row.region_generation("us-east-1"));
    assert_eq!(entry.deletion_generation, None);
    assert_eq!(written.region_status["eu-west-1"], row.region_status["eu-west-1"]);
}

#[test]
fn a_live_status_lands_only_under_its_own_lifecycle_generation_and_entry() {
    let row = row("classic-hpa");
    let entry = RegionEntry::new(State::Running);
    let authority = live_authority(&row, "us-east-1");
    let transition = transition::write_region_status(&row, "us-east-1", &entry, &authority, now()).expect("possible");
    // Another region's status and an edit of the spec do not stand in its way.
    let others = put_status(&touched(&row), "eu-west-1", json!({"state": "running", "last_sync": "x"}));
    assert!(!refused(&transition, &others));
    assert!(refused(&transition, &set(&row, "lifecycle_id", Value::from("another"))));
    assert!(refused(&transition, &set(&row, "desired_state", Value::from("deleted"))));
    assert!(refused(&transition, &set(&row, "region_generations", value(json!({"us-east-1": "another"})))));
    assert!(refused(&transition, &put_status(&row, "us-east-1", json!({"state": "creating", "last_sync": "x"}))));
    assert!(refused(&transition, &set(&row, "region_status", Value::Map(Item::new()))));
    assert!(matches!(transition.evaluate(None), Ok(Outcome::Refused(None))));
}

#[test]
fn a_first_status_lands_only_where_there_is_none() {
    let row = row("classic-minimal");
    let entry = RegionEntry::new(State::Creating);
    let authority = live_authority(&row, "us-east-1");
    let first = transition::write_region_status(&row, "us-east-1", &entry, &authority, now()).expect("possible");
    assert!(!refused(&first, &row));
    let timeless = put_status(&row, "us-east-1", json!({"state": "running"}));
    assert!(refused(&first, &timeless));
    let second = transition::write_region_status(&timeless, "us-east-1", &entry, &authority, now()).expect("possible");
    assert!(!refused(&second, &timeless));
    assert!(refused(&second, &row));
    assert!(refused(&second, &put_status(&row, "us-east-1", json!({"last_sync": "x"}))));
    let strange = put_status(&row, "us-east-1", json!("strange"));
    let third = transition::write_region_status(&strange, "us-east-1", &entry, &authority, now()).expect("possible");
    assert!(!refused(&third, &strange) && refused(&third, &timeless));
    let mapless = changed(&row, |item| {
        item.remove("region_status");
    });
    assert!(transition::write_region_status(&mapless, "us-east-1", &entry, &authority, now()).is_err());
}

#[test]
fn a_terminal_acknowledgement_is_never_overwritten() {
    let row = row("deleting-half-acknowledged");
    let entry = RegionEntry::new(State::Deleting);
    let authority = deletion_authority(&row);
    let write =
        |region: &str| transition::write_region_status(&row, region, &entry, &authority, now()).expect("possible");
    assert!(refused(&write("eu-west-1"), &row));
    let transition = write("us-east-1");
    let written = after(&transition, Some(&row));
    assert_eq!(written.region_status["us-east-1"].deletion_generation, row.deletion_generation);
    assert_eq!(written.region_status["us-east-1"].region_generation, None);
    assert!(refused(&transition, &set(&row, "desired_state", Value::from("running"))));
    assert!(refused(&transition, &set(&row, "deletion_generation", Value::from("another"))));
    assert!(refused(&transition, &set(&row, "lifecycle_id", Value::from("another"))));
}

#[test]
fn a_region_that_was_removed_before_can_still_acknowledge_the_deletion() {
    // D-6: its entry is `deleted`, but under a region generation.
    let removed = row("region-removed");
    let generation = removed.region_generation("eu-west-1").expect("a token");
    let removed = put_status(
        &removed,
        "eu-west-1",
        json!({"state": "deleted", "replicas_ready": 0, "replicas_desired": 0, "last_sync": "x", "absence_observations": 2,
               "lifecycle_id": removed.lifecycle_id, "region_generation": generation}),
    );
    assert!(removed.acknowledged("eu-west-1"));
    let delete = transition::set_desired_state(&removed, DesiredState::Deleted, None, now(), &mut tokens());
    let mut row = after(&delete.expect("possible"), Some(&removed));
    assert_eq!(row.quorum(), Quorum::Missing(vec!["us-east-1".to_owned(), "eu-west-1".to_owned()]));
    assert_eq!(transition::purge(&row), None);
    for region in ["us-east-1", "eu-west-1"] {
        let mut entry = RegionEntry::new(State::Deleted);
        entry.absence_observations = Some(2);
        let write = transition::write_region_status(&row, region, &entry, &deletion_authority(&row), now());
        row = after(&write.expect("possible"), Some(&row));
    }
    let purge = transition::purge(&row).expect("the quorum stands");
    assert_eq!(purge.evaluate(Some(row.item.clone())), Ok(Outcome::Applied(None)));
    assert!(refused(&purge, &touched(&row)));
    assert!(refused(&purge, &set(&row, "lifecycle_id", Value::from("another"))));
    assert!(refused(&purge, &set(&row, "deletion_generation", Value::from("another"))));
    assert!(refused(&purge, &set(&row, "desired_state", Value::from("deploying"))));
    assert_eq!(purge.evaluate(None), Ok(Outcome::Refused(None)));
}

#[test]
fn moving_regions_gives_a_fresh_generation_to_each_that_comes_or_goes() {
    let row = row("region-removed");
    let move_to = |row: &EndpointRow, regions: &[&str]| {
        let regions: Vec<String> = regions.iter().map(|region| (*region).to_owned()).collect();
        transition::update_target_regions(row, &regions, now(), &mut tokens())
    };
    let transition = move_to(&row, &["us-east-1", "eu-west-1", "ap-south-1", "us-east-1"]).expect("possible");
    let moved = after(&transition, Some(&row));
    assert_eq!(moved.target_regions, ["us-east-1", "eu-west-1", "ap-south-1"]);
    assert_eq!(
        moved.cleanup_regions.as_deref(),
        Some(&["us-east-1", "eu-west-1", "ap-south-1"].map(str::to_owned)[..])
    );
    assert_eq!(moved.region_generation("us-east-1"), row.region_generation("us-east-1"));
    assert_ne!(
        moved.region_generation("eu-west-1"),
        row.region_generation("eu-west-1"),
        "seen before, and fresh again"
    );
    assert!(moved.region_generation("ap-south-1").is_some());
    assert!(refused(&transition, &touched(&row)));
    assert!(refused(&transition, &set(&row, "desired_state", Value::from("deleted"))));
    let back = after(&move_to(&moved, &["eu-west-1"]).expect("possible"), Some(&moved));
    assert_eq!(back.cleanup_regions, moved.cleanup_regions);
    assert_ne!(back.region_generation("us-east-1"), moved.region_generation("us-east-1"));
    assert_eq!(back.region_generation("eu-west-1"), moved.region_generation("eu-west-1"));
    assert!(
        move_to(&row, &[]).is_err() && move_to(&row, &["no region"]).is_err() && move_to(&row, &["us-east-1"]).is_err()
    );
}

#[test]
fn pausing_makes_the_control_map_or_changes_it() {
    let row = row("classic-hpa");
    let pause = transition::set_paused(&row, true, now()).expect("possible");
    let paused = after(&pause, Some(&touched(&row)));
    assert!(paused.paused);
    let controlled = set(&row, "control", value(json!({"note": "x"})));
    assert!(refused(&pause, &controlled), "the map of somebody else is not overwritten");
    let kept = after(&transition::set_paused(&controlled, true, now()).expect("possible"), Some(&controlled));
    assert_eq!((kept.paused, kept.item["control"].at(&["note"])), (true, Some(&Value::from("x"))));
    let resumed = after(&transition::set_paused(&kept, false, now()).expect("possible"), Some(&kept));
    assert!(!resumed.paused);
    assert!(transition::set_paused(&set(&row, "control", Value::from("x")), true, now()).is_err());
    assert!(
        words(transition::set_paused(&crate::common::row("deleting-half-acknowledged"), true, now()))
            .contains("cannot be paused")
    );
}

#[test]
fn a_refresh_is_noted_beside_a_pause_and_changes_nothing_else() {
    let row = row("classic-hpa");
    let wish = Refresh { requested_at: "2026-11-29T12:00:00+00:00".to_owned(), at_once: Some(2) };
    let refreshed = after(&transition::refresh(&row, &wish, now()).expect("possible"), Some(&touched(&row)));
    assert_eq!(refreshed.refresh.as_ref(), Some(&wish));
    assert_eq!((&refreshed.spec, &refreshed.desired_state), (&row.spec, &row.desired_state));
    let paused = after(&transition::set_paused(&row, true, now()).expect("possible"), Some(&row));
    let later = Refresh { at_once: None, ..wish };
    let both = after(&transition::refresh(&paused, &later, now()).expect("possible"), Some(&paused));
    assert_eq!((both.paused, both.refresh.as_ref()), (true, Some(&later)));
    assert!(transition::refresh(&row, &Refresh { at_once: Some(0), ..later.clone() }, now()).is_err());
    let deleting = crate::common::row("deleting-half-acknowledged");
    assert!(words(transition::refresh(&deleting, &later, now())).contains("cannot be refreshed"));
    for unclear in [json!("now"), json!({"requested_at": ""}), json!({"requested_at": "x", "at_once": 0})] {
        let row = set(&row, "control", value(json!({"refresh": unclear})));
        assert_eq!(row.refresh, None, "what cannot be read restarts nothing");
        assert!(row.problems.iter().any(|problem| problem.field == "control.refresh"), "{:?}", row.problems);
    }
}
