//! Virtual time: the runtime's paused clock, as the two clocks that the product reads.

use std::time::Duration;

use gco_runtime::clock::{BootTime, Clock};
use jiff::Timestamp;
use tokio::time::Instant;

/// Seconds from boot to the beginning of a run: boot time is never zero.
const UPTIME: Duration = Duration::from_secs(3_600);

/// 2026-01-01T00:00:00Z
const BEGINNING_SECONDS: i64 = 1_767_225_600;

/// The clocks of one machine. They go with the runtime's time, which stands still unless everybody waits.
#[derive(Clone, Copy, Debug)]
pub struct VirtualClock {
    began: Instant,
    /// Hundredths of its boot clock's pace; 100 is right.
    pace: u32,
}

impl VirtualClock {
    /// A clock that begins now.
    #[must_use]
    pub fn new() -> Self {
        Self { began: Instant::now(), pace: 100 }
    }

    /// The same clock on a machine whose boot clock runs at this many hundredths of the right pace.
    #[must_use]
    pub fn at_pace(self, pace: u32) -> Self {
        Self { pace, ..self }
    }

    /// How long the run has lasted.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Now, as objects show it.
    #[must_use]
    pub fn stamp(&self) -> String {
        self.wall().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for VirtualClock {
    fn wall(&self) -> Timestamp {
        let beginning = Timestamp::from_second(BEGINNING_SECONDS).unwrap_or(Timestamp::UNIX_EPOCH);
        beginning.saturating_add(self.elapsed()).unwrap_or(beginning)
    }

    fn boot(&self) -> BootTime {
        BootTime::since_boot(UPTIME + self.elapsed() * self.pace / 100)
    }
}
