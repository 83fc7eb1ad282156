//! Regions added, removed and declared absent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{MemoryTable, Rows, changed, item, now, row};
use gco_store::operations::{Store, StoreError};
use gco_store::row::{EndpointRow, Quorum};
use gco_store::status::{RegionEntry, State};
use gco_store::table::Outcome;
use gco_store::transition::{self, Declaration, StatusAuthority, Transition};
use gco_store::wire::{Item, Value};

const CHAT: &str = "chat-small";
const EAST: &str = "us-east-1";
const WEST: &str = "eu-west-1";
const NORTH: &str = "eu-north-1";

fn store(table: &Arc<MemoryTable>) -> Store {
    let count = AtomicU64::new(0);
    let token = move || format!("{:064x}", 0xfeed_0000 + count.fetch_add(1, Ordering::Relaxed));
    Store::new(table.clone(), Arc::new(now), Arc::new(token))
}

fn word() -> Declaration {
    Declaration { by: "ada".to_owned(), reason: "cluster decommissioned".to_owned() }
}

fn said(result: Result<EndpointRow, StoreError>) -> String {
    result.expect_err("refused").to_string()
}

fn after(transition: &Transition, row: &EndpointRow) -> EndpointRow {
    match transition.evaluate(Some(row.item.clone())).expect("possible") {
        Outcome::Applied(Some(item)) => EndpointRow::parse(item).expect("a row"),
        other => panic!("{other:?}"),
    }
}

/// Somebody else changes a row, and with it the version.
fn meanwhile(rows: &mut Rows, change: impl FnOnce(&mut Item)) {
    let row = rows.get_mut(CHAT).expect("the row");
    change(row);
    row.insert("updated_at".to_owned(), Value::from("2026-12-01T00:00:00.000001+00:00"));
}

#[tokio::test]
async fn a_region_that_is_added_removed_and_added_again_has_a_new_generation_each_time() {
    let table = MemoryTable::of([item("classic-minimal")]);
    let store = store(&table);
    let mut generations = std::collections::BTreeSet::new();
    let mut note =
        |row: &EndpointRow| assert!(generations.insert(row.region_generation(NORTH).expect("one").to_owned()));
    let first = store.add_region(CHAT, NORTH).await.expect("added");
    note(&first);
    assert_eq!(first.target_regions.last().map(String::as_str), Some(NORTH), "added at the end");
    let removed = store.remove_region(CHAT, NORTH).await.expect("removed");
    note(&removed);
    assert!(!removed.is_target(NORTH));
    assert!(removed.cleanup_regions.iter().flatten().any(|region| region == NORTH), "it must still clean up");
    let again = store.add_region(CHAT, NORTH).await.expect("added again");
    note(&again);
    let kept = |row: &EndpointRow| row.region_generation(EAST).map(str::to_owned);
    assert_eq!(kept(&again), kept(&row("classic-minimal")), "other regions keep theirs");
    // What is already so is not written.
    let writes = table.writes();
    store.add_region(CHAT, NORTH).await.expect("there already");
    store.remove_region(CHAT, "ap-south-1").await.expect("not there");
    assert_eq!(table.writes(), writes);
}

#[tokio::test]
async fn the_last_region_is_not_removed_and_bad_or_deleted_ones_are_refused() {
    let table = MemoryTable::of([item("region-removed"), item("deleting-half-acknowledged"), item("classic-minimal")]);
    let store = store(&table);
    let last = said(store.remove_region("moved-chat", EAST).await);
    assert!(last.contains("is the only region") && last.contains("gco inference delete"), "{last}");
    let deleted = said(store.add_region("gone-chat", NORTH).await);
    assert!(deleted.contains("is deleted and cannot be moved to other regions"), "{deleted}");
    assert!(said(store.add_region(CHAT, "Not A Region").await).contains("target_regions"));
    assert_eq!(table.writes(), 0);
}

