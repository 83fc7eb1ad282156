//! The single measurements: what is sent, and for how long.

use std::time::Duration;

use crate::load::{Pace, Plan};
use crate::tag::Tag;

/// Bytes of a request's body unless a cell says otherwise.
const BODY_BYTES: usize = 1024;

/// A group of cells that share how processes are placed and started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The proxy has a core for itself; engine and load share the other. As fast as it goes, and paced events.
    Main,
    /// The same, with requests at a fixed rate.
    Rate,
    /// Proxy, engine and load share both cores, nothing is pinned.
    Two,
    /// Resident memory without load and with 1,000 open streams.
    Memory,
    /// Clients that ask for much and read nothing.
    Slow,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Main, Self::Rate, Self::Two, Self::Memory, Self::Slow];

    /// Its name in arguments and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Rate => "rate",
            Self::Two => "two",
            Self::Memory => "memory",
            Self::Slow => "slow",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// One measurement under load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Its name in results.
    pub name: &'static str,
    /// What it belongs to.
    pub mode: Mode,
    /// What is sent.
    pub plan: Plan,
    /// How long before measuring begins.
    pub warm: Duration,
    /// How long is measured.
    pub measured: Duration,
    /// Whether the client that does both hops by itself is measured, too: where it is the base of a figure.
    pub for_both_bases: bool,
}

const fn plan(connections: usize, tag: Tag) -> Plan {
    Plan { connections, pace: Pace::Closed, tag, body_bytes: BODY_BYTES, stagger: Duration::ZERO, times_events: false }
}

const fn cell(name: &'static str, mode: Mode, plan: Plan) -> Cell {
    let (warm, measured) = (Duration::from_millis(250), Duration::from_millis(1_000));
    Cell { name, mode, plan, warm, measured, for_both_bases: true }
}

/// A stream's tokens as fast as they go.
const SHORT_STREAM: Tag = Tag::stream(16, 200, 0);
const LONG_STREAM: Tag = Tag::stream(500, 200, 0);
/// 50 events a second for 0.8 seconds.
const PACED_STREAM: Tag = Tag::stream(40, 200, 20_000);

/// Every cell under load, in the order in which they run.
pub const CELLS: [Cell; 11] = [
    cell("whole-1", Mode::Main, plan(1, Tag::whole())),
    cell("whole-16", Mode::Main, plan(16, Tag::whole())),
    Cell { measured: Duration::from_millis(1_500), ..cell("whole-64", Mode::Main, plan(64, Tag::whole())) },
    cell("whole-256", Mode::Main, plan(256, Tag::whole())),
    cell("stream-1", Mode::Main, plan(1, SHORT_STREAM)),
    Cell { measured: Duration::from_millis(1_500), ..cell("events-64", Mode::Main, plan(64, LONG_STREAM)) },
    Cell {
        // Streams begin over the length of one, so that they do not all begin again together.
        warm: Duration::from_millis(1_000),
        measured: Duration::from_millis(2_000),
        ..cell(
            "paced-256",
            Mode::Main,
            Plan { stagger: Duration::from_millis(800), times_events: true, ..plan(256, PACED_STREAM) },
        )
    },
    cell("prompt-64k", Mode::Main, Plan { body_bytes: 64 * 1024, ..plan(16, Tag::whole()) }),
    Cell {
        warm: Duration::from_millis(400),
        measured: Duration::from_millis(2_000),
        ..cell("rate-2000", Mode::Rate, Plan { pace: Pace::Rate(2_000), ..plan(64, Tag::whole()) })
    },
    Cell {
        warm: Duration::from_millis(500),
        measured: Duration::from_millis(2_000),
        ..cell("two-whole-64", Mode::Two, plan(64, Tag::whole()))
    },
    Cell {
        warm: Duration::from_millis(500),
        for_both_bases: false,
        ..cell("two-events-64", Mode::Two, plan(64, LONG_STREAM))
    },
];

/// What a contender gets before its first cell.
pub const WARM_UP: Plan = plan(8, Tag::whole());
/// And for how long.
pub const WARM_UP_FOR: Duration = Duration::from_millis(400);

/// The cells of the two modes that are no plain load.
pub const MEMORY: &str = "memory";
/// See [`MEMORY`].
pub const SLOW: &str = "slow";

/// How much of everything is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Rounds: each measures every contender once.
    pub rounds: u32,
    /// Rounds in which slow readers are looked at: what they do does not vary.
    pub slow_rounds: u32,
    /// What measured times are multiplied by.
    pub time: f64,
    /// How long idle cores are waited for before each cell.
    pub idle_wait: Duration,
}

/// What 1,000 streams with an event each 200 ms are.
#[must_use]
pub fn memory_plan() -> Plan {
    Plan {
        pace: Pace::Once,
        // They begin over 1.5 s and last 12 s: longer than the measurement, after which they are closed.
        stagger: Duration::from_millis(1_500),
        times_events: true,
        ..plan(1_000, Tag::stream(60, 200, 200_000))
    }
}

/// From the first stream to the measurement, when all are open and warm.
pub const MEMORY_RAMP: Duration = Duration::from_millis(2_500);
/// How long CPU time is counted then.
pub const MEMORY_MEASURED: Duration = Duration::from_millis(3_000);
/// How long a proxy rests before its idle memory is read, and after the streams.
pub const MEMORY_REST: Duration = Duration::from_millis(1_000);

/// Clients that do not read.
pub const SLOW_READERS: usize = 4;
/// What each asks for: 1,280 events of 62,500 bytes, 80 MB.
pub const SLOW_STREAM: Tag = Tag::stream(1_280, 62_500, 0);
/// Decode has been held back when it could write nothing for so long.
pub const SLOW_STILL: Duration = Duration::from_millis(600);
/// How long that is waited for.
pub const SLOW_BOUND: Duration = Duration::from_secs(15);
