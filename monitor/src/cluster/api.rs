//! Calls to the API server: bounded in time, counted, and their refusals sorted.
//!
//! Reading is open to the crate. Every call that changes an endpoint's object takes a [`Claim`]; the only other writer
//! is `leadership`, for the Lease.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gco_runtime::clock::{BootTime, Clock};
use http::{Method, Request};
use kube::client::Body;
use serde_json::{Value, json};

use super::error::{Answer, ApiError, sort};
use crate::admin::telemetry::Telemetry;
use crate::leadership::Claim;
use crate::object::{Kind, ObjectKey};
use crate::plan::Precondition;
use crate::report::Category;

/// Name under which our writes are recorded in `managedFields`.
pub const FIELD_MANAGER: &str = "gco-inference-monitor";

/// For how long after it was out of reach a server's refusals for lack of rights are not believed: it answers 403 for
/// about a second until it has loaded them.
const FRESH_SERVER: Duration = Duration::from_secs(10);

/// Objects per page of a list.
const PAGE_SIZE: usize = 500;

/// Most pages of one list: 100,000 objects of one endpoint are a mistake, not a list.
const MOST_PAGES: usize = 200;

/// Asks for nothing but metadata: enough to see whose an object is, and a Secret's data never enters this process.
const ONLY_METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// The same for lists.
const ONLY_METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const JSON: &str = "application/json";

/// Where a kind lives: API prefix and plural.
#[must_use]
pub fn resource(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::ScaledObject => ("/apis/keda.sh/v1alpha1", "scaledobjects"),
        Kind::HorizontalPodAutoscaler => ("/apis/autoscaling/v2", "horizontalpodautoscalers"),
        Kind::Deployment => ("/apis/apps/v1", "deployments"),
        Kind::Service => ("/api/v1", "services"),
        Kind::ConfigMap => ("/api/v1", "configmaps"),
        Kind::Ingress => ("/apis/networking.k8s.io/v1", "ingresses"),
        Kind::HttpRoute => ("/apis/gateway.networking.k8s.io/v1", "httproutes"),
        Kind::Secret => ("/api/v1", "secrets"),
    }
}

/// What a deletion came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Deleted {
    /// It is gone.
    Gone,
    /// It waits for its children or finalizers; the object as it is now.
    Pending(Value),
}

/// One request.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    /// For the metric.
    pub(crate) verb: &'static str,
    /// For the metric.
    pub(crate) resource: &'static str,
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) path: &'a str,
    /// Content type and body.
    pub(crate) body: Option<(&'static str, &'a Value)>,
    pub(crate) accept: &'static str,
    pub(crate) time_out: Duration,
}

