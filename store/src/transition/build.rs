//! The operations: each is built from the row as read, the time and fresh tokens.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::previous;
use super::{
    Change, Condition, CreateRequest, NAMESPACE, Operation, OperationError, Path, StatusAuthority, Transition, Write,
};
use crate::name;
use crate::problem::{FieldProblem, QUOTED_VALUE_CHARACTERS, bounded};
use crate::row::{DesiredState, EndpointRow, Quorum};
use crate::spec::{MOST_REPLICAS, Spec};
use crate::status::RegionEntry;
use crate::time;
use crate::wire::{Item, LARGEST_ITEM_BYTES, Value};

/// Most bytes of a spec: half a row, so that the statuses of many regions always find room beside it.
const LARGEST_SPEC_BYTES: usize = LARGEST_ITEM_BYTES / 2;
/// Most labels of a row.
const MOST_LABELS: usize = 50;
/// Longest label name or value, and longest `created_by`, in characters.
pub(super) const LONGEST_LABEL: usize = 256;
/// Fields that change nothing and may nevertheless be asked for: the original's command line writes them, and the
/// presence of `model_path` counts.
const HARMLESS_WITHOUT_EFFECT: [&str; 2] = ["spec.gpu_type", "spec.model_path"];

/// B.1. `token` is called once for the lifecycle and once per region.
///
/// # Errors
/// Every bad field of the request at once.
pub fn create(
    request: &CreateRequest,
    now: Timestamp,
    token: &mut dyn FnMut() -> String,
) -> Result<Transition, OperationError> {
    let CreateRequest { name, spec, target_regions, namespace, labels, created_by } = request;
    let mut problems = Vec::new();
    problems.extend(name::check_new(name).err());
    problems.extend(check_spec(spec, None));
    if namespace != NAMESPACE {
        let shown = bounded(namespace, QUOTED_VALUE_CHARACTERS);
        let message = format!("must be {NAMESPACE}: endpoints are served in no other namespace, got \"{shown}\"");
        problems.push(FieldProblem::new("namespace", message));
    }
    let regions = distinct(target_regions);
    problems.extend(check_regions(&regions));
    problems.extend(check_labels(labels));
    if created_by.as_ref().is_some_and(|creator| !is_short_text(creator)) {
        let message = format!("must be at most {LONGEST_LABEL} characters without control characters");
        problems.push(FieldProblem::new("created_by", message));
    }
    if !problems.is_empty() {
        return Err(OperationError::Invalid(problems));
    }
    let version = time::format(now);
    let lifecycle = token();
    let generations: Item = regions.iter().map(|region| (region.clone(), Value::from(token()))).collect();
    let mut item = Item::from([
        ("endpoint_name".to_owned(), Value::from(name.as_str())),
        ("lifecycle_id".to_owned(), Value::from(lifecycle)),
        ("desired_state".to_owned(), Value::from(DesiredState::Deploying.as_str())),
        ("target_regions".to_owned(), texts(&regions)),
        ("cleanup_regions".to_owned(), texts(&regions)),
        ("region_generations".to_owned(), Value::Map(generations)),
        ("namespace".to_owned(), Value::from(namespace.as_str())),
        ("spec".to_owned(), spec.clone()),
        ("ingress_path".to_owned(), Value::from(format!("/inference/{name}"))),
        ("created_at".to_owned(), Value::from(version.as_str())),
        ("updated_at".to_owned(), Value::from(version.as_str())),
        ("region_status".to_owned(), Value::Map(Item::new())),
    ]);
    if !labels.is_empty() {
        let labels = labels.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
        item.insert("labels".to_owned(), Value::Map(labels.collect()));
    }
    if let Some(creator) = created_by.as_ref().filter(|creator| !creator.is_empty()) {
        item.insert("created_by".to_owned(), Value::from(creator.as_str()));
    }
    Ok(Transition {
        operation: Operation::Create,
        name: name.clone(),
        condition: Condition::Not(Box::new(Condition::Exists(Path::of(["endpoint_name"])))),
        write: Write::Put(item),
        base_updated_at: None,
        new_updated_at: Some(version),
    })
}

