//! Ours: what operators write into the map `control` of a row about regions. The original keeps it and does not know it.

use jiff::Timestamp;

use super::build::{
    LONGEST_LABEL, is_deleted, is_short_text, lifecycle_is, no_identity, state, unchanged_since, update, version_of,
};
use super::{Change, Condition, Declaration, Operation, OperationError, Path, Transition};
use crate::problem::{FieldProblem, QUOTED_VALUE_CHARACTERS, bounded};
use crate::row::{DesiredState, EndpointRow};
use crate::time;
use crate::wire::{Item, Value};

/// Longest reason of a declaration, in characters.
const LONGEST_REASON: usize = 300;

/// Writes an operator's declaration that `region` is gone for good, for this lifecycle and this deletion only (D-21): the
/// quorum of C.9 then does not wait for it.
///
/// It is no acknowledgement, and does not stand in the region's own entry: a region that comes back before the purge goes on
/// removing the endpoint, and acknowledges for itself.
///
/// # Errors
/// A row that is not being deleted, a region that need not confirm or has confirmed, a declaration without name or reason.
pub fn declare_absent(
    row: &EndpointRow,
    region: &str,
    declaration: &Declaration,
    now: Timestamp,
) -> Result<Transition, OperationError> {
    let lifecycle = row.lifecycle_id.as_ref().ok_or_else(|| no_identity(row))?;
    let base = version_of(row)?;
    let (name, shown) = (&row.name, bounded(region, QUOTED_VALUE_CHARACTERS));
    let (Some(generation), Some(regions), DesiredState::Deleted) =
        (&row.deletion_generation, &row.deletion_regions, &row.desired_state)
    else {
        return Err(state(format!(
            "Endpoint '{name}' is not being deleted, so no region needs to confirm that nothing is left"
        )));
    };
    if !regions.iter().any(|listed| listed == region) {
        let listed = bounded(&regions.join(", "), LONGEST_REASON);
        return Err(state(format!("The deletion of endpoint '{name}' does not wait for '{shown}', but for: {listed}")));
    }
    if row.acknowledged(region) {
        return Err(state(format!("'{shown}' has confirmed already that nothing of endpoint '{name}' is left")));
    }
    let Declaration { by, reason } = declaration;
    let mut problems = Vec::new();
    if by.trim().is_empty() || !is_short_text(by) {
        let message = format!("must be 1 to {LONGEST_LABEL} characters without control characters");
        problems.push(FieldProblem::new("by", message));
    }
    if reason.trim().is_empty() || reason.chars().count() > LONGEST_REASON || reason.chars().any(char::is_control) {
        let message = format!("must be 1 to {LONGEST_REASON} characters without control characters");
        problems.push(FieldProblem::new("reason", message));
    }
    if !problems.is_empty() {
        return Err(OperationError::Invalid(problems));
    }
    let declared = Item::from([
        ("by".to_owned(), Value::from(by.as_str())),
        ("at".to_owned(), Value::from(time::format(now))),
        ("reason".to_owned(), Value::from(reason.as_str())),
        ("lifecycle_id".to_owned(), Value::from(lifecycle.as_str())),
        ("deletion_generation".to_owned(), Value::from(generation.as_str())),
    ]);
    let mut control = map_of(row.item.get("control"), "control")?;
    let mut all = map_of(control.get("absent_regions"), "control.absent_regions")?;
    all.insert(region.to_owned(), Value::Map(declared));
    control.insert("absent_regions".to_owned(), Value::Map(all));
    let conditions = vec![
        lifecycle_is(lifecycle),
        is_deleted(),
        // With it, `deletion_regions` is what was read: neither ever changes.
        Condition::Equals(Path::of(["deletion_generation"]), Value::from(generation.as_str())),
        // The whole map is written, and it is rare enough to be made again when somebody else was quicker.
        unchanged_since(base),
    ];
    let changes = vec![Change::Set(Path::of(["control"]), Value::Map(control))];
    Ok(update(row, Operation::DeclareAbsent, conditions, changes, base, now))
}

/// A copy of a map, empty when there is none.
fn map_of(value: Option<&Value>, place: &str) -> Result<Item, OperationError> {
    match value {
        None => Ok(Item::new()),
        Some(Value::Map(map)) => Ok(map.clone()),
        Some(other) => Err(no_map(place, other)),
    }
}

fn no_map(place: &str, found: &Value) -> OperationError {
    let message = format!("must be a map, is of type {}", found.type_name());
    OperationError::Invalid(vec![FieldProblem::new(place, message)])
}
