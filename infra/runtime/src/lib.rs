//! What every binary of GCO inference shares: logs, clocks, randomness, the process environment,
//! the metrics registry, shutdown and the TLS provider.
//!
//! Wall clocks and environment reads are banned everywhere else (see `clippy.toml`), so that the
//! rest of the code can be run in virtual time and with a made-up environment.

pub mod clock;
pub mod environment;
pub mod log;
pub mod metrics;
pub mod random;
pub mod shutdown;
pub mod text;
pub mod tls;
