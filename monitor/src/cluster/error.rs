//! What the API server's refusals mean. A pure function with a table of cases as its test.
//!
//! The status code alone does not say it: throttling and unknown groups answer in plain text, a replaced object can be
//! a 422, and a server that has just started refuses everybody for a second.

use std::time::Duration;

use gco_store::problem::bounded;
use serde_json::Value;

use crate::report::Category;

/// Longest message that is kept, in characters: it goes into a status entry.
const MESSAGE_CHARACTERS: usize = 300;

/// How long to wait after a refusal for speed that does not say it, as the server's own default does.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Longest wait that a server can impose on us.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(30);

/// Which refusal it was, beyond its category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The object does not exist.
    NotFound,
    /// The API group or resource does not exist on this server.
    NoSuchApi,
    /// The name is taken (POST).
    AlreadyExists,
    /// The object's version or uid is another one.
    Precondition,
    /// One of our admission policies refused a stale term.
    StaleTerm,
    /// Nothing of the above, or no answer at all.
    Other,
}

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Decides retry, metric and condition.
    pub category: Category,
    /// Which refusal.
    pub refusal: Refusal,
    /// HTTP status, when there was an answer.
    pub status: Option<u16>,
    /// Bounded and clean.
    pub message: String,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// A failure without an answer of the server.
    #[must_use]
    pub fn unanswered(category: Category, message: &str) -> Self {
        Self {
            category,
            refusal: Refusal::Other,
            status: None,
            message: bounded(message, MESSAGE_CHARACTERS),
            retry_after: None,
        }
    }

    /// Whether the object was not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.refusal == Refusal::NotFound
    }
}

/// The server's answer as far as sorting needs it.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// HTTP status, not 2xx.
    pub status: u16,
    /// Body: a `Status` object, or plain text.
    pub body: &'a [u8],
    /// Header `Retry-After`.
    pub retry_after: Option<&'a str>,
    /// The server was out of reach a moment ago, so its rights may not be loaded yet.
    pub server_is_fresh: bool,
}