#[tokio::test]
async fn two_people_who_change_two_regions_at_once_both_get_what_they_asked_for() {
    let table = MemoryTable::of([item("classic-minimal")]);
    table.before_next_write(|rows| {
        let row = EndpointRow::parse(rows[CHAT].clone()).expect("a row");
        let mut targets = row.target_regions.clone();
        targets.push("ap-south-1".to_owned());
        let mut count = 0;
        let mut token = || {
            count += 1;
            format!("{count:064x}")
        };
        let other = transition::update_target_regions(&row, &targets, now(), &mut token).expect("possible");
        rows.insert(CHAT.to_owned(), after(&other, &row).item);
    });
    let row = store(&table).add_region(CHAT, NORTH).await.expect("added");
    assert!(row.is_target(NORTH) && row.is_target("ap-south-1"), "{:?}", row.target_regions);
    // The same region by two people: the slower one finds it done.
    let table = MemoryTable::of([item("classic-minimal")]);
    table.before_next_write(|rows| {
        meanwhile(rows, |row| {
            row.insert("target_regions".to_owned(), Value::List([EAST, WEST, NORTH].map(Value::from).to_vec()));
        });
    });
    assert!(store(&table).add_region(CHAT, NORTH).await.expect("done").is_target(NORTH));
    // Moved in and out by somebody else meanwhile: nobody knows any more what is meant.
    let table = MemoryTable::of([item("classic-minimal")]);
    table.before_next_write(|rows| {
        meanwhile(rows, |row| {
            if let Some(Value::Map(generations)) = row.get_mut("region_generations") {
                generations.insert(WEST.to_owned(), Value::from("f".repeat(64)));
            }
        });
    });
    assert!(said(store(&table).remove_region(CHAT, WEST).await).contains("changed while being moved to other regions"));
}

#[tokio::test]
async fn d21_an_operator_declares_a_region_gone_and_the_row_says_who_when_and_why() {
    let table = MemoryTable::of([item("deleting-half-acknowledged")]);
    let store = store(&table);
    let before = row("deleting-half-acknowledged");
    let Quorum::Missing(missing) = before.quorum() else { panic!("{:?}", before.quorum()) };
    let gone = missing[0].clone();
    let declared = store.declare_absent("gone-chat", &gone, &word()).await.expect("declared");
    let absent = &declared.absent_regions[&gone];
    assert_eq!((absent.by.as_str(), absent.reason.as_str()), ("ada", "cluster decommissioned"));
    assert_eq!(absent.at, gco_store::time::format(now()));
    assert_eq!(Some(&absent.lifecycle_id), before.lifecycle_id.as_ref());
    assert_eq!(Some(&absent.deletion_generation), before.deletion_generation.as_ref());
    assert_eq!(declared.region_status, before.region_status, "it is no acknowledgement of the region");
    assert_eq!(declared.quorum(), Quorum::Stands);
    let writes = table.writes();
    store.declare_absent("gone-chat", &gone, &word()).await.expect("declared already");
    assert_eq!(table.writes(), writes);
    assert!(store.purge(&declared).await.expect("purged"));
    assert!(store.purge(&declared).await.expect("gone already"));
    assert!(store.get("gone-chat", gco_store::table::Consistency::Strong).await.expect("read").is_none());
}

#[tokio::test]
async fn a_purge_by_hand_needs_the_quorum_and_the_row_as_it_was_read() {
    let table = MemoryTable::of([item("deleting-half-acknowledged")]);
    let store = store(&table);
    let before = row("deleting-half-acknowledged");
    assert!(!store.purge(&before).await.expect("not yet"));
    let Quorum::Missing(missing) = before.quorum() else { panic!() };
    let declared = store.declare_absent("gone-chat", &missing[0], &word()).await.expect("declared");
    table.before_next_write(|rows| {
        let row = rows.get_mut("gone-chat").expect("the row");
        row.insert("updated_at".to_owned(), Value::from("2027-12-01T00:00:00+00:00"));
    });
    assert!(!store.purge(&declared).await.expect("refused"));
}

