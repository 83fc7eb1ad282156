//! Hostile inputs: bodies, headers and cuts of streams that a generator makes, more than a million of them at the full size.
//!
//! What is checked is checked against serde_json, which parses where this room only looks.

use bytes::{Buf as _, Bytes};
use gco_runtime::environment::Environment;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use super::body::{self, BodyError};
use super::events::{First, Held};
use super::headers::{self, Forwarded};
use super::json::{self, JsonError};
use super::spliced::Spliced;

/// How many inputs each property gets; `GCO_SUITE_SIZE=full` asks for all, 1.5 million together.
fn inputs(small: u64, full: u64) -> u64 {
    if Environment::process().get("GCO_SUITE_SIZE") == Some("full") { full } else { small }
}

/// Dice: the same seed gives the same inputs, and a failure names its seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn pick<'t>(&mut self, all: &[&'t str]) -> &'t str {
        all[self.below(all.len())]
    }
}

const KEYS: [&str; 27] = [
    "model",
    "prompt",
    "messages",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "n",
    "kv_transfer_params",
    "ec_transfer_params",
    "bootstrap_host",
    "bootstrap_room",
    "bootstrap_",
    "data_parallel_rank",
    "dp_rank",
    "vllm_xargs",
    "extra_args",
    "echo",
    "best_of",
    "prompt_logprobs",
    "",
    "kv_transfer_param",
    "Kv_transfer_params",
    "boot",
    "ä🦀",
    "a\"b\\c",
];

const TEXTS: [&str; 12] = [
    "",
    "hello",
    "\"",
    "\\",
    "{\"kv_transfer_params\":1}",
    "ä🦀",
    "\n\t",
    "}",
    "],[",
    "\\u006bv",
    "data: x\n\n",
    "kv_transfer_params",
];

const SPACES: [&str; 6] = ["", "", "", " ", "\n", " \t\r\n"];

/// `text` as a JSON string, some characters in other spellings.
fn string(dice: &mut Dice, text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        let code = u32::from(character);
        if dice.one_in(6) || matches!(character, '"' | '\\') || code < 0x20 {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let digits = format!("{unit:04x}");
                out.push_str("\\u");
                out.push_str(&if dice.one_in(2) { digits.to_uppercase() } else { digits });
            }
        } else if character == '/' && dice.one_in(2) {
            out.push_str("\\/");
        } else {
            out.push(character);
        }
    }
    out.push('"');
    out
}

fn value(dice: &mut Dice, depth: usize) -> String {
    match dice.below(if depth == 0 { 6 } else { 9 }) {
        0 => dice.pick(&["null", "true", "false"]).to_owned(),
        1 => dice.pick(&["0", "1", "-1", "2", "1.5e+3", "12345678901234567890123", "-0.0"]).to_owned(),
        2..=5 => {
            let text = dice.pick(&TEXTS);
            string(dice, text)
        }
        6 => object(dice, depth - 1, 3),
        _ => {
            let parts: Vec<String> = (0..dice.below(4)).map(|_| value(dice, depth - 1)).collect();
            let space = dice.pick(&SPACES);
            format!("[{space}{}{space}]", parts.join(&format!("{space},")))
        }
    }
}

fn object(dice: &mut Dice, depth: usize, most: usize) -> String {
    let mut out = String::from("{");
    for index in 0..dice.below(most + 1) {
        if index > 0 {
            out.push(',');
        }
        let key = dice.pick(&KEYS);
        out.push_str(dice.pick(&SPACES));
        out.push_str(&string(dice, key));
        out.push_str(dice.pick(&SPACES));
        out.push(':');
        out.push_str(dice.pick(&SPACES));
        out.push_str(&value(dice, depth));
        out.push_str(dice.pick(&SPACES));
    }
    out.push('}');
    out
}

/// The bytes that a leg gets.
fn sent(mut body: Spliced) -> Vec<u8> {
    body.copy_to_bytes(body.remaining()).to_vec()
}

