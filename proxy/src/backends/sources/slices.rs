//! EndpointSlices: every pod behind a Service, one by one, as the API server says.
//!
//! A pod is known by the UID of its `targetRef`, never by its address: the next pod at that address is another engine. An
//! endpoint that is ending gets nothing new; one that is not ready neither. A pod named by several slices (the controller
//! moves endpoints between them) counts once, and as ready if any says so.
//!
//! The watch gives whole states only: the list that it begins with is taken in at its end, so that a relist never shows an
//! empty fleet. While the API server is away, the last state stays.

use std::collections::BTreeMap;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use kube::runtime::watcher::Event;

use super::{authority, bootstrap_at, dial_of};
use crate::backends::{Availability, BackendKey, Description, Role};
use crate::config::PortChoice;

/// The slices of one Service as the watch last told them.
#[derive(Debug, Default)]
pub(super) struct Slices {
    known: BTreeMap<String, EndpointSlice>,
    /// The list that a watch begins with, until it is complete.
    listed: BTreeMap<String, EndpointSlice>,
}

impl Slices {
    /// Takes in one event; says whether the state is another one now.
    pub(super) fn take(&mut self, event: Event<EndpointSlice>) -> bool {
        let name = |slice: &EndpointSlice| slice.metadata.name.clone().unwrap_or_default();
        match event {
            Event::Init => {
                self.listed.clear();
                return false;
            }
            Event::InitApply(slice) => {
                self.listed.insert(name(&slice), slice);
                return false;
            }
            Event::InitDone => self.known = std::mem::take(&mut self.listed),
            Event::Apply(slice) => {
                self.known.insert(name(&slice), slice);
            }
            Event::Delete(slice) => {
                self.known.remove(&name(&slice));
            }
        }
        true
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &EndpointSlice> {
        self.known.values()
    }
}

/// What the slices of one Service say.
///
/// `bootstrap_port`: that of prefill instances, when the connector asks one.
pub(super) fn backends<'s>(
    role: Role,
    slices: impl IntoIterator<Item = &'s EndpointSlice>,
    port: &PortChoice,
    bootstrap_port: Option<u16>,
) -> Vec<(Description, Availability)> {
    let mut found: BTreeMap<BackendKey, (Description, Availability)> = BTreeMap::new();
    // A pod with addresses of two families is in a slice of each: always the same one is taken, or its connections and
    // counts would be given up with every change of a slice.
    let mut slices: Vec<&EndpointSlice> = slices.into_iter().collect();
    slices.sort_by(|one, other| one.address_type.cmp(&other.address_type));
    for slice in slices {
        let Some(port) = port_of(slice.ports.as_deref().unwrap_or_default(), port) else { continue };
        for endpoint in &slice.endpoints {
            let Some(described) = backend(role, endpoint, port, bootstrap_port) else { continue };
            let key = described.0.key.clone();
            match found.get(&key) {
                Some((_, Availability::Ready)) => {}
                _ => {
                    found.insert(key, described);
                }
            }
        }
    }
    found.into_values().collect()
}

/// The engine's port in a slice; `None` when the slice does not have it.
fn port_of(ports: &[EndpointPort], choice: &PortChoice) -> Option<u16> {
    let number = |port: &EndpointPort| port.port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
    let named = |name: &str| ports.iter().find(|port| port.name.as_deref() == Some(name)).and_then(number);
    match choice {
        // A number is meant as it stands: engines may listen on a port that the Service does not name.
        PortChoice::Number(port) => Some(*port),
        PortChoice::Name(name) => named(name),
        PortChoice::Default => match ports {
            [only] => number(only),
            _ => named("http"),
        },
    }
}

