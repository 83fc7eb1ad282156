//! Settings: from the environment, all checked before a port opens.

pub mod reference;

use std::path::PathBuf;
use std::time::Duration;

use gco_runtime::environment::{Environment, EnvironmentError, EnvironmentReader};
use gco_runtime::log::LogSettings;

use crate::control::restarts::RestartLimits;

/// Which table is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChoice {
    /// DynamoDB, or a server that speaks its protocol.
    DynamoDb,
    /// A file on this machine (only with the cargo feature `embedded-table`).
    Embedded(PathBuf),
}

/// The Lease's times. The relations between them are what makes a claim end before anybody else may take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// How long the Lease lasts after a renewal. Whole seconds: the Lease stores an integer.
    pub duration: Duration,
    /// How long after a renewal the next one is sent.
    pub renew_interval: Duration,
    /// How long one call about the Lease may take.
    pub renew_time_out: Duration,
    /// How much earlier than the Lease our claim ends: for clocks that run at different rates.
    pub margin: Duration,
    /// With less than this left of the claim no mutation is started.
    pub claim_minimum: Duration,
}

/// Everything that the monitor is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `CLUSTER_NAME`
    pub cluster_name: String,
    /// `REGION`: the own region everywhere.
    pub region: String,
    /// `INFERENCE_NAMESPACE`: where the Lease and every object live.
    pub namespace: String,
    /// `PROJECT_NAME`
    pub project_name: String,
    /// `RECONCILE_INTERVAL_SECONDS`: time between two complete reads of the table.
    pub reconcile_interval: Duration,
    /// `USE_CHANGE_INDEX`: whether a change index that the table has is used.
    pub use_change_index: bool,
    /// `CHANGE_QUERY_INTERVAL_SECONDS`: time between two queries of the change index.
    pub change_query_interval: Duration,
    /// `INDEXED_READ_INTERVAL_SECONDS`: time between two complete reads of a table whose change index is used.
    pub indexed_read_interval: Duration,
    /// `FULL_PASS_INTERVAL_SECONDS`: every endpoint is planned anew this often, from caches, whether or not it changed.
    pub full_pass_interval: Duration,
    /// `HEARTBEAT_INTERVAL_SECONDS`
    pub heartbeat_interval: Duration,
    /// `ABSENCE_GAP_SECONDS`: time between the two looks that prove that an endpoint is gone.
    pub absence_gap: Duration,
    /// `OPTIONAL_KINDS_INTERVAL_SECONDS`: how often KEDA is looked for while a row needs it and the cluster lacks it.
    pub optional_kinds_interval: Duration,
    /// `INFERENCE_UNHEALTHY_THRESHOLD_SECONDS`: how long an endpoint may have no ready pod before a warning is logged.
    pub unhealthy_threshold: Duration,
    /// `MAX_CONCURRENT_ENDPOINTS`
    pub max_concurrent_endpoints: usize,
    /// `UNASKED_RESTARTS_AT_ONCE`, `UNASKED_RESTARTS_FAILURES`: limits on restarts that no edit asked for.
    pub restart_limits: RestartLimits,
    /// `GCO_TABLE`
    pub table: TableChoice,
    /// `INFERENCE_ENDPOINTS_TABLE_NAME`; the regions' table is this plus `-regions`.
    pub table_name: String,
    /// `DYNAMODB_REGION`, else `REGION`.
    pub table_region: String,
    /// `DYNAMODB_ENDPOINT_URL`: another server than AWS's.
    pub table_endpoint_url: Option<String>,
    /// `K8S_API_TIMEOUT`
    pub kubernetes_time_out: Duration,
    /// `LEASE_*` and `CLAIM_MINIMUM_SECONDS`
    pub lease: LeaseTimes,
    /// Prefix of the Lease's holder: `HOSTNAME`, else `monitor`. The process adds random digits, so that two processes
    /// in one pod (a restarted container) are told apart in the Lease.
    pub holder_prefix: String,
    /// `METRICS_HOST`
    pub metrics_host: String,
    /// `METRICS_PORT`; 0 takes a free one, which the log names.
    pub metrics_port: u16,
    /// `GCO_ALLOW_FORCED_PASS`: whether `POST /full-pass` is answered.
    pub allow_forced_pass: bool,
    /// `LOG_FORMAT`, `LOG_LEVEL`
    pub log: LogSettings,
}

const fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A day: no setting of a length of time makes sense beyond it.
const DAY: Duration = Duration::from_secs(86_400);

