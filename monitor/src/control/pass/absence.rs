//! The two looks, apart in time, that prove that an endpoint is gone (contract C.9).

use std::time::Duration;

use gco_store::row::EndpointRow;

use super::super::shared::LastSweep;
use super::reconcile::clean_up_of;
use super::{Pass, PassEnd, Turn};
use crate::cluster::AbsenceQuestion;
use crate::intent::{CleanUp, Intent};
use crate::plan::inventory_of;
use crate::report::Category;

/// First and longest wait after a sweep that found something: what it found is deleted by then, or needs somebody.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Complete sweeps that prove absence.
const PROOF: u32 = 2;

impl Pass<'_> {
    /// How long to wait before the next sweep, if it is not due yet.
    pub(super) fn wait_for_sweep(&mut self, intent: &Intent) -> Option<Duration> {
        let clean_up = clean_up_of(intent)?;
        let now = self.shared.now();
        let gap = self.shared.config.absence_gap;
        let last = self.memory.sweep.as_ref().filter(|last| last.clean_up == *clean_up);
        let (ended, wait) = match last {
            Some(last) if last.incomplete > 0 => (last.ended, again_after(last.incomplete)),
            Some(last) => (last.ended, gap),
            None if self.done.absence_observations == 0 => return None,
            None => {
                // Somebody before us made the first look; when it ended is not known on our clock, so the gap begins now.
                let waiting = LastSweep { clean_up: clean_up.clone(), ended: now, incomplete: 0 };
                self.memory.sweep = Some(waiting);
                (now, gap)
            }
        };
        let left = wait.saturating_sub(now.saturating_duration_since(ended));
        (!left.is_zero()).then_some(left)
    }

    /// One sweep; adds what it found to what is reported.
    pub(super) async fn sweep(&mut self, row: &EndpointRow, intent: &Intent) -> Result<PassEnd, Turn> {
        let Some(clean_up) = clean_up_of(intent) else { return Ok(PassEnd::REST) };
        let lifecycle_id = match clean_up {
            CleanUp::Deleted { lifecycle_id, .. } => lifecycle_id,
            CleanUp::RegionRemoved(identity) => &identity.lifecycle_id,
        };
        let keys = inventory_of(row);
        let lifecycles = self.shared.rows().lifecycles();
        let question = AbsenceQuestion { keys: &keys, lifecycle_id, known_lifecycles: &lifecycles };
        let sweep = self.shared.cluster.prove_absence(&question, self.claim).await;
        if sweep.fenced {
            tracing::warn!(action = "fence", "the claim ended during the absence sweep");
            return Err(self.fenced());
        }
        let absence = sweep.absence;
        let before = self.memory.sweep.take().filter(|last| last.clean_up == *clean_up);
        let incomplete = if absence.complete { 0 } else { before.map_or(0, |last| last.incomplete).saturating_add(1) };
        self.memory.sweep = Some(LastSweep { clean_up: clean_up.clone(), ended: self.shared.now(), incomplete });
        self.done.absence_observations = clean_up.absences_after(row, &self.shared.config.region, absence.complete);
        let (action, reason) = match clean_up {
            CleanUp::Deleted { .. } => ("delete", "deleted"),
            CleanUp::RegionRemoved(_) => ("cleanup", "region_removed"),
        };
        tracing::info!(
            action,
            reason,
            cleanup_complete = self.done.absence_observations >= PROOF,
            absence_observations = self.done.absence_observations,
            pending = absence.pending.join(","),
            foreign = absence.foreign.join(","),
            failures = absence.failures.join("; "),
            "looked for what is left of the endpoint"
        );
        let end = if absence.complete {
            // The status write is what counts it; the next look comes after the gap.
            PassEnd::waiting(self.shared.config.absence_gap.max(Duration::from_millis(1)))
        } else if absence.failures.is_empty() {
            PassEnd::waiting(again_after(incomplete))
        } else {
            PassEnd::failed(Category::Unavailable)
        };
        self.done.absence = Some(absence);
        Ok(end)
    }
}

/// The wait after the `incomplete`-th sweep in a row that found something.
fn again_after(incomplete: u32) -> Duration {
    AGAIN.0.saturating_mul(1 << incomplete.saturating_sub(1).min(16)).min(AGAIN.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_that_find_something_come_less_and_less_often() {
        let waits: Vec<u128> = (1..=8).map(|count| again_after(count).as_millis()).collect();
        assert_eq!(waits, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
    }
}
