//! A look at the top level of a JSON object: where its members are, not what their values say.
//!
//! The bytes of a request must reach decode as the client wrote them, and a prompt may have megabytes, so nothing is parsed
//! into values and nothing is written again: members are found as spans. What an engine's parser would understand
//! differently must not pass: keys are compared after unescaping, a key that is there twice is refused, and so is
//! everything that is not one object.

use std::borrow::Cow;
use std::ops::Range;

use smallvec::SmallVec;

/// The most members that a request may have at its top level. The OpenAI API and vLLM's additions together know about 120.
const MOST_MEMBERS: usize = 4_096;

/// From so many keys on they are sorted to find doubled ones; fewer are compared pairwise, without an allocation.
const PAIRWISE_UP_TO: usize = 32;

/// The deepest nesting: Python's own parser gives up at about 1,000.
const DEEPEST: usize = 1_024;

/// Why bytes are not a body that can be looked at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Not JSON, as far as the look goes.
    #[error("invalid JSON body")]
    Invalid,
    /// JSON, but no object.
    #[error("JSON body must be an object")]
    NotAnObject,
    /// A key is there twice: what holds would depend on the parser.
    #[error("the member {0:?} is in the JSON body twice")]
    Doubled(String),
    /// More members than any request has.
    #[error("the JSON body has more than {MOST_MEMBERS} members")]
    TooManyMembers,
}

/// One member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member<'b> {
    /// Its key, unescaped.
    pub key: Cow<'b, [u8]>,
    /// From the key's opening quote to the end of the value.
    pub span: Range<usize>,
    /// The value.
    pub value: Range<usize>,
}

/// An object's members, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object<'b> {
    /// The bytes that were looked at.
    pub bytes: &'b [u8],
    /// Its members; no two have the same key.
    pub members: Vec<Member<'b>>,
    /// Where its `}` is.
    pub close: usize,
}

impl<'b> Object<'b> {
    /// The bytes of the value of `name`.
    pub fn value(&self, name: &str) -> Option<&'b [u8]> {
        self.value_of_key(name.as_bytes())
    }

    /// The bytes of the value of a key given as bytes.
    pub fn value_of_key(&self, key: &[u8]) -> Option<&'b [u8]> {
        let member = self.members.iter().find(|member| *member.key == *key)?;
        self.bytes.get(member.value.clone())
    }
}

/// Finds the members of the one object that `bytes` are.
///
/// # Errors
/// When they are not one object, or a key is there twice.
pub fn scan(bytes: &[u8]) -> Result<Object<'_>, JsonError> {
    let mut at = skip_space(bytes, 0);
    match bytes.get(at) {
        Some(b'{') => {}
        Some(b'[' | b'"' | b't' | b'f' | b'n' | b'-' | b'0'..=b'9') => {
            let end = skip_value(bytes, at).ok_or(JsonError::Invalid)?;
            let is_whole = skip_space(bytes, end) == bytes.len();
            return Err(if is_whole { JsonError::NotAnObject } else { JsonError::Invalid });
        }
        _ => return Err(JsonError::Invalid),
    }
    let mut members = Vec::with_capacity(16);
    at = skip_space(bytes, at + 1);
    if bytes.get(at) != Some(&b'}') {
        loop {
            if members.len() == MOST_MEMBERS {
                return Err(JsonError::TooManyMembers);
            }
            let member = member(bytes, at).ok_or(JsonError::Invalid)?;
            at = skip_space(bytes, member.span.end);
            members.push(member);
            match bytes.get(at) {
                Some(b',') => at = skip_space(bytes, at + 1),
                Some(b'}') => break,
                _ => return Err(JsonError::Invalid),
            }
        }
    }
    if skip_space(bytes, at + 1) != bytes.len() {
        return Err(JsonError::Invalid);
    }
    if let Some(doubled) = doubled(&members) {
        let shown = String::from_utf8_lossy(doubled);
        return Err(JsonError::Doubled(gco_runtime::text::bounded(&shown, 64)));
    }
    Ok(Object { bytes, members, close: at })
}

