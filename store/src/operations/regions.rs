//! Regions of an endpoint: added, removed, and declared absent by an operator (contract B.10, C.9; D-21).

use super::{Decision, Store, StoreError, Words};
use crate::row::{DesiredState, EndpointRow};
use crate::table::Outcome;
use crate::transition::{self, Declaration, OperationError};

/// Words for messages about region changes (contract F.1).
const MOVED: &str = "moved to other regions";

impl Store {
    /// Adds a region to the endpoint's targets, with a fresh generation even if it was one before. An endpoint that has the
    /// region already stays as it is.
    ///
    /// # Errors
    /// A bad region, an absent or deleted row, a conflict, a failed call.
    pub async fn add_region(&self, name: &str, region: &str) -> Result<EndpointRow, StoreError> {
        self.move_region(name, region, true).await
    }

    /// Takes a region out of the endpoint's targets: its monitor removes everything of the endpoint there, and proves it. An
    /// endpoint without the region stays as it is.
    ///
    /// # Errors
    /// The last region, an absent or deleted row, a conflict, a failed call.
    pub async fn remove_region(&self, name: &str, region: &str) -> Result<EndpointRow, StoreError> {
        self.move_region(name, region, false).await
    }

    /// One region in or out; what others do to other regions meanwhile stays.
    async fn move_region(&self, name: &str, region: &str, wanted: bool) -> Result<EndpointRow, StoreError> {
        let decide = |seen: &EndpointRow, row: &EndpointRow| {
            if row.is_target(region) == wanted {
                // Somebody else was quicker: it is as asked.
                return Ok(Some(Decision::Done));
            }
            // Moved out and in again by somebody else: that was not what the caller looked at.
            if seen.region_generation(region) != row.region_generation(region) {
                return Ok(None);
            }
            let mut targets = row.target_regions.clone();
            if wanted {
                targets.push(region.to_owned());
            } else {
                targets.retain(|target| target != region);
                if targets.is_empty() {
                    let message = format!(
                        "'{region}' is the only region of endpoint '{name}'; to remove it everywhere, use 'gco inference delete'"
                    );
                    return Err(OperationError::State(message));
                }
            }
            let transition = transition::update_target_regions(row, &targets, (self.now)(), &mut || (self.token)())?;
            Ok(Some(Decision::Write(transition)))
        };
        self.edit(name, Words::new(MOVED), decide).await
    }

    /// An operator's word that a region of a deleted endpoint is gone for good and will not confirm its absence (D-21). A
    /// region whose absence was declared or confirmed already stays as it is.
    ///
    /// # Errors
    /// A row that is not being deleted, a region that need not confirm, a bad declaration, a conflict, a failed call.
    pub async fn declare_absent(
        &self,
        name: &str,
        region: &str,
        declaration: &Declaration,
    ) -> Result<EndpointRow, StoreError> {
        let words = Words { takes_deleted: true, ..Words::new("declared absent") };
        let decide = |_: &EndpointRow, row: &EndpointRow| {
            if row.desired_state == DesiredState::Deleted && (row.acknowledged(region) || row.declared_absent(region)) {
                return Ok(Some(Decision::Done));
            }
            transition::declare_absent(row, region, declaration, (self.now)())
                .map(|transition| Some(Decision::Write(transition)))
        };
        self.edit(name, words, decide).await
    }

    /// Removes the row of a deleted endpoint when every region has confirmed or was declared absent (contract C.9). Monitors
    /// do this by themselves; this is for a fleet that has none left. Returns whether the row is gone.
    ///
    /// # Errors
    /// A failed call.
    pub async fn purge(&self, row: &EndpointRow) -> Result<bool, StoreError> {
        let Some(transition) = transition::purge(row) else { return Ok(false) };
        match self.table().execute(&transition).await? {
            Outcome::Applied(_) | Outcome::Refused(None) => Ok(true),
            Outcome::Refused(Some(_)) => Ok(false),
        }
    }
}
