//! An object of each kind that the monitor's Role writes, as small as the server accepts it.

use anyhow::{Context as _, ensure};
use gco_bed::wait;
use gco_local::platform;
use kube::Client;
use serde_json::{Value, json};

use super::NAMESPACE;
use crate::region::BOUND;
use crate::rights;

/// A kind, and what an object of it holds besides metadata.
#[derive(Clone, Debug)]
pub struct Target {
    /// Plural with group, as in the Role.
    pub resource: &'static str,
    prefix: &'static str,
    api_version: &'static str,
    kind: &'static str,
    parts: fn(&str) -> Value,
}

/// Every kind that there is a sample of.
const SAMPLES: [Target; 10] = [
    Target {
        resource: "deployments.apps",
        prefix: "/apis/apps/v1",
        api_version: "apps/v1",
        kind: "Deployment",
        parts: |name| {
            json!({"spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {"containers": [{"name": "inference", "image": "example.invalid/engine:1"}]},
                },
            }})
        },
    },
    Target {
        resource: "services",
        prefix: "/api/v1",
        api_version: "v1",
        kind: "Service",
        parts: |_| json!({"spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 80}]}}),
    },
    Target {
        resource: "configmaps",
        prefix: "/api/v1",
        api_version: "v1",
        kind: "ConfigMap",
        parts: |_| json!({"data": {"key": "value"}}),
    },
    Target {
        resource: "secrets",
        prefix: "/api/v1",
        api_version: "v1",
        kind: "Secret",
        parts: |_| json!({"stringData": {"key": "value"}}),
    },
    Target {
        resource: "horizontalpodautoscalers.autoscaling",
        prefix: "/apis/autoscaling/v2",
        api_version: "autoscaling/v2",
        kind: "HorizontalPodAutoscaler",
        parts: |_| {
            json!({"spec": {
                "minReplicas": 1, "maxReplicas": 2,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "nothing"},
            }})
        },
    },
    Target {
        resource: "scaledobjects.keda.sh",
        prefix: "/apis/keda.sh/v1alpha1",
        api_version: "keda.sh/v1alpha1",
        kind: "ScaledObject",
        parts: |_| json!({"spec": {"scaleTargetRef": {"name": "nothing"}}}),
    },
    Target {
        resource: "ingresses.networking.k8s.io",
        prefix: "/apis/networking.k8s.io/v1",
        api_version: "networking.k8s.io/v1",
        kind: "Ingress",
        parts: |_| json!({"spec": {"defaultBackend": {"service": {"name": "nothing", "port": {"number": 80}}}}}),
    },
    Target {
        resource: "httproutes.gateway.networking.k8s.io",
        prefix: "/apis/gateway.networking.k8s.io/v1",
        api_version: "gateway.networking.k8s.io/v1",
        kind: "HTTPRoute",
        parts: |_| json!({"spec": {}}),
    },
    Target {
        resource: "poddisruptionbudgets.policy",
        prefix: "/apis/policy/v1",
        api_version: "policy/v1",
        kind: "PodDisruptionBudget",
        parts: |name| json!({"spec": {"minAvailable": 0, "selector": {"matchLabels": {"app": name}}}}),
    },
    Target {
        resource: "networkpolicies.networking.k8s.io",
        prefix: "/apis/networking.k8s.io/v1",
        api_version: "networking.k8s.io/v1",
        kind: "NetworkPolicy",
        parts: |name| json!({"spec": {"podSelector": {"matchLabels": {"app": name}}}}),
    },
];

impl Target {
    /// The path of the kind's objects.
    #[must_use]
    pub fn collection(&self) -> String {
        let plural = self.resource.split('.').next().unwrap_or_default();
        format!("{}/namespaces/{NAMESPACE}/{plural}", self.prefix)
    }

    /// The path of one.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.collection())
    }

    /// An object of ours under a term.
    #[must_use]
    pub fn object(&self, name: &str, term: u64, mark: &str) -> Value {
        let mut object = (self.parts)(name);
        object["apiVersion"] = json!(self.api_version);
        object["kind"] = json!(self.kind);
        object["metadata"] = json!({
            "name": name, "namespace": NAMESPACE,
            "labels": {"app": name, "project": "gco", "gco.io/type": "inference"},
            "annotations": {"gco.io/leader-term": term.to_string(), "suite/mark": mark},
        });
        object
    }

    /// The kind with this plural and group.
    ///
    /// # Errors
    /// When there is no sample of it.
    pub fn named(resource: &str) -> anyhow::Result<Self> {
        let found = SAMPLES.into_iter().find(|target| target.resource == resource);
        found.with_context(|| format!("the Role writes {resource}, of which there is no sample: add one"))
    }
}

/// What a leader does to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deed {
    /// POST.
    Create,
    /// PUT of the whole object with uid and version.
    Update,
    /// Merge patch of annotations with uid and version.
    Stamp,
    /// Stamp, then delete of the stamped version.
    Delete,
}

impl Deed {
    /// The letter in names of objects that it is done to.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Create => 'c',
            Self::Update => 'u',
            Self::Stamp => 's',
            Self::Delete => 'd',
        }
    }
}

/// Every verb that writes, on every kind, as the Role grants them; the Lease and Events excepted.
///
/// # Errors
/// When the Role cannot be read, or grants a kind that there is no sample of.
pub fn granted_deeds() -> anyhow::Result<Vec<(Deed, Target)>> {
    let mut deeds = Vec::new();
    for right in rights::granted()? {
        if right.resource.starts_with("leases.") || right.resource.starts_with("events") {
            continue;
        }
        let deed = match right.verb.as_str() {
            "create" => Deed::Create,
            "update" => Deed::Update,
            "patch" => Deed::Stamp,
            "delete" => Deed::Delete,
            _ => continue,
        };
        deeds.push((deed, Target::named(&right.resource)?));
    }
    ensure!(deeds.len() >= 20, "the Role grants few writes: {deeds:?}");
    Ok(deeds)
}

/// Makes the kinds that are no part of Kubernetes known to the server, as far as these suites need them.
///
/// # Errors
/// When the server refuses.
pub async fn make_optional_kinds(client: &Client) -> anyhow::Result<()> {
    let optional = [
        ("keda.sh", "v1alpha1", "ScaledObject", "scaledobject"),
        ("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproute"),
    ];
    for (group, version, kind, singular) in optional {
        let plural = format!("{singular}s");
        let mut definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}")},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular},
                "versions": [{
                    "name": version, "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                }],
            },
        });
        if group.ends_with(".k8s.io") {
            // The group is protected: a definition in it names where it was agreed upon.
            definition["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, of a test"});
        }
        platform::apply(client, &definition).await?;
        let path = platform::path(&definition)?;
        wait::until(&format!("{kind} to be served"), BOUND, || async {
            let request = http::Request::get(&path).body(Vec::new()).map_err(|error| error.to_string())?;
            let stored: Value = client.request(request).await.map_err(|error| error.to_string())?;
            let conditions = stored["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is = |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
            if conditions.iter().any(is) { Ok(()) } else { Err(format!("{conditions:?}")) }
        })
        .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_write_of_the_role_has_a_sample() {
        let deeds = granted_deeds().unwrap();
        for deed in [Deed::Create, Deed::Update, Deed::Stamp, Deed::Delete] {
            assert!(
                deeds.iter().any(|(one, target)| *one == deed && target.resource == "deployments.apps"),
                "{deed:?}"
            );
        }
        assert_eq!(deeds[0].1.path("x").matches("/namespaces/gco-inference/").count(), 1);
    }
}
