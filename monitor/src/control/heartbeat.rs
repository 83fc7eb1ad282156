//! The leader's sign of life in the second table, whose answer carries the operator's freeze switch.

use std::sync::Arc;
use std::time::Duration;

use gco_store::table::{ErrorCategory, RegionHeartbeat};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::shared::Shared;

/// How long one heartbeat may take.
const TIME_OUT: Duration = Duration::from_secs(3);

/// Writes a heartbeat every interval while leading, until `stop`.
///
/// `heard` is told the term whose first heartbeat was tried: before it, nothing may be changed, or a frozen region would
/// change things at each take-over.
pub async fn run(shared: Arc<Shared>, heard: watch::Sender<u64>, stop: CancellationToken) {
    let mut leadership = shared.leadership.clone();
    let mut said_missing = false;
    loop {
        let claim = leadership.claim();
        if let Some(claim) = &claim
            && !claim.remaining().is_zero()
        {
            beat(&shared, &mut said_missing).await;
            heard.send_replace(claim.mark().term);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = leadership.changed() => {}
            () = tokio::time::sleep(shared.config.heartbeat_interval) => {}
        }
    }
}

async fn beat(shared: &Shared, said_missing: &mut bool) {
    let heartbeat = RegionHeartbeat {
        region: shared.config.region.clone(),
        last_heartbeat: gco_store::time::format(shared.clock.wall()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        leader: shared.holder.clone(),
        last_complete_read_age_seconds: shared.complete_read_age().as_secs(),
        admission_fence: shared.fence().words(),
    };
    match shared.table.write_heartbeat(&heartbeat, TIME_OUT).await {
        Ok(item) => {
            *said_missing = false;
            if shared.restarts.clear(item.restarts_cleared_at.clone()) {
                shared.mark_everything();
            }
            if shared.set_frozen(item.frozen) {
                if item.frozen {
                    tracing::warn!(action = "freeze", "this region is frozen by an operator: nothing is changed");
                } else {
                    tracing::info!(action = "unfreeze", "this region is not frozen any more");
                }
                shared.mark_everything();
            }
        }
        // A fleet that was not given the second table yet works without it, and cannot be frozen.
        Err(error) if error.category == ErrorCategory::Table => {
            if !*said_missing {
                tracing::warn!(error = %error, "no table of regions: no heartbeat, no freeze switch");
                *said_missing = true;
            }
        }
        // Whether the region is frozen stays as last known.
        Err(error) => tracing::warn!(error = %error, "heartbeat failed"),
    }
}
