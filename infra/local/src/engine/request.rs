//! Reading a completion request, and the errors a model server gives for a bad one.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::text;

/// Which of the two completion routes was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Text,
}

/// A refused request, in the error shape of the `OpenAI` API.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) kind: &'static str,
    pub(super) message: String,
    pub(super) parameter: Option<&'static str>,
}

impl Refusal {
    pub(super) fn bad(message: impl Into<String>, parameter: Option<&'static str>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, kind: "BadRequestError", message: message.into(), parameter }
    }

    pub(super) fn unknown_model(model: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            kind: "NotFoundError",
            message: format!("The model `{model}` does not exist."),
            parameter: Some("model"),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.parameter,
            "code": self.status.as_u16(),
        }});
        (self.status, Json(body)).into_response()
    }
}

/// One prompt: its text (token numbers have none) and how many tokens it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) text: String,
    pub(super) tokens: usize,
}

/// A completion request that can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CompletionRequest {
    pub(super) kind: Kind,
    pub(super) model: String,
    pub(super) prompts: Vec<Prompt>,
    pub(super) choices_per_prompt: usize,
    pub(super) minimum_tokens: usize,
    pub(super) maximum_tokens: usize,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// The first token is the end, as far as the request allows it.
    pub(super) ends_at_once: bool,
}

/// What the server serves, as far as reading a request needs it.
pub(super) struct Limits<'a> {
    pub(super) served_names: &'a [String],
    pub(super) maximum_model_tokens: usize,
}

/// Parses a body that must be a JSON object.
pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, Refusal> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Refusal::bad("The request body is not a JSON object.", None)),
        Err(problem) => Err(Refusal::bad(format!("The request body is not valid JSON: {problem}"), None)),
    }
}

/// The model asked for; the first served name when none is given, as real servers do.
pub(super) fn model(body: &Map<String, Value>, served_names: &[String]) -> Result<String, Refusal> {
    match body.get("model") {
        None | Some(Value::Null) => Ok(served_names.first().cloned().unwrap_or_default()),
        Some(Value::String(name)) if served_names.contains(name) => Ok(name.clone()),
        Some(Value::String(name)) => Err(Refusal::unknown_model(name)),
        Some(_) => Err(Refusal::bad("model must be a string.", Some("model"))),
    }
}

impl CompletionRequest {
    pub(super) fn read_object(kind: Kind, body: &Map<String, Value>, limits: &Limits<'_>) -> Result<Self, Refusal> {
        let model = model(body, limits.served_names)?;
        let prompts = match kind {
            Kind::Chat => vec![chat_prompt(body.get("messages"))?],
            Kind::Text => text_prompts(body.get("prompt"))?,
        };
        let longest = prompts.iter().map(|prompt| prompt.tokens).max().unwrap_or_default();
        if longest >= limits.maximum_model_tokens {
            return Err(Refusal::bad(
                format!(
                    "This model's maximum context length is {} tokens, and the request has {longest} input tokens. \
                     Shorten the prompt.",
                    limits.maximum_model_tokens
                ),
                Some("input_tokens"),
            ));
        }
        let room = limits.maximum_model_tokens - longest;

        let asked = match count(body, "max_completion_tokens")? {
            Some(count) => Some(count),
            None => count(body, "max_tokens")?,
        };
        // The defaults of the two routes differ: 16 for text, whatever fits for chat.
        let maximum = asked.unwrap_or(if kind == Kind::Text { 16 } else { room });
        if maximum == 0 {
            return Err(Refusal::bad(format!("max_tokens must be at least 1, got {maximum}."), Some("max_tokens")));
        }
        if asked.is_some() && maximum > room {
            return Err(Refusal::bad(
                format!(
                    "max_tokens={maximum} is too large: the maximum context length is {} tokens and the request has \
                     {longest} input tokens ({maximum} > {} - {longest}).",
                    limits.maximum_model_tokens, limits.maximum_model_tokens
                ),
                Some("max_tokens"),
            ));
        }
        let maximum = maximum.min(room);
        let minimum = count(body, "min_tokens")?.unwrap_or_default();
        if minimum > maximum {
            return Err(Refusal::bad(
                format!("min_tokens must be less than or equal to max_tokens={maximum}, got {minimum}."),
                Some("min_tokens"),
            ));
        }
        let minimum = if flag(body, "ignore_eos")? && asked.is_some() { maximum } else { minimum };

        let choices_per_prompt = count(body, "n")?.unwrap_or(1);
        if !(1..=64).contains(&choices_per_prompt) {
            return Err(Refusal::bad(format!("n must be between 1 and 64, got {choices_per_prompt}."), Some("n")));
        }
        let stream = flag(body, "stream")?;
        let include_usage = match body.get("stream_options") {
            None | Some(Value::Null) => false,
            Some(_) if !stream => {
                return Err(Refusal::bad("Stream options can only be defined when `stream=True`.", None));
            }
            Some(Value::Object(options)) => flag(options, "include_usage")?,
            Some(_) => return Err(Refusal::bad("stream_options must be an object.", Some("stream_options"))),
        };
        Ok(Self {
            kind,
            model,
            prompts,
            choices_per_prompt,
            minimum_tokens: minimum,
            maximum_tokens: maximum,
            stream,
            include_usage,
            ends_at_once: false,
        })
    }
}

/// A whole number that is not negative; absent and null are the same.
fn count(body: &Map<String, Value>, key: &'static str) -> Result<Option<usize>, Refusal> {
    match body.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().and_then(|number| usize::try_from(number).ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(Refusal::bad(format!("{key} must be a whole number of at least 0, got {value}."), Some(key))),
        },
    }
}

fn flag(body: &Map<String, Value>, key: &'static str) -> Result<bool, Refusal> {
    match body.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(value) => Err(Refusal::bad(format!("{key} must be true or false, got {value}."), Some(key))),
    }
}

