//! The only room that talks to the cluster about endpoints: caches that follow it, steps that change it, proofs that
//! something is gone. Every change takes a [`crate::leadership::Claim`].

mod absence;
pub mod api;
pub mod caches;
pub mod error;
mod execute;
mod fence;
pub mod index;
mod reader;
pub mod reduce;

pub use absence::{AbsenceQuestion, Sweep};
pub use api::Api;
pub use caches::Caches;
pub use execute::{Applied, ExecuteInput, Replaced};
pub use fence::Rule;
pub use reader::ClusterReader;

/// Calls and caches together: what a pass works with.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Calls.
    pub(crate) api: Api,
    /// What the watches told.
    pub(crate) caches: Caches,
}

impl Cluster {
    /// A cluster over an API and its caches.
    #[must_use]
    pub fn new(api: Api, caches: Caches) -> Self {
        Self { api, caches }
    }
}
