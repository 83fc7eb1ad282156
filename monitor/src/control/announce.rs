//! Kubernetes Events: written beside the work, bounded in number, and never a reason for anything to fail.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gco_runtime::clock::BootTime;
use gco_store::status::RegionEntry;
use serde_json::{Value, json};

use super::shared::Shared;
use crate::leadership::Claim;
use crate::object::{Kind, ObjectKey, Observed};
use crate::report::events::{EventNote, EventReason, events};

/// Who writes them.
const CONTROLLER: &str = "gco.io/inference-monitor";

/// The same reason for the same endpoint is said again only after this long: an endpoint that flaps must not fill the
/// cluster's store.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Most Events per minute of one monitor: a start with hundreds of endpoints would otherwise write as many at once.
const MOST_PER_MINUTE: usize = 60;
const MINUTE: Duration = Duration::from_secs(60);

/// Longest `reportingInstance` that an API server takes.
const LONGEST_INSTANCE: usize = 128;

/// Which Events were written lately.
#[derive(Debug, Default)]
pub struct EventBudget {
    said: Mutex<BTreeMap<(String, EventReason), BootTime>>,
}

impl EventBudget {
    /// Whether an Event may be written now; notes that it is.
    fn take(&self, endpoint: &str, reason: EventReason, now: BootTime) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|_, at| now.saturating_duration_since(*at) < AGAIN_AFTER.max(MINUTE));
        let lately = said.values().filter(|at| now.saturating_duration_since(**at) < MINUTE).count();
        let key = (endpoint.to_owned(), reason);
        if lately >= MOST_PER_MINUTE || said.contains_key(&key) {
            return false;
        }
        said.insert(key, now);
        true
    }
}

/// Writes the Events of a change that is in the table now. Returns at once.
pub(super) fn announce(
    shared: &Shared,
    claim: &Claim,
    endpoint: &str,
    before: Option<&RegionEntry>,
    after: &RegionEntry,
) {
    for note in events(before, after) {
        if !shared.event_budget.take(endpoint, note.reason, shared.now()) {
            shared.telemetry.event(note.reason, "dropped");
            continue;
        }
        let observed = shared.cluster.caches.observe(endpoint).unwrap_or_default();
        let body = body_of(shared, endpoint, &note, &observed);
        let (api, claim, telemetry) = (shared.cluster.api.clone(), claim.clone(), Arc::clone(&shared.telemetry));
        tokio::spawn(async move {
            match api.announce(&claim, &body).await {
                Ok(()) => telemetry.event(note.reason, "written"),
                Err(error) => {
                    telemetry.event(note.reason, "failed");
                    tracing::debug!(error = %error, reason = note.reason.as_str(), "an Event was not written");
                }
            }
        });
    }
}

fn body_of(shared: &Shared, endpoint: &str, note: &EventNote, observed: &Observed) -> Value {
    let token = shared.randomness.token();
    let key = ObjectKey { kind: Kind::Deployment, name: endpoint.to_owned() };
    let namespace = &shared.config.namespace;
    let mut regarding =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": namespace, "name": endpoint});
    if let Some(object) = observed.objects.get(&key) {
        regarding["uid"] = object.uid.clone().into();
    }
    let instance: String = shared.holder.chars().take(LONGEST_INSTANCE).collect();
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": format!("{endpoint}.{}", token.get(..16).unwrap_or(&token)), "namespace": namespace},
        "eventTime": shared.clock.wall().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
        "reportingController": CONTROLLER,
        "reportingInstance": instance,
        "action": "Reconcile",
        "regarding": regarding,
        "type": note.reason.kind(),
        "reason": note.reason.as_str(),
        "note": note.note,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> BootTime {
        BootTime::since_boot(Duration::from_secs(seconds))
    }

    #[test]
    fn one_reason_of_one_endpoint_is_said_once_a_minute() {
        let budget = EventBudget::default();
        assert!(budget.take("a", EventReason::Serving, at(0)));
        assert!(!budget.take("a", EventReason::Serving, at(59)));
        assert!(budget.take("a", EventReason::NotServing, at(59)));
        assert!(budget.take("b", EventReason::Serving, at(59)));
        assert!(budget.take("a", EventReason::Serving, at(60)));
    }

    #[test]
    fn all_endpoints_together_say_so_many_a_minute() {
        let budget = EventBudget::default();
        let taken = (0..200).filter(|number| budget.take(&format!("e{number}"), EventReason::Serving, at(0))).count();
        assert_eq!(taken, MOST_PER_MINUTE);
        assert!(budget.take("later", EventReason::Serving, at(60)));
    }
}
