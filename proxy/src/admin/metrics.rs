//! The proxy's metrics. On the way of a request there are plain atomics only; what can be read from the fleet and the kernel
//! is read when the metrics are asked for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gco_runtime::metrics::{Metrics as Registry, MetricsError};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::families::{ReadFamily, Seconds, SecondsFamily, Values};
use crate::backends::{Backend, Fleet, Role};
use crate::exchange::{Outcome, Reason};

/// Bounds of prefill's answer, decode's first event and whole requests, in seconds: from a short prompt on a fast engine to
/// the longest deadline.
const REQUEST_BOUNDS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Bounds of the time between two pieces of an answer, in seconds: from faster than any engine to a stall that people see.
pub const EVENT_GAP_BOUNDS: [f64; 11] = [0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];

/// Statuses that are counted one by one: 100 to 599, at their number less 100.
const STATUSES: usize = 500;

/// What only the listening side knows.
pub struct ServerFacts {
    /// The runtimes whose tasks are counted.
    pub runtimes: Vec<Handle>,
    /// How many connections of clients are open.
    pub connections: Box<dyn Fn() -> usize + Send + Sync>,
}

impl std::fmt::Debug for ServerFacts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ServerFacts").field("runtimes", &self.runtimes.len()).finish_non_exhaustive()
    }
}

/// The way that the proxy was told to work, for the `gco_proxy_info` series.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    /// `GCO_PROXY_CONNECTOR`
    pub connector: &'static str,
    /// `GCO_PROXY_FALLBACK`
    pub fallback: &'static str,
}

/// All counters and histograms.
pub struct Metrics {
    registry: Registry,
    counts: Arc<Counts>,
    server: Arc<OnceLock<ServerFacts>>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// What is counted on the way of requests.
struct Counts {
    /// By place of the outcome.
    exchanges: [AtomicU64; OUTCOMES],
    /// By status, and the requests whose client left before it got one.
    statuses: [AtomicU64; STATUSES],
    no_status: AtomicU64,
    broken_streams: AtomicU64,
    certificate_loads: [AtomicU64; 2],
    draining: AtomicU64,
    prefill: Arc<Seconds>,
    first_event: Arc<Seconds>,
    event_gap: Arc<Seconds>,
    whole: Arc<Seconds>,
}

/// Three outcomes without a reason of their own, and two with each reason.
const OUTCOMES: usize = 3 + 2 * Reason::ALL.len();

/// Where an outcome is counted.
const fn place(outcome: Outcome) -> usize {
    match outcome {
        Outcome::Transferred => 0,
        Outcome::Primed => 1,
        Outcome::Abandoned => 2,
        Outcome::DecodeOnly(reason) => 3 + reason as usize,
        Outcome::Refused(reason) => 3 + Reason::ALL.len() + reason as usize,
    }
}

/// All outcomes, each at its place.
fn outcomes() -> impl Iterator<Item = Outcome> {
    let plain = [Outcome::Transferred, Outcome::Primed, Outcome::Abandoned];
    let whole = Reason::ALL.into_iter().map(Outcome::DecodeOnly);
    plain.into_iter().chain(whole).chain(Reason::ALL.into_iter().map(Outcome::Refused))
}

impl Metrics {
    /// Counters at zero.
    ///
    /// # Errors
    /// Never with the names of this room, which the tests register.
    pub fn new(fleet: &Fleet, mode: Mode) -> Result<Self, MetricsError> {
        let seconds = || Arc::new(Seconds::new(&REQUEST_BOUNDS));
        let counts = Arc::new(Counts {
            exchanges: [const { AtomicU64::new(0) }; OUTCOMES],
            statuses: [const { AtomicU64::new(0) }; STATUSES],
            no_status: AtomicU64::new(0),
            broken_streams: AtomicU64::new(0),
            certificate_loads: [const { AtomicU64::new(0) }; 2],
            draining: AtomicU64::new(0),
            prefill: seconds(),
            first_event: seconds(),
            event_gap: Arc::new(Seconds::new(&EVENT_GAP_BOUNDS)),
            whole: seconds(),
        });
        let metrics = Self { registry: Registry::new(), counts, server: Arc::default() };
        metrics.register_requests()?;
        metrics.register_backends(fleet)?;
        metrics.register_process(fleet, mode)?;
        Ok(metrics)
    }

