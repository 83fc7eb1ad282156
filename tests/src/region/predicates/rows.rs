//! Predicates on rows (the wire contract, A.5, B.9, B.12, C.4, C.9, E.2): every version of every row, with the one before.
//!
//! A table in a file writes down every version by itself (triggers, in whichever process the write is made). Rows on a server
//! are looked at again and again, which can miss a version that stood for milliseconds: there only rules that hold for a version by
//! itself are judged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use gco_store::table::{Consistency, Table};
use gco_store::wire::{Item, Value, item_from_dynamodb_json};
use rusqlite::Connection;

use super::Book;
use crate::region::table::TestTable;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// Writes down every version of every row, in the transaction that makes it.
const TRIGGERS: &str = "
    CREATE TABLE IF NOT EXISTS versions (number INTEGER PRIMARY KEY AUTOINCREMENT, before TEXT, after TEXT) STRICT;
    CREATE TRIGGER IF NOT EXISTS version_made AFTER INSERT ON endpoints
        BEGIN INSERT INTO versions (before, after) VALUES (NULL, NEW.item); END;
    CREATE TRIGGER IF NOT EXISTS version_changed AFTER UPDATE ON endpoints
        BEGIN INSERT INTO versions (before, after) VALUES (OLD.item, NEW.item); END;
    CREATE TRIGGER IF NOT EXISTS version_removed AFTER DELETE ON endpoints
        BEGIN INSERT INTO versions (before, after) VALUES (OLD.item, NULL); END;
";

enum Source {
    File { connection: Connection, read: i64 },
    Server { table: Arc<dyn Table>, rows: BTreeMap<String, Item> },
}

impl std::fmt::Debug for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::File { .. } => "File",
            Self::Server { .. } => "Server",
        })
    }
}

/// Follows the rows of a table.
#[derive(Clone, Debug)]
pub(super) struct RowWatch {
    source: Arc<Mutex<Source>>,
    /// Versions (`updated_at`) that a test writes by itself.
    expected: Arc<Mutex<BTreeSet<String>>>,
    region: String,
    book: Book,
}

impl RowWatch {
    pub(super) fn start(table: &TestTable, region: &str, book: Book) -> anyhow::Result<Self> {
        let source = match table.file() {
            None => Source::Server { table: table.store().clone(), rows: BTreeMap::new() },
            Some(file) => {
                let connection = Connection::open(file).context("opening the table's file")?;
                connection.busy_timeout(Duration::from_secs(10))?;
                connection.execute_batch(TRIGGERS).context("following the table's rows")?;
                let read =
                    connection.query_row("SELECT coalesce(max(number), 0) FROM versions", [], |row| row.get(0))?;
                Source::File { connection, read }
            }
        };
        Ok(Self { source: Arc::new(Mutex::new(source)), expected: Arc::default(), region: region.to_owned(), book })
    }

    pub(super) fn expect(&self, item: &Item) {
        if let Some(version) = version_of(item) {
            self.expected.lock().unwrap_or_else(PoisonError::into_inner).insert(version.to_owned());
        }
    }

    pub(super) fn spawn(&self) -> tokio::task::JoinHandle<()> {
        let watch = self.clone();
        tokio::spawn(async move {
            loop {
                watch.look_at_server().await;
                watch.catch_up();
                tokio::time::sleep(PAUSE).await;
            }
        })
    }