#[test]
fn a_declaration_is_refused_where_it_makes_no_sense() {
    let deleting = row("deleting-half-acknowledged");
    let refused = |row: &EndpointRow, region: &str, declaration: &Declaration| {
        transition::declare_absent(row, region, declaration, now()).expect_err("refused").to_string()
    };
    let live = row("classic-minimal");
    assert!(refused(&live, EAST, &word()).contains("is not being deleted"));
    assert!(refused(&deleting, "ap-south-1", &word()).contains("does not wait for 'ap-south-1'"));
    let acknowledged = deleting.deletion_regions.iter().flatten().find(|region| deleting.acknowledged(region));
    assert!(refused(&deleting, acknowledged.expect("one"), &word()).contains("has confirmed already"));
    let Quorum::Missing(missing) = deleting.quorum() else { panic!() };
    for (by, reason, field) in
        [("", "x", "by: "), ("a\nb", "x", "by: "), ("ada", "  ", "reason: "), ("ada", &"x".repeat(301), "reason: ")]
    {
        let declaration = Declaration { by: by.to_owned(), reason: reason.to_owned() };
        assert!(refused(&deleting, &missing[0], &declaration).contains(field));
    }
    let odd = changed(&deleting, |item| {
        item.insert("control".to_owned(), Value::from("x"));
    });
    assert!(refused(&odd, &missing[0], &word()).contains("control"));
}

#[test]
fn a_declaration_counts_for_its_own_life_and_deletion_only_and_a_broken_one_for_nothing() {
    let deleting = row("deleting-half-acknowledged");
    let Quorum::Missing(missing) = deleting.quorum() else { panic!() };
    let gone = missing[0].as_str();
    let write = transition::declare_absent(&deleting, gone, &word(), now()).expect("possible");
    let declared = after(&write, &deleting);
    assert!(declared.declared_absent(gone) && declared.problems.is_empty());
    for attribute in ["lifecycle_id", "deletion_generation"] {
        let another = changed(&declared, |item| {
            item.insert(attribute.to_owned(), Value::from("e".repeat(64)));
        });
        assert!(!another.declared_absent(gone), "of another {attribute}");
        // The fence: the row was deleted and created anew between read and write.
        assert!(!write.condition.holds(Some(&another.item)), "{attribute}");
    }
    let live = changed(&declared, |item| {
        item.insert("desired_state".to_owned(), Value::from("running"));
    });
    assert!(!live.declared_absent(gone) && !write.condition.holds(Some(&live.item)));
    for spoil in ["by", "at", "reason", "lifecycle_id", "deletion_generation"] {
        let broken = changed(&declared, |item| {
            let Some(Value::Map(control)) = item.get_mut("control") else { panic!() };
            let Some(Value::Map(all)) = control.get_mut("absent_regions") else { panic!() };
            let Some(Value::Map(one)) = all.get_mut(gone) else { panic!() };
            one.remove(spoil);
        });
        assert!(!broken.declared_absent(gone), "without {spoil}");
        assert!(broken.problems.iter().any(|problem| problem.field.ends_with(gone)), "{:?}", broken.problems);
        assert_eq!(broken.quorum(), Quorum::Missing(missing.clone()));
    }
}

#[test]
fn a_declaration_stands_beside_a_pause_and_beside_others() {
    let regions = Value::List([EAST, WEST, NORTH].map(Value::from).to_vec());
    let mut row = changed(&row("deleting-half-acknowledged"), |item| {
        item.insert("deletion_regions".to_owned(), regions);
        item.insert("control".to_owned(), Value::Map(Item::from([("paused".to_owned(), Value::Bool(true))])));
        item.insert("region_status".to_owned(), Value::Map(Item::new()));
    });
    for region in [EAST, WEST, NORTH] {
        assert_ne!(row.quorum(), Quorum::Stands);
        row = after(&transition::declare_absent(&row, region, &word(), now()).expect("possible"), &row);
    }
    assert!(row.paused);
    assert_eq!(row.absent_regions.len(), 3);
    assert_eq!(row.quorum(), Quorum::Stands);
}

#[test]
fn a_region_that_comes_back_before_the_purge_still_acknowledges_for_itself() {
    let deleting = row("deleting-half-acknowledged");
    let Quorum::Missing(missing) = deleting.quorum() else { panic!() };
    let gone = missing[0].as_str();
    let declared = after(&transition::declare_absent(&deleting, gone, &word(), now()).expect("possible"), &deleting);
    let authority = StatusAuthority::Deletion {
        lifecycle_id: declared.lifecycle_id.clone().expect("one"),
        deletion_generation: declared.deletion_generation.clone().expect("one"),
    };
    let entry = RegionEntry { absence_observations: Some(2), ..RegionEntry::new(State::Deleted) };
    let write = transition::write_region_status(&declared, gone, &entry, &authority, now()).expect("possible");
    assert!(after(&write, &declared).acknowledged(gone));
}
