//! The bodies that the legs get, made from the client's bytes.
//!
//! Decode gets what the client sent, byte for byte, but for the members that are taken out and the one that is set; prefill
//! gets the same with the members that keep it from generating an answer.

use bytes::Bytes;

use super::json::{self, JsonError, Member, Object};
use super::spliced::{Spliced, Splicer};
use crate::exchange::Reason;

/// The member that carries a leg's parameters.
const PARAMETERS: &[u8] = b"kv_transfer_params";

/// The same for the output of an encoder of images: it names the peer that a vLLM with an encoder cache fetches from.
const ENCODER_PARAMETERS: &[u8] = b"ec_transfer_params";

/// What begins the names of SGLang's hand-over members; a client's `bootstrap_room` that is there already ends schedulers.
const BOOTSTRAP_PREFIX: &[u8] = b"bootstrap_";

/// Members that name a data-parallel rank: which rank gets a request is part of the hand-over.
const RANKS: [&[u8]; 3] = [b"data_parallel_rank", b"dp_rank", b"routed_dp_rank"];

/// Members whose content engines lay beside their own parameters, where what steers a hand-over means the same as at the top.
const SIDE_DOORS: [&[u8]; 3] = [b"vllm_xargs", b"extra_args", b"sampling_params"];

/// Why a body is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It is not one JSON object without doubled members.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// It brings parameters in through a side door.
    #[error("{0} may not hold kv_transfer_params or another member that steers a hand-over")]
    SideDoor(String),
}

/// A client's body that was found good.
#[derive(Debug)]
pub struct Looked<'b> {
    object: Object<'b>,
    /// Whether any member is taken out.
    strips: bool,
}

/// Whether a client's member is kept from engines.
fn is_stripped(key: &[u8]) -> bool {
    key == PARAMETERS || key == ENCODER_PARAMETERS || key.starts_with(BOOTSTRAP_PREFIX) || RANKS.contains(&key)
}

/// Looks at a client's body.
///
/// # Errors
/// When it is not one object, a member is doubled, or parameters are hidden in it.
pub fn look(body: &[u8]) -> Result<Looked<'_>, BodyError> {
    let object = json::scan(body)?;
    let mut strips = false;
    for member in &object.members {
        strips |= is_stripped(&member.key);
        if SIDE_DOORS.contains(&&*member.key)
            && json::has_key_anywhere(&body[member.value.clone()], is_stripped) != Some(false)
        {
            return Err(BodyError::SideDoor(String::from_utf8_lossy(&member.key).into_owned()));
        }
    }
    Ok(Looked { object, strips })
}

