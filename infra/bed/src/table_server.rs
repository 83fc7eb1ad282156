//! Table servers.
