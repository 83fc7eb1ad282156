//! The engine's counters, under the names that vLLM gives them.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters and gauges of one engine.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    running: AtomicU64,
    waiting: AtomicU64,
    deferred: AtomicU64,
    prompt_tokens_computed: AtomicU64,
    prompt_tokens_transferred: AtomicU64,
    generation_tokens: AtomicU64,
    finished_by_stop: AtomicU64,
    finished_by_length: AtomicU64,
}

/// Where a prompt's KV came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromptSource {
    LocalCompute,
    ExternalKvTransfer,
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

    /// A request that waits for another engine's KV.
    pub(super) fn deferred(metrics: &Arc<Metrics>) -> Self {
        Self::new(metrics, |metrics| &metrics.deferred)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        (self.gauge)(&self.metrics).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    pub(super) fn read_prompt(&self, tokens: usize, source: PromptSource) {
        let counter = match source {
            PromptSource::LocalCompute => &self.prompt_tokens_computed,
            PromptSource::ExternalKvTransfer => &self.prompt_tokens_transferred,
        };
        counter.fetch_add(tokens as u64, Ordering::Relaxed);
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
        let (capacity, deferred) = (load(&self.waiting), load(&self.deferred));
        family(
            "vllm:num_requests_waiting",
            "Requests that wait for a place or for KV.",
            "gauge",
            &[(common.clone(), capacity + deferred)],
        );
        family(
            "vllm:num_requests_waiting_by_reason",
            "Requests that wait, by what for.",
            "gauge",
            &[(format!("{common},reason=\"capacity\""), capacity), (format!("{common},reason=\"deferred\""), deferred)],
        );
        let (computed, transferred) = (load(&self.prompt_tokens_computed), load(&self.prompt_tokens_transferred));
        family(
            "vllm:prompt_tokens_total",
            "Prompt tokens read.",
            "counter",
            &[(common.clone(), computed + transferred)],
        );
        family(
            "vllm:prompt_tokens_by_source_total",
            "Prompt tokens read, by where their KV came from.",
            "counter",
            &[
                (format!("{common},source=\"local_compute\""), computed),
                (format!("{common},source=\"local_cache_hit\""), 0),
                (format!("{common},source=\"external_kv_transfer\""), transferred),
            ],
        );
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
