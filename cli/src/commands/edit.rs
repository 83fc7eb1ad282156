//! The verbs that change one row: `scale`, `update-image`, `stop`, `start`, `delete`, `pause`, `resume`.
//!
//! The store reads, decides and writes, and tries again after a lost race while the edit still makes sense (D-15).

use gco_store::problem::bounded;
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::spec::Spec;
use gco_store::wire::{Item, Value, item_to_plain_json};

use crate::arguments::{ConfirmedFlags, NameFlags, ScaleFlags, UpdateImageFlags};
use crate::commands::Context;
use crate::failure::Failure;
use crate::flags;
use crate::output::{Format, Output};

/// Sets the replica count.
///
/// # Errors
/// A bad count, or what the store refuses.
pub async fn scale(given: &ScaleFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let name = &given.endpoint_name;
    let mut problems = flags::endpoint_name(name);
    let replicas = flags::replicas("--replicas", &given.replicas).unwrap_or_else(|problem| {
        problems.push(problem);
        0
    });
    refuse(problems)?;
    let connection = context.connect().await?;
    let row = connection.store.scale(name, replicas).await.map_err(|error| connection.refused(error))?;
    let unit = if replicas == 1 { "replica" } else { "replicas" };
    context.output.success(&format!("Endpoint '{name}' scaled to {replicas} {unit} per region"))?;
    say_when_it_takes_effect(&row, context.output)?;
    print_row(&row, context.output)
}

/// Sets the image and drops the images by region.
///
/// # Errors
/// A bad image, or what the store refuses.
pub async fn update_image(given: &UpdateImageFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let name = &given.endpoint_name;
    let mut problems = flags::endpoint_name(name);
    if given.image.trim().is_empty() {
        problems.push(gco_store::problem::FieldProblem::new("--image", "Image must be a non-empty string"));
    } else if let Err(found) = Spec::check(&Value::Map(Item::from([("image".to_owned(), given.image.as_str().into())])))
    {
        problems.extend(found.iter().map(flags::named));
    }
    refuse(problems)?;
    let connection = context.connect().await?;
    let before = connection.read(name).await?;
    let row = connection.store.update_image(name, &given.image).await.map_err(|error| connection.refused(error))?;
    if row.updated_at == before.updated_at {
        context.output.information(&format!("Endpoint '{name}' has this image already; nothing was written"))?;
        return print_row(&row, context.output);
    }
    context.output.success(&format!("Image of endpoint '{name}' set to {}", bounded(&given.image, 300)))?;
    if before.spec.at(&["region_image_uris"]).and_then(Value::as_map).is_some_and(|images| !images.is_empty()) {
        context.output.warning("The images by region were dropped: every region pulls the image given here")?;
    }
    say_when_it_takes_effect(&row, context.output)?;
    print_row(&row, context.output)
}

/// Asks for no pods.
///
/// # Errors
/// No confirmation, or what the store refuses.
pub async fn stop(given: &ConfirmedFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let name = &given.endpoint_name;
    refuse(flags::endpoint_name(name))?;
    require_a_way_to_confirm(given.yes, context.output)?;
    let connection = context.connect().await?;
    let before = connection.read(name).await?;
    if before.desired_state != DesiredState::Deleted && before.desired_state != DesiredState::Stopped {
        let regions = regions_in_words(&before);
        confirm(given.yes, &format!("Stop endpoint '{name}' in {regions}? Its pods are removed."), context.output)?;
    }
    let row = connection.store.stop(name).await.map_err(|error| connection.refused(error))?;
    if row.updated_at == before.updated_at {
        context.output.information(&format!("Endpoint '{name}' is stopped already; nothing was written"))?;
        return print_row(&row, context.output);
    }
    context.output.success(&format!("Endpoint '{name}' marked for stop"))?;
    say_when_paused(&row, context.output)?;
    context.output.information(&format!("Its regions remove its pods; 'gco inference start {name}' brings it back"))?;
    print_row(&row, context.output)
}

/// Starts a stopped endpoint.
///
/// # Errors
/// What the store refuses.
pub async fn start(given: &NameFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let name = &given.endpoint_name;
    refuse(flags::endpoint_name(name))?;
    let connection = context.connect().await?;
    let row = connection.store.start(name).await.map_err(|error| connection.refused(error))?;
    context.output.success(&format!("Endpoint '{name}' marked for start"))?;
    say_when_paused(&row, context.output)?;
    context.output.information(&format!("Follow it with 'gco inference status {name} --watch'"))?;
    print_row(&row, context.output)
}

/// Pauses an endpoint, or ends that.
///
/// # Errors
/// What the store refuses.
pub async fn set_paused(given: &NameFlags, paused: bool, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let name = &given.endpoint_name;
    refuse(flags::endpoint_name(name))?;
    let connection = context.connect().await?;
    let before = connection.read(name).await?;
    let row = connection.store.set_paused(name, paused).await.map_err(|error| connection.refused(error))?;
    let word = if paused { "paused" } else { "resumed" };
    if row.updated_at == before.updated_at {
        let already = if paused { "is paused" } else { "is not paused" };
        context.output.information(&format!("Endpoint '{name}' {already} already; nothing was written"))?;
        return print_row(&row, context.output);
    }
    context.output.success(&format!("Endpoint '{name}' {word}"))?;
    if paused {
        say_when_paused(&row, context.output)?;
    } else {
        context.output.information("The region monitors act on it again")?;
    }
    print_row(&row, context.output)
}

pub(crate) fn refuse(problems: Vec<gco_store::problem::FieldProblem>) -> Result<(), Failure> {
    if problems.is_empty() { Ok(()) } else { Err(Failure::Usage(problems)) }
}

/// Refuses before anything is read when nobody could be asked.
pub(crate) fn require_a_way_to_confirm(yes: bool, output: &Output<'_, '_>) -> Result<(), Failure> {
    if yes || output.can_ask() {
        return Ok(());
    }
    Err(Failure::usage("--yes", "is needed: standard input is no terminal, so nobody can be asked"))
}

pub(crate) fn confirm(yes: bool, question: &str, output: &mut Output<'_, '_>) -> Result<(), Failure> {
    if yes || output.ask(question)? {
        return Ok(());
    }
    Err(Failure::refused("Nothing was changed: the answer was not yes"))
}

pub(crate) fn regions_in_words(row: &EndpointRow) -> String {
    crate::describe::regions_in_words(&row.target_regions)
}

pub(crate) fn say_when_it_takes_effect(row: &EndpointRow, output: &mut Output<'_, '_>) -> Result<(), Failure> {
    if row.desired_state == DesiredState::Stopped {
        output.information(&format!(
            "It is stopped and stays so; the change takes effect with 'gco inference start {}'",
            row.name
        ))?;
    }
    say_when_paused(row, output)
}

pub(crate) fn say_when_paused(row: &EndpointRow, output: &mut Output<'_, '_>) -> Result<(), Failure> {
    if row.paused {
        output.information(&format!(
            "While it is paused the region monitors observe and report, but change nothing; 'gco inference resume {}' ends that",
            row.name
        ))?;
    }
    Ok(())
}

/// The row as it is now, for programs.
pub(crate) fn print_row(row: &EndpointRow, output: &mut Output<'_, '_>) -> Result<(), Failure> {
    match output.format() {
        Format::Table => Ok(()),
        Format::Json | Format::Yaml => Ok(output.document(&item_to_plain_json(&row.item))?),
    }
}
