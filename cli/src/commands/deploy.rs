//! `gco inference deploy`.

use std::collections::BTreeMap;
use std::time::Duration;

use gco_runtime::clock::Clock as _;
use gco_runtime::random::{Randomness as _, SystemRandomness};
use gco_store::name;
use gco_store::operations::{ListFilter, StoreError};
use gco_store::problem::{FieldProblem, joined};
use gco_store::row::EndpointRow;
use gco_store::table::Consistency;
use gco_store::transition::{self, CreateRequest, OperationError, Write};
use gco_store::wire::item_to_plain_json;
use jiff::Timestamp;

use crate::arguments::DeployFlags;
use crate::commands::Context;
use crate::commands::edit::print_row;
use crate::connect::Connection;
use crate::draft::{self, Draft};
use crate::failure::Failure;
use crate::flags;
use crate::follow::{self, Following, Seen};
use crate::goal::{self, Goal};
use crate::output::{Format, Output};
use crate::regions::{self, KnownRegions};

/// The contract's words when there is no region to deploy to.
const NO_REGIONS: &str = "No deployed regions found. Deploy infrastructure first.";

/// Creates an endpoint, or shows what would be written.
///
/// # Errors
/// Bad flags, no regions, a name that is taken, a table that cannot be written, or a wait that does not succeed.
pub async fn execute(given: &DeployFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let mut problems = Vec::new();
    let draft = draft::read(given).map_err(|found| problems.extend(found)).ok();
    let configured =
        regions::of_environment(context.environment).map_err(|found| problems.extend(found)).ok().flatten();
    let interval = follow::interval(context.environment)?;
    let selection = context.selection()?;
    // The regions of a fleet say nothing about the instance on this machine.
    let known = selection.local_regions().or(configured);
    if let (Some(draft), Some(known)) = (&draft, &known) {
        problems.extend(unknown_regions(draft, known));
    }
    let draft = match draft {
        Some(draft) if problems.is_empty() => draft,
        _ => return Err(Failure::Usage(problems)),
    };
    for problem in &draft.without_effect {
        context.output.warning(&problem.to_string())?;
    }

    let connection = selection.open().await?;
    let targets = targets(&draft, known.as_ref(), &connection, context.clock.wall()).await?;
    let request = draft.request(&targets);
    if given.dry_run {
        return dry_run(&request, &connection, context).await;
    }
    let row = connection.store.create(&request).await.map_err(|error| not_created(error, &connection))?;
    announce(&row, &draft, known.as_ref(), context.output)?;
    if known.is_none() {
        warn_of_silent_regions(&row, &connection, context.output).await?;
    }
    match draft.wait {
        Some(bound) => wait(row, bound, interval, &connection, context).await,
        None => {
            let hint = format!("Follow it with 'gco inference status {} --watch'", row.name);
            context.output.information(&hint)?;
            print_row(&row, context.output)
        }
    }
}

/// Regions that nobody serves would also keep the row from ever being purged, so they are refused.
fn unknown_regions(draft: &Draft, known: &KnownRegions) -> Vec<FieldProblem> {
    let unknown = draft.regions.iter().filter(|region| !known.regions.contains(region));
    unknown
        .map(|region| {
            let allowed = known.regions.join(", ");
            FieldProblem::new("--region", format!("'{region}' is none of the regions of {}: {allowed}", known.source))
        })
        .collect()
}

async fn targets(
    draft: &Draft,
    known: Option<&KnownRegions>,
    connection: &Connection,
    now: Timestamp,
) -> Result<Vec<String>, Failure> {
    if !draft.regions.is_empty() {
        return Ok(draft.regions.clone());
    }
    if let Some(known) = known {
        return Ok(known.regions.clone());
    }
    let reporting = regions::reporting(&connection.table, now).await.map_err(|error| connection.failed(&error))?;
    if reporting.regions.is_empty() {
        let asked =
            format!("no -r, no {}, and no region reports to {}", regions::REGIONS_VARIABLE, connection.described);
        return Err(Failure::refused(format!("{NO_REGIONS} ({asked})")));
    }
    Ok(reporting.regions)
}