/// B.4: `None` when nothing is missing. Also gives a row the empty `region_status` map that status writes need.
///
/// # Errors
/// A row without `updated_at` has no version to build upon (D-50).
pub fn back_fill(
    row: &EndpointRow,
    now: Timestamp,
    token: &mut dyn FnMut() -> String,
) -> Result<Option<Transition>, OperationError> {
    let base = version_of(row)?;
    let recorded = row.cleanup_regions.iter().flatten().chain(&row.target_regions).chain(row.region_status.keys());
    let regions = distinct(recorded);
    let generations: Item = regions
        .iter()
        .map(|region| {
            (region.clone(), Value::from(row.region_generation(region).map_or_else(&mut *token, str::to_owned)))
        })
        .collect();
    let (regions, generations) = (texts(&regions), Value::Map(generations));
    let mut changes = Vec::new();
    for (attribute, value) in [("cleanup_regions", regions), ("region_generations", generations)] {
        if row.item.get(attribute) != Some(&value) {
            changes.push(Change::Set(Path::of([attribute]), value));
        }
    }
    if row.lifecycle_id.is_none() {
        let place = Path::of(["lifecycle_id"]);
        let minted = Value::from(token());
        // Something that is no identity stands there: only replacing it gives the row one. The version guards both.
        let change = if row.item.contains_key("lifecycle_id") { Change::Set } else { Change::SetIfAbsent };
        changes.push(change(place, minted));
    }
    if !row.item.contains_key("region_status") {
        changes.push(Change::SetIfAbsent(Path::of(["region_status"]), Value::Map(Item::new())));
    }
    if changes.is_empty() {
        return Ok(None);
    }
    let conditions = vec![unchanged_since(base)];
    Ok(Some(update(row, Operation::BackFill, conditions, changes, base, now)))
}

/// B.5 for `stopped` and `deleted` (and `deploying`); `label` is an ownership predicate.
///
/// # Errors
/// The contract's words for a missing lifecycle, an empty label …
pub fn set_desired_state(
    row: &EndpointRow,
    target: DesiredState,
    label: Option<(&str, &str)>,
    now: Timestamp,
    token: &mut dyn FnMut() -> String,
) -> Result<Transition, OperationError> {
    let deleting = target == DesiredState::Deleted;
    match &target {
        DesiredState::Deleted | DesiredState::Stopped | DesiredState::Deploying => {}
        // Start and promotion have predicates of their own; without them a stopped endpoint would come back unasked.
        other => {
            let message = format!("Endpoint '{}' cannot be set to '{}' directly", row.name, other.as_str());
            return Err(OperationError::State(message));
        }
    }
    let lifecycle = match &row.lifecycle_id {
        Some(lifecycle) => lifecycle,
        None if deleting => return Err(no_identity(row)),
        None => return Err(state("Ordinary state updates require an expected lifecycle id")),
    };
    let base = version_of(row)?;
    let mut conditions = vec![lifecycle_is(lifecycle), moves_forward(base, now)];
    if let Some((name, value)) = label {
        if name.is_empty() || value.is_empty() {
            return Err(state("Expected endpoint label name and value must be non-empty"));
        }
        conditions.push(Condition::Equals(Path::of(["labels", name]), Value::from(value)));
    }
    let mut changes = vec![Change::Set(Path::of(["desired_state"]), Value::from(target.as_str()))];
    if deleting {
        // The copy below fails on the server when there is nothing to copy, so back-filling comes first.
        if row.cleanup_regions.is_none() {
            return Err(no_identity(row));
        }
        changes.push(Change::SetIfAbsent(Path::of(["deletion_generation"]), Value::from(token())));
        changes.push(Change::CopyIfAbsent { to: Path::of(["deletion_regions"]), from: Path::of(["cleanup_regions"]) });
    } else {
        refuse_deleted(row, target.as_str())?;
        conditions.push(live());
    }
    Ok(update(row, Operation::SetDesiredState, conditions, changes, base, now))
}