    /// Looks at every version that a file has written down so far.
    pub(super) fn catch_up(&self) {
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        let Source::File { connection, read } = &mut *source else { return };
        let select = "SELECT number, before, after FROM versions WHERE number > ?1 ORDER BY number";
        let Ok(mut statement) = connection.prepare_cached(select) else { return };
        let row = |row: &rusqlite::Row<'_>| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?, row.get::<_, Option<String>>(2)?))
        };
        let Ok(versions) = statement.query_map([*read], row) else { return };
        let parsed = |text: Option<String>| item_from_dynamodb_json(&serde_json::from_str(&text?).ok()?).ok();
        for version in versions.flatten() {
            let (number, before, after) = version;
            *read = number;
            self.judge(parsed(before).as_ref(), parsed(after).as_ref(), true);
        }
    }

    async fn look_at_server(&self) {
        let table = match &*self.source.lock().unwrap_or_else(PoisonError::into_inner) {
            Source::Server { table, .. } => table.clone(),
            Source::File { .. } => return,
        };
        let Ok(read) = table.read_all(Consistency::Strong).await else { return };
        let named = |item: Item| Some((item.get("endpoint_name")?.as_str()?.to_owned(), item));
        let now: BTreeMap<String, Item> = read.items.into_iter().filter_map(named).collect();
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        let Source::Server { rows, .. } = &mut *source else { return };
        for (name, after) in &now {
            if let Some(before) = rows.get(name).filter(|before| *before != after && !is_purged_between(before, after))
            {
                self.judge(Some(before), Some(after), false);
            }
        }
        *rows = now;
    }

    /// `each`: there was no version between the two.
    fn judge(&self, before: Option<&Item>, after: Option<&Item>, each: bool) {
        let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        // No program writes a row without a version.
        let by_the_test = after.is_some_and(|after| version_of(after).is_none_or(|version| expected.contains(version)));
        drop(expected);
        let name = after.or(before).and_then(|item| item.get("endpoint_name")?.as_str()).unwrap_or_default();
        let version = after.and_then(version_of).unwrap_or_default();
        if let (Some(before), Some(after), false) = (before, after, by_the_test) {
            self.book.note(&format!("row {name} version {version}"), violations(before, after, &self.region, each));
        }
    }
}

/// Whether the name was purged and taken again between two looks: the later row is not the earlier one changed.
fn is_purged_between(before: &Item, after: &Item) -> bool {
    let text = |item: &Item, key: &str| item.get(key).and_then(Value::as_str).map(str::to_owned);
    text(before, "desired_state").as_deref() == Some("deleted")
        && text(before, "lifecycle_id").is_some()
        && text(before, "lifecycle_id") != text(after, "lifecycle_id")
}

fn version_of(item: &Item) -> Option<&str> {
    item.get("updated_at").and_then(Value::as_str)
}

/// State words (A.5).
const STATES: [&str; 9] =
    ["creating", "running", "updating", "stopping", "stopped", "deleting", "deleted", "failed", "error"];
/// What never changes in a row's life (B.12).
const FIXED: [&str; 4] = ["endpoint_name", "lifecycle_id", "deletion_generation", "deletion_regions"];

/// What is wrong with a change of a row.
fn violations(before: &Item, after: &Item, region: &str, each: bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |holds: bool, rule: &str| {
        if !holds {
            found.push(rule.to_owned());
        }
    };
    let text = |item: &Item, key: &str| item.get(key).and_then(Value::as_str).map(str::to_owned);
    let changed: Vec<&String> =
        before.keys().chain(after.keys()).filter(|key| before.get(*key) != after.get(*key)).collect();
    for fixed in FIXED {
        check(before.get(fixed).is_none_or(|value| after.get(fixed) == Some(value)), &format!("B.12: {fixed} changed"));
    }
    check(text(before, "updated_at") != text(after, "updated_at"), "B: updated_at did not change");
    let state = |item: &Item| text(item, "desired_state").unwrap_or_else(|| "deploying".to_owned());
    check(state(before) != "deleted" || state(after) == "deleted", "A.3: deleted is terminal");
    let words = ["deploying", "running", "stopped", "deleted"];
    check(words.contains(&state(after).as_str()) || state(before) == state(after), "A.3: desired_state is a word");
    let (Some(Value::Map(old)), Some(Value::Map(new))) = (before.get("region_status"), after.get("region_status"))
    else {
        return found;
    };
    let regions: BTreeSet<&String> =
        old.keys().chain(new.keys()).filter(|key| old.get(*key) != new.get(*key)).collect();
    if regions.is_empty() {
        return found;
    }
    // A status write changes one region's entry and the version, nothing else.
    check(
        !each || changed.iter().all(|key| ["region_status", "updated_at"].contains(&key.as_str())),
        "B.9: a status write only",
    );
    check(!each || regions.len() == 1, "B.9: one region's entry");
    for written in regions.into_iter().filter(|written| written.as_str() == region) {
        let entry = new.get(written);
        shape_violations(entry, &mut check);
        // Under which authority it was written can be told only with the row that it was written to.
        if let Some(Value::Map(entry)) = entry.filter(|_| each) {
            authority_violations(before, old.get(written), entry, written, &mut check);
        }
    }
    found
}

