//! Every metric of the monitor. Series with a bounded set of labels start at zero, so that the first event is not lost
//! in a rate.

use std::time::Duration;

use gco_runtime::metrics::{Metrics, MetricsError, start_at_zero};
use gco_store::transition::Operation;
use prometheus::{Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use crate::cluster::Rule;
use crate::control::fence::{Fence, RuleState};
use crate::report::Category;

/// Bounds of the pass histogram, in seconds: a pass at rest takes microseconds, one with writes some milliseconds per
/// write, one against a struggling server up to `K8S_API_TIMEOUT` per call.
const PASS_SECONDS: [f64; 12] = [0.000_1, 0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0];

/// The kinds of pass outcomes, besides the categories of failures.
const PASS_WORDS: [&str; 4] = ["rest", "changed", "waiting", "not_synced"];

/// Every category of failures.
pub const CATEGORIES: [Category; 7] = [
    Category::Invalid,
    Category::Conflict,
    Category::Forbidden,
    Category::Throttled,
    Category::Unavailable,
    Category::Fenced,
    Category::Bug,
];

/// Words of what a call can be, for metrics.
pub const VERBS: [&str; 7] = ["get", "list", "watch", "create", "update", "patch", "delete"];

/// Plural names of the kinds that calls are made for.
pub const RESOURCES: [&str; 14] = [
    "scaledobjects",
    "horizontalpodautoscalers",
    "deployments",
    "services",
    "configmaps",
    "ingresses",
    "httproutes",
    "secrets",
    "replicasets",
    "pods",
    "endpointslices",
    "leases",
    "validatingadmissionpolicybindings",
    "discovery",
];

/// State words of the endpoints metric.
pub const STATES: [&str; 10] =
    ["creating", "running", "updating", "stopping", "stopped", "deleting", "deleted", "failed", "error", "none"];

/// Operations on the tables, in the metric's words, besides the transitions'.
const TABLE_READS: [&str; 5] = ["read_all", "get", "check", "heartbeat", "read_region"];

/// What a table operation came to.
const TABLE_OUTCOMES: [&str; 8] =
    ["ok", "refused", "invalid", "forbidden", "throttled", "unavailable", "unknown", "table"];

/// Why a write was refused by a fence.
pub const REFUSALS: [&str; 6] =
    ["claim_over", "row_authority", "object_precondition", "admission_policy", "row_condition", "shutting_down"];

/// A category as metrics and logs write it.
#[must_use]
pub fn category_word(category: Category) -> &'static str {
    match category {
        Category::Invalid => "invalid",
        Category::Conflict => "conflict",
        Category::Forbidden => "forbidden",
        Category::Throttled => "throttled",
        Category::Unavailable => "unavailable",
        Category::Fenced => "fenced",
        Category::Bug => "bug",
    }
}

/// All metrics.
#[derive(Clone, Debug)]
pub struct Telemetry {
    metrics: Metrics,
    original: GaugeVec,
    /// 1 while this process holds a claim.
    pub leader: IntGauge,
    /// What is left of the claim.
    pub claim_remaining_seconds: Gauge,
    /// The Lease's `leaseTransitions` as last seen.
    pub lease_transitions: IntGauge,
    /// Take-overs by this process.
    pub take_overs: IntCounter,
    /// Claims that ended without our asking.
    pub claims_lost: IntCounter,
    /// Lease calls that failed, by category.
    pub lease_errors: IntCounterVec,
    passes: IntCounterVec,
    pass_seconds: Histogram,
    /// Endpoints waiting for a pass that is due.
    pub queue_depth: IntGauge,
    /// Passes that are running.
    pub queue_running: IntGauge,
    /// How long the oldest due endpoint has been waiting.
    pub queue_oldest_seconds: Gauge,
    api_calls: IntCounterVec,
    api_errors: IntCounterVec,
    /// Watches that were started again after an error, by resource.
    pub watch_errors: IntCounterVec,
    /// 1 while a resource's cache is complete.
    pub cache_synced: IntGaugeVec,
    /// Objects in the caches, by resource.
    pub cache_objects: IntGaugeVec,
    table_operations: IntCounterVec,
    /// Read units that the table's server counted.
    pub table_read_units: IntCounter,
    /// Plans computed, empty ones included.
    pub plans_computed: IntCounter,
    /// Steps that the API server accepted, by verb.
    pub steps: IntCounterVec,
    refused: IntCounterVec,
    fence_rules: IntGaugeVec,
    /// Endpoints of this region by the state in their status entry.
    pub endpoints: IntGaugeVec,
    /// Age of the last complete read of the table.
    pub last_complete_read_age_seconds: Gauge,
    /// Rows in memory.
    pub rows: IntGauge,
    /// Rows of the last read that could not be read.
    pub rows_unreadable: IntGauge,
    /// Rows that lack what fencing needs and cannot be completed.
    pub rows_unusable: IntGauge,
    unasked_restarts: IntGaugeVec,
    unasked_restarts_stopped: IntGauge,
    /// 1 while an operator's freeze holds for this region.
    pub frozen: IntGauge,
    /// 1 while the table cannot be read.
    pub table_away: IntGauge,
    /// Objects of ours that no row owns.
    pub orphans: IntGauge,
}

