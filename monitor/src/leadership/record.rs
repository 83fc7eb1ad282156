//! The Lease object: what we read of it and the bodies that we write.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::identity::{ANNOTATION_LEADER_EPOCH, LeaderMark};

/// Name of the Lease; the original's too, or two leaders would run in one cluster.
pub const LEASE_NAME: &str = "inference-monitor-leader";

/// The Lease as read.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseRecord {
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.resourceVersion`
    pub resource_version: String,
    /// `spec.holderIdentity`; `None` when absent or empty: free.
    pub holder: Option<String>,
    /// The epoch in the annotation.
    pub epoch: Option<String>,
    /// `spec.leaseDurationSeconds` when it is a positive number.
    pub duration: Option<Duration>,
    /// `spec.leaseTransitions`; 0 when absent.
    pub transitions: u64,
    /// The whole object, so that what others put on it survives our writes.
    pub body: Value,
}

/// What makes two reads of a Lease "the same record": a foreign annotation does not keep a dead leader alive.
#[derive(Clone, Debug, PartialEq)]
pub struct Fingerprint {
    uid: String,
    epoch: Option<String>,
    spec: Value,
}

impl LeaseRecord {
    /// Reads a Lease; `None` when it lacks what every stored object has.
    #[must_use]
    pub fn parse(body: Value) -> Option<Self> {
        let metadata = body.get("metadata")?;
        let text = |name: &str| metadata.get(name).and_then(Value::as_str).map(str::to_owned);
        let (uid, resource_version) = (text("uid")?, text("resourceVersion")?);
        let epoch = metadata
            .get("annotations")
            .and_then(|annotations| annotations.get(ANNOTATION_LEADER_EPOCH))
            .and_then(Value::as_str)
            .map(str::to_owned);
        let spec = |name: &str| body.get("spec").and_then(|spec| spec.get(name));
        let holder =
            spec("holderIdentity").and_then(Value::as_str).filter(|holder| !holder.is_empty()).map(str::to_owned);
        let duration = spec("leaseDurationSeconds")
            .and_then(Value::as_u64)
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs);
        let transitions = spec("leaseTransitions").and_then(Value::as_u64).unwrap_or(0);
        Some(Self { uid, resource_version, holder, epoch, duration, transitions, body })
    }

    /// What is compared to see whether the record changed.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint {
            uid: self.uid.clone(),
            epoch: self.epoch.clone(),
            spec: self.body.get("spec").cloned().unwrap_or(Value::Null),
        }
    }

    /// Whether it says that exactly this leadership holds it.
    #[must_use]
    pub fn is_held_by(&self, holder: &str, mark: &LeaderMark) -> bool {
        self.holder.as_deref() == Some(holder)
            && self.epoch.as_deref() == Some(mark.epoch.as_str())
            && self.transitions == mark.term
    }
}

/// Time-stamp of a Lease: microseconds are mandatory there.
fn micro_time(now: Timestamp) -> String {
    let seconds = now.strftime("%Y-%m-%dT%H:%M:%S");
    let microseconds = now.subsec_nanosecond().max(0) / 1_000;
    format!("{seconds}.{microseconds:06}Z")
}

/// A Lease that does not exist yet.
#[must_use]
pub fn created(namespace: &str, holder: &str, mark: &LeaderMark, duration: Duration, now: Timestamp) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": LEASE_NAME,
            "namespace": namespace,
            "labels": {"project": "gco"},
            "annotations": {ANNOTATION_LEADER_EPOCH: mark.epoch},
        },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration.as_secs(),
            "acquireTime": micro_time(now),
            "renewTime": micro_time(now),
            "leaseTransitions": mark.term,
        },
    })
}

/// `record` taken over.
#[must_use]
pub fn acquired(record: &LeaseRecord, holder: &str, mark: &LeaderMark, duration: Duration, now: Timestamp) -> Value {
    let mut body = record.body.clone();
    body["metadata"]["annotations"][ANNOTATION_LEADER_EPOCH] = json!(mark.epoch);
    let spec = &mut body["spec"];
    spec["holderIdentity"] = json!(holder);
    spec["leaseDurationSeconds"] = json!(duration.as_secs());
    spec["acquireTime"] = json!(micro_time(now));
    spec["renewTime"] = json!(micro_time(now));
    spec["leaseTransitions"] = json!(mark.term);
    body
}

/// `record`, which is ours, renewed.
#[must_use]
pub fn renewed(record: &LeaseRecord, duration: Duration, now: Timestamp) -> Value {
    let mut body = record.body.clone();
    body["spec"]["leaseDurationSeconds"] = json!(duration.as_secs());
    body["spec"]["renewTime"] = json!(micro_time(now));
    body
}

/// `record`, which is ours, given up: no holder, and no more than a second to wait for whoever reads it late.
#[must_use]
pub fn released(record: &LeaseRecord, now: Timestamp) -> Value {
    let mut body = record.body.clone();
    if let Some(spec) = body["spec"].as_object_mut() {
        spec.remove("holderIdentity");
    }
    body["spec"]["leaseDurationSeconds"] = json!(1);
    body["spec"]["renewTime"] = json!(micro_time(now));
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(epoch: &str, term: u64) -> LeaderMark {
        LeaderMark { epoch: epoch.to_owned(), term }
    }

    fn stored(mut body: Value) -> LeaseRecord {
        body["metadata"]["uid"] = json!("u1");
        body["metadata"]["resourceVersion"] = json!("7");
        LeaseRecord::parse(body).unwrap()
    }

    #[test]
    fn what_is_written_reads_back_and_carries_uid_and_version() {
        let now: Timestamp = "2025-01-02T03:04:05.000006Z".parse().unwrap();
        let duration = Duration::from_secs(15);
        let record = stored(created("n", "me", &mark("e1", 3), duration, now));
        assert!(record.is_held_by("me", &mark("e1", 3)));
        assert!(!record.is_held_by("me", &mark("e1", 4)));
        assert!(!record.is_held_by("other", &mark("e1", 3)));
        assert_eq!(record.duration, Some(duration));
        assert_eq!(record.body["spec"]["renewTime"], "2025-01-02T03:04:05.000006Z");

        let taken = stored(acquired(&record, "you", &mark("e2", 4), duration, now));
        assert!(taken.is_held_by("you", &mark("e2", 4)));
        assert_eq!(taken.body["metadata"]["uid"], "u1");

        let free = stored(released(&taken, now));
        assert_eq!(free.holder, None);
        assert_eq!(free.transitions, 4);
        assert_eq!(free.duration, Some(Duration::from_secs(1)));
    }

    #[test]
    fn a_foreign_annotation_is_no_sign_of_life_and_survives_our_writes() {
        let now = Timestamp::UNIX_EPOCH;
        let record = stored(created("n", "me", &mark("e1", 3), Duration::from_secs(15), now));
        let mut annotated = record.body.clone();
        annotated["metadata"]["annotations"]["someone"] = json!("else");
        let annotated = stored(annotated);
        assert_eq!(annotated.fingerprint(), record.fingerprint());
        let later = now.saturating_add(Duration::from_secs(1)).unwrap();
        let again = stored(renewed(&annotated, Duration::from_secs(15), later));
        assert_ne!(again.fingerprint(), record.fingerprint());
        assert_eq!(again.body["metadata"]["annotations"]["someone"], "else");
    }

    #[test]
    fn the_originals_lease_is_understood() {
        let record = stored(json!({
            "metadata": {"name": LEASE_NAME, "annotations": {"gco.io/leader-epoch": "ab"}},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 45, "renewTime": "2025-01-01T00:00:00.000000Z"},
        }));
        assert_eq!((record.holder, record.transitions), (None, 0));
        assert_eq!(record.duration, Some(Duration::from_secs(45)));
    }
}
