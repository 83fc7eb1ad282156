//! Requests as data, sent to the model or to a real server by the same client, and answers in a form that can be compared.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use gco_runtime::random::SeededRandomness;
use http::{Method, Request};
use kube::client::Body;
use serde_json::{Value, json};

use crate::dice::below;
use crate::object::{Resource, text};

/// One request. In bodies, `$uid` and `$version` stand for those of the object as the last answer about it had them,
/// `$old` for its version before that.
#[derive(Clone, Debug)]
pub struct Step {
    /// Method.
    pub method: Method,
    /// Plural of the kind.
    pub plural: &'static str,
    /// Name; empty: the collection.
    pub name: String,
    /// Query, without the question mark.
    pub query: String,
    /// Only metadata is asked for.
    pub metadata_only: bool,
    /// Body; `Null` for none.
    pub body: Value,
    /// The status that the documents lead one to expect; 0: not said.
    pub expected: u16,
}

impl Step {
    /// A request without a body.
    #[must_use]
    pub fn new(method: Method, plural: &'static str, name: &str) -> Self {
        Self {
            method,
            plural,
            name: name.to_owned(),
            query: String::new(),
            metadata_only: false,
            body: Value::Null,
            expected: 0,
        }
    }

    /// GET of one object, or of the list when there is no name.
    #[must_use]
    pub fn get(plural: &'static str, name: &str) -> Self {
        Self::new(Method::GET, plural, name)
    }

    /// POST.
    #[must_use]
    pub fn post(plural: &'static str, body: Value) -> Self {
        let name = text(&body, "/metadata/name").to_owned();
        Self { body, ..Self::new(Method::POST, plural, &name) }
    }

    /// PUT.
    #[must_use]
    pub fn put(plural: &'static str, name: &str, body: Value) -> Self {
        Self { body, ..Self::new(Method::PUT, plural, name) }
    }

    /// Merge patch.
    #[must_use]
    pub fn patch(plural: &'static str, name: &str, body: Value) -> Self {
        Self { body, ..Self::new(Method::PATCH, plural, name) }
    }

    /// DELETE with options.
    #[must_use]
    pub fn delete(plural: &'static str, name: &str, options: Value) -> Self {
        let mut body = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        if let (Some(body), Some(options)) = (body.as_object_mut(), options.as_object()) {
            body.extend(options.clone());
        }
        Self { body, ..Self::new(Method::DELETE, plural, name) }
    }

    /// With a query.
    #[must_use]
    pub fn query(self, query: &str) -> Self {
        Self { query: query.to_owned(), ..self }
    }

    /// With the status that the documents say.
    #[must_use]
    pub fn expect(self, status: u16) -> Self {
        Self { expected: status, ..self }
    }

    /// In a few words.
    #[must_use]
    pub fn words(&self) -> String {
        let metadata = self.body.get("metadata").or_else(|| self.body.get("preconditions"));
        let metadata = metadata.map(Value::to_string).unwrap_or_default();
        format!("{} {}/{}?{} {metadata}", self.method, self.plural, self.name, self.query)
    }
}

/// What is known of one object, for placeholders.
#[derive(Clone, Debug, Default)]
struct Known {
    uid: String,
    version: String,
    old: String,
}

/// Sends steps one after the other and keeps what was answered.
pub struct Player {
    client: kube::Client,
    namespace: String,
    known: BTreeMap<(String, String), Known>,
    /// Uids and versions in the order in which they were first seen.
    names: BTreeMap<String, usize>,
    continued: String,
    /// The version before the first step.
    begin: String,
}

