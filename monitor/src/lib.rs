//! The per-region reconciler.
//!
//! Data flows one way, and every room hands a finished thing to the next:
//! table row → [`intent`] → [`render`] → [`plan`] → `cluster` → [`report`] → table row.
//! `intent`, `render`, `plan`, `report` and `orphans` are pure: no clock, no randomness, no environment, no client.

pub mod identity;
pub mod intent;
pub mod object;
pub mod orphans;
pub mod plan;
pub mod render;
pub mod report;

#[cfg(feature = "shell")]
pub mod admin;
#[cfg(feature = "shell")]
pub mod cluster;
#[cfg(feature = "shell")]
pub mod config;
#[cfg(feature = "shell")]
pub mod control;
#[cfg(feature = "shell")]
pub mod leadership;
#[cfg(feature = "shell")]
pub mod process;
