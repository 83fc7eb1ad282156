//! `gco inference delete`, and an operator's word that a region of it is gone for good.

use gco_runtime::clock::Clock as _;
use gco_store::problem::{FieldProblem, bounded};
use gco_store::row::{DesiredState, EndpointRow, Quorum};
use gco_store::time;
use gco_store::transition::{Declaration, LONGEST_OPERATOR_CHARACTERS, LONGEST_REASON_CHARACTERS};

use super::edit::{confirm, print_row, refuse, regions_in_words, require_a_way_to_confirm, say_when_paused};
use crate::arguments::DeleteFlags;
use crate::commands::Context;
use crate::connect::Connection;
use crate::describe::STALE_HEARTBEAT_SECONDS;
use crate::failure::Failure;
use crate::{age, describe, flags, regions};

/// Environment variable with the operator's name.
const OPERATOR_VARIABLE: &str = "GCO_OPERATOR";
/// Where the operator's name comes from otherwise.
const USER_VARIABLE: &str = "USER";

/// Asks for removal everywhere.
///
/// # Errors
/// No confirmation, or what the store refuses.
pub async fn execute(given: &DeleteFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let name = &given.endpoint_name;
    let forced = read_forced(given, context)?;
    require_a_way_to_confirm(given.yes, context.output)?;
    let connection = context.connect().await?;
    let before = connection.read(name).await?;
    if before.desired_state != DesiredState::Deleted && before.paused {
        // Somebody asked that nothing be changed; a deletion would end that, and cannot be undone.
        return Err(Failure::refused(format!(
            "Endpoint '{name}' is paused, so nothing of it is changed; run 'gco inference resume {name}' first"
        )));
    }
    if let Some(forced) = &forced {
        refuse_the_living(forced, &before, &connection, context).await?;
    }
    if before.desired_state != DesiredState::Deleted {
        let regions = regions_in_words(&before);
        confirm(given.yes, &format!("Delete endpoint '{name}' in {regions}? This cannot be undone."), context.output)?;
    }
    if let Some(forced) = &forced {
        let regions = describe::regions_in_words(&forced.regions);
        let question = format!("Declare {regions} gone for good? Whatever runs there of '{name}' is not removed.");
        confirm(given.yes, &question, context.output)?;
    }
    let row = connection.store.delete(name, None).await.map_err(|error| connection.refused(error))?;
    if row.updated_at != before.updated_at {
        context.output.success(&format!("Endpoint '{name}' marked for deletion"))?;
        say_when_paused(&row, context.output)?;
    } else if forced.is_none() {
        context.output.information(&format!("Endpoint '{name}' is being deleted already; nothing was written"))?;
        return print_row(&row, context.output);
    }
    let row = match &forced {
        Some(forced) => declare(forced, row, &connection, context).await?,
        None => Some(row),
    };
    let Some(row) = row else { return Ok(()) };
    let follow = format!("'gco inference status {name} --watch --until deleted'");
    context.output.information(&format!("Its regions remove it; follow them with {follow}"))?;
    print_row(&row, context.output)
}

/// Regions that are declared gone, and the operator's word.
struct Forced {
    regions: Vec<String>,
    declaration: Declaration,
}