    /// All metrics in the Prometheus text format.
    ///
    /// # Errors
    /// When a family is inconsistent, which registering it already excludes.
    pub fn render(&self) -> Result<String, MetricsError> {
        self.registry.render()
    }

    /// What the listening side knows; the first call counts.
    pub fn set_server(&self, facts: ServerFacts) {
        let _ = self.server.set(facts);
    }

    /// An exchange ended.
    pub fn exchange(&self, outcome: Outcome) {
        self.counts.exchanges[place(outcome)].fetch_add(1, Ordering::Relaxed);
    }

    /// How often an exchange ended so.
    #[must_use]
    pub fn exchanges(&self, outcome: Outcome) -> u64 {
        self.counts.exchanges[place(outcome)].load(Ordering::Relaxed)
    }

    /// A request ended with this status, or without one.
    pub fn request(&self, status: Option<u16>, whole: Duration) {
        let place = status.and_then(|status| usize::from(status).checked_sub(100)).filter(|place| *place < STATUSES);
        let counter = place.map_or(&self.counts.no_status, |place| &self.counts.statuses[place]);
        counter.fetch_add(1, Ordering::Relaxed);
        self.counts.whole.note(whole);
    }

    /// Prefill answered after this time.
    pub fn prefill(&self, length: Duration) {
        self.counts.prefill.note(length);
    }

    /// Decode's first event came this long after the request.
    pub fn first_event(&self, length: Duration) {
        self.counts.first_event.note(length);
    }

    /// The times between events of one stream, counted in the buckets of [`EVENT_GAP_BOUNDS`].
    pub fn event_gaps(&self, counts: &[u32], sum: Duration) {
        self.counts.event_gap.note_many(counts, sum);
    }

    /// Decode broke off in the middle of an answer.
    pub fn broken_stream(&self) {
        self.counts.broken_streams.fetch_add(1, Ordering::Relaxed);
    }

    /// The certificate was read anew, or could not be.
    pub fn certificate_loaded(&self, good: bool) {
        self.counts.certificate_loads[usize::from(!good)].fetch_add(1, Ordering::Relaxed);
    }

    /// The proxy has begun to end.
    pub fn draining(&self) {
        self.counts.draining.store(1, Ordering::Relaxed);
    }

    fn add(&self, name: &str, family: prometheus::Result<ReadFamily>) -> Result<(), MetricsError> {
        let family = family.map_err(|cause| MetricsError { name: name.to_owned(), cause })?;
        self.registry.collector(name, family)
    }

    fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &'static [&'static str],
        read: impl Fn(&Counts) -> Values + Send + Sync + 'static,
    ) -> Result<(), MetricsError> {
        let counts = self.counts.clone();
        self.add(name, ReadFamily::counters(name, help, labels, move || read(&counts)))
    }

    fn register_requests(&self) -> Result<(), MetricsError> {
        self.counters(
            "gco_proxy_exchanges_total",
            "Requests that could have had their KV cache handed over, by how they ended and why it was not.",
            &["outcome", "reason"],
            |counts| {
                let value = |outcome: Outcome| {
                    let reason = outcome.reason().map_or("", Reason::word);
                    let count = counts.exchanges[place(outcome)].load(Ordering::Relaxed);
                    (vec![outcome.word().to_owned(), reason.to_owned()], count as f64)
                };
                outcomes().map(value).collect()
            },
        )?;
        self.counters(
            "gco_proxy_requests_total",
            "Requests that ended, by the status that the client got; none: it left before.",
            &["status"],
            |counts| {
                let none = std::iter::once(("none".to_owned(), &counts.no_status));
                let statuses = counts.statuses.iter().enumerate();
                let statuses = statuses.map(|(place, count)| ((place + 100).to_string(), count));
                let read = none.chain(statuses).map(|(status, count)| (status, count.load(Ordering::Relaxed)));
                // Not all 500 from the start: the usual ones, and what was seen.
                let shown = read.filter(|(status, count)| *count > 0 || ["none", "200"].contains(&status.as_str()));
                shown.map(|(status, count)| (vec![status], count as f64)).collect()
            },
        )?;
        self.counters(
            "gco_proxy_broken_streams_total",
            "Answers that decode broke off after their first event; the client was told.",
            &[],
            |counts| vec![(Vec::new(), counts.broken_streams.load(Ordering::Relaxed) as f64)],
        )?;
        let Counts { prefill, first_event, event_gap, whole, .. } = &*self.counts;
        for (name, help, seconds) in [
            ("gco_proxy_prefill_seconds", "From sending the prefill leg to its answer.", prefill),
            ("gco_proxy_first_event_seconds", "From a request to decode's first event.", first_event),
            ("gco_proxy_event_gap_seconds", "Between two pieces of an answer.", event_gap),
            ("gco_proxy_request_seconds", "From a request to the last byte of its answer.", whole),
        ] {
            let family = SecondsFamily::new(name, help, seconds.clone());
            let family = family.map_err(|cause| MetricsError { name: name.to_owned(), cause })?;
            self.registry.collector(name, family)?;
        }
        Ok(())
    }

    fn register_backends(&self, fleet: &Fleet) -> Result<(), MetricsError> {
        type Read = fn(&Fleet, &Backend) -> f64;
        let gauges: [(&str, &str, Read); 4] = [
            ("gco_proxy_in_flight", "Requests that an engine has now.", |_, backend| backend.in_flight() as f64),
            (
                "gco_proxy_backend_ready",
                "Whether an engine is ready and not drained (1), its breaker aside.",
                |_, backend| f64::from(u8::from(backend.is_wanted())),
            ),
            ("gco_proxy_backend_drained", "Whether an administrator keeps requests away (1).", |_, backend| {
                f64::from(u8::from(backend.is_drained()))
            }),
            (
                "gco_proxy_breaker_state",
                "The breaker of an engine: 0 closed, 1 half open (one request probes), 2 open.",
                |fleet, backend| match fleet.breaker_word(backend, Instant::now()) {
                    "closed" => 0.0,
                    "half-open" => 1.0,
                    _ => 2.0,
                },
            ),
        ];
        let counters: [(&str, &str, Read); 2] = [
            ("gco_proxy_backend_requests_total", "Requests that were given to an engine.", |_, backend| {
                backend.requests() as f64
            }),
            ("gco_proxy_backend_failures_total", "Requests to an engine that failed by its fault.", |_, backend| {
                backend.failures() as f64
            }),
        ];
        let labels: &[&str] = &["role", "backend"];
        for (name, help, read) in gauges {
            let fleet = fleet.clone();
            self.add(name, ReadFamily::gauges(name, help, labels, move || each_backend(&fleet, read)))?;
        }
        for (name, help, read) in counters {
            let fleet = fleet.clone();
            self.add(name, ReadFamily::counters(name, help, labels, move || each_backend(&fleet, read)))?;
        }
        let name = "gco_proxy_queue_waiting";
        let waiting = each_role(fleet, |fleet, role| fleet.waiting(role) as f64);
        let help = "Requests that wait until an engine of the role has a place.";
        self.add(name, ReadFamily::gauges(name, help, &["role"], waiting))?;
        let name = "gco_proxy_source_errors_total";
        let errors = each_role(fleet, |fleet, role| fleet.source_errors(role) as f64);
        let help = "Times that the source of the role's engines (API server, file) could not be read.";
        self.add(name, ReadFamily::counters(name, help, &["role"], errors))
    }

    fn register_process(&self, fleet: &Fleet, mode: Mode) -> Result<(), MetricsError> {
        let policy = fleet.settings().policy.word();
        let info = move || {
            let labels = [env!("CARGO_PKG_VERSION"), mode.connector, mode.fallback, policy];
            vec![(labels.map(str::to_owned).into(), 1.0)]
        };
        let labels: &[&str] = &["version", "connector", "fallback", "scheduling"];
        self.add(
            "gco_proxy_info",
            ReadFamily::gauges("gco_proxy_info", "How the proxy works; always 1.", labels, info),
        )?;
        let server = self.server.clone();
        let tasks = move || {
            let tasks = server.get().map_or(0, |facts| {
                facts.runtimes.iter().map(|runtime| runtime.metrics().num_alive_tasks()).sum::<usize>()
            });
            vec![(Vec::new(), tasks as f64)]
        };
        let name = "gco_proxy_alive_tasks";
        self.add(name, ReadFamily::gauges(name, "Tasks of all runtimes that have not ended.", &[], tasks))?;
        let server = self.server.clone();
        let connections = move || vec![(Vec::new(), server.get().map_or(0, |facts| (facts.connections)()) as f64)];
        let name = "gco_proxy_open_connections";
        self.add(name, ReadFamily::gauges(name, "Connections of clients that are open.", &[], connections))?;
        let resident =
            || super::process::resident_bytes().map(|bytes| (Vec::new(), bytes as f64)).into_iter().collect();
        let name = "gco_proxy_resident_memory_bytes";
        self.add(name, ReadFamily::gauges(name, "Resident memory of the process.", &[], resident))?;
        let files = || super::process::open_files().map(|count| (Vec::new(), count as f64)).into_iter().collect();
        let name = "gco_proxy_open_files";
        self.add(name, ReadFamily::gauges(name, "File descriptors of the process.", &[], files))?;
        let counts = self.counts.clone();
        let draining = move || vec![(Vec::new(), counts.draining.load(Ordering::Relaxed) as f64)];
        let name = "gco_proxy_draining";
        self.add(
            name,
            ReadFamily::gauges(name, "Whether the proxy is ending and finishes what runs (1).", &[], draining),
        )?;
        self.counters(
            "gco_proxy_certificate_loads_total",
            "Times that the certificate of the listening port was read anew, or could not be.",
            &["result"],
            |counts| {
                let read = ["ok", "failed"].into_iter().zip(&counts.certificate_loads);
                read.map(|(result, count)| (vec![result.to_owned()], count.load(Ordering::Relaxed) as f64)).collect()
            },
        )
    }
}

