//! What a request is: read from its method, path, headers and body.

use bytes::Bytes;
use gco_runtime::clock::BootTime;
use http::{HeaderMap, Method};
use jiff::Timestamp;

/// One request, as it came in.
#[derive(Clone, Debug)]
pub struct RequestFacts {
    /// Its place in the order of arrival, from zero.
    pub sequence: u64,
    /// The method.
    pub method: Method,
    /// The path, without the query.
    pub path: String,
    /// The query without its question mark; empty when there is none.
    pub query: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, at most its first MiB.
    pub body: Bytes,
    /// Whether `body` is all of it.
    pub body_is_complete: bool,
    /// When it had come in, for people.
    pub received_at: Timestamp,
    /// When it had come in, for lengths of time.
    pub received_boot: BootTime,
    /// The DynamoDB operation, such as `UpdateItem`; `None` when it is none.
    pub dynamodb_operation: Option<String>,
    /// What is asked of a Kubernetes API; `None` when the path is none of its resources.
    pub kubernetes: Option<KubernetesRequest>,
}

/// A request on a Kubernetes resource, in the words of RBAC and the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubernetesRequest {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: &'static str,
    /// The API group; empty for the core group.
    pub group: String,
    /// The API version.
    pub version: String,
    /// The namespace; empty when there is none.
    pub namespace: String,
    /// The resource in plural.
    pub resource: String,
    /// The object's name; empty when the request is on the collection.
    pub name: String,
    /// `status`, `scale`, `token`, …; mostly empty.
    pub subresource: String,
    /// Whether nothing is kept (`dryRun=All`).
    pub dry_run: bool,
}

impl RequestFacts {
    /// Whether it is a watch on a Kubernetes resource.
    pub fn is_watch(&self) -> bool {
        self.kubernetes.as_ref().is_some_and(|request| request.verb == "watch")
    }

    /// Whether it could change something. Dry runs count too.
    pub fn is_write(&self) -> bool {
        if let Some(request) = &self.kubernetes {
            return !matches!(request.verb, "get" | "list" | "watch");
        }
        if let Some(operation) = &self.dynamodb_operation {
            const READS: [&str; 7] = ["Get", "BatchGet", "TransactGet", "Query", "Scan", "List", "Describe"];
            return !READS.iter().any(|read| operation.starts_with(read));
        }
        !matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS)
    }

    /// Whether it is this DynamoDB operation.
    pub fn is_operation(&self, operation: &str) -> bool {
        self.dynamodb_operation.as_deref() == Some(operation)
    }

    /// Whether it is this verb on this Kubernetes resource (not on a subresource of it).
    pub fn is_request(&self, verb: &str, resource: &str) -> bool {
        let is = |request: &KubernetesRequest| {
            request.verb == verb && request.resource == resource && request.subresource.is_empty()
        };
        self.kubernetes.as_ref().is_some_and(is)
    }

    /// The value of a header, when it is readable text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as JSON, when it is complete and is JSON.
    pub fn json(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&self.body).ok().filter(|_| self.body_is_complete)
    }

    /// One short line for messages.
    pub fn summary(&self) -> String {
        match (&self.dynamodb_operation, self.query.is_empty()) {
            (Some(operation), _) => format!("#{} {operation}", self.sequence),
            (None, true) => format!("#{} {} {}", self.sequence, self.method, self.path),
            (None, false) => format!("#{} {} {}?{}", self.sequence, self.method, self.path, self.query),
        }
    }
}

/// The operation of a DynamoDB request: the part of its target header behind the service's name.
pub(super) fn dynamodb_operation(headers: &HeaderMap) -> Option<String> {
    let target = headers.get("x-amz-target")?.to_str().ok()?;
    let (service, operation) = target.split_once('.')?;
    service.starts_with("DynamoDB").then(|| operation.to_owned())
}

