//! What the store does, seen through its public API: one program, so that it is linked once.

mod canary;
mod common;
mod evaluation;
mod operations;
mod regions;
mod rows;
mod sequences;
mod spec;
mod transitions;
mod wire;

#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "embedded")]
mod embedded;
