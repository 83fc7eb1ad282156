//! What the row tells of a write whose answer was lost.

use crate::transition::{Change, Condition, Path, Transition, Write};
use crate::wire::{Item, Value};

/// What became of a write, as far as the row tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The row is as this write left it.
    Applied,
    /// The row is as it was before; sending again under [`guarded`] cannot make a second effect.
    NotApplied,
    /// Another row of that name is there, so that a create cannot have happened.
    Forestalled,
    /// Somebody else has written since: it cannot be told.
    Unknown,
}

/// Judges a strongly read row.
pub(super) fn fate(transition: &Transition, row: Option<&Item>) -> Fate {
    let version = row.and_then(|row| row.get("updated_at")).and_then(Value::as_str);
    let unchanged = version.is_some() && version == transition.base_updated_at.as_deref();
    match (&transition.write, row) {
        (Write::Put(_), None) => Fate::NotApplied,
        // The lifecycle token is random: only this very write can have put it there.
        (Write::Put(item), Some(row)) => {
            let ours = item.get("lifecycle_id").is_some() && item.get("lifecycle_id") == row.get("lifecycle_id");
            if ours { Fate::Applied } else { Fate::Forestalled }
        }
        (Write::Delete, None) => Fate::Applied,
        (Write::Update(changes), Some(row)) if version.is_some() && version == transition.new_updated_at.as_deref() => {
            if changes.iter().all(|change| stands(change, row)) {
                Fate::Applied
            } else {
                Fate::Unknown
            }
        }
        (Write::Update(_) | Write::Delete, Some(_)) if unchanged => Fate::NotApplied,
        (Write::Update(_) | Write::Delete, _) => Fate::Unknown,
    }
}

/// The condition for sending a write again after its answer was lost: also that the row's version is still the one that
/// the write was built upon, so that at most one of the two requests takes effect.
pub(super) fn guarded(transition: &Transition) -> Condition {
    let condition = transition.condition.clone();
    match &transition.base_updated_at {
        Some(base) => {
            let unchanged = Condition::Equals(Path::of(["updated_at"]), Value::from(base.as_str()));
            Condition::All(vec![condition, unchanged])
        }
        // A create: its own condition, that there is no row, says it already.
        None => condition,
    }
}

fn stands(change: &Change, row: &Item) -> bool {
    match change {
        Change::Set(path, value) => path.look_up(row).is_some_and(|found| found.same_as(value)),
        Change::SetIfAbsent(path, _) | Change::CopyIfAbsent { to: path, .. } => path.look_up(row).is_some(),
        Change::Remove(path) => path.look_up(row).is_none(),
    }
}
