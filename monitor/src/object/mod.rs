//! Objects as the rooms hand them on: desired, observed, and the facts of pods.

pub mod quantity;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

/// Name of the container that serves the model, in every pod of a model server (the wire contract, C.12.1).
pub const MODEL_CONTAINER: &str = "inference";

/// Every kind that can belong to an endpoint (the wire contract, C.9). Ordered as they are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `keda.sh/v1alpha1` ScaledObject. KEDA is optional in a cluster.
    ScaledObject,
    /// `autoscaling/v2` HorizontalPodAutoscaler.
    HorizontalPodAutoscaler,
    /// `apps/v1` Deployment.
    Deployment,
    /// `v1` Service.
    Service,
    /// `v1` ConfigMap: deleted with an endpoint, not rendered yet.
    ConfigMap,
    /// `networking.k8s.io/v1` Ingress: legacy, only deleted.
    Ingress,
    /// `gateway.networking.k8s.io/v1` HTTPRoute: legacy, only deleted.
    HttpRoute,
    /// `v1` Secret: never watched or listed; deleted with an endpoint.
    Secret,
}

impl Kind {
    /// The word of status texts, lower case (`deployment`, `scaledobject` …).
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::ScaledObject => "scaledobject",
            Self::HorizontalPodAutoscaler => "hpa",
            Self::Deployment => "deployment",
            Self::Service => "service",
            Self::ConfigMap => "configmap",
            Self::Ingress => "ingress",
            Self::HttpRoute => "httproute",
            Self::Secret => "secret",
        }
    }

    /// Kinds that are watched and rendered so far.
    pub const WATCHED: [Self; 4] = [Self::ScaledObject, Self::HorizontalPodAutoscaler, Self::Deployment, Self::Service];

    /// Whether objects of this kind set the replica count of the Deployment that has their name.
    #[must_use]
    pub fn is_autoscaler(self) -> bool {
        matches!(self, Self::ScaledObject | Self::HorizontalPodAutoscaler)
    }

    /// Whether a cluster may lack this kind.
    #[must_use]
    pub fn is_optional(self) -> bool {
        matches!(self, Self::ScaledObject | Self::HttpRoute)
    }
}

/// An object's place in the endpoint's namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Kind.
    pub kind: Kind,
    /// Name.
    pub name: String,
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.kind.word(), self.name)
    }
}

/// One object that should exist, complete but for server defaults, leader marks and resourceVersion.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredObject {
    /// Place.
    pub key: ObjectKey,
    /// The body that is sent: apiVersion, kind, metadata (name, namespace, labels, annotations) and spec.
    pub body: Value,
    /// For Deployments: hash of the row's inputs of the pod template.
    pub input_hash: Option<String>,
    /// For Deployments: `spec.replicas` belongs to an autoscaler; the body's is only what to start from none with.
    pub autoscaled: bool,
}

/// Every object that should exist for one endpoint, in apply order. Nothing else of ours should exist for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredSet {
    /// In apply order.
    pub objects: Vec<DesiredObject>,
}

/// One object as the cache last saw it (or as our own write was answered, if that is newer).
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedObject {
    /// Place.
    pub key: ObjectKey,
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.resourceVersion`
    pub resource_version: String,
    /// Whether `metadata.deletionTimestamp` is set.
    pub terminating: bool,
    /// The whole object without managedFields.
    pub body: Arc<Value>,
}

impl ObservedObject {
    /// An annotation's value.
    #[must_use]
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.body.get("metadata")?.get("annotations")?.get(name)?.as_str()
    }

    /// A label's value.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.body.get("metadata")?.get("labels")?.get(name)?.as_str()
    }

    /// Whether this is the HorizontalPodAutoscaler that KEDA made for a ScaledObject. KEDA copies the ScaledObject's labels
    /// and annotations to it, so that only its controller tells it from one of ours.
    #[must_use]
    pub fn is_of_keda(&self) -> bool {
        let owners = self.body.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        let is_keda = |owner: &Value| {
            let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default();
            owner.get("controller").and_then(Value::as_bool) == Some(true)
                && text("kind") == "ScaledObject"
                && text("apiVersion").starts_with("keda.sh/")
        };
        self.key.kind == Kind::HorizontalPodAutoscaler && owners.is_some_and(|owners| owners.iter().any(is_keda))
    }
}

/// The name of the Deployment whose count an autoscaler of this name sets.
#[must_use]
pub fn target_of(autoscaler: &str) -> &str {
    autoscaler.strip_prefix(gco_store::name::KEDA_PREFIX).unwrap_or(autoscaler)
}

/// A port of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedPort {
    /// Its name; the original's ports have none.
    pub name: Option<String>,
    /// `containerPort`
    pub number: u64,
}

/// The container `inference` of a pod spec, else its first one.
#[must_use]
pub fn model_container(pod_spec: &Value) -> Option<&Value> {
    let containers = pod_spec.get("containers")?.as_array()?;
    let named = |container: &&Value| container.get("name").and_then(Value::as_str) == Some(MODEL_CONTAINER);
    containers.iter().find(named).or_else(|| containers.first())
}

/// The model container's first port.
#[must_use]
pub fn model_port(pod_spec: &Value) -> Option<ObservedPort> {
    let port = model_container(pod_spec)?.get("ports")?.get(0)?;
    let name = port.get("name").and_then(Value::as_str).map(str::to_owned);
    Some(ObservedPort { name, number: port.get("containerPort")?.as_u64()? })
}

/// What matters of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedPod {
    /// Name.
    pub name: String,
    /// Label `app`: the Deployment's name.
    pub app: String,
    /// Condition `Ready` is true and it is not terminating.
    pub ready: bool,
    /// Has a deletionTimestamp.
    pub terminating: bool,
    /// Ended for good (evicted, for example) and stays as an object only.
    pub ended: bool,
    /// `gco.io/input-hash` of the pod.
    pub input_hash: Option<String>,
    /// Label `pod-template-hash`: tells which ReplicaSet it is of.
    pub template: Option<String>,
    /// The model container's first port, if it has one.
    pub port: Option<ObservedPort>,
    /// `gco.io/lifecycle-id` of the pod.
    pub lifecycle_id: Option<String>,
    /// Why it is not ready: CamelCase reason.
    pub reason: Option<String>,
    /// Bounded words of scheduler, kubelet or container.
    pub message: Option<String>,
    /// Exit code of the last crash.
    pub exit_code: Option<i64>,
    /// Containers' restarts, summed.
    pub restarts: u32,
}

/// What matters of one ReplicaSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedReplicaSet {
    /// Name.
    pub name: String,
    /// Label `app`.
    pub app: String,
    /// Annotation `deployment.kubernetes.io/revision`.
    pub revision: u64,
    /// `gco.io/input-hash` of its template.
    pub input_hash: Option<String>,
    /// Label `pod-template-hash`.
    pub template: Option<String>,
    /// `spec.replicas`
    pub replicas: u32,
    /// `status.readyReplicas`
    pub ready: u32,
}

/// Everything of one endpoint as last seen. Only a complete, synced cache hands one out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Objects with one of the endpoint's inventory names, whoever's they are.
    pub objects: BTreeMap<ObjectKey, ObservedObject>,
    /// Pods whose `app` is one of the endpoint's Deployment names.
    pub pods: Vec<ObservedPod>,
    /// ReplicaSets of the same.
    pub replica_sets: Vec<ObservedReplicaSet>,
    /// Optional kinds that this cluster does not have.
    pub missing_kinds: BTreeSet<Kind>,
}
