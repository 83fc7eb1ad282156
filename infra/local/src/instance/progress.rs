//! Lines for the person who waits.

use std::fmt::Display;

use gco_runtime::clock::{BootTime, Clock as _, SystemClock};

/// Writes to standard error, which is for talk; standard output is for what was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    started: BootTime,
}

impl Progress {
    /// Counts from now on.
    #[must_use]
    pub fn start() -> Self {
        Self { started: SystemClock.boot() }
    }

    /// One line.
    pub fn say(&self, text: impl Display) {
        tracing::info!("{text}");
        eprintln!("{text}");
    }

    /// One line, with the time since the start.
    pub fn say_time(&self, text: impl Display) {
        let elapsed = SystemClock.boot().saturating_duration_since(self.started);
        self.say(format_args!("{text} ({:.1} s)", elapsed.as_secs_f64()));
    }
}