/// Promotion `deploying` → `running` by any region: lifecycle, still `deploying`, `updated_at` as read (D-1).
///
/// # Errors
/// A row without lifecycle or version, or one that is not `deploying`.
pub fn promote(row: &EndpointRow, now: Timestamp) -> Result<Transition, OperationError> {
    let lifecycle = row.lifecycle_id.as_ref().ok_or_else(|| no_identity(row))?;
    let base = version_of(row)?;
    if row.desired_state != DesiredState::Deploying {
        return Err(state(format!("Endpoint '{}' is in '{}' state", row.name, row.desired_state.as_str())));
    }
    let place = Path::of(["desired_state"]);
    // An absent desired state reads as deploying; NULL does too.
    let still_deploying = match row.item.get("desired_state") {
        Some(value) => Condition::Equals(place, value.clone()),
        None => not(Condition::Exists(place)),
    };
    let conditions = vec![lifecycle_is(lifecycle), still_deploying, unchanged_since(base)];
    let changes = vec![Change::Set(Path::of(["desired_state"]), Value::from(DesiredState::Running.as_str()))];
    Ok(update(row, Operation::Promote, conditions, changes, base, now))
}

/// B.6.
///
/// # Errors
/// The contract's words for a row that is not stopped.
pub fn start(row: &EndpointRow, now: Timestamp) -> Result<Transition, OperationError> {
    let lifecycle = row.lifecycle_id.as_ref().ok_or_else(|| no_identity(row))?;
    let name = &row.name;
    match &row.desired_state {
        DesiredState::Stopped => {}
        DesiredState::Deleted => {
            let advice = "wait for purge and redeploy it with 'gco inference deploy'.";
            return Err(state(format!("Endpoint '{name}' is deleted; {advice}")));
        }
        other => {
            let word = bounded(other.as_str(), QUOTED_VALUE_CHARACTERS);
            return Err(state(format!(
                "Endpoint '{name}' is in '{word}' state; only stopped endpoints can be started."
            )));
        }
    }
    let base = version_of(row)?;
    let stopped = Condition::Equals(Path::of(["desired_state"]), Value::from(DesiredState::Stopped.as_str()));
    let conditions = vec![lifecycle_is(lifecycle), stopped, moves_forward(base, now)];
    let changes = vec![Change::Set(Path::of(["desired_state"]), Value::from(DesiredState::Running.as_str()))];
    Ok(update(row, Operation::Start, conditions, changes, base, now))
}

/// B.7 with I.5: replaces the spec under the row's `updated_at` and keeps the desired state (D-4, D-33).
///
/// # Errors
/// Every bad field at once; or the row's state.
pub fn update_spec(row: &EndpointRow, spec: Value, now: Timestamp) -> Result<Transition, OperationError> {
    let Some(lifecycle) = &row.lifecycle_id else {
        return Err(state("Spec updates require an expected lifecycle id"));
    };
    refuse_deleted(row, "updated")?;
    let base = version_of(row)?;
    let problems = check_spec(&spec, Some(&row.spec));
    if !problems.is_empty() {
        return Err(OperationError::Invalid(problems));
    }
    let conditions = vec![lifecycle_is(lifecycle), live(), unchanged_since(base)];
    let mut changes = vec![Change::Set(Path::of(["spec"]), spec.clone())];
    // Ours: what `undo` brings back. The condition on the version makes it exactly the spec that is replaced.
    changes.extend(previous::change(row, &spec, now));
    Ok(update(row, Operation::UpdateSpec, conditions, changes, base, now))
}

/// B.8.
///
/// # Errors
/// A bad count; or the row's state.
pub fn scale(row: &EndpointRow, replicas: i64, now: Timestamp) -> Result<Transition, OperationError> {
    let Some(lifecycle) = &row.lifecycle_id else { return Err(state("Scaling requires an expected lifecycle id")) };
    let name = &row.name;
    refuse_deleted(row, "scaled")?;
    if !(1..=MOST_REPLICAS).contains(&replicas) {
        let hint = if replicas == 0 { " (to run no pods, stop the endpoint: gco inference stop)" } else { "" };
        let message = format!("must be an integer from 1 to {MOST_REPLICAS}, got {replicas}{hint}");
        return Err(OperationError::Invalid(vec![FieldProblem::new("spec.replicas", message)]));
    }
    let base = version_of(row)?;
    if row.spec.as_map().is_none() {
        return Err(state(format!("Endpoint '{name}' has an invalid spec")));
    }
    if row.spec.at(&["mooncake"]).is_some() {
        let advice = "use 'gco inference set-topology' instead of 'gco inference scale'.";
        return Err(state(format!("Endpoint '{name}' uses Mooncake topology; {advice}")));
    }
    if row.spec.at(&["autoscaling", "enabled"]).is_some_and(|enabled| *enabled != Value::Bool(false)) {
        let advice = "update its min/max autoscaling bounds or disable autoscaling before using 'gco inference scale'.";
        return Err(state(format!("Endpoint '{name}' is autoscaled; {advice}")));
    }
    let enabled = Path::of(["spec", "autoscaling", "enabled"]);
    let conditions = vec![
        lifecycle_is(lifecycle),
        live(),
        not(Condition::Exists(Path::of(["spec", "mooncake"]))),
        Condition::Any(vec![not(Condition::Exists(enabled.clone())), Condition::Equals(enabled, Value::Bool(false))]),
        moves_forward(base, now),
    ];
    let changes = vec![Change::Set(Path::of(["spec", "replicas"]), Value::from(replicas))];
    Ok(update(row, Operation::Scale, conditions, changes, base, now))
}

