//! A request, taken apart.

use std::collections::BTreeMap;

use http::Method;
use serde_json::Value;

use crate::object::{RESOURCES, Resource};

/// What is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A kind's objects, or one of them.
    Objects {
        /// The kind.
        resource: &'static Resource,
        /// Namespace.
        namespace: String,
        /// `None`: the collection.
        name: Option<String>,
        /// Sub-resource; empty for none.
        sub_resource: String,
    },
    /// Which kinds a group has.
    Discovery {
        /// Group; empty for the core group.
        group: String,
        /// Version.
        version: String,
    },
    /// Anything else.
    Other,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Method.
    pub method: Method,
    /// What about.
    pub target: Target,
    /// Parameters of the query.
    pub query: BTreeMap<String, String>,
    /// Header `Accept`.
    pub accept: String,
    /// Header `Content-Type`.
    pub content_type: String,
    /// Body; `None` when there is none or it is no JSON.
    pub body: Option<Value>,
}

impl Request {
    /// Takes a path with its query apart.
    #[must_use]
    pub fn new(method: Method, path_and_query: &str, accept: &str, content_type: &str, body: Option<Value>) -> Self {
        let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
        let query = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                (unescaped(name), unescaped(value))
            })
            .collect();
        Self {
            method,
            target: target(path),
            query,
            accept: accept.to_owned(),
            content_type: content_type.to_owned(),
            body,
        }
    }

    /// A parameter that is there and not empty.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether it is a watch.
    #[must_use]
    pub fn is_watch(&self) -> bool {
        self.method == Method::GET && matches!(self.parameter("watch"), Some("true" | "1"))
    }

    /// Whether it changes something.
    #[must_use]
    pub fn is_write(&self) -> bool {
        self.method != Method::GET
    }

    /// Whether only metadata is wanted.
    #[must_use]
    pub fn wants_metadata(&self) -> bool {
        self.accept.contains("as=PartialObjectMetadata")
    }

    /// The plural that it is about; empty for none.
    #[must_use]
    pub fn plural(&self) -> &'static str {
        match &self.target {
            Target::Objects { resource, .. } => resource.plural,
            _ => "",
        }
    }

    /// In a few words.
    #[must_use]
    pub fn summary(&self) -> String {
        match &self.target {
            Target::Objects { resource, name, .. } => {
                let name = name.clone().or_else(|| {
                    let body = self.body.as_ref()?;
                    body.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned)
                });
                format!("{} {}/{}", self.method, resource.plural, name.unwrap_or_default())
            }
            Target::Discovery { group, version } => format!("{} discovery of {group}/{version}", self.method),
            Target::Other => format!("{} of something else", self.method),
        }
    }
}

fn target(path: &str) -> Target {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return Target::Other,
    };
    match rest {
        [] => Target::Discovery { group: group.to_owned(), version: version.to_owned() },
        ["namespaces", namespace, plural, rest @ ..] => {
            let found =
                RESOURCES.iter().find(|one| one.group == group && one.version == version && one.plural == *plural);
            let Some(resource) = found else { return Target::Other };
            let (name, sub_resource) = match rest {
                [] => (None, ""),
                [name] => (Some((*name).to_owned()), ""),
                [name, sub_resource, ..] => (Some((*name).to_owned()), *sub_resource),
            };
            Target::Objects {
                resource,
                namespace: (*namespace).to_owned(),
                name,
                sub_resource: sub_resource.to_owned(),
            }
        }
        _ => Target::Other,
    }
}

/// A piece of a query without its percent codes.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits: Vec<u8> = rest.by_ref().take(2).collect();
                let code = std::str::from_utf8(&digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
                bytes.push(code.unwrap_or(b'%'));
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One requirement of a label selector.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    Equal(String, String),
    Different(String, String),
    In(String, Vec<String>),
    Exists(String),
    Absent(String),
}

/// A label selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

impl Selector {
    /// Reads one: `a=b`, `a!=b`, `a in (b,c)`, `a`, `!a`, separated by commas.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut parts: Vec<String> = vec![String::new()];
        let mut depth = 0_usize;
        for character in text.chars() {
            match character {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                ',' if depth == 0 => {
                    parts.push(String::new());
                    continue;
                }
                _ => {}
            }
            if let Some(last) = parts.last_mut() {
                last.push(character);
            }
        }
        let owned = |text: &str| text.trim().to_owned();
        Self(
            parts
                .iter()
                .map(|part| part.trim())
                .filter(|part| !part.is_empty())
                .map(|part| {
                    if let Some((name, values)) = part.split_once(" in ") {
                        let values = values.trim().trim_start_matches('(').trim_end_matches(')');
                        return Requirement::In(owned(name), values.split(',').map(owned).collect());
                    }
                    if let Some((name, value)) = part.split_once("!=") {
                        return Requirement::Different(owned(name), owned(value));
                    }
                    if let Some((name, value)) = part.split_once('=') {
                        return Requirement::Equal(owned(name), owned(value.trim_start_matches('=')));
                    }
                    match part.strip_prefix('!') {
                        Some(name) => Requirement::Absent(owned(name)),
                        None => Requirement::Exists(owned(part)),
                    }
                })
                .collect(),
        )
    }

    /// Whether it takes an object.
    #[must_use]
    pub fn takes(&self, object: &Value) -> bool {
        let label = |name: &str| crate::object::label(object, name);
        self.0.iter().all(|requirement| match requirement {
            Requirement::Equal(name, value) => label(name) == Some(value.as_str()),
            Requirement::Different(name, value) => label(name) != Some(value.as_str()),
            Requirement::In(name, values) => label(name).is_some_and(|its| values.iter().any(|value| value == its)),
            Requirement::Exists(name) => label(name).is_some(),
            Requirement::Absent(name) => label(name).is_none(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_request_is_taken_apart() {
        let request = Request::new(
            Method::GET,
            "/apis/apps/v1/namespaces/n/deployments/a?labelSelector=a%3Db%2Cc%20in%20%28d%2Ce%29&watch=true",
            "",
            "",
            None,
        );
        let Target::Objects { resource, namespace, name, sub_resource } = &request.target else { panic!("no target") };
        assert_eq!(
            (resource.kind, namespace.as_str(), name.as_deref(), sub_resource.as_str()),
            ("Deployment", "n", Some("a"), "")
        );
        assert_eq!(request.parameter("labelSelector"), Some("a=b,c in (d,e)"));
        assert!(request.is_watch() && !request.is_write());
    }

    #[test]
    fn selectors_take_what_they_say() {
        let object = json!({"metadata": {"labels": {"a": "b", "c": "d"}}});
        for (selector, taken) in [
            ("a=b", true),
            ("a==b,c in (d,e)", true),
            ("a=b,c in (e)", false),
            ("a!=b", false),
            ("a,!x", true),
            ("x", false),
            ("", true),
        ] {
            assert_eq!(Selector::parse(selector).takes(&object), taken, "{selector}");
        }
    }
}
