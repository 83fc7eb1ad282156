//! Names of requests and transfers, and the randomness for choosing backends.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use gco_runtime::random::Randomness;
use http::HeaderValue;

/// A source that is seeded from the machine's randomness once, so that a request costs no system call.
///
/// Names are unique, not secret: 64 bits tell this source from all others, 64 count.
#[derive(Debug)]
pub(super) struct Ids {
    source: u64,
    count: AtomicU64,
    state: AtomicU64,
}

impl Ids {
    /// A new source.
    #[must_use]
    pub(super) fn new(randomness: &dyn Randomness) -> Self {
        let token = randomness.token();
        let part = |from: usize| {
            token.get(from..from + 16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default()
        };
        Self { source: part(0), count: AtomicU64::new(0), state: AtomicU64::new(part(16)) }
    }

    /// An evenly distributed number.
    pub(super) fn random(&self) -> u64 {
        // SplitMix64: one addition of state per step, so threads need no lock.
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut mixed = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A name for a request whose client gave it none.
    pub(super) fn request_id(&self) -> HeaderValue {
        // Hexadecimal digits and a hyphen are what a header may hold; there is nothing to fail.
        HeaderValue::from_maybe_shared(Bytes::from(self.name("req-")))
            .unwrap_or_else(|_| HeaderValue::from_static("req-"))
    }

    /// A name for one try to hand KV over.
    pub(super) fn transfer_id(&self) -> String {
        self.name("xfer-")
    }

    fn name(&self, before: &str) -> String {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let mut name = String::with_capacity(before.len() + 32);
        name.push_str(before);
        for word in [self.source, count] {
            name.push_str(str::from_utf8(&hexadecimal(word)).unwrap_or_default());
        }
        name
    }
}

/// The 16 digits of a word.
fn hexadecimal(word: u64) -> [u8; 16] {
    let mut shift = u64::BITS;
    [(); 16].map(|()| {
        shift -= 4;
        b"0123456789abcdef"[(word >> shift) as usize & 0xF]
    })
}

#[cfg(test)]
mod tests {
    use gco_runtime::random::SeededRandomness;

    use super::*;

    #[test]
    fn names_are_never_the_same() {
        let (one, two) = (Ids::new(&SeededRandomness::new(1)), Ids::new(&SeededRandomness::new(2)));
        let mut names: Vec<String> = (0..100).flat_map(|_| [one.transfer_id(), two.transfer_id()]).collect();
        assert!(names.iter().all(|name| name.len() == 5 + 32 && name.starts_with("xfer-")));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 200);
        assert!(one.request_id().to_str().unwrap().starts_with("req-"));
        assert_ne!(one.random(), one.random());
    }

    #[test]
    fn a_word_is_written_with_all_its_digits() {
        assert_eq!(&hexadecimal(0x0123_4567_89AB_CDEF), b"0123456789abcdef");
        assert_eq!(&hexadecimal(7), b"0000000000000007");
    }
}
