//! Ours: the map `control` of a row, in which operators say what the contract has no word for. The original keeps it and does
//! not know it.

use jiff::Timestamp;

use super::build::{
    LONGEST_LABEL, is_deleted, is_short_text, lifecycle_is, live, moves_forward, no_identity, not, refuse_deleted,
    state, unchanged_since, update, version_of,
};
use super::{Change, Condition, Declaration, Operation, OperationError, Path, Transition};
use crate::problem::{FieldProblem, QUOTED_VALUE_CHARACTERS, bounded};
use crate::row::{DesiredState, EndpointRow, Refresh};
use crate::time;
use crate::wire::{Item, Value};

/// Longest reason of a declaration, in characters.
pub const LONGEST_REASON_CHARACTERS: usize = 300;
/// Longest name of whoever declares, in characters.
pub const LONGEST_OPERATOR_CHARACTERS: usize = LONGEST_LABEL;

/// Sets or clears `control.paused`.
///
/// # Errors
/// The row's state.
pub fn set_paused(row: &EndpointRow, paused: bool, now: Timestamp) -> Result<Transition, OperationError> {
    let lifecycle = row.lifecycle_id.as_ref().ok_or_else(|| no_identity(row))?;
    let base = version_of(row)?;
    refuse_deleted(row, if paused { "paused" } else { "resumed" })?;
    let (as_read, change) = set_control(row, "paused", Value::Bool(paused))?;
    let conditions = vec![lifecycle_is(lifecycle), live(), as_read, moves_forward(base, now)];
    Ok(update(row, Operation::SetPaused, conditions, vec![change], base, now))
}

/// Sets `control.refresh`: monitors bring the endpoint's pods to what they render now, a few endpoints at once.
///
/// # Errors
/// The row's state; a bad count.
pub fn refresh(row: &EndpointRow, wish: &Refresh, now: Timestamp) -> Result<Transition, OperationError> {
    let Refresh { requested_at, at_once } = wish;
    let lifecycle = row.lifecycle_id.as_ref().ok_or_else(|| no_identity(row))?;
    let base = version_of(row)?;
    refuse_deleted(row, "refreshed")?;
    if *at_once == Some(0) {
        return Err(OperationError::Invalid(vec![FieldProblem::new("at_once", "must be at least 1")]));
    }
    let mut map = Item::from([("requested_at".to_owned(), Value::from(requested_at.as_str()))]);
    map.extend(at_once.map(|count| ("at_once".to_owned(), Value::from(i64::from(count)))));
    let (as_read, change) = set_control(row, "refresh", Value::Map(map))?;
    let conditions = vec![lifecycle_is(lifecycle), live(), as_read, moves_forward(base, now)];
    Ok(update(row, Operation::Refresh, conditions, vec![change], base, now))
}

/// The change that sets `control.<key>`, and the condition under which it can be made.
///
/// A place below a map that is not there cannot be set: then the map is made, if nobody else made it meanwhile.
fn set_control(row: &EndpointRow, key: &str, value: Value) -> Result<(Condition, Change), OperationError> {
    let control = Path::of(["control"]);
    match row.item.get("control") {
        Some(Value::Map(_)) => Ok((Condition::Exists(control), Change::Set(Path::of(["control", key]), value))),
        None => {
            let made = Value::Map(Item::from([(key.to_owned(), value)]));
            Ok((not(Condition::Exists(control.clone())), Change::Set(control, made)))
        }
        Some(other) => Err(no_map("control", other)),
    }
}

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
        let listed = bounded(&regions.join(", "), LONGEST_REASON_CHARACTERS);
        return Err(state(format!("The deletion of endpoint '{name}' does not wait for '{shown}', but for: {listed}")));
    }
    if row.acknowledged(region) {
        return Err(state(format!("'{shown}' has confirmed already that nothing of endpoint '{name}' is left")));
    }
    let Declaration { by, reason } = declaration;
    let mut problems = Vec::new();
    if by.trim().is_empty() || !is_short_text(by) {
        let message = format!("must be 1 to {LONGEST_OPERATOR_CHARACTERS} characters without control characters");
        problems.push(FieldProblem::new("by", message));
    }
    if reason.trim().is_empty()
        || reason.chars().count() > LONGEST_REASON_CHARACTERS
        || reason.chars().any(char::is_control)
    {
        let message = format!("must be 1 to {LONGEST_REASON_CHARACTERS} characters without control characters");
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
