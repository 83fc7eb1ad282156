//! As much of HTTP/1.1 as a load generator and a mock engine need: heads, and where bodies end.

use std::io::{Error, ErrorKind, Result};

use memchr::memmem;

/// Longest head that is read.
const MOST_HEAD_BYTES: usize = 64 * 1024;

/// How the end of a body is known.
#[derive(Debug, PartialEq, Eq)]
pub enum Framing {
    /// So many bytes are still to come.
    Length(u64),
    /// By chunks.
    Chunked(Chunks),
    /// By the end of the connection.
    UntilClose,
}

/// The head of a message.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes of the head, its blank line included.
    pub length: usize,
    /// First and second word of the first line: a request's method and target, or an answer's version and status.
    pub words: (String, String),
    /// How the body ends; a request without a length has none.
    pub framing: Framing,
    /// Whether the connection may be used again.
    pub is_kept: bool,
}

impl Head {
    /// Reads a head; `None` while it is not whole.
    ///
    /// # Errors
    /// When it is no head, or far too long.
    pub fn parse(bytes: &[u8], is_answer: bool) -> Result<Option<Self>> {
        let Some(end) = memmem::find(bytes, b"\r\n\r\n") else {
            return if bytes.len() > MOST_HEAD_BYTES { Err(bad("the head is too long")) } else { Ok(None) };
        };
        let text = std::str::from_utf8(bytes.get(..end).unwrap_or_default()).map_err(|_| bad("the head is no text"))?;
        let mut lines = text.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (Some(first), Some(second)) = (words.next(), words.next()) else {
            return Err(bad("the first line is no HTTP"));
        };
        let mut framing = if is_answer { Framing::UntilClose } else { Framing::Length(0) };
        let mut is_kept = true;
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { return Err(bad("a header has no colon")) };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                framing = Framing::Length(value.parse().map_err(|_| bad("the length is no number"))?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
                framing = Framing::Chunked(Chunks::default());
            } else if name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close") {
                is_kept = false;
            }
        }
        is_kept &= framing != Framing::UntilClose;
        Ok(Some(Self { length: end + 4, words: (first.to_owned(), second.to_owned()), framing, is_kept }))
    }

    /// The status of an answer; 0 when it is none.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.words.1.parse().unwrap_or(0)
    }
}

impl Framing {
    /// Takes bytes as they came, gives the body's to `body`; returns whether the body is at its end.
    ///
    /// # Errors
    /// When the chunks are none, or more comes than the body has.
    pub fn feed(&mut self, bytes: &[u8], mut body: impl FnMut(&[u8])) -> Result<bool> {
        match self {
            Self::Length(missing) => {
                let length = bytes.len() as u64;
                if length > *missing {
                    return Err(bad("more came than the body has"));
                }
                *missing -= length;
                if !bytes.is_empty() {
                    body(bytes);
                }
                Ok(*missing == 0)
            }
            Self::Chunked(chunks) => chunks.feed(bytes, body),
            Self::UntilClose => {
                if !bytes.is_empty() {
                    body(bytes);
                }
                Ok(false)
            }
        }
    }
}

/// Where in a chunked body we are.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// In the line of a chunk's size; digits count until something else comes.
    Size {
        value: u64,
        is_number: bool,
    },
    Data(u64),
    /// In the two bytes behind a chunk.
    AfterData(u8),
    /// In the lines behind the last chunk: how long this one is so far.
    Trailer(usize),
    Done,
}

impl Default for State {
    fn default() -> Self {
        Self::Size { value: 0, is_number: true }
    }
}

impl Chunks {
    fn feed(&mut self, bytes: &[u8], mut body: impl FnMut(&[u8])) -> Result<bool> {
        let mut rest = bytes;
        while let Some((&byte, behind)) = rest.split_first() {
            self.state = match self.state {
                State::Data(missing) => {
                    let here = usize::try_from(missing).unwrap_or(usize::MAX).min(rest.len());
                    let (data, behind) = rest.split_at(here);
                    body(data);
                    rest = behind;
                    let missing = missing - here as u64;
                    self.state = if missing == 0 { State::AfterData(2) } else { State::Data(missing) };
                    continue;
                }
                State::Size { value, .. } if byte == b'\n' => {
                    if value == 0 {
                        State::Trailer(0)
                    } else {
                        State::Data(value)
                    }
                }
                State::Size { value, is_number: true } => match char::from(byte).to_digit(16) {
                    Some(digit) if value < 1 << 40 => {
                        State::Size { value: value * 16 + u64::from(digit), is_number: true }
                    }
                    None if matches!(byte, b'\r' | b';' | b' ') => State::Size { value, is_number: false },
                    _ => return Err(bad("the size of a chunk is no number")),
                },
                State::Size { value, is_number: false } => State::Size { value, is_number: false },
                State::AfterData(2) if byte == b'\r' => State::AfterData(1),
                State::AfterData(1) if byte == b'\n' => State::default(),
                State::AfterData(_) => return Err(bad("a chunk has no end")),
                State::Trailer(0) if byte == b'\n' => State::Done,
                State::Trailer(_) if byte == b'\n' => State::Trailer(0),
                State::Trailer(length) => State::Trailer(if byte == b'\r' { length } else { length + 1 }),
                State::Done => return Err(bad("more came than the body has")),
            };
            rest = behind;
        }
        Ok(self.state == State::Done)
    }
}

/// What breaks the protocol.
pub(crate) fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_how_its_body_ends() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nx: y\r\n\r\nbody";
        let head = Head::parse(answer, true).unwrap().unwrap();
        assert_eq!((head.status(), head.framing, head.is_kept, head.length), (200, Framing::Length(12), true, 45));
        let head = Head::parse(b"HTTP/1.1 503 x\r\nconnection: close\r\n\r\n", true).unwrap().unwrap();
        assert_eq!((head.status(), head.framing, head.is_kept), (503, Framing::UntilClose, false));
        let head = Head::parse(b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n", false).unwrap().unwrap();
        assert_eq!((head.words.0.as_str(), head.words.1.as_str(), head.framing), ("GET", "/x", Framing::Length(0)));
        assert_eq!(Head::parse(b"HTTP/1.1 200 OK\r\ncontent-le", true).unwrap(), None);
        assert!(Head::parse(b"nonsense\r\n\r\n", true).is_err());
        assert!(Head::parse(&vec![b'a'; MOST_HEAD_BYTES + 1], true).is_err());
    }

    #[test]
    fn chunks_are_taken_apart_wherever_they_are_cut() {
        let wire = b"5\r\nhello\r\nA;x=1\r\n0123456789\r\n0\r\nx-trailer: 1\r\n\r\n";
        for cut in 0..wire.len() {
            let (mut framing, mut body) = (Framing::Chunked(Chunks::default()), Vec::new());
            let first = framing.feed(&wire[..cut], |data| body.extend_from_slice(data)).unwrap();
            let second = framing.feed(&wire[cut..], |data| body.extend_from_slice(data)).unwrap();
            assert_eq!((first, second, body.as_slice()), (false, true, b"hello0123456789".as_slice()), "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_body_is_an_error() {
        let feed = |bytes: &[u8]| Framing::Chunked(Chunks::default()).feed(bytes, |_| {});
        assert!(feed(b"x\r\n").is_err());
        assert!(feed(b"1\r\nab\r\n").is_err());
        assert!(feed(b"0\r\n\r\nmore").is_err());
        assert!(Framing::Length(2).feed(b"abc", |_| {}).is_err());
        assert!(!Framing::UntilClose.feed(b"abc", |_| {}).unwrap());
    }
}
