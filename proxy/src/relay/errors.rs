//! Errors as OpenAI's clients read them.

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};

/// Why the proxy itself answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The status.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// For people; bounded, without secrets and without addresses.
    pub message: String,
    /// Seconds for `Retry-After`.
    pub retry_after: Option<u64>,
}

impl Failure {
    /// A failure without `Retry-After`.
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), retry_after: None }
    }

    /// The request is at fault.
    pub fn invalid(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    /// The error object: `{"error":{"message","type","param","code"}}`.
    #[must_use]
    pub fn object(&self) -> String {
        serde_json::json!({
            "error": {
                "message": self.message, "type": self.kind, "param": null, "code": self.status.as_u16(),
            }
        })
        .to_string()
    }

    /// The answer.
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(self.object()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// The event that ends a stream which broke off. The blank line before it ends an event that is not whole.
    #[must_use]
    pub fn event(&self, inside_an_event: bool) -> Bytes {
        let before = if inside_an_event { "\n\n" } else { "" };
        Bytes::from(format!("{before}data: {}\n\n", self.object()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_error_is_an_object_as_openais_clients_read_it() {
        let mut failure = Failure::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", "a \"b\"");
        failure.retry_after = Some(2);
        let response = failure.response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        let body: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body, json!({"error": {"message": "a \"b\"", "type": "overloaded", "param": null, "code": 429}}));
    }

    #[test]
    fn the_event_that_ends_a_broken_stream_stands_by_itself() {
        let failure = Failure::invalid(StatusCode::BAD_GATEWAY, "x");
        assert_eq!(failure.event(false), format!("data: {}\n\n", failure.object()));
        assert_eq!(failure.event(true), format!("\n\ndata: {}\n\n", failure.object()));
    }
}
