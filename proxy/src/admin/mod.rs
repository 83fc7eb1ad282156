//! What the proxy answers by itself.
//!
//! | Path | Answer |
//! |---|---|
//! | `GET /health`, `GET /healthz` | 200 while the process works; engines are not asked (contract D.2) |
//! | `GET /readyz` | 200 when a decode engine is ready (and a prefill engine, if the policy is to fail without one) and the proxy is not ending; else 503, saying what is missing |
//! | `GET /metrics` | Prometheus text |
//! | `GET /admin/backends` | with the key: every engine and its state, JSON |
//! | `POST /admin/drain?backend=NAME`, `POST /admin/undrain?backend=NAME` | with the key: keeps new requests away from an engine (by `host:port` or pod UID), or lets them come again |
//! | `POST` of a path that ends in `/instances/add` | contract D.5: 200 with the key, else 403; no effect |
//!
//! The key is `x-admin-api-key`, else the bearer token of `authorization`. It is compared in constant time (D-43); without a
//! configured key everything behind it answers 403.

mod families;
pub mod metrics;
mod process;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aws_lc_rs::{constant_time, digest};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::backends::{Backend, Fleet, Role};
use crate::config::{Secret, Settings};
use crate::exchange::{Connector, Fallback};
use crate::relay::errors::Failure;
use crate::relay::headers::ADMIN_KEY;
use metrics::{Metrics, Mode};

/// The routes that the proxy answers by itself.
pub struct Admin {
    fleet: Fleet,
    metrics: Arc<Metrics>,
    key: Option<Secret>,
    connector: Connector,
    fallback: Fallback,
    has_prefill: bool,
    draining: AtomicBool,
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Admin").field("draining", &self.draining).finish_non_exhaustive()
    }
}

impl Admin {
    /// The routes for this fleet.
    #[must_use]
    pub fn new(settings: &Settings, fleet: Fleet, metrics: Arc<Metrics>) -> Self {
        Self {
            fleet,
            metrics,
            key: settings.admin_key.clone(),
            connector: settings.connector,
            fallback: settings.fallback,
            has_prefill: settings.sources.has_prefill(),
            draining: AtomicBool::new(false),
        }
    }

    /// How the metrics name the way the proxy works.
    #[must_use]
    pub fn mode(settings: &Settings) -> Mode {
        Mode { connector: settings.connector.word(), fallback: settings.fallback.word() }
    }

