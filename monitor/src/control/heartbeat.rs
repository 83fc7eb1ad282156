//! The leader's sign of life in the second table, with what no row owns; its answer carries the operator's freeze switch.

use std::sync::Arc;
use std::time::Duration;

use gco_runtime::clock::BootTime;
use gco_store::orphans::OrphanReport;
use gco_store::table::{ErrorCategory, RegionHeartbeat};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::shared::Shared;
use crate::orphans::Suspicion;

/// How long one heartbeat may take.
const TIME_OUT: Duration = Duration::from_secs(3);

/// Writes a heartbeat every interval while leading, until `stop`.
///
/// `heard` is told the term whose first heartbeat was tried: before it, nothing may be changed, or a frozen region would
/// change things at each take-over.
pub async fn run(shared: Arc<Shared>, heard: watch::Sender<u64>, stop: CancellationToken) {
    let mut leadership = shared.leadership.clone();
    let mut said_missing = false;
    let mut suspicion = Suspicion::default();
    loop {
        let claim = leadership.claim();
        if let Some(claim) = &claim
            && !claim.remaining().is_zero()
        {
            beat(&shared, &mut suspicion, &mut said_missing).await;
            heard.send_replace(claim.mark().term);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = leadership.changed() => {}
            () = tokio::time::sleep(shared.config.heartbeat_interval) => {}
        }
    }
}

/// What no row owns, as far as this process can know now; `None` when it cannot.
fn orphans(shared: &Shared, suspicion: &mut Suspicion<BootTime>, now: &str) -> Option<OrphanReport> {
    if shared.is_table_away() {
        return None;
    }
    let (rows, read_began) = {
        let rows = shared.rows();
        // An item that is no row may be one that owns something.
        if !rows.unreadable().is_empty() {
            return None;
        }
        (rows.iter().map(|held| held.row.clone()).collect::<Vec<_>>(), rows.last_complete_read())
    };
    let looked = shared.now();
    let suspects = shared.cluster.caches.suspects(rows.iter().map(AsRef::as_ref), &shared.config.region)?;
    let report = OrphanReport::of(suspicion.confirmed(suspects, looked, read_began), now.to_owned());
    let count = i64::try_from(report.count).unwrap_or(i64::MAX);
    if shared.telemetry.orphans.get() != count {
        tracing::warn!(action = "orphans", count, "objects of ours that no row owns; they are left alone");
    }
    shared.telemetry.orphans.set(count);
    Some(report)
}

async fn beat(shared: &Shared, suspicion: &mut Suspicion<BootTime>, said_missing: &mut bool) {
    let now = gco_store::time::format(shared.clock.wall());
    let heartbeat = RegionHeartbeat {
        region: shared.config.region.clone(),
        orphans: orphans(shared, suspicion, &now),
        last_heartbeat: now,
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
