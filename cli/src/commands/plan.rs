//! `gco inference plan`: what the region's monitor would change now, and why. Reads table and cluster, changes neither.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use gco_monitor::cluster::ClusterReader;
use gco_monitor::control::preview::{Preview, PreviewInput, preview};
use gco_monitor::intent::RegionContext;
use gco_store::problem::{FieldProblem, bounded};
use gco_store::row::EndpointRow;
use gco_store::table::{Consistency, ErrorCategory};
use gco_store::transition::NAMESPACE;
use serde_json::json;

use super::edit::refuse;
use crate::arguments::PlanFlags;
use crate::commands::Context;
use crate::connect::Selection;
use crate::failure::Failure;
use crate::flags;
use crate::output::{Format, columns};

/// How long reading one cluster may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A region and how its cluster is reached.
struct Place {
    region: String,
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
}

/// Shows what would be done.
///
/// # Errors
/// Wrong flags, an absent endpoint, or a table or cluster that cannot be read.
pub async fn execute(given: &PlanFlags, context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let mut problems = Vec::new();
    match (&given.endpoint_name, given.all) {
        (Some(name), false) => problems.extend(flags::endpoint_name(name)),
        (None, true) => {}
        (Some(_), true) => problems.push(FieldProblem::new("--all", "cannot be used with a name")),
        (None, false) => problems.push(FieldProblem::new("ENDPOINT_NAME", "is needed, or --all")),
    }
    let regions = flags::regions("--region", given.region.as_slice(), &mut problems);
    refuse(problems)?;
    let selection = context.selection()?;
    let places = places(given, regions.into_iter().next(), &selection)?;
    let connection = selection.open().await?;
    let read = connection.table.read_all(Consistency::Strong).await.map_err(|error| connection.failed(&error))?;
    let rows: Vec<EndpointRow> = read.items.into_iter().filter_map(|item| EndpointRow::parse(item).ok()).collect();
    if let Some(name) = given.endpoint_name.as_ref().filter(|name| !rows.iter().any(|row| row.name == **name)) {
        return Err(connection.refused(gco_store::operations::StoreError::NotFound(name.clone())));
    }
    let names: BTreeSet<String> = rows.iter().map(|row| row.name.clone()).collect();
    let lifecycles: BTreeSet<String> = rows.iter().filter_map(|row| row.lifecycle_id.clone()).collect();
    let namespace = context.environment.non_empty("INFERENCE_NAMESPACE").unwrap_or(NAMESPACE).to_owned();
    let mut plans: Vec<(String, String, Preview)> = Vec::new();
    for place in places {
        let frozen = match connection.table.read_region(&place.region).await {
            Ok(item) => item.is_some_and(|item| item.frozen),
            Err(error) if error.category == ErrorCategory::Table => false,
            Err(error) => return Err(connection.failed(&error)),
        };
        let cluster = ClusterReader::open(place.kubeconfig.as_deref(), place.context.as_deref(), &namespace, PATIENCE);
        let cluster = cluster.await.map_err(|error| {
            Failure::refused(format!("the cluster of {}: {}", place.region, bounded(&format!("{error:#}"), 600)))
        })?;
        let wanted = |row: &&EndpointRow| given.endpoint_name.as_ref().is_none_or(|name| row.name == *name);
        for row in rows.iter().filter(wanted) {
            let observed = cluster.observe(&row.name);
            let region = RegionContext { region: &place.region, namespace: &namespace, other_names: &names, frozen };
            let input = PreviewInput {
                row,
                context: region,
                cluster_name: &given.cluster_name,
                known_lifecycles: &lifecycles,
                observed: &observed,
            };
            let plan = preview(&input);
            // A row that never concerned the region is not worth a line of `--all`.
            if plan.asked != "ignore" || given.endpoint_name.is_some() {
                plans.push((place.region.clone(), row.name.clone(), plan));
            }
        }
    }
    print(&plans, context)
}

