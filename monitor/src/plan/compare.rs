//! What differs between a desired object and the live one, in the fields that we own.
//!
//! On metadata, labels and annotations of others are theirs. In the spec, everything is ours: what we render must be there,
//! and what we do not render must not be, unless it is a value that the server fills in by itself. Those are a short,
//! measured table (`is_server_default`), because tolerating every extra field would also tolerate an edit by hand. A
//! field that a future server fills in too shows as a difference that a write does not mend; the plan notices that and stops
//! writing.

use serde_json::Value;

use crate::object::{Kind, quantity};

/// What is different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Another value.
    Changed,
    /// Desired and not there.
    Missing,
    /// There and not desired.
    Unexpected,
    /// The same entries in another order.
    Reordered,
}

/// One difference. Never holds a value: values of environment variables may be secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Field, as a person would write it: `spec.template.spec.containers[inference].env.MODEL`.
    pub field: String,
    /// What is different.
    pub change: Change,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = match self.change {
            Change::Changed => "changed",
            Change::Missing => "missing",
            Change::Unexpected => "unexpected",
            Change::Reordered => "order changed",
        };
        write!(formatter, "{}: {word}", self.field)
    }
}

impl Difference {
    /// Whether it is in the pod template.
    #[must_use]
    pub fn is_of_template(&self) -> bool {
        self.field.strip_prefix("spec.template").is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// All differences, in the order of the desired fields.
#[must_use]
pub fn differences(kind: Kind, desired: &Value, live: &Value) -> Vec<Difference> {
    let mut found = Differences { kind, list: Vec::new() };
    for part in ["labels", "annotations"] {
        let of = |body: &Value| body.get("metadata").and_then(|metadata| metadata.get(part)).cloned();
        let live = of(live).unwrap_or_default();
        for (name, value) in of(desired).as_ref().and_then(Value::as_object).into_iter().flatten() {
            let place = Place::root("metadata").field(part).field(name);
            match live.get(name) {
                None => found.add(&place, Change::Missing),
                Some(live) if live != value => found.add(&place, Change::Changed),
                Some(_) => {}
            }
        }
    }
    let spec = |body| Value::get(body, "spec").unwrap_or(&Value::Null);
    found.compare(&Place::root("spec"), spec(desired), spec(live));
    found.list
}

/// Where we are: for people, and as a pattern for the tables (`[]` for any element).
#[derive(Clone)]
struct Place {
    shown: String,
    pattern: String,
}

impl Place {
    fn root(name: &str) -> Self {
        Self { shown: name.to_owned(), pattern: name.to_owned() }
    }

    fn field(&self, name: &str) -> Self {
        Self { shown: format!("{}.{name}", self.shown), pattern: format!("{}.{name}", self.pattern) }
    }

    /// An element of a list; environment variables read like fields.
    fn element(&self, key: &str) -> Self {
        let shown = if self.pattern.ends_with(".env") {
            format!("{}.{key}", self.shown)
        } else {
            format!("{}[{key}]", self.shown)
        };
        Self { shown, pattern: format!("{}[]", self.pattern) }
    }

    /// The pattern without the pod spec's path, when inside a pod spec.
    fn in_pod(&self) -> Option<&str> {
        self.pattern.strip_prefix("spec.template.spec.")
    }

    /// The pattern without the path of a container, main or init.
    fn in_container(&self) -> Option<&str> {
        let rest = self.in_pod()?;
        rest.strip_prefix("containers[].").or_else(|| rest.strip_prefix("initContainers[]."))
    }

    /// Whether values here are quantities.
    fn is_quantity(&self) -> bool {
        let of_resources =
            |rest: &str| rest.starts_with("resources.requests.") || rest.starts_with("resources.limits.");
        self.in_container().is_some_and(of_resources) || self.in_pod() == Some("volumes[].emptyDir.sizeLimit")
    }

    /// The field that tells this list's elements apart, when one does.
    fn element_key(&self) -> Option<&'static str> {
        match self.pattern.rsplit('.').next()? {
            "containers" | "initContainers" | "env" | "volumes" => Some("name"),
            "volumeMounts" => Some("mountPath"),
            "ports" => Some(if self.in_pod().is_some() { "containerPort" } else { "port" }),
            "topologySpreadConstraints" => Some("topologyKey"),
            "tolerations" => Some("key"),
            _ => None,
        }
    }
}

struct Differences {
    kind: Kind,
    list: Vec<Difference>,
}

impl Differences {
    fn add(&mut self, place: &Place, change: Change) {
        self.list.push(Difference { field: place.shown.clone(), change });
    }

    fn compare(&mut self, place: &Place, desired: &Value, live: &Value) {
        match (desired, live) {
            (Value::Object(desired_map), Value::Object(live_map)) => {
                for (name, value) in desired_map.iter().filter(|(_, value)| !value.is_null()) {
                    let place = place.field(name);
                    match live_map.get(name).filter(|value| !value.is_null()) {
                        Some(live_value) => self.compare(&place, value, live_value),
                        None if is_left_out_when_zero(self.kind, &place, value) => {}
                        None => self.add(&place, Change::Missing),
                    }
                }
                for (name, value) in live_map.iter().filter(|(_, value)| !value.is_null()) {
                    let place = place.field(name);
                    let asked = desired_map.get(name).is_some_and(|value| !value.is_null());
                    if !asked && !is_server_default(self.kind, &place, value, live) {
                        self.add(&place, Change::Unexpected);
                    }
                }
            }
            (Value::Array(desired_list), Value::Array(live_list)) => {
                self.compare_lists(place, desired_list, live_list);
            }
            (Value::String(one), Value::String(other)) if place.is_quantity() => {
                if !quantity::same(one, other) {
                    self.add(place, Change::Changed);
                }
            }
            _ if desired == live => {}
            _ => self.add(place, Change::Changed),
        }
    }

