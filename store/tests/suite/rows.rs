//! Rows and statuses: what is read out of them, and that nothing is lost.

use gco_store::row::{DesiredState, EndpointRow, Quorum};
use gco_store::status::{Autoscaler, ObservedSpec, PodReason, RegionEntry, Rollout, State, StatusCondition};
use gco_store::wire::{Item, Value};
use serde_json::json;

use crate::common::{all_rows, changed, row, value};

#[test]
fn every_status_that_the_original_wrote_is_written_back_unchanged() {
    let mut entries = 0;
    for (name, item) in all_rows() {
        let Some(Value::Map(statuses)) = item.get("region_status") else { continue };
        for (region, value) in statuses {
            let (entry, problems) = RegionEntry::parse("status", value);
            assert_eq!(problems, [], "{name} {region}");
            assert_eq!(Value::Map(entry.to_item()), *value, "{name} {region}");
            entries += 1;
        }
    }
    assert_eq!(entries, 10, "all entries of the fixtures were looked at");
}

#[test]
fn a_status_of_ours_survives_with_every_key() {
    let mut entry = RegionEntry::new(State::Running);
    entry.replicas_ready = 1;
    entry.replicas_desired = 2;
    entry.last_sync = Some("2026-11-29T16:04:51.603667+00:00".to_owned());
    entry.error = Some("several\nlines".to_owned());
    entry.degraded = true;
    entry.conditions.push(StatusCondition {
        kind: "Ready".to_owned(),
        status: "True".to_owned(),
        reason: "Serving".to_owned(),
        message: "1 of 2 pods".to_owned(),
        since: "2026-11-29T16:00:00+00:00".to_owned(),
    });
    entry.observed_spec =
        Some(ObservedSpec { seen: Some("a".repeat(64)), applied: Some("b".repeat(64)), serving: None });
    entry.autoscaler = Some(Autoscaler { kind: "keda".to_owned(), min_replicas: 2, max_replicas: 9, replicas: 4 });
    entry.rollout = Some(Rollout { updated: 1, updated_ready: 0, total: 2, stuck: Some("FailedCreate".to_owned()) });
    entry.blocked_by.push("deployment/chat".to_owned());
    entry.pods.push(PodReason {
        reason: "CrashLoopBackOff".to_owned(),
        message: "exit code 137".to_owned(),
        count: 1,
        example: "chat-abc".to_owned(),
        exit_code: Some(137),
    });
    entry.extra.insert("roles".to_owned(), value(json!({"prefill": {"ready": 1, "desired": 2}})));
    let (again, problems) = RegionEntry::parse("status", &Value::Map(entry.to_item()));
    assert_eq!(problems, []);
    assert_eq!(again, entry);
}

#[test]
fn no_status_can_fill_a_row() {
    let long = "x".repeat(50_000);
    let mut entry = RegionEntry::new(State::Error);
    entry.error = Some(long.clone());
    for _ in 0..100 {
        entry.blocked_by.push(long.clone());
        entry.pods.push(PodReason {
            reason: long.clone(),
            message: long.clone(),
            count: 1,
            example: long.clone(),
            exit_code: None,
        });
        entry.conditions.push(StatusCondition {
            kind: long.clone(),
            status: long.clone(),
            reason: long.clone(),
            message: long.clone(),
            since: long.clone(),
        });
    }
    let size = Value::Map(entry.to_item()).size_bytes();
    assert!(size < 51_200, "{size} bytes: seven regions and a spec must fit 400 KB");
}

#[test]
fn status_keys_of_a_wrong_type_read_as_absent_and_are_named() {
    let status =
        value(json!({"state": 1, "replicas_ready": -1, "conditions": [1], "rollout": {"total": "x"}, "pods": {}}));
    let (entry, problems) = RegionEntry::parse("region_status.r", &status);
    assert_eq!(
        entry,
        RegionEntry {
            conditions: Vec::new(),
            rollout: entry.rollout.clone(),
            ..RegionEntry::new(State::Other(String::new()))
        }
    );
    let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "region_status.r.state",
            "region_status.r.replicas_ready",
            "region_status.r.conditions[0]",
            "region_status.r.rollout.total",
            "region_status.r.pods",
        ]
    );
}

#[test]
fn statuses_that_differ_only_in_their_time_say_the_same() {
    let mut one = RegionEntry::new(State::Running);
    one.last_sync = Some("2026-01-01T00:00:00+00:00".to_owned());
    let mut other = one.clone();
    other.last_sync = None;
    assert!(one.says_the_same_as(&other));
    other.replicas_ready = 1;
    assert!(!one.says_the_same_as(&other));
}

#[test]
fn attributes_of_a_wrong_type_read_as_absent_and_are_named() {
    let strange = changed(&row("classic-minimal"), |item| {
        item.insert("target_regions".to_owned(), Value::List(vec![Value::from("us-east-1"), Value::from(7)]));
        item.insert("labels".to_owned(), Value::from("none"));
        item.insert("created_at".to_owned(), Value::from(5));
    });
    assert_eq!(strange.target_regions, ["us-east-1"]);
    assert!(strange.labels.is_empty());
    let mut fields: Vec<&str> = strange.problems.iter().map(|problem| problem.field.as_str()).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["created_at", "labels", "target_regions[1]"]);
}

#[test]
fn an_absent_desired_state_reads_as_deploying_and_an_unclear_one_as_nothing_to_do() {
    let row = row("classic-minimal");
    let absent = changed(&row, |item| {
        item.remove("desired_state");
    });
    assert_eq!(absent.desired_state, DesiredState::Deploying);
    for unclear in [Value::from("paused"), Value::from(1)] {
        let row = changed(&row, |item| {
            item.insert("desired_state".to_owned(), unclear);
        });
        assert!(matches!(row.desired_state, DesiredState::Unknown(_)));
        assert_eq!(row.problems.len(), 1);
    }
}