/// B.9 with compare-and-set on the own entry's `last_sync` (or its absence) as read, and D-6: an acknowledgement is
/// terminal only for its own deletion generation.
///
/// `last_sync` of the written entry is the new version; lifecycle and generations are copied from the authority. A refusal
/// alone is no proof of lost authority: another writer may have come first. The row must be read again and looked at.
///
/// # Errors
/// A row without version, or without the `region_status` map that [`back_fill`] makes.
pub fn write_region_status(
    row: &EndpointRow,
    region: &str,
    entry: &RegionEntry,
    authority: &StatusAuthority,
    now: Timestamp,
) -> Result<Transition, OperationError> {
    let base = version_of(row)?;
    let Some(Value::Map(statuses)) = row.item.get("region_status") else {
        return Err(state(format!("Endpoint '{}' has no map of region statuses", row.name)));
    };
    let own = Path::of(["region_status", region]);
    let own_last_sync = Path::of(["region_status", region, "last_sync"]);
    let as_read = match statuses.get(region) {
        None => not(Condition::Exists(own.clone())),
        Some(Value::Map(read)) => match read.get("last_sync") {
            Some(last_sync) => Condition::Equals(own_last_sync, last_sync.clone()),
            None => Condition::All(vec![Condition::Exists(own.clone()), not(Condition::Exists(own_last_sync))]),
        },
        Some(other) => Condition::Equals(own.clone(), other.clone()),
    };
    let mut entry = entry.clone();
    let mut conditions = Vec::new();
    match authority {
        StatusAuthority::Live { lifecycle_id, region_generation } => {
            conditions.push(lifecycle_is(lifecycle_id));
            let generation = Path::of(["region_generations", region]);
            conditions.push(Condition::Equals(generation, Value::from(region_generation.as_str())));
            conditions.push(live());
            entry.lifecycle_id = Some(lifecycle_id.clone());
            entry.region_generation = Some(region_generation.clone());
            entry.deletion_generation = None;
        }
        StatusAuthority::Deletion { lifecycle_id, deletion_generation } => {
            let generation = Value::from(deletion_generation.as_str());
            conditions.push(lifecycle_is(lifecycle_id));
            conditions.push(is_deleted());
            conditions.push(Condition::Equals(Path::of(["deletion_generation"]), generation.clone()));
            // An entry `deleted` that a region left behind when it was removed carries no deletion generation, and would
            // otherwise block the acknowledgement for ever (D-6).
            conditions.push(not(Condition::All(vec![
                Condition::Equals(Path::of(["region_status", region, "state"]), Value::from("deleted")),
                Condition::Equals(Path::of(["region_status", region, "deletion_generation"]), generation),
            ])));
            entry.lifecycle_id = Some(lifecycle_id.clone());
            entry.region_generation = None;
            entry.deletion_generation = Some(deletion_generation.clone());
        }
    }
    conditions.push(as_read);
    conditions.push(moves_forward(base, now));
    entry.last_sync = Some(time::next_version(now, Some(base)));
    let changes = vec![Change::Set(own, Value::Map(entry.to_item()))];
    Ok(update(row, Operation::WriteRegionStatus, conditions, changes, base, now))
}

