//! The engine's own account of what it was given and gave away: what a suite believes rather than what a proxy says.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// KV that moved, seen from one side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Under which id.
    pub transfer_id: String,
    /// From which engine.
    pub engine_id: String,
    /// On the receiving side, the request that it was for (`x-request-id`, or what the engine called it).
    pub request_id: Option<String>,
    /// How much.
    pub bytes: usize,
}

/// KV that decode asked for and did not get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedLoad {
    /// Under which id.
    pub transfer_id: String,
    /// For which request.
    pub request_id: String,
    /// What the engine's log says.
    pub reason: String,
}

/// Everything at one moment. The lists grow until they are cleared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounts {
    /// One per data-parallel rank; empty without a connector.
    pub engine_ids: Vec<String>,
    /// KV that other engines fetched from here.
    pub sent: Vec<Moved>,
    /// KV that this engine fetched.
    pub received: Vec<Moved>,
    /// What it could not fetch.
    pub failed_loads: Vec<FailedLoad>,
    /// Prefills whose KV was kept.
    pub prefilled: u64,
    /// Requests whose prompt was computed here and kept for nobody.
    pub plain: u64,
    /// Pulls that named an engine id of another process.
    pub refused_stale: u64,
    /// KV of another prompt than the request's: two requests were mixed up.
    pub mixed: u64,
    /// Kept KV that was freed because nobody fetched it in time.
    pub expired: u64,
    /// KV that is kept now.
    pub kept: usize,
}

/// The lists behind [`Accounts`].
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Accounts>);

impl Ledger {
    pub(crate) fn note(&self) -> MutexGuard<'_, Accounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
