//! Tests of the rooms that need no cluster: intent, render, plan, report.
//!
//! One binary, so that two cores link once. The reference files under `tests/golden` are rewritten with
//! `UPDATE_GOLDEN=1 cargo test -p gco-monitor --no-default-features --test pure_rooms`; read the difference before
//! committing it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails; helpers are part of tests")]

mod canary;
mod facts;
mod golden;
mod intent;
mod orphans;
mod plan;
mod plan_convergence;
mod regions;
mod render;
mod report;
mod secrets;
mod server;
mod support;
