//! Helpers that several suites share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gco_store::index::{ChangeRead, Part, PartState, entry_of};
use gco_store::row::EndpointRow;
use gco_store::table::{
    Consistency, ErrorCategory, FullRead, Outcome, RegionHeartbeat, RegionItem, Table, TableDescription, TableError,
};
use gco_store::transition::{CreateRequest, Transition};
use gco_store::wire::{Item, Value, item_from_dynamodb_json};
use jiff::Timestamp;

/// The folder of the fixtures that all crates share.
pub(crate) fn fixtures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures"))
}

/// Every fixture row with its name, in order: those of `rows`, then those that the original left behind.
pub(crate) fn all_rows() -> Vec<(String, Item)> {
    let mut rows = Vec::new();
    for (folder, suffix) in [("rows", ".json"), ("original-objects", ".row.json")] {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(fixtures().join(folder))
            .expect("the fixtures are there")
            .map(|entry| entry.expect("readable").path())
            .filter(|path| path.to_string_lossy().ends_with(suffix))
            .collect();
        paths.sort();
        for path in paths {
            let text = std::fs::read_to_string(&path).expect("readable");
            let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let json = if folder == "rows" { &json } else { &json["row"] };
            let name = path.file_name().expect("a file").to_string_lossy().trim_end_matches(suffix).to_owned();
            rows.push((format!("{folder}/{name}"), item_from_dynamodb_json(json).expect("DynamoDB JSON")));
        }
    }
    rows
}

/// One fixture of `rows`, unparsed.
pub(crate) fn item(name: &str) -> Item {
    let wanted = format!("rows/{name}");
    all_rows().into_iter().find(|(found, _)| *found == wanted).unwrap_or_else(|| panic!("no fixture {name}")).1
}

/// One fixture of `rows`.
pub(crate) fn row(name: &str) -> EndpointRow {
    EndpointRow::parse(item(name)).expect("a readable row")
}

/// The same row with attributes replaced.
pub(crate) fn changed(row: &EndpointRow, change: impl FnOnce(&mut Item)) -> EndpointRow {
    let mut item = row.item.clone();
    change(&mut item);
    EndpointRow::parse(item).expect("a readable row")
}

/// A time, as text.
pub(crate) fn at(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

/// A moment after every time-stamp in the fixtures.
pub(crate) fn now() -> Timestamp {
    at("2027-01-01T00:00:00.25Z")
}

/// A source of tokens that can be told apart: 64 digits, counting.
pub(crate) fn tokens() -> impl FnMut() -> String {
    let mut count = 0_u64;
    move || {
        count += 1;
        format!("{count:064x}")
    }
}

/// A value of plain JSON.
pub(crate) fn value(json: serde_json::Value) -> Value {
    Value::from_plain_json("value", &json).expect("plain JSON")
}

/// A request that every rule allows.
pub(crate) fn request(name: &str) -> CreateRequest {
    CreateRequest {
        name: name.to_owned(),
        spec: value(serde_json::json!({"image": "vllm/vllm-openai:v0.28.0", "replicas": 2})),
        target_regions: vec!["us-east-1".to_owned(), "eu-west-1".to_owned()],
        namespace: "gco-inference".to_owned(),
        labels: BTreeMap::new(),
        created_by: None,
    }
}

/// The rows of a [`MemoryTable`].
pub(crate) type Rows = BTreeMap<String, Item>;
/// What somebody else does just before a write arrives.
pub(crate) type Interference = Box<dyn FnOnce(&mut Rows) + Send>;

/// The reference semantics over a map, where others can be made to come first.
#[derive(Default)]
pub(crate) struct MemoryTable {
    pub(crate) rows: Mutex<Rows>,
    pub(crate) interferences: Mutex<Vec<Interference>>,
    pub(crate) executed: Mutex<Vec<Transition>>,
}

impl std::fmt::Debug for MemoryTable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("MemoryTable")
    }
}