    fn compare_lists(&mut self, place: &Place, desired: &[Value], live: &[Value]) {
        let keyed = place.element_key().and_then(|key| Some((keys(desired, key)?, keys(live, key)?)));
        let Some((desired_keys, live_keys)) = keyed else {
            // Arguments, commands, capabilities: an element has no name, so the list is one value.
            if desired.len() != live.len() {
                return self.add(place, Change::Changed);
            }
            for (index, (desired, live)) in desired.iter().zip(live).enumerate() {
                if desired.is_object() {
                    self.compare(&place.element(&index.to_string()), desired, live);
                } else if desired != live {
                    return self.add(place, Change::Changed);
                }
            }
            return;
        };
        let before = self.list.len();
        for (key, desired) in desired_keys.iter().zip(desired) {
            let element = place.element(key);
            match live_keys.iter().position(|live_key| live_key == key) {
                None => self.add(&element, Change::Missing),
                // Not below the variable: whether a value or its source changed is nobody's business in a log.
                Some(index) if place.pattern.ends_with(".env") => {
                    if !same_variable(desired, &live[index]) {
                        self.add(&element, Change::Changed);
                    }
                }
                Some(index) => self.compare(&element, desired, &live[index]),
            }
        }
        for key in live_keys.iter().filter(|key| !desired_keys.contains(key)) {
            self.add(&place.element(key), Change::Unexpected);
        }
        if self.list.len() == before && desired_keys != live_keys {
            self.add(place, Change::Reordered);
        }
    }
}

/// The elements' keys as text; `None` when one lacks it or two share it: then only the position tells them apart.
fn keys(list: &[Value], key: &str) -> Option<Vec<String>> {
    let mut keys = Vec::with_capacity(list.len());
    for element in list {
        let text = match element.get(key)? {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if keys.contains(&text) {
            return None;
        }
        keys.push(text);
    }
    Some(keys)
}

/// An empty value and none are the same variable: the server leaves an empty one out.
fn same_variable(one: &Value, other: &Value) -> bool {
    let stripped = |variable: &Value| {
        let mut variable = variable.clone();
        if let Some(map) = variable.as_object_mut() {
            map.retain(|_, value| !value.is_null() && value.as_str() != Some(""));
        }
        variable
    };
    stripped(one) == stripped(other)
}

/// Rendered values that the server does not store: the zero of a plain number, and empty lists and maps.
fn is_left_out_when_zero(kind: Kind, place: &Place, desired: &Value) -> bool {
    match desired {
        Value::Number(_) => {
            kind == Kind::Deployment && place.pattern == "spec.minReadySeconds" && desired.as_i64() == Some(0)
        }
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Values that the server (1.35, measured) puts where we render nothing. `parent` is the
/// live map that holds the value.
fn is_server_default(kind: Kind, place: &Place, value: &Value, parent: &Value) -> bool {
    let is = |text: &str| value.as_str() == Some(text);
    let number = |number: i64| value.as_i64() == Some(number);
    let empty = value.as_object().is_some_and(serde_json::Map::is_empty);
    match kind {
        Kind::Deployment => {
            if let Some(field) = place.in_container() {
                return match field {
                    "terminationMessagePath" => is("/dev/termination-log"),
                    "terminationMessagePolicy" => is("File"),
                    "resources" => empty,
                    "ports[].protocol" => is("TCP"),
                    _ => false,
                };
            }
            match place.in_pod() {
                Some("restartPolicy") => is("Always"),
                Some("dnsPolicy") => is("ClusterFirst"),
                Some("schedulerName") => is("default-scheduler"),
                Some("terminationGracePeriodSeconds") => number(30),
                Some("securityContext") => empty,
                // The old name of the field; the server keeps it equal.
                Some("serviceAccount") => Some(value) == parent.get("serviceAccountName"),
                Some("volumes[].configMap.defaultMode" | "volumes[].secret.defaultMode") => number(420),
                Some(_) => false,
                None => match place.pattern.as_str() {
                    "spec.replicas" => number(1),
                    "spec.revisionHistoryLimit" => number(10),
                    "spec.progressDeadlineSeconds" => number(600),
                    _ => false,
                },
            }
        }
        Kind::Service => match place.pattern.as_str() {
            // The address stays with the object, whatever it is.
            "spec.clusterIP" | "spec.clusterIPs" | "spec.ipFamilies" | "spec.ipFamilyPolicy" => true,
            "spec.type" => is("ClusterIP"),
            "spec.sessionAffinity" => is("None"),
            "spec.internalTrafficPolicy" => is("Cluster"),
            "spec.ports[].protocol" => is("TCP"),
            "spec.ports[].targetPort" => Some(value) == parent.get("port"),
            _ => false,
        },
        _ => false,
    }
}
