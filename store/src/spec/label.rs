//! The shapes of Kubernetes label keys and values.

/// Longest label value, and longest name part of a label key.
pub(super) const LONGEST_NAME: usize = 63;
/// Longest prefix part of a label key: a DNS subdomain.
const LONGEST_PREFIX: usize = 253;

/// Whether `text` is a label value: empty, or letters, digits, `-`, `_`, `.`, with a letter or digit at both ends.
pub(super) fn is_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

/// Whether `text` is a label key: a name, or a DNS subdomain, a slash and a name.
pub(super) fn is_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
        None => is_name(text),
    }
}

fn is_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let bytes = text.as_bytes();
    let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= LONGEST_NAME && end(bytes.first()) && end(bytes.last()) && bytes.iter().all(|byte| inner(*byte))
}

/// Whether `text` is a DNS subdomain, as names of most objects are.
pub(super) fn is_subdomain(text: &str) -> bool {
    let label = |label: &str| {
        let end = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        end(label.as_bytes().first()) && end(label.as_bytes().last()) && label.bytes().all(inner)
    };
    text.len() <= LONGEST_PREFIX && text.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_keys_follow_the_rules_of_kubernetes() {
        for key in ["a", "eks.amazonaws.com/instance-family", "topology.kubernetes.io/zone", "A_b.c-1"] {
            assert!(is_key(key), "{key}");
        }
        for key in ["", "bad key!", "/a", "a/", "A.b/c", "a/b/c", "-a", "a-", &"a".repeat(64)] {
            assert!(!is_key(key), "{key}");
        }
    }

    #[test]
    fn label_values_may_be_empty_but_not_contain_blanks() {
        for value in ["", "p5", "p5.48xlarge", "NVIDIA_H100"] {
            assert!(is_value(value), "{value}");
        }
        for value in ["p5 ", "a/b", "-a", &"a".repeat(64)] {
            assert!(!is_value(value), "{value}");
        }
    }
}
