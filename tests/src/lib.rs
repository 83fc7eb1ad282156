//! What the suites share: a region to test on, actors on a table, and how much of either.
//!
//! The suites themselves are in `tests/tests/`, measurements in `tests/benches/`.

pub mod dice;
pub mod fence;
pub mod local;
mod log;
pub mod original;
pub mod proxy;
pub mod real;
pub mod region;
pub mod rights;
pub mod size;
pub mod tables;
