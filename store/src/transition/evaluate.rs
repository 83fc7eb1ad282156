//! What a condition means and what a write does, in DynamoDB's semantics, without a server: the embedded backend runs on
//! this, and suites compare servers with it.

use super::{Change, Condition, Path, Transition, Write};
use crate::problem::FieldProblem;
use crate::table::Outcome;
use crate::wire::{Item, LARGEST_ITEM_BYTES, Value, item_size_bytes};

/// DynamoDB's words when a path's parent map is missing.
const INVALID_PATH: &str = "The document path provided in the update expression is invalid for update";
/// The key attribute of the endpoint table.
const KEY: &str = "endpoint_name";

impl Path {
    /// What a row holds at this place.
    #[must_use]
    pub fn look_up<'a>(&self, item: &'a Item) -> Option<&'a Value> {
        let (attribute, keys) = self.0.split_first()?;
        keys.iter().try_fold(item.get(attribute)?, |value, key| value.as_map()?.get(key))
    }

    /// The map that holds this place, and the last key.
    fn parent<'a>(&self, item: &'a mut Item) -> Option<(&'a mut Item, &str)> {
        let (last, parents) = self.0.split_last()?;
        let map = parents.iter().try_fold(item, |map, key| match map.get_mut(key) {
            Some(Value::Map(inner)) => Some(inner),
            _ => None,
        })?;
        Some((map, last))
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0) || other.0.starts_with(&self.0)
    }
}

impl Condition {
    /// Whether it holds for a row (`None`: there is no row). A comparison with nothing is false.
    #[must_use]
    pub fn holds(&self, item: Option<&Item>) -> bool {
        let at = |path: &Path| item.and_then(|item| path.look_up(item));
        match self {
            Self::All(conditions) => conditions.iter().all(|condition| condition.holds(item)),
            Self::Any(conditions) => conditions.iter().any(|condition| condition.holds(item)),
            Self::Not(condition) => !condition.holds(item),
            Self::Exists(path) => at(path).is_some(),
            Self::Equals(path, value) => at(path).is_some_and(|found| found.same_as(value)),
            Self::Before(path, text) => at(path).and_then(Value::as_str).is_some_and(|found| found < text.as_str()),
        }
    }
}

impl Change {
    /// The place that it writes.
    #[must_use]
    pub fn place(&self) -> &Path {
        match self {
            Self::Set(path, _) | Self::SetIfAbsent(path, _) | Self::Remove(path) => path,
            Self::CopyIfAbsent { to, .. } => to,
        }
    }
}

impl Write {
    /// The operation that a server sees, in DynamoDB's words.
    #[must_use]
    pub fn server_operation(&self) -> &'static str {
        match self {
            Self::Put(_) => "PutItem",
            Self::Update(_) => "UpdateItem",
            Self::Delete => "DeleteItem",
        }
    }

    /// The row after the write; `before` is `None` when there is none.
    ///
    /// # Errors
    /// What DynamoDB refuses as invalid whatever the condition says: a missing parent map, a missing attribute to copy,
    /// overlapping places, a changed key, an update without a row, a row over 400 KB.
    pub fn apply(&self, before: Option<Item>) -> Result<Option<Item>, FieldProblem> {
        let after = match self {
            Self::Delete => return Ok(None),
            Self::Put(item) => item.iter().map(|(name, value)| (name.clone(), value.as_stored())).collect(),
            Self::Update(changes) => {
                let before = before.ok_or_else(|| FieldProblem::new(KEY, "there is no row to update"))?;
                updated(&before, changes)?
            }
        };
        match after.get(KEY) {
            Some(Value::String(name)) if !name.is_empty() => {}
            _ => return Err(FieldProblem::new(KEY, "must be a non-empty string")),
        }
        let size = item_size_bytes(&after);
        if size > LARGEST_ITEM_BYTES {
            return Err(FieldProblem::new("item", format!("must be at most {LARGEST_ITEM_BYTES} bytes, is {size}")));
        }
        Ok(Some(after))
    }
}

impl Transition {
    /// What executing it on a row gives, without a server.
    ///
    /// # Errors
    /// As [`Write::apply`]; never when the condition does not hold.
    pub fn evaluate(&self, current: Option<Item>) -> Result<Outcome, FieldProblem> {
        if self.condition.holds(current.as_ref()) {
            self.write.apply(current).map(Outcome::Applied)
        } else {
            Ok(Outcome::Refused(current))
        }
    }
}

/// All changes at once: what they read is the row before any of them.
fn updated(before: &Item, changes: &[Change]) -> Result<Item, FieldProblem> {
    for (index, change) in changes.iter().enumerate() {
        let place = change.place();
        if changes[..index].iter().any(|other| other.place().overlaps(place)) {
            return Err(FieldProblem::new(place.to_string(), "two changes of one write overlap"));
        }
        if place.0.first().is_none_or(|attribute| attribute == KEY) {
            return Err(FieldProblem::new(place.to_string(), "the key cannot be changed"));
        }
    }
    let mut after = before.clone();
    for change in changes {
        let place = change.place();
        let Some((parent, key)) = place.parent(&mut after) else {
            return Err(FieldProblem::new(place.to_string(), INVALID_PATH));
        };
        let value = match change {
            Change::Set(_, value) => Some(value.as_stored()),
            Change::SetIfAbsent(_, value) => Some(parent.get(key).cloned().unwrap_or_else(|| value.as_stored())),
            Change::CopyIfAbsent { from, .. } => match parent.get(key).or_else(|| from.look_up(before)) {
                Some(value) => Some(value.clone()),
                None => {
                    let message = "The provided expression refers to an attribute that does not exist in the item";
                    return Err(FieldProblem::new(from.to_string(), message));
                }
            },
            Change::Remove(_) => None,
        };
        match value {
            Some(value) => parent.insert(key.to_owned(), value),
            None => parent.remove(key),
        };
    }
    Ok(after)
}