/// Reads what a path asks of a Kubernetes API.
pub(super) fn kubernetes_request(method: &Method, path: &str, query: &str) -> Option<KubernetesRequest> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let group = match parts.next()? {
        "api" => "",
        "apis" => parts.next()?,
        _ => return None,
    };
    let version = parts.next()?;
    let rest: Vec<&str> = parts.collect();
    // A namespace is a prefix only when a resource follows; `namespaces/x/status` is the namespace's own.
    let (namespace, rest) = match rest.as_slice() {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() && !matches!(rest[0], "status" | "finalize") => {
            (*namespace, rest)
        }
        all => ("", all),
    };
    let (resource, rest) = rest.split_first()?;
    let (name, rest) = rest.split_first().map_or(("", rest), |(name, rest)| (*name, rest));
    let asks = |wanted: &str, values: &[&str]| {
        query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .any(|(key, value)| key == wanted && values.contains(&value))
    };
    let verb = match (method, name.is_empty()) {
        (&Method::GET, _) if asks("watch", &["true", "1"]) => "watch",
        (&Method::GET | &Method::HEAD, true) => "list",
        (&Method::GET | &Method::HEAD, false) => "get",
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        (&Method::PATCH, _) => "patch",
        (&Method::DELETE, true) => "deletecollection",
        (&Method::DELETE, false) => "delete",
        _ => return None,
    };
    Some(KubernetesRequest {
        verb,
        group: group.to_owned(),
        version: version.to_owned(),
        namespace: match (*resource, name) {
            // The audit log says so too: a namespace is in itself.
            ("namespaces", name) => name.to_owned(),
            _ => namespace.to_owned(),
        },
        resource: (*resource).to_owned(),
        name: name.to_owned(),
        subresource: rest.join("/"),
        dry_run: asks("dryRun", &["All"]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: Method, uri: &str) -> Option<(&'static str, String)> {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let request = kubernetes_request(&method, path, query)?;
        let KubernetesRequest { verb, group, namespace, resource, name, subresource, .. } = request;
        Some((verb, format!("{group}|{namespace}|{resource}|{name}|{subresource}")))
    }

    #[test]
    fn kubernetes_paths_are_read_as_the_server_reads_them() {
        let deployments = "/apis/apps/v1/namespaces/gco/deployments";
        let object = format!("{deployments}/llama");
        for (method, uri, verb, rest) in [
            (Method::GET, deployments, "list", "apps|gco|deployments||"),
            (Method::GET, &format!("{deployments}?watch=true&x=1"), "watch", "apps|gco|deployments||"),
            (Method::GET, &format!("{deployments}?watch=false"), "list", "apps|gco|deployments||"),
            (Method::POST, deployments, "create", "apps|gco|deployments||"),
            (Method::DELETE, deployments, "deletecollection", "apps|gco|deployments||"),
            (Method::GET, &object, "get", "apps|gco|deployments|llama|"),
            (Method::PUT, &object, "update", "apps|gco|deployments|llama|"),
            (Method::PATCH, &format!("{object}/status"), "patch", "apps|gco|deployments|llama|status"),
            (Method::DELETE, &object, "delete", "apps|gco|deployments|llama|"),
            (Method::GET, "/api/v1/nodes/n1", "get", "||nodes|n1|"),
            (Method::GET, "/api/v1/namespaces", "list", "||namespaces||"),
            (Method::GET, "/api/v1/namespaces/gco", "get", "|gco|namespaces|gco|"),
            (Method::PUT, "/api/v1/namespaces/gco/finalize", "update", "|gco|namespaces|gco|finalize"),
        ] {
            assert_eq!(read(method, uri), Some((verb, rest.to_owned())), "{uri}");
        }
        for uri in ["/readyz", "/apis", "/apis/apps", "/apis/apps/v1", "/api/v1", "/version"] {
            assert_eq!(read(Method::GET, uri), None, "{uri}");
        }
    }

    #[test]
    fn a_dry_run_is_recognised() {
        let request = kubernetes_request(&Method::POST, "/api/v1/namespaces/a/pods", "a=b&dryRun=All").unwrap();
        assert!(request.dry_run);
    }

    #[test]
    fn the_operation_is_read_from_the_target() {
        let mut headers = HeaderMap::new();
        assert_eq!(dynamodb_operation(&headers), None);
        headers.insert("x-amz-target", http::HeaderValue::from_static("DynamoDB_20120810.UpdateItem"));
        assert_eq!(dynamodb_operation(&headers).as_deref(), Some("UpdateItem"));
        headers.insert("x-amz-target", http::HeaderValue::from_static("AmazonSSM.GetParameter"));
        assert_eq!(dynamodb_operation(&headers), None);
    }
}
