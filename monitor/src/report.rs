//! What is true in this region now, from what was observed and done. Pure.

use gco_store::row::EndpointRow;
use gco_store::status::RegionEntry;

use crate::intent::Intent;
use crate::object::{ObjectKey, Observed};
use crate::plan::Obstacle;

/// What kind of failure a step met: decides retry, metric and condition reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// The server refuses the content for good (400, 422, 413).
    Invalid,
    /// Version or uid differ, or a name is taken (409).
    Conflict,
    /// Rights (401, 403).
    Forbidden,
    /// 429.
    Throttled,
    /// 5xx, time-out, connection.
    Unavailable,
    /// Our claim or the row's authority ended; nothing is reported.
    Fenced,
    /// What should not happen.
    Bug,
}

/// A failed step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which object, if one.
    pub key: Option<ObjectKey>,
    /// Kind of failure.
    pub category: Category,
    /// Bounded and clean: no request text, no credentials.
    pub message: String,
}

/// Outcome of one absence sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    /// Nothing was seen and nothing failed.
    pub complete: bool,
    /// What is still there and ours, as `kind/name`.
    pub pending: Vec<String>,
    /// What is there and not ours, as `kind/name`.
    pub foreign: Vec<String>,
    /// Reads that failed.
    pub failures: Vec<String>,
}

/// What a pass did, as the pure part of `cluster`'s result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Steps that succeeded, as `verb kind/name: reason`.
    pub steps: Vec<String>,
    /// What failed.
    pub failures: Vec<Failure>,
    /// What stands in the way.
    pub obstacles: Vec<Obstacle>,
    /// The absence sweep, if one was made.
    pub absence: Option<Absence>,
    /// Consecutive complete absence sweeps of this authority, including this one.
    pub absence_observations: u32,
}

/// What [`report`] needs.
#[derive(Clone, Debug)]
pub struct ReportInput<'a> {
    /// The row that was acted on.
    pub row: &'a EndpointRow,
    /// This region.
    pub region: &'a str,
    /// What was asked.
    pub intent: &'a Intent,
    /// What is there after the pass.
    pub observed: &'a Observed,
    /// What was done.
    pub done: &'a Done,
    /// Hash of the spec's template inputs in the row, when the spec is valid.
    pub spec_hash: Option<&'a str>,
    /// The time, ISO-8601, for `since` of conditions that change and for `last_sync`.
    pub now: &'a str,
}

/// The entry that should stand in the row, or `None` when the stored one already says the same (apart from `last_sync`
/// and `since`), or when this region has nothing to say.
#[must_use]
pub fn report(input: &ReportInput<'_>) -> Option<RegionEntry> {
    let _ = input;
    None
}
