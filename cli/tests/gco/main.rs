//! The `gco` binary against a table file in a folder of its own.
#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

mod bad_command_lines;
mod canary;
mod change;
mod deploy;
mod edits;
mod house;
mod list;
mod local;
mod regions;
mod setup;
mod status;
mod tables;
mod watch;