impl Telemetry {
    /// Registers everything.
    ///
    /// # Errors
    /// Only on a mistake in the names below.
    pub fn new() -> Result<Self, MetricsError> {
        let metrics = Metrics::new();
        let zero = |name: &str, result: prometheus::Result<()>| {
            result.map_err(|cause| MetricsError { name: name.to_owned(), cause })
        };
        let service = metrics.gauges("gco_service_info", "Which service this is; always 1.", &["service"])?;
        service.with_label_values(&["inference-monitor"]).set(1.0);
        let original = metrics.gauges(
            "gco_inference_monitor_metric",
            "Figures that existing dashboards read, by name.",
            &["name"],
        )?;
        let names = ["running", "reconcile_count", "errors_count", "seconds_since_last_pass"];
        zero("gco_inference_monitor_metric", start_at_zero(&original, &[&names]))?;
        original.with_label_values(&["running"]).set(1.0);

        let categories: Vec<&str> = CATEGORIES.iter().map(|category| category_word(*category)).collect();
        let passes = metrics.counters(
            "gco_monitor_passes_total",
            "Passes over one endpoint, by outcome: rest (nothing to do), changed, waiting, not_synced, or the category \
             of the failure.",
            &["outcome"],
        )?;
        let outcomes: Vec<&str> = PASS_WORDS.iter().copied().chain(categories.iter().copied()).collect();
        zero("passes", start_at_zero(&passes, &[&outcomes]))?;
        let api_calls = metrics.counters(
            "gco_monitor_api_calls_total",
            "Calls to the Kubernetes API, by verb and resource. At rest only watch and the Lease's update grow.",
            &["verb", "resource"],
        )?;
        zero("api calls", start_at_zero(&api_calls, &[&VERBS, &RESOURCES]))?;
        let api_errors = metrics.counters(
            "gco_monitor_api_errors_total",
            "Calls to the Kubernetes API that failed, by category.",
            &["category"],
        )?;
        zero("api errors", start_at_zero(&api_errors, &[&categories]))?;
        let lease_errors = metrics.counters(
            "gco_monitor_lease_errors_total",
            "Lease calls that failed, by category.",
            &["category"],
        )?;
        zero("lease errors", start_at_zero(&lease_errors, &[&categories]))?;
        let watched = ["deployments", "services", "replicasets", "pods"];
        let watch_errors = metrics.counters(
            "gco_monitor_watch_errors_total",
            "Watches that broke and were started again, by resource.",
            &["resource"],
        )?;
        zero("watch errors", start_at_zero(&watch_errors, &[&watched]))?;
        let cache_synced = metrics.whole_gauges(
            "gco_monitor_cache_synced",
            "1 while a resource's cache is complete.",
            &["resource"],
        )?;
        zero("cache synced", start_at_zero(&cache_synced, &[&watched]))?;
        let cache_objects =
            metrics.whole_gauges("gco_monitor_cache_objects", "Objects in the caches, by resource.", &["resource"])?;
        zero("cache objects", start_at_zero(&cache_objects, &[&watched]))?;
        let table_operations = metrics.counters(
            "gco_monitor_table_operations_total",
            "Operations on the tables, by operation and outcome.",
            &["operation", "outcome"],
        )?;
        let operations: Vec<&str> = TABLE_READS
            .iter()
            .copied()
            .chain(
                [
                    Operation::BackFill,
                    Operation::SetDesiredState,
                    Operation::Promote,
                    Operation::WriteRegionStatus,
                    Operation::Purge,
                ]
                .map(Operation::as_str),
            )
            .collect();
        zero("table operations", start_at_zero(&table_operations, &[&operations, &TABLE_OUTCOMES]))?;
        let table_read_units = metrics.counter(
            "gco_monitor_table_read_units_total",
            "Read units of complete reads, as the server counted them, rounded up per read.",
        )?;
        let steps = metrics.counters(
            "gco_monitor_steps_total",
            "Steps that the Kubernetes API accepted, by verb: create, update, stamp, delete, prove_absence.",
            &["verb"],
        )?;
        zero("steps", start_at_zero(&steps, &[&["create", "update", "stamp", "delete", "prove_absence"]]))?;
        let refused = metrics.counters(
            "gco_monitor_refused_writes_total",
            "Writes that a fence refused, ours or the server's, by reason.",
            &["reason"],
        )?;
        zero("refused writes", start_at_zero(&refused, &[&REFUSALS]))?;
        let unasked_restarts = metrics.whole_gauges(
            "gco_monitor_unasked_restarts",
            "Deployments whose pods were restarted without an edit that asked for it, by how that stands.",
            &["state"],
        )?;
        for state in ["under_way", "failed"] {
            unasked_restarts.with_label_values(&[state]).set(0);
        }
        let fence_rules = metrics.whole_gauges(
            "gco_monitor_fence_rule",
            "1 for the state in which the last take-over's test found each rule of the admission fence: unknown (not tested, \
             or not leading), not_installed, effective, ineffective.",
            &["rule", "state"],
        )?;
        let rules = Rule::ALL.map(Rule::word);
        zero("fence rules", start_at_zero(&fence_rules, &[&rules, &RuleState::ALL.map(RuleState::word)]))?;
        let endpoints = metrics.whole_gauges(
            "gco_monitor_endpoints",
            "Endpoints that concern this region, by the state in their status entry (none: no entry yet).",
            &["state"],
        )?;
        zero("endpoints", start_at_zero(&endpoints, &[&STATES]))?;
        Ok(Self {
            original,
            leader: metrics.whole_gauge("gco_monitor_leader", "1 while this process holds the region's claim.")?,
            claim_remaining_seconds: metrics.gauge(
                "gco_monitor_claim_remaining_seconds",
                "What is left of the claim; 0 without one. Falls to about LEASE_DURATION - LEASE_MARGIN - \
                 LEASE_RENEW_INTERVAL between renewals.",
            )?,
            lease_transitions: metrics
                .whole_gauge("gco_monitor_lease_transitions", "leaseTransitions of the Lease as last seen.")?,
            take_overs: metrics.counter("gco_monitor_take_overs_total", "Times this process took the Lease.")?,
            claims_lost: metrics
                .counter("gco_monitor_claims_lost_total", "Claims of this process that ended against its will.")?,
            lease_errors,
            passes,
            pass_seconds: metrics.histogram(
                "gco_monitor_pass_duration_seconds",
                "How long a pass over one endpoint took.",
                &PASS_SECONDS,
            )?,
            queue_depth: metrics.whole_gauge("gco_monitor_queue_depth", "Endpoints whose pass is due.")?,
            queue_running: metrics.whole_gauge("gco_monitor_queue_running", "Passes that are running.")?,
            queue_oldest_seconds: metrics
                .gauge("gco_monitor_queue_oldest_age_seconds", "How long the oldest due pass has been waiting.")?,
            api_calls,
            api_errors,
            watch_errors,
            cache_synced,
            cache_objects,
            table_operations,
            table_read_units,
            plans_computed: metrics
                .counter("gco_monitor_plans_computed_total", "Plans computed, empty ones included.")?,
            steps,
            refused,
            fence_rules,
            endpoints,
            last_complete_read_age_seconds: metrics.gauge(
                "gco_monitor_last_complete_read_age_seconds",
                "Age of the last complete read of the table; since the start of the process while there was none.",
            )?,
            rows: metrics.whole_gauge("gco_monitor_rows", "Rows in memory.")?,
            rows_unreadable: metrics
                .whole_gauge("gco_monitor_rows_unreadable", "Rows of the last read that could not be read.")?,
            rows_unusable: metrics.whole_gauge(
                "gco_monitor_rows_unusable",
                "Rows that lack the identity that fencing needs and cannot be completed.",
            )?,
            unasked_restarts,
            unasked_restarts_stopped: metrics.whole_gauge(
                "gco_monitor_unasked_restarts_stopped",
                "1 while no further restart begins that no edit asked for, because too many have failed.",
            )?,
            frozen: metrics.whole_gauge("gco_monitor_frozen", "1 while an operator's freeze holds for this region.")?,
            table_away: metrics.whole_gauge("gco_monitor_table_away", "1 while the table cannot be read.")?,
            orphans: metrics.whole_gauge(
                "gco_monitor_orphans",
                "Objects of ours that no row owns, as of the last heartbeat of this leader.",
            )?,
            metrics,
        })
    }