impl std::fmt::Debug for Player {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Player").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Player {
    /// A player in a namespace that exists.
    #[must_use]
    pub fn new(client: kube::Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            known: BTreeMap::new(),
            names: BTreeMap::new(),
            continued: String::new(),
            begin: String::new(),
        }
    }

    fn collection(&self, plural: &str) -> String {
        let resource = Resource::of(plural);
        let prefix =
            if resource.group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{}", resource.api_version()) };
        format!("{prefix}/namespaces/{}/{plural}", self.namespace)
    }

    /// Plays all steps; one line per answer.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn play(&mut self, steps: &[Step]) -> anyhow::Result<Vec<Value>> {
        let (_, list) = self.send(&Step::get("configmaps", "")).await?;
        text(&list, "/metadata/resourceVersion").clone_into(&mut self.begin);
        let mut answers = Vec::new();
        for step in steps {
            let (status, body) = self.send(step).await.with_context(|| step.words())?;
            text(&body, "/metadata/continue").clone_into(&mut self.continued);
            self.learn(step, status, &body);
            answers.push(json!({"status": status, "body": self.comparable(status, &body)}));
        }
        Ok(answers)
    }

    /// Everything that a watch tells that begins before the first step, until it ends by its time.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub async fn watch(&mut self, plural: &str, selector: &str) -> anyhow::Result<Vec<Value>> {
        let path = format!(
            "{}?watch=true&timeoutSeconds=1&resourceVersion={}&labelSelector={selector}",
            self.collection(plural),
            self.begin
        );
        let request = Request::get(path).header(http::header::ACCEPT, "application/json").body(Body::empty())?;
        let response = self.client.send(request).await?;
        let bytes = tokio::time::timeout(Duration::from_secs(30), response.into_body().collect_bytes()).await??;
        let lines = String::from_utf8_lossy(&bytes).into_owned();
        let mut events = Vec::new();
        for line in lines.lines().filter(|line| !line.trim().is_empty()) {
            let event: Value = serde_json::from_str(line)?;
            events.push(json!({"type": event["type"], "object": self.comparable(200, &event["object"])}));
        }
        Ok(events)
    }

    async fn send(&self, step: &Step) -> anyhow::Result<(u16, Value)> {
        let mut path = self.collection(step.plural);
        if step.method != Method::POST && !step.name.is_empty() {
            path = format!("{path}/{}", step.name);
        }
        let known = self.known.get(&(step.plural.to_owned(), step.name.clone())).cloned().unwrap_or_default();
        let query = step.query.replace("$continue", &self.continued).replace("$begin", &self.begin);
        if !query.is_empty() {
            path = format!("{path}?{query}");
        }
        let accept = match (step.metadata_only, step.name.is_empty()) {
            (false, _) => "application/json",
            (true, false) => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            (true, true) => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        };
        let content_type =
            if step.method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let mut body = step.body.clone();
        fill(&mut body, &known);
        let body = if body.is_null() { Body::empty() } else { Body::from(serde_json::to_vec(&body)?) };
        let request = Request::builder()
            .method(step.method.clone())
            .uri(path)
            .header(http::header::ACCEPT, accept)
            .header(http::header::CONTENT_TYPE, content_type)
            .body(body)?;
        let response = self.client.send(request).await?;
        let status = response.status().as_u16();
        let bytes = response.into_body().collect_bytes().await?;
        let body =
            serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes).trim().to_owned()));
        Ok((status, body))
    }

    fn learn(&mut self, step: &Step, status: u16, body: &Value) {
        let (uid, version) = (text(body, "/metadata/uid"), text(body, "/metadata/resourceVersion"));
        if status >= 300 || uid.is_empty() {
            return;
        }
        let known = self.known.entry((step.plural.to_owned(), step.name.clone())).or_default();
        if known.version != version {
            known.old = std::mem::replace(&mut known.version, version.to_owned());
        }
        uid.clone_into(&mut known.uid);
    }

    /// An answer without what two servers cannot agree on: uids and versions become numbers in the order of their first
    /// appearance, times and addresses one word.
    fn comparable(&mut self, status: u16, body: &Value) -> Value {
        if status >= 400 {
            return self.comparable_refusal(status, body);
        }
        let mut body = body.clone();
        self.rename(&mut body, "");
        body
    }

    /// Of a refusal: code, reason and details; of the message what our own code reads.
    fn comparable_refusal(&mut self, status: u16, body: &Value) -> Value {
        if body.is_string() {
            return body.clone();
        }
        let causes: Vec<&str> = body
            .pointer("/details/causes")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(|cause| text(cause, "/field"))
            .collect();
        let mut message = text(body, "/message").to_owned();
        // Texts of 400 and 422 are the server's own and are shown to people only; the same mistake can be named twice.
        if matches!(status, 400 | 422) {
            message.clear();
        }
        // It tells where in etcd the object is.
        for what in ["UID", "ResourceVersion"] {
            if message.contains(&format!("Precondition failed: {what} in precondition")) {
                message = format!("a {what} precondition failed");
            }
        }
        for (place, known) in &self.known {
            for (value, word) in [(&known.uid, "uid"), (&known.version, "version"), (&known.old, "old version")] {
                if !value.is_empty() {
                    message = message.replace(value.as_str(), &format!("<{word} of {}>", place.1));
                }
            }
        }
        let causes: std::collections::BTreeSet<&str> = causes.into_iter().collect();
        json!({"code": body["code"], "reason": body["reason"], "message": message, "causes": causes,
            "about": [body.pointer("/details/name"), body.pointer("/details/kind"), body.pointer("/details/group")]})
    }

    fn number(&mut self, value: &str) -> usize {
        let next = self.names.len();
        *self.names.entry(value.to_owned()).or_insert(next)
    }

    fn rename(&mut self, value: &mut Value, name: &str) {
        match value {
            Value::Object(map) => {
                map.remove("managedFields");
                let is_list = map.contains_key("items");
                for (name, value) in map.iter_mut() {
                    // A list's own version depends on what else happens on the server.
                    if is_list && name == "metadata" {
                        if let Some(metadata) = value.as_object_mut() {
                            metadata.insert("resourceVersion".to_owned(), json!("a version"));
                            if metadata.contains_key("continue") {
                                metadata.insert("continue".to_owned(), json!("more"));
                            }
                        }
                        continue;
                    }
                    self.rename(value, name);
                }
            }
            Value::Array(list) => list.iter_mut().for_each(|value| self.rename(value, name)),
            Value::String(text) => match name {
                "uid" | "resourceVersion" if !text.is_empty() => *text = format!("#{}", self.number(text)),
                "creationTimestamp" | "deletionTimestamp" => "a time".clone_into(text),
                "clusterIP" | "clusterIPs" if text != "None" => "an address".clone_into(text),
                _ => *text = text.replace(&self.namespace, "<namespace>"),
            },
            _ => {}
        }
    }
}

