//! Numbers from a seed.

use gco_runtime::random::{Randomness as _, SeededRandomness};

/// A number below `limit`; 0 when that is 0.
pub fn below(dice: &SeededRandomness, limit: usize) -> usize {
    let token = dice.token();
    let number = token.get(..8).and_then(|digits| usize::from_str_radix(digits, 16).ok()).unwrap_or(0);
    if limit == 0 { 0 } else { number % limit }
}
