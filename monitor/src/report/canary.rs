//! What is true of a canary: the part of an entry by which routers decide whether it gets its share of requests (the wire
//! contract, A.5 and E.2).
//!
//! It is made from the caches in every pass. The original wrote it only at the end of a pass that changed nothing, so that
//! any other pass dropped it and all traffic snapped back to the endpoint itself (D-37).

use gco_store::spec::Spec;
use gco_store::status::Rollout;
use gco_store::wire::{Item, Value};

use super::conditions::{Conditions, kind};
use super::standing::{Progress, Standing, status_count};
use crate::object::{Kind, ObjectKey, Observed, ObservedPod};
use crate::plan::body;
use crate::plan::ownership::{live_input_hash, pod_input_hash};
use crate::render::canary_name;

/// Key of the entry.
pub(super) const KEY: &str = "canary";

/// A canary as it stands.
pub(super) struct Canary<'a> {
    standing: Standing<'a>,
    image: String,
    weight: i64,
    /// Pods of the image that are ready.
    ready: u32,
    desired: u32,
    /// It can answer a request that is sent to its Service now.
    serves: bool,
}

impl<'a> Canary<'a> {
    /// The canary that the spec asks for.
    pub(super) fn asked(
        observed: &'a Observed,
        endpoint: &str,
        lifecycle_id: &str,
        spec: &Spec,
        region: &str,
    ) -> Option<Self> {
        let (asked, spec) = (spec.canary.as_ref()?, spec.of_canary()?);
        let hash = spec.template_input_hash(region);
        let (weight, desired) = (i64::from(asked.weight), asked.replicas);
        Some(Self::of(observed, endpoint, lifecycle_id, &asked.image, weight, desired, Some(&hash)))
    }

    /// The canary that an entry told of, for a row that cannot be served as it is: it goes on running, and its numbers go
    /// on being true.
    pub(super) fn kept(observed: &'a Observed, endpoint: &str, lifecycle_id: &str, told: &Value) -> Option<Self> {
        let image = told.at(&["image"])?.as_str()?;
        let weight = told.at(&["weight"])?.as_integer()?;
        let desired = u32::try_from(told.at(&["replicas_desired"])?.as_integer()?).ok()?;
        Some(Self::of(observed, endpoint, lifecycle_id, image, weight, desired, None))
    }

    /// `hash`: what its pods must be made from; `None`: whatever its Deployment has, if that has the image.
    fn of(
        observed: &'a Observed,
        endpoint: &str,
        lifecycle_id: &str,
        image: &str,
        weight: i64,
        desired: u32,
        hash: Option<&str>,
    ) -> Self {
        let name = canary_name(endpoint);
        let standing = Standing::of(observed, &name, lifecycle_id);
        let live = standing.deployment.filter(|deployment| {
            let place = "/spec/template/spec/containers/0/image";
            deployment.body.pointer(place).and_then(serde_json::Value::as_str) == Some(image)
        });
        let hash = hash.or_else(|| live.and_then(live_input_hash));
        let runs = |pod: &&&ObservedPod| hash.is_some() && pod_input_hash(observed, live, pod) == hash;
        let ready = super::standing::count(standing.pods.iter().filter(|pod| pod.ready).filter(runs).count());
        // Routers send to the Service; without one, or with somebody else's, a request would fail or go astray.
        let service = ObjectKey { kind: Kind::Service, name };
        let has_service = Standing::ours(observed, &service, lifecycle_id).is_some_and(|service| !service.terminating);
        let settled = live.is_some_and(|deployment| {
            // Only pods of the newest template are left, and as many as asked for have been ready for long enough that
            // whoever balances over them knows it (`minReadySeconds`).
            status_count(deployment, "replicas") == status_count(deployment, "updatedReplicas")
                && status_count(deployment, "availableReplicas") >= u64::from(desired)
                && body::replicas(&deployment.body) >= u64::from(desired)
        });
        let serves = has_service && settled && desired > 0 && ready >= desired;
        Self { standing, image: image.to_owned(), weight, ready, desired, serves }
    }

    /// Its pods.
    pub(super) fn pods(&self) -> &[&'a ObservedPod] {
        &self.standing.pods
    }

    /// The map of the contract.
    pub(super) fn to_value(&self) -> Value {
        let Self { standing, image, weight, ready, desired, serves } = self;
        let state = if *serves {
            "running"
        } else if standing.ready() > 0 {
            "updating"
        } else {
            "creating"
        };
        Value::Map(Item::from([
            ("state".to_owned(), Value::from(state)),
            ("image".to_owned(), Value::from(image.as_str())),
            ("weight".to_owned(), Value::from(*weight)),
            ("replicas_ready".to_owned(), Value::from(i64::from(*ready))),
            ("replicas_desired".to_owned(), Value::from(i64::from(*desired))),
        ]))
    }

    /// Whether it gets its share, and why not.
    pub(super) fn condition(&self, conditions: &mut Conditions<'_>) {
        let Self { standing, image: _, weight, ready, desired, serves } = self;
        if *serves {
            return conditions.add(
                kind::CANARY_READY,
                true,
                "PodsReady",
                format!("{ready} of {desired} pods of the canary are ready; it gets {weight} % of the requests"),
            );
        }
        let counts = format!("{ready} of {desired} pods of the canary are ready; no request goes to it");
        let stuck = standing.progress().and_then(|Progress { rollout, message }| {
            let Rollout { updated: _, updated_ready: _, total: _, stuck } = rollout?;
            Some((stuck?, message))
        });
        match stuck {
            Some((reason, message)) => {
                conditions.add(kind::CANARY_READY, false, &reason, format!("{counts}: {message}"));
            }
            None if standing.pods.is_empty() => conditions.add(kind::CANARY_READY, false, "NoPods", counts),
            None => conditions.add(kind::CANARY_READY, false, "PodsNotReady", counts),
        }
    }
}
