//! An in-process model of the Kubernetes API in virtual time, and a world around it: the real monitor, a table, controllers.
//!
//! It exists because a real server cannot do thousands of runs: a crash after request *n*, a lost answer, stale or dropped
//! events, two leaders. It is believed because one suite (`tests/conformance.rs`) runs the same requests against it and a
//! real server. It is never shipped.
//!
//! | What | Where |
//! |---|---|
//! | kinds, and what the server makes of a body | [`object`], [`schema`] |
//! | what is stored, and all that ever happened | [`state`] |
//! | requests, verbs, watches, answers | [`request`], [`server`], [`answer`] |
//! | a process's line to the servers, and what goes wrong on it | [`line`] |
//! | controllers | [`controllers`] |
//! | the tables | [`table`] |
//! | monitors, people, runs | [`world`], [`scenario`] |
//! | what must hold of a run | [`judge`] |
//! | requests that model and server are compared by | [`conformance`] |

pub mod answer;
pub mod clock;
pub mod conformance;
pub mod controllers;
pub mod dice;
pub mod judge;
pub mod line;
pub mod model;
pub mod object;
pub mod request;
pub mod rules;
pub mod runs;
pub mod scenario;
pub mod schema;
pub mod server;
pub mod state;
pub mod table;
mod watching;
pub mod world;

pub use model::Model;