fn read_forced(given: &DeleteFlags, context: &Context<'_, '_, '_>) -> Result<Option<Forced>, Failure> {
    let mut problems = flags::endpoint_name(&given.endpoint_name);
    let regions = flags::regions("--force-region-absent", &given.force_region_absent, &mut problems);
    if given.force_region_absent.is_empty() {
        for (flag, value) in [("--reason", &given.reason), ("--by", &given.by)] {
            if value.is_some() {
                problems.push(FieldProblem::new(flag, "needs --force-region-absent"));
            }
        }
        refuse(problems)?;
        return Ok(None);
    }
    let by = given.by.as_deref();
    let by = by.or_else(|| context.environment.non_empty(OPERATOR_VARIABLE));
    let by = by.or_else(|| context.environment.non_empty(USER_VARIABLE)).unwrap_or_default();
    let reason = given.reason.as_deref().unwrap_or_default();
    let bad = |text: &str, most: usize| {
        text.trim().is_empty() || text.chars().count() > most || text.chars().any(char::is_control)
    };
    if bad(reason, LONGEST_REASON_CHARACTERS) {
        let message = format!(
            "is needed: how you know that the region is gone, in at most {LONGEST_REASON_CHARACTERS} characters without control characters"
        );
        problems.push(FieldProblem::new("--reason", message));
    }
    if bad(by, LONGEST_OPERATOR_CHARACTERS) {
        let message = format!(
            "is needed: your name, in at most {LONGEST_OPERATOR_CHARACTERS} characters without control characters"
        );
        problems.push(FieldProblem::new("--by", message));
    }
    refuse(problems)?;
    Ok(Some(Forced { regions, declaration: Declaration { by: by.to_owned(), reason: reason.to_owned() } }))
}

/// A region whose monitor lives is not gone: it confirms by itself, or says what is in its way.
async fn refuse_the_living(
    forced: &Forced,
    row: &EndpointRow,
    connection: &Connection,
    context: &Context<'_, '_, '_>,
) -> Result<(), Failure> {
    let items = regions::items_of(&connection.table, &forced.regions).await;
    let items = items.map_err(|error| connection.failed(&error))?;
    let now = context.clock.wall();
    for region in &forced.regions {
        let last = items.get(region).and_then(|item| item.heartbeat.as_ref());
        let last = last.and_then(|heartbeat| time::parse(&heartbeat.last_heartbeat));
        let Some(seconds) = last.map(|last| age::seconds_between(last, now)) else { continue };
        if seconds <= STALE_HEARTBEAT_SECONDS && !row.acknowledged(region) {
            return Err(Failure::refused(format!(
                "{region} is not gone: its monitor's last heartbeat is {} old. What keeps it from confirming is in 'gco inference status {}'; nothing was changed",
                age::of_seconds(seconds),
                row.name
            )));
        }
    }
    Ok(())
}

/// Writes the declarations; the row as it is then, or `None` when it is gone.
async fn declare(
    forced: &Forced,
    row: EndpointRow,
    connection: &Connection,
    context: &mut Context<'_, '_, '_>,
) -> Result<Option<EndpointRow>, Failure> {
    let Forced { regions, declaration } = forced;
    let name = row.name.clone();
    let mut row = row;
    for region in regions {
        let before = row.updated_at.clone();
        let declared = connection.store.declare_absent(&name, region, declaration).await;
        row = declared.map_err(|error| connection.refused(error))?;
        if row.updated_at == before {
            let word = if row.declared_absent(region) { "was declared gone" } else { "has confirmed" };
            context.output.information(&format!("{region} {word} already; nothing was written"))?;
        } else {
            let (by, reason) = (bounded(&declaration.by, 80), bounded(&declaration.reason, 300));
            context.output.success(&format!("{region} declared gone for good by {by}: {reason}"))?;
        }
    }
    context.output.warning(&format!(
        "Whatever of '{name}' is left in {} is not removed by this, and goes on running and costing if that cluster comes back. 'gco inference orphans' lists it then; to remove it there: kubectl -n gco-inference delete deployment,service,hpa -l 'project=gco,gco.io/type=inference,app in ({name},{name}-canary)'",
        describe::regions_in_words(regions)
    ))?;
    // A monitor of any region does this too; here it is done for a fleet that has none left.
    if row.quorum() == Quorum::Stands
        && connection.store.purge(&row).await.map_err(|error| connection.refused(error))?
    {
        context.output.success(&format!("Endpoint '{name}' is gone; the name is free"))?;
        return Ok(None);
    }
    Ok(Some(row))
}
