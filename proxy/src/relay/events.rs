//! The beginning of an answer that is held back until its first event is whole.
//!
//! A streaming decode answers 200 before it has any KV, and tells of a failed hand-over in the first event that says
//! anything. So the client's head waits for that event. vLLM begins a chat with an event that has a role and no text, also
//! when the hand-over fails right after it: that one says nothing.

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
    /// Every event so far has a role and nothing else, which tells only that the engine's word is about to come.
    RoleOnly,
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
        let is_open = matches!(first, First::Incomplete | First::RoleOnly);
        if is_open && self.length >= MOST_HELD { First::Good } else { first }
    }

    /// The pieces.
    #[must_use]
    pub fn into_pieces(self) -> Vec<Bytes> {
        self.pieces
    }
}

/// Looks at the first event whose data says anything; comments and blank lines before it are passed over.
fn first_event(bytes: &[u8]) -> First {
    let mut until_now = First::Incomplete;
    let mut event = None;
    let mut rest = bytes;
    loop {
        let Some(end) = memchr::memchr2(b'\n', b'\r', rest) else { return until_now };
        let line = &rest[..end];
        let ending = if rest[end..].starts_with(b"\r\n") { 2 } else { 1 };
        if rest[end] == b'\r' && rest.len() == end + 1 {
            // The line feed that belongs to it may be still to come.
            return until_now;
        }
        rest = &rest[end + ending..];
        if line.is_empty() {
            match event.take() {
                None => {}
                Some(First::RoleOnly) => until_now = First::RoleOnly,
                Some(says) => return says,
            }
        } else if let Some(data) = line.strip_prefix(b"data:") {
            // An engine writes an event's data on one line; whatever has more is no error object.
            event = Some(if event.is_none() { says(data) } else { First::Good });
        }
    }
}

/// What the data of one event say.
fn says(data: &[u8]) -> First {
    let Ok(object) = json::scan(data) else { return First::Good };
    if object.value("error").is_some_and(|value| value != b"null") {
        First::Error
    } else if has_only_roles(&object) {
        First::RoleOnly
    } else {
        First::Good
    }
}

/// Whether each choice of a chat's event has a role, and neither text nor an end.
///
/// Usage, token ids of the prompt and whatever else stands beside the choices tells nothing of the KV.
fn has_only_roles(chunk: &json::Object<'_>) -> bool {
    let says_nothing = |value: &[u8]| matches!(value, b"null" | b"\"\"" | b"[]");
    let has_only_a_role = |choice: &[u8]| {
        let Ok(choice) = json::scan(choice) else { return false };
        let Some(Ok(delta)) = choice.value("delta").map(json::scan) else { return false };
        choice.value("finish_reason").is_none_or(says_nothing)
            && delta.value("role").is_some_and(|role| !says_nothing(role))
            && delta
                .members
                .iter()
                .all(|member| *member.key == *b"role" || says_nothing(&delta.bytes[member.value.clone()]))
    };
    let choices = chunk.value("choices").and_then(|choices| json::elements(choices, usize::MAX));
    choices.is_some_and(|choices| !choices.is_empty() && choices.into_iter().all(has_only_a_role))
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

    /// As vLLM 0.32.0 writes it.
    const ROLE: &str = concat!(
        r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","#,
        r#""content":"","reasoning":null},"logprobs":null,"finish_reason":null}]}"#,
        "\n\n"
    );

    #[test]
    fn an_event_with_nothing_but_a_role_is_not_the_first_that_says_anything() {
        let (text, error) = ("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", "data: {\"error\":{}}\n\n");
        for (then, expected) in [(text, First::Good), (error, First::Error), ("data: [DONE]\n\n", First::Good)] {
            let whole = format!("{ROLE}: ping\n\n{ROLE}{then}");
            for cut in 0..whole.len() {
                let mut held = Held::new(true);
                let left = if cut < ROLE.len() { First::Incomplete } else { First::RoleOnly };
                assert_eq!(
                    held.push(Bytes::copy_from_slice(&whole.as_bytes()[..cut])),
                    if cut == 0 { First::Incomplete } else { left },
                    "{cut}"
                );
                assert_eq!(held.push(Bytes::copy_from_slice(&whole.as_bytes()[cut..])), expected, "{cut}");
            }
        }
    }

    #[test]
    fn a_chunk_with_text_or_calls_or_an_end_or_without_choices_says_something() {
        let chunk = |delta: &str, reason: &str| {
            let choice = format!("{{\"index\":0,\"delta\":{delta},\"finish_reason\":{reason}}}");
            format!("data: {{\"choices\":[{choice}]}}\n\n")
        };
        let says = |text: &str| Held::new(true).push(Bytes::copy_from_slice(text.as_bytes()));
        assert_eq!(says(&chunk("{\"role\":\"assistant\"}", "null")), First::RoleOnly);
        assert_eq!(says(&chunk("{\"role\":\"assistant\",\"tool_calls\":[]}", "null")), First::RoleOnly);
        let as_others = "{\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"annotations\":[]}";
        assert_eq!(says(&chunk(as_others, "\"\"")), First::RoleOnly);
        assert_eq!(says(&chunk("{\"role\":null,\"content\":\"\"}", "null")), First::Good);
        assert_eq!(says(&chunk("{\"role\":\"assistant\",\"content\":\"a\"}", "null")), First::Good);
        assert_eq!(says(&chunk("{\"role\":\"assistant\",\"tool_calls\":[{}]}", "null")), First::Good);
        assert_eq!(says(&chunk("{\"role\":\"assistant\"}", "\"stop\"")), First::Good);
        assert_eq!(says(&chunk("{\"content\":\"\"}", "null")), First::Good);
        assert_eq!(says("data: {\"choices\":[]}\n\n"), First::Good);
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
