//! A pass's writes to the row: status, promotion, back-fill, purge. Every one is conditional, and refused ones are
//! followed by a strong read and a new decision.

use gco_store::row::{DesiredState, EndpointRow};
use gco_store::status::{RegionEntry, State};
use gco_store::table::{Outcome, TableError};
use gco_store::transition::{self, OperationError, StatusAuthority, Transition};

use super::super::announce::announce;
use super::super::metered::category_of;
use super::super::rows::Held;
use super::{Pass, PassEnd, Turn};
use crate::intent::{CleanUp, Intent};
use crate::report::Category;

/// What became of a conditional write.
pub(super) enum Written {
    /// Applied; the row as it is now, `None` when it is gone.
    Applied(Option<Held>),
    /// Not applied, or not knowable: the row was read again, so decide anew.
    Refused,
    /// The pass is over.
    End(PassEnd),
}

impl Pass<'_> {
    /// Executes one transition under the claim and takes its answer over. The row that comes back may carry an edit of
    /// somebody else that wakes nobody any more: whoever calls this decides anew, or compares.
    pub(super) async fn write(&mut self, transition: &Transition) -> Written {
        let shared = self.shared;
        if let Err(over) = self.claim.check() {
            shared.telemetry.refused(over.reason());
            return Written::End(PassEnd::failed(Category::Fenced));
        }
        match shared.table.execute(transition).await {
            Ok(Outcome::Applied(item)) => {
                self.changed = true;
                // Known since the acknowledgement: a read that began before it may not show the write.
                let acknowledged = shared.now();
                let row = match item.map(EndpointRow::parse) {
                    None => None,
                    Some(Ok(row)) => Some(row),
                    Some(Err(_)) => return self.read_again().await,
                };
                let mut changes = shared.rows().take(self.name, row, acknowledged);
                changes.changed.remove(self.name);
                shared.note_changes(changes);
                Written::Applied(shared.rows().get(self.name))
            }
            Ok(Outcome::Refused(_)) => {
                shared.telemetry.refused("row_condition");
                tracing::debug!(operation = transition.operation.as_str(), "the row changed; reading it again");
                self.read_again().await
            }
            Err(error) => Written::End(self.table_failed(transition.operation.as_str(), &error)),
        }
    }

    async fn read_again(&mut self) -> Written {
        match self.shared.read_row(self.name).await {
            Ok(_) => Written::Refused,
            Err(error) => Written::End(self.table_failed("get", &error)),
        }
    }

    /// Logs a failure of the table.
    pub(super) fn table_failed(&mut self, operation: &str, error: &TableError) -> PassEnd {
        let category = category_of(error);
        tracing::warn!(operation, error = %error, "the table refused or did not answer");
        PassEnd::failed(category)
    }

    fn impossible(&mut self, error: &OperationError) -> Turn {
        let text = error.to_string();
        self.say_once(&text, || tracing::error!(problem = %text, "the row does not allow what it asks for"));
        Turn::End(PassEnd::failed(Category::Invalid))
    }

    /// Writes this region's entry; `Ok` with the row as it is then.
    pub(super) async fn write_status(
        &mut self,
        row: &EndpointRow,
        intent: &Intent,
        entry: &RegionEntry,
    ) -> Result<Option<Held>, Turn> {
        let authority = match intent {
            Intent::Serve { identity, .. }
            | Intent::Stop { identity, .. }
            | Intent::Reject { identity, .. }
            | Intent::Remove { clean_up: CleanUp::RegionRemoved(identity), .. } => StatusAuthority::Live {
                lifecycle_id: identity.lifecycle_id.clone(),
                region_generation: identity.region_generation.clone(),
            },
            Intent::Remove { clean_up: CleanUp::Deleted { lifecycle_id, deletion_generation }, .. } => {
                StatusAuthority::Deletion {
                    lifecycle_id: lifecycle_id.clone(),
                    deletion_generation: deletion_generation.clone(),
                }
            }
            Intent::AwaitPurge | Intent::BackFill | Intent::Ignore | Intent::Unusable { .. } => {
                return Err(Turn::End(PassEnd::REST));
            }
        };
        let region = self.shared.config.region.as_str();
        let now = self.shared.clock.wall();
        let transition = match transition::write_region_status(row, region, entry, &authority, now) {
            Ok(transition) => transition,
            // A row of the original without the map of statuses is completed like one without a lifecycle.
            Err(error) => {
                return Err(match self.completion(row) {
                    Ok(Some((transition, action))) => self.complete(&transition, action).await,
                    _ => self.impossible(&error),
                });
            }
        };
        match self.write(&transition).await {
            Written::Applied(held) => {
                self.memory.status_written = Some(self.shared.now());
                tracing::info!(
                    action = "status",
                    state = entry.state.as_str(),
                    replicas_ready = entry.replicas_ready,
                    replicas_desired = entry.replicas_desired,
                    degraded = entry.degraded,
                    error = entry.error.as_deref().unwrap_or_default(),
                    "wrote this region's status"
                );
                let before = row.region_status.get(region);
                announce(self.shared, self.claim, self.name, before, entry);
                Ok(held)
            }
            Written::Refused => Err(Turn::Decide),
            Written::End(end) => Err(Turn::End(end)),
        }
    }

    /// `deploying` becomes `running` as soon as this region can serve (D-1): each region's own status gates its traffic.
    /// Returns the row as it is then.
    pub(super) async fn promote(&mut self, held: Held) -> Result<Held, Turn> {
        let row = &held.row;
        let own = row.region_status.get(&self.shared.config.region);
        let serves = own.is_some_and(|entry| entry.state == State::Running);
        if row.desired_state != DesiredState::Deploying || !serves {
            return Ok(held);
        }
        let transition = match transition::promote(row, self.shared.clock.wall()) {
            Ok(transition) => transition,
            Err(error) => return Err(self.impossible(&error)),
        };
        match self.write(&transition).await {
            Written::Applied(promoted) => {
                tracing::info!(action = "promote", "the endpoint serves: deploying becomes running");
                promoted.ok_or(Turn::Decide)
            }
            Written::Refused => Err(Turn::Decide),
            Written::End(end) => Err(Turn::End(end)),
        }
    }

    /// The transition that completes a row without lifecycle metadata, or a deletion without its tokens.
    fn completion(&self, row: &EndpointRow) -> Result<Option<(Transition, &'static str)>, OperationError> {
        let now = self.shared.clock.wall();
        let mut token = || self.shared.randomness.token();
        if let Some(transition) = transition::back_fill(row, now, &mut token)? {
            return Ok(Some((transition, "initialize_lifecycle")));
        }
        if row.desired_state == DesiredState::Deleted {
            let transition = transition::set_desired_state(row, DesiredState::Deleted, None, now, &mut token)?;
            return Ok(Some((transition, "initialize_deletion")));
        }
        Ok(None)
    }

    async fn complete(&mut self, transition: &Transition, action: &'static str) -> Turn {
        match self.write(transition).await {
            Written::Applied(_) => {
                tracing::info!(action, "completed the row");
                Turn::Decide
            }
            Written::Refused => Turn::Decide,
            Written::End(end) => Turn::End(end),
        }
    }

    /// Completes the row (contract B.4, C.6).
    pub(super) async fn back_fill(&mut self, held: &Held) -> Turn {
        if self.shared.is_table_away() {
            return Turn::End(PassEnd::failed(Category::Unavailable));
        }
        match self.completion(&held.row) {
            Ok(Some((transition, action))) => self.complete(&transition, action).await,
            Ok(None) => {
                self.say_once("nothing to complete", || {
                    tracing::error!("the row asks to be completed, but nothing that could be is missing");
                });
                Turn::End(PassEnd::failed(Category::Bug))
            }
            Err(error) => self.impossible(&error),
        }
    }

    /// Purges the row when every region has acknowledged its deletion (contract C.9).
    pub(super) async fn purge(&mut self, held: &Held) -> Turn {
        if self.shared.is_frozen() || transition::purge(&held.row).is_none() {
            return Turn::End(PassEnd::REST);
        }
        // The quorum is looked at once more in what the table says now.
        let fresh = match self.shared.read_row(self.name).await {
            Ok(Some(fresh)) => fresh,
            Ok(None) => return Turn::End(PassEnd::REST),
            Err(error) => return Turn::End(self.table_failed("get", &error)),
        };
        let Some(transition) = transition::purge(&fresh.row) else { return Turn::Decide };
        match self.write(&transition).await {
            Written::Applied(_) => {
                tracing::info!(action = "purge", "every region has removed the endpoint; the row is gone");
                Turn::End(PassEnd::REST)
            }
            Written::Refused => Turn::Decide,
            Written::End(end) => Turn::End(end),
        }
    }
}
