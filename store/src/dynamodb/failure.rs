//! What went wrong with a request, and whether it may have been carried out all the same.

use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};

use crate::table::{ErrorCategory, TableError};

/// One failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) category: ErrorCategory,
    pub(super) message: String,
    /// Whether a write may have been carried out.
    pub(super) may_be_done: bool,
}

impl Failure {
    pub(super) fn into_error(self, operation: &'static str) -> TableError {
        TableError::new(self.category, operation, self.message)
    }
}

/// Judges an error of the SDK. Its own retries are off, so that there was exactly one request.
pub(super) fn classify<E>(error: &SdkError<E, HttpResponse>) -> Failure
where
    E: std::error::Error + ProvideErrorMetadata + 'static,
{
    match error {
        SdkError::ServiceError(_) => {
            let code = error.code().unwrap_or("no error code");
            let status = error.raw_response().map_or(0, |response| response.status().as_u16());
            let text = error.message().unwrap_or("no message");
            let (category, may_be_done) = of_code(code, status);
            Failure { category, message: format!("{code}: {text}"), may_be_done }
        }
        SdkError::ConstructionFailure(_) | SdkError::DispatchFailure(_) => {
            let message = chain(error);
            let (category, may_be_done) = of_dispatch(&message, matches!(error, SdkError::DispatchFailure(_)));
            Failure { category, message, may_be_done }
        }
        SdkError::TimeoutError(_) => {
            Failure { category: ErrorCategory::Unavailable, message: "no answer in time".to_owned(), may_be_done: true }
        }
        // A response that cannot be read, and whatever the SDK adds later.
        _ => Failure { category: ErrorCategory::Unavailable, message: chain(error), may_be_done: true },
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The category of an error code, and whether a write may have been carried out.
fn of_code(code: &str, status: u16) -> (ErrorCategory, bool) {
    match code {
        "ProvisionedThroughputExceededException"
        | "ThrottlingException"
        | "Throttling"
        | "RequestLimitExceeded"
        | "TooManyRequestsException"
        | "LimitExceededException"
        // The item was being written from another Region or by a transaction: refused unseen, to be sent again.
        | "ReplicatedWriteConflictException"
        | "TransactionConflictException" => (ErrorCategory::Throttled, false),
        "ResourceNotFoundException" | "TableNotFoundException" => (ErrorCategory::Table, false),
        "AccessDeniedException"
        | "AccessDenied"
        | "UnrecognizedClientException"
        | "InvalidClientTokenId"
        | "ExpiredTokenException"
        | "ExpiredToken"
        | "InvalidSignatureException"
        | "IncompleteSignature"
        | "MissingAuthenticationToken"
        | "MissingAuthenticationTokenException" => (ErrorCategory::Forbidden, false),
        _ if status >= 500 => (ErrorCategory::Unavailable, true),
        _ if status == 401 || status == 403 => (ErrorCategory::Forbidden, false),
        _ if (400..500).contains(&status) => (ErrorCategory::Invalid, false),
        // A code without the status that belongs to it: something between us and the server answered.
        _ => (ErrorCategory::Unavailable, true),
    }
}

/// The category of a request that got no response, told from the error's text: the SDK has no types for it.
fn of_dispatch(text: &str, dispatched: bool) -> (ErrorCategory, bool) {
    let lower = text.to_ascii_lowercase();
    if ["credential", "auth scheme", "identity resolver"].iter().any(|word| lower.contains(word)) {
        return (ErrorCategory::Forbidden, false);
    }
    if !dispatched {
        return (ErrorCategory::Invalid, false);
    }
    // hyper says "client error (Connect)", the SDK "HTTP connect timeout": there was no connection to send it over.
    let unconnected = lower.contains("(connect)") || lower.contains("connect timeout") || lower.contains("dns error");
    (ErrorCategory::Unavailable, !unconnected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttling_and_refusals_are_certainly_not_carried_out() {
        for (code, status, category) in [
            ("ProvisionedThroughputExceededException", 400, ErrorCategory::Throttled),
            ("ReplicatedWriteConflictException", 400, ErrorCategory::Throttled),
            ("AccessDeniedException", 400, ErrorCategory::Forbidden),
            ("SomethingNew", 403, ErrorCategory::Forbidden),
            ("ResourceNotFoundException", 400, ErrorCategory::Table),
            ("ValidationException", 400, ErrorCategory::Invalid),
        ] {
            assert_eq!(of_code(code, status), (category, false), "{code}");
        }
    }

    #[test]
    fn server_errors_may_have_been_carried_out() {
        for (code, status) in
            [("InternalServerError", 500), ("ServiceUnavailable", 503), ("no error code", 502), ("x", 200)]
        {
            assert_eq!(of_code(code, status), (ErrorCategory::Unavailable, true), "{code}");
        }
    }

    #[test]
    fn a_request_without_a_connection_was_certainly_not_sent() {
        let refused = "dispatch failure: io error: client error (Connect): tcp connect error: Connection refused";
        assert_eq!(of_dispatch(refused, true), (ErrorCategory::Unavailable, false));
        let reset = "dispatch failure: io error: connection closed before message completed";
        assert_eq!(of_dispatch(reset, true), (ErrorCategory::Unavailable, true));
        let keyless = "dispatch failure: other: no providers in chain provided credentials";
        assert_eq!(of_dispatch(keyless, true), (ErrorCategory::Forbidden, false));
        assert_eq!(of_dispatch("construction failure: field missing", false), (ErrorCategory::Invalid, false));
    }
}