impl Config {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// Every problem at once.
    pub fn read(environment: &Environment) -> Result<Self, EnvironmentError> {
        let mut reader = environment.reader();
        let cluster_name = reader.text("CLUSTER_NAME", "unknown-cluster");
        let region = reader.text("REGION", "unknown-region");
        let log = LogSettings::read(&mut reader, "inference-monitor", &cluster_name, &region);
        let mut seconds = |name: &str, default: u64, least_milliseconds: u64| {
            reader.seconds(name, Duration::from_secs(default), milliseconds(least_milliseconds)..=DAY)
        };
        // Names, defaults, and the least that still makes sense; suites shorten most of them.
        let reconcile_interval = seconds("RECONCILE_INTERVAL_SECONDS", 15, 50);
        let change_query_interval = seconds("CHANGE_QUERY_INTERVAL_SECONDS", 1, 50);
        let indexed_read_interval = seconds("INDEXED_READ_INTERVAL_SECONDS", 300, 100);
        let full_pass_interval = seconds("FULL_PASS_INTERVAL_SECONDS", 300, 100);
        let heartbeat_interval = seconds("HEARTBEAT_INTERVAL_SECONDS", 60, 50);
        let absence_gap = seconds("ABSENCE_GAP_SECONDS", 15, 0);
        let unhealthy_threshold = seconds("INFERENCE_UNHEALTHY_THRESHOLD_SECONDS", 300, 100);
        let optional_kinds_interval = seconds("OPTIONAL_KINDS_INTERVAL_SECONDS", 60, 100);
        let kubernetes_time_out = seconds("K8S_API_TIMEOUT", 30, 100);
        let renew_interval = seconds("LEASE_RENEW_INTERVAL_SECONDS", 5, 50);
        let renew_time_out = seconds("LEASE_RENEW_TIMEOUT_SECONDS", 3, 50);
        let margin = seconds("LEASE_MARGIN_SECONDS", 2, 0);
        let claim_minimum = seconds("CLAIM_MINIMUM_SECONDS", 2, 1);
        let duration = Duration::from_secs(reader.number("LEASE_DURATION_SECONDS", 15_u64, 1..=3600));
        let lease = LeaseTimes { duration, renew_interval, renew_time_out, margin, claim_minimum };
        check_lease(&mut reader, &lease);
        let config = Self {
            namespace: reader.text("INFERENCE_NAMESPACE", "gco-inference"),
            project_name: reader.text("PROJECT_NAME", "gco"),
            reconcile_interval,
            use_change_index: reader.switch("USE_CHANGE_INDEX", true),
            change_query_interval,
            indexed_read_interval,
            full_pass_interval,
            heartbeat_interval,
            absence_gap,
            optional_kinds_interval,
            unhealthy_threshold,
            max_concurrent_endpoints: reader.number("MAX_CONCURRENT_ENDPOINTS", 16_usize, 1..=1024),
            restart_limits: RestartLimits {
                at_once: reader.number("UNASKED_RESTARTS_AT_ONCE", 5_usize, 1..=1000),
                failures: reader.number("UNASKED_RESTARTS_FAILURES", 3_usize, 1..=1000),
            },
            table: reader.parsed(
                "GCO_TABLE",
                TableChoice::DynamoDb,
                "dynamodb, or embedded:<path> in a build with the feature embedded-table",
                table_choice,
            ),
            table_name: reader.text("INFERENCE_ENDPOINTS_TABLE_NAME", "gco-inference-endpoints"),
            table_region: reader.text("DYNAMODB_REGION", &region),
            table_endpoint_url: reader.parsed(
                "DYNAMODB_ENDPOINT_URL",
                None,
                "an http:// or https:// address",
                |text| {
                    let known = ["http://", "https://"].iter().any(|scheme| {
                        text.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty() && !rest.contains(['@', ' ']))
                    });
                    known.then(|| Some(text.to_owned()))
                },
            ),
            kubernetes_time_out,
            lease,
            holder_prefix: reader.text("HOSTNAME", "monitor"),
            metrics_host: reader.text("METRICS_HOST", "0.0.0.0"),
            metrics_port: reader.number("METRICS_PORT", 9090_u16, 0..=u16::MAX),
            allow_forced_pass: reader.switch("GCO_ALLOW_FORCED_PASS", false),
            cluster_name,
            region,
            log,
        };
        if !is_label(&config.namespace) {
            reader.refuse("INFERENCE_NAMESPACE", "a namespace name: lower case letters, digits and '-', at most 63");
        }
        reader.finish()?;
        Ok(config)
    }

    /// How long the table may be silent before it counts as away: three missed reads, and never less than it takes a
    /// slow but working table to answer.
    #[must_use]
    pub fn table_away_after(&self) -> Duration {
        const LEAST: Duration = Duration::from_secs(5);
        (self.reconcile_interval * 3).max(LEAST)
    }
}

/// The relations without which two monitors could believe to lead at the same time, or nobody would for long.
fn check_lease(reader: &mut EnvironmentReader<'_>, lease: &LeaseTimes) {
    // The claim of one renewal must still stand when the next one was sent and answered late, with enough left to
    // start a mutation; otherwise a leader stops working between any two renewals.
    let needed = lease.renew_interval + lease.renew_time_out + lease.margin + lease.claim_minimum;
    if needed >= lease.duration {
        reader.refuse(
            "LEASE_DURATION_SECONDS",
            &format!(
                "longer than LEASE_RENEW_INTERVAL_SECONDS + LEASE_RENEW_TIMEOUT_SECONDS + LEASE_MARGIN_SECONDS + \
                 CLAIM_MINIMUM_SECONDS ({} s)",
                needed.as_secs_f64()
            ),
        );
    }
}

