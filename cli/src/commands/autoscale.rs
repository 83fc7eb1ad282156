//! `gco inference autoscale`: who sets the replica count.

use gco_store::operations::StoreError;
use gco_store::problem::{FieldProblem, joined};
use gco_store::row::EndpointRow;
use gco_store::spec::{AutoscalingEdit, Spec};
use gco_store::transition::OperationError;
use gco_store::wire::Value;

use crate::arguments::AutoscaleFlags;
use crate::commands::Context;
use crate::commands::edit::{print_row, refuse, say_when_it_takes_effect};
use crate::describe::autoscaling_words;
use crate::failure::Failure;
use crate::flags;

/// Turns autoscaling on, changes it, or turns it off.
///
/// # Errors
/// Bad flags, or what the store refuses.
pub async fn execute(given: &AutoscaleFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let name = &given.endpoint_name;
    let mut problems = flags::endpoint_name(name);
    let edit = read(given, &mut problems);
    refuse(problems)?;
    let connection = context.connect().await?;
    let before = connection.read(name).await?;
    let row = connection.store.autoscale(name, &edit).await.map_err(|error| match error {
        // A bound that is bad only together with what the row has already.
        StoreError::Operation(OperationError::Invalid(found)) => {
            Failure::Refused(joined(&found.iter().map(flags::named).collect::<Vec<_>>()))
        }
        other => connection.refused(other),
    })?;
    if row.updated_at == before.updated_at {
        context
            .output
            .information(&format!("Endpoint '{name}' is so already ({}); nothing was written", words(&row)))?;
        return print_row(&row, context.output);
    }
    context.output.success(&format!("Replicas of endpoint '{name}' in each region: {}", words(&row)))?;
    say_when_it_takes_effect(&row, context.output)?;
    print_row(&row, context.output)
}

fn read(given: &AutoscaleFlags, problems: &mut Vec<FieldProblem>) -> AutoscalingEdit {
    let AutoscaleFlags { endpoint_name: _, min_replicas, max_replicas, metrics, off, replicas } = given;
    let mut count = |flag: &str, text: &Option<String>| {
        text.as_deref().and_then(|text| flags::replicas(flag, text).map_err(|problem| problems.push(problem)).ok())
    };
    let (least, most) = (count("--min-replicas", min_replicas), count("--max-replicas", max_replicas));
    let fixed = count("--replicas", replicas);
    let read_metrics = flags::metrics("--metric", metrics, problems);
    let is_given = [
        ("--min-replicas", min_replicas.is_some()),
        ("--max-replicas", max_replicas.is_some()),
        ("--metric", !metrics.is_empty()),
    ];
    let are_given: Vec<&str> = is_given.iter().filter(|(_, given)| *given).map(|(flag, _)| *flag).collect();
    if *off {
        for flag in are_given {
            problems.push(FieldProblem::new(flag, "cannot be used with --off"));
        }
        return AutoscalingEdit::Off { replicas: fixed };
    }
    if replicas.is_some() {
        problems.push(FieldProblem::new("--replicas", "needs --off: with an autoscaler the count is the autoscaler's"));
    }
    AutoscalingEdit::On {
        min_replicas: least,
        max_replicas: most,
        metrics: (!metrics.is_empty()).then_some(read_metrics),
    }
}

/// What the row asks for, in words.
fn words(row: &EndpointRow) -> String {
    let spec = Spec::check(&row.spec).ok().map(|checked| checked.spec);
    match spec.as_ref().and_then(Spec::autoscaled) {
        Some(autoscaling) => autoscaling_words(autoscaling),
        None => {
            let count = row.spec.at(&["replicas"]).and_then(Value::as_integer).unwrap_or(1);
            format!("{count}, fixed")
        }
    }
}
