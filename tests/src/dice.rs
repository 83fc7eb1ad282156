//! Numbers from a seed, for the moments that a suite picks.

use gco_runtime::random::Randomness;

/// The next number, at most 32 bits.
#[must_use]
pub fn roll(dice: &dyn Randomness) -> usize {
    // The first eight of a token's hexadecimal digits.
    dice.token().bytes().take(8).fold(0_usize, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            _ => digit.wrapping_sub(b'a').wrapping_add(10) & 15,
        };
        number * 16 + usize::from(value)
    })
}
