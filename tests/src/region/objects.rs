//! What is in a region's namespace, as plain JSON.

use std::collections::BTreeMap;

use anyhow::Context as _;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::keda::{PREFIX, scaled_object_resource};

/// Annotations that differ between two runs that ended the same way.
const PASSING_ANNOTATIONS: [&str; 5] = [
    "gco.io/leader-epoch",
    "gco.io/leader-term",
    "gco.io/lifecycle-id",
    "gco.io/region-generation",
    "deployment.kubernetes.io/revision",
];

/// Everything that can belong to endpoints of one namespace at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Deployments by name.
    pub deployments: BTreeMap<String, Value>,
    /// Services by name.
    pub services: BTreeMap<String, Value>,
    /// ReplicaSets by name.
    pub replica_sets: BTreeMap<String, Value>,
    /// Pods by name.
    pub pods: BTreeMap<String, Value>,
    /// HorizontalPodAutoscalers by name, KEDA's included.
    pub autoscalers: BTreeMap<String, Value>,
    /// ScaledObjects by name.
    pub scaled_objects: BTreeMap<String, Value>,
    /// The cluster has no ScaledObjects: KEDA is not installed.
    pub lacks_keda: bool,
}

impl Snapshot {
    /// Reads it, strongly.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn take(client: &Client, namespace: &str) -> anyhow::Result<Self> {
        let scaled_objects = scaled_objects(client, namespace).await?;
        Ok(Self {
            autoscalers: all::<HorizontalPodAutoscaler>(client, namespace).await?,
            lacks_keda: scaled_objects.is_none(),
            scaled_objects: scaled_objects.unwrap_or_default(),
            deployments: all::<Deployment>(client, namespace).await?,
            services: all::<Service>(client, namespace).await?,
            replica_sets: all::<ReplicaSet>(client, namespace).await?,
            pods: all::<Pod>(client, namespace).await?,
        })
    }

    /// What belongs to one endpoint by its names.
    #[must_use]
    pub fn of(&self, endpoint: &str) -> Self {
        let names = ["", "-canary", "-prefill", "-decode", "-proxy"].map(|suffix| format!("{endpoint}{suffix}"));
        let named = |objects: &BTreeMap<String, Value>| -> BTreeMap<String, Value> {
            objects.iter().filter(|(name, _)| names.contains(name)).map(copied).collect()
        };
        let of_keda = |name: &str| name.strip_prefix(PREFIX).is_some_and(|name| names.iter().any(|one| one == name));
        let labelled = |objects: &BTreeMap<String, Value>| -> BTreeMap<String, Value> {
            let ours = |object: &Value| names.iter().any(|name| label(object, "app") == Some(name));
            objects.iter().filter(|(_, object)| ours(object)).map(copied).collect()
        };
        Self {
            deployments: named(&self.deployments),
            services: named(&self.services),
            replica_sets: labelled(&self.replica_sets),
            pods: labelled(&self.pods),
            autoscalers: self
                .autoscalers
                .iter()
                .filter(|(name, _)| names.contains(name) || of_keda(name))
                .map(copied)
                .collect(),
            scaled_objects: named(&self.scaled_objects),
            lacks_keda: self.lacks_keda,
        }
    }

    /// Whether nothing is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { deployments, services, replica_sets, pods, autoscalers, scaled_objects, lacks_keda: _ } = self;
        [deployments, services, replica_sets, pods, autoscalers, scaled_objects].iter().all(|kind| kind.is_empty())
    }

    /// The versions of all objects: equal when nothing was written in between.
    #[must_use]
    pub fn versions(&self) -> BTreeMap<String, String> {
        let versions = |kind: &'static str, objects: &BTreeMap<String, Value>| -> Vec<(String, String)> {
            let version = |object: &Value| text(object, "/metadata/resourceVersion").unwrap_or_default().to_owned();
            objects.iter().map(|(name, object)| (format!("{kind}/{name}"), version(object))).collect()
        };
        [
            versions("deployment", &self.deployments),
            versions("service", &self.services),
            versions("replicaset", &self.replica_sets),
            versions("pod", &self.pods),
            versions("hpa", &self.autoscalers),
            versions("scaledobject", &self.scaled_objects),
        ]
        .concat()
        .into_iter()
        .collect()
    }

    /// Deployments and Services without what two runs with the same end differ in: identities, versions, times, counters
    /// and addresses; and how many pods each Deployment has.
    #[must_use]
    pub fn end_state(&self) -> Value {
        let cleaned = |objects: &BTreeMap<String, Value>| -> BTreeMap<String, Value> {
            objects.iter().map(|(name, object)| (name.clone(), without_passing_parts(object))).collect()
        };
        let mut pods: BTreeMap<String, usize> = BTreeMap::new();
        for pod in self.pods.values() {
            *pods.entry(label(pod, "app").unwrap_or_default().to_owned()).or_default() += 1;
        }
        serde_json::json!({
            "deployments": cleaned(&self.deployments),
            "services": cleaned(&self.services),
            "autoscalers": cleaned(&self.autoscalers),
            "scaled_objects": cleaned(&self.scaled_objects),
            "pods": pods,
        })
    }
}

