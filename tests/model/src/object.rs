//! The kinds that the model knows, and what the server does with an object of each before it is stored.

use serde_json::{Map, Value, json};

/// When the server raises `metadata.generation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// The kind has none.
    Never,
    /// With every change of the spec.
    Spec,
    /// With every change of the spec or of an annotation (Deployment).
    SpecOrAnnotations,
}

/// One kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version.
    pub version: &'static str,
    /// Plural, as in paths.
    pub plural: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// When the generation is raised.
    pub generation: Generation,
    /// Status is written by its own sub-resource and ignored elsewhere.
    pub has_status: bool,
    /// A PUT of an absent name creates.
    pub put_creates: bool,
    /// A PUT without version is refused.
    pub put_needs_version: bool,
    /// Installed by somebody (KEDA, the Gateway API): the model can be without it.
    pub optional: bool,
}

const BASE: Resource = Resource {
    group: "",
    version: "v1",
    plural: "",
    kind: "",
    generation: Generation::Never,
    has_status: false,
    put_creates: false,
    put_needs_version: false,
    optional: false,
};

/// Every kind that the model knows.
pub static RESOURCES: [Resource; 17] = [
    Resource { plural: "configmaps", kind: "ConfigMap", ..BASE },
    Resource { plural: "secrets", kind: "Secret", ..BASE },
    Resource { plural: "services", kind: "Service", has_status: true, put_creates: true, ..BASE },
    Resource { plural: "pods", kind: "Pod", has_status: true, ..BASE },
    Resource { plural: "serviceaccounts", kind: "ServiceAccount", ..BASE },
    Resource { plural: "events", kind: "Event", put_creates: true, ..BASE },
    Resource {
        group: "apps",
        plural: "deployments",
        kind: "Deployment",
        generation: Generation::SpecOrAnnotations,
        has_status: true,
        ..BASE
    },
    Resource {
        group: "apps",
        plural: "replicasets",
        kind: "ReplicaSet",
        generation: Generation::Spec,
        has_status: true,
        ..BASE
    },
    Resource {
        group: "autoscaling",
        version: "v2",
        plural: "horizontalpodautoscalers",
        kind: "HorizontalPodAutoscaler",
        has_status: true,
        ..BASE
    },
    Resource {
        group: "policy",
        plural: "poddisruptionbudgets",
        kind: "PodDisruptionBudget",
        generation: Generation::Spec,
        has_status: true,
        put_needs_version: true,
        ..BASE
    },
    Resource {
        group: "networking.k8s.io",
        plural: "ingresses",
        kind: "Ingress",
        generation: Generation::Spec,
        has_status: true,
        ..BASE
    },
    Resource {
        group: "networking.k8s.io",
        plural: "networkpolicies",
        kind: "NetworkPolicy",
        generation: Generation::Spec,
        ..BASE
    },
    Resource { group: "discovery.k8s.io", plural: "endpointslices", kind: "EndpointSlice", ..BASE },
    Resource {
        group: "coordination.k8s.io",
        plural: "leases",
        kind: "Lease",
        put_creates: true,
        put_needs_version: true,
        ..BASE
    },
    Resource { group: "events.k8s.io", plural: "events", kind: "Event", put_creates: true, ..BASE },
    Resource {
        group: "keda.sh",
        version: "v1alpha1",
        plural: "scaledobjects",
        kind: "ScaledObject",
        generation: Generation::Spec,
        has_status: true,
        put_needs_version: true,
        optional: true,
        ..BASE
    },
    Resource {
        group: "gateway.networking.k8s.io",
        plural: "httproutes",
        kind: "HTTPRoute",
        generation: Generation::Spec,
        has_status: true,
        put_needs_version: true,
        optional: true,
        ..BASE
    },
];

impl Resource {
    /// The kind with this plural in the core group, `apps` or whichever has it first.
    ///
    /// # Panics
    /// When the model knows no such kind: a mistake in a suite.
    #[must_use]
    pub fn of(plural: &str) -> &'static Self {
        RESOURCES
            .iter()
            .find(|one| one.plural == plural)
            .unwrap_or_else(|| panic!("the model knows no resource called {plural}"))
    }

    /// `apps/v1`
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `deployments.apps`, as messages call it.
    #[must_use]
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }
}

/// The text at a pointer.
#[must_use]
pub fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The whole number at a pointer; 0 when there is none.
#[must_use]
pub fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// An entry of `metadata.labels`.
#[must_use]
pub fn label<'v>(object: &'v Value, name: &str) -> Option<&'v str> {
    object.get("metadata")?.get("labels")?.get(name)?.as_str()
}

/// An entry of `metadata.annotations`.
#[must_use]
pub fn annotation<'v>(object: &'v Value, name: &str) -> Option<&'v str> {
    object.get("metadata")?.get("annotations")?.get(name)?.as_str()
}

/// Whether deletion was asked for.
#[must_use]
pub fn is_terminating(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

/// The entries of `metadata.finalizers`.
#[must_use]
pub fn finalizers(object: &Value) -> Vec<&str> {
    let all = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    all.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Whether a pod is Ready.
#[must_use]
pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|one| text(one, "/type") == "Ready" && text(one, "/status") == "True")
}

/// The map at a place inside of an object, made where there is none.
pub fn map_at<'v>(object: &'v mut Value, path: &[&str]) -> &'v mut Map<String, Value> {
    let mut place = object;
    for part in path {
        if !place.get(part).is_some_and(Value::is_object) {
            place[*part] = json!({});
        }
        place = &mut place[*part];
    }
    if !place.is_object() {
        *place = json!({});
    }
    match place {
        Value::Object(map) => map,
        // It was made an object just above.
        _ => unreachable!("an object"),
    }
}
