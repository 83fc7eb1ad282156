//! `refresh`: brings pods to what the monitors render now, a few endpoints at once; and lets stopped restarts go on.

use gco_runtime::clock::Clock as _;
use gco_store::operations::ListFilter;
use gco_store::problem::{FieldProblem, bounded};
use gco_store::row::{DesiredState, Refresh};
use gco_store::time;

use super::edit::{confirm, print_row, refuse};
use crate::arguments::RefreshFlags;
use crate::commands::Context;
use crate::connect::Connection;
use crate::failure::Failure;
use crate::flags;

/// Most endpoints of a region that may be restarted at once.
const MOST_AT_ONCE: i64 = 1000;

/// Refreshes one endpoint or all, or clears failed restarts.
///
/// # Errors
/// A wrong command line, no confirmation, or what the store refuses.
pub async fn execute(given: &RefreshFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let RefreshFlags { endpoint_name, all, at_once, clear, regions, yes } = given;
    let mut problems: Vec<FieldProblem> = endpoint_name.iter().flat_map(|name| flags::endpoint_name(name)).collect();
    let regions = flags::regions("--region", regions, &mut problems);
    let at_once = at_once.as_ref().and_then(|text| {
        let read = flags::integer("--at-once", text).and_then(|count| {
            let allowed = (1..=MOST_AT_ONCE).contains(&count).then(|| u32::try_from(count).ok()).flatten();
            let message = format!("must be from 1 to {MOST_AT_ONCE}, got {count}");
            allowed.ok_or_else(|| FieldProblem::new("--at-once", message))
        });
        read.map_err(|problem| problems.push(problem)).ok()
    });
    match (endpoint_name, all, clear) {
        (Some(_), true, _) => problems.push(FieldProblem::new("--all", "cannot be used with ENDPOINT_NAME")),
        (None, false, false) => {
            problems.push(FieldProblem::new("ENDPOINT_NAME", "or --all is needed: what is to be refreshed"));
        }
        (Some(_), _, true) | (_, true, true) => {
            problems
                .push(FieldProblem::new("--clear", "is for whole regions: name them with --region, and no endpoint"));
        }
        _ => {}
    }
    if !clear && !regions.is_empty() {
        problems.push(FieldProblem::new("--region", "needs --clear: a refresh is for all regions of an endpoint"));
    }
    if *all && !yes && !context.output.can_ask() {
        problems.push(FieldProblem::new("--yes", "is needed: standard input is no terminal, so nobody can be asked"));
    }
    refuse(problems)?;
    let connection = context.connect().await?;
    if *clear {
        return clear_restarts(&connection, regions, context).await;
    }
    let wish = Refresh { requested_at: time::format(context.clock.wall()), at_once };
    match endpoint_name {
        Some(name) => refresh_one(&connection, name, &wish, context).await,
        None => refresh_all(&connection, &wish, *yes, context).await,
    }
}

async fn refresh_one(
    connection: &Connection,
    name: &str,
    wish: &Refresh,
    context: &mut Context<'_, '_, '_>,
) -> Result<(), Failure> {
    let row = connection.store.refresh(name, wish).await.map_err(|error| connection.refused(error))?;
    context.output.success(&format!("Endpoint '{name}' marked for a refresh"))?;
    let hint = match row.desired_state {
        DesiredState::Stopped => {
            format!("It is stopped; its next start takes the current rendering, 'gco inference start {name}'")
        }
        _ if row.paused => format!("It is paused, so nothing of it is changed before 'gco inference resume {name}'"),
        _ => format!("Pods of an older rendering are replaced; follow them with 'gco inference status {name} --watch'"),
    };
    context.output.information(&hint)?;
    print_row(&row, context.output)
}

async fn refresh_all(
    connection: &Connection,
    wish: &Refresh,
    yes: bool,
    context: &mut Context<'_, '_, '_>,
) -> Result<(), Failure> {
    let rows = connection.store.list(&ListFilter::default()).await;
    let rows = rows.map_err(|error| connection.refused(error))?;
    let live: Vec<&str> =
        rows.iter().filter(|row| row.desired_state != DesiredState::Deleted).map(|row| row.name.as_str()).collect();
    let question =
        format!("Refresh {} endpoints? Pods of an older rendering are replaced, a few endpoints at once.", live.len());
    confirm(yes, &question, context.output)?;
    let mut failed = Vec::new();
    for name in &live {
        if let Err(error) = connection.store.refresh(name, wish).await {
            failed.push(format!("{}: {}", bounded(name, 63), bounded(&error.to_string(), 200)));
        }
    }
    let marked = live.len() - failed.len();
    context.output.success(&format!("{marked} of {} endpoints marked for a refresh", live.len()))?;
    context.output.information(
        "Each region restarts a few at once and stops when some do not come up; 'gco inference list' shows how far they are",
    )?;
    match failed.first() {
        None => Ok(()),
        Some(first) => Err(Failure::refused(format!("{} could not be marked, for example {first}", failed.len()))),
    }
}

async fn clear_restarts(
    connection: &Connection,
    mut regions: Vec<String>,
    context: &mut Context<'_, '_, '_>,
) -> Result<(), Failure> {
    if regions.is_empty() {
        let items = connection.table.read_regions().await.map_err(|error| connection.failed(&error))?;
        regions = items.into_keys().collect();
    }
    let now = time::format(context.clock.wall());
    for region in &regions {
        connection.table.clear_restarts(region, &now).await.map_err(|error| connection.failed(&error))?;
    }
    let shown = if regions.is_empty() { "no region".to_owned() } else { bounded(&regions.join(", "), 300) };
    context.output.success(&format!("Failed restarts in {shown} count as looked at; waiting ones go on"))?;
    Ok(())
}
