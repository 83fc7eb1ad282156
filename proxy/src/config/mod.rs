//! Settings: from the environment, all checked before a port opens.
//!
//! Every variable of contract D.1 works, or is refused with a reason. Those that steer the residency look-up, which does
//! not exist yet, are accepted with the contract's own default, so that manifests of today start, and refused with
//! anything else, so that nobody believes that they do something.

pub mod reference;
mod sources;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use gco_runtime::environment::{Environment, EnvironmentError, EnvironmentReader};
use gco_runtime::log::LogSettings;
use http::{HeaderName, StatusCode};

use crate::backends::FleetSettings;
use crate::exchange::{Connector, Fallback};
use crate::relay::headers::{self, Forwarded};
use crate::select::Policy;
pub use sources::{PortChoice, ServiceChoice, Source, Sources};

/// A secret that no log line, debug text or error shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A secret of this text.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// Its bytes, for comparing.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

/// The files of the front door's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// `GCO_PROXY_TLS_CERTIFICATE_FILE`: the chain, PEM.
    pub certificate: PathBuf,
    /// `GCO_PROXY_TLS_KEY_FILE`: the private key, PEM.
    pub key: PathBuf,
    /// `GCO_PROXY_TLS_RELOAD_SECONDS`: how often the files are looked at.
    pub reload: Duration,
}

/// Everything that the proxy is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `PD_PROXY_HOST`
    pub host: String,
    /// `PD_PROXY_PORT`; 0 takes a free one, which the log names.
    pub port: u16,
    /// `GCO_PROXY_TLS_*`; `None`: plain HTTP.
    pub tls: Option<TlsFiles>,
    /// `ADMIN_API_KEY`; `None`: every admin route answers 403.
    pub admin_key: Option<Secret>,
    /// `PD_PROXY_NO_DECODE_BACKEND_STATUS`
    pub no_decode_status: StatusCode,
    /// `PD_PROXY_NO_DECODE_BACKEND_MESSAGE`
    pub no_decode_message: String,
    /// Where backends come from.
    pub sources: Sources,
    /// How they are chosen and judged.
    pub fleet: FleetSettings,
    /// `GCO_PROXY_CONNECTOR`
    pub connector: Connector,
    /// `GCO_PROXY_FALLBACK`
    pub fallback: Fallback,
    /// `GCO_PROXY_PREFILL_TIMEOUT_SECONDS`: for prefill's answer.
    pub prefill_time_out: Duration,
    /// `GCO_PROXY_HANDOFF_TIMEOUT_SECONDS`: from prefill's answer to decode's first event.
    pub hand_off_time_out: Duration,
    /// `GCO_PROXY_CONNECT_TIMEOUT_SECONDS`: for a connection to an engine.
    pub connect_time_out: Duration,
    /// `GCO_PROXY_IDLE_TIMEOUT_SECONDS`: between bytes of an engine's answer.
    pub idle_time_out: Duration,
    /// `GCO_PROXY_ANSWER_TIMEOUT_SECONDS`: for the beginning of decode's answer when nothing is handed over.
    pub answer_time_out: Duration,
    /// `GCO_PROXY_POOL_IDLE_SECONDS`: how long an unused connection to an engine is kept.
    pub pool_idle: Duration,
    /// `GCO_PROXY_HEADER_TIMEOUT_SECONDS`: for a client's request head, from its first byte.
    pub header_time_out: Duration,
    /// `GCO_PROXY_CLIENT_TIMEOUT_SECONDS`: between bytes of a client's body, and for a client that takes nothing.
    pub client_time_out: Duration,
    /// `GCO_PROXY_KEEP_ALIVE_SECONDS`: how long a client's connection may be unused.
    pub keep_alive: Duration,
    /// `GCO_PROXY_MAX_BODY_BYTES`
    pub max_body_bytes: usize,
    /// `GCO_PROXY_MAX_HEADER_BYTES`
    pub max_header_bytes: usize,
    /// `GCO_PROXY_MAX_CONNECTIONS`
    pub max_connections: usize,
    /// `GCO_PROXY_FORWARD_HEADERS`
    pub forward_headers: Forwarded,
    /// `GCO_PROXY_AFFINITY_HEADER`
    pub affinity_header: Option<HeaderName>,
    /// `GCO_PROXY_DRAIN_SECONDS`: how long requests may go on after SIGTERM.
    pub drain: Duration,
    /// `GCO_PROXY_ACCESS_LOG_SAMPLE`: the share of requests that are logged, 0 to 1.
    pub access_log_sample: f64,
    /// `GCO_PROXY_WORKERS`; 0 = one per core.
    pub workers: usize,
    /// `LOG_FORMAT`, `LOG_LEVEL`
    pub log: LogSettings,
    /// Variables that look like ours and are not: most likely misspelled. The start says so in the log.
    pub unknown: Vec<String>,
}

