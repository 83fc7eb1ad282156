//! One row of the endpoint table, typed as far as it can be read.

use std::collections::BTreeMap;

use crate::problem::FieldProblem;
use crate::status::RegionEntry;
use crate::wire::{Item, Value};

/// What the row asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DesiredState {
    /// Created or (by the original) edited; not yet serving anywhere.
    Deploying,
    /// Should serve; routers let traffic through.
    Running,
    /// Should hold no pods.
    Stopped,
    /// Should vanish; terminal.
    Deleted,
    /// A word that this version does not know: nothing is done for it.
    Unknown(String),
}

/// One endpoint as the table holds it.
///
/// Reading never loses anything: [`EndpointRow::item`] is the row exactly as read. Attributes of a wrong type read as
/// absent and are named in [`EndpointRow::problems`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointRow {
    /// `endpoint_name`
    pub name: String,
    /// `lifecycle_id`: 64 hexadecimal digits; absent on rows older than lifecycle fencing.
    pub lifecycle_id: Option<String>,
    /// `desired_state`; absent reads as `deploying`.
    pub desired_state: DesiredState,
    /// `target_regions`, in order.
    pub target_regions: Vec<String>,
    /// `cleanup_regions`; `None` when absent.
    pub cleanup_regions: Option<Vec<String>>,
    /// `region_generations`; `None` when absent.
    pub region_generations: Option<BTreeMap<String, String>>,
    /// `namespace`
    pub namespace: Option<String>,
    /// `spec`, unchecked; `Null` when absent. [`crate::spec::Spec::check`] types it.
    pub spec: Value,
    /// `ingress_path`
    pub ingress_path: Option<String>,
    /// `created_at`
    pub created_at: Option<String>,
    /// `updated_at`: the row's version.
    pub updated_at: Option<String>,
    /// `region_status` by region.
    pub region_status: BTreeMap<String, RegionEntry>,
    /// `labels`
    pub labels: BTreeMap<String, String>,
    /// `created_by`
    pub created_by: Option<String>,
    /// `deletion_generation`
    pub deletion_generation: Option<String>,
    /// `deletion_regions`; `None` when absent.
    pub deletion_regions: Option<Vec<String>>,
    /// `control.paused` (ours; the original keeps it and does not know it).
    pub paused: bool,
    /// Attributes of a type that the contract does not give them.
    pub problems: Vec<FieldProblem>,
    /// The row exactly as read.
    pub item: Item,
}

impl EndpointRow {
    /// Reads a row.
    ///
    /// # Errors
    /// Only when `endpoint_name` is absent, empty or not a string.
    pub fn parse(item: Item) -> Result<Self, FieldProblem> {
        let _ = item;
        Err(FieldProblem::new("endpoint_name", "must be a non-empty string"))
    }
}