    /// The proxy ends: it is not ready from now on.
    pub fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.metrics.draining();
    }

    /// What keeps the proxy from being ready; empty when nothing does.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if self.draining.load(Ordering::Relaxed) {
            missing.push("the proxy is ending");
        }
        if !self.fleet.is_known(Role::Decode) {
            missing.push("the decode engines are not known yet");
        } else if !self.fleet.has_ready(Role::Decode) {
            missing.push("no decode engine is ready");
        }
        // With the other policy decode serves alone, so that the proxy is of use without prefill.
        if self.has_prefill && self.fallback == Fallback::Fail && !self.fleet.has_ready(Role::Prefill) {
            missing.push("no prefill engine is ready, and the policy is to fail without one");
        }
        missing
    }

    /// The answer to a request for the proxy itself; `None` when it is for an engine.
    #[must_use]
    pub fn answer(&self, request: &Parts) -> Option<Response<Bytes>> {
        let path = request.uri.path();
        let reads = request.method == Method::GET || request.method == Method::HEAD;
        let answer = match path {
            "/health" | "/healthz" if reads => object(StatusCode::OK, &json!({"status": "ok"})),
            "/readyz" if reads => self.readiness(),
            "/metrics" if reads => self.metrics(),
            "/admin/backends" | "/admin/drain" | "/admin/undrain" if !self.is_admin(&request.headers) => forbidden(),
            "/admin/backends" if reads => object(StatusCode::OK, &self.list()),
            "/admin/drain" if request.method == Method::POST => self.drain(request, true),
            "/admin/undrain" if request.method == Method::POST => self.drain(request, false),
            _ if request.method == Method::POST && path.ends_with("/instances/add") => {
                if self.is_admin(&request.headers) {
                    object(StatusCode::OK, &json!({"status": "ok"}))
                } else {
                    forbidden()
                }
            }
            "/health" | "/healthz" | "/readyz" | "/metrics" | "/admin/backends" | "/admin/drain" | "/admin/undrain" => {
                error(StatusCode::METHOD_NOT_ALLOWED, "this method is not known here")
            }
            _ => return None,
        };
        Some(answer)
    }

    fn readiness(&self) -> Response<Bytes> {
        let missing = self.missing();
        if missing.is_empty() {
            return object(StatusCode::OK, &json!({"status": "ready"}));
        }
        object(StatusCode::SERVICE_UNAVAILABLE, &json!({"status": "not ready", "missing": missing}))
    }

    fn metrics(&self) -> Response<Bytes> {
        match self.metrics.render() {
            Ok(text) => {
                let kind = HeaderValue::from_static(gco_runtime::metrics::Metrics::CONTENT_TYPE);
                response(StatusCode::OK, kind, Bytes::from(text))
            }
            Err(failed) => {
                tracing::error!(error = %failed, "metrics cannot be rendered");
                error(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be rendered")
            }
        }
    }

    /// Whether the request has the configured key.
    fn is_admin(&self, headers: &HeaderMap) -> bool {
        let Some(key) = &self.key else { return false };
        let given = headers.get(ADMIN_KEY).map(HeaderValue::as_bytes).or_else(|| {
            let authorization = headers.get(header::AUTHORIZATION)?.as_bytes();
            Some(authorization.strip_prefix(b"Bearer ").unwrap_or(authorization))
        });
        let given = given.unwrap_or_default().trim_ascii();
        // Digests have one length, so that the time tells nothing of the key's either.
        let digest = |text: &[u8]| digest::digest(&digest::SHA256, text);
        constant_time::verify_slices_are_equal(digest(given).as_ref(), digest(key.bytes()).as_ref()).is_ok()
    }

    fn list(&self) -> Value {
        let now = Instant::now();
        let of_role = |role: Role| -> Vec<Value> {
            self.fleet.backends(role).iter().map(|backend| self.described(backend, now)).collect()
        };
        json!({
            "connector": self.connector.word(),
            "fallback": self.fallback.word(),
            "scheduling": self.fleet.settings().policy.word(),
            "missing": self.missing(),
            "waiting": {"prefill": self.fleet.waiting(Role::Prefill), "decode": self.fleet.waiting(Role::Decode)},
            "prefill": of_role(Role::Prefill),
            "decode": of_role(Role::Decode),
        })
    }

    fn described(&self, backend: &Backend, now: Instant) -> Value {
        json!({
            "backend": backend.authority(),
            "key": backend.key().as_str(),
            "dial": backend.dial().to_string(),
            "bootstrap": backend.bootstrap().map(|bootstrap| bootstrap.address.as_str()),
            "state": backend.availability().word(),
            "drained": backend.is_drained(),
            "breaker": self.fleet.breaker_word(backend, now),
            "in_flight": backend.in_flight(),
            "requests": backend.requests(),
            "failures": backend.failures(),
        })
    }

    fn drain(&self, request: &Parts, drained: bool) -> Response<Bytes> {
        let query = request.uri.query().unwrap_or_default();
        let named = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "backend");
        let Some((_, name)) = named.filter(|(_, value)| !value.is_empty()) else {
            return error(StatusCode::BAD_REQUEST, "backend: host:port or the pod's UID is needed in the query");
        };
        let meant = self.fleet.set_drained(&name, drained, Instant::now());
        if meant == 0 {
            return error(StatusCode::NOT_FOUND, "backend: no engine is called so; GET /admin/backends names them");
        }
        let shown = gco_runtime::text::bounded(&name, 120);
        tracing::info!(backend = shown, drained, "drained or undrained by an administrator");
        object(StatusCode::OK, &json!({"status": "ok", "backends": meant}))
    }
}

fn forbidden() -> Response<Bytes> {
    object(StatusCode::FORBIDDEN, &json!({"error": "forbidden"}))
}

/// An error in the form of the other answers to clients.
fn error(status: StatusCode, message: &str) -> Response<Bytes> {
    Failure::invalid(status, message).response()
}

fn object(status: StatusCode, body: &Value) -> Response<Bytes> {
    response(status, HeaderValue::from_static("application/json"), Bytes::from(body.to_string()))
}

fn response(status: StatusCode, kind: HeaderValue, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests;
