//! The engine's counters, under the names that vLLM gives them.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters and gauges of one engine.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    running: AtomicU64,
    waiting: AtomicU64,
    prompt_tokens: AtomicU64,
    generation_tokens: AtomicU64,
    finished_by_stop: AtomicU64,
    finished_by_length: AtomicU64,
}

/// A gauge that counts this value's life, also when its owner goes away in the middle.
pub(super) struct Held {
    metrics: Arc<Metrics>,
    gauge: fn(&Metrics) -> &AtomicU64,
}

impl Held {
    fn new(metrics: &Arc<Metrics>, gauge: fn(&Metrics) -> &AtomicU64) -> Self {
        gauge(metrics).fetch_add(1, Ordering::Relaxed);
        Self { metrics: Arc::clone(metrics), gauge }
    }

    pub(super) fn running(metrics: &Arc<Metrics>) -> Self {
        Self::new(metrics, |metrics| &metrics.running)
    }

    pub(super) fn waiting(metrics: &Arc<Metrics>) -> Self {
        Self::new(metrics, |metrics| &metrics.waiting)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        (self.gauge)(&self.metrics).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    pub(super) fn read_prompt(&self, tokens: usize) {
        self.prompt_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    pub(super) fn generated(&self, tokens: usize) {
        self.generation_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    pub(super) fn finished(&self, natural_end: bool) {
        let counter = if natural_end { &self.finished_by_stop } else { &self.finished_by_length };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The text that a scrape reads.
    pub(super) fn exposition(&self, model: &str) -> String {
        let model = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let common = format!("engine=\"0\",model_name=\"{model}\"");
        let mut text = String::new();
        let mut family = |name: &str, help: &str, kind: &str, series: &[(String, u64)]| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in series {
                let _ = writeln!(text, "{name}{{{labels}}} {value}.0");
            }
        };
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let one = |counter: &AtomicU64| [(common.clone(), load(counter))];
        family("vllm:num_requests_running", "Requests that are being generated.", "gauge", &one(&self.running));
        family("vllm:num_requests_waiting", "Requests that wait for a place.", "gauge", &one(&self.waiting));
        family("vllm:prompt_tokens_total", "Prompt tokens read.", "counter", &one(&self.prompt_tokens));
        family("vllm:generation_tokens_total", "Tokens generated.", "counter", &one(&self.generation_tokens));
        family(
            "vllm:request_success_total",
            "Sequences generated to their end.",
            "counter",
            &[
                (format!("{common},finished_reason=\"stop\""), load(&self.finished_by_stop)),
                (format!("{common},finished_reason=\"length\""), load(&self.finished_by_length)),
            ],
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_goes_down_when_its_owner_goes_away() {
        let metrics = Arc::new(Metrics::default());
        let held = Held::running(&metrics);
        assert!(metrics.exposition("m").contains("vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 1.0\n"));
        drop(held);
        assert!(metrics.exposition("m").contains("vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 0.0\n"));
    }
}
