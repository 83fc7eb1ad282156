//! The tables as a map in this process, and a process's view of them over its [`Line`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use gco_store::index::{ChangeRead, Part, PartState};
use gco_store::table::{
    Consistency, ErrorCategory, FullRead, Outcome, RegionHeartbeat, RegionItem, Table, TableDescription, TableError,
};
use gco_store::transition::Transition;
use gco_store::wire::{Item, Value};

use tokio::sync::watch;

use crate::line::{Asked, Line};

#[derive(Debug, Default)]
struct Rows {
    rows: BTreeMap<String, Item>,
    regions: BTreeMap<String, Item>,
    writes: u64,
}

/// Both tables. Conditions and writes are evaluated by the store's own pure part.
#[derive(Clone, Debug)]
pub struct ModelTable {
    rows: Arc<Mutex<Rows>>,
    changed: watch::Sender<u64>,
}

impl Default for ModelTable {
    fn default() -> Self {
        Self { rows: Arc::default(), changed: watch::channel(0).0 }
    }
}

impl ModelTable {
    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many writes of the first table were applied.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// Wakes with every write of the first table.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn wrote(&self, rows: &mut Rows) {
        rows.writes += 1;
        self.changed.send_replace(rows.writes);
    }

    /// All rows by name.
    #[must_use]
    pub fn rows(&self) -> BTreeMap<String, Item> {
        self.lock().rows.clone()
    }

    /// One row.
    #[must_use]
    pub fn row(&self, name: &str) -> Option<Item> {
        self.lock().rows.get(name).cloned()
    }

    /// Puts a row as it is.
    pub fn put(&self, item: Item) {
        let name = item.get("endpoint_name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut rows = self.lock();
        rows.rows.insert(name, item);
        self.wrote(&mut rows);
    }

    fn apply(&self, transition: &Transition) -> Result<Outcome, TableError> {
        let mut rows = self.lock();
        let outcome = transition
            .evaluate(rows.rows.get(&transition.name).cloned())
            .map_err(|problem| TableError::new(ErrorCategory::Invalid, "UpdateItem", problem.to_string()))?;
        if let Outcome::Applied(row) = &outcome {
            match row {
                Some(row) => rows.rows.insert(transition.name.clone(), row.clone()),
                None => rows.rows.remove(&transition.name),
            };
            self.wrote(&mut rows);
        }
        Ok(outcome)
    }

    fn region(&self, region: &str, change: impl FnOnce(&mut Item)) -> RegionItem {
        let mut rows = self.lock();
        let item = rows.regions.entry(region.to_owned()).or_default();
        item.insert(RegionHeartbeat::KEY.to_owned(), Value::from(region));
        change(item);
        RegionItem::parse(item)
    }
}

#[async_trait]
impl Table for ModelTable {
    async fn get(&self, name: &str, _: Consistency) -> Result<Option<Item>, TableError> {
        Ok(self.row(name))
    }

    async fn read_all(&self, _: Consistency) -> Result<FullRead, TableError> {
        Ok(FullRead { items: self.rows().into_values().collect(), ..FullRead::default() })
    }

    async fn execute(&self, transition: &Transition) -> Result<Outcome, TableError> {
        self.apply(transition)
    }

    async fn check(&self) -> Result<TableDescription, TableError> {
        Ok(TableDescription { replicas: Vec::new(), multi_region_consistency: None, change_index: PartState::Missing })
    }

    async fn write_heartbeat(&self, heartbeat: &RegionHeartbeat, _: Duration) -> Result<RegionItem, TableError> {
        Ok(self.region(&heartbeat.region, |item| item.extend(heartbeat.to_attributes())))
    }

    async fn set_frozen(&self, region: &str, frozen: bool) -> Result<RegionItem, TableError> {
        Ok(self.region(region, |item| {
            item.insert(RegionItem::FREEZE.to_owned(), Value::Bool(frozen));
        }))
    }

    async fn clear_restarts(&self, region: &str, at: &str) -> Result<RegionItem, TableError> {
        Ok(self.region(region, |item| {
            item.insert(RegionItem::RESTARTS_CLEARED_AT.to_owned(), Value::from(at));
        }))
    }

