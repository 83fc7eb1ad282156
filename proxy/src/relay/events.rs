//! The beginning of an answer that is held back until its first event is whole.
//!
//! A streaming decode answers 200 before it has any KV, and tells of a failed hand-over in the first event. So the client's
//! head waits for that event.

use bytes::{Bytes, BytesMut};

use super::json;

/// How much is held back while looking for the end of the first event. An engine's first event has a few hundred bytes;
/// whoever sends more than this without a blank line is relayed as it is.
const MOST_HELD: usize = 64 * 1024;

/// What the first event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// It is not whole yet.
    Incomplete,
    /// An event as it should be.
    Good,
    /// An error: `data: {"error": …}`.
    Error,
}

/// The pieces that are held back, in the order and the sizes in which they came.
#[derive(Debug, Default)]
pub struct Held {
    pieces: Vec<Bytes>,
    length: usize,
    is_stream: bool,
}

impl Held {
    /// Holds back the beginning of an event stream, or of another body, which needs only one byte to have begun.
    #[must_use]
    pub fn new(is_stream: bool) -> Self {
        Self { pieces: Vec::new(), length: 0, is_stream }
    }

    /// Takes in the next piece and says what is known of the first event.
    pub fn push(&mut self, piece: Bytes) -> First {
        if piece.is_empty() {
            return First::Incomplete;
        }
        self.length += piece.len();
        self.pieces.push(piece);
        if !self.is_stream {
            return First::Good;
        }
        let first = match self.pieces.as_slice() {
            [only] => first_event(only),
            pieces => {
                let mut joined = BytesMut::with_capacity(self.length);
                pieces.iter().for_each(|piece| joined.extend_from_slice(piece));
                first_event(&joined)
            }
        };
        if first == First::Incomplete && self.length >= MOST_HELD { First::Good } else { first }
    }

    /// The pieces.
    #[must_use]
    pub fn into_pieces(self) -> Vec<Bytes> {
        self.pieces
    }
}

/// Looks at the first event that has data; comments and blank lines before it are passed over.
fn first_event(bytes: &[u8]) -> First {
    let mut has_data = false;
    let mut is_error = false;
    let mut rest = bytes;
    loop {
        let Some(end) = memchr::memchr2(b'\n', b'\r', rest) else { return First::Incomplete };
        let line = &rest[..end];
        let ending = if rest[end..].starts_with(b"\r\n") { 2 } else { 1 };
        if rest[end] == b'\r' && rest.len() == end + 1 {
            // The line feed that belongs to it may be still to come.
            return First::Incomplete;
        }
        rest = &rest[end + ending..];
        if line.is_empty() {
            if has_data {
                return if is_error { First::Error } else { First::Good };
            }
        } else if let Some(data) = line.strip_prefix(b"data:") {
            let object = json::scan(data);
            is_error =
                !has_data && object.is_ok_and(|object| object.value("error").is_some_and(|value| value != b"null"));
            has_data = true;
        }
    }
}

/// Whether an event is under way after `piece`, `before` telling whether one was before it.
#[must_use]
pub fn is_inside_an_event(before: bool, piece: &[u8]) -> bool {
    if piece.is_empty() { before } else { !(piece.ends_with(b"\n\n") || piece.ends_with(b"\r\n\r\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way to cut `text` in two says the same in the end, and nothing before the event is whole.
    fn in_two_pieces(text: &str, is_whole_from: usize, expected: First) {
        for cut in 0..=text.len() {
            let (left, right) = text.as_bytes().split_at(cut);
            let mut held = Held::new(true);
            let first = held.push(Bytes::copy_from_slice(left));
            if cut < is_whole_from {
                assert_eq!(first, First::Incomplete, "{text:?} at {cut}");
                assert_eq!(held.push(Bytes::copy_from_slice(right)), expected, "{text:?} at {cut}");
            } else {
                assert_eq!(first, expected, "{text:?} at {cut}");
            }
        }
    }

    #[test]
    fn the_first_event_is_whole_at_its_blank_line_wherever_it_was_cut() {
        in_two_pieces("data: {\"id\":1}\n\nrest", 16, First::Good);
        in_two_pieces("data: {\"error\":{\"code\":500}}\n\n", 30, First::Error);
        in_two_pieces(": ping\n\ndata: {\"a\":\"ä\"}\n\n", 26, First::Good);
        in_two_pieces("data: [DONE]\n\n", 14, First::Good);
        in_two_pieces("event: x\r\ndata: {\"error\":1}\r\n\r\n", 31, First::Error);
        in_two_pieces("data: {\"error\":null}\n\n", 22, First::Good);
    }

    #[test]
    fn other_bodies_begin_with_their_first_byte_and_endless_lines_are_let_go() {
        let mut held = Held::new(false);
        assert_eq!(held.push(Bytes::new()), First::Incomplete);
        assert_eq!(held.push(Bytes::from_static(b"{")), First::Good);
        let mut held = Held::new(true);
        let piece = Bytes::from(vec![b'x'; MOST_HELD / 2]);
        assert_eq!(held.push(piece.clone()), First::Incomplete);
        assert_eq!(held.push(piece), First::Good);
        assert_eq!(held.into_pieces().len(), 2);
    }

    #[test]
    fn the_end_of_a_piece_tells_whether_an_event_is_under_way() {
        assert!(!is_inside_an_event(true, b"data: x\n\n"));
        assert!(!is_inside_an_event(true, b"data: x\r\n\r\n"));
        assert!(is_inside_an_event(false, b"data: x\n"));
        assert!(is_inside_an_event(true, b""));
        assert!(!is_inside_an_event(false, b""));
    }
}
