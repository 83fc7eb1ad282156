//! Real model servers: vLLM on the CPU with a tiny model, installed by `tests/real-engines.sh`.
//!
//! | What | Where |
//! |---|---|
//! | an engine: started, frozen, killed with all of its processes, asked for its metrics | [`engine`] |
//! | requests whose answers can be compared, and hostile ones | [`bodies`] |
//! | one line per check, and the counts at the end | [`report`] |

pub mod bodies;
pub mod engine;
pub mod report;

pub use self::engine::{RealEngine, RealEngineSpec, Tokens};
pub use self::report::Report;