fn fill(value: &mut Value, known: &Known) {
    match value {
        Value::Object(map) => map.values_mut().for_each(|value| fill(value, known)),
        Value::Array(list) => list.iter_mut().for_each(|value| fill(value, known)),
        Value::String(text) => match text.as_str() {
            "$uid" => text.clone_from(&known.uid),
            "$version" => text.clone_from(&known.version),
            "$old" => text.clone_from(&known.old),
            _ => {}
        },
        _ => {}
    }
}

/// The kinds that random sequences are about: those that the monitor writes or that go with them.
pub const KINDS: [&str; 9] = [
    "configmaps",
    "services",
    "deployments",
    "leases",
    "horizontalpodautoscalers",
    "scaledobjects",
    "poddisruptionbudgets",
    "networkpolicies",
    "secrets",
];

/// A valid object of a kind; `variant` changes its content.
#[must_use]
pub fn example(plural: &str, name: &str, variant: usize) -> Value {
    let resource = Resource::of(plural);
    let mut object = json!({
        "apiVersion": resource.api_version(),
        "kind": resource.kind,
        "metadata": {"name": name, "labels": {"app": name, "half": if variant.is_multiple_of(2) { "even" } else { "odd" }}},
    });
    let labels = json!({"app": name});
    match plural {
        "configmaps" => object["data"] = json!({"key": format!("value {variant}")}),
        "secrets" => object["data"] = json!({"key": (["YQ==", "Yg==", "Yw=="][variant % 3])}),
        "services" => {
            object["spec"] = json!({"selector": labels, "type": "ClusterIP",
                "ports": [{"name": "http", "port": 80 + variant % 3, "targetPort": "http", "protocol": "TCP"}]});
        }
        "deployments" => {
            object["spec"] = json!({
                "replicas": variant % 4,
                "minReadySeconds": 0,
                "selector": {"matchLabels": labels},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": variant % 2, "maxUnavailable": "25%"}},
                "template": {
                    "metadata": {"labels": {"app": name}, "annotations": {"variant": variant.to_string()}},
                    "spec": {
                        "serviceAccountName": "models",
                        "automountServiceAccountToken": false,
                        "containers": [{
                            "name": "inference",
                            "image": (["engine:v1", "engine:latest", "engine"][variant % 3]),
                            "env": [{"name": "EDIT", "value": variant.to_string()}, {"name": "EMPTY", "value": ""}],
                            "ports": [{"name": "http", "containerPort": 8000}],
                            "resources": {"requests": {"cpu": "1000m"}, "limits": {"nvidia.com/gpu": "1"}},
                            "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 5},
                        }],
                        "volumes": [{"name": "shared", "emptyDir": {"medium": "Memory"}}],
                    },
                },
            });
        }
        "leases" => {
            object["spec"] = json!({"holderIdentity": format!("holder {variant}"), "leaseDurationSeconds": 15,
                "leaseTransitions": variant % 3, "renewTime": "2026-01-01T00:00:00.000001Z"});
        }
        "horizontalpodautoscalers" => {
            object["spec"] = json!({
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "minReplicas": 1, "maxReplicas": 2 + variant % 3,
            });
        }
        "scaledobjects" => {
            object["spec"] = json!({
                "scaleTargetRef": {"name": name},
                "minReplicaCount": variant % 2, "maxReplicaCount": 2 + variant % 3,
                "triggers": [{"type": "aws-cloudwatch", "metadata": {"targetMetricValue": "70", "minMetricValue": "0"}}],
            });
        }
        "poddisruptionbudgets" => {
            object["spec"] = json!({"maxUnavailable": variant % 3, "selector": {"matchLabels": labels}});
        }
        "networkpolicies" => {
            object["spec"] = json!({"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress"],
                "ingress": [{"ports": [{"port": 8000 + variant % 3}]}]});
        }
        _ => {}
    }
    object
}

