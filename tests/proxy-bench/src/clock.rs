//! The clock that the engine and the load share: CLOCK_MONOTONIC, one for the whole machine.

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC now; 0 should the kernel refuse, which it does not for this clock.
#[must_use]
pub fn now_nanos() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0)
    })
}
