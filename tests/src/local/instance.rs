//! An instance in a folder of its own: started, killed and started again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use gco_bed::wait;
use gco_local::instance::{DataFolder, INFERENCE_NAMESPACE, InstanceState, RegionState};
use gco_local::kubelet::DialMap;
use gco_runtime::clock::{Clock as _, SystemClock};
use gco_runtime::random::{Randomness as _, SystemRandomness};
use gco_store::embedded::EmbeddedTable;
use gco_store::operations::Store;
use gco_store::row::EndpointRow;
use gco_store::table::{Consistency, Table};
use gco_store::transition::CreateRequest;
use gco_store::wire::Value;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value as Json;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::BOUND;
use crate::region::Snapshot;
use crate::region::agreement::{self, QUIET};
use crate::region::monitor::program;

/// Settings that make waits of people shorter; relations between them stay.
const QUICK: [(&str, &str); 3] = [
    ("RECONCILE_INTERVAL_SECONDS", "0.5"),
    ("ABSENCE_GAP_SECONDS", "1"),
    // The engines' answers are long enough to be under way when something happens, and no longer.
    ("GCO_ENGINE_TOKEN_MILLISECONDS", "20"),
];

/// How many lines of what it said a message shows.
const SHOWN_LINES: usize = 12;

#[derive(Debug)]
struct Programs {
    local: PathBuf,
    engine: PathBuf,
    monitor: PathBuf,
}

impl Programs {
    fn find() -> anyhow::Result<Self> {
        Ok(Self {
            local: program("gco-local", &["infra/local/src", "infra/bed/src", "store/src", "infra/runtime/src"])?,
            engine: program("gco-engine", &["infra/local/src/engine"])?,
            monitor: program("gco-monitor", &["monitor/src", "store/src", "infra/runtime/src"])?,
        })
    }
}

/// A folder, and the `gco-local` that runs in it, if one does.
#[derive(Debug)]
pub struct LocalInstance {
    place: TempDir,
    regions: Vec<String>,
    programs: Programs,
    table: OnceCell<Arc<dyn Table>>,
    running: Option<Child>,
    starts: usize,
}

impl LocalInstance {
    /// A new folder for these regions; nothing runs yet.
    ///
    /// # Errors
    /// When no folder can be made, or a program is missing or older than its sources.
    pub fn new(regions: &[&str]) -> anyhow::Result<Self> {
        let place = tempfile::Builder::new().prefix("gco-suite-local-").tempdir().context("making a folder")?;
        let regions = regions.iter().map(|region| (*region).to_owned()).collect();
        Ok(Self { place, regions, programs: Programs::find()?, table: OnceCell::new(), running: None, starts: 0 })
    }

    /// Starts it and waits until it says that everything is up; gives how long that took.
    ///
    /// # Errors
    /// When it runs already, or does not come up.
    pub async fn up(&mut self) -> anyhow::Result<Duration> {
        ensure!(self.running.is_none(), "it runs already");
        self.starts += 1;
        let log = std::fs::File::create(self.log()).context("opening a log")?;
        let mut command = Command::new(&self.programs.local);
        command.arg("up").arg("--data-dir").arg(self.data());
        for region in &self.regions {
            command.args(["--region", region]);
        }
        let Programs { local: _, engine, monitor } = &self.programs;
        command.env("GCO_LOCAL_ENGINE", engine).env("GCO_LOCAL_MONITOR", monitor).envs(QUICK).env("PATH", self.path());
        let sink = log.try_clone().context("sharing a log")?;
        command.stdin(Stdio::null()).stdout(sink).stderr(log).kill_on_drop(true);
        let began = Instant::now();
        let mut child = command.spawn().context("starting gco-local")?;
        let pid = child.id().context("gco-local has ended")?;
        let told = wait::until("everything to be up", BOUND, || {
            let ended = child.try_wait().ok().flatten();
            // A state that a killed one left behind names that one's process.
            let told = self.state().is_ok_and(|state| state.pid == pid);
            std::future::ready(if ended.is_some() || told { Ok(ended) } else { Err(self.said()) })
        });
        if let Some(status) = told.await? {
            bail!("gco-local ended: {status}; {}", self.said());
        }
        self.running = Some(child);
        Ok(began.elapsed())
    }

