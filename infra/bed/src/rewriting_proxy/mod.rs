//! The rewriting proxy.