/// A day: no setting of a length of time makes sense beyond it.
const DAY: Duration = Duration::from_secs(86_400);
/// The least that a time-out may be: suites shorten most of them.
const LEAST: Duration = Duration::from_millis(10);
/// The largest body that may be allowed: a body is held in memory once.
const LARGEST_BODY: usize = 1 << 30;

impl Settings {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// Every problem at once.
    pub fn read(environment: &Environment) -> Result<Self, EnvironmentError> {
        let mut reader = environment.reader();
        refuse_what_waits(&mut reader, environment);
        let cluster = reader.text("CLUSTER_NAME", "unknown-cluster");
        let region = reader.text("REGION", "unknown-region");
        let log = LogSettings::read(&mut reader, "pd-proxy", &cluster, &region);
        let connector = reader.choice("GCO_PROXY_CONNECTOR", Connector::default(), &Connector::NAMES);
        let sources = Sources::read(&mut reader, environment, connector);
        let fleet = fleet(&mut reader);
        let mut seconds = |name: &str, default: u64| reader.seconds(name, Duration::from_secs(default), LEAST..=DAY);
        let prefill_time_out = seconds("GCO_PROXY_PREFILL_TIMEOUT_SECONDS", 120);
        let hand_off_time_out = seconds("GCO_PROXY_HANDOFF_TIMEOUT_SECONDS", 30);
        let connect_time_out = seconds("GCO_PROXY_CONNECT_TIMEOUT_SECONDS", 5);
        let idle_time_out = seconds("GCO_PROXY_IDLE_TIMEOUT_SECONDS", 300);
        let answer_time_out = seconds("GCO_PROXY_ANSWER_TIMEOUT_SECONDS", 900);
        let pool_idle = seconds("GCO_PROXY_POOL_IDLE_SECONDS", 4);
        let header_time_out = seconds("GCO_PROXY_HEADER_TIMEOUT_SECONDS", 10);
        let client_time_out = seconds("GCO_PROXY_CLIENT_TIMEOUT_SECONDS", 300);
        let keep_alive = seconds("GCO_PROXY_KEEP_ALIVE_SECONDS", 75);
        let drain = seconds("GCO_PROXY_DRAIN_SECONDS", 3_600);
        let settings = Self {
            host: reader.text("PD_PROXY_HOST", "0.0.0.0"),
            port: reader.number("PD_PROXY_PORT", 8000_u16, 0..=u16::MAX),
            tls: tls(&mut reader),
            admin_key: reader.optional_text("ADMIN_API_KEY").map(Secret::new),
            no_decode_status: reader.parsed(
                "PD_PROXY_NO_DECODE_BACKEND_STATUS",
                StatusCode::SERVICE_UNAVAILABLE,
                "an HTTP status from 400 to 599",
                |text| text.parse().ok().filter(|status: &StatusCode| (400..600).contains(&status.as_u16())),
            ),
            no_decode_message: reader.text("PD_PROXY_NO_DECODE_BACKEND_MESSAGE", "no available decode backend"),
            sources,
            fleet,
            connector,
            fallback: reader.choice("GCO_PROXY_FALLBACK", Fallback::default(), &Fallback::NAMES),
            prefill_time_out,
            hand_off_time_out,
            connect_time_out,
            idle_time_out,
            answer_time_out,
            pool_idle,
            header_time_out,
            client_time_out,
            keep_alive,
            // 64 MiB: requests with pictures are that large.
            max_body_bytes: reader.number("GCO_PROXY_MAX_BODY_BYTES", 67_108_864_usize, 1..=LARGEST_BODY),
            // hyper's own buffer for a head is at least 8 KiB.
            max_header_bytes: reader.number("GCO_PROXY_MAX_HEADER_BYTES", 65_536_usize, 8_192..=1_048_576),
            max_connections: reader.number("GCO_PROXY_MAX_CONNECTIONS", 16_384_usize, 1..=1_000_000),
            forward_headers: reader.parsed(
                "GCO_PROXY_FORWARD_HEADERS",
                Forwarded::Names(Vec::new()),
                "* or names of headers with commas; not one that is hop by hop, host, content-length, expect, \
                 x-admin-api-key, or one that steers the hand-over (ranks, bootstrap, transfer parameters)",
                forward_headers,
            ),
            affinity_header: reader
                .parsed("GCO_PROXY_AFFINITY_HEADER", None, "a header's name", |text| text.parse().ok().map(Some)),
            drain,
            access_log_sample: reader.number("GCO_PROXY_ACCESS_LOG_SAMPLE", 0_f64, 0.0..=1.0),
            workers: reader.number("GCO_PROXY_WORKERS", 0_usize, 0..=1_024),
            log,
            unknown: unknown(environment),
        };
        reader.finish()?;
        Ok(settings)
    }