fn each_backend(fleet: &Fleet, read: fn(&Fleet, &Backend) -> f64) -> Values {
    let mut values: Values = Vec::new();
    for role in Role::ALL {
        for backend in fleet.backends(role).iter() {
            let labels = vec![role.word().to_owned(), backend.authority().to_owned()];
            // A pod and its successor at the same address are one series while both are known.
            match values.iter_mut().find(|(known, _)| *known == labels) {
                Some((_, value)) => *value += read(fleet, backend),
                None => values.push((labels, read(fleet, backend))),
            }
        }
    }
    values
}

fn each_role(fleet: &Fleet, read: fn(&Fleet, Role) -> f64) -> impl Fn() -> Values + Send + Sync + 'static {
    let fleet = fleet.clone();
    move || Role::ALL.into_iter().map(|role| (vec![role.word().to_owned()], read(&fleet, role))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::sources::fixed;
    use crate::backends::{Availability, FleetSettings};

    const MODE: Mode = Mode { connector: "mooncake", fallback: "decode-only" };

    fn fleet() -> Fleet {
        let fleet = Fleet::new(FleetSettings::default(), Instant::now());
        for role in Role::ALL {
            let urls = [format!("http://{}:8000", role.word())];
            let described = fixed::backends(role, &urls, None).unwrap();
            fleet.apply(role, &fixed::all_ready(&described), Instant::now());
        }
        fleet
    }

    #[test]
    fn every_outcome_has_a_place_of_its_own() {
        let places: Vec<usize> = outcomes().map(place).collect();
        assert_eq!(places, (0..OUTCOMES).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn every_exchange_is_counted_by_outcome_and_reason_from_zero_on() {
        let metrics = Metrics::new(&fleet(), MODE).unwrap();
        let line = |outcome: &str, reason: &str, count: u64| {
            format!("gco_proxy_exchanges_total{{outcome=\"{outcome}\",reason=\"{reason}\"}} {count}\n")
        };
        let before = metrics.render().unwrap();
        for reason in Reason::ALL {
            assert!(before.contains(&line("decode-only", reason.word(), 0)), "{before}");
            assert!(before.contains(&line("refused", reason.word(), 0)), "{before}");
        }
        metrics.exchange(Outcome::Transferred);
        metrics.exchange(Outcome::DecodeOnly(Reason::PrefillTimedOut));
        metrics.exchange(Outcome::DecodeOnly(Reason::PrefillTimedOut));
        let after = metrics.render().unwrap();
        assert!(after.contains(&line("transferred", "", 1)), "{after}");
        assert!(after.contains(&line("decode-only", "prefill-timed-out", 2)), "{after}");
        assert_eq!(metrics.exchanges(Outcome::DecodeOnly(Reason::PrefillTimedOut)), 2);
    }

    #[tokio::test]
    async fn the_state_of_every_engine_is_read_when_it_is_asked_for() {
        let fleet = fleet();
        let metrics = Metrics::new(&fleet, MODE).unwrap();
        let now = Instant::now();
        let picks: Vec<_> = (0..3).map(|_| fleet.pick(Role::Decode, &[], None, now, 0).unwrap()).collect();
        for pick in &picks {
            pick.failed(crate::backends::breaker::Failure::Connect, now);
        }
        let text = metrics.render().unwrap();
        for line in [
            "gco_proxy_in_flight{role=\"decode\",backend=\"decode:8000\"} 3\n",
            "gco_proxy_in_flight{role=\"prefill\",backend=\"prefill:8000\"} 0\n",
            "gco_proxy_breaker_state{role=\"decode\",backend=\"decode:8000\"} 2\n",
            "gco_proxy_backend_failures_total{role=\"decode\",backend=\"decode:8000\"} 3\n",
            "gco_proxy_backend_ready{role=\"decode\",backend=\"decode:8000\"} 1\n",
            "gco_proxy_queue_waiting{role=\"decode\"} 0\n",
            "gco_proxy_info{version=\"0.1.0\",connector=\"mooncake\",fallback=\"decode-only\",scheduling=\"power_of_two\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} not in {text}");
        }
        drop(picks);
        fleet.apply(Role::Decode, &[], now);
        assert!(!metrics.render().unwrap().contains("backend=\"decode:8000\""), "a backend that is gone has no series");
    }

    #[tokio::test]
    async fn a_pod_and_its_successor_at_one_address_are_one_series() {
        let fleet = fleet();
        let mut described = fixed::backends(Role::Decode, &["http://decode:8000".to_owned()], None).unwrap();
        described.push(described[0].clone());
        described[1].key = crate::backends::BackendKey::new("uid-2");
        let said: Vec<_> = described.into_iter().map(|one| (one, Availability::Ready)).collect();
        fleet.apply(Role::Decode, &said, Instant::now());
        let text = Metrics::new(&fleet, MODE).unwrap().render().unwrap();
        assert_eq!(text.matches("gco_proxy_backend_ready{role=\"decode\"").count(), 1, "{text}");
    }

    #[tokio::test]
    async fn statuses_streams_tasks_and_the_process_are_there() {
        let metrics = Metrics::new(&fleet(), MODE).unwrap();
        metrics.request(Some(200), Duration::from_millis(3));
        metrics.request(Some(429), Duration::from_millis(1));
        metrics.request(None, Duration::from_millis(1));
        metrics.request(Some(999), Duration::from_millis(1));
        metrics.broken_stream();
        metrics.first_event(Duration::from_millis(70));
        metrics.prefill(Duration::from_millis(7));
        metrics.certificate_loaded(false);
        metrics.draining();
        metrics.set_server(ServerFacts { runtimes: vec![Handle::current()], connections: Box::new(|| 5) });
        let mut gaps = [0; EVENT_GAP_BOUNDS.len() + 1];
        gaps[1] = 8;
        metrics.event_gaps(&gaps, Duration::from_millis(16));
        let text = metrics.render().unwrap();
        for line in [
            "gco_proxy_requests_total{status=\"200\"} 1\n",
            "gco_proxy_requests_total{status=\"429\"} 1\n",
            "gco_proxy_requests_total{status=\"none\"} 2\n",
            "gco_proxy_broken_streams_total 1\n",
            "gco_proxy_first_event_seconds_bucket{le=\"0.1\"} 1\n",
            "gco_proxy_event_gap_seconds_count 8\n",
            "gco_proxy_open_connections 5\n",
            "gco_proxy_draining 1\n",
            "gco_proxy_certificate_loads_total{result=\"failed\"} 1\n",
            "gco_proxy_alive_tasks 0\n",
        ] {
            assert!(text.contains(line), "{line} not in {text}");
        }
        let resident = text.lines().find_map(|line| line.strip_prefix("gco_proxy_resident_memory_bytes ")).unwrap();
        assert!(resident.parse::<f64>().unwrap() > 1e6, "{resident}");
        assert!(text.contains("gco_proxy_open_files "));
    }
}
