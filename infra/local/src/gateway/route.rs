//! Which request goes where: the shared proxy's routing rules, as a pure function of the row.

use gco_store::row::{DesiredState, EndpointRow};
use gco_store::status::State;
use gco_store::wire::Value;
use http::{Method, StatusCode};

/// A request that is not passed on, in the shared proxy's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) detail: String,
}

fn refused(status: StatusCode, detail: impl Into<String>) -> Refused {
    Refused { status, detail: detail.into() }
}

/// Path segments that are never passed on.
const BLOCKED: [&str; 6] = ["admin", "debug", "docs", "instances", "metrics", "openapi.json"];

/// POST paths that are passed on.
const POSTED: [&str; 6] =
    ["v1/chat/completions", "v1/completions", "v1/embeddings", "v1/responses", "generate", "generate_stream"];

/// The Service that a request goes to. `roll` is a number from 0 to 99 that nobody can foresee: it
/// decides between an endpoint and its canary.
pub(super) fn service(
    row: &EndpointRow,
    region: &str,
    namespace: &str,
    method: &Method,
    path: &str,
    roll: u8,
) -> Result<String, Refused> {
    let of_row = row.namespace.as_deref().unwrap_or(namespace);
    if !is_label(of_row) {
        return Err(refused(StatusCode::NOT_FOUND, "Invalid inference namespace"));
    }
    if of_row != namespace {
        return Err(refused(StatusCode::SERVICE_UNAVAILABLE, "Inference endpoint namespace is not routable"));
    }
    if !row.is_target(region) {
        return Err(refused(StatusCode::NOT_FOUND, "Inference endpoint is not deployed in this region"));
    }
    let status = row.region_status.get(region);
    if row.desired_state != DesiredState::Running || status.is_none_or(|entry| entry.state != State::Running) {
        return Err(refused(StatusCode::SERVICE_UNAVAILABLE, "Inference endpoint is not ready in this region"));
    }
    let Some(spec) = row.spec.as_map() else {
        return Err(refused(StatusCode::SERVICE_UNAVAILABLE, "Inference endpoint has an invalid spec"));
    };
    let health_path = spec.get("health_check_path").and_then(Value::as_str).unwrap_or("/health");
    if !is_exposed(method, path, health_path) {
        return Err(refused(StatusCode::NOT_FOUND, "Inference path is not exposed"));
    }
    let mode = row.spec.at(&["mooncake", "mode"]).and_then(Value::as_str);
    if matches!(mode, Some("disaggregated" | "both")) {
        return Ok(format!("{}-proxy", row.name));
    }
    let canary = spec.get("canary").filter(|canary| canary.as_map().is_some());
    let canary_status = status.and_then(|entry| entry.extra.get("canary"));
    if let (Some(canary), Some(status)) = (canary, canary_status) {
        let number = |value: &Value, key: &str| value.at(&[key]).and_then(Value::as_integer).unwrap_or_default();
        let image = |value: &Value| value.at(&["image"]).and_then(Value::as_str).map(str::to_owned);
        let runs = status.at(&["state"]).and_then(Value::as_str) == Some("running") && image(status) == image(canary);
        let (desired, ready) = (number(status, "replicas_desired"), number(status, "replicas_ready"));
        let weight = number(canary, "weight");
        if runs && desired > 0 && ready >= desired && (1..=99).contains(&weight) && i64::from(roll) < weight {
            return Ok(format!("{}-canary", row.name));
        }
    }
    Ok(row.name.clone())
}

/// Whether a name can be an endpoint's: a DNS label of at most 63 characters.
pub(super) fn is_label(name: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= 63 && name.bytes().all(inside) && !name.starts_with('-') && !name.ends_with('-')
}