    async fn read_region(&self, region: &str) -> Result<Option<RegionItem>, TableError> {
        Ok(self.lock().regions.get(region).map(RegionItem::parse))
    }

    async fn read_regions(&self) -> Result<BTreeMap<String, RegionItem>, TableError> {
        Ok(self.lock().regions.iter().map(|(region, item)| (region.clone(), RegionItem::parse(item))).collect())
    }

    async fn changed_since(&self, _: &str) -> Result<ChangeRead, TableError> {
        Err(TableError::new(ErrorCategory::Invalid, "Query", "the model's table has no change index"))
    }

    async fn inspect(&self, part: Part) -> Result<PartState, TableError> {
        Ok(if part == Part::ChangeIndex { PartState::Missing } else { PartState::Ready })
    }

    async fn create(&self, part: Part) -> Result<(), TableError> {
        match part {
            Part::ChangeIndex => {
                Err(TableError::new(ErrorCategory::Invalid, "UpdateTable", "the model's table has no change index"))
            }
            Part::Endpoints | Part::Regions => Ok(()),
        }
    }
}

/// The tables at the end of a line.
#[derive(Debug)]
pub struct TableLine {
    line: Arc<Line>,
    table: ModelTable,
}

impl TableLine {
    /// The tables as the process of `line` reaches them.
    #[must_use]
    pub fn new(line: &Arc<Line>, table: &ModelTable) -> Self {
        Self { line: line.clone(), table: table.clone() }
    }

    async fn send<T: Send + 'static>(
        &self,
        summary: String,
        is_write: bool,
        by_the_clock: bool,
        done: impl FnOnce(&ModelTable) -> T + Send + 'static,
    ) -> T {
        let table = self.table.clone();
        self.line.send(Asked { summary, is_write, by_the_clock }, move || done(&table)).await
    }
}

#[async_trait]
impl Table for TableLine {
    async fn get(&self, name: &str, _: Consistency) -> Result<Option<Item>, TableError> {
        let key = name.to_owned();
        Ok(self.send(format!("read row {name}"), false, false, move |table| table.row(&key)).await)
    }

    async fn read_all(&self, _: Consistency) -> Result<FullRead, TableError> {
        let items = self.send("read all rows".to_owned(), false, true, |table| table.rows().into_values().collect());
        Ok(FullRead { items: items.await, ..FullRead::default() })
    }

    async fn execute(&self, transition: &Transition) -> Result<Outcome, TableError> {
        let summary = format!("{} of row {}", transition.operation.as_str(), transition.name);
        let transition = transition.clone();
        self.send(summary, true, false, move |table| table.apply(&transition)).await
    }

    async fn check(&self) -> Result<TableDescription, TableError> {
        self.table.check().await
    }

    async fn write_heartbeat(&self, heartbeat: &RegionHeartbeat, time_out: Duration) -> Result<RegionItem, TableError> {
        // It has a bound of its own, as every backend's heartbeat.
        match tokio::time::timeout(time_out, self.line.open()).await {
            Ok(()) => self.table.write_heartbeat(heartbeat, time_out).await,
            Err(_) => Err(TableError::new(ErrorCategory::Unavailable, "UpdateItem", "no answer in time")),
        }
    }

    async fn set_frozen(&self, region: &str, frozen: bool) -> Result<RegionItem, TableError> {
        self.table.set_frozen(region, frozen).await
    }

    async fn clear_restarts(&self, region: &str, at: &str) -> Result<RegionItem, TableError> {
        self.table.clear_restarts(region, at).await
    }

    async fn read_region(&self, region: &str) -> Result<Option<RegionItem>, TableError> {
        self.table.read_region(region).await
    }

    async fn read_regions(&self) -> Result<BTreeMap<String, RegionItem>, TableError> {
        self.table.read_regions().await
    }

    async fn changed_since(&self, since: &str) -> Result<ChangeRead, TableError> {
        self.table.changed_since(since).await
    }

    async fn inspect(&self, part: Part) -> Result<PartState, TableError> {
        self.table.inspect(part).await
    }

    async fn create(&self, part: Part) -> Result<(), TableError> {
        self.table.create(part).await
    }
}
