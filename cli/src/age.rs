//! Lengths of time as people say them.

use jiff::Timestamp;

/// How long before `now` the time-stamp `earlier` was, in whole seconds; zero when it lies ahead.
#[must_use]
pub fn seconds_between(earlier: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(now.as_second().saturating_sub(earlier.as_second())).unwrap_or(0)
}

/// A length of time in its largest whole unit, for example `12 min`.
#[must_use]
pub fn of_seconds(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_said_in_their_largest_whole_unit() {
        let said = [0, 119, 120, 7_199, 7_200, 172_799, 172_800].map(of_seconds);
        assert_eq!(said, ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d"]);
    }

    #[test]
    fn a_time_ahead_of_the_clock_has_no_age() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(seconds_between(at(100), at(160)), 60);
        assert_eq!(seconds_between(at(160), at(100)), 0);
    }
}