/// Whether any object in the value `bytes`, at any depth, has a key that `is_meant`.
///
/// `None` when the bytes cannot be followed.
pub fn has_key_anywhere(bytes: &[u8], is_meant: impl Fn(&[u8]) -> bool) -> Option<bool> {
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'"' {
            at += 1;
            continue;
        }
        let end = skip_string(bytes, at)?;
        let next = skip_space(bytes, end);
        if bytes.get(next) == Some(&b':') && is_meant(&unescape(&bytes[at + 1..end - 1])?) {
            return Some(true);
        }
        at = end;
    }
    Some(false)
}

/// How many elements the array `bytes` has, and what the first one begins with; `None` when it is not an array.
///
/// Two elements say enough about a list of prompts, and are the most that are counted: a prompt as token ids may have hundreds
/// of thousands.
pub fn array_shape(bytes: &[u8]) -> Option<(usize, Option<u8>)> {
    let first = elements(bytes, 2)?;
    Some((first.len(), first.first().and_then(|element| element.first().copied())))
}

/// The first elements of the array `bytes`, at most `most` of them; `None` when it is not one. What follows them is not looked
/// at.
pub fn elements(bytes: &[u8], most: usize) -> Option<SmallVec<[&[u8]; 2]>> {
    if bytes.first() != Some(&b'[') {
        return None;
    }
    let mut elements = SmallVec::new();
    let mut at = skip_space(bytes, 1);
    if *bytes.get(at)? == b']' {
        return Some(elements);
    }
    loop {
        let end = skip_value(bytes, at)?;
        elements.push(&bytes[at..end]);
        at = skip_space(bytes, end);
        match bytes.get(at)? {
            b']' => return Some(elements),
            b',' if elements.len() == most => return Some(elements),
            b',' => at = skip_space(bytes, at + 1),
            _ => return None,
        }
    }
}

fn member(bytes: &[u8], start: usize) -> Option<Member<'_>> {
    let (key_end, has_escapes) = string(bytes, start)?;
    let key = &bytes[start + 1..key_end - 1];
    let key = if has_escapes { unescape(key)? } else { Cow::Borrowed(key) };
    let colon = skip_space(bytes, key_end);
    if *bytes.get(colon)? != b':' {
        return None;
    }
    let value_start = skip_space(bytes, colon + 1);
    let end = skip_value(bytes, value_start)?;
    Some(Member { key, span: start..end, value: value_start..end })
}

fn doubled<'m>(members: &'m [Member<'_>]) -> Option<&'m [u8]> {
    if members.len() <= PAIRWISE_UP_TO {
        let mut left = members;
        while let [first, rest @ ..] = left {
            if rest.iter().any(|other| other.key == first.key) {
                return Some(&first.key);
            }
            left = rest;
        }
        return None;
    }
    let mut keys: Vec<&[u8]> = members.iter().map(|member| &*member.key).collect();
    keys.sort_unstable();
    keys.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

/// The position of the next byte that is not JSON's white space.
fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        at += 1;
    }
    at
}

/// The position after the string whose opening quote is at `start`.
fn skip_string(bytes: &[u8], start: usize) -> Option<usize> {
    string(bytes, start).map(|(end, _)| end)
}

/// So many words of a string are looked at one by one: keys and most values end within them, and beginning a search of many
/// bytes at once costs as much. Prompts are searched.
const NEAR_WORDS: usize = 3;

/// Every byte of a word the same.
const fn all(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The word at a position; `None` when fewer than eight bytes are left.
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}

/// The upper bit of each byte of `word` that is zero. Bytes above the lowest one found may be marked without being zero, so
/// only the lowest says anything: a subtraction borrows from there on.
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(all(1)) & !word & all(0x80)
}

/// Which byte of a word is marked, the lowest first.
const fn lowest(marks: u64) -> usize {
    marks.trailing_zeros() as usize / 8
}