/// A body: well-formed, or with a few bytes that are not as they were.
fn hostile_body(dice: &mut Dice) -> Vec<u8> {
    let (before, after) = (dice.pick(&SPACES), dice.pick(&SPACES));
    let mut bytes = format!("{before}{}{after}", object(dice, 3, 9)).into_bytes();
    if dice.one_in(3) {
        for _ in 0..=dice.below(3) {
            let at = dice.below(bytes.len() + 1);
            match dice.below(4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, b"{}[]\",:\\ u0\0\xff\xc3"[dice.below(14)]),
                2 if at < bytes.len() => bytes[at] = dice.next() as u8,
                _ if at < bytes.len() => drop(bytes.remove(at)),
                _ => {}
            }
        }
    }
    bytes
}

/// Every key at any depth, unescaped by serde_json.
fn has_key(value: &Value, is_meant: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::Object(members) => members.iter().any(|(key, value)| is_meant(key) || has_key(value, is_meant)),
        Value::Array(values) => values.iter().any(|value| has_key(value, is_meant)),
        _ => false,
    }
}

fn is_kept_from_engines(key: &str) -> bool {
    matches!(key, "kv_transfer_params" | "ec_transfer_params")
        || key.starts_with("bootstrap_")
        || matches!(key, "data_parallel_rank" | "dp_rank" | "routed_dp_rank")
}

/// The raw text of the members that a predicate keeps, in order.
fn raw_members<'b>(object: &json::Object<'b>, keep: impl Fn(&str) -> bool) -> Vec<&'b [u8]> {
    let kept = object.members.iter().filter(|member| keep(&String::from_utf8_lossy(&member.key)));
    kept.map(|member| &object.bytes[member.span.clone()]).collect()
}

const PARAMETERS: &str = r#"{"transfer_id":"x"}"#;

#[test]
fn whatever_a_client_sends_decode_gets_its_bytes_but_for_the_members_that_are_taken_out_or_set() {
    let (mut good, mut refused) = (0_u64, 0_u64);
    for seed in 0..inputs(20_000, 700_000) {
        let bytes = Bytes::from(hostile_body(&mut Dice(seed)));
        let shown = || format!("seed {seed}: {:?}", String::from_utf8_lossy(&bytes));
        let parsed: Option<Value> = serde_json::from_slice(&bytes).ok();
        let looked = match body::look(&bytes) {
            Ok(looked) => looked,
            Err(error) => {
                refused += 1;
                match error {
                    // What serde_json understands as an object is never refused for its form.
                    BodyError::Json(JsonError::Invalid) => assert!(parsed.is_none(), "{}", shown()),
                    BodyError::Json(JsonError::NotAnObject) => {
                        assert!(parsed.is_none_or(|value| !value.is_object()), "{}", shown())
                    }
                    BodyError::Json(JsonError::Doubled(_) | JsonError::TooManyMembers) | BodyError::SideDoor(_) => {}
                }
                continue;
            }
        };
        let whole = json::scan(&bytes).unwrap_or_else(|error| panic!("{error}: {}", shown()));
        for parameters in [None, Some(PARAMETERS)] {
            let decode = sent(looked.decode(&bytes, parameters));
            let scanned = json::scan(&decode).unwrap_or_else(|error| panic!("{error}: {}", shown()));
            let own = |key: &str| parameters.is_some() && key == "kv_transfer_params";
            assert_eq!(
                raw_members(&scanned, |key| !own(key)),
                raw_members(&whole, |key| !is_kept_from_engines(key)),
                "{}",
                shown()
            );
            assert_eq!(scanned.value("kv_transfer_params"), parameters.map(str::as_bytes), "{}", shown());
            if parameters.is_none()
                && !whole.members.iter().any(|member| is_kept_from_engines(&String::from_utf8_lossy(&member.key)))
            {
                assert_eq!(decode, bytes, "{}", shown());
            }
        }
        let prefill = sent(looked.prefill(&bytes, Some(PARAMETERS)));
        // A body whose values nobody can parse is the engine's to refuse; what it gets is as bad as what came.
        let Some(Value::Object(parsed)) = parsed else { continue };
        good += 1;
        let side_doors = ["vllm_xargs", "extra_args", "sampling_params"];
        assert!(
            !side_doors.iter().filter_map(|door| parsed.get(*door)).any(|value| has_key(value, &is_kept_from_engines)),
            "{}",
            shown()
        );
        let mut expected: Map<String, Value> = parsed;
        expected.retain(|key, _| {
            !is_kept_from_engines(key) && !matches!(key.as_str(), "stream_options" | "min_completion_tokens")
        });
        for (key, value, only_if_there) in [
            ("stream", Value::Bool(false), false),
            ("max_tokens", 1.into(), false),
            ("min_tokens", 1.into(), false),
            ("max_completion_tokens", 1.into(), true),
            ("max_output_tokens", 1.into(), true),
        ] {
            if !only_if_there || expected.contains_key(key) {
                expected.insert(key.to_owned(), value);
            }
        }
        expected.insert("kv_transfer_params".to_owned(), serde_json::from_str(PARAMETERS).unwrap());
        let sent: Value = serde_json::from_slice(&prefill).unwrap_or_else(|error| panic!("{error}: {}", shown()));
        assert_eq!(sent, Value::Object(expected), "{}", shown());
        let _ = looked.why_whole();
    }
    println!("{good} good bodies, {refused} refused");
    assert!(good > 0 && refused > 0);
}

