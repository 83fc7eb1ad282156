//! The bootstrap server of a prefill engine: whoever wants KV asks it which engines are in this process.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde_json::json;

use super::Transfer;
use crate::engine::orders::QueryOrder;

/// `GET /query`; everything else, `/health` too, is not found.
pub(super) fn router(transfer: Arc<Transfer>) -> Router {
    Router::new().route("/query", get(query)).with_state(transfer)
}

async fn query(State(transfer): State<Arc<Transfer>>) -> Response {
    match transfer.orders.query() {
        None => Json(transfer.query()).into_response(),
        // As while the workers have not registered yet.
        Some(QueryOrder::Empty) => Json(json!({})).into_response(),
        Some(QueryOrder::Status(status)) => {
            StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR).into_response()
        }
        Some(QueryOrder::Hang) => std::future::pending().await,
        Some(QueryOrder::Body(body)) => body.into_response(),
    }
}
