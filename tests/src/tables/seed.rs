//! Random choices that a seed determines.

use gco_runtime::random::{Randomness, SeededRandomness};

/// A source of choices; the same seed gives the same choices in the same order on every machine.
#[derive(Debug)]
pub struct Seed {
    randomness: SeededRandomness,
}

impl Seed {
    /// A source that is determined by `seed` alone.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { randomness: SeededRandomness::new(seed) }
    }

    /// A token as the product mints them: 64 hexadecimal digits.
    pub fn token(&mut self) -> String {
        self.randomness.token()
    }

    /// A number from 0 to `bound` − 1; 0 when `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // 32 bits of a token are plenty for bounds of a few hundred.
        let token = self.token();
        let number = u32::from_str_radix(token.get(..8).unwrap_or_default(), 16).unwrap_or_default();
        usize::try_from(number).unwrap_or_default().checked_rem(bound).unwrap_or_default()
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`; `None` when there is none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        let index = self.below(choices.len());
        choices.get(index)
    }

    /// One of `choices` by weight; `None` when all weights are 0.
    pub fn pick_weighted<'a, T>(&mut self, choices: &'a [(usize, T)]) -> Option<&'a T> {
        let mut left = self.below(choices.iter().map(|(weight, _)| weight).sum());
        choices.iter().find_map(|(weight, choice)| {
            if left < *weight {
                return Some(choice);
            }
            left -= weight;
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_choices() {
        let choices = |seed| {
            let mut seed = Seed::new(seed);
            (0..50).map(|_| seed.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(choices(7), choices(7));
        assert_ne!(choices(7), choices(8));
    }

    #[test]
    fn weights_decide_and_zero_is_never_picked() {
        let mut seed = Seed::new(1);
        let mut counts = [0_usize; 3];
        for _ in 0..1000 {
            counts[*seed.pick_weighted(&[(9, 0), (0, 1), (1, 2)]).unwrap()] += 1;
        }
        assert!(counts[0] > 800 && counts[1] == 0 && counts[2] > 50, "{counts:?}");
        assert_eq!(seed.pick_weighted::<u8>(&[]), None);
        assert_eq!(seed.pick::<u8>(&[]), None);
    }
}
