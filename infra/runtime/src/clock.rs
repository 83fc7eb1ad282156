//! The clocks: wall time for people, boot time for deadlines.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

/// Time since the machine booted, counting while it was suspended.
///
/// Claims and deadlines are kept in this time: a machine that slept past its Lease must see that it
/// did, which a monotonic clock that stops during suspension hides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(Duration);

impl BootTime {
    /// A boot time from the length of time since boot.
    pub const fn since_boot(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// The length of time since boot.
    pub const fn elapsed_since_boot(self) -> Duration {
        self.0
    }

    /// This time plus `duration`; stays at the largest value instead of overflowing.
    #[must_use]
    pub const fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }

    /// How long after `earlier` this time is; zero when it is not after it.
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// This time less `duration`; stays at boot instead of going below it.
    #[must_use]
    pub const fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration))
    }
}

impl std::ops::Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        self.saturating_add(duration)
    }
}

/// The two clocks that code may read.
pub trait Clock: Send + Sync {
    /// The time of day, for what people and other processes read. It may jump either way.
    fn wall(&self) -> Timestamp;

    /// The time since boot, for deadlines and lengths of time. It never goes back.
    fn boot(&self) -> BootTime;
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn wall(&self) -> Timestamp {
        (**self).wall()
    }

    fn boot(&self) -> BootTime {
        (**self).boot()
    }
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

// Linux stops CLOCK_MONOTONIC while suspended; elsewhere the monotonic clock goes on.
#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT_CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_BOOTTIME;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BOOT_CLOCK: nix::time::ClockId = nix::time::ClockId::CLOCK_MONOTONIC;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }

    fn boot(&self) -> BootTime {
        // A made-up value here would be a claim that never ends; a kernel without this clock cannot
        // run a monitor at all.
        let reading =
            nix::time::clock_gettime(BOOT_CLOCK).expect("the boot-time clock is part of every kernel since 2.6.39");
        BootTime(Duration::from(reading))
    }
}

/// A clock for tests that moves only when told.
#[derive(Debug)]
pub struct ManualClock {
    now: Mutex<(Timestamp, BootTime)>,
}

impl ManualClock {
    /// A clock that stands at `wall`, one hour after boot.
    pub fn new(wall: Timestamp) -> Self {
        Self { now: Mutex::new((wall, BootTime(Duration::from_secs(3600)))) }
    }

    /// Moves both clocks on by `duration`, as time does.
    pub fn advance(&self, duration: Duration) {
        let mut now = self.lock();
        now.0 = now.0.saturating_add(duration).unwrap_or(Timestamp::MAX);
        now.1 = now.1 + duration;
    }

    /// Sets the wall clock alone, as an administrator or a time server may.
    pub fn set_wall(&self, wall: Timestamp) {
        self.lock().0 = wall;
    }

    fn lock(&self) -> MutexGuard<'_, (Timestamp, BootTime)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ManualClock {
    /// Stands at 2025-01-01T00:00:00Z.
    fn default() -> Self {
        Self::new(Timestamp::from_second(1_735_689_600).unwrap_or(Timestamp::UNIX_EPOCH))
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> Timestamp {
        self.lock().0
    }

    fn boot(&self) -> BootTime {
        self.lock().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_never_goes_back_and_counts_since_boot() {
        let first = SystemClock.boot();
        let second = SystemClock.boot();
        assert!(second >= first);
        assert!(first > BootTime::default());
    }

    #[test]
    fn boot_time_saturates_at_both_ends() {
        let early = BootTime::since_boot(Duration::from_secs(1));
        let late = early + Duration::from_secs(2);
        assert_eq!(late.saturating_duration_since(early), Duration::from_secs(2));
        assert_eq!(early.saturating_duration_since(late), Duration::ZERO);
        assert_eq!(early.saturating_sub(Duration::from_secs(5)), BootTime::default());
        assert_eq!(late + Duration::MAX, BootTime::since_boot(Duration::MAX));
    }

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = ManualClock::default();
        let (wall, boot) = (clock.wall(), clock.boot());
        assert_eq!((clock.wall(), clock.boot()), (wall, boot));
        clock.advance(Duration::from_millis(1500));
        assert_eq!(clock.boot().saturating_duration_since(boot), Duration::from_millis(1500));
        assert_eq!(clock.wall().duration_since(wall).as_millis(), 1500);
        clock.set_wall(Timestamp::UNIX_EPOCH);
        assert_eq!(clock.wall(), Timestamp::UNIX_EPOCH);
        assert_eq!(clock.boot().saturating_duration_since(boot), Duration::from_millis(1500));
    }
}
