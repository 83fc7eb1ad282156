//! The prefill-decode proxy in front of simulated engines, all as processes of their own.
//!
//! | What | Where |
//! |---|---|
//! | a process whose log is read, and what it holds of the machine | [`process`] |
//! | the proxy with its engines, and that it rests as before | [`split`] |
//! | a client that controls every byte | [`raw`] |
//! | what a client got | [`reply`] |
//! | engines: started, told to fail, killed, started again at the same ports, asked for their accounts | [`engine`] |

pub mod engine;
pub mod process;
pub mod raw;
pub mod reply;
pub mod split;

use std::time::Duration;

pub use self::engine::{Engine, EngineSpec};
pub use self::process::Logged;
pub use self::reply::Reply;
pub use self::split::Split;

/// Longer than anything here takes on a busy machine.
pub const BOUND: Duration = Duration::from_secs(60);