/// What is wrong with an entry by itself.
fn shape_violations(entry: Option<&Value>, check: &mut impl FnMut(bool, &str)) {
    let Some(Value::Map(entry)) = entry else { return check(false, "A.5: the entry is a map") };
    let text = |key: &str| entry.get(key).and_then(Value::as_str);
    let state = text("state").unwrap_or_default();
    check(STATES.contains(&state), "A.5: state is a word of the contract");
    for number in ["replicas_ready", "replicas_desired"] {
        check(count(entry.get(number)).is_some(), &format!("A.5, I.6: {number} is an integer N"));
    }
    check(text("last_sync").and_then(gco_store::time::parse).is_some(), "A.5: last_sync is a time");
    let error = entry.get("error");
    check(error.is_none_or(|error| error.as_str().is_some_and(|text| !text.is_empty())), "A.5: error is a text");
    if state == "deleted" {
        let observations = count(entry.get("absence_observations"));
        check(observations.is_some_and(|count| count >= 2), "C.9: terminal with two observations");
    }
    if let Some(canary) = entry.get("canary") {
        let Value::Map(canary) = canary else { return check(false, "A.5: canary is a map") };
        let word = canary.get("state").and_then(Value::as_str).unwrap_or_default();
        check(["creating", "updating", "running"].contains(&word), "A.5, E.2: canary.state is a word");
        check(canary.get("image").and_then(Value::as_str).is_some(), "E.2: canary.image is a text");
        for number in ["weight", "replicas_ready", "replicas_desired"] {
            check(count(canary.get(number)).is_some(), &format!("E.2: canary.{number} is an integer N"));
        }
    }
}

fn count(value: Option<&Value>) -> Option<i64> {
    value.and_then(Value::as_integer).filter(|count| *count >= 0)
}

