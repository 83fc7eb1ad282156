//! What the mock engine is to do, said in the prompt: prompts pass every proxy, headers may not.

use std::fmt::{self, Display};

use memchr::memmem;

const OPENING: &str = "#bench ";
const CLOSING: u8 = b'#';

/// Digits of a ticket, always all of them, so that it can be overwritten in place.
pub const TICKET_DIGITS: usize = 10;

/// Most events of one answer.
const MOST_EVENTS: u64 = 1_000_000;
/// Longest event: 1 MiB.
const MOST_EVENT_BYTES: u64 = 1 << 20;
/// Longest gap and longest prefill: a minute.
const MOST_MICROS: u64 = 60_000_000;

/// The orders of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Whether decode's answer is a stream of events.
    pub streams: bool,
    /// Events of a stream, the closing `[DONE]` not counted.
    pub events: u32,
    /// Bytes of one event, its blank line included; shorter ones than the event's form needs are that long.
    pub event_bytes: u32,
    /// Microseconds from one event to the next; below 1,000 there is no pause, as the timer counts milliseconds.
    pub gap_micros: u32,
    /// Microseconds that prefill takes.
    pub prefill_micros: u32,
    /// A number that comes back with the answer, so that a mixed-up one is noticed.
    pub ticket: u64,
}

impl Tag {
    /// An answer in one piece, at once.
    #[must_use]
    pub const fn whole() -> Self {
        Self { streams: false, events: 16, event_bytes: 200, gap_micros: 0, prefill_micros: 0, ticket: 0 }
    }

    /// A stream of so many events, so long and so far apart.
    #[must_use]
    pub const fn stream(events: u32, event_bytes: u32, gap_micros: u32) -> Self {
        Self { streams: true, events, event_bytes, gap_micros, prefill_micros: 0, ticket: 0 }
    }

    /// Finds the tag in a body, wherever it is.
    ///
    /// # Errors
    /// What is wrong with it, for whoever wrote the request.
    pub fn find(body: &[u8]) -> Result<Self, String> {
        let start = memmem::find(body, OPENING.as_bytes()).ok_or("the body has no tag #bench …#")? + OPENING.len();
        let rest = body.get(start..).unwrap_or_default();
        let end = memchr::memchr(CLOSING, rest).ok_or("the tag #bench has no end")?;
        let text = std::str::from_utf8(rest.get(..end).unwrap_or_default()).map_err(|_| "the tag is no text")?;
        let mut tag = Self::whole();
        for word in text.split_ascii_whitespace() {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("{word} has no value"))?;
            let number: u64 = value.parse().map_err(|_| format!("{name} is no number"))?;
            let bounded = |most: u64| {
                let fits = u32::try_from(number).ok().filter(|_| number <= most);
                fits.ok_or_else(|| format!("{name} is {number}, at most {most} is allowed"))
            };
            match name {
                "stream" => tag.streams = number != 0,
                "events" => tag.events = bounded(MOST_EVENTS)?,
                "size" => tag.event_bytes = bounded(MOST_EVENT_BYTES)?,
                "gap" => tag.gap_micros = bounded(MOST_MICROS)?,
                "prefill" => tag.prefill_micros = bounded(MOST_MICROS)?,
                "ticket" => tag.ticket = number,
                _ => return Err(format!("{name} is unknown; known: stream, events, size, gap, prefill, ticket")),
            }
        }
        Ok(tag)
    }
}

impl Display for Tag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { streams, events, event_bytes, gap_micros, prefill_micros, ticket } = self;
        let stream = u8::from(*streams);
        write!(
            formatter,
            "{OPENING}stream={stream} events={events} size={event_bytes} gap={gap_micros} prefill={prefill_micros} \
             ticket={ticket:0TICKET_DIGITS$}#"
        )
    }
}

/// Writes a ticket's digits over those that are there; digits that have no room are left out at the front.
pub fn write_digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_found_in_the_middle_of_a_body() {
        let tag = Tag { ticket: 42, prefill_micros: 7, ..Tag::stream(500, 300, 20_000) };
        let body = format!(r##"{{"model":"m","prompt":"# {tag} xxxx #","stream":true}}"##);
        assert_eq!(Tag::find(body.as_bytes()), Ok(tag));
    }

    #[test]
    fn a_tag_that_cannot_be_obeyed_says_why() {
        let why = |body: &str| Tag::find(body.as_bytes()).unwrap_err();
        assert!(why("{}").contains("no tag"));
        assert!(why("#bench events=1").contains("no end"));
        assert!(why("#bench events=x#").contains("events is no number"));
        assert!(why("#bench events#").contains("no value"));
        assert!(why("#bench colour=1#").contains("unknown"));
        assert!(why("#bench size=2000000#").contains("at most 1048576"));
    }

    #[test]
    fn digits_are_written_in_place_and_right_aligned() {
        let mut place = *b"0000000000";
        write_digits(&mut place, 1_234);
        assert_eq!(&place, b"0000001234");
    }
}