/// The API server, seen from one namespace.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
    namespace: String,
    time_out: Duration,
    clock: Arc<dyn Clock>,
    telemetry: Arc<Telemetry>,
    last_trouble: Arc<Mutex<BootTime>>,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Api").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Api {
    /// An API over `client`, which must not retry by itself: a repeated write could outlive the claim.
    #[must_use]
    pub fn new(
        client: kube::Client,
        namespace: &str,
        time_out: Duration,
        clock: Arc<dyn Clock>,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        // A server that started together with us is as fresh as one that was just out of reach.
        let last_trouble = Arc::new(Mutex::new(clock.boot()));
        Self { client, namespace: namespace.to_owned(), time_out, clock, telemetry, last_trouble }
    }

    /// The namespace that everything of ours lives in.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The client, for watches.
    pub(super) fn client(&self) -> kube::Client {
        self.client.clone()
    }

    pub(super) fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    fn server_is_fresh(&self) -> bool {
        let last = *self.last_trouble.lock().unwrap_or_else(PoisonError::into_inner);
        self.clock.boot().saturating_duration_since(last) < FRESH_SERVER
    }

    fn note_trouble(&self) {
        *self.last_trouble.lock().unwrap_or_else(PoisonError::into_inner) = self.clock.boot();
    }

    /// How long one call may take.
    pub(super) fn time_out(&self) -> Duration {
        self.time_out
    }

    /// Sends one request and reads its whole answer within its time-out.
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<Value, ApiError> {
        self.call_expecting(call, ApiError::is_not_found).await
    }

    /// The same; refusals that are `expected` are not counted as errors.
    pub(super) async fn call_expecting(
        &self,
        call: Call<'_>,
        expected: impl Fn(&ApiError) -> bool,
    ) -> Result<Value, ApiError> {
        self.telemetry.api_call(call.verb, call.resource);
        let result = match tokio::time::timeout(call.time_out, self.send(&call)).await {
            Ok(result) => result,
            Err(_) => Err(ApiError::unanswered(
                Category::Unavailable,
                &format!("no answer to {} {} within {} s", call.verb, call.resource, call.time_out.as_secs_f64()),
            )),
        };
        if let Err(error) = &result {
            if error.status.is_none_or(|status| status >= 500) {
                self.note_trouble();
            }
            if !expected(error) {
                self.telemetry.api_error(error.category);
            }
        }
        result
    }

    async fn send(&self, call: &Call<'_>) -> Result<Value, ApiError> {
        let bug = |text: String| ApiError::unanswered(Category::Bug, &text);
        let mut request =
            Request::builder().method(call.method.clone()).uri(call.path).header(http::header::ACCEPT, call.accept);
        let body = match call.body {
            None => Body::empty(),
            Some((content_type, body)) => {
                request = request.header(http::header::CONTENT_TYPE, content_type);
                Body::from(serde_json::to_vec(body).map_err(|error| bug(format!("body of the request: {error}")))?)
            }
        };
        let request = request.body(body).map_err(|error| bug(format!("request: {error}")))?;
        let response = self.client.send(request).await.map_err(|error| unreachable_server(&error))?;
        let status = response.status().as_u16();
        let retry_after =
            response.headers().get(http::header::RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let bytes = response.into_body().collect_bytes().await.map_err(|error| unreachable_server(&error))?;
        if !(200..300).contains(&status) {
            return Err(sort(&Answer {
                status,
                body: &bytes,
                retry_after: retry_after.as_deref(),
                server_is_fresh: self.server_is_fresh(),
            }));
        }
        serde_json::from_slice(&bytes).map_err(|error| {
            ApiError::unanswered(Category::Unavailable, &format!("answer to {} {}: {error}", call.verb, call.resource))
        })
    }

    fn collection(&self, kind: Kind) -> String {
        let (prefix, plural) = resource(kind);
        format!("{prefix}/namespaces/{}/{plural}", self.namespace)
    }

    async fn read(&self, key: &ObjectKey, accept: &'static str) -> Result<Option<Value>, ApiError> {
        let path = format!("{}/{}", self.collection(key.kind), key.name);
        let call = Call {
            verb: "get",
            resource: resource(key.kind).1,
            method: Method::GET,
            path: &path,
            body: None,
            accept,
            time_out: self.time_out,
        };
        match self.call(call).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A quorum read of one object: GET without resourceVersion. Not for Secrets.
    ///
    /// # Errors
    /// Whatever the server refuses but absence.
    pub async fn get(&self, key: &ObjectKey) -> Result<Option<Value>, ApiError> {
        self.read(key, if key.kind == Kind::Secret { ONLY_METADATA } else { JSON }).await
    }

    /// A quorum read of one object's metadata.
    ///
    /// # Errors
    /// Whatever the server refuses but absence.
    pub async fn get_metadata(&self, key: &ObjectKey) -> Result<Option<Value>, ApiError> {
        self.read(key, ONLY_METADATA).await
    }

    /// Whether the cluster has this kind at all (KEDA and the Gateway API are optional).
    ///
    /// # Errors
    /// Whatever the server refuses but absence.
    pub async fn has_kind(&self, kind: Kind) -> Result<bool, ApiError> {
        let (prefix, plural) = resource(kind);
        let call = Call {
            verb: "get",
            resource: "discovery",
            method: Method::GET,
            path: prefix,
            body: None,
            accept: JSON,
            time_out: self.time_out,
        };
        let list = match self.call(call).await {
            Ok(list) => list,
            Err(error) if matches!(error.status, Some(404)) => return Ok(false),
            Err(error) => return Err(error),
        };
        let resources = list.get("resources").and_then(Value::as_array);
        Ok(resources.is_some_and(|all| all.iter().any(|one| one.get("name").and_then(Value::as_str) == Some(plural))))
    }

    /// A quorum read of a list's metadata, all pages.
    ///
    /// # Errors
    /// Whatever the server refuses; never a part of the list.
    pub async fn list_metadata(
        &self,
        prefix: &str,
        plural: &'static str,
        selector: &str,
    ) -> Result<Vec<Value>, ApiError> {
        let mut found = Vec::new();
        let mut next = String::new();
        for _ in 0..MOST_PAGES {
            let mut path = format!(
                "{prefix}/namespaces/{}/{plural}?limit={PAGE_SIZE}&labelSelector={}",
                self.namespace,
                query_escaped(selector)
            );
            if !next.is_empty() {
                path.push_str("&continue=");
                path.push_str(&query_escaped(&next));
            }
            let call = Call {
                verb: "list",
                resource: plural,
                method: Method::GET,
                path: &path,
                body: None,
                accept: ONLY_METADATA_LIST,
                time_out: self.time_out,
            };
            let mut page = self.call(call).await?;
            if let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) {
                found.extend(items);
            }
            match page.pointer("/metadata/continue").and_then(Value::as_str) {
                Some(token) if !token.is_empty() => next = token.to_owned(),
                _ => return Ok(found),
            }
        }
        Err(ApiError::unanswered(Category::Bug, &format!("list of {plural} does not end")))
    }

    /// Sends one fenced write. The claim must have the minimum left, and the call ends before the claim does.
    async fn mutate(&self, claim: &Claim, mut call: Call<'_>) -> Result<Value, ApiError> {
        let permit = match claim.begin() {
            Ok(permit) => permit,
            Err(over) => {
                self.telemetry.refused(over.reason());
                return Err(ApiError::unanswered(Category::Fenced, &over.to_string()));
            }
        };
        call.time_out = self.time_out.min(permit.time_left());
        let result = self.call(call).await;
        match &result {
            // No answer, or one that does not say whether it happened: it may still happen.
            Err(error) if error.status.is_none_or(|status| status >= 500) => drop(permit),
            _ => permit.answered(),
        }
        if let Err(error) = &result {
            match error.refusal {
                super::error::Refusal::Precondition => self.telemetry.refused("object_precondition"),
                super::error::Refusal::StaleTerm => self.telemetry.refused("admission_policy"),
                _ => {}
            }
        }
        result
    }

    /// POST: never changes an object that exists.
    ///
    /// # Errors
    /// Fenced when the claim is over; whatever the server refuses.
    pub(super) async fn create(&self, claim: &Claim, key: &ObjectKey, body: &Value) -> Result<Value, ApiError> {
        let path = format!("{}?fieldManager={FIELD_MANAGER}&fieldValidation=Strict", self.collection(key.kind));
        let call = self.write("create", Method::POST, key.kind, &path, (JSON, body));
        self.mutate(claim, call).await
    }

    /// PUT of a whole object; the body carries uid and resourceVersion.
    ///
    /// # Errors
    /// Fenced when the claim is over; whatever the server refuses.
    pub(super) async fn replace(&self, claim: &Claim, key: &ObjectKey, body: &Value) -> Result<Value, ApiError> {
        let given = |name: &str| body.pointer(name).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
        if !given("/metadata/uid") || !given("/metadata/resourceVersion") {
            // A PUT without them can overwrite what we never saw, or bring back a deleted Service.
            return Err(ApiError::unanswered(Category::Bug, "a replacement without uid and resourceVersion"));
        }
        let path =
            format!("{}/{}?fieldManager={FIELD_MANAGER}&fieldValidation=Strict", self.collection(key.kind), key.name);
        let call = self.write("update", Method::PUT, key.kind, &path, (JSON, body));
        self.mutate(claim, call).await
    }

    /// Merge patch of annotations, of exactly this version.
    ///
    /// # Errors
    /// Fenced when the claim is over; whatever the server refuses.
    pub(super) async fn annotate(
        &self,
        claim: &Claim,
        key: &ObjectKey,
        of: &Precondition,
        annotations: &Value,
    ) -> Result<Value, ApiError> {
        let path = format!("{}/{}?fieldManager={FIELD_MANAGER}", self.collection(key.kind), key.name);
        let body = json!({"metadata": {
            "uid": of.uid,
            "resourceVersion": of.resource_version,
            "annotations": annotations,
        }});
        let call = self.write("patch", Method::PATCH, key.kind, &path, ("application/merge-patch+json", &body));
        // A Secret's answer would carry its data; only its metadata is asked for.
        let accept = if key.kind == Kind::Secret { ONLY_METADATA } else { JSON };
        self.mutate(claim, Call { accept, ..call }).await
    }

    /// DELETE in the foreground, of exactly this version.
    ///
    /// # Errors
    /// Fenced when the claim is over; whatever the server refuses but absence.
    pub(super) async fn delete(&self, claim: &Claim, key: &ObjectKey, of: &Precondition) -> Result<Deleted, ApiError> {
        let path = format!("{}/{}", self.collection(key.kind), key.name);
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": of.uid, "resourceVersion": of.resource_version},
        });
        let call = self.write("delete", Method::DELETE, key.kind, &path, (JSON, &body));
        let accept = if key.kind == Kind::Secret { ONLY_METADATA } else { JSON };
        match self.mutate(claim, Call { accept, ..call }).await {
            Ok(answer) if answer.pointer("/metadata/deletionTimestamp").is_some() => Ok(Deleted::Pending(answer)),
            Ok(_) => Ok(Deleted::Gone),
            Err(error) if error.is_not_found() => Ok(Deleted::Gone),
            Err(error) => Err(error),
        }
    }

    fn write<'a>(
        &self,
        verb: &'static str,
        method: Method,
        kind: Kind,
        path: &'a str,
        body: (&'static str, &'a Value),
    ) -> Call<'a> {
        Call { verb, resource: resource(kind).1, method, path, body: Some(body), accept: JSON, time_out: self.time_out }
    }
}

