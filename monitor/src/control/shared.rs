//! What every task of the monitor shares.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gco_runtime::clock::{BootTime, Clock};
use gco_runtime::random::Randomness;
use gco_store::problem::bounded;
use gco_store::row::EndpointRow;
use gco_store::table::{Consistency, Table, TableError};

use super::announce::EventBudget;
use super::fence::Fence;
use super::restarts::{Permission, Restarts, Tally};
use super::rows::{Changes, Held, Rows};
use crate::admin::telemetry::Telemetry;
use crate::cluster::Cluster;
use crate::cluster::caches::DirtyNames;
use crate::config::Config;
use crate::intent::{CleanUp, Intent, RegionContext, decide};
use crate::leadership::LeadershipView;
use crate::object::{ObjectKey, ObservedObject};
use crate::report::restarts::{RestartState, UnaskedRestart, began, unasked_restart};

/// A replacement that changed nothing, and in which generation of the object: one that somebody else changed since may
/// take it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Futile {
    /// Digest of the desire.
    pub digest: String,
    /// `metadata.generation` after it.
    pub generation: Option<i64>,
}

/// `metadata.generation`
pub(super) fn generation_of(object: &ObservedObject) -> Option<i64> {
    object.body.pointer("/metadata/generation").and_then(serde_json::Value::as_i64)
}

/// The last absence sweep that this process made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastSweep {
    /// For which authority.
    pub clean_up: CleanUp,
    /// When it ended (or when we began to wait, after a restart).
    pub ended: BootTime,
    /// Incomplete sweeps in a row, for the back-off.
    pub incomplete: u32,
}

/// What is remembered of one endpoint between passes. Losing it is safe.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Replacements without effect.
    pub futile: BTreeMap<ObjectKey, Futile>,
    /// Last absence sweep.
    pub sweep: Option<LastSweep>,
    /// The epoch in which it was last reconciled under row authority, and what for: what may go on while the table is
    /// away.
    pub under_authority: Option<(String, Intent)>,
    /// Since when no pod was ready although some should be, and whether that was warned about.
    pub unready: Option<(BootTime, bool)>,
    /// Words that were logged once.
    pub said: BTreeSet<String>,
    /// Since when an admission policy takes us for a deposed leader.
    pub stale_since: Option<BootTime>,
    /// When this region's entry was last written.
    pub status_written: Option<BootTime>,
    /// How the last pass ended, for the state page.
    pub last: Option<LastPass>,
    /// Passes in a row that failed.
    pub failures: u32,
}

/// How a pass ended, for the state page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastPass {
    /// Word of the passes' metric.
    pub outcome: &'static str,
    /// When it ended.
    pub ended: BootTime,
    /// What the region is asked for.
    pub intent: &'static str,
    /// Failures, in words.
    pub failures: Vec<String>,
    /// Obstacles, as `kind/name: reason`.
    pub obstacles: Vec<String>,
}

/// What every task shares.
pub struct Shared {
    /// Settings.
    pub config: Config,
    /// Our name in the Lease.
    pub holder: String,
    /// The tables, counted.
    pub table: Arc<dyn Table>,
    /// The cluster.
    pub cluster: Cluster,
    /// The leadership.
    pub leadership: LeadershipView,
    /// Clocks.
    pub clock: Arc<dyn Clock>,
    /// Tokens and jitter.
    pub randomness: Arc<dyn Randomness>,
    /// Metrics.
    pub telemetry: Arc<Telemetry>,
    /// Endpoints whose row changed.
    pub dirty_rows: DirtyNames,
    /// Events that were written lately.
    pub event_budget: EventBudget,
    started: BootTime,
    rows: Mutex<Rows>,
    memories: Mutex<BTreeMap<String, Memory>>,
    /// Restarts that no edit asked for.
    pub restarts: Restarts,
    /// Rows that changed, and when we heard of the first change that no pass has dealt with.
    unapplied: Mutex<BTreeMap<String, BootTime>>,
    frozen: AtomicBool,
    table_checked: AtomicBool,
    everything_dirty: AtomicBool,
    fence: Mutex<Fence>,
    last_tick_nanoseconds: AtomicU64,
    last_pass_nanoseconds: AtomicU64,
    /// When the last question began that the table or its change index answered; 0: none yet.
    last_contact_nanoseconds: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").field("holder", &self.holder).finish_non_exhaustive()
    }
}

