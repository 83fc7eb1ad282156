//! `gco inference regions add` and `regions remove`.

use gco_store::row::{DesiredState, EndpointRow};

use super::edit::{confirm, print_row, refuse, require_a_way_to_confirm, say_when_paused};
use crate::arguments::{ConfirmedRegionFlags, EndpointRegionFlags};
use crate::commands::Context;
use crate::describe;
use crate::failure::Failure;
use crate::{flags, regions};

/// Adds a region.
///
/// # Errors
/// A bad region, or what the store refuses.
pub async fn add(given: &EndpointRegionFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let EndpointRegionFlags { endpoint_name: name, region } = given;
    check(name, region)?;
    let connection = context.connect().await?;
    let before = connection.read(name).await?;
    let row = connection.store.add_region(name, region).await.map_err(|error| connection.refused(error))?;
    if row.updated_at == before.updated_at {
        context.output.information(&format!("Endpoint '{name}' targets {region} already; nothing was written"))?;
        return print_row(&row, context.output);
    }
    context.output.success(&format!("Endpoint '{name}' will be served in {region} too"))?;
    // That the heartbeats cannot be read is no reason to say that it failed.
    let items = regions::items_of(&connection.table, std::slice::from_ref(region)).await.unwrap_or_default();
    if items.get(region).is_none_or(|item| item.heartbeat.is_none()) {
        context.output.warning(&format!(
            "No heartbeat of a monitor so far from {region} (monitors of the earlier control plane send none)"
        ))?;
    }
    say_what_follows(&row, context)?;
    print_row(&row, context.output)
}

/// Removes a region.
///
/// # Errors
/// No confirmation, a bad region, or what the store refuses.
pub async fn remove(given: &ConfirmedRegionFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let ConfirmedRegionFlags { endpoint_name: name, region, yes } = given;
    check(name, region)?;
    require_a_way_to_confirm(*yes, context.output)?;
    let connection = context.connect().await?;
    let before = connection.read(name).await?;
    if before.desired_state != DesiredState::Deleted && before.is_target(region) && before.target_regions.len() > 1 {
        let left = describe::regions_in_words(before.target_regions.iter().filter(|target| *target != region));
        let question = format!("Remove endpoint '{name}' from {region}? It goes on in {left}.");
        confirm(*yes, &question, context.output)?;
    }
    let row = connection.store.remove_region(name, region).await.map_err(|error| connection.refused(error))?;
    if row.updated_at == before.updated_at {
        context.output.information(&format!("Endpoint '{name}' does not target {region}; nothing was written"))?;
        return print_row(&row, context.output);
    }
    context.output.success(&format!("Endpoint '{name}' will be removed from {region}"))?;
    say_what_follows(&row, context)?;
    print_row(&row, context.output)
}

fn check(name: &str, region: &str) -> Result<(), Failure> {
    let mut problems = flags::endpoint_name(name);
    flags::regions("REGION", std::slice::from_ref(&region.to_owned()), &mut problems);
    refuse(problems)
}

fn say_what_follows(row: &EndpointRow, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    say_when_paused(row, context.output)?;
    context.output.information(&format!("Follow it with 'gco inference status {} --watch'", row.name))?;
    Ok(())
}
