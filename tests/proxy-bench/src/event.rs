//! Events of a stream. Each carries the time at which it was written, so that its way through a proxy can be timed.

use crate::tag::{TICKET_DIGITS, write_digits};

/// Stands before the time, and nowhere else in a stream.
const MARK: u8 = b'@';

/// Digits of the time: nanoseconds of CLOCK_MONOTONIC, all that 64 bits can need.
const TIME_DIGITS: usize = 20;

/// What a stream ends with.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// The name that an answer has, and by which it is known as the one that was asked for.
#[must_use]
pub fn answer_id(ticket: u64) -> String {
    format!("cmpl-{ticket:0TICKET_DIGITS$}")
}

/// One event as a chunk of a chunked body, written over with a new time for every use.
#[derive(Debug)]
pub struct EventChunk {
    bytes: Vec<u8>,
    time_at: usize,
}

impl EventChunk {
    /// An event of `event_bytes` bytes, or of as many as its form needs when that is more.
    #[must_use]
    pub fn new(ticket: u64, event_bytes: usize) -> Self {
        let before = format!(
            r#"data: {{"id":"{}","object":"text_completion","created":0,"model":"bench","choices":[{{"index":0,"text":"{}"#,
            answer_id(ticket),
            char::from(MARK)
        );
        let after = "\"}]}\n\n";
        let padding = event_bytes.saturating_sub(before.len() + TIME_DIGITS + after.len());
        let size = before.len() + TIME_DIGITS + padding + after.len();
        let mut bytes = format!("{size:x}\r\n{before}").into_bytes();
        let time_at = bytes.len();
        bytes.extend(std::iter::repeat_n(b'0', TIME_DIGITS));
        bytes.extend(std::iter::repeat_n(b'x', padding));
        bytes.extend_from_slice(after.as_bytes());
        bytes.extend_from_slice(b"\r\n");
        Self { bytes, time_at }
    }

    /// The chunk with this time.
    pub fn at(&mut self, nanos: u64) -> &[u8] {
        if let Some(place) = self.bytes.get_mut(self.time_at..self.time_at + TIME_DIGITS) {
            write_digits(place, nanos);
        }
        &self.bytes
    }
}

/// Finds the times of events in the pieces of a stream, however it is cut.
#[derive(Debug, Default)]
pub struct EventTimes {
    /// Digits still to come of a time that has begun.
    missing: usize,
    value: u64,
}

impl EventTimes {
    /// Gives the time of every event that ends its time in this piece.
    ///
    /// A mark that no digits follow is not counted.
    pub fn scan(&mut self, piece: &[u8], mut found: impl FnMut(u64)) {
        let mut rest = piece;
        loop {
            if self.missing == 0 {
                let Some(at) = memchr::memchr(MARK, rest) else { return };
                rest = rest.get(at + 1..).unwrap_or_default();
                (self.missing, self.value) = (TIME_DIGITS, 0);
            }
            let digits = rest.get(..self.missing.min(rest.len())).unwrap_or_default();
            for digit in digits {
                if !digit.is_ascii_digit() {
                    self.missing = 0;
                    break;
                }
                self.value = self.value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
                self.missing -= 1;
                if self.missing == 0 {
                    found(self.value);
                }
            }
            rest = rest.get(digits.len()..).unwrap_or_default();
            if rest.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The event without the chunk's frame.
    fn event(ticket: u64, bytes: usize, nanos: u64) -> Vec<u8> {
        let mut chunk = EventChunk::new(ticket, bytes);
        let text = String::from_utf8(chunk.at(nanos).to_vec()).unwrap();
        let (size, rest) = text.split_once("\r\n").unwrap();
        let body = rest.strip_suffix("\r\n").unwrap();
        assert_eq!(usize::from_str_radix(size, 16).unwrap(), body.len());
        body.as_bytes().to_vec()
    }

    #[test]
    fn an_event_is_as_long_as_asked_and_is_json() {
        let event = event(7, 300, 1_234_567_890_123);
        assert_eq!(event.len(), 300);
        let json: serde_json::Value = serde_json::from_slice(&event["data: ".len()..]).unwrap();
        assert_eq!(json["id"], "cmpl-0000000007");
        assert!(json["choices"][0]["text"].as_str().unwrap().starts_with("@00000001234567890123"));
    }

    #[test]
    fn times_are_found_wherever_the_stream_is_cut() {
        let times = [1, 18_446_744_073_709_551_615, 98_765_432_109];
        let mut stream: Vec<u8> = times.iter().flat_map(|nanos| event(1, 200, *nanos)).collect();
        stream.extend_from_slice(DONE);
        for cut in 0..stream.len() {
            let (mut scanner, mut found) = (EventTimes::default(), Vec::new());
            for piece in [&stream[..cut], &stream[cut..]] {
                scanner.scan(piece, |nanos| found.push(nanos));
            }
            assert_eq!(found, times, "cut at {cut}");
        }
    }

    #[test]
    fn a_mark_without_digits_is_no_event() {
        let (mut scanner, mut found) = (EventTimes::default(), Vec::new());
        scanner.scan(b"a@b.c and ", |nanos| found.push(nanos));
        scanner.scan(b"@00000000000000000005", |nanos| found.push(nanos));
        assert_eq!(found, [5]);
    }
}
