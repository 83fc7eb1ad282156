//! Requests to one API server as one account; a refusal is an answer like any other.

use anyhow::Context as _;
use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::NAMESPACE;
use super::kinds::Target;

/// What a server answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// The body; null when it was no JSON.
    pub body: Value,
}

impl Reply {
    /// Whether it did what was asked.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether an admission policy of this name refused it.
    #[must_use]
    pub fn is_refused_by(&self, policy: &str) -> bool {
        !self.is_success() && self.message().contains(&format!("ValidatingAdmissionPolicy '{policy}'"))
    }

    /// What the server said.
    #[must_use]
    pub fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    /// `metadata.resourceVersion` as the number that it is.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.body["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// `metadata.uid`
    #[must_use]
    pub fn uid(&self) -> String {
        self.body["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
    }

    /// Whether the object waits for its end.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.body["metadata"]["deletionTimestamp"].is_string()
    }
}

/// An account at one API server.
#[derive(Clone)]
pub struct Caller {
    client: Client,
    impersonated: Vec<(&'static str, String)>,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Caller").field("impersonated", &self.impersonated).finish_non_exhaustive()
    }
}

impl Caller {
    /// Whoever the client is.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, impersonated: Vec::new() }
    }

    /// Somebody else, whom the client's account may speak for.
    #[must_use]
    pub fn speaking_for(client: Client, user: &str, groups: &[&str]) -> Self {
        let mut impersonated = vec![("Impersonate-User", user.to_owned())];
        impersonated.extend(groups.iter().map(|group| ("Impersonate-Group", (*group).to_owned())));
        Self { client, impersonated }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn send(&self, method: Method, path: &str, body: Option<(&str, &Value)>) -> anyhow::Result<Reply> {
        let mut request = Request::builder().method(method.clone()).uri(path);
        for (name, value) in &self.impersonated {
            request = request.header(*name, value);
        }
        let body = match body {
            None => Body::empty(),
            Some((content_type, body)) => {
                request = request.header("content-type", content_type);
                Body::from(serde_json::to_vec(body)?)
            }
        };
        let context = || format!("{method} {path}");
        let answer = self.client.send(request.body(body)?).await.with_context(context)?;
        let status = answer.status().as_u16();
        let bytes = answer.into_body().collect_bytes().await.with_context(context)?;
        Ok(Reply { status, body: serde_json::from_slice(&bytes).unwrap_or_default() })
    }

    /// GET of an object.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&self, target: &Target, name: &str) -> anyhow::Result<Reply> {
        self.send(Method::GET, &target.path(name), None).await
    }

    /// POST of an object.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn create(&self, target: &Target, body: &Value, query: &str) -> anyhow::Result<Reply> {
        let path = format!("{}{query}", target.collection());
        self.send(Method::POST, &path, Some(("application/json", body))).await
    }

    /// PUT of an object, with whatever uid and version are in it.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn update(&self, target: &Target, name: &str, body: &Value) -> anyhow::Result<Reply> {
        self.send(Method::PUT, &target.path(name), Some(("application/json", body))).await
    }

    /// Merge patch.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn patch(&self, target: &Target, name: &str, body: &Value) -> anyhow::Result<Reply> {
        self.send(Method::PATCH, &target.path(name), Some(("application/merge-patch+json", body))).await
    }

    /// The monitor's stamp: a merge patch of annotations, of exactly this version.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn stamp(&self, target: &Target, name: &str, of: &Reply, term: u64, mark: &str) -> anyhow::Result<Reply> {
        let body = json!({"metadata": {
            "uid": of.uid(),
            "resourceVersion": of.version().to_string(),
            "annotations": {"gco.io/leader-term": term.to_string(), "suite/mark": mark},
        }});
        self.patch(target, name, &body).await
    }

    /// The monitor's delete: of exactly this version.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn delete(&self, target: &Target, name: &str, of: &Reply, propagation: &str) -> anyhow::Result<Reply> {
        let body = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation,
            "preconditions": {"uid": of.uid(), "resourceVersion": of.version().to_string()},
        });
        self.send(Method::DELETE, &target.path(name), Some(("application/json", &body))).await
    }
}

/// The path of the Lease.
#[must_use]
pub fn lease_path() -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/inference-monitor-leader")
}
