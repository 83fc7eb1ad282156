//! Requests and limits of the model container.

use std::collections::BTreeMap;

use gco_store::spec::Spec;
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::object::quantity;

/// Resource, default request, default limit (the wire contract, C.12.1).
const DEFAULTS: [(&str, &str, &str); 2] = [("cpu", "1", "4"), ("memory", "4Gi", "16Gi")];

/// Requests and limits: those of the spec, defaults for the rest, and the accelerators.
///
/// Mended: a default gives way to a value of the spec. With the contract's constants alone, a spec that only raises the
/// memory request to 32Gi would ask for more than its default limit of 16Gi, and one that only lowers the limit to 2Gi
/// would keep a request of 4Gi; the server refuses both.
pub(super) fn of(spec: &Spec) -> ResourceRequirements {
    let mut requests = spec.resources.requests.clone();
    let mut limits = spec.resources.limits.clone();
    for (resource, default_request, default_limit) in DEFAULTS {
        let asked_limit = limits.get(resource).cloned();
        let request = requests.entry(resource.to_owned()).or_insert_with(|| match &asked_limit {
            Some(limit) if less(limit, default_request) => limit.clone(),
            _ => default_request.to_owned(),
        });
        limits
            .entry(resource.to_owned())
            .or_insert_with(|| if less(default_limit, request) { request.clone() } else { default_limit.to_owned() });
    }
    if spec.gpu_count > 0 {
        // Extended resources cannot be overcommitted: request and limit must be equal.
        let resource = spec.accelerator.resource();
        for map in [&mut requests, &mut limits] {
            map.insert(resource.to_owned(), spec.gpu_count.to_string());
        }
    }
    ResourceRequirements { requests: Some(quantities(requests)), limits: Some(quantities(limits)), claims: None }
}

/// Requests and limits given as constants.
pub(super) fn fixed(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> ResourceRequirements {
    let map = |pairs: &[(&str, &str)]| {
        quantities(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    };
    ResourceRequirements { requests: Some(map(requests)), limits: Some(map(limits)), claims: None }
}

fn quantities(map: BTreeMap<String, String>) -> BTreeMap<String, Quantity> {
    map.into_iter().map(|(name, value)| (name, Quantity(value))).collect()
}

fn less(one: &str, other: &str) -> bool {
    matches!((quantity::billionths(one), quantity::billionths(other)), (Some(one), Some(other)) if one < other)
}
