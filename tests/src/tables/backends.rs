//! The backends under test: the embedded table, and the real client on both table servers.

use std::sync::Arc;

use gco_store::table::Table;

/// A table to execute transitions on.
#[derive(Clone, Debug)]
pub struct Backend {
    /// `embedded`, `ministack` or `dynalite`.
    pub name: &'static str,
    /// The table.
    pub table: Arc<dyn Table>,
}
