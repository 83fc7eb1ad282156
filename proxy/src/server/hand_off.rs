//! The clock of a hand-over whose answer is no stream.
//!
//! The first event of a stream tells that the KV has come. An answer that is no stream says nothing before its last token,
//! however long that takes, so its silence does not tell a lost KV cache from a long answer. The engine does: vLLM counts
//! the requests that wait for KV. When it has none, this one has its KV, and what is left is the time for the answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backends::Backend;
use crate::backends::sources::ask;

/// When the engine is asked, in quarters of the hand-off deadline. Others may wait for KV at any one moment, so it is asked
/// more than once; a short hand-over needs no question at all.
const ASKED_AT_QUARTERS: [u32; 3] = [2, 3, 4];

/// For one answer: the last question comes when the deadline is over, and the client waits for what follows from it.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// The most that is read of an engine's metrics: one with every family and 16 ranks has about 1 MiB.
const LONGEST_METRICS: usize = 8 * 1024 * 1024;

/// Completes when the KV cache counts as lost, or the answer as late.
pub(super) async fn is_over(decode: Arc<Backend>, hand_off: Duration, answer: Duration) {
    let began = Instant::now();
    for quarters in ASKED_AT_QUARTERS {
        tokio::time::sleep_until(began + hand_off * quarters / 4).await;
        // An engine that does not answer must not put off the deadline.
        let within = if quarters == 4 { ANSWERED_WITHIN } else { ANSWERED_WITHIN.min(hand_off / 4) };
        if waits_for_kv(&decode, within).await == Some(false) {
            tracing::debug!(backend = decode.authority(), "no request waits for KV: the answer is merely long");
            tokio::time::sleep(answer).await;
            return;
        }
    }
}

/// Whether any request of an engine waits for KV; `None` when it does not say.
async fn waits_for_kv(engine: &Backend, within: Duration) -> Option<bool> {
    let asked = ask::get(engine.dial(), engine.authority(), "/metrics", LONGEST_METRICS);
    let (status, text) = tokio::time::timeout(within, asked).await.ok()?.ok()?;
    if status == 200 { waiting_in(&String::from_utf8_lossy(&text)) } else { None }
}

/// Reads vLLM's metrics: requests that wait for another engine's KV are `deferred`. Releases that do not tell why requests
/// wait tell only how many do.
fn waiting_in(metrics: &str) -> Option<bool> {
    let of = |family: &str, label: &str| {
        let series = metrics.lines().filter_map(|line| line.strip_prefix(family)?.strip_prefix('{')?.split_once("} "));
        let values = series.filter(|(labels, _)| labels.contains(label)).map(|(_, value)| value.trim());
        values.map(|value| value.parse::<f64>().ok()).reduce(|sum, value| Some(sum? + value?)).flatten()
    };
    let count = of("vllm:num_requests_waiting_by_reason", "reason=\"deferred\"")
        .or_else(|| of("vllm:num_requests_waiting", ""))?;
    Some(count > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_wait_for_kv_are_told_from_those_that_wait_for_a_place() {
        let text = |deferred: &str, capacity: &str| {
            format!(
                "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{engine=\"0\"}} 7.0\n\
                 vllm:num_requests_waiting_by_reason{{engine=\"0\",reason=\"capacity\"}} {capacity}\n\
                 vllm:num_requests_waiting_by_reason{{engine=\"0\",reason=\"deferred\"}} {deferred}\n\
                 vllm:num_requests_waiting_by_reason{{engine=\"1\",reason=\"deferred\"}} 0.0\n"
            )
        };
        assert_eq!(waiting_in(&text("0.0", "5.0")), Some(false));
        assert_eq!(waiting_in(&text("1.0", "0.0")), Some(true));
    }

    #[test]
    fn older_releases_tell_only_how_many_wait_and_others_nothing() {
        assert_eq!(waiting_in("vllm:num_requests_waiting{engine=\"0\"} 0.0\n"), Some(false));
        assert_eq!(waiting_in("vllm:num_requests_waiting{engine=\"0\"} 2.0\n"), Some(true));
        assert_eq!(waiting_in("sglang:num_queue_reqs 0\n"), None);
        assert_eq!(waiting_in("vllm:num_requests_waiting{engine=\"0\"} many\n"), None);
    }
}