/// An error without an answer. The text of the client's errors names addresses and causes, never headers.
fn unreachable_server(error: &kube::Error) -> ApiError {
    let category = match error {
        kube::Error::Auth(_) => Category::Forbidden,
        _ => Category::Unavailable,
    };
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    ApiError::unanswered(category, &text)
}

/// `text` for a query value: everything but letters, digits and `-._~` as percent codes.
fn query_escaped(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len() + 16), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            escaped.push(char::from(byte));
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            escaped.push('%');
            escaped.push(char::from(DIGITS[usize::from(byte >> 4)]));
            escaped.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_escaped_for_the_query() {
        assert_eq!(query_escaped("project=gco,app in (a,a-b)"), "project%3Dgco%2Capp%20in%20%28a%2Ca-b%29");
    }

    #[test]
    fn every_kind_has_a_counted_resource() {
        use crate::admin::telemetry::RESOURCES;
        for kind in [
            Kind::ScaledObject,
            Kind::HorizontalPodAutoscaler,
            Kind::Deployment,
            Kind::Service,
            Kind::ConfigMap,
            Kind::Ingress,
            Kind::HttpRoute,
            Kind::Secret,
        ] {
            assert!(RESOURCES.contains(&resource(kind).1), "{kind:?}");
        }
    }
}