/// What is wrong with an entry, for the row that it was written to and the entry before it.
fn authority_violations(
    row: &Item,
    before: Option<&Value>,
    entry: &Item,
    region: &str,
    check: &mut impl FnMut(bool, &str),
) {
    let text = |key: &str| entry.get(key).and_then(Value::as_str);
    let of_row = |key: &str| row.get(key).and_then(Value::as_str);
    let state = text("state").unwrap_or_default();
    check(
        text("lifecycle_id").is_some() && text("lifecycle_id") == of_row("lifecycle_id"),
        "B.9: of the row's lifecycle",
    );
    let deleted = of_row("desired_state") == Some("deleted");
    let authority = if deleted { "deletion_generation" } else { "region_generation" };
    if deleted {
        check(text(authority).is_some() && text(authority) == of_row(authority), "B.9: of the deletion's generation");
        check(["deleting", "deleted"].contains(&state), "C.9: an acknowledgement or none");
    } else {
        let generations = row.get("region_generations").and_then(Value::as_map);
        let generation = generations.and_then(|map| map.get(region)?.as_str());
        check(text(authority).is_some() && text(authority) == generation, "B.9: of the region's generation");
        check(!entry.contains_key("deletion_generation"), "B.9: an ordinary observation has no deletion generation");
        let targets = row.get("target_regions").and_then(Value::as_list);
        let target = targets.is_some_and(|list| list.iter().any(|one| one.as_str() == Some(region)));
        check(state != "deleted" || !target, "C.9: a target of a live row is not acknowledged");
    }
    let before = before.and_then(Value::as_map);
    let own = |key: &str| before.and_then(|map| map.get(key)?.as_str());
    let same_authority = own(authority) == text(authority) && own("lifecycle_id") == text("lifecycle_id");
    let before = before.filter(|_| same_authority);
    let counted = before.and_then(|map| count(map.get("absence_observations"))).unwrap_or(0);
    if let Some(observations) = count(entry.get("absence_observations")) {
        check(observations <= counted + 1, "C.9: observations are consecutive");
    }
    let was_terminal = deleted && before.is_some() && own("state") == Some("deleted");
    check(!was_terminal, "C.9: a terminal acknowledgement is never overwritten");
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: &str = "us-east-1";

    /// A change of an entry.
    type Change = fn(&mut Item);

    fn map<'i>(value: &'i mut Item, key: &str) -> &'i mut Item {
        match value.get_mut(key) {
            Some(Value::Map(map)) => map,
            other => panic!("{key} is {other:?}"),
        }
    }

    /// A row, and the same row after a status write.
    fn rows() -> (Item, Item) {
        let before = crate::region::rows::fixture("classic-minimal").unwrap();
        let mut after = before.clone();
        after.insert("updated_at".to_owned(), Value::from("2026-12-01T00:00:00+00:00"));
        let lifecycle = before["lifecycle_id"].clone();
        let generation = before["region_generations"].at(&[REGION]).cloned().unwrap();
        let entry = Item::from([
            ("state".to_owned(), Value::from("running")),
            ("replicas_ready".to_owned(), Value::from(1_i64)),
            ("replicas_desired".to_owned(), Value::from(1_i64)),
            ("last_sync".to_owned(), Value::from("2026-12-01T00:00:00+00:00")),
            ("lifecycle_id".to_owned(), lifecycle),
            ("region_generation".to_owned(), generation),
        ]);
        map(&mut after, "region_status").insert(REGION.to_owned(), Value::Map(entry));
        (before, after)
    }

    #[test]
    fn a_status_write_of_ours_breaks_no_rule_and_each_rule_can_fail() {
        let (before, after) = rows();
        assert_eq!(violations(&before, &after, REGION, true), Vec::<String>::new());
        let breaks: [(&str, Change); 10] = [
            ("A.5: state", |entry| drop(entry.insert("state".to_owned(), Value::from("happy")))),
            ("A.5, I.6: replicas_ready", |entry| drop(entry.insert("replicas_ready".to_owned(), Value::from("1")))),
            ("A.5: last_sync", |entry| drop(entry.remove("last_sync"))),
            ("A.5: error", |entry| drop(entry.insert("error".to_owned(), Value::from("")))),
            ("B.9: of the row's lifecycle", |entry| drop(entry.insert("lifecycle_id".to_owned(), Value::from("x")))),
            ("B.9: of the region's generation", |entry| drop(entry.remove("region_generation"))),
            ("B.9: an ordinary observation", |entry| {
                drop(entry.insert("deletion_generation".to_owned(), Value::from("d")));
            }),
            ("C.9: terminal", |entry| drop(entry.insert("state".to_owned(), Value::from("deleted")))),
            ("C.9: observations", |entry| drop(entry.insert("absence_observations".to_owned(), Value::from(2_i64)))),
            ("A.5, E.2: canary.state", |entry| {
                let canary = Item::from([("state".to_owned(), Value::from("fine"))]);
                entry.insert("canary".to_owned(), Value::Map(canary));
            }),
        ];
        for (rule, change) in breaks {
            let (_, mut bad) = rows();
            change(map(map(&mut bad, "region_status"), REGION));
            let found = violations(&before, &bad, REGION, true);
            assert!(found.iter().any(|one| one.starts_with(rule)), "{rule}: {found:?}");
        }
        let mut bad = after.clone();
        bad.insert("desired_state".to_owned(), Value::from("stopped"));
        assert!(violations(&before, &bad, REGION, true).iter().any(|one| one.starts_with("B.9: a status write only")));
        let mut bad = after;
        bad.insert("lifecycle_id".to_owned(), Value::from("other"));
        assert!(violations(&before, &bad, REGION, true).iter().any(|one| one.starts_with("B.12: lifecycle_id")));
    }

    #[test]
    fn only_a_deleted_row_can_have_been_purged_and_made_again_between_two_looks() {
        let (mut before, mut after) = rows();
        assert!(!is_purged_between(&before, &after), "the same row");
        after.insert("lifecycle_id".to_owned(), Value::from("another"));
        assert!(!is_purged_between(&before, &after), "a live row's lifecycle never changes");
        before.insert("desired_state".to_owned(), Value::from("deleted"));
        assert!(is_purged_between(&before, &after));
        after.insert("lifecycle_id".to_owned(), before["lifecycle_id"].clone());
        assert!(!is_purged_between(&before, &after), "a deleted row came back to life");
    }
}
