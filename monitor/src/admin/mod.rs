//! Health, readiness, metrics and a state page, over HTTP on a port of its own.
//!
//! | Path | Answer |
//! |---|---|
//! | `GET /healthz` | 200 while the control loop ticks; 500 once it has not for 60 s |
//! | `GET /readyz` | 200 when the caches are complete and the table answers; else 503, saying what is missing |
//! | `GET /metrics` | Prometheus text |
//! | `GET /state` | JSON: leadership, table, and every endpoint of this region |
//! | `POST /full-pass` | plans every endpoint anew; only with `GCO_ALLOW_FORCED_PASS` |

pub mod telemetry;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use gco_runtime::metrics::Metrics;
use gco_store::row::DesiredState;
use gco_store::status::State as EntryState;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::control::shared::Shared;

/// How long the control loop may be silent before the process counts as stuck. It ticks every second.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// An endpoint is stuck after so many failed passes in a row: the waits between them double, so that is no hiccup.
const STUCK_PASSES: u32 = 3;

/// Opens the port.
///
/// # Errors
/// When the address cannot be bound.
pub async fn bind(host: &str, port: u16) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener =
        TcpListener::bind((host, port)).await.with_context(|| format!("cannot listen on {host} port {port}"))?;
    let address = listener.local_addr().context("the listener has no address")?;
    Ok((listener, address))
}

/// Serves until `stop`.
///
/// # Errors
/// When accepting connections fails for good.
pub async fn serve(listener: TcpListener, shared: Arc<Shared>, stop: CancellationToken) -> anyhow::Result<()> {
    let router = router(shared);
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await.context("the admin port failed")
}

fn router(shared: Arc<Shared>) -> Router {
    let mut router = Router::new()
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/state", get(state));
    if shared.config.allow_forced_pass {
        router = router.route("/full-pass", post(full_pass));
    }
    router.with_state(shared)
}

async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let silent = shared.since_tick();
    if silent < STUCK_AFTER {
        return (StatusCode::OK, "ok\n").into_response();
    }
    let text = format!("the control loop has not ticked for {} s\n", silent.as_secs());
    (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
}

