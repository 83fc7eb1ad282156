//! Times between the pieces of a stream, kept with the stream and given to the metrics at its end: an event must not cost a
//! shared counter.

use std::time::Duration;

use crate::admin::metrics::EVENT_GAP_BOUNDS;

/// [`EVENT_GAP_BOUNDS`] in microseconds.
const BOUNDS: [u64; EVENT_GAP_BOUNDS.len()] =
    [1_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 5_000_000, 30_000_000];

/// How often each length of time was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    counts: [u32; EVENT_GAP_BOUNDS.len() + 1],
    sum_microseconds: u64,
}

impl Gaps {
    /// Counts one.
    pub fn add(&mut self, gap: Duration) {
        let microseconds = u64::try_from(gap.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.iter().position(|bound| microseconds <= *bound).unwrap_or(BOUNDS.len());
        self.counts[bucket] = self.counts[bucket].saturating_add(1);
        self.sum_microseconds = self.sum_microseconds.saturating_add(microseconds);
    }

    /// How many fell into each bucket, the last one being beyond all bounds; not cumulative.
    #[must_use]
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// All of them together.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_microseconds)
    }

    /// Whether none was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| *count == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gap_is_counted_in_its_bucket() {
        let mut gaps = Gaps::default();
        assert!(gaps.is_empty());
        for milliseconds in [0, 1, 2, 20, 31_000] {
            gaps.add(Duration::from_millis(milliseconds));
        }
        assert_eq!(gaps.counts(), [2, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(gaps.sum(), Duration::from_millis(31_023));
        for (seconds, microseconds) in EVENT_GAP_BOUNDS.iter().zip(BOUNDS) {
            assert_eq!(Duration::from_secs_f64(*seconds), Duration::from_micros(microseconds));
        }
    }
}