#[test]
fn whatever_headers_a_client_sends_none_that_steers_a_hand_over_or_a_connection_passes() {
    const NAMES: [&str; 25] = [
        "accept",
        "authorization",
        "connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "host",
        "content-length",
        "expect",
        "x-data-parallel-rank",
        "x_data_parallel_rank",
        "data-parallel-rank",
        "x-dp-rank",
        "x-dp_rank",
        "bootstrap-room",
        "x-bootstrap_host",
        "x-kv_transfer-params",
        "x-admin-api-key",
        "x-request-id",
        "x-custom",
        "traceparent",
    ];
    const VALUES: [&str; 6] = ["", "x-custom", "close, X-CUSTOM ,te", "a\u{e4}", "keep-alive", ",,"];
    for seed in 0..inputs(5_000, 250_000) {
        let mut dice = Dice(seed);
        let mut client = HeaderMap::new();
        for _ in 0..dice.below(12) {
            let (name, value) = (dice.pick(&NAMES), dice.pick(&VALUES));
            client.append(HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let forwarded = match dice.below(3) {
            0 => Forwarded::All,
            1 => Forwarded::default(),
            _ => Forwarded::Names(NAMES.iter().map(|name| HeaderName::from_static(name)).collect()),
        };
        let id = HeaderValue::from_static("ours");
        let mut sent = headers::to_engine(&client, &forwarded, &id);
        let named: Vec<String> = client
            .get_all("connection")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(',').map(|token| token.trim().to_lowercase()))
            .collect();
        for name in sent.keys() {
            let plain = name.as_str().replace('_', "-");
            let steers =
                ["data-parallel", "dp-rank", "bootstrap-", "kv-transfer"].iter().any(|mark| plain.contains(mark));
            let hops = matches!(
                name.as_str(),
                "connection"
                    | "te"
                    | "trailer"
                    | "transfer-encoding"
                    | "upgrade"
                    | "keep-alive"
                    | "proxy-connection"
                    | "proxy-authorization"
            );
            assert!(!steers && !hops && name != "x-admin-api-key", "seed {seed}: {name} passed");
            assert!(
                !named.contains(&name.as_str().to_owned()) || *name == headers::REQUEST_ID,
                "seed {seed}: {name} passed"
            );
        }
        assert!(sent.contains_key(headers::REQUEST_ID), "seed {seed}");
        headers::for_prefill(&mut sent, Some(1));
        assert_eq!(sent.get_all(headers::DATA_PARALLEL_RANK).iter().count(), 1, "seed {seed}");
        headers::to_client(&mut client);
        assert!(!client.contains_key("connection") && !client.contains_key("transfer-encoding"), "seed {seed}");
    }
}

#[test]
fn however_a_stream_is_cut_its_first_event_is_found_at_the_same_byte_and_no_byte_is_lost() {
    const LINES: [&str; 15] = [
        "data: {\"id\":1}",
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}",
        "data: {\"error\":{\"code\":500}}",
        "data: {\"error\":null}",
        "data: [DONE]",
        "data:{\"error\":1}",
        "data: ä🦀",
        ": ping",
        "event: x",
        "",
        "",
        "",
        "data: {\"err\\u006fr\":1}",
        "id: 7",
        "data",
    ];
    let is_found = |first| !matches!(first, First::Incomplete | First::RoleOnly);
    for seed in 0..inputs(5_000, 250_000) {
        let mut dice = Dice(seed);
        let mut text = String::new();
        for _ in 0..dice.below(9) {
            text.push_str(dice.pick(&LINES));
            text.push_str(dice.pick(&["\n", "\n", "\n", "\r\n", "\r"]));
        }
        let bytes = text.as_bytes();
        // Byte by byte says where the first event ends; any other cut must say the same once it has that byte.
        let mut single = Held::new(true);
        let mut has_role = false;
        let found = bytes.iter().enumerate().find_map(|(at, byte)| {
            let first = single.push(Bytes::copy_from_slice(&[*byte]));
            assert!(!(has_role && first == First::Incomplete), "seed {seed}: a role was forgotten: {text:?}");
            has_role |= first == First::RoleOnly;
            is_found(first).then_some((at, first))
        });
        let mut held = Held::new(true);
        let (mut at, mut seen) = (0, None);
        while at < bytes.len() && seen.is_none() {
            let end = (at + 1 + dice.below(20)).min(bytes.len());
            let first = held.push(Bytes::copy_from_slice(&bytes[at..end]));
            at = end;
            seen = is_found(first).then_some(first);
        }
        match (found, seen) {
            (Some((byte, first)), Some(seen)) => {
                assert_eq!(seen, first, "seed {seed}: {text:?}");
                assert!(byte < at, "seed {seed}: found before it was there: {text:?}");
            }
            (None, None) => {}
            other => panic!("seed {seed}: {other:?} in {text:?}"),
        }
        assert_eq!(held.into_pieces().concat(), &bytes[..at], "seed {seed}");
    }
}

