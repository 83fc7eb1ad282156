//! The process environment: read in one place, checked all at once.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use crate::text::bounded;

/// How much of a refused value an error shows.
const SHOWN_VALUE_CHARS: usize = 80;

/// A set of environment variables, the process's or made up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    values: BTreeMap<String, String>,
}

impl Environment {
    /// The process's environment as it is now. Bytes that are not UTF-8 become replacement
    /// characters, which no check of a value accepts.
    pub fn process() -> Self {
        let values = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
        Self { values: values.collect() }
    }

    /// An environment of exactly these variables; of a doubled name the last value counts.
    pub fn from_pairs<N: Into<String>, V: Into<String>>(pairs: impl IntoIterator<Item = (N, V)>) -> Self {
        let values = pairs.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self { values: values.collect() }
    }

    /// The value as it stands; `None` when the variable is not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// The value without surrounding white space; `None` when unset or empty.
    ///
    /// Manifests often write an optional variable as an empty string, so empty means unset.
    pub fn non_empty(&self, name: &str) -> Option<&str> {
        self.get(name).map(str::trim).filter(|value| !value.is_empty())
    }

    /// The names of all variables, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Starts a checked reading that collects every problem.
    pub fn reader(&self) -> EnvironmentReader<'_> {
        EnvironmentReader { environment: self, problems: Vec::new() }
    }
}

/// One variable that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentProblem {
    /// The variable.
    pub name: String,
    /// Its value, at most 80 characters of it; `None` when it is not set.
    pub value: Option<String>,
    /// What would have been accepted, to be read after "is not".
    pub allowed: String,
}

impl Display for EnvironmentProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(formatter, "{}: {value:?} is not {}", self.name, self.allowed),
            None => write!(formatter, "{}: not set; it must be {}", self.name, self.allowed),
        }
    }
}

/// Every problem that a reading found, in the order of reading.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct EnvironmentError {
    /// The problems; never empty.
    pub problems: Vec<EnvironmentProblem>,
}

impl Display for EnvironmentError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(formatter, "{separator}{problem}")?;
        }
        Ok(())
    }
}

/// A reading of an environment that never stops at the first problem.
///
/// Each getter returns a usable value (the default when the variable is bad) and remembers the
/// problem; [`EnvironmentReader::finish`] then reports all of them, so that a person mends a
/// manifest once and not once per mistake.
#[derive(Debug)]
pub struct EnvironmentReader<'e> {
    environment: &'e Environment,
    problems: Vec<EnvironmentProblem>,
}