/// What [`Shared::new`] needs.
#[derive(Clone)]
pub struct SharedParts {
    /// Settings.
    pub config: Config,
    /// Our name in the Lease.
    pub holder: String,
    /// The tables, counted.
    pub table: Arc<dyn Table>,
    /// The cluster.
    pub cluster: Cluster,
    /// The leadership.
    pub leadership: LeadershipView,
    /// Clocks.
    pub clock: Arc<dyn Clock>,
    /// Tokens and jitter.
    pub randomness: Arc<dyn Randomness>,
    /// Metrics.
    pub telemetry: Arc<Telemetry>,
}

impl std::fmt::Debug for SharedParts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SharedParts").field("holder", &self.holder).finish_non_exhaustive()
    }
}

fn store(cell: &AtomicU64, time: BootTime) {
    let nanoseconds = u64::try_from(time.elapsed_since_boot().as_nanos()).unwrap_or(u64::MAX);
    cell.store(nanoseconds, Ordering::Relaxed);
}

fn load(cell: &AtomicU64) -> BootTime {
    BootTime::since_boot(Duration::from_nanos(cell.load(Ordering::Relaxed)))
}

impl Shared {
    /// Nothing known yet.
    #[must_use]
    pub fn new(parts: SharedParts) -> Self {
        let SharedParts { config, holder, table, cluster, leadership, clock, randomness, telemetry } = parts;
        let started = clock.boot();
        let shared = Self {
            config,
            holder,
            table,
            cluster,
            leadership,
            clock,
            randomness,
            telemetry,
            dirty_rows: DirtyNames::default(),
            event_budget: EventBudget::default(),
            started,
            rows: Mutex::default(),
            memories: Mutex::default(),
            restarts: Restarts::default(),
            unapplied: Mutex::default(),
            frozen: AtomicBool::new(false),
            table_checked: AtomicBool::new(false),
            everything_dirty: AtomicBool::new(false),
            fence: Mutex::default(),
            last_tick_nanoseconds: AtomicU64::new(0),
            last_pass_nanoseconds: AtomicU64::new(0),
            last_contact_nanoseconds: AtomicU64::new(0),
        };
        shared.tick();
        store(&shared.last_pass_nanoseconds, started);
        shared
    }

    /// Now, for lengths of time.
    #[must_use]
    pub fn now(&self) -> BootTime {
        self.clock.boot()
    }

    /// A number from 0 to 1.
    #[must_use]
    pub fn jitter(&self) -> f64 {
        let token = self.randomness.token();
        let digits = token.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        f64::from(digits.unwrap_or(0)) / f64::from(u32::MAX)
    }

    /// The control loop is alive.
    pub fn tick(&self) {
        store(&self.last_tick_nanoseconds, self.now());
    }

    /// How long ago the control loop last was alive.
    #[must_use]
    pub fn since_tick(&self) -> Duration {
        self.now().saturating_duration_since(load(&self.last_tick_nanoseconds))
    }

    /// A pass ended (or, on a standby, a look at what there is to do).
    pub fn note_pass(&self) {
        store(&self.last_pass_nanoseconds, self.now());
    }

    /// How long ago the last pass ended.
    #[must_use]
    pub fn since_last_pass(&self) -> Duration {
        self.now().saturating_duration_since(load(&self.last_pass_nanoseconds))
    }

    /// What is known of the rows.
    pub fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memories(&self) -> MutexGuard<'_, BTreeMap<String, Memory>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is remembered of an endpoint; the pass that takes it puts it back.
    pub fn take_memory(&self, name: &str) -> Memory {
        self.memories().remove(name).unwrap_or_default()
    }

