//! Conditions and changes as DynamoDB's expression texts. Every name and value is a placeholder: names may be reserved
//! words, and region names have dashes.

use std::collections::{BTreeMap, HashMap};

use crate::transition::{Change, Condition, Path};
use crate::wire::Value;

/// Names and values that placeholders in expressions stand for.
#[derive(Debug, Default)]
pub(super) struct Placeholders {
    numbers: BTreeMap<String, usize>,
    values: Vec<Value>,
}

impl Placeholders {
    /// `ExpressionAttributeNames`; `None` when empty, which DynamoDB would refuse.
    pub(super) fn names(&self) -> Option<HashMap<String, String>> {
        let names: HashMap<_, _> =
            self.numbers.iter().map(|(name, number)| (format!("#n{number}"), name.clone())).collect();
        Some(names).filter(|names| !names.is_empty())
    }

    /// `ExpressionAttributeValues`; `None` when empty.
    pub(super) fn values(&self) -> Option<BTreeMap<String, &Value>> {
        let values: BTreeMap<_, _> =
            self.values.iter().enumerate().map(|(number, value)| (format!(":v{number}"), value)).collect();
        Some(values).filter(|values| !values.is_empty())
    }

    fn path(&mut self, path: &Path) -> String {
        let segments: Vec<String> = path
            .0
            .iter()
            .map(|name| {
                let next = self.numbers.len();
                let number = *self.numbers.entry(name.clone()).or_insert(next);
                format!("#n{number}")
            })
            .collect();
        segments.join(".")
    }

    fn value(&mut self, value: &Value) -> String {
        let number = self.values.iter().position(|known| known == value).unwrap_or_else(|| {
            self.values.push(value.clone());
            self.values.len() - 1
        });
        format!(":v{number}")
    }

    /// The text of a condition. Comparisons with something absent are false, so that `NOT (a = b)` holds for an absent
    /// `a`; DynamoDB's `<>` is not used because its answer for an absent attribute is easy to get wrong.
    pub(super) fn condition(&mut self, condition: &Condition) -> String {
        match condition {
            Condition::All(conditions) => self.joined(conditions, " AND "),
            Condition::Any(conditions) => self.joined(conditions, " OR "),
            Condition::Not(inner) => match &**inner {
                Condition::Exists(path) => format!("attribute_not_exists({})", self.path(path)),
                other => format!("NOT ({})", self.condition(other)),
            },
            Condition::Exists(path) => format!("attribute_exists({})", self.path(path)),
            Condition::Equals(path, value) => format!("{} = {}", self.path(path), self.value(value)),
            Condition::Before(path, text) => {
                format!("{} < {}", self.path(path), self.value(&Value::from(text.as_str())))
            }
        }
    }

    fn joined(&mut self, conditions: &[Condition], operator: &str) -> String {
        let parts: Vec<String> = conditions
            .iter()
            .map(|condition| match condition {
                Condition::All(_) | Condition::Any(_) => format!("({})", self.condition(condition)),
                _ => self.condition(condition),
            })
            .collect();
        parts.join(operator)
    }

    /// The text of an update.
    pub(super) fn update(&mut self, changes: &[Change]) -> String {
        let mut sets = Vec::new();
        let mut removes = Vec::new();
        for change in changes {
            match change {
                Change::Set(path, value) => sets.push(format!("{} = {}", self.path(path), self.value(value))),
                Change::SetIfAbsent(path, value) => {
                    let place = self.path(path);
                    sets.push(format!("{place} = if_not_exists({place}, {})", self.value(value)));
                }
                Change::CopyIfAbsent { to, from } => {
                    let place = self.path(to);
                    sets.push(format!("{place} = if_not_exists({place}, {})", self.path(from)));
                }
                Change::Remove(path) => removes.push(self.path(path)),
            }
        }
        let clause = |word: &str, parts: &[String]| match parts {
            [] => None,
            parts => Some(format!("{word} {}", parts.join(", "))),
        };
        let clauses: Vec<String> = [clause("SET", &sets), clause("REMOVE", &removes)].into_iter().flatten().collect();
        clauses.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_rendered_with_placeholders_for_every_name() {
        let mut placeholders = Placeholders::default();
        let state = Path::of(["region_status", "us-east-1", "state"]);
        let condition = Condition::All(vec![
            Condition::Exists(Path::of(["endpoint_name"])),
            Condition::Not(Box::new(Condition::Equals(state.clone(), Value::from("deleted")))),
            Condition::Any(vec![
                Condition::Not(Box::new(Condition::Exists(state.clone()))),
                Condition::Before(Path::of(["updated_at"]), "2026".to_owned()),
            ]),
            Condition::Equals(Path::of(["state"]), Value::from("deleted")),
        ]);
        assert_eq!(
            placeholders.condition(&condition),
            "attribute_exists(#n0) AND NOT (#n1.#n2.#n3 = :v0) AND (attribute_not_exists(#n1.#n2.#n3) OR #n4 < :v1) \
             AND #n3 = :v0"
        );
        let names = placeholders.names().expect("names");
        assert_eq!(names.get("#n2").map(String::as_str), Some("us-east-1"));
        assert_eq!(names.len(), 5);
        assert_eq!(placeholders.values().expect("values").len(), 2);
    }

    #[test]
    fn updates_are_rendered_as_set_and_remove_clauses() {
        let mut placeholders = Placeholders::default();
        let changes = [
            Change::Set(Path::of(["spec", "replicas"]), Value::from(3)),
            Change::Remove(Path::of(["old"])),
            Change::SetIfAbsent(Path::of(["lifecycle_id"]), Value::from("token")),
            Change::CopyIfAbsent { to: Path::of(["deletion_regions"]), from: Path::of(["cleanup_regions"]) },
        ];
        assert_eq!(
            placeholders.update(&changes),
            "SET #n0.#n1 = :v0, #n3 = if_not_exists(#n3, :v1), #n4 = if_not_exists(#n4, #n5) REMOVE #n2"
        );
    }

    #[test]
    fn empty_placeholders_are_left_out_of_a_request() {
        let placeholders = Placeholders::default();
        assert!(placeholders.names().is_none());
        assert!(placeholders.values().is_none());
    }
}
