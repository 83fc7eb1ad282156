//! Metric families of plain atomics, and of what exists anyway: read when they are rendered.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto;

/// A histogram of lengths of time, in seconds. Noting one costs two additions.
#[derive(Debug)]
pub(super) struct Seconds {
    bounds: &'static [f64],
    /// One per bound, and one for what is beyond.
    counts: Box<[AtomicU64]>,
    sum_microseconds: AtomicU64,
}

impl Seconds {
    /// An empty one with these upper bounds, ascending.
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum_microseconds: AtomicU64::new(0) }
    }

    /// Notes one.
    pub(super) fn note(&self, length: Duration) {
        let seconds = length.as_secs_f64();
        let bucket = self.bounds.iter().position(|bound| seconds <= *bound).unwrap_or(self.bounds.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let microseconds = u64::try_from(length.as_micros()).unwrap_or(u64::MAX >> 1);
        self.sum_microseconds.fetch_add(microseconds, Ordering::Relaxed);
    }

    /// Notes many that were counted elsewhere with the same bounds; counts are per bucket, not cumulative.
    pub(super) fn note_many(&self, counts: &[u32], sum: Duration) {
        for (mine, more) in self.counts.iter().zip(counts).filter(|(_, more)| **more > 0) {
            mine.fetch_add(u64::from(*more), Ordering::Relaxed);
        }
        self.sum_microseconds.fetch_add(u64::try_from(sum.as_micros()).unwrap_or(u64::MAX >> 1), Ordering::Relaxed);
    }

    fn metric(&self) -> proto::Metric {
        let mut cumulative = 0;
        let mut buckets = Vec::with_capacity(self.bounds.len());
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            cumulative += count.load(Ordering::Relaxed);
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(cumulative);
            buckets.push(bucket);
        }
        cumulative += self.counts.last().map_or(0, |beyond| beyond.load(Ordering::Relaxed));
        let sum = Duration::from_micros(self.sum_microseconds.load(Ordering::Relaxed));
        let mut histogram = proto::Histogram::default();
        histogram.set_sample_count(cumulative);
        histogram.set_sample_sum(sum.as_secs_f64());
        histogram.set_bucket(buckets);
        let mut metric = proto::Metric::default();
        metric.set_histogram(histogram);
        metric
    }
}

/// A histogram as a family.
pub(super) struct SecondsFamily {
    desc: Desc,
    seconds: std::sync::Arc<Seconds>,
}

impl SecondsFamily {
    pub(super) fn new(name: &str, help: &str, seconds: std::sync::Arc<Seconds>) -> prometheus::Result<Self> {
        Ok(Self { desc: desc(name, help, &[])?, seconds })
    }
}

impl Collector for SecondsFamily {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        vec![family(&self.desc, proto::MetricType::HISTOGRAM, vec![self.seconds.metric()])]
    }
}

/// Values with their labels' values, in the order of the labels.
pub(super) type Values = Vec<(Vec<String>, f64)>;

/// A family whose values are read when it is rendered.
pub(super) struct ReadFamily {
    desc: Desc,
    labels: &'static [&'static str],
    kind: proto::MetricType,
    read: Box<dyn Fn() -> Values + Send + Sync>,
}

impl ReadFamily {
    /// A family of gauges.
    pub(super) fn gauges(
        name: &str,
        help: &str,
        labels: &'static [&'static str],
        read: impl Fn() -> Values + Send + Sync + 'static,
    ) -> prometheus::Result<Self> {
        Self::new(name, help, labels, proto::MetricType::GAUGE, read)
    }

    /// A family of counters.
    pub(super) fn counters(
        name: &str,
        help: &str,
        labels: &'static [&'static str],
        read: impl Fn() -> Values + Send + Sync + 'static,
    ) -> prometheus::Result<Self> {
        Self::new(name, help, labels, proto::MetricType::COUNTER, read)
    }

    fn new(
        name: &str,
        help: &str,
        labels: &'static [&'static str],
        kind: proto::MetricType,
        read: impl Fn() -> Values + Send + Sync + 'static,
    ) -> prometheus::Result<Self> {
        Ok(Self { desc: desc(name, help, labels)?, labels, kind, read: Box::new(read) })
    }

    fn metric(&self, labels: Vec<String>, value: f64) -> proto::Metric {
        let pairs = self.labels.iter().zip(labels).map(|(name, value)| {
            let mut pair = proto::LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value(value);
            pair
        });
        let mut metric = proto::Metric::from_label(pairs.collect());
        if self.kind == proto::MetricType::COUNTER {
            let mut counter = proto::Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        metric
    }
}

impl Collector for ReadFamily {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let metrics = (self.read)().into_iter().map(|(labels, value)| self.metric(labels, value));
        vec![family(&self.desc, self.kind, metrics.collect())]
    }
}

fn desc(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Desc> {
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    Desc::new(name.to_owned(), help.to_owned(), labels, std::collections::HashMap::new())
}

fn family(desc: &Desc, kind: proto::MetricType, metrics: Vec<proto::Metric>) -> proto::MetricFamily {
    let mut family = proto::MetricFamily::default();
    family.set_name(desc.fq_name.clone());
    family.set_help(desc.help.clone());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gco_runtime::metrics::Metrics;

    use super::*;

    #[test]
    fn a_histogram_is_rendered_cumulatively_with_what_is_beyond_its_bounds() {
        let seconds = Arc::new(Seconds::new(&[0.1, 1.0]));
        let registry = Metrics::new();
        registry.collector("t_seconds", SecondsFamily::new("t_seconds", "T.", seconds.clone()).unwrap()).unwrap();
        for milliseconds in [50, 100, 500, 5_000] {
            seconds.note(Duration::from_millis(milliseconds));
        }
        seconds.note_many(&[1, 0, 2], Duration::from_secs(7));
        assert_eq!(
            registry.render().unwrap(),
            "# HELP t_seconds T.\n# TYPE t_seconds histogram\nt_seconds_bucket{le=\"0.1\"} 3\n\
             t_seconds_bucket{le=\"1\"} 4\nt_seconds_bucket{le=\"+Inf\"} 7\nt_seconds_sum 12.65\nt_seconds_count 7\n"
        );
    }

    #[test]
    fn families_are_read_when_they_are_rendered() {
        let value = Arc::new(AtomicU64::new(1));
        let read = {
            let value = value.clone();
            move || vec![(vec!["a".to_owned()], value.load(Ordering::Relaxed) as f64)]
        };
        let registry = Metrics::new();
        registry.collector("x", ReadFamily::gauges("x", "X.", &["l"], read).unwrap()).unwrap();
        registry
            .collector("y_total", ReadFamily::counters("y_total", "Y.", &[], || vec![(Vec::new(), 3.0)]).unwrap())
            .unwrap();
        value.store(7, Ordering::Relaxed);
        assert_eq!(
            registry.render().unwrap(),
            "# HELP x X.\n# TYPE x gauge\nx{l=\"a\"} 7\n# HELP y_total Y.\n# TYPE y_total counter\ny_total 3\n"
        );
        assert!(registry.collector("x", ReadFamily::gauges("x", "X.", &["l"], Vec::new).unwrap()).is_err());
    }
}
