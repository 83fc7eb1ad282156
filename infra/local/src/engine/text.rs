//! What the engine says. The same prompt, model, region and pod always give the same text, and the
//! text names region and pod first, so that whoever reads it knows who answered.

use super::Identity;

/// Sentences that follow the introduction; which ones depends on the prompt.
const SENTENCES: [&str; 6] = [
    "Nothing here was computed by a model; every word is fixed in advance.",
    "Ask the same thing twice and you will read the same answer.",
    "Ask it in another region and only the names in front will differ.",
    "The words arrive one by one, as the words of a large model do.",
    "Stop the process behind this pod and another one will take over.",
    "A gateway in front of several regions would have chosen one for you.",
];

/// How many bytes of the prompt are quoted in the answer.
const QUOTED_BYTES: usize = 160;

/// Cuts text into the pieces that count as tokens: a word with the white space before it.
/// Joined, the pieces are the text again.
pub(super) fn pieces(text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut open = String::new();
    let mut in_word = false;
    for character in text.chars() {
        if in_word && character.is_whitespace() {
            pieces.push(std::mem::take(&mut open));
            in_word = false;
        }
        in_word |= !character.is_whitespace();
        open.push(character);
    }
    if !open.is_empty() {
        pieces.push(open);
    }
    pieces
}

/// A stable number for a piece, in the range of a real vocabulary.
pub(super) fn token_number(piece: &str) -> u32 {
    u32::try_from(hash(piece) % 32_000).unwrap_or_default()
}

/// The pieces of the answer to a prompt: at least `minimum` and at most `maximum` of them.
/// Beyond the natural end the sentences go round again. The flag says whether the answer came to
/// its natural end (and was not cut off).
pub(super) fn answer(
    identity: &Identity,
    model: &str,
    prompt: &str,
    choice: usize,
    minimum: usize,
    maximum: usize,
) -> (Vec<String>, bool) {
    let start = usize::try_from(hash(prompt) % SENTENCES.len() as u64).unwrap_or_default() + choice;
    let mut answer = pieces(&format!(
        "Region {}, pod {}, model {model}: you said \"{}\".",
        identity.region,
        identity.pod,
        quoted(prompt)
    ));
    let mut sentence = start;
    let mut natural_end = None;
    while natural_end.is_none() || answer.len() < minimum {
        answer.extend(pieces(&format!(" {}", SENTENCES[sentence % SENTENCES.len()])));
        sentence += 1;
        if sentence == start + 2 {
            natural_end = Some(answer.len());
        }
    }
    let wanted = natural_end.unwrap_or_default().max(minimum);
    let length = wanted.min(maximum);
    answer.truncate(length);
    (answer, wanted <= maximum)
}

/// One line, bounded, for the quotation.
fn quoted(prompt: &str) -> String {
    let line = prompt.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() <= QUOTED_BYTES {
        return line;
    }
    let mut end = QUOTED_BYTES;
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &line[..end])
}

/// FNV-1a, because the standard library's hash may differ between releases.
pub(crate) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity { region: "us-east-1".to_owned(), pod: "demo-0".to_owned() }
    }

    #[test]
    fn pieces_join_to_the_text_again() {
        for text in ["", " ", "one", " one  two\nthree ", "déjà vu"] {
            assert_eq!(pieces(text).concat(), text);
        }
        assert_eq!(pieces("a b  c").len(), 3);
    }

    #[test]
    fn the_answer_names_region_and_pod_and_quotes_the_prompt() {
        let (said, finished) = answer(&identity(), "m", "hello\n there", 0, 0, 500);
        let said = said.concat();
        assert!(said.starts_with("Region us-east-1, pod demo-0, model m: you said \"hello there\"."), "{said}");
        assert!(finished);
        assert_eq!(said, answer(&identity(), "m", "hello\n there", 0, 0, 500).0.concat());
    }

    #[test]
    fn the_answer_keeps_within_both_limits() {
        let (cut, finished) = answer(&identity(), "m", "hello", 0, 0, 4);
        assert_eq!((cut.len(), finished), (4, false));
        let (long, finished) = answer(&identity(), "m", "hello", 0, 300, 300);
        assert_eq!((long.len(), finished), (300, true));
    }

    #[test]
    fn a_long_prompt_is_quoted_in_part() {
        let said = answer(&identity(), "m", &"é".repeat(400), 0, 0, 500).0.concat();
        assert!(said.contains('…') && said.len() < 600, "{said}");
    }
}
