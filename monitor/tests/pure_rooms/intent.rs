//! What one row asks of one region.

use std::collections::BTreeSet;

use gco_monitor::identity::RowIdentity;
use gco_monitor::intent::{CleanUp, Intent, RegionContext, reason};
use gco_store::row::EndpointRow;
use gco_store::wire::{Item, Value};

use super::support::{NAMESPACE, REGION, decide, decide_in, identity_of, map, row, row_with};

fn decide_with(row: &EndpointRow, others: &[&str], frozen: bool) -> Intent {
    let others: BTreeSet<String> = others.iter().map(|name| (*name).to_owned()).collect();
    let context = RegionContext { region: REGION, namespace: NAMESPACE, other_names: &others, frozen };
    gco_monitor::intent::decide(row, &context)
}

fn state(item: &mut Item, word: &str) {
    item.insert("desired_state".to_owned(), Value::from(word));
}

fn list(texts: &[&str]) -> Value {
    Value::List(texts.iter().map(|text| Value::from(*text)).collect())
}

/// The region's own entry.
fn entry(item: &mut Item, region: &str, entries: &[(&str, Value)]) {
    let entry = entries.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    map(item, "region_status").insert(region.to_owned(), Value::Map(entry));
}

fn rejected(intent: &Intent) -> (&'static str, Vec<String>) {
    match intent {
        Intent::Reject { reason, problems, .. } => {
            (reason, problems.iter().map(|problem| problem.field.clone()).collect())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn deploying_and_running_rows_are_served_alike_so_an_edit_that_keeps_the_state_changes_nothing_here() {
    // D-4: the original's edits go back to `deploying`, ours stay `running`.
    for word in ["deploying", "running"] {
        let row = row_with("classic-minimal", |item| state(item, word));
        let Intent::Serve { identity, spec, refresh: _, paused } = decide(&row) else { panic!("{word}") };
        assert_eq!(identity, identity_of(&row, REGION));
        assert_eq!(spec.spec.image, "vllm/vllm-openai:v0.28.0");
        assert!(!paused);
    }
}

#[test]
fn a_stopped_row_stays_stopped_whatever_its_spec_becomes() {
    // D-33.
    let row = row("classic-stopped");
    assert_eq!(decide(&row), Intent::Stop { identity: identity_of(&row, REGION), paused: false });
    for spec in [Value::from("not a map"), Value::Null, Value::Map(Item::new())] {
        let row = row_with("classic-stopped", |item| {
            item.insert("spec".to_owned(), spec);
        });
        assert!(matches!(decide(&row), Intent::Stop { .. }));
    }
}

#[test]
fn rows_that_never_concerned_this_region_are_passed_over_first() {
    // D-30: also when everything else about them is broken.
    for fixture in ["classic-minimal", "deleting-half-acknowledged", "invalid-spec-not-a-map", "legacy-no-lifecycle"] {
        assert_eq!(decide_in(&row(fixture), "sa-east-1"), Intent::Ignore, "{fixture}");
    }
    let row = row_with("classic-minimal", |item| {
        item.remove("updated_at");
    });
    assert_eq!(decide_in(&row, "sa-east-1"), Intent::Ignore);
}

#[test]
fn d21_a_deletion_that_is_confirmed_is_purged_by_whoever_sees_it() {
    // All regions of the row may be gone: some monitor must be left to remove it.
    let deleting = row("deleting-half-acknowledged");
    assert_eq!(decide_in(&deleting, "sa-east-1"), Intent::Ignore);
    let word = gco_store::transition::Declaration { by: "ada".to_owned(), reason: "gone".to_owned() };
    let declare = gco_store::transition::declare_absent(&deleting, REGION, &word, jiff::Timestamp::UNIX_EPOCH).unwrap();
    let gco_store::table::Outcome::Applied(Some(declared)) = declare.evaluate(Some(deleting.item)).unwrap() else {
        panic!("refused")
    };
    let declared = EndpointRow::parse(declared).unwrap();
    assert_eq!(decide_in(&declared, "sa-east-1"), Intent::AwaitPurge);
    assert_eq!(decide(&declared), Intent::AwaitPurge, "the region itself too, should it be back");
}

#[test]
fn a_row_without_a_version_has_no_unfenced_path() {
    // D-50.
    for fixture in ["classic-minimal", "legacy-no-lifecycle", "deleting-half-acknowledged", "region-removed"] {
        let row = row_with(fixture, |item| {
            item.remove("updated_at");
        });
        assert_eq!(decide(&row), Intent::Unusable { reason: reason::NO_VERSION }, "{fixture}");
    }
}

#[test]
fn a_damaged_membership_list_never_reads_as_a_removal() {
    let damages: [(&str, Value); 4] = [
        ("target_regions", Value::from("us-east-1")),
        ("target_regions", Value::List(vec![Value::from(7)])),
        ("cleanup_regions", Value::Map(Item::new())),
        ("region_generations", list(&[])),
    ];
    for (attribute, value) in damages {
        let row = row_with("classic-minimal", |item| {
            item.insert(attribute.to_owned(), value.clone());
        });
        assert_eq!(decide(&row), Intent::Unusable { reason: reason::MALFORMED_ROW }, "{attribute} {value:?}");
    }
}

#[test]
fn an_unknown_desired_state_changes_nothing() {
    for word in [Value::from("hibernating"), Value::from(1)] {
        let row = row_with("classic-minimal", |item| {
            item.insert("desired_state".to_owned(), word);
        });
        assert_eq!(decide(&row), Intent::Ignore);
    }
}

#[test]
fn a_row_older_than_lifecycles_is_completed_before_anything_else() {
    assert_eq!(decide(&row("legacy-no-lifecycle")), Intent::BackFill);
    // Known only from its status: a region that the back-fill will put into the clean-up list.
    assert_eq!(decide_in(&row("legacy-no-lifecycle"), "ap-south-1"), Intent::BackFill);
    let without_generation = row_with("classic-minimal", |item| {
        map(item, "region_generations").remove(REGION);
    });
    assert_eq!(decide(&without_generation), Intent::BackFill);
    let unlisted = row_with("classic-minimal", |item| {
        item.insert("cleanup_regions".to_owned(), list(&["eu-west-1"]));
    });
    assert_eq!(decide(&unlisted), Intent::BackFill);
    // Not where changes are frozen.
    assert_eq!(decide_with(&row("legacy-no-lifecycle"), &[], true), Intent::Ignore);
}

#[test]
fn a_deleted_row_is_removed_by_every_region_of_its_list_and_by_no_other() {
    let row = row("deleting-half-acknowledged");
    let clean_up = CleanUp::Deleted {
        lifecycle_id: row.lifecycle_id.clone().unwrap(),
        deletion_generation: row.deletion_generation.clone().unwrap(),
    };
    assert_eq!(decide(&row), Intent::Remove { clean_up, paused: false });
    assert_eq!(decide_in(&row, "eu-west-1"), Intent::AwaitPurge, "its own acknowledgement is terminal");
    let unlisted = row_with("deleting-half-acknowledged", |item| {
        item.insert("deletion_regions".to_owned(), list(&["eu-west-1"]));
    });
    assert_eq!(decide(&unlisted), Intent::AwaitPurge, "nothing to remove here; the last one has acknowledged");
}

#[test]
fn a_deletion_without_its_tokens_is_completed_first() {
    for attribute in ["deletion_generation", "deletion_regions", "lifecycle_id"] {
        let row = row_with("deleting-half-acknowledged", |item| {
            item.remove(attribute);
        });
        assert_eq!(decide(&row), Intent::BackFill, "{attribute}");
    }
}

#[test]
fn an_acknowledgement_of_another_generation_or_with_one_sweep_is_not_terminal() {
    // D-6: the entry of a removed region says `deleted` under the region's generation.
    let lifecycle = row("deleting-half-acknowledged").lifecycle_id.unwrap();
    let entries: [Vec<(&str, Value)>; 2] = [
        vec![("region_generation", Value::from("x")), ("absence_observations", Value::from(2))],
        vec![
            ("deletion_generation", Value::from("cd3daf6b7e2236b4e1e1c785bacc6ed69a3188d0707485a54d5f24615814c41d")),
            ("absence_observations", Value::from(1)),
        ],
    ];
    for mut parts in entries {
        parts.extend([("state", Value::from("deleted")), ("lifecycle_id", Value::from(lifecycle.as_str()))]);
        let row = row_with("deleting-half-acknowledged", |item| entry(item, REGION, &parts));
        assert!(matches!(decide(&row), Intent::Remove { .. }), "{parts:?}");
    }
}

#[test]
fn a_removed_region_is_cleaned_up_once_per_generation() {
    let row = row("region-removed");
    let identity = identity_of(&row, "eu-west-1");
    let expected = Intent::Remove { clean_up: CleanUp::RegionRemoved(identity.clone()), paused: false };
    assert_eq!(decide_in(&row, "eu-west-1"), expected);
    assert!(matches!(decide(&row), Intent::Serve { .. }), "the other region goes on");
    let acknowledged = |generation: &str| {
        row_with("region-removed", |item| {
            entry(
                item,
                "eu-west-1",
                &[
                    ("state", Value::from("deleted")),
                    ("lifecycle_id", Value::from(identity.lifecycle_id.as_str())),
                    ("region_generation", Value::from(generation)),
                    ("absence_observations", Value::from(2)),
                ],
            );
        })
    };
    assert_eq!(decide_in(&acknowledged(&identity.region_generation), "eu-west-1"), Intent::Ignore);
    assert_eq!(decide_in(&acknowledged("an earlier one"), "eu-west-1"), expected);
}

#[test]
fn an_invalid_spec_is_rejected_with_every_bad_field_at_once() {
    let row = row("invalid-many-fields");
    let (why, fields) = rejected(&decide(&row));
    assert_eq!(why, reason::INVALID_SPEC);
    assert!(fields.len() > 1, "{fields:?}");
    let (why, _) = rejected(&decide(&super::support::row("invalid-spec-not-a-map")));
    assert_eq!(why, reason::INVALID_SPEC);
    assert_eq!(rejected(&decide(&super::support::row("invalid-mooncake-and-canary"))).0, reason::INVALID_SPEC);
}

#[test]
fn blocks_of_later_releases_are_rejected_by_name_and_nothing_of_them_is_touched() {
    for (fixture, blocks) in [
        ("mooncake-store", vec!["spec.mooncake"]),
        ("mooncake-disaggregated", vec!["spec.mooncake"]),
        ("mooncake-disaggregated-tcp", vec!["spec.mooncake"]),
        ("mooncake-both-autoscaled", vec!["spec.mooncake"]),
    ] {
        let (why, fields) = rejected(&decide(&row(fixture)));
        assert_eq!(why, reason::NOT_YET_SUPPORTED, "{fixture}");
        assert_eq!(fields, blocks, "{fixture}");
    }
    // An empty or switched-off block is none.
    let harmless = row_with("classic-minimal", |item| {
        let spec = map(item, "spec");
        spec.insert("mooncake".to_owned(), Value::Map(Item::new()));
        let off = Item::from([("enabled".to_owned(), Value::from(false))]);
        spec.insert("autoscaling".to_owned(), Value::Map(off));
    });
    assert!(matches!(decide(&harmless), Intent::Serve { .. }));
}

#[test]
fn of_two_endpoints_whose_names_collide_only_the_derived_one_is_rejected_and_names_the_other() {
    // D-5.
    let base = row_with("classic-minimal", |item| {
        item.insert("endpoint_name".to_owned(), Value::from("chat-large"));
    });
    let derived = row("name-with-reserved-suffix");
    let names = ["chat-large", "chat-large-proxy", "unrelated"];
    assert!(matches!(decide_with(&base, &names, false), Intent::Serve { .. }));
    let intent = decide_with(&derived, &names, false);
    let Intent::Reject { reason: why, problems, .. } = intent else { panic!("{intent:?}") };
    assert_eq!(why, reason::NAME_COLLISION);
    assert_eq!(problems.len(), 1);
    assert!(problems[0].message.contains("\"chat-large\""), "{}", problems[0]);
}

#[test]
fn a_reserved_suffix_that_collides_with_nothing_is_served_as_it_is() {
    let row = row("name-with-reserved-suffix");
    assert!(matches!(decide_with(&row, &["chat-large-proxy", "other"], false), Intent::Serve { .. }));
}

#[test]
fn another_namespace_is_rejected_and_an_absent_one_is_ours() {
    // D-51.
    let other = row_with("classic-minimal", |item| {
        item.insert("namespace".to_owned(), Value::from("team-a"));
    });
    assert_eq!(rejected(&decide(&other)), (reason::WRONG_NAMESPACE, vec!["namespace".to_owned()]));
    let absent = row_with("classic-minimal", |item| {
        item.remove("namespace");
    });
    assert!(matches!(decide(&absent), Intent::Serve { .. }));
}

#[test]
fn a_pause_of_the_row_or_a_freeze_of_the_region_reaches_every_variant_that_would_change_something() {
    let paused = |intent: Intent| match intent {
        Intent::Serve { paused, .. } | Intent::Stop { paused, .. } | Intent::Remove { paused, .. } => paused,
        other => panic!("{other:?}"),
    };
    // Nobody can resume a deleted row, so its own pause must not keep it for ever.
    for (fixture, row_pauses) in
        [("classic-minimal", true), ("classic-stopped", true), ("deleting-half-acknowledged", false)]
    {
        assert!(!paused(decide(&row(fixture))), "{fixture}");
        assert!(paused(decide_with(&row(fixture), &[], true)), "{fixture}");
        let by_row = row_with(fixture, |item| {
            map(item, "control").insert("paused".to_owned(), Value::from(true));
        });
        assert_eq!(paused(decide(&by_row)), row_pauses, "{fixture}");
    }
}

#[test]
fn deciding_never_changes_the_row() {
    // D-53.
    let row = row("classic-full");
    let before = row.clone();
    let _ = decide(&row);
    assert_eq!(row, before);
}

#[test]
fn absences_count_only_for_their_own_authority() {
    let entry: Item = [
        ("state".to_owned(), Value::from("deleting")),
        ("lifecycle_id".to_owned(), Value::from("l")),
        ("deletion_generation".to_owned(), Value::from("d")),
        ("absence_observations".to_owned(), Value::from(1_i64)),
    ]
    .into();
    let item: Item = [
        ("endpoint_name".to_owned(), Value::from("a")),
        ("region_status".to_owned(), Value::Map([("r".to_owned(), Value::Map(entry))].into())),
    ]
    .into();
    let row = EndpointRow::parse(item).unwrap();
    let deleted =
        |generation: &str| CleanUp::Deleted { lifecycle_id: "l".into(), deletion_generation: generation.into() };
    assert_eq!(deleted("d").counted_absences(&row, "r"), 1);
    assert_eq!(deleted("d").absences_after(&row, "r", true), 2);
    assert_eq!(deleted("d").absences_after(&row, "r", false), 0);
    assert_eq!(deleted("later").counted_absences(&row, "r"), 0);
    assert_eq!(deleted("d").counted_absences(&row, "elsewhere"), 0);
    let removed = CleanUp::RegionRemoved(RowIdentity { lifecycle_id: "l".into(), region_generation: "d".into() });
    assert_eq!(removed.counted_absences(&row, "r"), 0);
}
