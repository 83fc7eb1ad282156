//! `gco inference canary`, `promote` and `rollback`.

use gco_store::problem::{FieldProblem, bounded};
use gco_store::row::EndpointRow;
use gco_store::spec::{Canary, MOST_REPLICAS, Spec};
use gco_store::wire::{Item, Value};

use super::edit::{confirm, print_row, refuse, require_a_way_to_confirm, say_when_it_takes_effect};
use crate::arguments::{CanaryFlags, ConfirmedFlags};
use crate::commands::Context;
use crate::describe::canary_words;
use crate::failure::Failure;
use crate::flags;

/// Share of the requests in percent, when none is given (contract F.2).
const DEFAULT_WEIGHT: i64 = 10;
/// Replicas, when none are given (contract F.2).
const DEFAULT_REPLICAS: i64 = 1;
/// Longest image that a message repeats, in characters.
const IMAGE_CHARACTERS: usize = 300;

/// Gives the endpoint a canary, or changes the one that it has.
///
/// # Errors
/// Wrong flags, or what the store refuses.
pub async fn set(given: &CanaryFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let name = &given.endpoint_name;
    let canary = read(given)?;
    let connection = context.connect().await?;
    let before = connection.read(name).await?;
    let row = connection.store.set_canary(name, &canary).await.map_err(|error| connection.refused(error))?;
    let Canary { image, weight, replicas } = &canary;
    let image = bounded(image, IMAGE_CHARACTERS);
    if row.updated_at == before.updated_at {
        context.output.information(&format!("Endpoint '{name}' has this canary already; nothing was written"))?;
        return print_row(&row, context.output);
    }
    let unit = if *replicas == 1 { "replica" } else { "replicas" };
    context.output.success(&format!(
        "Canary of endpoint '{name}': {weight} % of the requests to {image}, {replicas} {unit} per region"
    ))?;
    context.output.information(&format!(
        "In each region it gets its share once all its pods are ready; then 'gco inference promote {name}' or 'gco inference rollback {name}'"
    ))?;
    say_when_it_takes_effect(&row, context.output)?;
    print_row(&row, context.output)
}

fn read(given: &CanaryFlags) -> Result<Canary, Failure> {
    let mut problems = flags::endpoint_name(&given.endpoint_name);
    let mut integer = |flag: &str, text: &Option<String>, default: i64| match text {
        None => Some(default),
        Some(text) => flags::integer(flag, text).map_err(|problem| problems.push(problem)).ok(),
    };
    let weight = integer("--weight", &given.weight, DEFAULT_WEIGHT);
    let replicas = integer("--replicas", &given.replicas, DEFAULT_REPLICAS);
    if let Some(weight) = weight.filter(|weight| !(1..=99).contains(weight)) {
        let message = format!("Canary weight must be an integer between 1 and 99, got {weight}");
        problems.push(FieldProblem::new("--weight", message));
    }
    if let Some(replicas) = replicas.filter(|replicas| !(1..=MOST_REPLICAS).contains(replicas)) {
        let message = format!("Canary replicas must be a positive integer of at most {MOST_REPLICAS}, got {replicas}");
        problems.push(FieldProblem::new("--replicas", message));
    }
    if given.image.trim().is_empty() {
        problems.push(FieldProblem::new("--image", "Canary image must be a non-empty string"));
    } else if let Err(found) = Spec::check(&Value::Map(Item::from([("image".to_owned(), given.image.as_str().into())])))
    {
        problems.extend(found.iter().map(flags::named));
    }
    refuse(problems)?;
    let count = |number: Option<i64>| number.and_then(|number| u32::try_from(number).ok()).unwrap_or(1);
    Ok(Canary { image: given.image.clone(), weight: count(weight), replicas: count(replicas) })
}

/// Makes the canary's image the endpoint's.
///
/// # Errors
/// No confirmation, or what the store refuses.
pub async fn promote(given: &ConfirmedFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let name = &given.endpoint_name;
    refuse(flags::endpoint_name(name))?;
    require_a_way_to_confirm(given.yes, context.output)?;
    let connection = context.connect().await?;
    let before = connection.read(name).await?;
    let seen = before.spec.at(&["canary", "image"]).and_then(Value::as_str).map(str::to_owned);
    if let Some(image) = &seen {
        for warning in doubts(&before) {
            context.output.warning(&warning)?;
        }
        let image = bounded(image, IMAGE_CHARACTERS);
        let question = format!("Promote {image} to all pods of endpoint '{name}'?");
        confirm(given.yes, &question, context.output)?;
    }
    let promoted = connection.store.promote_canary(name, seen.as_deref()).await;
    let row = promoted.map_err(|error| connection.refused(error))?;
    let image = bounded(seen.as_deref().unwrap_or_default(), IMAGE_CHARACTERS);
    context.output.success(&format!("Canary of endpoint '{name}' promoted: its image is {image}"))?;
    if before.spec.at(&["region_image_uris"]).and_then(Value::as_map).is_some_and(|images| !images.is_empty()) {
        context.output.warning("The images by region were dropped: every region pulls the promoted image")?;
    }
    let follow = format!("'gco inference status {name} --watch --until running'");
    context
        .output
        .information(&format!("Its regions replace their pods and then end the canary; follow it with {follow}"))?;
    say_when_it_takes_effect(&row, context.output)?;
    print_row(&row, context.output)
}

/// Regions whose canary does not serve: it was never tried there.
fn doubts(row: &EndpointRow) -> Vec<String> {
    let asked = row.spec.at(&["canary", "image"]);
    let doubt = |region: &String| {
        let told = row.region_status.get(region).and_then(|entry| entry.extra.get("canary"));
        let runs = told.is_some_and(|told| {
            told.at(&["state"]).and_then(Value::as_str) == Some("running") && told.at(&["image"]) == asked
        });
        let words = told.map_or_else(|| "nothing is known of it".to_owned(), canary_words);
        (!runs).then(|| format!("{}: the canary does not serve there ({words})", bounded(region, 63)))
    };
    row.target_regions.iter().filter_map(doubt).collect()
}

/// Ends the canary.
///
/// # Errors
/// No confirmation, or what the store refuses.
pub async fn roll_back(given: &ConfirmedFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let name = &given.endpoint_name;
    refuse(flags::endpoint_name(name))?;
    require_a_way_to_confirm(given.yes, context.output)?;
    let connection = context.connect().await?;
    let before = connection.read(name).await?;
    if let Some(image) = before.spec.at(&["canary", "image"]).and_then(Value::as_str) {
        let image = bounded(image, IMAGE_CHARACTERS);
        confirm(given.yes, &format!("End the canary {image} of endpoint '{name}'?"), context.output)?;
    }
    let row = connection.store.roll_back_canary(name).await.map_err(|error| connection.refused(error))?;
    context.output.success(&format!("Canary of endpoint '{name}' rolled back"))?;
    context.output.information("All requests go to the endpoint itself again; the canary's pods are removed")?;
    say_when_it_takes_effect(&row, context.output)?;
    print_row(&row, context.output)
}
