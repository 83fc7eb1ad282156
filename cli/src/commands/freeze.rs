//! `gco inference freeze` and `unfreeze`: a region whose monitor observes and reports, but changes nothing.

use gco_store::table::ErrorCategory;

use super::edit::refuse;
use crate::arguments::RegionFlags;
use crate::commands::Context;
use crate::failure::Failure;
use crate::flags;
use crate::output::Format;

/// Freezes a region, or ends that.
///
/// # Errors
/// A bad region name, or a second table that is missing or does not answer.
pub async fn execute(given: &RegionFlags, frozen: bool, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let region = &given.region;
    let mut problems = Vec::new();
    flags::regions("REGION", std::slice::from_ref(region), &mut problems);
    refuse(problems)?;
    let connection = context.connect().await?;
    let before = connection.table.read_region(region).await.map_err(|error| match error.category {
        ErrorCategory::Table => Failure::refused(format!(
            "{}: there is no regions' table, which holds the freeze switch; 'gco inference setup --apply' makes it",
            connection.described
        )),
        _ => connection.failed(&error),
    })?;
    if before.as_ref().is_none_or(|item| item.heartbeat.is_none()) {
        let message = format!("No monitor of a region '{region}' has ever reported to this table; check the name");
        context.output.warning(&message)?;
    }
    if before.as_ref().is_some_and(|item| item.frozen) == frozen {
        let already = if frozen { "is frozen" } else { "is not frozen" };
        context.output.information(&format!("Region '{region}' {already} already; nothing was written"))?;
    } else {
        connection.table.set_frozen(region, frozen).await.map_err(|error| connection.failed(&error))?;
        let word = if frozen { "frozen" } else { "not frozen any more" };
        context
            .output
            .success(&format!("Region '{region}' is {word}; its monitor hears of it with its next heartbeat"))?;
        if frozen {
            context.output.information(&format!(
                "Its pods go on serving; edits and deletions wait there. 'gco inference unfreeze {region}' ends that"
            ))?;
        }
    }
    match context.output.format() {
        Format::Table => Ok(()),
        Format::Json | Format::Yaml => {
            Ok(context.output.document(&serde_json::json!({"region": region, "frozen": frozen}))?)
        }
    }
}
