//! The prefill-decode proxy in front of simulated engines, all as processes of their own.
//!
//! | What | Where |
//! |---|---|
//! | a process whose log is read, and what it holds of the machine | [`process`] |
//! | engines: started, told to fail, killed, started again at the same ports, asked for their accounts | [`engine`] |

pub mod engine;
pub mod process;

use std::time::Duration;

pub use self::engine::{Engine, EngineSpec};
pub use self::process::Logged;

/// Longer than anything here takes on a busy machine.
pub const BOUND: Duration = Duration::from_secs(60);
