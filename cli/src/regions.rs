//! Which regions there are, for a deploy that names none.

use std::collections::BTreeMap;
use std::sync::Arc;

use gco_runtime::environment::Environment;
use gco_store::problem::FieldProblem;
use gco_store::table::{ErrorCategory, RegionItem, Table, TableError};
use tokio::task::JoinSet;

use crate::flags;

/// Environment variable with the regions of the fleet, separated by commas.
pub const REGIONS_VARIABLE: &str = "GCO_REGIONS";

/// Regions that are asked for a heartbeat when nothing tells which there are. The second table is read by key only, so
/// somebody has to name them; a region that is missing here is given with `-r` or in `GCO_REGIONS`.
const ASKED_REGIONS: [&str; 34] = [
    "us-east-1",
    "us-east-2",
    "us-west-1",
    "us-west-2",
    "ca-central-1",
    "ca-west-1",
    "mx-central-1",
    "sa-east-1",
    "eu-central-1",
    "eu-central-2",
    "eu-north-1",
    "eu-south-1",
    "eu-south-2",
    "eu-west-1",
    "eu-west-2",
    "eu-west-3",
    "af-south-1",
    "il-central-1",
    "me-central-1",
    "me-south-1",
    "ap-east-1",
    "ap-east-2",
    "ap-northeast-1",
    "ap-northeast-2",
    "ap-northeast-3",
    "ap-south-1",
    "ap-south-2",
    "ap-southeast-1",
    "ap-southeast-2",
    "ap-southeast-3",
    "ap-southeast-4",
    "ap-southeast-5",
    "ap-southeast-7",
    "us-gov-west-1",
];

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

/// The regions, of those asked for by default and `more`, whose monitor has written a heartbeat.
///
/// # Errors
/// When the second table cannot be read; an absent one (a fleet of the original) has no heartbeats.
pub async fn reporting(table: &Arc<dyn Table>, more: &[String]) -> Result<KnownRegions, TableError> {
    let mut asked: Vec<String> = ASKED_REGIONS.map(str::to_owned).to_vec();
    asked.extend(more.iter().filter(|region| !ASKED_REGIONS.contains(&region.as_str())).cloned());
    let items = items_of(table, &asked).await?;
    let alive = |region: &String| items.get(region).is_some_and(|item| item.heartbeat.is_some());
    let source = "the regions whose monitor reports to the table".to_owned();
    Ok(KnownRegions { regions: asked.into_iter().filter(alive).collect(), source })
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