/// What keeps this process from being ready; a standby is ready, too.
fn missing(shared: &Shared) -> Vec<String> {
    let mut missing: Vec<String> = shared
        .cluster
        .caches
        .missing()
        .into_iter()
        .map(|resource| format!("the cache of {resource} is not complete"))
        .collect();
    if !shared.is_table_checked() {
        missing.push("the table has not passed its check".to_owned());
    } else if shared.is_table_away() {
        missing.push(format!("the table was last read {} s ago", shared.contact_age().as_secs()));
    }
    missing
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let missing = missing(&shared);
    if missing.is_empty() {
        return (StatusCode::OK, "ready\n").into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", missing.join("; "))).into_response()
}

/// Sets what is measured by looking, not by counting.
fn refresh(shared: &Shared) {
    let telemetry = &shared.telemetry;
    telemetry.set_original(shared.since_tick() < STUCK_AFTER, shared.since_last_pass());
    let remaining = shared.leadership.claim().map_or(Duration::ZERO, |claim| claim.remaining());
    telemetry.claim_remaining_seconds.set(remaining.as_secs_f64());
    telemetry.leader.set(i64::from(!remaining.is_zero()));
    telemetry.last_complete_read_age_seconds.set(shared.complete_read_age().as_secs_f64());
    telemetry.table_away.set(i64::from(shared.is_table_away()));
    for (resource, synced, objects) in shared.cluster.caches.sizes() {
        telemetry.cache_synced.with_label_values(&[resource]).set(i64::from(synced));
        telemetry.cache_objects.with_label_values(&[resource]).set(i64::try_from(objects).unwrap_or(i64::MAX));
    }
    let mut counts: Vec<i64> = vec![0; telemetry::STATES.len()];
    let region = &shared.config.region;
    for held in shared.rows().iter().filter(|held| held.row.concerns(region)) {
        let state = held.row.region_status.get(region).map_or("none", |entry| entry.state.as_str());
        if let Some(index) = telemetry::STATES.iter().position(|known| *known == state) {
            counts[index] += 1;
        }
    }
    for (state, count) in telemetry::STATES.iter().zip(counts) {
        telemetry.endpoints.with_label_values(&[state]).set(count);
    }
    let mut pending = vec![0; telemetry::PENDING.len()];
    for held in shared.rows().iter() {
        let row = &held.row;
        let asked = matches!(row.desired_state, DesiredState::Deploying | DesiredState::Running);
        let entry = row.region_status.get(region);
        let serves = entry.is_some_and(|entry| entry.state == EntryState::Running);
        if !asked || serves || !row.is_target(region) {
            continue;
        }
        let word = telemetry::pending_word(entry.and_then(|entry| entry.error.as_deref()));
        if let Some(index) = telemetry::PENDING.iter().position(|known| *known == word) {
            pending[index] += 1;
        }
    }
    for (word, count) in telemetry::PENDING.iter().zip(pending) {
        telemetry.pending.with_label_values(&[word]).set(count);
    }
    telemetry.stuck.set(i64::try_from(shared.stuck(STUCK_PASSES)).unwrap_or(i64::MAX));
    telemetry.oldest_unapplied_seconds.set(shared.oldest_unapplied().as_secs_f64());
    let unusable = shared.last_passes().values().filter(|last| last.intent == "unusable").count();
    telemetry.rows_unusable.set(i64::try_from(unusable).unwrap_or(i64::MAX));
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    refresh(&shared);
    match shared.telemetry.render() {
        Ok(text) => ([(header::CONTENT_TYPE, Metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Nothing of a spec is shown: environments may hold secrets.
async fn state(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let region = &shared.config.region;
    let passes = shared.last_passes();
    let now = shared.now();
    let endpoints: Vec<Value> = shared
        .rows()
        .iter()
        .filter(|held| held.row.concerns(region))
        .map(|held| {
            let entry = held.row.region_status.get(region);
            let last = passes.get(&held.row.name);
            json!({
                "name": held.row.name,
                "desired_state": held.row.desired_state.as_str(),
                "updated_at": held.row.updated_at,
                "state": entry.map(|entry| entry.state.as_str()),
                "replicas_ready": entry.map(|entry| entry.replicas_ready),
                "replicas_desired": entry.map(|entry| entry.replicas_desired),
                "degraded": entry.map(|entry| entry.degraded),
                "error": entry.and_then(|entry| entry.error.as_deref()),
                "last_pass": last.map(|last| json!({
                    "outcome": last.outcome,
                    "asked": last.intent,
                    "seconds_ago": now.saturating_duration_since(last.ended).as_secs_f64(),
                    "failures": last.failures,
                    "obstacles": last.obstacles,
                })),
            })
        })
        .collect();
    let claim = shared.leadership.claim();
    Json(json!({
        "region": region,
        "cluster": shared.config.cluster_name,
        "version": env!("CARGO_PKG_VERSION"),
        "holder": shared.holder,
        "leader": claim.as_ref().is_some_and(|claim| !claim.remaining().is_zero()),
        "term": claim.as_ref().map(|claim| claim.mark().term),
        "claim_remaining_seconds": claim.map_or(0.0, |claim| claim.remaining().as_secs_f64()),
        "frozen": shared.is_frozen(),
        "admission_fence": shared.fence().words(),
        "not_ready": missing(&shared),
        "last_complete_read_seconds_ago": shared.complete_read_age().as_secs_f64(),
        "endpoints": endpoints,
    }))
}

async fn full_pass(State(shared): State<Arc<Shared>>) -> Response {
    tracing::info!(action = "full_pass", "a full pass was asked for");
    shared.mark_everything();
    (StatusCode::ACCEPTED, "every endpoint is planned anew\n").into_response()
}