impl Looked<'_> {
    /// The value of `stream`, as it was sent.
    #[must_use]
    pub fn stream(&self) -> Option<&[u8]> {
        self.object.value("stream")
    }

    /// Why a split would change the answer to this request, or is of no use for it; `None` when it would not.
    #[must_use]
    pub fn why_whole(&self) -> Option<Reason> {
        let is_none = |name: &str, harmless: &[&[u8]]| {
            self.object.value(name).is_none_or(|value| value == b"null" || harmless.contains(&value))
        };
        // Anything but the plain harmless value counts: engines take "2" for 2 and 1 for true.
        if !is_none("n", &[b"1"]) {
            return Some(Reason::ManyAnswers);
        }
        if !is_none("best_of", &[b"1"]) {
            return Some(Reason::BestOf);
        }
        if !is_none("use_beam_search", &[b"false"]) {
            return Some(Reason::BeamSearch);
        }
        if !is_none("prompt_logprobs", &[]) {
            return Some(Reason::PromptLogprobs);
        }
        if !is_none("echo", &[b"false"]) {
            return Some(Reason::Echo);
        }
        if !is_none("prompt_embeds", &[]) {
            return Some(Reason::PromptEmbeddings);
        }
        match self.object.value("prompt").and_then(json::array_shape) {
            // A list of numbers is one prompt as token ids.
            Some((count, Some(b'"' | b'[' | b'{'))) if count > 1 => Some(Reason::ManyPrompts),
            _ => None,
        }
    }

    /// The body of a decode leg; `whole` are the same bytes that were looked at.
    #[must_use]
    pub fn decode(&self, whole: &Bytes, parameters: Option<&str>) -> Spliced {
        if !self.strips && parameters.is_none() {
            return whole.clone().into();
        }
        let mut out = Splicer::new(whole, parameters.map_or(0, |text| text.len() + 32));
        let is_empty = self.keep(is_stripped, &mut out);
        if let Some(parameters) = parameters {
            write_member(&mut out, is_empty, "kv_transfer_params", parameters);
        }
        self.keep_end(&mut out);
        out.finish()
    }

    /// The body of a prefill leg; `whole` are the same bytes that were looked at.
    ///
    /// Generation is held to one token: KV is kept only when the answer ends by its length, so a stop token may not end it
    /// first (`min_tokens` 1), and engines refuse a `min_tokens` above `max_tokens` and stream options without a stream.
    #[must_use]
    pub fn prefill(&self, whole: &Bytes, parameters: Option<&str>) -> Spliced {
        let mut out = Splicer::new(whole, parameters.map_or(0, str::len) + 160);
        let is_set = |key: &[u8]| {
            matches!(
                key,
                b"stream"
                    | b"stream_options"
                    | b"max_tokens"
                    | b"max_completion_tokens"
                    | b"max_output_tokens"
                    | b"min_tokens"
                    | b"min_completion_tokens"
            )
        };
        let is_empty = self.keep(|key| is_stripped(key) || is_set(key), &mut out);
        write_member(&mut out, is_empty, "stream", "false");
        write_member(&mut out, false, "max_tokens", "1");
        write_member(&mut out, false, "min_tokens", "1");
        for only_if_there in ["max_completion_tokens", "max_output_tokens"] {
            if self.object.value(only_if_there).is_some() {
                write_member(&mut out, false, only_if_there, "1");
            }
        }
        if let Some(parameters) = parameters {
            write_member(&mut out, false, "kv_transfer_params", parameters);
        }
        self.keep_end(&mut out);
        out.finish()
    }

    /// Keeps everything up to the end of the last member that is kept, without those that are not; says whether none was.
    fn keep(&self, is_dropped: impl Fn(&[u8]) -> bool, out: &mut Splicer<'_>) -> bool {
        let first = self.object.members.first().map_or(self.object.close, |member| member.span.start);
        out.keep(0..first);
        let mut last_kept: Option<usize> = None;
        // A run of kept members is one stretch, with the commas and spaces between them.
        let mut run: Option<std::ops::Range<usize>> = None;
        for (index, Member { key, span, .. }) in self.object.members.iter().enumerate() {
            if is_dropped(key) {
                if let Some(run) = run.take() {
                    out.keep(run);
                }
                continue;
            }
            match &mut run {
                Some(run) => run.end = span.end,
                None => {
                    // After a gap, the comma and the spaces that stood before this member.
                    let start = match (last_kept, index.checked_sub(1)) {
                        (Some(_), Some(before)) => self.object.members[before].span.end,
                        _ => span.start,
                    };
                    run = Some(start..span.end);
                }
            }
            last_kept = Some(index);
        }
        if let Some(run) = run {
            out.keep(run);
        }
        last_kept.is_none()
    }

    /// Keeps what stands after the last member.
    fn keep_end(&self, out: &mut Splicer<'_>) {
        let end = self.object.members.last().map_or(self.object.close, |member| member.span.end);
        out.keep(end..self.object.bytes.len());
    }
}

fn write_member(out: &mut Splicer<'_>, is_first: bool, key: &str, value: &str) {
    if !is_first {
        out.write(b",");
    }
    out.write(b"\"");
    out.write(key.as_bytes());
    out.write(b"\":");
    out.write(value.as_bytes());
}

#[cfg(test)]
mod tests {
    use bytes::Buf as _;
    use serde_json::{Value, json};

    use super::*;

    fn text(mut spliced: Spliced) -> String {
        String::from_utf8(spliced.copy_to_bytes(spliced.remaining()).to_vec()).unwrap()
    }

    fn decode(body: &str, parameters: Option<&str>) -> String {
        let bytes = Bytes::copy_from_slice(body.as_bytes());
        text(look(&bytes).unwrap().decode(&bytes, parameters))
    }