fn backend(
    role: Role,
    endpoint: &Endpoint,
    port: u16,
    bootstrap_port: Option<u16>,
) -> Option<(Description, Availability)> {
    // Several addresses of one endpoint are the same pod (`discovery/v1`): the first one is used.
    let host = endpoint.addresses.first()?;
    let authority = authority(host, port);
    let dial = dial_of(&authority)?;
    let uid = endpoint.target_ref.as_ref().and_then(|target| target.uid.as_deref()).filter(|uid| !uid.is_empty());
    let key = BackendKey::new(uid.unwrap_or(&authority));
    let bootstrap = bootstrap_port.filter(|_| role == Role::Prefill).and_then(|port| bootstrap_at(host, port));
    Some((Description { key, role, authority, dial, bootstrap }, availability(endpoint)))
}

/// By the rules of `discovery/v1`: unset `ready` means ready, unset `terminating` means not.
fn availability(endpoint: &Endpoint) -> Availability {
    let conditions = endpoint.conditions.as_ref();
    if conditions.and_then(|conditions| conditions.terminating) == Some(true) {
        Availability::Terminating
    } else if conditions.and_then(|conditions| conditions.ready) == Some(false) {
        Availability::NotReady
    } else {
        Availability::Ready
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(ports: &serde_json::Value, endpoints: &serde_json::Value) -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": {"name": "s"}, "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
        }))
        .unwrap()
    }

    fn pod(address: &str, uid: &str, conditions: &serde_json::Value) -> serde_json::Value {
        json!({"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "uid": uid}})
    }

    fn said(slices: &[EndpointSlice], port: &PortChoice) -> Vec<(String, String, Availability)> {
        let described = backends(Role::Prefill, slices, port, Some(8_998));
        let short = described.into_iter();
        short.map(|(one, availability)| (one.key.to_string(), one.authority, availability)).collect()
    }

    fn plain_port() -> serde_json::Value {
        json!([{"name": "http", "port": 8000}])
    }

    #[test]
    fn pods_are_known_by_their_uid_with_ready_ending_and_unready_told_apart() {
        let endpoints = json!([
            pod("192.0.2.1", "uid-1", &json!({"ready": true, "serving": true, "terminating": false})),
            pod("192.0.2.2", "uid-2", &json!({"ready": false, "serving": true, "terminating": true})),
            pod("192.0.2.3", "uid-3", &json!({"ready": false})),
            pod("192.0.2.4", "uid-4", &json!({})),
        ]);
        let said = said(&[slice(&plain_port(), &endpoints)], &PortChoice::Default);
        let expected = [
            ("uid-1", "192.0.2.1:8000", Availability::Ready),
            ("uid-2", "192.0.2.2:8000", Availability::Terminating),
            ("uid-3", "192.0.2.3:8000", Availability::NotReady),
            ("uid-4", "192.0.2.4:8000", Availability::Ready),
        ];
        assert_eq!(said, expected.map(|(key, name, state)| (key.to_owned(), name.to_owned(), state)));
    }

    #[test]
    fn a_watch_that_begins_anew_shows_no_empty_fleet_in_between() {
        let slice = |name: &str, uid: &str| {
            let mut slice = slice(&plain_port(), &json!([pod("192.0.2.1", uid, &json!({}))]));
            slice.metadata.name = Some(name.to_owned());
            slice
        };
        let mut slices = Slices::default();
        let uids = |slices: &Slices| -> Vec<String> {
            let described = backends(Role::Decode, slices.all(), &PortChoice::Default, None);
            described.into_iter().map(|(one, _)| one.key.to_string()).collect()
        };
        assert!(!slices.take(Event::Init));
        assert!(!slices.take(Event::InitApply(slice("a", "uid-1"))));
        assert_eq!(uids(&slices), Vec::<String>::new(), "the list is not complete");
        assert!(slices.take(Event::InitDone));
        assert!(slices.take(Event::Apply(slice("b", "uid-2"))));
        assert_eq!(uids(&slices), ["uid-1", "uid-2"]);
        // The API server was away; slice b is gone meanwhile, c is new.
        slices.take(Event::Init);
        slices.take(Event::InitApply(slice("c", "uid-3")));
        assert_eq!(uids(&slices), ["uid-1", "uid-2"]);
        slices.take(Event::InitApply(slice("a", "uid-1")));
        assert!(slices.take(Event::InitDone));
        assert_eq!(uids(&slices), ["uid-1", "uid-3"]);
        assert!(slices.take(Event::Delete(slice("a", "uid-1"))));
        assert_eq!(uids(&slices), ["uid-3"]);
    }

    #[test]
    fn prefill_pods_have_a_bootstrap_server_and_decode_pods_none() {
        let slices = [slice(&plain_port(), &json!([pod("192.0.2.1", "uid-1", &json!({}))]))];
        let prefill = backends(Role::Prefill, &slices, &PortChoice::Default, Some(8_998));
        assert_eq!(prefill[0].0.bootstrap.as_ref().unwrap().address, "http://192.0.2.1:8998");
        assert_eq!(backends(Role::Decode, &slices, &PortChoice::Default, Some(8_998))[0].0.bootstrap, None);
        assert_eq!(backends(Role::Prefill, &slices, &PortChoice::Default, None)[0].0.bootstrap, None);
    }

    #[test]
    fn the_port_is_found_by_name_by_number_or_because_it_is_the_only_one() {
        let endpoints = json!([pod("192.0.2.1", "uid-1", &json!({}))]);
        let two = json!([{"name": "metrics", "port": 9090}, {"name": "http", "port": 8000}]);
        let unnamed = json!([{"port": 7000}]);
        let first = |ports: &serde_json::Value, choice: PortChoice| {
            said(&[slice(ports, &endpoints)], &choice).first().map(|(_, authority, _)| authority.clone())
        };
        let is = |port: u16| Some(format!("192.0.2.1:{port}"));
        assert_eq!(first(&two, PortChoice::Default), is(8_000));
        assert_eq!(first(&two, PortChoice::Name("metrics".to_owned())), is(9_090));
        assert_eq!(first(&two, PortChoice::Number(8_100)), is(8_100));
        assert_eq!(first(&unnamed, PortChoice::Default), is(7_000));
        assert_eq!(first(&unnamed, PortChoice::Name("http".to_owned())), None);
        let strange = json!([{"name": "a", "port": 1}, {"name": "b", "port": 2}]);
        assert_eq!(first(&strange, PortChoice::Default), None);
    }

    #[test]
    fn a_pod_in_two_slices_counts_once_and_as_ready_if_one_says_so() {
        let ready = slice(&plain_port(), &json!([pod("192.0.2.1", "uid-1", &json!({"ready": true}))]));
        let not = slice(&plain_port(), &json!([pod("192.0.2.1", "uid-1", &json!({"ready": false}))]));
        for slices in [[ready.clone(), not.clone()], [not, ready]] {
            let said = said(&slices, &PortChoice::Default);
            assert_eq!(said.len(), 1);
            assert_eq!(said[0].2, Availability::Ready);
        }
    }

    #[test]
    fn a_pod_with_addresses_of_two_families_is_always_reached_by_the_same_one() {
        let four = slice(&plain_port(), &json!([pod("192.0.2.1", "uid-1", &json!({"ready": true}))]));
        let mut six = slice(&plain_port(), &json!([pod("2001:db8::1", "uid-1", &json!({"ready": true}))]));
        six.address_type = "IPv6".to_owned();
        for slices in [[four.clone(), six.clone()], [six, four]] {
            assert_eq!(said(&slices, &PortChoice::Default)[0].1, "192.0.2.1:8000");
        }
    }

    #[test]
    fn endpoints_that_are_no_pods_and_other_address_families_are_understood() {
        let endpoints = json!([
            {"addresses": ["2001:db8::1"]},
            {"addresses": ["engine.example"]},
            {"addresses": ["not an address"]},
            {"addresses": []},
        ]);
        let said = said(&[slice(&plain_port(), &endpoints)], &PortChoice::Default);
        let keys: Vec<&str> = said.iter().map(|(key, ..)| key.as_str()).collect();
        assert_eq!(keys, ["[2001:db8::1]:8000", "engine.example:8000"]);
        assert!(backends(Role::Decode, &[slice(&json!(null), &json!([]))], &PortChoice::Default, None).is_empty());
    }
}
