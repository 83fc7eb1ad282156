//! The listening side.