/// The region that was asked for; of a local instance every region.
fn places(given: &PlanFlags, region: Option<String>, selection: &Selection) -> Result<Vec<Place>, Failure> {
    let by_hand = given.kubeconfig.is_some() || given.context.is_some();
    if let Some(instance) = selection.local.as_ref().filter(|_| !by_hand) {
        let regions: Vec<String> = match region {
            Some(region) => vec![region],
            None => instance.regions.clone(),
        };
        let place = |region: String| {
            let kubeconfig = instance.kubeconfigs.get(&region).cloned();
            let missing =
                || Failure::usage("--region", format!("the local instance has no region '{}'", bounded(&region, 60)));
            let kubeconfig = kubeconfig.ok_or_else(missing)?;
            Ok(Place { region, kubeconfig: Some(kubeconfig), context: None })
        };
        return regions.into_iter().map(place).collect();
    }
    let Some(region) = region else {
        let message = "is needed: which region's cluster the kubeconfig leads to, as the rows name it";
        return Err(Failure::usage("--region", message));
    };
    Ok(vec![Place { region, kubeconfig: given.kubeconfig.as_ref().map(PathBuf::from), context: given.context.clone() }])
}

fn print(plans: &[(String, String, Preview)], context: &mut Context<'_, '_, '_>) -> Result<(), Failure> {
    let changes: usize = plans.iter().map(|(_, _, plan)| plan.steps.len()).sum();
    let restarting = plans.iter().filter(|(_, _, plan)| plan.steps.iter().any(|step| step.restarts)).count();
    match context.output.format() {
        Format::Table => {
            let mut text = String::new();
            for (region, name, plan) in plans {
                text.push_str(&of_one(region, name, plan));
            }
            text.push_str(&format!(
                "{} endpoints looked at, {changes} changes, {restarting} of them would restart pods\n",
                plans.len()
            ));
            Ok(context.output.text(&text)?)
        }
        Format::Json | Format::Yaml => {
            let plans: Vec<_> = plans
                .iter()
                .map(|(region, name, plan)| {
                    let steps: Vec<_> = plan
                        .steps
                        .iter()
                        .map(|step| {
                            json!({
                                "verb": step.verb, "object": step.object, "reason": step.reason,
                                "restarts": step.restarts, "scales_down": step.scales_down,
                            })
                        })
                        .collect();
                    json!({
                        "region": region, "name": name, "asked": plan.asked, "paused": plan.paused,
                        "problems": plan.problems, "steps": steps, "left_alone": plan.obstacles,
                        "first_marks": plan.first_marks,
                    })
                })
                .collect();
            let document = json!({"plans": plans, "changes": changes, "endpoints_restarting": restarting});
            Ok(context.output.document(&document)?)
        }
    }
}

fn of_one(region: &str, name: &str, plan: &Preview) -> String {
    let paused = if plan.paused { " (paused: nothing of this is done)" } else { "" };
    let mut text = format!("{} in {}: {}{paused}\n", bounded(name, 100), bounded(region, 60), plan.asked);
    for problem in &plan.problems {
        text.push_str(&format!("  ! {}\n", bounded(problem, 300)));
    }
    for step in &plan.steps {
        let mut marks = String::new();
        if step.restarts {
            marks.push_str(" [RESTARTS PODS]");
        }
        if step.scales_down {
            marks.push_str(" [SCALES DOWN]");
        }
        let line = columns(&[(step.verb, 13), (&step.object, 0)]);
        text.push_str(&format!("  {line}: {}{marks}\n", bounded(&step.reason, 400)));
    }
    for obstacle in &plan.obstacles {
        text.push_str(&format!("  left alone   {}\n", bounded(obstacle, 300)));
    }
    if plan.first_marks > 0 {
        text.push_str(&format!(
            "  takes over   {} objects that bear no mark of this monitor yet (metadata only, restarts nothing)\n",
            plan.first_marks
        ));
    }
    if plan.steps.is_empty() && plan.problems.is_empty() {
        text.push_str("  nothing to change\n");
    }
    text
}