/// Sorts a refusal.
#[must_use]
pub fn sort(answer: &Answer<'_>) -> ApiError {
    let status_object: Option<Value> =
        serde_json::from_slice(answer.body).ok().filter(|value: &Value| value.is_object());
    let field = |name: &str| status_object.as_ref().and_then(|object| object.get(name));
    let reason = field("reason").and_then(Value::as_str).unwrap_or_default();
    let text = match field("message").and_then(Value::as_str) {
        Some(message) => message.to_owned(),
        None => String::from_utf8_lossy(answer.body.get(..2_000).unwrap_or(answer.body)).into_owned(),
    };
    let details = field("details");
    let causes: Vec<&Value> = details
        .and_then(|details| details.get("causes"))
        .and_then(Value::as_array)
        .map(|causes| causes.iter().collect())
        .unwrap_or_default();
    let cause_is =
        |key: &str, wanted: &str| causes.iter().any(|cause| cause.get(key).and_then(Value::as_str) == Some(wanted));
    let stale_term = text.contains("ValidatingAdmissionPolicy 'gco-term") && text.contains("denied request");
    let (category, refusal) = match answer.status {
        403 | 422 if stale_term => (Category::Fenced, Refusal::StaleTerm),
        401 if answer.server_is_fresh => (Category::Unavailable, Refusal::Other),
        403 if cause_is("reason", "NamespaceTerminating") => (Category::Unavailable, Refusal::Other),
        403 if answer.server_is_fresh && !text.contains("denied request") => (Category::Unavailable, Refusal::Other),
        401 | 403 => (Category::Forbidden, Refusal::Other),
        404 if status_object.is_none() || text.contains("could not find the requested resource") => {
            (Category::Unavailable, Refusal::NoSuchApi)
        }
        404 if details.and_then(|details| details.get("kind")).and_then(Value::as_str) == Some("namespaces") => {
            (Category::Unavailable, Refusal::Other)
        }
        404 => (Category::Conflict, Refusal::NotFound),
        409 if reason == "AlreadyExists" => (Category::Conflict, Refusal::AlreadyExists),
        409 => (Category::Conflict, Refusal::Precondition),
        // A given uid that is not the object's: it was replaced since we looked.
        422 if cause_is("field", "metadata.uid") => (Category::Conflict, Refusal::Precondition),
        400 | 413 | 422 => (Category::Invalid, Refusal::Other),
        410 => (Category::Unavailable, Refusal::Other),
        429 => (Category::Throttled, Refusal::Other),
        500 if text.contains("resourceVersion should not be set") => (Category::Bug, Refusal::Other),
        500..=599 => (Category::Unavailable, Refusal::Other),
        _ => (Category::Bug, Refusal::Other),
    };
    let asked = answer
        .retry_after
        .and_then(|text| text.trim().parse::<u64>().ok())
        .or_else(|| details?.get("retryAfterSeconds")?.as_u64())
        .map(Duration::from_secs);
    let retry_after = match category {
        Category::Throttled => Some(asked.unwrap_or(DEFAULT_RETRY_AFTER).min(LONGEST_RETRY_AFTER)),
        Category::Unavailable => asked.map(|wait| wait.min(LONGEST_RETRY_AFTER)),
        _ => None,
    };
    let message = match (reason, text.trim()) {
        ("", "") => format!("HTTP {}", answer.status),
        ("", text) => format!("HTTP {}: {text}", answer.status),
        (reason, text) => format!("{reason}: {text}"),
    };
    ApiError {
        category,
        refusal,
        status: Some(answer.status),
        message: bounded(&message, MESSAGE_CHARACTERS),
        retry_after,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sorted(status: u16, body: &str, fresh: bool) -> ApiError {
        sort(&Answer { status, body: body.as_bytes(), retry_after: None, server_is_fresh: fresh })
    }

    fn status(reason: &str, message: &str, details: &Value) -> String {
        json!({"kind": "Status", "reason": reason, "message": message, "details": details}).to_string()
    }

    #[test]
    fn every_refusal_has_its_category() {
        let none = json!({});
        let uid = json!({"causes": [{"field": "metadata.uid", "reason": "FieldValueInvalid"}]});
        let image = json!({"causes": [{"field": "spec.template.spec.containers[0].image"}]});
        let terminating = json!({"causes": [{"reason": "NamespaceTerminating"}]});
        let term = "deployments.apps \"a\" is forbidden: ValidatingAdmissionPolicy 'gco-term-order' with binding \
                    'gco-term-order' denied request: older term";
        let other = "ValidatingAdmissionPolicy 'no-latest' with binding 'b' denied request: no";
        let cases: Vec<(u16, String, bool, Category, Refusal)> = vec![
            (429, "Too many requests, please try again later.".into(), false, Category::Throttled, Refusal::Other),
            (404, "404 page not found".into(), false, Category::Unavailable, Refusal::NoSuchApi),
            (
                404,
                status("NotFound", "the server could not find the requested resource", &none),
                false,
                Category::Unavailable,
                Refusal::NoSuchApi,
            ),
            (
                404,
                status("NotFound", "deployments.apps \"a\" not found", &json!({"name": "a", "kind": "deployments"})),
                false,
                Category::Conflict,
                Refusal::NotFound,
            ),
            (
                404,
                status("NotFound", "namespaces \"n\" not found", &json!({"name": "n", "kind": "namespaces"})),
                false,
                Category::Unavailable,
                Refusal::Other,
            ),
            (
                409,
                status("AlreadyExists", "services \"a\" already exists", &none),
                false,
                Category::Conflict,
                Refusal::AlreadyExists,
            ),
            (
                409,
                status("Conflict", "the object has been modified", &none),
                false,
                Category::Conflict,
                Refusal::Precondition,
            ),
            (
                422,
                status("Invalid", "metadata.uid: field is immutable", &uid),
                false,
                Category::Conflict,
                Refusal::Precondition,
            ),
            (422, status("Invalid", "image: Required value", &image), false, Category::Invalid, Refusal::Other),
            (400, status("BadRequest", "bad", &none), false, Category::Invalid, Refusal::Other),
            (413, "request is too large".into(), false, Category::Invalid, Refusal::Other),
            (401, status("Unauthorized", "Unauthorized", &none), false, Category::Forbidden, Refusal::Other),
            (403, status("Forbidden", "cannot patch resource", &none), false, Category::Forbidden, Refusal::Other),
            (403, status("Forbidden", "cannot patch resource", &none), true, Category::Unavailable, Refusal::Other),
            (403, status("Forbidden", "terminating", &terminating), false, Category::Unavailable, Refusal::Other),
            (403, status("Forbidden", term, &none), true, Category::Fenced, Refusal::StaleTerm),
            (422, status("Invalid", term, &none), false, Category::Fenced, Refusal::StaleTerm),
            (403, status("Forbidden", other, &none), true, Category::Forbidden, Refusal::Other),
            (410, status("Expired", "too old", &none), false, Category::Unavailable, Refusal::Other),
            (500, "resourceVersion should not be set on objects".into(), false, Category::Bug, Refusal::Other),
            (500, "etcdserver: request timed out".into(), false, Category::Unavailable, Refusal::Other),
            (503, String::new(), false, Category::Unavailable, Refusal::Other),
            (504, status("Timeout", "too large", &none), false, Category::Unavailable, Refusal::Other),
            (418, String::new(), false, Category::Bug, Refusal::Other),
        ];
        for (code, body, fresh, category, refusal) in cases {
            let error = sorted(code, &body, fresh);
            assert_eq!((error.category, error.refusal), (category, refusal), "{code} {body} fresh={fresh}");
        }
    }

    #[test]
    fn waits_are_as_asked_and_bounded() {
        let wait = |status, header: Option<&str>, body: &str| {
            sort(&Answer { status, body: body.as_bytes(), retry_after: header, server_is_fresh: false }).retry_after
        };
        assert_eq!(wait(429, Some("3"), ""), Some(Duration::from_secs(3)));
        assert_eq!(wait(429, None, ""), Some(Duration::from_secs(1)));
        assert_eq!(wait(429, Some("86400"), ""), Some(Duration::from_secs(30)));
        assert_eq!(wait(504, None, r#"{"details":{"retryAfterSeconds":2}}"#), Some(Duration::from_secs(2)));
        assert_eq!(wait(503, None, ""), None);
        assert_eq!(wait(409, Some("3"), ""), None);
    }

    #[test]
    fn messages_are_bounded_and_on_one_line() {
        let error = sorted(422, &status("Invalid", &format!("bad\nvalue {}", "x".repeat(2_000)), &json!({})), false);
        assert_eq!(error.message.chars().count(), MESSAGE_CHARACTERS);
        assert!(error.message.starts_with("Invalid: bad value "));
        assert_eq!(sorted(503, "", false).message, "HTTP 503");
    }
}