fn table_choice(text: &str) -> Option<TableChoice> {
    if text == "dynamodb" {
        return Some(TableChoice::DynamoDb);
    }
    let path = text.strip_prefix("embedded:").filter(|path| !path.is_empty())?;
    cfg!(feature = "embedded-table").then(|| TableChoice::Embedded(PathBuf::from(path)))
}

fn is_label(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= 63 && name.bytes().all(allowed) && !name.starts_with('-') && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Config, EnvironmentError> {
        Config::read(&Environment::from_pairs(pairs.iter().copied()))
    }

    #[test]
    fn an_empty_environment_gives_the_documented_defaults() {
        let config = read(&[]).unwrap();
        assert_eq!(config.cluster_name, "unknown-cluster");
        assert_eq!(config.region, "unknown-region");
        assert_eq!(config.table_region, "unknown-region");
        assert_eq!(config.namespace, "gco-inference");
        assert_eq!(config.table, TableChoice::DynamoDb);
        assert_eq!(config.table_name, "gco-inference-endpoints");
        assert_eq!(config.reconcile_interval, Duration::from_secs(15));
        assert_eq!(config.kubernetes_time_out, Duration::from_secs(30));
        assert_eq!(config.lease.duration, Duration::from_secs(15));
        assert_eq!(config.metrics_port, 9090);
        assert_eq!(config.holder_prefix, "monitor");
        assert_eq!(config.table_away_after(), Duration::from_secs(45));
        assert!(!config.allow_forced_pass);
    }

    #[test]
    fn settings_are_taken_and_decimals_are_accepted() {
        let config = read(&[
            ("REGION", "eu-central-1"),
            ("RECONCILE_INTERVAL_SECONDS", "0.2"),
            ("ABSENCE_GAP_SECONDS", "0"),
            ("DYNAMODB_ENDPOINT_URL", "http://127.0.0.1:4566"),
            ("LEASE_DURATION_SECONDS", "2"),
            ("LEASE_RENEW_INTERVAL_SECONDS", "0.5"),
            ("LEASE_RENEW_TIMEOUT_SECONDS", "0.5"),
            ("LEASE_MARGIN_SECONDS", "0.3"),
            ("CLAIM_MINIMUM_SECONDS", "0.2"),
            ("METRICS_PORT", "0"),
        ])
        .unwrap();
        assert_eq!(config.table_region, "eu-central-1");
        assert_eq!(config.reconcile_interval, Duration::from_millis(200));
        assert_eq!(config.table_endpoint_url.as_deref(), Some("http://127.0.0.1:4566"));
        assert_eq!(config.table_away_after(), Duration::from_secs(5));
        assert_eq!(config.log.region, "eu-central-1");
    }

    #[test]
    fn every_problem_is_named_at_once() {
        let error = read(&[
            ("RECONCILE_INTERVAL_SECONDS", "soon"),
            ("GCO_TABLE", "postgres"),
            ("DYNAMODB_ENDPOINT_URL", "ftp://x"),
            ("MAX_CONCURRENT_ENDPOINTS", "0"),
            ("INFERENCE_NAMESPACE", "Not_A_Name"),
            ("LEASE_DURATION_SECONDS", "12"),
        ])
        .unwrap_err();
        let mut names: Vec<&str> = error.problems.iter().map(|problem| problem.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "DYNAMODB_ENDPOINT_URL",
                "GCO_TABLE",
                "INFERENCE_NAMESPACE",
                "LEASE_DURATION_SECONDS",
                "MAX_CONCURRENT_ENDPOINTS",
                "RECONCILE_INTERVAL_SECONDS"
            ]
        );
    }

    #[test]
    fn a_lease_shorter_than_its_renewals_need_is_refused() {
        // 5 + 3 + 2 + 2 = 12 s must be less than the duration.
        assert!(read(&[("LEASE_DURATION_SECONDS", "13")]).is_ok());
        let error = read(&[("LEASE_DURATION_SECONDS", "12")]).unwrap_err();
        assert!(error.to_string().contains("(12 s)"), "{error}");
        assert!(read(&[("LEASE_DURATION_SECONDS", "15.5")]).is_err(), "the Lease stores whole seconds");
    }

    #[test]
    fn an_embedded_table_needs_the_feature() {
        let read = read(&[("GCO_TABLE", "embedded:/tmp/table.sqlite")]);
        if cfg!(feature = "embedded-table") {
            assert_eq!(read.unwrap().table, TableChoice::Embedded(PathBuf::from("/tmp/table.sqlite")));
        } else {
            assert!(read.unwrap_err().to_string().contains("feature embedded-table"));
        }
    }
}
