//! `gco inference list`.

use gco_store::operations::ListFilter;
use gco_store::problem::bounded;
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::spec::Autoscaling;
use gco_store::wire::{Value, item_to_plain_json};
use serde_json::Value as Json;

use crate::arguments::ListFlags;
use crate::commands::Context;
use crate::describe::plain_text;
use crate::failure::Failure;
use crate::flags;
use crate::output::{Format, columns, cut};

/// Widths of NAME, STATE, REGIONS, REPLICAS, IMAGE, and how much of a value each shows.
const COLUMNS: [(&str, usize, usize); 5] =
    [("NAME", 25, 24), ("STATE", 12, 12), ("REGIONS", 25, 24), ("REPLICAS", 8, 8), ("IMAGE", 40, 40)];

/// States that a row can be asked to be in.
const STATES: [&str; 4] = ["deploying", "running", "stopped", "deleted"];

/// Lists all endpoints, newest first.
///
/// # Errors
/// A wrong filter, or a table that cannot be read.
pub async fn execute(given: &ListFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let mut problems = Vec::new();
    if let Some(state) = given.state.as_deref().filter(|state| !STATES.contains(state)) {
        problems.push(flags::not_a_choice("--state", state, &STATES));
    }
    flags::regions("--region", given.region.as_slice(), &mut problems);
    if !problems.is_empty() {
        return Err(Failure::Usage(problems));
    }
    let filter =
        ListFilter { desired_state: given.state.as_deref().map(DesiredState::from_word), region: given.region.clone() };
    let connection = context.connect().await?;
    let rows = connection.store.list(&filter).await.map_err(|error| connection.refused(error))?;

    let output = &mut *context.output;
    match output.format() {
        Format::Table if rows.is_empty() => output.information("No inference endpoints found")?,
        Format::Table => {
            output.text(&table(&rows))?;
            let paused: Vec<String> = rows.iter().filter(|row| row.paused).map(|row| bounded(&row.name, 63)).collect();
            if !paused.is_empty() {
                output.information(&format!("Paused (their regions change nothing): {}", paused.join(", ")))?;
            }
        }
        Format::Json | Format::Yaml => {
            let documents = rows.iter().map(|row| item_to_plain_json(&row.item)).collect();
            output.document(&Json::Array(documents))?;
        }
    }
    Ok(())
}

/// The count, or the bounds of an autoscaled endpoint: `2-8`.
fn replicas(row: &EndpointRow) -> String {
    let at = |path: &[&str]| row.spec.at(path).map(plain_text);
    let is_autoscaled = row.spec.at(&["autoscaling", "enabled"]) == Some(&Value::Bool(true));
    match (at(&["autoscaling", "min_replicas"]), at(&["autoscaling", "max_replicas"])) {
        _ if !is_autoscaled => at(&["replicas"]).unwrap_or_else(|| "1".to_owned()),
        (least, most) => {
            let or = |given: Option<String>, default: u32| given.unwrap_or_else(|| default.to_string());
            let least = or(least, Autoscaling::DEFAULT_MIN_REPLICAS);
            format!("{least}-{}", or(most, Autoscaling::DEFAULT_MAX_REPLICAS))
        }
    }
}

fn table(rows: &[EndpointRow]) -> String {
    let line = |cells: [&str; 5]| {
        let shown: Vec<(String, usize)> =
            cells.iter().zip(COLUMNS).map(|(cell, (_, width, most))| (cut(cell, most), width)).collect();
        let borrowed: Vec<(&str, usize)> = shown.iter().map(|(cell, width)| (cell.as_str(), *width)).collect();
        columns(&borrowed) + "\n"
    };
    let mut text = line(COLUMNS.map(|(title, _, _)| title));
    for row in rows {
        let spec = |key: &str, default: &str| {
            row.spec.as_map().and_then(|spec| spec.get(key)).map_or_else(|| default.to_owned(), plain_text)
        };
        let regions = row.target_regions.join(",");
        text.push_str(&line([&row.name, row.desired_state.as_str(), &regions, &replicas(row), &spec("image", "-")]));
    }
    text
}
