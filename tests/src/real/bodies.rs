//! Requests whose answers are the same wherever they are computed, and hostile ones.

use gco_runtime::random::SeededRandomness;
use serde_json::{Value, json};

use crate::dice::roll;

/// A request whose greedy answer follows from its prompt alone.
#[derive(Clone, Debug)]
pub struct Comparable {
    /// `/v1/completions` or `/v1/chat/completions`.
    pub path: &'static str,
    /// The body, with `stream` as it is to be sent to the proxy.
    pub body: Value,
}

impl Comparable {
    /// The same request as it is asked for an answer to compare with: whole.
    #[must_use]
    pub fn whole(&self) -> Value {
        let mut body = self.body.clone();
        if let Some(members) = body.as_object_mut() {
            members.remove("stream");
            members.remove("stream_options");
        }
        body
    }
}

/// The words of prompts; their number decides how many blocks of KV a prompt has.
const WORDS: [&str; 8] = ["prefill", "computes", "the prompt", "once", "décode", "日本", "fetches 42", "\"keys\"\n"];

/// Requests of all four kinds in turn: completions and chats, whole and streamed.
///
/// Each prompt begins with its own number, so that none finds another's blocks in an engine's cache.
#[must_use]
pub fn comparable(count: usize, seed: u64) -> Vec<Comparable> {
    let dice = SeededRandomness::new(seed);
    let make = |number: usize| {
        // Shorter than a block of 32 tokens, a few blocks, or some dozens.
        let words = match roll(&dice) % 10 {
            0..4 => 2,
            4..9 => 6 + roll(&dice) % 30,
            _ => 200,
        };
        let text: Vec<&str> = (0..words).map(|_| WORDS[roll(&dice) % WORDS.len()]).collect();
        let text = format!("{seed}.{number} {}", text.join(" "));
        let (path, mut body) = if number.is_multiple_of(2) {
            ("/v1/completions", json!({"prompt": text}))
        } else {
            ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": text}]}))
        };
        body["model"] = json!("tiny");
        body["temperature"] = json!(0);
        body["max_tokens"] = json!(8 + roll(&dice) % 24);
        if !(number / 2).is_multiple_of(2) {
            body["stream"] = json!(true);
            if roll(&dice).is_multiple_of(2) {
                body["stream_options"] = json!({"include_usage": true});
            }
        }
        Comparable { path, body }
    };
    (0..count).map(make).collect()
}

/// A body that no client of good will sends.
#[derive(Clone, Debug)]
pub struct Hostile {
    /// Where it goes.
    pub path: &'static str,
    /// Its bytes.
    pub body: String,
    /// Headers that steer a hand-over.
    pub headers: Vec<(&'static str, &'static str)>,
}

/// Values of `kv_transfer_params` that end an engine or make it wait for ever when they come to it, and some that are no
/// object at all. `ID` stands for prefill's engine id, `BOOTSTRAP` for its bootstrap server.
const PARAMETERS: [&str; 14] = [
    r#"{"do_remote_prefill":true}"#,
    r#"{"do_remote_prefill":true,"transfer_id":"x"}"#,
    r#"{"do_remote_prefill":true,"transfer_id":"x","remote_engine_id":"ID"}"#,
    r#"{"do_remote_prefill":true,"transfer_id":"x","remote_bootstrap_addr":"BOOTSTRAP"}"#,
    r#"{"do_remote_prefill":true,"remote_engine_id":"ID","remote_bootstrap_addr":"BOOTSTRAP"}"#,
    r#"{"do_remote_prefill":true,"transfer_id":"x","remote_engine_id":"stale","remote_bootstrap_addr":"http://127.0.0.1:1"}"#,
    r#"{"do_remote_decode":true}"#,
    r#"{"do_remote_decode":true,"transfer_id":"x"}"#,
    r#"{"do_remote_decode":true,"do_remote_prefill":true,"transfer_id":"x"}"#,
    r#"{"do_remote_prefill":true,"remote_host":"127.0.0.1","remote_port":1,"remote_engine_id":"ID","remote_block_ids":[[99999]]}"#,
    r#"{"do_remote_prefill":true,"remote_block_ids":null,"remote_request_id":"x","tp_size":0}"#,
    r#"[1]"#,
    r#""do_remote_prefill""#,
    "1",
];