#[test]
fn a_row_without_a_name_cannot_be_read() {
    for name in [None, Some(Value::from("")), Some(Value::from(1))] {
        let item: Item = name.into_iter().map(|name| ("endpoint_name".to_owned(), name)).collect();
        assert!(EndpointRow::parse(item).is_err());
    }
}

#[test]
fn an_unclear_pause_counts_as_paused() {
    for (control, paused) in [
        (json!({"paused": true}), true),
        (json!({"paused": false}), false),
        (json!({"paused": null}), false),
        (json!({}), false),
        (json!({"paused": "yes"}), true),
    ] {
        let row = changed(&row("classic-minimal"), |item| {
            item.insert("control".to_owned(), value(control.clone()));
        });
        assert_eq!(row.paused, paused, "{control}");
    }
}

#[test]
fn lifecycle_metadata_is_complete_only_with_a_token_for_every_region() {
    let complete = row("classic-minimal");
    assert!(complete.lifecycle_complete());
    assert!(!row("legacy-no-lifecycle").lifecycle_complete());
    let without = |attribute: &'static str| {
        changed(&complete, |item| {
            item.remove(attribute);
        })
    };
    for attribute in ["lifecycle_id", "cleanup_regions", "region_generations"] {
        assert!(!without(attribute).lifecycle_complete(), "{attribute}");
    }
    let empty_token = changed(&complete, |item| {
        item.insert("region_generations".to_owned(), value(json!({"us-east-1": "", "eu-west-1": "t"})));
    });
    assert!(!empty_token.lifecycle_complete());
    assert_eq!(empty_token.region_generation("us-east-1"), None);
}

/// A status that acknowledges the deletion of the fixture `deleting-half-acknowledged`.
fn acknowledgement(row: &EndpointRow) -> Item {
    let mut entry = RegionEntry::new(State::Deleted);
    entry.lifecycle_id.clone_from(&row.lifecycle_id);
    entry.deletion_generation.clone_from(&row.deletion_generation);
    entry.absence_observations = Some(2);
    entry.to_item()
}

fn with_status(row: &EndpointRow, region: &str, status: Item) -> EndpointRow {
    changed(row, |item| {
        let Some(Value::Map(statuses)) = item.get_mut("region_status") else { panic!("no statuses") };
        statuses.insert(region.to_owned(), Value::Map(status));
    })
}

#[test]
fn a_purge_needs_the_acknowledgement_of_every_region() {
    let half = row("deleting-half-acknowledged");
    assert!(half.acknowledged("eu-west-1"));
    assert!(!half.acknowledged("us-east-1"));
    assert_eq!(half.quorum(), Quorum::Missing(vec!["us-east-1".to_owned()]));
    let whole = with_status(&half, "us-east-1", acknowledgement(&half));
    assert_eq!(whole.quorum(), Quorum::Stands);
}

#[test]
fn an_acknowledgement_counts_only_complete_and_for_its_own_deletion() {
    let half = row("deleting-half-acknowledged");
    for (key, other) in [
        ("state", Value::from("deleting")),
        ("lifecycle_id", Value::from("another")),
        ("deletion_generation", Value::from("another")),
        ("absence_observations", Value::from(1)),
    ] {
        let mut status = acknowledgement(&half);
        status.insert(key.to_owned(), other);
        assert!(!with_status(&half, "us-east-1", status).acknowledged("us-east-1"), "{key}");
        let mut status = acknowledgement(&half);
        status.remove(key);
        assert!(!with_status(&half, "us-east-1", status).acknowledged("us-east-1"), "without {key}");
    }
}

#[test]
fn a_purge_is_undefined_without_what_it_is_conditioned_on() {
    let half = row("deleting-half-acknowledged");
    let whole = with_status(&half, "us-east-1", acknowledgement(&half));
    for (attribute, bad) in [
        ("desired_state", Value::from("running")),
        ("lifecycle_id", Value::from("")),
        ("deletion_generation", Value::Null),
        ("updated_at", Value::from("")),
        ("deletion_regions", Value::List(Vec::new())),
        ("deletion_regions", value(json!(["us-east-1", "us-east-1"]))),
        ("deletion_regions", value(json!(["us-east-1", 1]))),
    ] {
        let row = changed(&whole, |item| {
            item.insert(attribute.to_owned(), bad.clone());
        });
        let Quorum::Undefined(problem) = row.quorum() else { panic!("{attribute} {bad:?}") };
        assert_eq!(problem.field, attribute);
    }
}

#[test]
fn a_removed_region_acknowledges_under_its_own_generation_and_a_target_never_does() {
    let row = row("region-removed");
    let mut entry = RegionEntry::new(State::Deleted);
    entry.lifecycle_id.clone_from(&row.lifecycle_id);
    entry.region_generation = row.region_generation("eu-west-1").map(str::to_owned);
    entry.absence_observations = Some(2);
    assert!(with_status(&row, "eu-west-1", entry.to_item()).acknowledged("eu-west-1"));
    entry.region_generation = row.region_generation("us-east-1").map(str::to_owned);
    assert!(!with_status(&row, "eu-west-1", entry.to_item()).acknowledged("eu-west-1"));
    assert!(!with_status(&row, "us-east-1", entry.to_item()).acknowledged("us-east-1"));
    assert!(row.is_target("us-east-1") && !row.is_target("eu-west-1"));
    assert!(row.concerns("eu-west-1") && !row.concerns("ap-south-1"));
}
