//! `gco inference explain`.

use gco_runtime::clock::Clock as _;

use super::edit::refuse;
use crate::arguments::NameFlags;
use crate::commands::Context;
use crate::describe::{self, RegionItems};
use crate::explain::explain;
use crate::failure::Failure;
use crate::flags;
use crate::output::Format;
use crate::regions;

/// Says in words what the regions report, and what to do next.
///
/// # Errors
/// An absent endpoint, or a table that cannot be read.
pub async fn execute(given: &NameFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    refuse(flags::endpoint_name(&given.endpoint_name))?;
    let connection = context.connect().await?;
    let row = connection.read(&given.endpoint_name).await?;
    let items = match regions::items_of(&connection.table, &describe::regions_of(&row)).await {
        Ok(items) => items,
        Err(error) => {
            context.output.warning(&format!("the regions' heartbeats cannot be read: {error}"))?;
            RegionItems::new()
        }
    };
    let explanation = explain(&row, &items, context.clock.wall());
    match context.output.format() {
        Format::Table => Ok(context.output.text(&explanation.text())?),
        Format::Json | Format::Yaml => Ok(context.output.document(&explanation.json())?),
    }
}