    /// The text of `/metrics`.
    ///
    /// # Errors
    /// When a family is inconsistent, which registering it excludes.
    pub fn render(&self) -> Result<String, MetricsError> {
        self.metrics.render()
    }

    /// Counts one call to the Kubernetes API.
    pub fn api_call(&self, verb: &str, resource: &str) {
        self.api_calls.with_label_values(&[verb, resource]).inc();
    }

    /// Counts one failed call to the Kubernetes API.
    pub fn api_error(&self, category: Category) {
        self.api_errors.with_label_values(&[category_word(category)]).inc();
    }

    /// Counts one operation on a table.
    pub fn table_operation(&self, operation: &str, outcome: &str) {
        self.table_operations.with_label_values(&[operation, outcome]).inc();
    }

    /// Counts one write that a fence refused.
    pub fn refused(&self, reason: &str) {
        self.refused.with_label_values(&[reason]).inc();
    }

    /// Shows what a test of the admission fence found.
    pub fn set_fence(&self, fence: &Fence) {
        for rule in Rule::ALL {
            for state in RuleState::ALL {
                let holds = i64::from(fence.state(rule) == state);
                self.fence_rules.with_label_values(&[rule.word(), state.word()]).set(holds);
            }
        }
    }

    /// Counts one pass. `outcome` is a word of the passes' metric.
    pub fn pass(&self, outcome: &str, took: Duration) {
        self.passes.with_label_values(&[outcome]).inc();
        self.pass_seconds.observe(took.as_secs_f64());
        self.original.with_label_values(&["reconcile_count"]).inc();
        let failed = CATEGORIES.iter().any(|category| category_word(*category) == outcome);
        if failed && outcome != category_word(Category::Fenced) {
            self.original.with_label_values(&["errors_count"]).inc();
        }
    }

