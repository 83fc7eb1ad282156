//! The table's time-stamp format: UTC, `+00:00`, six digits of microseconds, which are left out when exactly zero
//! (contract A.6). Compared only for equality.
use jiff::Timestamp;

/// `timestamp` as the table writes it.
#[must_use]
pub fn format(timestamp: Timestamp) -> String {
    let _ = timestamp;
    String::new()
}

/// Reads a time-stamp of any writer (any number of fraction digits, `Z` or an offset).
#[must_use]
pub fn parse(text: &str) -> Option<Timestamp> {
    let _ = text;
    None
}

/// The version of the next write: the later of `now` and `previous` + 1 µs, so that versions never repeat or go back.
/// An unreadable `previous` counts as absent.
#[must_use]
pub fn next_version(now: Timestamp, previous: Option<&str>) -> String {
    let _ = previous;
    format(now)
}