    /// Puts it back.
    pub fn put_memory(&self, name: &str, memory: Memory) {
        self.memories().insert(name.to_owned(), memory);
    }

    /// Restarts that no edit asked for and that are not over; `None` while a cache is incomplete.
    fn unasked_restarts(&self) -> Option<Vec<UnaskedRestart>> {
        let candidates = self.cluster.caches.deployments_where(|deployment| began(deployment).is_some())?;
        Some(candidates.iter().filter_map(|(deployment, observed)| unasked_restart(observed, deployment)).collect())
    }

    /// Asks whether an endpoint's pods may be restarted now though no edit asks for it.
    pub fn may_restart(&self, name: &str, at_once: Option<u32>) -> Permission {
        // Without complete caches nothing is planned either.
        let Some(standing) = self.unasked_restarts() else { return Permission::Wait };
        self.restarts.ask(name, &standing, self.config.restart_limits, at_once)
    }

    /// Measures restarts that no edit asked for, and says when they stop or go on.
    pub fn look_at_restarts(&self, leading: bool) {
        let standing = leading.then(|| self.unasked_restarts()).flatten().unwrap_or_default();
        let (tally, turned) = self.restarts.tally(&standing, self.config.restart_limits);
        let Tally { under_way, failed, stopped } = tally;
        self.telemetry.unasked_restarts(under_way, failed, stopped);
        if !turned {
            return;
        }
        if stopped {
            let failed: Vec<&str> = standing
                .iter()
                .filter(|restart| restart.state == RestartState::Failed)
                .map(|restart| restart.app.as_str())
                .collect();
            tracing::error!(
                action = "stop_restarts",
                failed = %bounded(&failed.join(","), 300),
                "restarts that no edit asked for have failed; none begins any more until somebody has looked"
            );
        } else {
            tracing::info!(action = "resume_restarts", "restarts that no edit asked for may begin again");
        }
        // Those that wait say so in their status.
        self.mark_everything();
    }

    /// Forgets an endpoint whose row is gone.
    pub fn forget(&self, name: &str) {
        self.memories().remove(name);
    }

    /// How every endpoint's last pass ended.
    #[must_use]
    pub fn last_passes(&self) -> BTreeMap<String, LastPass> {
        let memories = self.memories();
        memories.iter().filter_map(|(name, memory)| Some((name.clone(), memory.last.clone()?))).collect()
    }

    /// Whether an operator froze this region.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }

    /// Notes the freeze switch; returns whether it changed.
    pub fn set_frozen(&self, frozen: bool) -> bool {
        self.telemetry.frozen.set(i64::from(frozen));
        self.frozen.swap(frozen, Ordering::AcqRel) != frozen
    }

