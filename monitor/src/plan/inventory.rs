//! Every name that belongs to an endpoint.

use gco_store::row::EndpointRow;

use crate::object::{Kind, ObjectKey};

/// Names of each kind, as suffixes of the endpoint's name, in deletion order (the wire contract, C.9). The ConfigMap
/// `-tls-proxy` is made by the newest original monitors.
const NAMES: [(Kind, &[&str]); 7] = [
    (Kind::ScaledObject, &["", "-prefill", "-decode"]),
    (Kind::HorizontalPodAutoscaler, &["", "-prefill", "-decode"]),
    (Kind::Deployment, &["", "-canary", "-prefill", "-decode", "-proxy"]),
    (Kind::Service, &["", "-canary", "-prefill", "-decode", "-proxy"]),
    (Kind::ConfigMap, &["-mooncake", "-pd-proxy", "-tls-proxy"]),
    (Kind::Ingress, &["", "-canary", "-proxy"]),
    (Kind::HttpRoute, &["", "-canary", "-proxy"]),
];
/// Suffix of the Secret with the proxy's admin key.
const ADMIN_SECRET: &str = "-admin";
/// What KEDA puts before the name of a ScaledObject to name its HorizontalPodAutoscaler.
const KEDA_PREFIX: &str = gco_store::name::KEDA_PREFIX;

/// Every name that belongs to an endpoint (the wire contract, C.9), in deletion order.
#[must_use]
pub fn inventory(name: &str) -> Vec<ObjectKey> {
    let mut keys = Vec::new();
    for (kind, suffixes) in NAMES {
        let named = |prefix: &str| {
            suffixes
                .iter()
                .map(|suffix| ObjectKey { kind, name: format!("{prefix}{name}{suffix}") })
                .collect::<Vec<_>>()
        };
        keys.extend(named(""));
        if kind == Kind::HorizontalPodAutoscaler {
            keys.extend(named(KEDA_PREFIX));
        }
    }
    keys.push(ObjectKey { kind: Kind::Secret, name: format!("{name}{ADMIN_SECRET}") });
    keys
}

/// The inventory of a row: a Secret that the spec names itself belongs to whoever made it and is never looked at, even if
/// it has the name that a generated one would have.
#[must_use]
pub fn inventory_of(row: &EndpointRow) -> Vec<ObjectKey> {
    let own_secret = format!("{}{ADMIN_SECRET}", row.name);
    let named_by_the_row = row
        .spec
        .at(&["mooncake", "proxy", "admin_api_key_secret"])
        .and_then(gco_store::wire::Value::as_str)
        .is_some_and(|secret| secret == own_secret);
    let mut keys = inventory(&row.name);
    if named_by_the_row {
        keys.retain(|key| key.kind != Kind::Secret);
    }
    keys
}
