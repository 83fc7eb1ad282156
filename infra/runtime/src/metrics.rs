//! The metrics registry, in the Prometheus text format.

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{
    CounterVec, Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

/// A metric that cannot be registered or rendered: a bad or doubled name, or mismatched labels.
#[derive(Debug, thiserror::Error)]
#[error("metric {name}: {cause}")]
pub struct MetricsError {
    /// The metric's name, or `registry` when all of it is concerned.
    pub name: String,
    /// What the registry said.
    pub cause: prometheus::Error,
}

/// A registry of the process's metrics.
///
/// Clones share the registry. There is no global one, so that tests see only what they made.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    registry: Registry,
}

impl Metrics {
    /// The content type of [`Metrics::render`]'s text.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a counter family; `name` ends in `_total`.
    ///
    /// # Errors
    /// When the name or a label is not valid or the name is taken.
    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, MetricsError> {
        self.register(name, IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// Registers one counter without labels; `name` ends in `_total`.
    ///
    /// # Errors
    /// As [`Metrics::counters`].
    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter, MetricsError> {
        self.register(name, IntCounter::new(name, help))
    }

    /// Registers a counter family with fractional values; `name` ends in `_total`.
    ///
    /// # Errors
    /// As [`Metrics::counters`].
    pub fn fractional_counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<CounterVec, MetricsError> {
        self.register(name, CounterVec::new(Opts::new(name, help), labels))
    }

    /// Registers a family of gauges with fractional values.
    ///
    /// # Errors
    /// As [`Metrics::counters`].
    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec, MetricsError> {
        self.register(name, GaugeVec::new(Opts::new(name, help), labels))
    }

    /// Registers one gauge with a fractional value and without labels.
    ///
    /// # Errors
    /// As [`Metrics::counters`].
    pub fn gauge(&self, name: &str, help: &str) -> Result<Gauge, MetricsError> {
        self.register(name, Gauge::new(name, help))
    }

    /// Registers a family of gauges with whole values.
    ///
    /// # Errors
    /// As [`Metrics::counters`].
    pub fn whole_gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, MetricsError> {
        self.register(name, IntGaugeVec::new(Opts::new(name, help), labels))
    }

    /// Registers one gauge with a whole value and without labels.
    ///
    /// # Errors
    /// As [`Metrics::counters`].
    pub fn whole_gauge(&self, name: &str, help: &str) -> Result<IntGauge, MetricsError> {
        self.register(name, IntGauge::new(name, help))
    }

    /// Registers a histogram family with the given upper bounds, ascending, in the metric's unit.
    ///
    /// # Errors
    /// As [`Metrics::counters`], and when the bounds do not ascend.
    pub fn histograms(
        &self,
        name: &str,
        help: &str,
        upper_bounds: &[f64],
        labels: &[&str],
    ) -> Result<HistogramVec, MetricsError> {
        let options = HistogramOpts::new(name, help).buckets(upper_bounds.to_vec());
        self.register(name, HistogramVec::new(options, labels))
    }

    /// Registers one histogram without labels.
    ///
    /// # Errors
    /// As [`Metrics::histograms`].
    pub fn histogram(&self, name: &str, help: &str, upper_bounds: &[f64]) -> Result<Histogram, MetricsError> {
        let options = HistogramOpts::new(name, help).buckets(upper_bounds.to_vec());
        self.register(name, Histogram::with_opts(options))
    }

    /// Registers families that are read when they are rendered: what exists anyway need not be kept twice.
    ///
    /// # Errors
    /// When a name or a label is not valid or a name is taken.
    pub fn collector(&self, name: &str, collector: impl Collector + 'static) -> Result<(), MetricsError> {
        let failed = |cause| MetricsError { name: name.to_owned(), cause };
        self.registry.register(Box::new(collector)).map_err(failed)
    }

    /// The names of all families that would be rendered now, sorted.
    pub fn family_names(&self) -> Vec<String> {
        self.registry.gather().iter().map(|family| family.name().to_owned()).collect()
    }

    /// All metrics in the Prometheus text format, families sorted by name.
    ///
    /// # Errors
    /// When a family is inconsistent, which registering it already excludes.
    pub fn render(&self) -> Result<String, MetricsError> {
        let failed = |cause| MetricsError { name: "registry".to_owned(), cause };
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text).map_err(failed)?;
        String::from_utf8(text).map_err(|error| failed(prometheus::Error::Msg(error.to_string())))
    }

    fn register<C>(&self, name: &str, made: prometheus::Result<C>) -> Result<C, MetricsError>
    where
        C: Collector + Clone + 'static,
    {
        let failed = |cause| MetricsError { name: name.to_owned(), cause };
        let collector = made.map_err(failed)?;
        self.registry.register(Box::new(collector.clone())).map_err(failed)?;
        Ok(collector)
    }
}

/// Makes a series for every combination of the given label values, so that it starts at zero.
///
/// `values` holds, for each label in its order, the values that it can take. A series that appears
/// only with its first event loses that event in every rate that is computed from it.
///
/// # Errors
/// When `values` has another number of labels than the family.
pub fn start_at_zero<B: MetricVecBuilder>(family: &MetricVec<B>, values: &[&[&str]]) -> prometheus::Result<()> {
    let mut combinations: Vec<Vec<&str>> = vec![Vec::new()];
    for label_values in values {
        combinations = combinations
            .iter()
            .flat_map(|known| {
                label_values.iter().map(move |value| {
                    let mut longer = known.clone();
                    longer.push(value);
                    longer
                })
            })
            .collect();
    }
    for combination in &combinations {
        family.get_metric_with_label_values(combination)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_rendered_with_help_and_sorted() {
        let metrics = Metrics::new();
        let gauge = metrics.gauge("b_seconds", "How long it took.").unwrap();
        let counters = metrics.counters("a_total", "What happened.", &["verb"]).unwrap();
        gauge.set(1.5);
        counters.with_label_values(&["get"]).inc();
        assert_eq!(
            metrics.render().unwrap(),
            "# HELP a_total What happened.\n# TYPE a_total counter\na_total{verb=\"get\"} 1\n\
             # HELP b_seconds How long it took.\n# TYPE b_seconds gauge\nb_seconds 1.5\n"
        );
        assert_eq!(metrics.family_names(), ["a_total", "b_seconds"]);
    }

    #[test]
    fn every_combination_of_labels_can_start_at_zero() {
        let metrics = Metrics::new();
        let family = metrics.counters("x_total", "X.", &["verb", "result"]).unwrap();
        start_at_zero(&family, &[&["get", "put"], &["ok", "failed"]]).unwrap();
        let text = metrics.render().unwrap();
        for verb in ["get", "put"] {
            for result in ["ok", "failed"] {
                let line = format!("x_total{{result=\"{result}\",verb=\"{verb}\"}} 0\n");
                assert!(text.contains(&line), "{line} not in {text}");
            }
        }
        let times = metrics.histograms("t_seconds", "T.", &[0.1, 1.0], &["verb"]).unwrap();
        start_at_zero(&times, &[&["get"]]).unwrap();
        assert!(metrics.render().unwrap().contains("t_seconds_count{verb=\"get\"} 0\n"));
        assert!(start_at_zero(&family, &[&["get"]]).is_err());
    }

    #[test]
    fn a_name_cannot_be_taken_twice() {
        let metrics = Metrics::new();
        metrics.whole_gauge("x", "X.").unwrap();
        let error = metrics.whole_gauges("x", "X.", &["label"]).unwrap_err();
        assert_eq!(error.name, "x");
        assert!(metrics.counter("not a name", "X.").is_err());
    }
}
