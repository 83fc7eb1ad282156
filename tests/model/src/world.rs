//! A region in virtual time: the model with its controllers, the tables, the real monitor, and people who want something.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use gco_monitor::admin::telemetry::Telemetry;
use gco_monitor::config::Config;
use gco_monitor::process::{Process, ProcessParts};
use gco_runtime::clock::Clock as _;
use gco_runtime::environment::Environment;
use gco_runtime::random::{Randomness as _, SeededRandomness};
use gco_store::operations::Store;
use gco_store::row::EndpointRow;
use gco_store::transition::CreateRequest;
use gco_store::wire::Value;
use serde_json::Value as Json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::VirtualClock;
use crate::controllers::{Controllers, Settings};
use crate::line::Line;
use crate::model::Model;
use crate::table::{ModelTable, TableLine};

/// The namespace of everything, as installed.
pub const NAMESPACE: &str = "gco-inference";
/// This region.
pub const REGION: &str = "us-east-1";
/// Another region, which a suite plays itself.
pub const ELSEWHERE: &str = "eu-west-1";

/// How long nothing may change before a run counts as over. The longest wait of a healthy monitor that is followed by a
/// change begins with a crash just before the second look at what is gone, and another as soon as its successor leads: 15 s
/// from the first look to the crash, twice 15 s and a look (2 s) until the Lease has expired, 15 s until the look is made
/// anew; 64 s in all. The longest back-off of an outage is 15 s.
const QUIET: Duration = Duration::from_secs(90);

/// How long a run may take to become quiet.
const BOUND: Duration = Duration::from_secs(1_800);

/// A monitor that runs.
#[derive(Debug)]
pub struct Running {
    /// Its line.
    pub line: Arc<Line>,
    stop: CancellationToken,
    task: AbortOnDropHandle<anyhow::Result<()>>,
}

impl Running {
    /// Ends it at once: everything that it remembers is lost.
    pub async fn kill(self) {
        self.line.cut();
        self.task.abort();
        // Its end is a cancellation; there is nothing to learn from it.
        let _ = self.task.await;
    }

    /// Asks it to end, and waits until it did.
    ///
    /// # Errors
    /// When it ends with an error.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.task.await.context("the monitor panicked")?
    }

    /// Whether it ended by itself.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }
}

/// A region.
#[derive(Debug)]
pub struct World {
    /// The cluster.
    pub model: Model,
    /// Its controllers.
    pub controllers: Controllers,
    /// The tables.
    pub table: ModelTable,
    /// The right time.
    pub clock: VirtualClock,
    randomness: Arc<SeededRandomness>,
    /// The version at which the run's subject began.
    pub mark: u64,
}

