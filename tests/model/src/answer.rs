//! Answers: an object, a list, or a `Status` as the server words it.

use serde_json::{Value, json};

use crate::object::Resource;
use crate::schema::Cause;

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Body; a text stands for a plain-text answer.
    pub body: Value,
}

impl Answer {
    /// A good answer.
    #[must_use]
    pub fn of(status: u16, body: Value) -> Self {
        Self { status, body }
    }

    /// A `Status` that refuses.
    #[must_use]
    pub fn refusal(status: u16, reason: &str, message: &str, details: Value) -> Self {
        let mut body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "code": status,
        });
        if !reason.is_empty() {
            body["reason"] = json!(reason);
        }
        if !details.is_null() {
            body["details"] = details;
        }
        Self { status, body }
    }

    /// 404 of one object.
    #[must_use]
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", resource.qualified());
        Self::refusal(404, "NotFound", &message, details(resource, name))
    }

    /// 409: another version or uid.
    #[must_use]
    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", resource.qualified());
        Self::refusal(409, "Conflict", &message, details(resource, name))
    }

    /// 409 of a POST.
    #[must_use]
    pub fn already_exists(resource: &Resource, name: &str, dying: bool) -> Self {
        let what = format!("{} \"{name}\" already exists", resource.qualified());
        let message = if dying { format!("object is being deleted: {what}") } else { what };
        Self::refusal(409, "AlreadyExists", &message, details(resource, name))
    }

    /// 422 with its causes.
    #[must_use]
    pub fn invalid(resource: &Resource, name: &str, causes: &[Cause]) -> Self {
        let kind = if resource.group.is_empty() {
            resource.kind.to_owned()
        } else {
            format!("{}.{}", resource.kind, resource.group)
        };
        let texts: Vec<String> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let all = if texts.len() == 1 { texts.concat() } else { format!("[{}]", texts.join(", ")) };
        let mut details = details(resource, name);
        details["kind"] = json!(resource.kind);
        let listed: Vec<Value> = causes
            .iter()
            .map(|cause| json!({"reason": cause.reason, "message": cause.message, "field": cause.field}))
            .collect();
        details["causes"] = json!(listed);
        Self::refusal(422, "Invalid", &format!("{kind} \"{name}\" is invalid: {all}"), details)
    }

    /// 400.
    #[must_use]
    pub fn bad_request(message: &str) -> Self {
        Self::refusal(400, "BadRequest", message, Value::Null)
    }
}

fn details(resource: &Resource, name: &str) -> Value {
    let mut details = json!({"name": name, "kind": resource.plural});
    if !resource.group.is_empty() {
        details["group"] = json!(resource.group);
    }
    details
}
