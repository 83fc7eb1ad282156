//! `gco inference orphans`: objects that no row owns, as the regions' monitors tell of them.

use std::collections::BTreeMap;

use gco_runtime::clock::Clock as _;
use gco_store::orphans::{Orphan, OrphanReport};
use gco_store::problem::bounded;
use gco_store::table::RegionItem;
use gco_store::time;
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::edit::refuse;
use crate::arguments::OrphansFlags;
use crate::commands::Context;
use crate::describe::STALE_HEARTBEAT_SECONDS;
use crate::failure::Failure;
use crate::output::{Format, columns, cut};
use crate::{age, flags};

/// Widths of REGION, OBJECT, PODS; the lifecycle comes last.
const COLUMNS: [usize; 3] = [18, 48, 5];
/// Characters of a lifecycle that tell two apart for a person.
const SHOWN_LIFECYCLE_CHARACTERS: usize = 16;
/// Longest object name that is shown, in characters.
const SHOWN_OBJECT_CHARACTERS: usize = 90;

/// Lists them.
///
/// # Errors
/// A wrong filter, or a second table that cannot be read.
pub async fn execute(given: &OrphansFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let mut problems = Vec::new();
    flags::regions("--region", given.region.as_slice(), &mut problems);
    refuse(problems)?;
    let connection = context.connect().await?;
    let mut items = connection.table.read_regions().await.map_err(|error| connection.failed(&error))?;
    items.retain(|region, _| given.region.as_ref().is_none_or(|wanted| wanted == region));
    let now = context.clock.wall();
    let reports: BTreeMap<&String, &OrphanReport> =
        items.iter().filter_map(|(region, item)| Some((region, item.heartbeat.as_ref()?.orphans.as_ref()?))).collect();
    let output = &mut *context.output;
    match output.format() {
        Format::Table => {
            let total = reports.values().fold(0_u64, |sum, report| sum.saturating_add(report.count));
            if total == 0 {
                output.information("No region tells of objects that no endpoint owns")?;
            } else {
                output.text(&table(&reports))?;
                output.information(&format!(
                    "{total} objects that no endpoint owns; nothing removes them by itself, see 'gco inference orphans --help'"
                ))?;
            }
        }
        Format::Json | Format::Yaml => {
            let documents: serde_json::Map<String, Json> =
                reports.iter().map(|(region, report)| ((*region).clone(), document(report))).collect();
            output.document(&Json::Object(documents))?;
        }
    }
    for warning in doubts(&items, given.region.as_deref(), now) {
        output.warning(&warning)?;
    }
    Ok(())
}

fn table(reports: &BTreeMap<&String, &OrphanReport>) -> String {
    let [region_width, object_width, pods_width] = COLUMNS;
    let line = |region: &str, object: &str, pods: &str, lifecycle: &str| {
        let cells = [(region, region_width), (object, object_width), (pods, pods_width), (lifecycle, 0)];
        columns(&cells) + "\n"
    };
    let mut text = line("REGION", "OBJECT", "PODS", "LIFECYCLE");
    for (region, OrphanReport { count, listed, as_of: _ }) in reports {
        let region = bounded(region, 63);
        for Orphan { object, lifecycle_id, pods } in listed {
            let lifecycle =
                lifecycle_id.as_deref().map_or_else(|| "-".to_owned(), |id| cut(id, SHOWN_LIFECYCLE_CHARACTERS));
            text.push_str(&line(&region, &cut(object, SHOWN_OBJECT_CHARACTERS), &pods.to_string(), &lifecycle));
        }
        let listed = u64::try_from(listed.len()).unwrap_or(u64::MAX);
        if *count > listed {
            text.push_str(&line(&region, &format!("and {} more", count - listed), "", ""));
        }
    }
    text
}

fn document(report: &OrphanReport) -> Json {
    let OrphanReport { count, listed, as_of } = report;
    let one = |orphan: &Orphan| {
        let Orphan { object, lifecycle_id, pods } = orphan;
        json!({"object": object, "lifecycle_id": lifecycle_id, "pods": pods})
    };
    json!({"count": count, "objects": listed.iter().map(one).collect::<Vec<_>>(), "as_of": as_of})
}

/// Regions of which nothing, or nothing new, is known.
fn doubts(items: &BTreeMap<String, RegionItem>, wanted: Option<&str>, now: Timestamp) -> Vec<String> {
    let mut doubts = Vec::new();
    if let Some(region) = wanted.filter(|region| !items.contains_key(*region)) {
        doubts.push(format!("{region}: no monitor has ever reported to the table"));
    }
    for (region, item) in items {
        let region = bounded(region, 63);
        let Some(report) = item.heartbeat.as_ref().and_then(|heartbeat| heartbeat.orphans.as_ref()) else {
            doubts.push(format!("{region}: its monitor does not tell (yet) which objects no endpoint owns"));
            continue;
        };
        let seconds = time::parse(&report.as_of).map(|at| age::seconds_between(at, now));
        if let Some(seconds) = seconds.filter(|seconds| *seconds > STALE_HEARTBEAT_SECONDS) {
            let age = age::of_seconds(seconds);
            doubts.push(format!("{region}: what its monitor tells is {age} old; it may be out of date"));
        }
    }
    doubts
}