/// A chunk of a chat's stream, members and values as engines write them, in any combination.
fn chat_chunk(dice: &mut Dice) -> String {
    const SAYS: [&str; 9] = ["null", "\"\"", "[]", "\"\"", "null", "\"a\"", "[{}]", "{}", "0"];
    let mut choices = Vec::new();
    for index in 0..dice.below(3) {
        let mut delta = Vec::new();
        if !dice.one_in(6) {
            delta.push(format!(
                "\"role\":{}",
                dice.pick(&["\"assistant\"", "\"assistant\"", "\"assistant\"", "null", "\"\""])
            ));
        }
        for name in
            ["content", "reasoning", "reasoning_content", "refusal", "annotations", "tool_calls", "function_call"]
        {
            if dice.one_in(3) {
                // Mostly nothing, or hardly any chunk would have only a role.
                let says = if dice.one_in(4) { dice.pick(&SAYS) } else { dice.pick(&SAYS[..5]) };
                delta.push(format!("\"{name}\":{says}"));
            }
        }
        let end =
            dice.pick(&["", "", "\"finish_reason\":null,", "\"finish_reason\":\"\",", "\"finish_reason\":\"stop\","]);
        let delta = delta.join(dice.pick(&[",", ", "]));
        choices.push(format!("{{\"index\":{index},{end}\"logprobs\":null,\"delta\":{{{delta}}}}}"));
    }
    let beside = dice.pick(&["", ",\"usage\":{\"prompt_tokens\":7}", ",\"prompt_token_ids\":[1,2]", ",\"error\":null"]);
    format!("{{\"object\":\"chat.completion.chunk\",\"choices\":[{}]{beside}}}", choices.join(","))
}

#[test]
fn a_chunk_has_only_a_role_when_a_parser_finds_nothing_else_in_it() {
    let is_nothing = |value: &Value| *value == Value::Null || *value == "" || *value == Value::Array(Vec::new());
    let has_only_a_role = |choice: &Value| {
        is_nothing(&choice["finish_reason"])
            && !is_nothing(&choice["delta"]["role"])
            && choice["delta"]
                .as_object()
                .is_some_and(|delta| delta.iter().all(|(name, value)| name == "role" || is_nothing(value)))
    };
    let mut only_roles = 0;
    for seed in 0..inputs(5_000, 250_000) {
        let chunk = chat_chunk(&mut Dice(seed));
        let parsed: Value = serde_json::from_str(&chunk).unwrap();
        let choices = parsed["choices"].as_array().unwrap();
        let expected = if !choices.is_empty() && choices.iter().all(has_only_a_role) {
            only_roles += 1;
            First::RoleOnly
        } else {
            First::Good
        };
        let said = Held::new(true).push(Bytes::from(format!("data: {chunk}\n\n")));
        assert_eq!(said, expected, "seed {seed}: {chunk}");
    }
    assert!(only_roles > 100, "{only_roles}");
}