/// The position after the string whose opening quote is at `start`, and whether it has escapes.
fn string(bytes: &[u8], start: usize) -> Option<(usize, bool)> {
    if *bytes.get(start)? != b'"' {
        return None;
    }
    let mut at = start + 1;
    for _ in 0..NEAR_WORDS {
        let Some(word) = word(bytes, at) else { break };
        let marks = zeros(word ^ all(b'"')) | zeros(word ^ all(b'\\'));
        if marks != 0 {
            at += lowest(marks);
            if bytes[at] == b'"' {
                return Some((at + 1, false));
            }
            break;
        }
        at += 8;
    }
    let mut has_escapes = false;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some((at + 1, has_escapes));
        }
        // Whatever the escaped byte is, it does not end the string.
        has_escapes = true;
        at += 2;
    }
}

/// The position after the value that starts at `start`.
fn skip_value(bytes: &[u8], start: usize) -> Option<usize> {
    match *bytes.get(start)? {
        b'"' => skip_string(bytes, start),
        b'{' | b'[' => skip_container(bytes, start),
        b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
            let rest = &bytes[start..];
            let is_part = |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z');
            let length = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
            Some(start + length)
        }
        _ => None,
    }
}

/// Whether a byte gives a container its shape: brackets, braces and the quote.
const fn is_shape(byte: u8) -> bool {
    matches!(byte, b'[' | b']' | b'{' | b'}' | b'"')
}

/// The same, as a table: one look-up per byte.
static SHAPES: [bool; 256] = {
    let mut shapes = [false; 256];
    let mut byte = 0;
    while byte < shapes.len() {
        shapes[byte] = is_shape(byte as u8);
        byte += 1;
    }
    shapes
};

/// So many bytes of a container without a shape are passed over at once: block ids and token ids are long lists of digits.
const BLOCK: usize = 32;

/// The position of the next byte that gives the container its shape.
fn next_shape(bytes: &[u8]) -> Option<usize> {
    let find = |bytes: &[u8]| bytes.iter().position(|byte| SHAPES[usize::from(*byte)]);
    // Most are near, and beginning with blocks costs more than they have bytes.
    let near = &bytes[..bytes.len().min(BLOCK)];
    if let Some(found) = find(near) {
        return Some(found);
    }
    let mut at = near.len();
    // Without a way out in the middle, so that the compiler makes a few wide instructions of each block.
    while let Some(block) = bytes.get(at..).and_then(<[u8]>::first_chunk::<BLOCK>) {
        if block.iter().fold(false, |any, byte| any | is_shape(*byte)) {
            break;
        }
        at += BLOCK;
    }
    find(bytes.get(at..)?).map(|found| at + found)
}

/// The position after the object or array that starts at `start`; its brackets must match, or it would end elsewhere for
/// another parser.
fn skip_container(bytes: &[u8], start: usize) -> Option<usize> {
    let mut awaited: SmallVec<[u8; 32]> = SmallVec::new();
    let mut at = start;
    loop {
        at += next_shape(bytes.get(at..)?)?;
        match *bytes.get(at)? {
            b'"' => {
                at = skip_string(bytes, at)?;
                continue;
            }
            b'{' => awaited.push(b'}'),
            b'[' => awaited.push(b']'),
            closing @ (b'}' | b']') => {
                if awaited.pop()? != closing {
                    return None;
                }
                if awaited.is_empty() {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        if awaited.len() > DEEPEST {
            return None;
        }
        at += 1;
    }
}

/// A key without its escapes; `None` when an escape is none.
fn unescape(key: &[u8]) -> Option<Cow<'_, [u8]>> {
    if memchr::memchr(b'\\', key).is_none() {
        return Some(Cow::Borrowed(key));
    }
    let mut out = Vec::with_capacity(key.len());
    let mut rest = key;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        let escape = *rest.get(at + 1)?;
        rest = &rest[at + 2..];
        let plain = match escape {
            b'"' | b'\\' | b'/' => escape,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let (character, after) = code_point(rest)?;
                rest = after;
                push_code_point(&mut out, character);
                continue;
            }
            _ => return None,
        };
        out.push(plain);
    }
    out.extend_from_slice(rest);
    Some(Cow::Owned(out))
}