impl EnvironmentReader<'_> {
    /// The text of a variable, or `default` when unset or empty.
    pub fn text(&mut self, name: &str, default: &str) -> String {
        self.environment.non_empty(name).unwrap_or(default).to_owned()
    }

    /// The text of a variable, or `None` when unset or empty.
    pub fn optional_text(&mut self, name: &str) -> Option<String> {
        self.environment.non_empty(name).map(str::to_owned)
    }

    /// The text of a variable that must be there; `described` says what it must be.
    pub fn required_text(&mut self, name: &str, described: &str) -> String {
        match self.environment.non_empty(name) {
            Some(value) => value.to_owned(),
            None => {
                self.refuse(name, described);
                String::new()
            }
        }
    }

    /// The non-empty parts of a list that is separated by commas.
    pub fn list(&mut self, name: &str) -> Vec<String> {
        let value = self.environment.non_empty(name).unwrap_or_default();
        let parts = value.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(str::to_owned).collect()
    }

    /// A switch: true, false, 1, 0, yes, no, on, off in any case.
    pub fn switch(&mut self, name: &str, default: bool) -> bool {
        self.parsed(name, default, "true or false", |value| match value.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Some(true),
            "false" | "0" | "no" | "off" => Some(false),
            _ => None,
        })
    }

    /// A number within `range`.
    pub fn number<N>(&mut self, name: &str, default: N, range: RangeInclusive<N>) -> N
    where
        N: FromStr + PartialOrd + Display,
    {
        let allowed = format!("a number from {} to {}", range.start(), range.end());
        self.parsed(name, default, &allowed, |value| value.parse().ok().filter(|number| range.contains(number)))
    }

    /// A length of time, written as a number of seconds (fractions allowed), within `range`.
    pub fn seconds(&mut self, name: &str, default: Duration, range: RangeInclusive<Duration>) -> Duration {
        let (from, to) = (range.start().as_secs_f64(), range.end().as_secs_f64());
        let allowed = format!("a number of seconds from {from} to {to}");
        self.parsed(name, default, &allowed, |value| {
            let seconds: f64 = value.parse().ok()?;
            Duration::try_from_secs_f64(seconds).ok().filter(|duration| range.contains(duration))
        })
    }

    /// One of the named choices, compared without regard to case.
    pub fn choice<T: Clone>(&mut self, name: &str, default: T, choices: &[(&str, T)]) -> T {
        let names: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
        let allowed = format!("one of {}", names.join(", "));
        self.parsed(name, default, &allowed, |value| {
            let chosen = choices.iter().find(|(choice, _)| choice.eq_ignore_ascii_case(value));
            chosen.map(|(_, meaning)| meaning.clone())
        })
    }

    /// A value that `parse` understands; `allowed` says what that is, to be read after "is not".
    pub fn parsed<T>(&mut self, name: &str, default: T, allowed: &str, parse: impl FnOnce(&str) -> Option<T>) -> T {
        match self.environment.non_empty(name).map(parse) {
            None => default,
            Some(Some(value)) => value,
            Some(None) => {
                self.refuse(name, allowed);
                default
            }
        }
    }

    /// Remembers a problem with a variable, for checks that concern several at once.
    pub fn refuse(&mut self, name: &str, allowed: &str) {
        let value = self.environment.non_empty(name);
        self.problems.push(EnvironmentProblem {
            name: name.to_owned(),
            value: value.map(|value| bounded(value, SHOWN_VALUE_CHARS)),
            allowed: allowed.to_owned(),
        });
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// With every problem that was found, if any was.
    pub fn finish(self) -> Result<(), EnvironmentError> {
        if self.problems.is_empty() {
            return Ok(());
        }
        Err(EnvironmentError { problems: self.problems })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_values_are_read_and_absent_or_empty_ones_take_the_default() {
        let environment = Environment::from_pairs([
            ("TEXT", " a "),
            ("EMPTY", "  "),
            ("COUNT", "7"),
            ("WAIT", "1.5"),
            ("ON", "True"),
            ("LIST", "a, b,,c"),
            ("MODE", "Json"),
        ]);
        let mut reader = environment.reader();
        assert_eq!(reader.text("TEXT", "x"), "a");
        assert_eq!(reader.text("EMPTY", "x"), "x");
        assert_eq!(reader.optional_text("EMPTY"), None);
        assert_eq!(reader.required_text("TEXT", "a text"), "a");
        assert_eq!(reader.number("COUNT", 1_u32, 1..=9), 7);
        assert_eq!(reader.number("ABSENT", 1_u32, 1..=9), 1);
        let range = Duration::ZERO..=Duration::from_secs(2);
        assert_eq!(reader.seconds("WAIT", Duration::ZERO, range).as_millis(), 1500);
        assert!(reader.switch("ON", false));
        assert_eq!(reader.list("LIST"), ["a", "b", "c"]);
        assert_eq!(reader.choice("MODE", 1, &[("text", 1), ("json", 2)]), 2);
        assert_eq!(reader.finish(), Ok(()));
        assert_eq!(environment.get("EMPTY"), Some("  "));
        assert_eq!(environment.names().collect::<Vec<_>>(), ["COUNT", "EMPTY", "LIST", "MODE", "ON", "TEXT", "WAIT"]);
    }

    #[test]
    fn every_bad_value_is_reported_at_once_with_what_is_allowed() {
        let long = "9".repeat(500);
        let environment = Environment::from_pairs([
            ("COUNT", "0"),
            ("WAIT", "-1"),
            ("ON", "maybe"),
            ("MODE", "xml"),
            ("LONG", long.as_str()),
        ]);
        let mut reader = environment.reader();
        assert_eq!(reader.number("COUNT", 3_u32, 1..=9), 3);
        let second = Duration::from_secs(1);
        assert_eq!(reader.seconds("WAIT", second, Duration::ZERO..=second), second);
        assert!(!reader.switch("ON", false));
        assert_eq!(reader.choice("MODE", 1, &[("text", 1), ("json", 2)]), 1);
        assert_eq!(reader.required_text("NAME", "the region's name"), "");
        reader.number("LONG", 0_u8, 0..=255);
        let error = reader.finish().unwrap_err();
        assert_eq!(error.problems.len(), 6);
        assert!(error.problems[5].value.as_ref().unwrap().chars().count() == 80);
        let text = error.to_string();
        assert!(
            text.starts_with(
                "COUNT: \"0\" is not a number from 1 to 9; WAIT: \"-1\" is not a number of \
                 seconds from 0 to 1; ON: \"maybe\" is not true or false; MODE: \"xml\" is not one \
                 of text, json; NAME: not set; it must be the region's name; LONG: "
            ),
            "{text}"
        );
    }

    #[test]
    fn the_process_environment_can_be_read() {
        assert!(Environment::process().get("PATH").is_some());
    }
}