async fn dry_run(
    request: &CreateRequest,
    connection: &Connection,
    context: &mut Context<'_, '_, '_>,
) -> Result<(), Failure> {
    let transition = transition::create(request, context.clock.wall(), &mut || SystemRandomness.token())
        .map_err(|error| not_created(error.into(), connection))?;
    // What the write would meet, apart from races.
    let rows = connection.store.list(&ListFilter::default()).await.map_err(|error| connection.refused(error))?;
    let exists = connection.store.get(&request.name, Consistency::Strong).await;
    if exists.map_err(|error| connection.refused(error))?.is_some() {
        return Err(Failure::refused(format!("Endpoint '{}' already exists", request.name)));
    }
    if let Some(other) = name::colliding(&request.name, rows.iter().map(|row| row.name.as_str())).first() {
        let message = format!("objects of this endpoint could be called like objects of the endpoint '{other}'");
        return Err(Failure::refused(format!("ENDPOINT_NAME: {message}")));
    }
    let Write::Put(item) = &transition.write else {
        return Err(Failure::refused("creating an endpoint would not write a whole row; please report this"));
    };
    context.output.progress(&format!(
        "Dry run: this row would be written to {}; nothing was. Tokens and times would be others.",
        connection.described
    ))?;
    Ok(context.output.document(&item_to_plain_json(item))?)
}

/// As [`Connection::refused`], with fields named as flags: here every field was written by one.
fn not_created(error: StoreError, connection: &Connection) -> Failure {
    match error {
        StoreError::Operation(OperationError::Invalid(problems)) => {
            let named: Vec<FieldProblem> = problems.iter().map(flags::named).collect();
            Failure::refused(joined(&named))
        }
        other => connection.refused(other),
    }
}

fn announce(
    row: &EndpointRow,
    draft: &Draft,
    known: Option<&KnownRegions>,
    output: &mut Output<'_, '_>,
) -> Result<(), Failure> {
    output.success(&format!("Endpoint '{}' registered for deployment", row.name))?;
    output.information(&format!("Target regions: {}", row.target_regions.join(", ")))?;
    output.information(&format!("Ingress path: {}", row.ingress_path.as_deref().unwrap_or("-")))?;
    if let Some(known) = known.filter(|_| !draft.regions.is_empty()) {
        let left: Vec<&str> =
            known.regions.iter().filter(|region| !row.is_target(region)).map(String::as_str).collect();
        if !left.is_empty() {
            output.warning(&format!("Deployed regions that are not targeted: {}", left.join(", ")))?;
        }
    }
    Ok(())
}

async fn warn_of_silent_regions(
    row: &EndpointRow,
    connection: &Connection,
    output: &mut Output<'_, '_>,
) -> Result<(), Failure> {
    // The endpoint is created; that the heartbeats cannot be read is no reason to say that it failed.
    let Ok(items) = regions::items_of(&connection.table, &row.target_regions).await else { return Ok(()) };
    let silent = |region: &&String| items.get(*region).is_none_or(|item| item.heartbeat.is_none());
    let silent: Vec<&str> = row.target_regions.iter().filter(silent).map(String::as_str).collect();
    if !silent.is_empty() {
        output.warning(&format!(
            "No heartbeat of a monitor so far from {} (monitors of the earlier control plane send none)",
            silent.join(", ")
        ))?;
    }
    Ok(())
}

async fn wait(
    row: EndpointRow,
    bound: Duration,
    interval: Duration,
    connection: &Connection,
    context: &mut Context<'_, '_, '_>,
) -> Result<(), Failure> {
    let following = Following {
        name: row.name.clone(),
        lifecycle_id: row.lifecycle_id.clone(),
        goal: Some(Goal::Running),
        bound: Some(bound),
        interval,
        with_heartbeats: false,
    };
    let mut last = row;
    let mut said: BTreeMap<String, String> = BTreeMap::new();
    let tell = |seen: &Seen, output: &mut Output<'_, '_>| {
        let Some(row) = &seen.row else { return Ok(()) };
        for region in &row.target_regions {
            let line = goal::region_line(region, row.region_status.get(region));
            if said.get(region) != Some(&line) {
                output.progress(&line)?;
                said.insert(region.clone(), line);
            }
        }
        last = row.clone();
        Ok(())
    };
    let waited = follow::follow(connection, following, &context.clock, context.output, tell).await;
    if waited.is_ok() {
        let regions = last.target_regions.join(", ");
        context.output.success(&format!("Endpoint '{}' serves in every region: {regions}", last.name))?;
    }
    if context.output.format() != Format::Table {
        print_row(&last, context.output)?;
    }
    waited
}