/// The code point of the escape whose `\u` stands before `rest`, and what follows it.
fn code_point(rest: &[u8]) -> Option<(u32, &[u8])> {
    let first = hexadecimal(rest.get(..4)?)?;
    let after = &rest[4..];
    if (0xD800..0xDC00).contains(&first)
        && let Some(second) = after.strip_prefix(b"\\u").and_then(|low| low.get(..4)).and_then(hexadecimal)
        && (0xDC00..0xE000).contains(&second)
    {
        return Some((0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00), &after[6..]));
    }
    Some((first, after))
}

fn hexadecimal(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |value, digit| Some(value * 16 + (*digit as char).to_digit(16)?))
}

/// Appends a code point as UTF-8. A lone surrogate, which has none, gets the three bytes that it would have: two keys stay
/// different when their parsers see them as different.
fn push_code_point(out: &mut Vec<u8>, code: u32) {
    if let Some(character) = char::from_u32(code) {
        out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    } else {
        let [_, _, high, low] = code.to_be_bytes();
        out.extend_from_slice(&[0xE0 | (high >> 4), 0x80 | ((high & 0x0F) << 2) | (low >> 6), 0x80 | (low & 0x3F)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Vec<String> {
        let object = scan(text.as_bytes()).unwrap();
        object.members.iter().map(|member| String::from_utf8_lossy(&member.key).into_owned()).collect()
    }

    #[test]
    fn members_are_found_at_the_top_level_only() {
        let text = r#" { "a" : 1 ,"b":{"c":[{"d":"}"}]},"e":"\"x\\","f":-1.5e+3,"g":null } "#;
        assert_eq!(keys(text), ["a", "b", "e", "f", "g"]);
        let object = scan(text.as_bytes()).unwrap();
        assert_eq!(object.value("b"), Some(br#"{"c":[{"d":"}"}]}"#.as_slice()));
        assert_eq!(object.value("e"), Some(br#""\"x\\""#.as_slice()));
        assert_eq!(object.value("f"), Some(b"-1.5e+3".as_slice()));
        assert_eq!(object.value("d"), None);
        assert_eq!(keys("{}"), Vec::<String>::new());
    }

    #[test]
    fn strings_and_lists_of_every_length_end_where_they_end() {
        for length in 0..100 {
            let fill = "1".repeat(length);
            for (key, plain) in [("", ""), ("\\\"", "\""), ("\\\\", "\\")] {
                let text = format!("{{\"{fill}{key}\":[{fill},{{}},\"]{key}\",{fill}],\"b\":\"{fill}{key}\"}}");
                let object = scan(text.as_bytes()).unwrap();
                assert_eq!(keys(&text), [format!("{fill}{plain}"), "b".to_owned()], "{text}");
                assert_eq!(object.value("b"), Some(format!("\"{fill}{key}\"").as_bytes()), "{text}");
                let open = &text[..text.len() - 2];
                assert_eq!(scan(open.as_bytes()).unwrap_err(), JsonError::Invalid, "{open}");
            }
            assert_eq!(skip_container(format!("[{fill}").as_bytes(), 0), None);
        }
    }

    #[test]
    fn keys_are_compared_after_unescaping() {
        assert_eq!(keys(r#"{"\u006bv_transfer_params":1,"\u006B\u0076x":2}"#), ["kv_transfer_params", "kvx"]);
        assert_eq!(keys(r#"{"\ud83d\ude00":1,"\/\b\f\n\r\t\"\\":2}"#), ["\u{1F600}", "/\u{8}\u{c}\n\r\t\"\\"]);
        let doubled = scan(br#"{"a":1,"\u0061":2}"#).unwrap_err();
        assert_eq!(doubled, JsonError::Doubled("a".to_owned()));
    }

    #[test]
    fn a_doubled_member_is_refused_among_few_and_among_many() {
        for count in [2, 31, 32, 33, 200] {
            let mut members: Vec<String> = (0..count).map(|index| format!("\"k{index}\":0")).collect();
            assert!(scan(format!("{{{}}}", members.join(",")).as_bytes()).is_ok());
            members.push("\"k1\":0".to_owned());
            let text = format!("{{{}}}", members.join(","));
            assert_eq!(scan(text.as_bytes()).unwrap_err(), JsonError::Doubled("k1".to_owned()));
        }
        let many: Vec<String> = (0..=MOST_MEMBERS).map(|index| format!("\"k{index}\":0")).collect();
        assert_eq!(scan(format!("{{{}}}", many.join(",")).as_bytes()).unwrap_err(), JsonError::TooManyMembers);
    }

    #[test]
    fn what_is_not_one_object_is_refused() {
        for text in ["[]", "[1]", "\"x\"", "1", "null", " true "] {
            assert_eq!(scan(text.as_bytes()).unwrap_err(), JsonError::NotAnObject, "{text}");
        }
        let wrong = [
            "",
            " ",
            "{",
            "}",
            "{]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "{\"a\":1}x",
            "{\"a\":1}{}",
            "[",
            "x y",
            "{\"a\":1 2}",
            "{\"a\":[1}",
            "{\"a\":{]}",
            "{\"a\":\"x}",
            "{\"a\\q\":1}",
            "{\"\\u00g0\":1}",
            "{\"\\u00\":1}",
            "{\"a\" 1}",
            "{,}",
            "{\"a\":t\"b\":1}",
            "{\"a\":'x'}",
            "\u{feff}{}",
            "{\0\"\0a\0\"\0:\u{0}1\0}\0",
            "{\"a\":\u{a0}1}",
        ];
        for text in wrong {
            assert_eq!(scan(text.as_bytes()).unwrap_err(), JsonError::Invalid, "{text:?}");
        }
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(DEEPEST + 1), "]".repeat(DEEPEST + 1));
        assert_eq!(scan(deep.as_bytes()).unwrap_err(), JsonError::Invalid);
    }

    #[test]
    fn keys_deep_inside_a_value_are_found_and_values_are_not_taken_for_keys() {
        let is_meant = |key: &[u8]| key == b"kv";
        assert_eq!(has_key_anywhere(br#"{"a":[{"\u006bv" :1}]}"#, is_meant), Some(true));
        assert_eq!(has_key_anywhere(br#"{"a":["kv",{"b":"kv"}]}"#, is_meant), Some(false));
        assert_eq!(has_key_anywhere(br#"{"a"#, is_meant), None);
    }

    #[test]
    fn the_shape_of_an_array_tells_one_prompt_from_several() {
        assert_eq!(array_shape(b"[]"), Some((0, None)));
        assert_eq!(array_shape(b"[ \"a,b\" ]"), Some((1, Some(b'"'))));
        assert_eq!(array_shape(b"[\"a\",\"b\",\"c\"]"), Some((2, Some(b'"'))));
        assert_eq!(array_shape(b"[1,2]"), Some((2, Some(b'1'))));
        assert_eq!(array_shape(b"\"a\""), None);
    }

    #[test]
    fn the_elements_of_an_array_are_found_whatever_is_in_them() {
        let expected: [&[u8]; 4] = [b"1", b"{\"a\":[2]}", b"\",]\"", b"[]"];
        assert_eq!(elements(b"[ 1 ,{\"a\":[2]}, \",]\" , [] ]", 9).unwrap().as_slice(), expected);
        assert_eq!(elements(b"[1,2,]", 2).unwrap().len(), 2, "the third is not looked at");
        assert_eq!(elements(b"[ ]", 9).unwrap().len(), 0);
        for text in ["", "{}", "[", "[1", "[1 2]", "[1,", "[1,]"] {
            assert_eq!(elements(text.as_bytes(), 9), None, "{text}");
        }
    }
}