    /// SIGKILL, and a wait until nothing of it is left.
    ///
    /// # Errors
    /// When it does not run, or something outlives it.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.send(Signal::SIGKILL).await?;
        self.nothing_is_left().await
    }

    /// SIGTERM, as `gco local down` sends it, and a wait until nothing of it is left.
    ///
    /// # Errors
    /// When it does not run, ends with an error, or something outlives it.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        let status = self.send(Signal::SIGTERM).await?;
        ensure!(status.success(), "gco-local ended: {status}; {}", self.said());
        self.nothing_is_left().await
    }

    async fn send(&mut self, signal: Signal) -> anyhow::Result<ExitStatus> {
        let mut child = self.running.take().context("it does not run")?;
        let pid = child.id().context("it has ended already")?;
        kill(Pid::from_raw(i32::try_from(pid)?), signal).context("sending a signal")?;
        let ended = tokio::time::timeout(BOUND, child.wait()).await.context("it does not end")?;
        Ok(ended?)
    }

    async fn nothing_is_left(&self) -> anyhow::Result<()> {
        wait::until("everything that it started to be gone", BOUND, || {
            let left = self.processes();
            std::future::ready(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) })
        })
        .await?;
        Ok(())
    }

    /// The regions.
    #[must_use]
    pub fn regions(&self) -> &[String] {
        &self.regions
    }

    fn data(&self) -> PathBuf {
        self.place.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.place.path().join(format!("up-{}.log", self.starts))
    }

    /// The search path, with a folder that does not exist: everything that an instance starts gets its search path, so
    /// that it can be told from everything else on this machine.
    fn path(&self) -> String {
        let inherited = gco_runtime::environment::Environment::process().get("PATH").unwrap_or_default().to_owned();
        format!("{inherited}:{}", self.mark())
    }

    fn mark(&self) -> String {
        self.place.path().join("mark").display().to_string()
    }

    /// The end of what it said since its last start.
    #[must_use]
    pub fn said(&self) -> String {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
    }

    fn state(&self) -> anyhow::Result<InstanceState> {
        DataFolder::open(&self.data())?.state()
    }

    /// Where things of a region are.
    ///
    /// # Errors
    /// When nothing runs, or not in this region.
    pub fn region(&self, region: &str) -> anyhow::Result<RegionState> {
        let found = self.state()?.regions.into_iter().find(|one| one.name == region);
        found.with_context(|| format!("there is no region {region}"))
    }

    /// A client with all rights in a region.
    ///
    /// # Errors
    /// When nothing runs, or its kubeconfig cannot be used.
    pub async fn client(&self, region: &str) -> anyhow::Result<Client> {
        gco_runtime::tls::install_provider();
        let file = Kubeconfig::read_from(self.region(region)?.kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    /// Where pods of a region listen now.
    ///
    /// # Errors
    /// When nothing runs, or the map cannot be read.
    pub fn dial_map(&self, region: &str) -> anyhow::Result<DialMap> {
        Ok(DialMap::read(&self.region(region)?.dial_map)?)
    }

    /// The table, opened once: other processes share the file.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub async fn table(&self) -> anyhow::Result<Arc<dyn Table>> {
        let open = async || -> anyhow::Result<Arc<dyn Table>> {
            let file = DataFolder::open(&self.data())?.table_file();
            let opened = tokio::task::spawn_blocking(move || EmbeddedTable::open(&file)).await?;
            let table: Arc<dyn Table> = Arc::new(opened?);
            Ok(table)
        };
        Ok(self.table.get_or_try_init(open).await?.clone())
    }

    /// What people do with endpoints: the operations of the command line.
    ///
    /// # Errors
    /// As [`LocalInstance::table`].
    pub async fn store(&self) -> anyhow::Result<Store> {
        let table = self.table().await?;
        Ok(Store::new(table, Arc::new(|| SystemClock.wall()), Arc::new(|| SystemRandomness.token())))
    }

    /// The request that makes an endpoint in every region.
    ///
    /// # Errors
    /// When `spec` cannot be stored.
    pub fn request(&self, name: &str, spec: &Json) -> anyhow::Result<CreateRequest> {
        let spec = Value::from_plain_json("spec", spec).map_err(|problem| anyhow::anyhow!("{problem}"))?;
        Ok(CreateRequest {
            name: name.to_owned(),
            spec,
            target_regions: self.regions.clone(),
            namespace: INFERENCE_NAMESPACE.to_owned(),
            labels: BTreeMap::new(),
            created_by: None,
        })
    }

    /// Everything that belongs to an endpoint in a region.
    ///
    /// # Errors
    /// When the region does not answer.
    pub async fn objects(&self, region: &str, name: &str) -> anyhow::Result<Snapshot> {
        Ok(Snapshot::take(&self.client(region).await?, INFERENCE_NAMESPACE).await?.of(name))
    }

    /// Waits until row, clusters and processes agree on an endpoint and nothing changed for a while: it serves as the row
    /// asks, or, when `is_gone`, nothing of it is left.
    ///
    /// # Errors
    /// When that does not come within the bound.
    pub async fn settled(&self, name: &str, is_gone: bool) -> anyhow::Result<()> {
        let table = self.table().await?;
        let mut clients = Vec::new();
        for region in &self.regions {
            clients.push((region.as_str(), self.client(region).await?));
        }
        let unchanged_since = Mutex::new((Vec::new(), Instant::now()));
        let look = async || -> anyhow::Result<Vec<String>> {
            let row = table.get(name, Consistency::Strong).await?.map(EndpointRow::parse).transpose();
            let row = row.map_err(|problem| anyhow::anyhow!("{problem}"))?;
            let mut problems = Vec::new();
            let mut seen = vec![row.as_ref().and_then(|row| row.updated_at.clone()).unwrap_or_default()];
            if row.is_none() != is_gone {
                problems.push(if is_gone { "the row is there" } else { "the row is gone" }.to_owned());
            }
            for (region, client) in &clients {
                let objects = Snapshot::take(client, INFERENCE_NAMESPACE).await?.of(name);
                problems.extend(
                    self.problem(row.as_ref(), region, &objects)?.map(|problem| format!("{region}: {problem}")),
                );
                seen.extend(objects.versions().into_iter().map(|(object, version)| format!("{object} {version}")));
            }
            let mut last = unchanged_since.lock().unwrap_or_else(PoisonError::into_inner);
            if last.0 != seen {
                *last = (seen, Instant::now());
            }
            let quiet = last.1.elapsed();
            if problems.is_empty() && quiet < QUIET {
                problems.push(format!("all is well, unchanged for {} ms", quiet.as_millis()));
            }
            Ok(problems)
        };
        let what = format!("{name} to settle");
        let settled = wait::until(&what, BOUND, async || match look().await {
            Ok(problems) if problems.is_empty() => Ok(()),
            Ok(problems) => Err(problems.join("; ")),
            Err(problem) => Err(format!("{problem:#}")),
        });
        settled.await.with_context(|| self.said())
    }

    fn problem(&self, row: Option<&EndpointRow>, region: &str, objects: &Snapshot) -> anyhow::Result<Option<String>> {
        let problem = match row {
            Some(row) => agreement::disagreement(row, region, objects),
            None => (!objects.is_empty()).then(|| format!("left: {:?}", objects.versions())),
        };
        if problem.is_some() { Ok(problem) } else { self.doubled(region, objects) }
    }

    /// Whether each pod has exactly one process, and one address at which it can be reached; what is not so.
    fn doubled(&self, region: &str, objects: &Snapshot) -> anyhow::Result<Option<String>> {
        let engines = self.engines();
        let dial_map = self.dial_map(region)?;
        for (name, pod) in &objects.pods {
            let processes = engines.get(name).cloned().unwrap_or_default();
            if processes.len() != 1 {
                return Ok(Some(format!("pod {name} has the processes {processes:?}")));
            }
            let port = pod.pointer("/spec/containers/0/ports/0/containerPort").and_then(Json::as_u64);
            let address = pod.pointer("/status/podIP").and_then(Json::as_str);
            let (Some(port), Some(address)) = (port, address) else {
                return Ok(Some(format!("pod {name} has no address")));
            };
            if dial_map.resolve(address.parse()?, u16::try_from(port)?).is_none() {
                return Ok(Some(format!("nobody listens for pod {name} at {address}:{port}")));
            }
        }
        Ok(None)
    }

    /// The engines of this instance, by pod.
    #[must_use]
    pub fn engines(&self) -> BTreeMap<String, Vec<u32>> {
        let mut engines: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for process in self.processes() {
            let is_engine = process.program.file_name().is_some_and(|name| name == "gco-engine");
            if let Some(pod) = process.pod.filter(|_| is_engine) {
                engines.entry(pod).or_default().push(process.pid);
            }
        }
        engines
    }

    /// Every process of this machine that an instance in this folder started.
    fn processes(&self) -> Vec<Process> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        entries.flatten().filter_map(|entry| Process::of_mark(&entry.path(), &self.mark())).collect()
    }
}

/// A process of an instance.
#[derive(Clone, Debug)]
struct Process {
    pid: u32,
    program: PathBuf,
    pod: Option<String>,
}

impl Process {
    /// Reads a process's folder; `None` when it has another mark, is not ours or has ended.
    fn of_mark(folder: &Path, mark: &str) -> Option<Self> {
        let pid = folder.file_name()?.to_str()?.parse().ok()?;
        // Other people's processes cannot be read.
        let variables = std::fs::read(folder.join("environ")).ok()?;
        let variables = String::from_utf8_lossy(&variables).into_owned();
        let value = |name: &str| variables.split('\0').find_map(|one| one.strip_prefix(name)?.strip_prefix('='));
        if !value("PATH")?.ends_with(mark) {
            return None;
        }
        let program = std::fs::read_link(folder.join("exe")).ok()?;
        Some(Self { pid, program, pod: value("POD_NAME").map(str::to_owned) })
    }
}
