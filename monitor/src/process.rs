//! One monitor, put together from its parts: what the binary runs, and what suites run on a model of the cluster.
//!
//! Everything that a monitor does comes from here and from what it is given: the client, the table, the clocks and the
//! randomness are arguments, and time passes by the runtime's timers.

use std::sync::Arc;
use std::time::Duration;

use gco_runtime::clock::Clock;
use gco_runtime::random::Randomness;
use gco_store::table::Table;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::admin::telemetry::Telemetry;
use crate::cluster::{Api, Caches, Cluster};
use crate::config::Config;
use crate::control::metered::MeteredTable;
use crate::control::shared::{Shared, SharedParts};
use crate::control::{self, feed};
use crate::leadership::{Elector, ElectorSettings};

/// How long the Lease's release may keep the process, above its own bound.
const RELEASE_BOUND: Duration = Duration::from_secs(5);

/// What a monitor is made of.
pub struct ProcessParts {
    /// Settings.
    pub config: Config,
    /// Its name in the Lease.
    pub holder: String,
    /// The API server. Must not repeat a request by itself: a repeated write could outlive the claim that it was made
    /// under.
    pub client: kube::Client,
    /// The tables.
    pub table: Arc<dyn Table>,
    /// Clocks.
    pub clock: Arc<dyn Clock>,
    /// Tokens and jitter.
    pub randomness: Arc<dyn Randomness>,
    /// Metrics.
    pub telemetry: Arc<Telemetry>,
}

impl std::fmt::Debug for ProcessParts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ProcessParts").field("holder", &self.holder).finish_non_exhaustive()
    }
}

/// A monitor that has not begun yet.
#[derive(Debug)]
pub struct Process {
    shared: Arc<Shared>,
    api: Api,
    caches: Caches,
    elector: Elector,
}

impl Process {
    /// Puts the parts together. Nothing is asked of anybody before [`Process::run`].
    #[must_use]
    pub fn new(parts: ProcessParts) -> Self {
        let ProcessParts { config, holder, client, table, clock, randomness, telemetry } = parts;
        let api = Api::new(client, &config.namespace, config.kubernetes_time_out, clock.clone(), telemetry.clone());
        let caches = Caches::new(clock.clone()).with_kind_interval(config.optional_kinds_interval);
        let (elector, leadership) = Elector::new(ElectorSettings {
            api: api.clone(),
            holder: holder.clone(),
            times: config.lease,
            clock: clock.clone(),
            randomness: randomness.clone(),
            telemetry: telemetry.clone(),
        });
        let shared = Arc::new(Shared::new(SharedParts {
            config,
            holder,
            table: Arc::new(MeteredTable::new(table, telemetry.clone())),
            cluster: Cluster::new(api.clone(), caches.clone()),
            leadership,
            clock,
            randomness,
            telemetry,
        }));
        Self { shared, api, caches, elector }
    }

    /// What all its tasks share, for the admin port.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Runs until `stop`, then finishes what is under way and gives the Lease up, both bounded in time. Dropped, it ends at
    /// once with all its tasks.
    ///
    /// # Errors
    /// [`feed::UnusableTable`] when the table must not be used; else a task that ended by itself.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let Self { shared, api, caches, elector } = self;
        let index = feed::check(&shared, &stop).await?;
        // Ends after everything else: the caches are of use while passes finish.
        let last = CancellationToken::new();
        let watches = {
            let (caches, last) = (caches.clone(), last.clone());
            AbortOnDropHandle::new(tokio::spawn(async move { caches.watch(&api, last).await }))
        };
        let give_up = CancellationToken::new();
        let mut election = {
            let give_up = give_up.clone();
            let highest_term = move || caches.highest_term();
            AbortOnDropHandle::new(tokio::spawn(async move { elector.run(give_up, highest_term).await }))
        };
        let result = tokio::select! {
            ended = control::run(shared, index, stop) => ended.map_err(anyhow::Error::from),
            // Without the task that renews and ends the claim nothing may go on.
            ended = &mut election => Err(anyhow::anyhow!("the leadership task ended by itself: {ended:?}")),
        };
        give_up.cancel();
        if !election.is_finished() && tokio::time::timeout(RELEASE_BOUND, election).await.is_err() {
            tracing::warn!("the leadership task did not end in time");
        }
        last.cancel();
        drop(watches);
        result
    }
}
