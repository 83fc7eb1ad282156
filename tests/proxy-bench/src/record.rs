//! What one measurement gave, as a line of JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The numbers of one cell of one contender in one round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// The round, from 0.
    pub round: u32,
    /// The contender's name.
    pub contender: String,
    /// The cell's name.
    pub cell: String,
    /// What was measured, by name; units are part of the names.
    pub values: BTreeMap<String, f64>,
    /// What went wrong last, when something did.
    pub problem: Option<String>,
}

impl Record {
    /// Adds a number; one that is none is left out.
    pub fn set(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.values.insert(name.to_owned(), value);
        }
    }

    /// A number.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.values.get(name).copied()
    }

    /// As one line of JSON.
    #[must_use]
    pub fn to_line(&self) -> String {
        let Self { round, contender, cell, values, problem } = self;
        json!({"round": round, "contender": contender, "cell": cell, "values": values, "problem": problem}).to_string()
    }

    /// From one line of JSON; `None` when it is no record.
    #[must_use]
    pub fn from_line(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let numbers = value["values"].as_object()?.iter();
        Some(Self {
            round: u32::try_from(value["round"].as_u64()?).ok()?,
            contender: text("contender")?,
            cell: text("cell")?,
            values: numbers.filter_map(|(name, number)| Some((name.clone(), number.as_f64()?))).collect(),
            problem: text("problem"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_from_its_line() {
        let mut record = Record { round: 3, contender: "nginx".into(), cell: "whole-1".into(), ..Record::default() };
        record.set("p50_us", 119.5);
        record.set("none", f64::NAN);
        assert_eq!(record.get("none"), None);
        assert_eq!(Record::from_line(&record.to_line()), Some(record));
        assert_eq!(Record::from_line(r#"{"about": {}}"#), None);
        assert_eq!(Record::from_line("x"), None);
    }
}
