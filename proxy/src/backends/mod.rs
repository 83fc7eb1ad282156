//! The engines behind the proxy: which there are, which can be used now, and one of them for a request.
//!
//! | Part | What it holds |
//! |---|---|
//! | [`Backend`] | one engine: address, requests in flight, breaker, drain flag, engine identity |
//! | [`Fleet`] | all of them by role; chooses one ([`Fleet::pick`]) and keeps account of it until the [`Pick`] is dropped |
//! | [`breaker`] | passive health: closed, open, one probe |
//! | [`engines`] | which engine ids a prefill instance has, asked from its bootstrap server |
//! | [`sources`] | where backends come from: fixed lists, a watched file, EndpointSlices |

mod backend;
pub mod breaker;
pub mod engines;
mod fleet;
pub mod sources;

pub use backend::{Availability, Backend, BackendKey, Bootstrap, Description, Dial, Role};
pub use fleet::{Fleet, FleetSettings, NoBackend, Pick};