    /// How many threads serve connections.
    #[must_use]
    pub fn worker_count(&self) -> usize {
        match self.workers {
            // A machine that cannot say how many cores it has gets one thread.
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        }
    }
}

/// Variables of contract D.1 that have one meaning here: accepted with it, refused with another.
fn refuse_what_waits(reader: &mut EnvironmentReader<'_>, environment: &Environment) {
    for (name, only, why) in reference::ONE_VALUE {
        if environment.non_empty(name).is_some_and(|value| !value.eq_ignore_ascii_case(only)) {
            reader.refuse(name, &format!("{only} or unset ({why})"));
        }
    }
    if environment.non_empty("PD_PROXY_CA_FILE").is_some() {
        reader.refuse(
            "PD_PROXY_CA_FILE",
            "unset (this version speaks plain HTTP to engines, so it would verify nothing)",
        );
    }
}

fn fleet(reader: &mut EnvironmentReader<'_>) -> FleetSettings {
    let default = FleetSettings::default();
    FleetSettings {
        policy: reader.choice("PD_PROXY_SCHEDULING", default.policy, &Policy::NAMES),
        max_in_flight: reader.number("GCO_PROXY_MAX_IN_FLIGHT_PER_BACKEND", default.max_in_flight, 1..=1_000_000),
        queue_length: reader.number("GCO_PROXY_QUEUE_LENGTH", default.queue_length, 0..=1_000_000),
        queue_time_out: reader.seconds("GCO_PROXY_QUEUE_TIMEOUT_SECONDS", default.queue_time_out, LEAST..=DAY),
        breaker_failures: reader.number("GCO_PROXY_BREAKER_FAILURES", default.breaker_failures, 1..=1_000),
        breaker_open: reader.seconds("GCO_PROXY_BREAKER_OPEN_SECONDS", default.breaker_open, LEAST..=DAY),
        breaker_longest: reader.seconds("GCO_PROXY_BREAKER_LONGEST_OPEN_SECONDS", default.breaker_longest, LEAST..=DAY),
        slow_start: reader.seconds("GCO_PROXY_SLOW_START_SECONDS", default.slow_start, Duration::ZERO..=DAY),
        bootstrap_time_out: reader.seconds(
            "GCO_PROXY_BOOTSTRAP_TIMEOUT_SECONDS",
            default.bootstrap_time_out,
            LEAST..=DAY,
        ),
    }
}

fn tls(reader: &mut EnvironmentReader<'_>) -> Option<TlsFiles> {
    let certificate = reader.optional_text("GCO_PROXY_TLS_CERTIFICATE_FILE");
    let key = reader.optional_text("GCO_PROXY_TLS_KEY_FILE");
    let reload = reader.seconds("GCO_PROXY_TLS_RELOAD_SECONDS", Duration::from_secs(10), LEAST..=DAY);
    match (certificate, key) {
        (Some(certificate), Some(key)) => Some(TlsFiles { certificate: certificate.into(), key: key.into(), reload }),
        (None, None) => None,
        (Some(_), None) => {
            reader.refuse("GCO_PROXY_TLS_KEY_FILE", "a file: GCO_PROXY_TLS_CERTIFICATE_FILE is set");
            None
        }
        (None, Some(_)) => {
            reader.refuse("GCO_PROXY_TLS_CERTIFICATE_FILE", "a file: GCO_PROXY_TLS_KEY_FILE is set");
            None
        }
    }
}

fn forward_headers(text: &str) -> Option<Forwarded> {
    if text == "*" {
        return Some(Forwarded::All);
    }
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(|name| {
        let name: HeaderName = name.parse().ok()?;
        (!headers::is_never_forwarded(&name)).then_some(name)
    });
    names.collect::<Option<Vec<HeaderName>>>().map(Forwarded::Names)
}

/// Variables with our prefixes that nothing reads. Kubernetes itself sets `<SERVICE>_SERVICE_HOST`, `<SERVICE>_PORT` and
/// longer ones for a Service whose name happens to begin like ours: those are no mistakes.
fn unknown(environment: &Environment) -> Vec<String> {
    let is_ours = |name: &&str| ["GCO_PROXY_", "PD_PROXY_"].iter().any(|prefix| name.starts_with(prefix));
    let is_a_link = |name: &str| {
        ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT_"].iter().any(|part| name.contains(part)) || name == "GCO_PROXY_PORT"
    };
    let known = || reference::SETTINGS.iter().chain(&reference::ONE_VALUE).map(|(name, ..)| *name);
    let ours = environment.names().filter(is_ours);
    ours.filter(|name| !is_a_link(name) && !known().any(|known| known == *name)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
