//! Who may change this region's cluster: the Lease, the epoch, the claim.
//!
//! A Lease is coordination and no lock. What makes a stale monitor harmless are the fences behind it (object
//! preconditions, the row's authority, the order rule on objects); this room keeps the time in which two monitors could
//! both work as short as it can be, and never trusts another machine's clock.

mod claim;
pub mod decide;
mod elector;
pub mod record;

pub use claim::{Claim, ClaimOver, Permit};
pub use elector::{Elector, ElectorSettings, LeadershipView};