impl World {
    /// An empty region; everything random in it comes from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with(seed, Settings::default())
    }

    /// An empty region whose controllers are told something.
    #[must_use]
    pub fn with(seed: u64, settings: Settings) -> Self {
        let clock = VirtualClock::new();
        let model = Model::new(NAMESPACE, clock);
        let controllers = Controllers::start(&model, settings);
        let randomness = Arc::new(SeededRandomness::new(seed));
        Self { model, controllers, table: ModelTable::default(), clock, randomness, mark: 0 }
    }

    /// Installs KEDA: its kind is known from now on.
    pub fn install_keda(&self) {
        let administrator: Arc<str> = Arc::from("administrator");
        self.model.act(&administrator, |state| state.installed.insert("keda.sh"));
    }

    /// Starts a monitor that calls itself `holder` in the Lease.
    ///
    /// # Errors
    /// When its settings are refused.
    pub fn start(&self, holder: &str) -> anyhow::Result<Running> {
        self.start_with(holder, Line::new(holder, &self.model), self.clock)
    }

    /// Starts a monitor over a line, with a clock of its own.
    ///
    /// # Errors
    /// When its settings are refused.
    pub fn start_with(&self, holder: &str, line: Arc<Line>, clock: VirtualClock) -> anyhow::Result<Running> {
        let settings = [("REGION", REGION), ("INFERENCE_NAMESPACE", NAMESPACE), ("CLUSTER_NAME", "model")];
        let seed = self.randomness.token();
        let seed = seed.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0);
        let process = Process::new(ProcessParts {
            config: Config::read(&Environment::from_pairs(settings))?,
            holder: holder.to_owned(),
            client: line.client(),
            table: Arc::new(TableLine::new(&line, &self.table)),
            clock: Arc::new(clock),
            randomness: Arc::new(SeededRandomness::new(seed)),
            telemetry: Arc::new(Telemetry::new()?),
        });
        let stop = CancellationToken::new();
        let task = AbortOnDropHandle::new(tokio::spawn(process.run(stop.clone())));
        Ok(Running { line, stop, task })
    }

    /// The operations of the command line on this table.
    #[must_use]
    pub fn people(&self) -> Store {
        let (clock, randomness) = (self.clock, self.randomness.clone());
        Store::new(Arc::new(self.table.clone()), Arc::new(move || clock.wall()), Arc::new(move || randomness.token()))
    }

    /// Makes an endpoint.
    ///
    /// # Errors
    /// As the operation.
    pub async fn deploy(&self, name: &str, spec: &Json, regions: &[&str]) -> anyhow::Result<()> {
        let spec = Value::from_plain_json("spec", spec).map_err(|problem| anyhow::anyhow!("{problem}"))?;
        self.people()
            .create(&CreateRequest {
                name: name.to_owned(),
                spec,
                target_regions: regions.iter().map(|region| (*region).to_owned()).collect(),
                namespace: NAMESPACE.to_owned(),
                labels: BTreeMap::new(),
                created_by: None,
            })
            .await?;
        Ok(())
    }

    /// The row of a name.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn row(&self, name: &str) -> anyhow::Result<Option<EndpointRow>> {
        self.table
            .row(name)
            .map(|item| EndpointRow::parse(item).map_err(|problem| anyhow::anyhow!("{problem}")))
            .transpose()
    }

    /// A number that changes with every write to an object or a row; not with the Lease.
    fn activity(&self) -> (u64, u64) {
        let last = self.model.look(|state| {
            let counts =
                |entry: &&crate::state::Entry| entry.place.plural != "leases" && entry.place.plural != "events";
            state.history().iter().rev().find(counts).map_or(0, |entry| entry.version)
        });
        (last, self.table.writes())
    }

    /// Waits until nothing changed for a while.
    ///
    /// # Errors
    /// When that does not come.
    pub async fn quiet(&self) -> anyhow::Result<()> {
        let begin = self.clock.elapsed();
        let mut last = self.activity();
        let mut since = begin;
        loop {
            let now = self.clock.elapsed();
            let activity = self.activity();
            if activity != last {
                (last, since) = (activity, now);
            }
            if now.saturating_sub(since) >= QUIET {
                return Ok(());
            }
            if now.saturating_sub(begin) >= BOUND {
                bail!("it does not come to rest; last: {}", self.recent());
            }
            tokio::time::sleep((since + QUIET).saturating_sub(now).min(Duration::from_secs(5))).await;
        }
    }

    /// The last few things that happened, for failures.
    #[must_use]
    pub fn recent(&self) -> String {
        self.model.look(|state| {
            let events: Vec<String> = state
                .history()
                .iter()
                .rev()
                .filter(|entry| entry.place.plural != "leases")
                .take(25)
                .map(|entry| {
                    format!("{:.3} s {:?} {} by {}", millis(entry.at_milliseconds), entry.change, entry.place, entry.by)
                })
                .collect();
            events.into_iter().rev().collect::<Vec<_>>().join("\n  ")
        })
    }

    /// Waits until `holder` leads, by the Lease.
    ///
    /// # Errors
    /// When that does not come.
    pub async fn leads(&self, holder: &str) -> anyhow::Result<()> {
        let place =
            crate::state::Place::of(crate::object::Resource::of("leases"), NAMESPACE, "inference-monitor-leader");
        for _ in 0..1_200 {
            let of = self.model.look(|state| {
                state.get(&place).map(|lease| crate::object::text(lease, "/spec/holderIdentity").to_owned())
            });
            if of.as_deref() == Some(holder) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("{holder} does not lead within two minutes")
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown to people")]
fn millis(milliseconds: u128) -> f64 {
    milliseconds as f64 / 1_000.0
}

/// Runs a world to its end on a thread of its own time.
///
/// # Errors
/// What `run` returns.
pub fn in_virtual_time<T>(run: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .context("making a runtime")?;
    runtime.block_on(run)
}

#[async_trait::async_trait]
impl crate::scenario::Stage for World {
    fn store(&self) -> Store {
        self.people()
    }

    fn now(&self) -> jiff::Timestamp {
        self.clock.wall()
    }

    fn region(&self) -> String {
        REGION.to_owned()
    }

    fn elsewhere(&self) -> String {
        ELSEWHERE.to_owned()
    }

    async fn deploy(&self, name: &str, spec: &Json, regions: &[String]) -> anyhow::Result<()> {
        let regions: Vec<&str> = regions.iter().map(String::as_str).collect();
        Self::deploy(self, name, spec, &regions).await
    }

    async fn make(&self, object: &Json) -> anyhow::Result<()> {
        let kind = object["kind"].as_str().unwrap_or_default();
        let resource = crate::object::RESOURCES.iter().find(|one| one.kind == kind).context("an unknown kind")?;
        let prefix = if resource.group.is_empty() { "api" } else { "apis" };
        let path = format!("/{prefix}/{}/namespaces/{NAMESPACE}/{}", resource.api_version(), resource.plural);
        let original: Arc<str> = Arc::from("original");
        let request = crate::request::Request::new(http::Method::POST, &path, "", "", Some(object.clone()));
        let answer = self.model.handle(&original, &request);
        anyhow::ensure!(answer.status == 201, "{}", answer.body);
        Ok(())
    }

    async fn put_row(&self, row: gco_store::wire::Item) -> anyhow::Result<()> {
        self.table.put(row);
        Ok(())
    }

    async fn begun_to_remove(&self, virtual_seconds: u64) -> anyhow::Result<()> {
        tokio::time::sleep(Duration::from_secs(virtual_seconds)).await;
        Ok(())
    }

    async fn rest(&self) -> anyhow::Result<()> {
        self.quiet().await
    }
}
