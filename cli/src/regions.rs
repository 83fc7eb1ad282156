//! Which regions there are, for a deploy that names none.

use std::collections::BTreeMap;
use std::sync::Arc;

use gco_runtime::environment::Environment;
use gco_store::problem::FieldProblem;
use gco_store::table::{ErrorCategory, RegionItem, Table, TableError};
use gco_store::time;
use jiff::Timestamp;
use tokio::task::JoinSet;

use crate::{age, flags};

/// Environment variable with the regions of the fleet, separated by commas.
pub const REGIONS_VARIABLE: &str = "GCO_REGIONS";

/// Regions, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownRegions {
    /// The regions, in the order of their source.
    pub regions: Vec<String>,
    /// The source, for messages.
    pub source: String,
}

/// The regions that the environment names; `None` when it names none.
///
/// # Errors
/// Names that no region can have.
pub fn of_environment(environment: &Environment) -> Result<Option<KnownRegions>, Vec<FieldProblem>> {
    let given = environment.reader().list(REGIONS_VARIABLE);
    let mut problems = Vec::new();
    let regions = flags::regions(REGIONS_VARIABLE, &given, &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok((!regions.is_empty()).then(|| KnownRegions { regions, source: REGIONS_VARIABLE.to_owned() }))
}

/// Oldest heartbeat, in seconds, of a region that a deploy without regions goes to: 60 heartbeats of a minute each. A region
/// that was taken out of service keeps its last one, and an endpoint sent there could never be purged.
const OLDEST_HEARTBEAT_SECONDS: u64 = 3_600;

/// The regions whose monitor has written a heartbeat within the last hour before `now`.
///
/// # Errors
/// When the second table cannot be read; an absent one (a fleet of the original) has no heartbeats.
pub async fn reporting(table: &Arc<dyn Table>, now: Timestamp) -> Result<KnownRegions, TableError> {
    let items = match table.read_regions().await {
        Err(error) if error.category == ErrorCategory::Table => BTreeMap::new(),
        read => read?,
    };
    let alive = items.into_iter().filter(|(_, item)| {
        let last = item.heartbeat.as_ref().and_then(|heartbeat| time::parse(&heartbeat.last_heartbeat));
        last.is_some_and(|last| age::seconds_between(last, now) <= OLDEST_HEARTBEAT_SECONDS)
    });
    let source = "the regions whose monitor reports to the table".to_owned();
    Ok(KnownRegions { regions: alive.map(|(region, _)| region).collect(), source })
}

/// The items of `regions` in the second table, those that exist.
///
/// # Errors
/// When the second table cannot be read; an absent one has no items.
pub async fn items_of(table: &Arc<dyn Table>, regions: &[String]) -> Result<BTreeMap<String, RegionItem>, TableError> {
    let mut reads = JoinSet::new();
    for region in regions {
        let (table, region) = (Arc::clone(table), region.clone());
        reads.spawn(async move {
            let item = table.read_region(&region).await;
            (region, item)
        });
    }
    let mut items = BTreeMap::new();
    while let Some(read) = reads.join_next().await {
        // A task that panicked or was cancelled has nothing to say of its region.
        let Ok((region, item)) = read else { continue };
        match item {
            Ok(Some(item)) => {
                items.insert(region, item);
            }
            Ok(None) => {}
            Err(error) if error.category == ErrorCategory::Table => return Ok(BTreeMap::new()),
            Err(error) => return Err(error),
        }
    }
    Ok(items)
}
