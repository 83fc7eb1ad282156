//! The spec before the last edit, kept beside the spec so that the edit can be undone.
//!
//! `previous_spec` of a row is ours: the original keeps the attribute and does not know it. It holds the replaced spec, when
//! it was replaced, and a digest of the spec that replaced it: an edit by a writer that keeps no previous spec (the
//! original's command line) is noticed, and nothing older than the last edit is ever brought back.

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{Change, OperationError, Path};
use crate::row::EndpointRow;
use crate::time;
use crate::wire::{Item, Value, item_to_dynamodb_json};

/// Attribute of the row.
pub const PREVIOUS_SPEC: &str = "previous_spec";

/// A larger spec is not kept: with the spec itself and the statuses of many regions a row must stay below 400 KB.
const LARGEST_KEPT_BYTES: usize = 64 * 1024;

/// The replica count is another command's business, and changes without an edit of the spec.
const NOT_UNDONE: &str = "replicas";

/// The change that keeps the spec that `next` replaces; removes an older one when it is too large to keep.
pub(super) fn change(row: &EndpointRow, next: &Value, now: Timestamp) -> Option<Change> {
    let place = Path::of([PREVIOUS_SPEC]);
    if row.spec.as_map().is_none() || row.spec.size_bytes() > LARGEST_KEPT_BYTES {
        return row.item.contains_key(PREVIOUS_SPEC).then_some(Change::Remove(place));
    }
    let kept = Item::from([
        ("spec".to_owned(), row.spec.clone()),
        ("replaced_at".to_owned(), Value::from(time::format(now))),
        ("replaced_by".to_owned(), Value::from(digest(next))),
    ]);
    Some(Change::Set(place, Value::Map(kept)))
}

/// The spec before the last edit, with the replica count of now.
///
/// # Errors
/// When none is kept, or somebody who keeps none has edited the spec since.
pub fn undone(row: &EndpointRow) -> Result<Item, OperationError> {
    let name = &row.name;
    let kept = row.item.get(PREVIOUS_SPEC);
    let spec = kept.and_then(|kept| kept.at(&["spec"])).and_then(Value::as_map);
    let Some(spec) = spec else {
        return Err(OperationError::State(format!("Endpoint '{name}' has no earlier spec to go back to")));
    };
    let replaced_by = kept.and_then(|kept| kept.at(&["replaced_by"])).and_then(Value::as_str);
    if replaced_by != Some(digest(&row.spec).as_str()) {
        return Err(OperationError::State(format!(
            "Endpoint '{name}' was edited since by a writer that keeps no earlier spec; set the fields one by one instead"
        )));
    }
    let mut spec = spec.clone();
    match row.spec.at(&[NOT_UNDONE]) {
        Some(count) => spec.insert(NOT_UNDONE.to_owned(), count.clone()),
        None => spec.remove(NOT_UNDONE),
    };
    Ok(spec)
}

/// Digest of a spec without its replica count, of the form in which a table stores it.
fn digest(spec: &Value) -> String {
    let mut map = spec.as_stored().as_map().cloned().unwrap_or_default();
    map.remove(NOT_UNDONE);
    // Keys of an item are sorted, so that equal specs are equal texts.
    let text = item_to_dynamodb_json(&map).to_string();
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
