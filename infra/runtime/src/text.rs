//! Bounding of text that comes from outside before it is logged, stored or shown.

/// Shortens `text` to at most `max_chars` characters, the last of which is `…` when something was cut.
///
/// Works on characters, never inside one; `max_chars` of zero gives the empty string.
pub fn bounded(text: &str, max_chars: usize) -> String {
    // Fewer bytes than the bound means fewer characters too: the usual case costs one copy.
    if text.len() <= max_chars || text.chars().nth(max_chars).is_none() {
        return text.to_owned();
    }
    if max_chars == 0 {
        return String::new();
    }
    let mut shortened: String = text.chars().take(max_chars - 1).collect();
    shortened.push('…');
    shortened
}

#[cfg(test)]
mod tests {
    use super::bounded;

    #[test]
    fn text_within_the_bound_is_unchanged() {
        assert_eq!(bounded("abc", 3), "abc");
        assert_eq!(bounded("äöü", 3), "äöü");
        assert_eq!(bounded("", 0), "");
    }

    #[test]
    fn text_over_the_bound_ends_in_an_ellipsis() {
        assert_eq!(bounded("abcd", 3), "ab…");
        assert_eq!(bounded("äöüß", 3), "äö…");
        assert_eq!(bounded("abcd", 1), "…");
        assert_eq!(bounded("abcd", 0), "");
    }
}