/// A prompt is text or token numbers, or a list of either.
fn text_prompts(prompt: Option<&Value>) -> Result<Vec<Prompt>, Refusal> {
    let refused = || {
        Err(Refusal::bad(
            "prompt must be a string, a list of token numbers, or a list of these, and must not be empty.",
            Some("prompt"),
        ))
    };
    match prompt {
        Some(Value::String(text)) if !text.is_empty() => Ok(vec![prompt_of_text(text)]),
        Some(Value::Array(parts)) if parts.is_empty() => refused(),
        Some(Value::Array(parts)) if parts.iter().all(Value::is_u64) => {
            Ok(vec![Prompt { text: String::new(), tokens: parts.len() }])
        }
        Some(Value::Array(parts)) => {
            let mut prompts = Vec::with_capacity(parts.len());
            for part in parts {
                match part {
                    Value::String(text) if !text.is_empty() => prompts.push(prompt_of_text(text)),
                    Value::Array(numbers) if !numbers.is_empty() && numbers.iter().all(Value::is_u64) => {
                        prompts.push(Prompt { text: String::new(), tokens: numbers.len() });
                    }
                    _ => return refused(),
                }
            }
            Ok(prompts)
        }
        _ => refused(),
    }
}

fn prompt_of_text(text: &str) -> Prompt {
    Prompt { text: text.to_owned(), tokens: text::pieces(text).len() }
}

/// The last message is quoted in the answer; all of them count as tokens, with three each for the
/// marks that a chat template puts around a message.
pub(super) fn chat_prompt(messages: Option<&Value>) -> Result<Prompt, Refusal> {
    let texts = chat_texts(messages)?;
    let tokens = texts.iter().map(|text| text::pieces(text).len() + 3).sum();
    Ok(Prompt { text: texts.into_iter().next_back().unwrap_or_default(), tokens })
}

/// The text of every message, in order.
pub(super) fn chat_texts(messages: Option<&Value>) -> Result<Vec<String>, Refusal> {
    let Some(messages) = messages.and_then(Value::as_array).filter(|messages| !messages.is_empty()) else {
        return Err(Refusal::bad("messages must be a list of at least one message.", Some("messages")));
    };
    messages
        .iter()
        .enumerate()
        .map(|(position, message)| {
            if message.get("role").and_then(Value::as_str).is_none_or(str::is_empty) {
                return Err(Refusal::bad(format!("messages[{position}] has no role."), Some("messages")));
            }
            content_text(message.get("content")).ok_or_else(|| {
                Refusal::bad(
                    format!("messages[{position}].content must be a string or a list of parts."),
                    Some("messages"),
                )
            })
        })
        .collect()
}

fn content_text(content: Option<&Value>) -> Option<String> {
    match content {
        // An assistant's message with tool calls has no content.
        None | Some(Value::Null) => Some(String::new()),
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str));
            Some(texts.collect::<Vec<_>>().join(" "))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: Kind, body: &Value) -> Result<CompletionRequest, Refusal> {
        let served = ["m".to_owned()];
        let limits = Limits { served_names: &served, maximum_model_tokens: 100 };
        CompletionRequest::read_object(kind, body.as_object().unwrap(), &limits)
    }

    #[test]
    fn the_two_routes_have_different_defaults() {
        let text = read(Kind::Text, &json!({"prompt": "one two"})).unwrap();
        assert_eq!((text.maximum_tokens, text.prompts[0].tokens), (16, 2));
        let chat = read(Kind::Chat, &json!({"messages": [{"role": "user", "content": "one two"}]})).unwrap();
        assert_eq!((chat.maximum_tokens, chat.prompts[0].tokens), (95, 5));
    }

    #[test]
    fn every_form_of_prompt_is_read() {
        for (prompt, count) in
            [(json!("a"), 1), (json!([1, 2, 3]), 1), (json!(["a", "b"]), 2), (json!([[1], [2, 3]]), 2)]
        {
            assert_eq!(read(Kind::Text, &json!({"prompt": prompt})).unwrap().prompts.len(), count, "{prompt}");
        }
        for prompt in [json!(""), json!([]), json!(7), json!([[]]), json!(["a", [1.5]])] {
            let refusal = read(Kind::Text, &json!({"prompt": prompt})).unwrap_err();
            assert_eq!(refusal.parameter, Some("prompt"), "{prompt}");
        }
    }

    #[test]
    fn limits_are_refused_with_the_parameter_that_breaks_them() {
        let message = json!([{"role": "user", "content": "hello"}]);
        for (extra, parameter) in [
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_tokens": 101}), "max_tokens"),
            (json!({"max_tokens": "4"}), "max_tokens"),
            (json!({"max_tokens": 4, "min_tokens": 5}), "min_tokens"),
            (json!({"n": 0}), "n"),
            (json!({"stream": "yes"}), "stream"),
            (json!({"model": 4}), "model"),
        ] {
            let mut body = extra.clone();
            body["messages"] = message.clone();
            let refusal = read(Kind::Chat, &body).unwrap_err();
            assert_eq!((refusal.status, refusal.parameter), (StatusCode::BAD_REQUEST, Some(parameter)), "{extra}");
        }
        let long = json!({"prompt": "x ".repeat(120)});
        assert_eq!(read(Kind::Text, &long).unwrap_err().parameter, Some("input_tokens"));
    }

    #[test]
    fn an_unknown_model_is_not_found() {
        let refusal = read(Kind::Text, &json!({"prompt": "a", "model": "other"})).unwrap_err();
        assert_eq!(refusal.status, StatusCode::NOT_FOUND);
        assert_eq!(refusal.message, "The model `other` does not exist.");
    }
}
