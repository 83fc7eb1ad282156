//! The `kv_transfer_params` of each leg, as JSON text.
//!
//! Real engines end when they get an incomplete set (contract D.6), so a set is made whole here or not at all.

use std::fmt::Write as _;

use crate::relay::json;

/// A member of `kv_transfer_params` that decode needs from a NIXL prefill; `null` is as bad as absent.
const NIXL_NEEDS: [&[u8]; 4] = [b"remote_engine_id", b"remote_block_ids", b"remote_host", b"remote_port"];

/// What a Mooncake prefill is told.
#[must_use]
pub fn mooncake_prefill(transfer_id: &str) -> String {
    let mut text = String::with_capacity(96 + transfer_id.len());
    text.push_str(r#"{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"#);
    push_string(&mut text, transfer_id);
    text.push('}');
    text
}

/// What a Mooncake decode is told: where prefill's bootstrap server is, which engine behind it, and the transfer id.
#[must_use]
pub fn mooncake_decode(bootstrap_address: &str, engine_id: &str, transfer_id: &str) -> String {
    let mut text = String::with_capacity(192 + bootstrap_address.len() + engine_id.len() + transfer_id.len());
    text.push_str(r#"{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":"#);
    push_string(&mut text, bootstrap_address);
    text.push_str(r#","remote_engine_id":"#);
    push_string(&mut text, engine_id);
    text.push_str(r#","transfer_id":"#);
    push_string(&mut text, transfer_id);
    text.push('}');
    text
}

/// What a NIXL prefill is told.
pub const NIXL_PREFILL: &str = concat!(
    r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"#,
    r#""remote_host":null,"remote_port":null}"#
);

/// What a NIXL decode is told: prefill's `kv_transfer_params`, taken from its answer unchanged.
///
/// `None` when there are none, or when they are not a whole set for a decode.
#[must_use]
pub fn nixl_decode(answer: &[u8]) -> Option<String> {
    let answer = json::scan(answer).ok()?;
    let parameters = answer.value("kv_transfer_params")?;
    let inside = json::scan(parameters).ok()?;
    let is_there = |name: &&[u8]| inside.value_of_key(name).is_some_and(|value| value != b"null");
    let is_whole = NIXL_NEEDS.iter().all(is_there)
        && inside.value("do_remote_prefill") == Some(b"true")
        && inside.value("do_remote_decode").is_none_or(|value| value == b"false");
    is_whole.then(|| String::from_utf8(parameters.to_vec()).ok()).flatten()
}

/// Appends `text` as a JSON string.
fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            control if u32::from(control) < 0x20 => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_mooncake_legs_carry_the_sets_of_the_contract() {
        let prefill: Value = serde_json::from_str(&mooncake_prefill("xfer-1")).unwrap();
        assert_eq!(prefill, json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": "xfer-1"}));
        let decode: Value =
            serde_json::from_str(&mooncake_decode("http://[2001:db8::1]:8998", "id", "xfer-1")).unwrap();
        assert_eq!(
            decode,
            json!({
                "do_remote_decode": false, "do_remote_prefill": true, "transfer_id": "xfer-1",
                "remote_bootstrap_addr": "http://[2001:db8::1]:8998", "remote_engine_id": "id",
            })
        );
        let nixl: Value = serde_json::from_str(NIXL_PREFILL).unwrap();
        assert_eq!(nixl["do_remote_decode"], true);
    }

    #[test]
    fn an_engine_id_with_odd_characters_stays_one_string() {
        let odd = "a\"b\\c\nd\u{1}ä";
        let decode: Value = serde_json::from_str(&mooncake_decode("http://p:1", odd, "x")).unwrap();
        assert_eq!(decode["remote_engine_id"], odd);
    }

    const WHOLE: &str = r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_host":"127.0.0.1","remote_port":1,"tp_size":1}"#;

    #[test]
    fn nixl_parameters_are_taken_unchanged_when_they_are_whole() {
        let answer = format!(r#"{{"id":"x","choices":[], "kv_transfer_params" : {WHOLE} }}"#);
        assert_eq!(nixl_decode(answer.as_bytes()).as_deref(), Some(WHOLE));
    }

    #[test]
    fn nixl_parameters_that_would_end_an_engine_are_not_handed_on() {
        let answer = |parameters: &str| format!(r#"{{"kv_transfer_params":{parameters}}}"#);
        let wrong = [
            answer("null"),
            answer("{}"),
            answer("[]"),
            answer(&WHOLE.replace(r#""remote_engine_id":"e","#, "")),
            answer(&WHOLE.replace(r#""e""#, "null")),
            answer(&WHOLE.replace(r#""remote_port":1,"#, "")),
            answer(&WHOLE.replace(r#""do_remote_prefill":true"#, r#""do_remote_prefill":false"#)),
            answer(&WHOLE.replace(r#""do_remote_decode":false"#, r#""do_remote_decode":true"#)),
            answer(&WHOLE.replace(r#""tp_size":1"#, r#""remote_port":2"#)),
            r#"{"id":1}"#.to_owned(),
            "no json".to_owned(),
        ];
        for wrong in wrong {
            assert_eq!(nixl_decode(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
