//! `gco inference status`.

use gco_runtime::clock::Clock as _;
use gco_store::problem::FieldProblem;
use gco_store::time;
use gco_store::wire::item_to_plain_json;

use crate::arguments::StatusFlags;
use crate::commands::Context;
use crate::describe::{self, RegionItems};
use crate::failure::Failure;
use crate::flags;
use crate::follow::{self, Following, Seen};
use crate::goal::Goal;
use crate::output::{Format, Output};
use crate::regions;

/// Shows one endpoint, once or on every change.
///
/// # Errors
/// Wrong flags, an absent endpoint, a table that cannot be read, or a wait that does not succeed.
pub async fn execute(given: &StatusFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let mut problems = Vec::new();
    let goal = given.until.as_deref().and_then(|word| {
        let goal = Goal::parse(word);
        if goal.is_none() {
            problems.push(flags::not_a_choice("--until", word, &Goal::WORDS));
        }
        goal
    });
    if given.until.is_some() && !given.watch {
        problems.push(FieldProblem::new("--until", "needs --watch"));
    }
    if given.timeout_seconds.is_some() && given.until.is_none() {
        problems.push(FieldProblem::new("--timeout-seconds", "needs --until"));
    }
    let bound = flags::time_out("--timeout-seconds", given.timeout_seconds.as_deref(), &mut problems);
    if !problems.is_empty() {
        return Err(Failure::Usage(problems));
    }
    let interval = follow::interval(context.environment)?;

    let connection = context.connect().await?;
    let row = connection.read(&given.endpoint_name).await?;
    if given.watch {
        let following = Following {
            name: row.name.clone(),
            lifecycle_id: row.lifecycle_id.clone(),
            goal,
            bound: goal.map(|_| bound),
            interval,
            with_heartbeats: true,
        };
        let clock = &context.clock;
        let mut shown = 0_u32;
        let tell = |seen: &Seen, output: &mut Output<'_, '_>| {
            shown += 1;
            show_change(seen, clock.wall(), shown, output)
        };
        return follow::follow(&connection, following, clock, context.output, tell).await;
    }
    // The row is worth showing without the heartbeats.
    let items = match regions::items_of(&connection.table, &describe::regions_of(&row)).await {
        Ok(items) => items,
        Err(error) => {
            context.output.warning(&format!("the regions' heartbeats cannot be read: {error}"))?;
            RegionItems::new()
        }
    };
    let now = context.clock.wall();
    match context.output.format() {
        Format::Table => context.output.text(&describe::endpoint(&row, &items, now))?,
        Format::Json | Format::Yaml => context.output.document(&item_to_plain_json(&row.item))?,
    }
    warn(describe::monitor_warnings(&row, &items, now).values(), context.output)
}

fn show_change(seen: &Seen, now: jiff::Timestamp, shown: u32, output: &mut Output<'_, '_>) -> Result<(), Failure> {
    let Some(row) = &seen.row else {
        return Ok(output.information("The endpoint is gone from the table")?);
    };
    match output.format() {
        Format::Table => {
            if shown > 1 {
                output.text(&format!("\n--- {}\n", time::format(now)))?;
            }
            output.text(&describe::endpoint(row, &seen.items, now))?;
        }
        Format::Json | Format::Yaml => output.document_of_a_stream(&item_to_plain_json(&row.item))?,
    }
    warn(seen.warnings.values(), output)
}

fn warn<'w>(warnings: impl Iterator<Item = &'w String>, output: &mut Output<'_, '_>) -> Result<(), Failure> {
    for warning in warnings {
        output.warning(warning)?;
    }
    Ok(())
}
