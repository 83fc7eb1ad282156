//! A completion as one JSON object, and as the events of a stream.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};

use super::metrics::Metrics;
use super::request::{CompletionRequest, Kind};
use super::{Identity, text};

/// Everything that will be said to one request; nothing of it depends on time.
pub(super) struct Completion {
    kind: Kind,
    identifier: String,
    created_seconds: i64,
    model: String,
    prompt_tokens: usize,
    include_usage: bool,
    choices: Vec<Choice>,
    /// How much of the prompt was not computed here, when the server says so.
    cached_tokens: OnceLock<usize>,
}

struct Choice {
    pieces: Vec<String>,
    natural_end: bool,
}

/// One event of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// How many tokens its round makes, on the first event of a round (a step of the engine, which
    /// takes time and gives one token to every choice); 0 on all others.
    pub(super) tokens: usize,
    /// The whole event with its blank line.
    pub(super) text: String,
}

impl Completion {
    pub(super) fn compose(
        request: &CompletionRequest,
        identity: &Identity,
        identifier: &str,
        created_seconds: i64,
    ) -> Self {
        let mut choices = Vec::with_capacity(request.prompts.len() * request.choices_per_prompt);
        for prompt in &request.prompts {
            for choice in 0..request.choices_per_prompt {
                let (pieces, natural_end) = text::answer(
                    identity,
                    &request.model,
                    &prompt.text,
                    choice,
                    request.minimum_tokens,
                    request.maximum_tokens,
                );
                choices.push(if request.ends_at_once && request.minimum_tokens == 0 {
                    Choice { pieces: vec![String::new()], natural_end: true }
                } else {
                    Choice { pieces, natural_end }
                });
            }
        }
        let prefix = match request.kind {
            Kind::Chat => "chatcmpl",
            Kind::Text => "cmpl",
        };
        Self {
            kind: request.kind,
            identifier: format!("{prefix}-{identifier}"),
            created_seconds,
            model: request.model.clone(),
            prompt_tokens: request.prompts.iter().map(|prompt| prompt.tokens).sum(),
            include_usage: request.include_usage,
            choices,
            cached_tokens: OnceLock::new(),
        }
    }

    /// Notes, before anything was said, how much of the prompt was not computed here.
    pub(super) fn found_in_cache(&self, tokens: usize) {
        // A second note would be about the same prompt.
        let _ = self.cached_tokens.set(tokens);
    }

    /// Whether every choice was cut off by the limit: only then is a prompt's KV kept for others.
    pub(super) fn ended_by_length(&self) -> bool {
        self.choices.iter().all(|choice| !choice.natural_end)
    }

    pub(super) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Tokens of all choices together.
    pub(super) fn generated_tokens(&self) -> usize {
        self.choices.iter().map(|choice| choice.pieces.len()).sum()
    }

    /// Choices are generated side by side, so the longest one decides how long it takes.
    pub(super) fn longest_choice_tokens(&self) -> usize {
        self.choices.iter().map(|choice| choice.pieces.len()).max().unwrap_or_default()
    }

    pub(super) fn count_as_finished(&self, metrics: &Metrics) {
        for choice in &self.choices {
            metrics.finished(choice.natural_end);
        }
    }

    fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.generated_tokens(),
            "total_tokens": self.prompt_tokens + self.generated_tokens(),
            "prompt_tokens_details": self.cached_tokens.get().map(|cached| json!({"cached_tokens": cached})),
        })
    }

    /// The answer to a request that did not ask for a stream.
    pub(super) fn whole(&self) -> Value {
        let choices: Vec<Value> = self
            .choices
            .iter()
            .enumerate()
            .map(|(index, choice)| {
                let said = choice.pieces.concat();
                let mut object = match self.kind {
                    Kind::Chat => json!({"message": {"role": "assistant", "content": said, "tool_calls": []}}),
                    Kind::Text => json!({"text": said}),
                };
                object["index"] = json!(index);
                object["logprobs"] = Value::Null;
                object["finish_reason"] = json!(choice.finish_reason());
                object
            })
            .collect();
        json!({
            "id": self.identifier,
            "object": match self.kind { Kind::Chat => "chat.completion", Kind::Text => "text_completion" },
            "created": self.created_seconds,
            "model": self.model,
            "choices": choices,
            "usage": self.usage(),
            "kv_transfer_params": null,
        })
    }

    fn chunk(&self, choices: &Value) -> Value {
        json!({
            "id": self.identifier,
            "object": match self.kind { Kind::Chat => "chat.completion.chunk", Kind::Text => "text_completion" },
            "created": self.created_seconds,
            "model": self.model,
            "choices": choices,
        })
    }

    fn piece_chunk(&self, index: usize, piece: &str, finish_reason: Option<&str>) -> Value {
        let mut choice = match self.kind {
            Kind::Chat if piece.is_empty() => json!({"delta": {}}),
            Kind::Chat => json!({"delta": {"content": piece}}),
            Kind::Text => json!({"text": piece}),
        };
        choice["index"] = json!(index);
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = json!(finish_reason);
        self.chunk(&json!([choice]))
    }
}

