//! How to reach the table.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::{Credentials, Region};

use crate::table::{ErrorCategory, Observer, TableError};

/// Reads a clock that never goes back; only differences count.
pub type MonotonicClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// How to reach the table, and how long to try.
#[derive(Clone)]
pub struct DynamoDbSettings {
    /// Name of the first table; the second is `<name>-regions`.
    pub table_name: String,
    /// Region that the table is in.
    pub region: String,
    /// Address of a server other than AWS's, for example `http://127.0.0.1:8000`.
    pub endpoint_url: Option<String>,
    /// Access key id and secret key, only for a server on this machine; AWS is reached with the credentials of the
    /// environment (variables, profile, web identity, container, instance). A server on this machine for which none are
    /// given gets made-up ones.
    pub local_credentials: Option<(String, String)>,
    /// How long one request may take; default 5 s.
    pub call_time_out: Duration,
    /// How long an operation may be retried; no further request starts after it. Default 20 s.
    pub total_time: Duration,
    /// Told of every request.
    pub observer: Option<Arc<dyn Observer>>,
    /// Clock for durations and for `total_time`.
    pub clock: MonotonicClock,
}

impl fmt::Debug for DynamoDbSettings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret key stays out of logs.
        formatter
            .debug_struct("DynamoDbSettings")
            .field("table_name", &self.table_name)
            .field("region", &self.region)
            .field("endpoint_url", &self.endpoint_url)
            .field("call_time_out", &self.call_time_out)
            .field("total_time", &self.total_time)
            .finish_non_exhaustive()
    }
}

impl DynamoDbSettings {
    /// A table in AWS with the default times.
    #[must_use]
    pub fn new(table_name: impl Into<String>, region: impl Into<String>, clock: MonotonicClock) -> Self {
        Self {
            table_name: table_name.into(),
            region: region.into(),
            endpoint_url: None,
            local_credentials: None,
            call_time_out: Duration::from_secs(5),
            total_time: Duration::from_secs(20),
            observer: None,
            clock,
        }
    }

    /// A client whose own retries are off: this crate decides what may be sent again.
    pub(super) async fn client(&self) -> Result<Client, TableError> {
        let local = self.endpoint_url.as_deref().is_some_and(is_on_this_machine);
        if self.local_credentials.is_some() && !local {
            let message = "credentials may only be given for a server on this machine";
            return Err(TableError::new(ErrorCategory::Invalid, "Connect", message));
        }
        let times = TimeoutConfig::builder()
            .connect_timeout(self.call_time_out)
            .operation_attempt_timeout(self.call_time_out)
            .build();
        let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
            .region(Region::new(self.region.clone()))
            .retry_config(RetryConfig::disabled())
            .timeout_config(times);
        if local {
            let (id, secret) =
                self.local_credentials.clone().unwrap_or_else(|| ("local".to_owned(), "local".to_owned()));
            loader = loader.credentials_provider(Credentials::new(id, secret, None, None, "local"));
        }
        if let Some(endpoint_url) = &self.endpoint_url {
            loader = loader.endpoint_url(endpoint_url);
        }
        Ok(Client::new(&loader.load().await))
    }
}

/// Whether an address names a loopback host.
fn is_on_this_machine(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return false;
    }
    let host = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_count_as_this_machine() {
        for url in ["http://127.0.0.1:8000", "http://localhost:4566/", "https://[::1]:1", "http://127.1.2.3"] {
            assert!(is_on_this_machine(url), "{url}");
        }
        for url in [
            "https://dynamodb.us-east-2.amazonaws.com",
            "http://127.0.0.1.example.org",
            "http://127.0.0.1@example.org",
            "localhost:8000",
            "http://10.0.0.1",
        ] {
            assert!(!is_on_this_machine(url), "{url}");
        }
    }

    #[test]
    fn the_secret_key_is_not_printed() {
        let mut settings = DynamoDbSettings::new("table", "us-east-1", Arc::new(|| Duration::ZERO));
        settings.local_credentials = Some(("id".to_owned(), "hush".to_owned()));
        assert!(!format!("{settings:?}").contains("hush"));
    }
}