/// Members that carry [`PARAMETERS`] past a careless eye; `VALUE` stands for them.
const WAYS: [&str; 13] = [
    r#""kv_transfer_params":VALUE"#,
    r#""\u006bv_transfer_params":VALUE"#,
    r#""kv\u005Ftransfer\u005fparams":VALUE"#,
    r#""kv_transfer_params":null,"kv_transfer_params":VALUE"#,
    r#""kv_transfer_params":VALUE,"\u006bv_transfer_params":VALUE"#,
    r#""vllm_xargs":{"kv_transfer_params":VALUE}"#,
    r#""vllm_xargs":{"\u006bv_transfer_params":VALUE}"#,
    r#""extra_args":{"kv_transfer_params":VALUE}"#,
    r#""sampling_params":{"extra_args":{"kv_transfer_params":VALUE}}"#,
    r#""extra_body":{"kv_transfer_params":VALUE}"#,
    r#""bootstrap_host":"127.0.0.1","bootstrap_room":7,"ec_transfer_params":VALUE,"kv_transfer_params":VALUE"#,
    r#""data_parallel_rank":99,"dp_rank":-1,"kv_transfer_params":VALUE"#,
    // Refused by the engine after the parameters were read: its clean-up is what ends it.
    r#""min_tokens":999,"kv_transfer_params":VALUE"#,
];

const RANK_HEADERS: [&[(&str, &str)]; 5] = [
    &[],
    &[("x-data-parallel-rank", "99")],
    &[("x-data-parallel-rank", "-1"), ("x_data_parallel_rank", "1")],
    &[("x-kv-transfer-params", "{\"do_remote_prefill\":true}"), ("x-dp-rank", "7")],
    &[("bootstrap-room", "1")],
];

/// So many hostile bodies. The first ones are every way with every value in turn; more are the same with other dice.
#[must_use]
pub fn hostile(count: usize, engine_id: &str, bootstrap: &str) -> Vec<Hostile> {
    let dice = SeededRandomness::new(9);
    let make = |number: usize| {
        // The step is prime to both lengths, so that every pair comes before any comes again.
        let parameters = PARAMETERS[number % PARAMETERS.len()].replace("ID", engine_id).replace("BOOTSTRAP", bootstrap);
        let way = WAYS[number % WAYS.len()].replace("VALUE", &parameters);
        let (path, prompt) = match number % 5 {
            0 => ("/v1/completions", r#""prompt":"hostile""#.to_owned()),
            1 => ("/v1/chat/completions", r#""messages":[{"role":"user","content":"hostile"}]"#.to_owned()),
            // Too long for the model, which is found out after the parameters were read.
            2 => ("/v1/completions", format!(r#""prompt":"{}""#, "too long ".repeat(3_000))),
            3 => ("/v1/responses", r#""input":"hostile""#.to_owned()),
            _ => ("/v1/completions", r#""prompt":[5,6,7]"#.to_owned()),
        };
        let limit = if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" };
        let stream = if roll(&dice).is_multiple_of(2) { r#","stream":true"# } else { "" };
        Hostile {
            path,
            body: format!(r#"{{"model":"tiny",{prompt},"{limit}":4{stream},{way}}}"#),
            headers: RANK_HEADERS[roll(&dice) % RANK_HEADERS.len()].to_vec(),
        }
    };
    (0..count).map(make).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn two_hundred_hostile_bodies_have_every_pair_of_way_and_value() {
        let made = hostile(PARAMETERS.len() * WAYS.len(), "e", "http://127.0.0.1:1");
        let pairs: BTreeSet<(usize, usize)> =
            (0..made.len()).map(|number| (number % PARAMETERS.len(), number % WAYS.len())).collect();
        assert_eq!(pairs.len(), PARAMETERS.len() * WAYS.len());
        assert!(made.len() <= 200, "{}", made.len());
    }

    #[test]
    fn comparable_requests_are_of_all_four_kinds_and_no_prompt_comes_twice() {
        let made = comparable(40, 3);
        let kinds: BTreeSet<(&str, bool)> =
            made.iter().map(|one| (one.path, one.body["stream"].as_bool().unwrap_or(false))).collect();
        assert_eq!(kinds.len(), 4);
        let prompts: BTreeSet<String> =
            made.iter().map(|one| format!("{}{}", one.body["prompt"], one.body["messages"])).collect();
        assert_eq!(prompts.len(), made.len());
        assert!(made.iter().all(|one| one.whole()["stream"].is_null()));
    }
}
