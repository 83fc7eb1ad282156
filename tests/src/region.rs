//! A region to test on: a real control plane, nodes, a table, and monitors as processes.
//!
//! The control planes, with nodes and a kubelet stand-in that lets pods run, are shared by all tests of a binary (see
//! [`planes`]); everything else is a test's own: a [`Region`] has a namespace, an account with the monitor's real Role,
//! and a table. Monitors are the real binary, started by [`Monitor::start`], told what to do by its
//! environment alone, and stopped, frozen or killed by signals.
//!
//! | What | Where |
//! |---|---|
//! | control planes that a binary's tests share | [`planes`] |
//! | namespace, account, objects | [`place`], [`objects`] |
//! | the table, and what people do with it | [`table`], [`rows`] |
//! | monitors | [`monitor`] |
//! | when a row and a cluster agree | [`agreement`] |
//! | what the control plane that came before would say of every write | [`predicates`] |
//! | holding single requests | [`gate`] |
//! | what a row said over time | [`history`] |
//! | every replica count that was | [`counts`] |
//! | what KEDA does | [`keda`] |
//! | requests to an endpoint | [`load`] |

pub mod agreement;
pub mod command;
pub mod counts;
pub mod gate;
pub mod history;
pub mod keda;
pub mod load;
pub mod monitor;
pub mod objects;
pub mod place;
pub mod planes;
pub mod predicates;
pub mod rows;
pub mod table;

use std::time::Duration;

pub use self::history::{History, Look};
pub use self::monitor::{Monitor, MonitorSettings};
pub use self::objects::Snapshot;
pub use self::place::{Region, RegionSettings};
pub use self::planes::Pods;
pub use self::table::{TableKind, TestTable};

/// How long a state may take to come on two busy cores. A wait that is over sooner costs nothing.
pub const BOUND: Duration = Duration::from_secs(90);