    /// Sets how restarts that no edit asked for stand.
    pub fn unasked_restarts(&self, under_way: usize, failed: usize, stopped: bool) {
        for (state, count) in [("under_way", under_way), ("failed", failed)] {
            self.unasked_restarts.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.unasked_restarts_stopped.set(i64::from(stopped));
    }

    /// Counts an error outside of any pass, as the original's error count does.
    pub fn error(&self) {
        self.original.with_label_values(&["errors_count"]).inc();
    }

    /// Sets the figures that existing dashboards read besides the counts.
    pub fn set_original(&self, running: bool, since_last_pass: Duration) {
        self.original.with_label_values(&["running"]).set(f64::from(u8::from(running)));
        self.original.with_label_values(&["seconds_since_last_pass"]).set(since_last_pass.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_series_start_at_zero_and_the_originals_names_stay() {
        let telemetry = Telemetry::new().unwrap();
        let text = telemetry.render().unwrap();
        for line in [
            "gco_service_info{service=\"inference-monitor\"} 1",
            "gco_inference_monitor_metric{name=\"running\"} 1",
            "gco_inference_monitor_metric{name=\"reconcile_count\"} 0",
            "gco_inference_monitor_metric{name=\"errors_count\"} 0",
            "gco_inference_monitor_metric{name=\"seconds_since_last_pass\"} 0",
            "gco_monitor_api_calls_total{resource=\"deployments\",verb=\"update\"} 0",
            "gco_monitor_table_operations_total{operation=\"write_region_status\",outcome=\"refused\"} 0",
            "gco_monitor_passes_total{outcome=\"fenced\"} 0",
            "gco_monitor_plans_computed_total 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
        assert!(text.lines().filter(|line| line.starts_with("# TYPE")).count() >= 30);
    }

    #[test]
    fn a_fenced_pass_is_no_error_in_the_originals_count() {
        let telemetry = Telemetry::new().unwrap();
        telemetry.pass("fenced", Duration::ZERO);
        telemetry.pass("unavailable", Duration::ZERO);
        telemetry.pass("rest", Duration::ZERO);
        let text = telemetry.render().unwrap();
        assert!(text.contains("gco_inference_monitor_metric{name=\"errors_count\"} 1\n"));
        assert!(text.contains("gco_inference_monitor_metric{name=\"reconcile_count\"} 3\n"));
    }
}
