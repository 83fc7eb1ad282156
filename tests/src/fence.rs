//! A leader that was deposed and does not know it, its successor, and the admission fence between them.
//!
//! Both are played with the monitor's own account and real requests, so that every verb on every kind of its Role can be
//! tried, thousands of times, at the moment that matters. What the real monitor does under the fence is for its suite.
//!
//! | Part | What it is |
//! |---|---|
//! | [`kinds`] | an object of each kind that the Role writes |
//! | [`calls`] | requests whose refusals are answers |
//! | [`old_leader`] | writes under an old term, from fresh reads, without end |
//! | [`fenced`] | a region in which the fence can be put up, taken down and broken |
//! | [`takeover`] | one take-over, and what the old leader got through |

pub mod calls;
pub mod fenced;
pub mod kinds;
pub mod old_leader;
pub mod takeover;

/// The namespace that the fence holds in.
pub use gco_local::platform::INFERENCE_NAMESPACE as NAMESPACE;
