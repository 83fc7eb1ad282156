//! The original's requests: no field manager, strategic merge patches, deletes in the foreground with preconditions.

use anyhow::{Context as _, ensure};
use http::Request;
use kube::Client;
use serde_json::{Value as Json, json};

/// The namespace's objects by plain requests.
pub(super) struct Cluster {
    client: Client,
    namespace: String,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Cluster {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    fn path(&self, plural: &str, name: &str) -> String {
        let group = match plural {
            "deployments" => "/apis/apps/v1",
            "horizontalpodautoscalers" => "/apis/autoscaling/v2",
            "leases" => "/apis/coordination.k8s.io/v1",
            "scaledobjects" => "/apis/keda.sh/v1alpha1",
            _ => "/api/v1",
        };
        let name = if name.is_empty() { String::new() } else { format!("/{name}") };
        format!("{group}/namespaces/{}/{plural}{name}", self.namespace)
    }

    /// Sends; the object, or the status of a refusal.
    async fn send(&self, method: &str, path: &str, kind: &str, body: &Json) -> anyhow::Result<Result<Json, u16>> {
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body)? };
        let request = Request::builder().method(method).uri(path).header("content-type", kind).body(body)?;
        match self.client.request::<Json>(request).await {
            Ok(object) => Ok(Ok(object)),
            Err(kube::Error::Api(status)) => Ok(Err(status.code)),
            Err(error) => Err(error).with_context(|| format!("{method} {path}")),
        }
    }

    pub(super) async fn get(&self, plural: &str, name: &str) -> anyhow::Result<Option<Json>> {
        match self.send("GET", &self.path(plural, name), "application/json", &Json::Null).await? {
            Ok(object) => Ok(Some(object)),
            Err(404) => Ok(None),
            Err(code) => anyhow::bail!("GET {plural}/{name} answered {code}"),
        }
    }

    /// The status code: 201 or 409.
    pub(super) async fn create(&self, plural: &str, body: &Json) -> anyhow::Result<u16> {
        let code = self
            .send("POST", &self.path(plural, ""), "application/json", body)
            .await?
            .map_or_else(|code| code, |_| 201);
        ensure!(code == 201 || code == 409, "POST {plural} answered {code}: {body}");
        Ok(code)
    }

    /// A whole-object or metadata patch, as the Python client sends object bodies; the version in it is a precondition. A
    /// lost race is tried again with what is there then, as its next pass would.
    pub(super) async fn patch(&self, plural: &str, name: &str, body: &Json) -> anyhow::Result<()> {
        // Of custom resources servers know no strategy.
        let content = if plural == "scaledobjects" { "merge-patch" } else { "strategic-merge-patch" };
        let content = format!("application/{content}+json");
        let mut body = body.clone();
        if let Some(object) = body.as_object_mut() {
            object.remove("status");
        }
        if let Some(metadata) = body["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        for _ in 0..10 {
            match self.send("PATCH", &self.path(plural, name), &content, &body).await? {
                Ok(_) => return Ok(()),
                Err(409) => {
                    let live = self.get(plural, name).await?.context("vanished under a patch")?;
                    body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
                }
                Err(code) => anyhow::bail!("PATCH {plural}/{name} answered {code}: {body}"),
            }
        }
        anyhow::bail!("PATCH {plural}/{name} lost ten races")
    }

    pub(super) async fn replace(&self, plural: &str, name: &str, body: &Json) -> anyhow::Result<u16> {
        let sent = self.send("PUT", &self.path(plural, name), "application/json", body).await?;
        Ok(sent.map_or_else(|code| code, |_| 200))
    }

    pub(super) async fn delete(&self, plural: &str, name: &str) -> anyhow::Result<()> {
        let Some(live) = self.get(plural, name).await? else { return Ok(()) };
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground",
            "preconditions": {
                "uid": live["metadata"]["uid"], "resourceVersion": live["metadata"]["resourceVersion"],
            },
        });
        match self.send("DELETE", &self.path(plural, name), "application/json", &options).await? {
            Ok(_) | Err(404 | 409) => Ok(()),
            Err(code) => anyhow::bail!("DELETE {plural}/{name} answered {code}"),
        }
    }
}
