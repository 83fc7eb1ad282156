//! Logs of our programs: one JSON object per line.

use std::path::Path;

use serde_json::Value;

/// The whole lines so far that are JSON; the program may be in the middle of one.
///
/// # Errors
/// When the file cannot be read.
pub(crate) fn lines_of(path: &Path) -> std::io::Result<Vec<Value>> {
    let text = std::fs::read_to_string(path)?;
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    Ok(complete.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}