    /// What the last test of the admission fence found.
    #[must_use]
    pub fn fence(&self) -> Fence {
        *self.fence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a test of the admission fence found.
    pub fn set_fence(&self, fence: Fence) {
        self.telemetry.set_fence(&fence);
        *self.fence.lock().unwrap_or_else(PoisonError::into_inner) = fence;
    }

    /// Whether the table passed its check.
    #[must_use]
    pub fn is_table_checked(&self) -> bool {
        self.table_checked.load(Ordering::Acquire)
    }

    /// The table passed its check.
    pub fn set_table_checked(&self) {
        self.table_checked.store(true, Ordering::Release);
    }

    /// Wishes a pass over every endpoint.
    pub fn mark_everything(&self) {
        self.everything_dirty.store(true, Ordering::Release);
        // Any name wakes the loop; an unknown one has no other effect.
        self.dirty_rows.add([String::new()]);
    }

    /// Whether a pass over every endpoint was wished since the last call.
    pub fn take_everything(&self) -> bool {
        self.everything_dirty.swap(false, Ordering::AcqRel)
    }

    /// Age of the last complete read; since the start while there was none.
    #[must_use]
    pub fn complete_read_age(&self) -> Duration {
        let last = self.rows().last_complete_read().unwrap_or(self.started);
        self.now().saturating_duration_since(last)
    }

    /// The change index answered a question that began then.
    pub fn note_contact(&self, began: BootTime) {
        store(&self.last_contact_nanoseconds, began);
    }

    /// How long ago the table told us what changed, whole or by its index; since the start while it never did.
    #[must_use]
    pub fn contact_age(&self) -> Duration {
        self.complete_read_age().min(self.now().saturating_duration_since(load(&self.last_contact_nanoseconds)))
    }

    /// Whether the table has been silent for too long to act upon what it last said.
    #[must_use]
    pub fn is_table_away(&self) -> bool {
        self.rows().last_complete_read().is_none() || self.contact_age() > self.config.table_away_after()
    }

    /// Passes on what a read or write of rows changed.
    pub fn note_changes(&self, changes: Changes) {
        for name in &changes.gone {
            self.forget(name);
        }
        {
            let now = self.now();
            let mut unapplied = self.unapplied();
            unapplied.retain(|name, _| !changes.gone.contains(name));
            for name in &changes.changed {
                unapplied.entry(name.clone()).or_insert(now);
            }
        }
        self.dirty_rows.add(changes.changed.into_iter().chain(changes.gone));
    }

    fn unapplied(&self) -> MutexGuard<'_, BTreeMap<String, BootTime>> {
        self.unapplied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pass that began then has made the cluster what the row asks for.
    pub fn note_applied(&self, name: &str, began: BootTime) {
        let mut unapplied = self.unapplied();
        if unapplied.get(name).is_some_and(|heard| *heard <= began) {
            unapplied.remove(name);
        }
    }

    /// How long the oldest change of a row has been waiting for a pass that deals with it.
    #[must_use]
    pub fn oldest_unapplied(&self) -> Duration {
        let oldest = self.unapplied().values().min().copied();
        oldest.map_or(Duration::ZERO, |heard| self.now().saturating_duration_since(heard))
    }

    /// Forgets which changes wait: a standby deals with none.
    pub fn forget_unapplied(&self) {
        self.unapplied().clear();
    }

    /// Endpoints whose last passes have all failed, at least so many in a row.
    #[must_use]
    pub fn stuck(&self, passes: u32) -> usize {
        self.memories().values().filter(|memory| memory.failures >= passes).count()
    }

    /// What this region is asked for by a row, with what else is known now.
    #[must_use]
    pub fn decide(&self, row: &EndpointRow) -> Intent {
        let names = self.rows().names();
        decide(
            row,
            &RegionContext {
                region: &self.config.region,
                namespace: &self.config.namespace,
                other_names: &names,
                frozen: self.is_frozen(),
            },
        )
    }

    /// Reads one row strongly and takes it over, for one who acts upon it: its own change wakes nobody.
    ///
    /// # Errors
    /// Of the table.
    pub async fn read_row(&self, name: &str) -> Result<Option<Held>, TableError> {
        let changes = self.take_row(name).await?;
        let changes = Changes {
            changed: changes.changed.into_iter().filter(|changed| changed != name).collect(),
            gone: changes.gone,
        };
        self.note_changes(changes);
        Ok(self.rows().get(name))
    }

    /// Reads one row strongly, takes it over and passes on what changed.
    ///
    /// # Errors
    /// Of the table.
    pub async fn refresh_row(&self, name: &str) -> Result<Option<Held>, TableError> {
        let changes = self.take_row(name).await?;
        self.note_changes(changes);
        Ok(self.rows().get(name))
    }

    async fn take_row(&self, name: &str) -> Result<Changes, TableError> {
        let began = self.now();
        let item = self.table.get(name, Consistency::Strong).await?;
        // Without its name it is not the row that was asked for.
        let row = item.and_then(|item| EndpointRow::parse(item).ok());
        Ok(self.rows().take(name, row, began))
    }
}