impl Choice {
    fn finish_reason(&self) -> &'static str {
        if self.natural_end { "stop" } else { "length" }
    }
}

/// The events of one stream, made when they are due.
pub(super) struct Events {
    completion: Arc<Completion>,
    /// The round: which piece of every choice comes next.
    round: usize,
    waiting: VecDeque<Event>,
    ended: bool,
}

impl Events {
    pub(super) fn new(completion: Arc<Completion>) -> Self {
        let mut waiting = VecDeque::new();
        if completion.kind == Kind::Chat {
            for index in 0..completion.choices.len() {
                let first = json!([{
                    "index": index,
                    "delta": {"role": "assistant", "content": ""},
                    "logprobs": null,
                    "finish_reason": null,
                }]);
                waiting.push_back(event(0, &completion.chunk(&first)));
            }
        }
        Self { completion, round: 0, waiting, ended: false }
    }

    /// One piece of every choice that has one left; after the last pieces, the end.
    fn fill(&mut self) {
        let completion = &self.completion;
        let tokens = completion.choices.iter().filter(|choice| choice.pieces.len() > self.round).count();
        let mut unclaimed = tokens;
        for (index, choice) in completion.choices.iter().enumerate() {
            if let Some(piece) = choice.pieces.get(self.round) {
                let last = self.round + 1 == choice.pieces.len();
                // A text stream says why it ended on its last piece, a chat stream in a chunk of its own.
                let with_reason = (last && completion.kind == Kind::Text).then(|| choice.finish_reason());
                self.waiting.push_back(event(
                    std::mem::take(&mut unclaimed),
                    &completion.piece_chunk(index, piece, with_reason),
                ));
                if last && completion.kind == Kind::Chat {
                    let reason = Some(choice.finish_reason());
                    self.waiting.push_back(event(0, &completion.piece_chunk(index, "", reason)));
                }
            }
        }
        self.round += 1;
        if tokens == 0 {
            if completion.include_usage {
                let mut last = completion.chunk(&json!([]));
                last["usage"] = completion.usage();
                self.waiting.push_back(event(0, &last));
            }
            self.waiting.push_back(Event { tokens: 0, text: "data: [DONE]\n\n".to_owned() });
            self.ended = true;
        }
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        if self.waiting.is_empty() && !self.ended {
            self.fill();
        }
        self.waiting.pop_front()
    }
}

fn event(tokens: usize, value: &Value) -> Event {
    Event { tokens, text: format!("data: {value}\n\n") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::Prompt;

    fn completion(kind: Kind, include_usage: bool) -> Completion {
        let request = CompletionRequest {
            kind,
            model: "m".to_owned(),
            prompts: vec![Prompt { text: "hi".to_owned(), tokens: 1 }],
            choices_per_prompt: 2,
            minimum_tokens: 0,
            maximum_tokens: 4,
            stream: true,
            include_usage,
            ends_at_once: false,
        };
        let identity = Identity { region: "r".to_owned(), pod: "p".to_owned() };
        Completion::compose(&request, &identity, "x", 7)
    }

    fn values(events: Events) -> Vec<Value> {
        events
            .filter_map(|event| {
                let data = event.text.strip_prefix("data: ")?.strip_suffix("\n\n")?.to_owned();
                serde_json::from_str(&data).ok()
            })
            .collect()
    }

    #[test]
    fn the_pieces_of_a_stream_join_to_the_whole_answer() {
        for kind in [Kind::Chat, Kind::Text] {
            let completion = Arc::new(completion(kind, false));
            let whole = completion.whole();
            let chunks = values(Events::new(Arc::clone(&completion)));
            for index in 0..2 {
                let mut said = String::new();
                for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
                    if choice["index"] == index {
                        let piece = if kind == Kind::Chat { &choice["delta"]["content"] } else { &choice["text"] };
                        said.push_str(piece.as_str().unwrap_or_default());
                    }
                }
                let choice = &whole["choices"][index];
                let expected = if kind == Kind::Chat { &choice["message"]["content"] } else { &choice["text"] };
                assert_eq!(expected, &json!(said));
            }
        }
    }

    #[test]
    fn a_stream_ends_with_usage_when_asked_and_then_done() {
        let events: Vec<Event> = Events::new(Arc::new(completion(Kind::Chat, true))).collect();
        assert_eq!(events.last().unwrap().text, "data: [DONE]\n\n");
        let usage = &events[events.len() - 2].text;
        assert!(usage.contains("\"choices\":[]") && usage.contains("\"completion_tokens\":8"), "{usage}");
        assert_eq!(events.iter().map(|event| event.tokens).sum::<usize>(), 8);
    }

    #[test]
    fn every_choice_says_once_why_it_ended() {
        for kind in [Kind::Chat, Kind::Text] {
            let chunks = values(Events::new(Arc::new(completion(kind, false))));
            let reasons = chunks.iter().filter(|chunk| chunk["choices"][0]["finish_reason"] == json!("length")).count();
            assert_eq!(reasons, 2, "{kind:?}");
        }
    }
}