    fn prefill(body: &str) -> Value {
        let bytes = Bytes::copy_from_slice(body.as_bytes());
        serde_json::from_str(&text(look(&bytes).unwrap().prefill(&bytes, Some(r#"{"t":1}"#)))).unwrap()
    }

    #[test]
    fn decode_gets_the_clients_bytes_but_for_what_is_taken_out_or_set() {
        let plain = "{ \"model\" : \"m\",\n \"x\":12345678901234567890123, \"stream\":true }\n";
        assert_eq!(decode(plain, None), plain);
        assert_eq!(
            decode(plain, Some("{}")),
            "{ \"model\" : \"m\",\n \"x\":12345678901234567890123, \"stream\":true,\"kv_transfer_params\":{} }\n"
        );
        assert_eq!(decode("{}", Some("{}")), r#"{"kv_transfer_params":{}}"#);
        assert_eq!(decode(" { } ", Some("1")), " { \"kv_transfer_params\":1} ");
    }

    #[test]
    fn hand_over_members_of_a_client_never_pass_in_any_spelling() {
        assert_eq!(decode(r#"{"kv_transfer_params":{"a":[1]}, "b":2}"#, None), r#"{"b":2}"#);
        assert_eq!(decode(r#"{"b":2 , "\u006bv_transfer_params":{}}"#, None), r#"{"b":2}"#);
        assert_eq!(decode(r#"{"\u0065c_transfer_params":{"h":{"peer_host":"x"}},"b":2}"#, None), r#"{"b":2}"#);
        assert_eq!(decode(r#"{"a":1, "bootstrap_room":7, "bootstrap_host":"x" , "b":2}"#, None), r#"{"a":1 , "b":2}"#);
        assert_eq!(decode(r#"{"data_parallel_rank":3}"#, None), "{}");
        assert_eq!(decode(r#"{"data_parallel_rank":3}"#, Some("{}")), r#"{"kv_transfer_params":{}}"#);
        assert_eq!(decode(r#"{"kv_transfer_params":1,"a":1}"#, Some("2")), r#"{"a":1,"kv_transfer_params":2}"#);
        let prompt = r#"{"prompt":"\"kv_transfer_params\":1","a":{"kv_transfer_params":1}}"#;
        assert_eq!(decode(prompt, None), prompt);
    }

    #[test]
    fn parameters_in_a_side_door_are_refused() {
        for door in ["vllm_xargs", "extra_args", "sampling_params", "vllm\\u005fxargs"] {
            for name in ["\\u006bv_transfer_params", "ec_transfer_params", "dp_rank"] {
                let body = format!(r#"{{"{door}":{{"a":[{{"{name}":"x"}}]}}}}"#);
                assert!(matches!(look(body.as_bytes()), Err(BodyError::SideDoor(_))), "{body}");
            }
            let harmless = format!(r#"{{"{door}":{{"a":"kv_transfer_params"}}}}"#);
            assert!(look(harmless.as_bytes()).is_ok());
        }
    }

    #[test]
    fn prefill_generates_one_token_and_nothing_is_streamed() {
        let body = r#"{"model":"m","messages":[1],"stream":true,"stream_options":{"include_usage":true},"max_tokens":500,
            "max_completion_tokens":400,"min_tokens":9,"temperature":0,"kv_transfer_params":{"do_remote_prefill":true}}"#;
        assert_eq!(
            prefill(body),
            json!({"model": "m", "messages": [1], "temperature": 0, "stream": false, "max_tokens": 1, "min_tokens": 1,
                "max_completion_tokens": 1, "kv_transfer_params": {"t": 1}})
        );
        let only = json!({"stream": false, "max_tokens": 1, "min_tokens": 1, "kv_transfer_params": {"t": 1}});
        assert_eq!(prefill("{}"), only);
        assert_eq!(prefill(r#"{"max_tokens":5}"#), only);
    }

    #[test]
    fn requests_whose_answer_a_split_would_change_are_told_apart() {
        let why = |body: &str| look(body.as_bytes()).unwrap().why_whole();
        let split = [
            "{}",
            r#"{"n":1,"best_of":null,"echo":false,"prompt_logprobs":null,"use_beam_search":false,"logprobs":5}"#,
            r#"{"prompt":"a"}"#,
            r#"{"prompt":["a"]}"#,
            r#"{"prompt":[1,2,3]}"#,
            r#"{"prompt":[[1,2,3]]}"#,
            r#"{"prompt":[]}"#,
        ];
        for body in split {
            assert_eq!(why(body), None, "{body}");
        }
        let whole = [
            (r#"{"n":2}"#, Reason::ManyAnswers),
            (r#"{"n":"2"}"#, Reason::ManyAnswers),
            (r#"{"\u006e":2}"#, Reason::ManyAnswers),
            (r#"{"best_of":3}"#, Reason::BestOf),
            (r#"{"use_beam_search":true}"#, Reason::BeamSearch),
            (r#"{"prompt_logprobs":0}"#, Reason::PromptLogprobs),
            (r#"{"echo":true}"#, Reason::Echo),
            (r#"{"prompt_embeds":"x"}"#, Reason::PromptEmbeddings),
            (r#"{"prompt":["a","b"]}"#, Reason::ManyPrompts),
            (r#"{"prompt":[ [1], [2]]}"#, Reason::ManyPrompts),
        ];
        for (body, reason) in whole {
            assert_eq!(why(body), Some(reason), "{body}");
        }
    }
}
