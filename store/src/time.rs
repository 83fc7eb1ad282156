//! The table's time-stamp format: UTC, `+00:00`, six digits of microseconds, which are left out when exactly zero
//! (contract A.6). Compared only for equality.
use jiff::{Timestamp, ToSpan};

/// `timestamp` as the table writes it; parts finer than a microsecond are cut off.
#[must_use]
pub fn format(timestamp: Timestamp) -> String {
    let microseconds = timestamp.as_microsecond().rem_euclid(1_000_000);
    let seconds = timestamp.strftime("%Y-%m-%dT%H:%M:%S");
    if microseconds == 0 { format!("{seconds}+00:00") } else { format!("{seconds}.{microseconds:06}+00:00") }
}

/// Reads a time-stamp of any writer (any number of fraction digits, `Z` or an offset).
#[must_use]
pub fn parse(text: &str) -> Option<Timestamp> {
    /// Finest fraction that a [`Timestamp`] holds: nanoseconds.
    const MOST_FRACTION_DIGITS: usize = 9;
    let Some((whole, rest)) = text.split_once('.') else { return text.parse().ok() };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    if digits <= MOST_FRACTION_DIGITS {
        return text.parse().ok();
    }
    format!("{whole}.{}{}", &rest[..MOST_FRACTION_DIGITS], &rest[digits..]).parse().ok()
}

/// The version of the next write: the later of `now` and `previous` + 1 µs, so that versions never repeat or go back.
/// An unreadable `previous` counts as absent.
#[must_use]
pub fn next_version(now: Timestamp, previous: Option<&str>) -> String {
    // At the end of the calendar (year 9999) there is no later time; `now` is then as good as any other version.
    let after = previous.and_then(parse).and_then(|previous| previous.checked_add(1.microsecond()).ok());
    format(after.map_or(now, |after| now.max(after)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a valid time")
    }

    #[test]
    fn microseconds_are_written_with_six_digits_and_left_out_when_zero() {
        assert_eq!(format(at("2026-11-03T09:15:27.48192Z")), "2026-11-03T09:15:27.481920+00:00");
        assert_eq!(format(at("2026-11-03T09:15:27Z")), "2026-11-03T09:15:27+00:00");
        assert_eq!(format(at("2026-11-03T09:15:27.000000999Z")), "2026-11-03T09:15:27+00:00");
    }

    #[test]
    fn time_stamps_of_every_writer_are_read() {
        let half_past_ten = at("2026-11-04T10:00:00.5Z");
        for text in [
            "2026-11-04T10:00:00.5+00:00",
            "2026-11-04T10:00:00.500000+00:00",
            "2026-11-04T10:00:00.500000000000Z",
            "2026-11-04T12:00:00.5+02:00",
        ] {
            assert_eq!(parse(text), Some(half_past_ten), "{text}");
        }
        for text in
            ["", "yesterday", "2026-11-04", "2026-11-04T10:00:00", "2026-13-04T10:00:00Z", "2026-11-04T10:00:00.Z"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_version_follows_the_clock_unless_the_row_is_ahead_of_it() {
        let now = at("2026-11-04T10:00:00Z");
        assert_eq!(next_version(now, None), "2026-11-04T10:00:00+00:00");
        assert_eq!(next_version(now, Some("nonsense")), "2026-11-04T10:00:00+00:00");
        assert_eq!(next_version(now, Some("2026-11-04T09:00:00+00:00")), "2026-11-04T10:00:00+00:00");
        assert_eq!(next_version(now, Some("2026-11-04T10:00:00+00:00")), "2026-11-04T10:00:00.000001+00:00");
        assert_eq!(next_version(now, Some("2030-01-01T00:00:00.999999+00:00")), "2030-01-01T00:00:01+00:00");
    }

    proptest! {
        #[test]
        fn versions_always_grow_as_times_and_as_texts(
            clocks in prop::collection::vec(0_i64..4_000_000_000_000_000, 1..20),
        ) {
            let mut previous: Option<String> = None;
            for clock in clocks {
                let now = Timestamp::from_microsecond(clock).expect("in range");
                let version = next_version(now, previous.as_deref());
                if let Some(previous) = &previous {
                    prop_assert!(parse(&version) > parse(previous));
                    // The forward rule of transitions compares texts.
                    prop_assert!(version.as_str() > previous.as_str(), "{} after {}", version, previous);
                }
                previous = Some(version);
            }
        }

        #[test]
        fn a_written_time_reads_back(microsecond in 0_i64..4_000_000_000_000_000) {
            let time = Timestamp::from_microsecond(microsecond).expect("in range");
            prop_assert_eq!(parse(&format(time)), Some(time));
        }
    }
}
