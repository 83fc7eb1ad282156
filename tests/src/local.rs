//! Regions on one machine as people run them: the real `gco-local` with everything that it starts.
//!
//! | What | Where |
//! |---|---|
//! | starting, killing and stopping it, and what belongs to it | [`instance`] |
//! | what an endpoint came to, comparable between two runs | [`ending`] |
//! | requests as clients of a Service send them, and a router that looks at the row | [`traffic`] |
//! | requests through a gateway, and who answered them | [`share`] |

pub mod ending;
pub mod instance;
pub mod share;
pub mod traffic;

use std::time::Duration;

pub use self::instance::LocalInstance;

/// How long a state of an instance may take to come: two busy cores carry its control planes, and a killed monitor's Lease
/// has to expire first.
pub const BOUND: Duration = Duration::from_secs(240);