/// B.10: new targets; a fresh generation for every region that is added or removed.
///
/// # Errors
/// Bad regions; or the row's state.
pub fn update_target_regions(
    row: &EndpointRow,
    target_regions: &[String],
    now: Timestamp,
    token: &mut dyn FnMut() -> String,
) -> Result<Transition, OperationError> {
    let lifecycle = row.lifecycle_id.as_ref().ok_or_else(|| no_identity(row))?;
    let base = version_of(row)?;
    refuse_deleted(row, "moved to other regions")?;
    let targets = distinct(target_regions);
    let problems = check_regions(&targets);
    if !problems.is_empty() {
        return Err(OperationError::Invalid(problems));
    }
    if targets == row.target_regions {
        return Err(state(format!("Endpoint '{}' already targets these regions", row.name)));
    }
    let stored = row.cleanup_regions.as_ref().unwrap_or(&row.target_regions);
    let cleanup = distinct(stored.iter().chain(&row.target_regions).chain(&targets));
    let generations: Item = cleanup
        .iter()
        .map(|region| {
            let moved = row.is_target(region) != targets.contains(region);
            let kept = row.region_generation(region).filter(|_| !moved);
            (region.clone(), Value::from(kept.map_or_else(&mut *token, str::to_owned)))
        })
        .collect();
    let conditions = vec![lifecycle_is(lifecycle), live(), unchanged_since(base)];
    let changes = vec![
        Change::Set(Path::of(["target_regions"]), texts(&targets)),
        Change::Set(Path::of(["cleanup_regions"]), texts(&cleanup)),
        Change::Set(Path::of(["region_generations"]), Value::Map(generations)),
    ];
    Ok(update(row, Operation::UpdateTargetRegions, conditions, changes, base, now))
}

/// B.11, when the quorum of C.9 stands in the row; `None` otherwise.
#[must_use]
pub fn purge(row: &EndpointRow) -> Option<Transition> {
    if row.quorum() != Quorum::Stands {
        return None;
    }
    let base = row.updated_at.as_ref()?;
    let generation = Value::from(row.deletion_generation.as_deref()?);
    let conditions = vec![
        Condition::Exists(Path::of(["endpoint_name"])),
        is_deleted(),
        unchanged_since(base),
        lifecycle_is(row.lifecycle_id.as_ref()?),
        Condition::Equals(Path::of(["deletion_generation"]), generation),
    ];
    Some(Transition {
        operation: Operation::Purge,
        name: row.name.clone(),
        condition: Condition::All(conditions),
        write: Write::Delete,
        base_updated_at: Some(base.clone()),
        new_updated_at: None,
    })
}

/// An update of an existing row that also sets the next version.
pub(super) fn update(
    row: &EndpointRow,
    operation: Operation,
    conditions: Vec<Condition>,
    mut changes: Vec<Change>,
    base: &str,
    now: Timestamp,
) -> Transition {
    let version = time::next_version(now, Some(base));
    changes.push(Change::Set(Path::of(["updated_at"]), Value::from(version.as_str())));
    let mut all = vec![Condition::Exists(Path::of(["endpoint_name"]))];
    all.extend(conditions);
    Transition {
        operation,
        name: row.name.clone(),
        condition: Condition::All(all),
        write: Write::Update(changes),
        base_updated_at: Some(base.to_owned()),
        new_updated_at: Some(version),
    }
}

pub(super) fn not(condition: Condition) -> Condition {
    Condition::Not(Box::new(condition))
}

pub(super) fn lifecycle_is(lifecycle: &str) -> Condition {
    Condition::Equals(Path::of(["lifecycle_id"]), Value::from(lifecycle))
}

pub(super) fn is_deleted() -> Condition {
    Condition::Equals(Path::of(["desired_state"]), Value::from(DesiredState::Deleted.as_str()))
}

/// Not deleted; a row without desired state is live.
pub(super) fn live() -> Condition {
    not(is_deleted())
}

pub(super) fn unchanged_since(base: &str) -> Condition {
    Condition::Equals(Path::of(["updated_at"]), Value::from(base))
}