fn copied((name, object): (&String, &Value)) -> (String, Value) {
    (name.clone(), object.clone())
}

async fn all<K>(client: &Client, namespace: &str) -> anyhow::Result<BTreeMap<String, Value>>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
    K::DynamicType: Default,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let list =
        api.list(&ListParams::default()).await.with_context(|| format!("listing every {kind} of {namespace}"))?;
    let named = |object: K| {
        let name = object.meta().name.clone().unwrap_or_default();
        Ok((name, serde_json::to_value(object)?))
    };
    list.items.into_iter().map(named).collect()
}

/// ScaledObjects by name; `None` where the cluster has no such kind.
async fn scaled_objects(client: &Client, namespace: &str) -> anyhow::Result<Option<BTreeMap<String, Value>>> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &scaled_object_resource());
    match api.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error).context("listing ScaledObjects"),
        Ok(list) => {
            let named = |object: DynamicObject| {
                Ok((object.metadata.name.clone().unwrap_or_default(), serde_json::to_value(object)?))
            };
            list.items.into_iter().map(named).collect::<anyhow::Result<_>>().map(Some)
        }
    }
}

/// The text at a JSON pointer.
#[must_use]
pub fn text<'v>(object: &'v Value, pointer: &str) -> Option<&'v str> {
    object.pointer(pointer)?.as_str()
}

/// The number at a JSON pointer; Kubernetes leaves counters of zero out.
#[must_use]
pub fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// A label's value.
#[must_use]
pub fn label<'v>(object: &'v Value, name: &str) -> Option<&'v str> {
    object.get("metadata")?.get("labels")?.get(name)?.as_str()
}

/// An annotation's value.
#[must_use]
pub fn annotation<'v>(object: &'v Value, name: &str) -> Option<&'v str> {
    object.get("metadata")?.get("annotations")?.get(name)?.as_str()
}

/// The container called `inference` of a Deployment, or an empty value.
#[must_use]
pub fn model_container(deployment: &Value) -> Value {
    let containers = deployment.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    let named = |container: &&Value| text(container, "/name") == Some("inference");
    containers.and_then(|containers| containers.iter().find(named)).cloned().unwrap_or_default()
}

/// The value of an environment variable of a container.
#[must_use]
pub fn variable<'v>(container: &'v Value, name: &str) -> Option<&'v str> {
    let variables = container.get("env")?.as_array()?;
    variables.iter().find(|entry| text(entry, "/name") == Some(name)).and_then(|entry| text(entry, "/value"))
}

/// Whether a pod is Ready and stays.
#[must_use]
pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    let ready =
        |condition: &Value| text(condition, "/type") == Some("Ready") && text(condition, "/status") == Some("True");
    pod.pointer("/metadata/deletionTimestamp").is_none() && conditions.is_some_and(|all| all.iter().any(ready))
}

fn without_passing_parts(object: &Value) -> Value {
    let mut object = object.clone();
    let Some(parts) = object.as_object_mut() else { return object };
    parts.remove("status");
    if let Some(metadata) = parts.get_mut("metadata").and_then(Value::as_object_mut) {
        for passing in ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "namespace"] {
            metadata.remove(passing);
        }
        remove_passing_annotations(metadata);
    }
    if let Some(spec) = parts.get_mut("spec").and_then(Value::as_object_mut) {
        for passing in ["clusterIP", "clusterIPs"] {
            spec.remove(passing);
        }
        let template = spec.get_mut("template").and_then(|template| template.get_mut("metadata"));
        if let Some(metadata) = template.and_then(Value::as_object_mut) {
            remove_passing_annotations(metadata);
        }
    }
    object
}

fn remove_passing_annotations(metadata: &mut serde_json::Map<String, Value>) {
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        for passing in PASSING_ANNOTATIONS {
            annotations.remove(passing);
        }
    }
}

/// Every place at which two values differ, with what stands there.
#[must_use]
pub fn differences(one: &Value, other: &Value) -> Vec<String> {
    fn walk(path: &str, one: &Value, other: &Value, found: &mut Vec<String>) {
        match (one, other) {
            (Value::Object(one), Value::Object(other)) => {
                let names: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
                for name in names {
                    let (one, other) = (one.get(name), other.get(name));
                    walk(&format!("{path}/{name}"), one.unwrap_or(&Value::Null), other.unwrap_or(&Value::Null), found);
                }
            }
            (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
                for (index, (one, other)) in one.iter().zip(other).enumerate() {
                    walk(&format!("{path}/{index}"), one, other, found);
                }
            }
            _ if one == other => {}
            _ => found.push(format!("{path}: {one} and {other}")),
        }
    }
    let mut found = Vec::new();
    walk("", one, other, &mut found);
    found
}
