//! Which names an endpoint may have, and which object names follow from one.
use crate::problem::FieldProblem;

/// Suffixes of objects that an endpoint owns besides the one with its own name (contract C.9).
pub const RESERVED_SUFFIXES: [&str; 8] =
    ["-canary", "-prefill", "-decode", "-proxy", "-store", "-admin", "-mooncake", "-pd-proxy"];

/// Longest endpoint name: 63 characters of a label value or Service name minus `-prefill` (8).
pub const LONGEST_NAME_CHARACTERS: usize = 55;

/// Checks a name for a new endpoint: DNS-1035, at most 55 characters, no reserved suffix (D-5).
///
/// # Errors
/// What is wrong, and what is allowed.
pub fn check_new(name: &str) -> Result<(), FieldProblem> {
    let _ = name;
    Ok(())
}

/// Whether the objects of the endpoints `one` and `other` could share a name.
#[must_use]
pub fn collide(one: &str, other: &str) -> bool {
    let _ = (one, other);
    false
}