impl MemoryTable {
    pub(crate) fn of(items: impl IntoIterator<Item = Item>) -> Arc<Self> {
        let key = |item: &Item| item["endpoint_name"].as_str().expect("a name").to_owned();
        let rows = items.into_iter().map(|item| (key(&item), item)).collect();
        Arc::new(Self { rows: Mutex::new(rows), ..Self::default() })
    }

    /// Somebody else does this just before the next write that has no interference yet.
    pub(crate) fn before_next_write(&self, interference: impl FnOnce(&mut Rows) + Send + 'static) {
        self.interferences.lock().expect("unpoisoned").push(Box::new(interference));
    }

    pub(crate) fn writes(&self) -> usize {
        self.executed.lock().expect("unpoisoned").len()
    }
}

#[async_trait::async_trait]
impl Table for MemoryTable {
    async fn get(&self, name: &str, _: Consistency) -> Result<Option<Item>, TableError> {
        Ok(self.rows.lock().expect("unpoisoned").get(name).cloned())
    }

    async fn read_all(&self, _: Consistency) -> Result<FullRead, TableError> {
        let items = self.rows.lock().expect("unpoisoned").values().cloned().collect();
        Ok(FullRead { items, pages: 1, consumed_read_units: None })
    }

    async fn execute(&self, transition: &Transition) -> Result<Outcome, TableError> {
        let mut rows = self.rows.lock().expect("unpoisoned");
        let mut interferences = self.interferences.lock().expect("unpoisoned");
        if !interferences.is_empty() {
            interferences.remove(0)(&mut rows);
        }
        self.executed.lock().expect("unpoisoned").push(transition.clone());
        let current = rows.get(&transition.name).cloned();
        let outcome = transition
            .evaluate(current)
            .map_err(|problem| TableError::new(ErrorCategory::Invalid, "UpdateItem", problem.to_string()))?;
        match &outcome {
            Outcome::Applied(Some(item)) => {
                rows.insert(transition.name.clone(), item.clone());
            }
            Outcome::Applied(None) => {
                rows.remove(&transition.name);
            }
            Outcome::Refused(_) => {}
        }
        Ok(outcome)
    }

    async fn check(&self) -> Result<TableDescription, TableError> {
        Ok(TableDescription { replicas: Vec::new(), multi_region_consistency: None, change_index: PartState::Ready })
    }

    async fn write_heartbeat(&self, _: &RegionHeartbeat, _: Duration) -> Result<RegionItem, TableError> {
        Err(TableError::new(ErrorCategory::Table, "UpdateItem", "no second table"))
    }

    async fn set_frozen(&self, _: &str, _: bool) -> Result<RegionItem, TableError> {
        Err(TableError::new(ErrorCategory::Table, "UpdateItem", "no second table"))
    }

    async fn clear_restarts(&self, _: &str, _: &str) -> Result<RegionItem, TableError> {
        Err(TableError::new(ErrorCategory::Table, "UpdateItem", "no second table"))
    }

    async fn read_region(&self, _: &str) -> Result<Option<RegionItem>, TableError> {
        Err(TableError::new(ErrorCategory::Table, "GetItem", "no second table"))
    }

    async fn read_regions(&self) -> Result<BTreeMap<String, RegionItem>, TableError> {
        Err(TableError::new(ErrorCategory::Table, "Scan", "no second table"))
    }

    async fn changed_since(&self, since: &str) -> Result<ChangeRead, TableError> {
        let rows = self.rows.lock().expect("unpoisoned");
        let entries = rows.values().filter_map(entry_of).filter(|entry| entry.updated_at.as_str() >= since).collect();
        Ok(ChangeRead { entries, pages: 1, consumed_read_units: None })
    }

    async fn inspect(&self, part: Part) -> Result<PartState, TableError> {
        Ok(if part == Part::Regions { PartState::Missing } else { PartState::Ready })
    }

    async fn create(&self, part: Part) -> Result<(), TableError> {
        match part {
            Part::Regions => Err(TableError::new(ErrorCategory::Table, "CreateTable", "no second table")),
            Part::Endpoints | Part::ChangeIndex => Ok(()),
        }
    }
}