fn is_exposed(method: &Method, path: &str, health_path: &str) -> bool {
    let path = path.trim_matches('/');
    let segments: Vec<&str> = path.split('/').collect();
    if segments.iter().any(|segment| BLOCKED.contains(&segment.to_lowercase().as_str())) {
        return false;
    }
    let version_two = match segments.as_slice() {
        ["v2", "models"] | ["v2", "models", _] => true,
        ["v2", "models", _, last] => ["config", "infer", "ready", "stats"].contains(last),
        _ => false,
    };
    if version_two {
        return true;
    }
    if *method == Method::POST {
        return POSTED.contains(&path);
    }
    let models = matches!(segments.as_slice(), ["v1", "models"] | ["v1", "models", _]);
    models || ["", "health", "info", "server_info"].contains(&path) || path == health_path.trim_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use gco_store::status::RegionEntry;
    use gco_store::wire::{Item, item_from_dynamodb_json};

    fn row(change: impl FnOnce(&mut EndpointRow)) -> EndpointRow {
        let item: Item = item_from_dynamodb_json(
            &serde_json::from_str(
                r#"{"endpoint_name": {"S": "chat"}, "desired_state": {"S": "running"},
                    "target_regions": {"L": [{"S": "here"}]}, "spec": {"M": {"image": {"S": "i"}}}}"#,
            )
            .unwrap(),
        )
        .unwrap();
        let mut row = EndpointRow::parse(item).unwrap();
        row.region_status.insert("here".to_owned(), RegionEntry::new(State::Running));
        change(&mut row);
        row
    }

    fn route(row: &EndpointRow, method: &Method, path: &str, roll: u8) -> Result<String, (u16, String)> {
        let routed = service(row, "here", "gco-inference", method, path, roll);
        routed.map_err(|refused| (refused.status.as_u16(), refused.detail))
    }

    #[test]
    fn only_a_region_that_runs_an_endpoint_that_should_run_is_asked() {
        let ask = |row: &EndpointRow| route(row, &Method::POST, "v1/completions", 0);
        assert_eq!(ask(&row(|_| {})), Ok("chat".to_owned()));
        let not_ready = Err((503, "Inference endpoint is not ready in this region".to_owned()));
        assert_eq!(ask(&row(|row| row.desired_state = DesiredState::Deploying)), not_ready);
        assert_eq!(ask(&row(|row| row.region_status.clear())), not_ready);
        let updating = |row: &mut EndpointRow| {
            row.region_status.insert("here".to_owned(), RegionEntry::new(State::Updating));
        };
        assert_eq!(ask(&row(updating)), not_ready);
        let elsewhere = Err((404, "Inference endpoint is not deployed in this region".to_owned()));
        assert_eq!(ask(&row(|row| row.target_regions = vec!["there".to_owned()])), elsewhere);
        let other = Err((503, "Inference endpoint namespace is not routable".to_owned()));
        assert_eq!(ask(&row(|row| row.namespace = Some("other".to_owned()))), other);
        let invalid = Err((503, "Inference endpoint has an invalid spec".to_owned()));
        assert_eq!(ask(&row(|row| row.spec = Value::Null)), invalid);
    }

    #[test]
    fn only_listed_paths_are_passed_on() {
        let row = row(|_| {});
        for (method, path) in [
            (Method::POST, "v1/chat/completions"),
            (Method::GET, "v1/models"),
            (Method::GET, ""),
            (Method::GET, "/health/"),
            (Method::HEAD, "v1/models/x"),
            (Method::POST, "v2/models/x/infer"),
        ] {
            assert!(route(&row, &method, path, 0).is_ok(), "{method} {path}");
        }
        for (method, path) in [
            (Method::GET, "metrics"),
            (Method::POST, "v1/models"),
            (Method::GET, "v1/completions"),
            (Method::GET, "v1/models/ADMIN"),
            (Method::POST, "tokenize"),
        ] {
            let refused = Err((404, "Inference path is not exposed".to_owned()));
            assert_eq!(route(&row, &method, path, 0), refused, "{method} {path}");
        }
    }

    #[test]
    fn a_canary_that_runs_gets_its_share_and_a_split_endpoint_its_proxy() {
        let canary = |ready: &str| {
            let text = format!(
                r#"{{"canary": {{"M": {{"state": {{"S": "running"}}, "image": {{"S": "new"}},
                   "replicas_ready": {{"N": "{ready}"}}, "replicas_desired": {{"N": "1"}}, "weight": {{"N": "30"}}}}}}}}"#
            );
            item_from_dynamodb_json(&serde_json::from_str(&text).unwrap()).unwrap()
        };
        let with = |ready: &str| {
            row(|row| {
                let item = canary(ready);
                row.region_status.get_mut("here").unwrap().extra = item.clone();
                row.spec = Value::Map(item);
            })
        };
        assert_eq!(route(&with("1"), &Method::POST, "v1/completions", 29), Ok("chat-canary".to_owned()));
        assert_eq!(route(&with("1"), &Method::POST, "v1/completions", 30), Ok("chat".to_owned()));
        assert_eq!(route(&with("0"), &Method::POST, "v1/completions", 0), Ok("chat".to_owned()));
        let text = r#"{"mooncake": {"M": {"mode": {"S": "disaggregated"}}}}"#;
        let split = item_from_dynamodb_json(&serde_json::from_str(text).unwrap()).unwrap();
        let split = row(|row| row.spec = Value::Map(split));
        assert_eq!(route(&split, &Method::POST, "v1/completions", 0), Ok("chat-proxy".to_owned()));
    }
}