/// A sequence of requests about two names of one or two kinds.
#[must_use]
pub fn sequence(seed: u64, length: usize) -> Vec<Step> {
    let dice = SeededRandomness::new(seed);
    let roll = |limit: usize| below(&dice, limit);
    let kinds = [KINDS[roll(KINDS.len())], KINDS[roll(KINDS.len())]];
    (0..length)
        .map(|_| {
            let plural = kinds[roll(2)];
            let name = ["a", "b"][roll(2)];
            let object = example(plural, name, roll(6));
            match roll(20) {
                0..5 => posted(plural, object, roll(9)),
                5..10 => put(plural, name, object, roll(9)),
                10..13 => patched(plural, name, roll(8), roll(5)),
                13..16 => deleted(plural, name, roll(8), roll(3)),
                16 => Step { metadata_only: roll(2) == 0, ..Step::get(plural, name) },
                17 => Step::get(plural, "").query("labelSelector=half%3Deven"),
                18 => Step::get(plural, "").query("limit=1"),
                _ => {
                    Step { metadata_only: true, ..Step::get(plural, "") }.query("labelSelector=app%20in%20%28a%2Cc%29")
                }
            }
        })
        .collect()
}

fn posted(plural: &'static str, mut body: Value, kind: usize) -> Step {
    match kind {
        0 => body["metadata"]["resourceVersion"] = json!("5"),
        1 => body["metadata"]["name"] = json!("Not_A_Name"),
        2 => body["bogus"] = json!(1),
        3 => body["metadata"]["labels"]["bad"] = json!("a value with spaces"),
        _ => {}
    }
    Step::post(plural, body).query("fieldValidation=Strict")
}

fn put(plural: &'static str, name: &str, mut body: Value, kind: usize) -> Step {
    let identity = match kind {
        0..5 => Some(("$uid", "$version")),
        5 => Some(("$uid", "$old")),
        6 => Some(("11111111-1111-4111-8111-111111111111", "$version")),
        7 => Some(("", "$version")),
        _ => None,
    };
    if let Some((uid, version)) = identity {
        if !uid.is_empty() {
            body["metadata"]["uid"] = json!(uid);
        }
        body["metadata"]["resourceVersion"] = json!(version);
    }
    Step::put(plural, name, body).query("fieldValidation=Strict")
}

fn patched(plural: &'static str, name: &str, kind: usize, variant: usize) -> Step {
    let metadata = match kind {
        0..3 => json!({"uid": "$uid", "resourceVersion": "$version", "annotations": {"note": variant.to_string()}}),
        3 => json!({"resourceVersion": "$old", "annotations": {"note": "late"}}),
        4 => json!({"uid": "11111111-1111-4111-8111-111111111111", "annotations": {"note": "other"}}),
        5 => json!({"labels": {"half": (["even", "odd"][variant % 2])}}),
        6 => json!({"finalizers": ["example.com/held"]}),
        _ => json!({"finalizers": null, "annotations": {"note": null}}),
    };
    Step::patch(plural, name, json!({"metadata": metadata}))
}

fn deleted(plural: &'static str, name: &str, kind: usize, policy: usize) -> Step {
    let preconditions = match kind {
        0..4 => json!({"uid": "$uid", "resourceVersion": "$version"}),
        4 => json!({"uid": "$uid", "resourceVersion": "$old"}),
        5 => json!({"uid": "11111111-1111-4111-8111-111111111111"}),
        _ => Value::Null,
    };
    let mut options = json!({});
    if !preconditions.is_null() {
        options["preconditions"] = preconditions;
    }
    if let Some(policy) = ["Foreground", "Background"].get(policy) {
        options["propagationPolicy"] = json!(policy);
    }
    Step::delete(plural, name, options)
}
