//! The tables, with every operation counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gco_store::index::{ChangeRead, Part, PartState};
use gco_store::table::{
    Consistency, ErrorCategory, FullRead, Outcome, RegionHeartbeat, RegionItem, Table, TableDescription, TableError,
};
use gco_store::transition::Transition;
use gco_store::wire::Item;

use crate::admin::telemetry::Telemetry;
use crate::report::Category;

/// A table that counts.
#[derive(Debug)]
pub struct MeteredTable {
    table: Arc<dyn Table>,
    telemetry: Arc<Telemetry>,
}

/// The word of the table metric's outcome.
fn outcome_word(category: ErrorCategory) -> &'static str {
    match category {
        ErrorCategory::Invalid => "invalid",
        ErrorCategory::Forbidden => "forbidden",
        ErrorCategory::Throttled => "throttled",
        ErrorCategory::Unavailable => "unavailable",
        ErrorCategory::Unknown => "unknown",
        ErrorCategory::Table => "table",
    }
}

/// A failure of the table as a failure of a pass.
#[must_use]
pub fn category_of(error: &TableError) -> Category {
    match error.category {
        ErrorCategory::Invalid => Category::Invalid,
        ErrorCategory::Forbidden => Category::Forbidden,
        ErrorCategory::Throttled => Category::Throttled,
        ErrorCategory::Unavailable | ErrorCategory::Unknown | ErrorCategory::Table => Category::Unavailable,
    }
}

impl MeteredTable {
    /// Counts the operations of `table`.
    #[must_use]
    pub fn new(table: Arc<dyn Table>, telemetry: Arc<Telemetry>) -> Self {
        Self { table, telemetry }
    }

    fn count<T>(&self, operation: &str, result: Result<T, TableError>) -> Result<T, TableError> {
        let outcome = result.as_ref().map_or_else(|error| outcome_word(error.category), |_| "ok");
        self.telemetry.table_operation(operation, outcome);
        result
    }
}

#[async_trait::async_trait]
impl Table for MeteredTable {
    async fn get(&self, name: &str, consistency: Consistency) -> Result<Option<Item>, TableError> {
        self.count("get", self.table.get(name, consistency).await)
    }

    async fn read_all(&self, consistency: Consistency) -> Result<FullRead, TableError> {
        self.count("read_all", self.table.read_all(consistency).await)
    }

    async fn execute(&self, transition: &Transition) -> Result<Outcome, TableError> {
        let result = self.table.execute(transition).await;
        let outcome = match &result {
            Ok(Outcome::Applied(_)) => "ok",
            Ok(Outcome::Refused(_)) => "refused",
            Err(error) => outcome_word(error.category),
        };
        self.telemetry.table_operation(transition.operation.as_str(), outcome);
        result
    }

    async fn check(&self) -> Result<TableDescription, TableError> {
        self.count("check", self.table.check().await)
    }

    async fn write_heartbeat(&self, heartbeat: &RegionHeartbeat, time_out: Duration) -> Result<RegionItem, TableError> {
        self.count("heartbeat", self.table.write_heartbeat(heartbeat, time_out).await)
    }

    async fn set_frozen(&self, region: &str, frozen: bool) -> Result<RegionItem, TableError> {
        self.table.set_frozen(region, frozen).await
    }

    async fn clear_restarts(&self, region: &str, at: &str) -> Result<RegionItem, TableError> {
        self.table.clear_restarts(region, at).await
    }

    async fn read_region(&self, region: &str) -> Result<Option<RegionItem>, TableError> {
        self.count("read_region", self.table.read_region(region).await)
    }

    async fn read_regions(&self) -> Result<BTreeMap<String, RegionItem>, TableError> {
        self.table.read_regions().await
    }

    async fn changed_since(&self, since: &str) -> Result<ChangeRead, TableError> {
        self.count("query_changes", self.table.changed_since(since).await)
    }

    async fn inspect(&self, part: Part) -> Result<PartState, TableError> {
        self.table.inspect(part).await
    }

    async fn create(&self, part: Part) -> Result<(), TableError> {
        self.table.create(part).await
    }
}