/// The row is as it was read, or has a version that the new one follows.
///
/// For operations that may land on a row that somebody else changed meanwhile. Without it two writers whose clocks are
/// behind the row's version would give two different changes one version, and the change feed would see only one of
/// them; and a write that was sent twice could be applied twice.
pub(super) fn moves_forward(base: &str, now: Timestamp) -> Condition {
    let version = time::next_version(now, Some(base));
    Condition::Any(vec![unchanged_since(base), Condition::Before(Path::of(["updated_at"]), version)])
}

pub(super) fn state(message: impl Into<String>) -> OperationError {
    OperationError::State(message.into())
}

pub(super) fn no_identity(row: &EndpointRow) -> OperationError {
    state(format!("Endpoint '{}' has no lifecycle identity", row.name))
}

pub(super) fn version_of(row: &EndpointRow) -> Result<&str, OperationError> {
    let missing = || state(format!("Endpoint '{}' has no conditional migration timestamp", row.name));
    row.updated_at.as_deref().ok_or_else(missing)
}

/// The contract's words (F.1) for an operation on a deleted row.
pub(crate) fn deleted_message(name: &str, participle: &str) -> String {
    format!("Endpoint '{name}' is deleted and cannot be {participle}; redeploy it after deletion completes.")
}

pub(super) fn refuse_deleted(row: &EndpointRow, participle: &str) -> Result<(), OperationError> {
    if row.desired_state == DesiredState::Deleted {
        return Err(state(deleted_message(&row.name, participle)));
    }
    Ok(())
}

fn texts(list: &[String]) -> Value {
    Value::List(list.iter().map(|text| Value::from(text.as_str())).collect())
}

/// In order, each once.
fn distinct<'a>(list: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    list.into_iter().filter(|text| seen.insert(*text)).cloned().collect()
}

/// What is wrong with a spec that is about to be written. Fields that change nothing are refused, so that nobody believes
/// they do something, unless the stored spec has them already: an edit must be able to keep what it does not know.
fn check_spec(spec: &Value, stored: Option<&Value>) -> Vec<FieldProblem> {
    let mut problems = match Spec::check(spec) {
        Ok(_) => Vec::new(),
        Err(problems) => problems,
    };
    let kept: BTreeSet<String> =
        stored.map(Spec::fields_without_effect).unwrap_or_default().into_iter().map(|problem| problem.field).collect();
    for idle in Spec::fields_without_effect(spec) {
        if !HARMLESS_WITHOUT_EFFECT.contains(&idle.field.as_str()) && !kept.contains(&idle.field) {
            problems.push(FieldProblem::new(idle.field, format!("{}; it would have no effect", idle.message)));
        }
    }
    let size = spec.size_bytes();
    if size > LARGEST_SPEC_BYTES {
        problems.push(FieldProblem::new("spec", format!("must be at most {LARGEST_SPEC_BYTES} bytes, is {size}")));
    }
    problems.sort();
    problems
}

fn check_regions(regions: &[String]) -> Vec<FieldProblem> {
    if regions.is_empty() {
        return vec![FieldProblem::new("target_regions", "must name at least one region")];
    }
    let bad = regions.iter().enumerate().filter(|(_, region)| !name::is_region(region));
    bad.map(|(index, region)| {
        let shown = bounded(region, QUOTED_VALUE_CHARACTERS);
        let message = format!("must be the name of a region, for example us-east-1, got \"{shown}\"");
        FieldProblem::new(format!("target_regions[{index}]"), message)
    })
    .collect()
}

pub(super) fn is_short_text(text: &str) -> bool {
    text.chars().count() <= LONGEST_LABEL && !text.chars().any(char::is_control)
}

fn check_labels(labels: &BTreeMap<String, String>) -> Vec<FieldProblem> {
    let mut problems = Vec::new();
    if labels.len() > MOST_LABELS {
        problems.push(FieldProblem::new("labels", format!("must be at most {MOST_LABELS}, got {}", labels.len())));
    }
    for (name, value) in labels {
        if name.is_empty() || !is_short_text(name) || !is_short_text(value) {
            let message = format!(
                "must have a non-empty name, and name and value of at most {LONGEST_LABEL} characters without control characters"
            );
            let field = format!("labels.{}", bounded(name, QUOTED_VALUE_CHARACTERS));
            problems.push(FieldProblem::new(field, message));
        }
    }
    problems
}
