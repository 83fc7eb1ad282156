//! Medians, ranges and quantiles.

/// The middle of some numbers, with the smallest and the largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median; of an even count the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
    /// How many there are.
    pub count: usize,
}

impl Spread {
    /// Of these numbers, those that are none left out; `None` when nothing is left.
    #[must_use]
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = numbers.into_iter().filter(|number| number.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (&least, &most) = (sorted.first()?, sorted.last()?);
        let upper = sorted.len() / 2;
        let lower = (sorted.len() - 1) / 2;
        let median = f64::midpoint(*sorted.get(lower)?, *sorted.get(upper)?);
        Some(Self { median, least, most, count: sorted.len() })
    }
}

/// The value below which `share` of the samples are (nearest rank); `None` without samples. Changes their order.
#[must_use]
pub fn quantile(samples: &mut [u64], share: f64) -> Option<u64> {
    let last = samples.len().checked_sub(1)?;
    // Rank 1 is the smallest. Lengths are far below what a float counts exactly.
    let rank = (share * samples.len() as f64).ceil().max(1.0) as usize;
    let (_, value, _) = samples.select_nth_unstable((rank - 1).min(last));
    Some(*value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_one_or_between_the_two() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { median: 2.0, least: 1.0, most: 3.0, count: 3 }));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).map(|spread| spread.median), Some(2.5));
        assert_eq!(Spread::of([f64::NAN, 7.0]).map(|spread| (spread.median, spread.count)), Some((7.0, 1)));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_quantile_is_one_of_the_samples_by_nearest_rank() {
        let samples: Vec<u64> = (1..=100).rev().collect();
        let at = |share| quantile(&mut samples.clone(), share);
        assert_eq!((at(0.5), at(0.99), at(1.0), at(0.0)), (Some(50), Some(99), Some(100), Some(1)));
        assert_eq!(quantile(&mut [7], 0.99), Some(7));
        assert_eq!(quantile(&mut [], 0.5), None);
    }
}
