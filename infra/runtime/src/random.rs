//! Random tokens: identities of lifecycles, generations and leaders.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes in a token; it is written as twice as many hexadecimal digits.
const TOKEN_BYTES: usize = 32;

/// A source of random tokens.
pub trait Randomness: Send + Sync {
    /// A new token: 64 lowercase hexadecimal digits from 32 random bytes.
    fn token(&self) -> String;
}

impl<R: Randomness + ?Sized> Randomness for std::sync::Arc<R> {
    fn token(&self) -> String {
        (**self).token()
    }
}

/// The machine's source of randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandomness;

impl Randomness for SystemRandomness {
    fn token(&self) -> String {
        let mut bytes = [0_u8; TOKEN_BYTES];
        // Going on with a token that is not random would let two writers share an identity.
        getrandom::fill(&mut bytes).expect("the kernel gives random bytes once it has booted");
        hexadecimal(&bytes)
    }
}

/// A source for tests: the same seed gives the same tokens in the same order.
#[derive(Debug)]
pub struct SeededRandomness {
    state: AtomicU64,
}

impl SeededRandomness {
    /// A source that is determined by `seed` alone.
    pub const fn new(seed: u64) -> Self {
        Self { state: AtomicU64::new(seed) }
    }

    fn next(&self) -> u64 {
        // SplitMix64: one addition of state per step, so threads need no lock.
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut mixed = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

impl Randomness for SeededRandomness {
    fn token(&self) -> String {
        let mut bytes = [0_u8; TOKEN_BYTES];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes());
        }
        hexadecimal(&bytes)
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_is_token(token: &str) {
        assert_eq!(token.len(), 64, "{token}");
        assert!(token.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{token}");
    }

    #[test]
    fn system_tokens_are_64_hexadecimal_digits_and_differ() {
        let (first, second) = (SystemRandomness.token(), SystemRandomness.token());
        assert_is_token(&first);
        assert_is_token(&second);
        assert_ne!(first, second);
    }

    #[test]
    fn the_same_seed_gives_the_same_tokens() {
        let (one, two, other) = (SeededRandomness::new(7), SeededRandomness::new(7), SeededRandomness::new(8));
        let first = one.token();
        assert_is_token(&first);
        assert_eq!(first, two.token());
        assert_eq!(one.token(), two.token());
        assert_ne!(first, one.token());
        assert_ne!(first, other.token());
    }
}
