//! The autoscaler in words. Its own messages count seconds and name pods; written as they come, they would rewrite the row
//! again and again (D-15), so its reasons get words of ours.

use gco_store::name::KEDA_PREFIX;
use gco_store::problem::{QUOTED_VALUE_CHARACTERS, bounded};
use gco_store::spec::Spec;
use gco_store::status::Autoscaler;
use serde_json::Value;

use super::conditions::{Conditions, kind};
use super::standing::{Standing, condition};
use crate::object::{Kind, ObjectKey, Observed, ObservedObject};
use crate::plan::body;

/// Autoscalers of one Deployment, whoever asked for them, unless they belong to somebody else.
pub(super) struct Scaling<'a> {
    /// Kubernetes' own, ours.
    horizontal: Option<&'a ObservedObject>,
    /// KEDA's instruction, ours.
    scaled_object: Option<&'a ObservedObject>,
    /// What KEDA made of it.
    of_keda: Option<&'a ObservedObject>,
    keda_is_missing: bool,
    replicas: u32,
}

impl<'a> Scaling<'a> {
    pub(super) fn of(observed: &'a Observed, name: &str, lifecycle_id: &str) -> Self {
        let key = |kind: Kind, name: String| ObjectKey { kind, name };
        let ours = |kind: Kind| Standing::ours(observed, &key(kind, name.to_owned()), lifecycle_id);
        let replicas = ours(Kind::Deployment).map_or(0, |deployment| body::replicas(&deployment.body));
        let kedas = key(Kind::HorizontalPodAutoscaler, format!("{KEDA_PREFIX}{name}"));
        let of_keda = observed.objects.get(&kedas).filter(|object| object.is_of_keda());
        Self {
            horizontal: ours(Kind::HorizontalPodAutoscaler),
            scaled_object: ours(Kind::ScaledObject),
            of_keda: of_keda.or_else(|| Standing::ours(observed, &kedas, lifecycle_id)),
            keda_is_missing: observed.missing_kinds.contains(&Kind::ScaledObject),
            replicas: u32::try_from(replicas).unwrap_or(u32::MAX),
        }
    }

    /// Whether any is there.
    pub(super) fn is_there(&self) -> bool {
        self.horizontal.is_some() || self.scaled_object.is_some() || self.of_keda.is_some()
    }

    /// The one that owns the count; KEDA's, if two are there in a hand-over.
    pub(super) fn owner(&self) -> Option<Autoscaler> {
        let count = |object: &ObservedObject, field: &str, default: u32| {
            let number = object.body.get("spec").and_then(|spec| spec.get(field)).and_then(Value::as_u64);
            number.map_or(default, |number| u32::try_from(number).unwrap_or(u32::MAX))
        };
        let of = |object: &ObservedObject, kind: &str, [least, most]: [&str; 2]| Autoscaler {
            kind: kind.to_owned(),
            min_replicas: count(object, least, 1),
            max_replicas: count(object, most, 0),
            replicas: self.replicas,
        };
        match (self.scaled_object, self.horizontal) {
            (Some(object), _) => Some(of(object, "keda", ["minReplicaCount", "maxReplicaCount"])),
            (None, Some(object)) => Some(of(object, "hpa", ["minReplicas", "maxReplicas"])),
            (None, None) => None,
        }
    }

    /// The condition of an endpoint that should be autoscaled.
    pub(super) fn add_condition(&self, spec: &Spec, conditions: &mut Conditions<'_>) {
        let Some(autoscaling) = spec.autoscaled() else { return };
        let (holds, reason, message) = if autoscaling.needs_keda() { self.by_keda() } else { self.by_kubernetes() };
        conditions.add(kind::AUTOSCALING, holds, &reason, message);
    }

    fn by_kubernetes(&self) -> Verdict {
        match self.horizontal {
            Some(object) if !object.terminating => judged(object),
            _ if self.scaled_object.is_some() || self.of_keda.is_some() => {
                not_yet("HandOver", "an autoscaler of KEDA is being removed first")
            }
            _ => not_yet("NotYetActive", "the autoscaler is not there yet"),
        }
    }

    fn by_keda(&self) -> Verdict {
        if self.keda_is_missing {
            let words = "gpu and gpu_memory are measured by KEDA, and this cluster has no ScaledObject kind; install KEDA, \
                         or use the metrics cpu and memory";
            let stays = match self.horizontal {
                Some(_) => "the former autoscaler stays until then",
                None => "the replica count stays as it is until then",
            };
            return not_yet("KedaNotInstalled", &format!("{words}; {stays}"));
        }
        let Some(scaled_object) = self.scaled_object.filter(|object| !object.terminating) else {
            return if self.is_there() {
                not_yet("HandOver", "an earlier autoscaler is being removed first")
            } else {
                not_yet("NotYetActive", "the autoscaler is not there yet")
            };
        };
        let refused = condition(scaled_object, "Ready").filter(|ready| text(ready, "status") == "False");
        if let Some(refused) = refused {
            let reason = reason_of(refused);
            return (false, reason.clone(), format!("KEDA does not take the endpoint's ScaledObject: {reason}"));
        }
        match self.of_keda {
            Some(object) => judged(object),
            None => not_yet("NotYetActive", "KEDA has not made its autoscaler yet"),
        }
    }
}

/// Whether the autoscaler works, a reason, a message.
type Verdict = (bool, String, String);

fn not_yet(reason: &str, message: &str) -> Verdict {
    (false, reason.to_owned(), message.to_owned())
}

/// What a HorizontalPodAutoscaler says of itself.
fn judged(object: &ObservedObject) -> Verdict {
    for kind in ["AbleToScale", "ScalingActive"] {
        let Some(condition) = condition(object, kind) else {
            return not_yet("NotYetActive", "the autoscaler has not looked at the endpoint yet");
        };
        if text(condition, "status") == "False" {
            let reason = reason_of(condition);
            let message = match reason.as_str() {
                "FailedGetResourceMetric" => {
                    "the cluster gives no figures of cpu or memory (is a metrics server installed?); the replica count only \
                     stays within its bounds"
                }
                "FailedGetExternalMetric" => "KEDA gives no figures; the replica count only stays within its bounds",
                "ScalingDisabled" => "the endpoint has no pods to scale",
                _ => "the autoscaler cannot work; describe it for its own words",
            };
            return (false, reason, message.to_owned());
        }
    }
    let limited = condition(object, "ScalingLimited").filter(|limited| text(limited, "status") == "True");
    if limited.is_some_and(|limited| text(limited, "reason") == "TooManyReplicas") {
        return (true, "AtMaximum".to_owned(), "more replicas are wanted than max_replicas allows".to_owned());
    }
    (true, "Active".to_owned(), String::new())
}

fn text<'a>(condition: &'a Value, field: &str) -> &'a str {
    condition.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The reason as somebody else wrote it, bounded.
fn reason_of(condition: &Value) -> String {
    match text(condition, "reason") {
        "" => "NotActive".to_owned(),
        reason => bounded(reason, QUOTED_VALUE_CHARACTERS),
    }
}
