//! Suites on a real control plane with a real scheduler, which all of them share.

#![expect(clippy::unwrap_used, reason = "a suite fails by panicking")]

mod bed;
mod gateway;
mod kubelet;
