//! What is wrong with a field, said so that a person can mend it.

use std::fmt;

/// Longest part of an offending value that a message repeats, in characters: enough to recognise it, too little to fill
/// a row (400 KB) or a terminal.
pub const QUOTED_VALUE_CHARACTERS: usize = 80;

/// One bad (or ineffective) field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldProblem {
    /// Path of the field as a user writes it, for example `spec.autoscaling.metrics[0].target`.
    pub field: String,
    /// What was found and what is allowed, for example `must be an integer from 1 to 65535, got 70000`.
    pub message: String,
}

impl FieldProblem {
    /// A problem of `field`; the message is cut at 300 characters.
    pub fn new(field: impl Into<String>, message: impl AsRef<str>) -> Self {
        Self { field: field.into(), message: bounded(message.as_ref(), 300) }
    }
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.field, self.message)
    }
}

/// `text` with control characters as spaces, cut at `limit` characters (an ellipsis is the last of them).
#[must_use]
pub fn bounded(text: &str, limit: usize) -> String {
    let clean = |character: char| if character.is_control() { ' ' } else { character };
    if text.chars().count() <= limit {
        return text.chars().map(clean).collect();
    }
    let mut cut: String = text.chars().take(limit.saturating_sub(1)).map(clean).collect();
    cut.push('…');
    cut
}

/// All problems in one line, joined by `; `, bounded in number (20) so that it always fits a status entry.
#[must_use]
pub fn joined(problems: &[FieldProblem]) -> String {
    const SHOWN: usize = 20;
    let mut text = problems.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if problems.len() > SHOWN {
        text.push_str(&format!("; and {} more", problems.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cleaned_and_cut_at_characters() {
        assert_eq!(bounded("a\nb\tc", 10), "a b c");
        assert_eq!(bounded("\u{e4}\u{e4}\u{e4}\u{e4}", 4), "\u{e4}\u{e4}\u{e4}\u{e4}");
        assert_eq!(bounded("\u{e4}\u{e4}\u{e4}\u{e4}", 3), "\u{e4}\u{e4}…");
        assert_eq!(FieldProblem::new("f", "x".repeat(1000)).message.chars().count(), 300);
    }

    #[test]
    fn many_problems_are_counted_rather_than_listed() {
        let problems: Vec<FieldProblem> =
            (0..25).map(|number| FieldProblem::new(format!("f{number}"), "is wrong")).collect();
        let text = joined(&problems);
        assert!(text.starts_with("f0: is wrong; f1: is wrong"));
        assert!(text.ends_with("f19: is wrong; and 5 more"), "{text}");
    }
}
