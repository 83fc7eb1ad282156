//! A local instance: regions on this machine that share a table, from `up` to `down`.

mod folder;
mod manifests;
mod monitor;
mod progress;
mod region;
mod sample;
mod split;
mod table;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures::future::{join_all, select_all, try_join_all};
use gco_bed::binaries::Binaries;
use gco_runtime::environment::Environment;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio_util::sync::CancellationToken;

pub use folder::{DataFolder, HeldFolder, InstanceState, RegionFolder, RegionState};
pub use manifests::INFERENCE_NAMESPACE;
pub use progress::Progress;
pub use sample::{SAMPLE_IMAGE, SAMPLE_NAME};
pub use split::SplitSettings;

use crate::kubelet::MAXIMUM_REGIONS;
use region::Region;
use split::Split;
use table::SharedTable;

/// How long something that is being given up may still be held.
const REMOVAL_BOUND: Duration = Duration::from_secs(5);

/// How long `down` waits for an instance to end.
const DOWN_BOUND: Duration = Duration::from_secs(60);

/// What `up` is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpSettings {
    /// The regions, in order; none is allowed when there is a proxy.
    pub regions: Vec<String>,
    /// A prefill-decode proxy with engines of its own, beside the regions.
    pub split: Option<SplitSettings>,
    /// The data folder.
    pub data_dir: PathBuf,
    /// A server that speaks the DynamoDB protocol, instead of a file.
    pub dynamodb_endpoint: Option<String>,
    /// Deploy the sample endpoint and show an answer from each region.
    pub sample: bool,
    /// Stop once the sample has answered.
    pub then_stop: bool,
}

/// The programs that an instance runs besides the control planes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// `gco-engine`.
    pub engine: PathBuf,
    /// `gco-monitor`, built with the feature `embedded-table`.
    pub monitor: PathBuf,
    /// `gco-proxy`, if it is there.
    pub proxy: Option<PathBuf>,
    /// `gco`, if it is there: only for what is said.
    pub command_line: Option<PathBuf>,
    /// Whether `kubectl` is on the search path: only for what is said.
    pub has_kubectl: bool,
}

impl Programs {
    /// The programs beside this one, unless `GCO_LOCAL_ENGINE`, `GCO_LOCAL_MONITOR` and `GCO_LOCAL_PROXY` name others.
    ///
    /// # Errors
    ///
    /// When one of the first two is not there.
    pub fn find(environment: &Environment) -> anyhow::Result<Self> {
        let this = std::env::current_exe().context("asking where this program is")?;
        let find = |variable: &str, name: &str, build: &str| {
            let path = environment.non_empty(variable).map_or_else(|| this.with_file_name(name), PathBuf::from);
            ensure!(path.is_file(), "there is no {} (build it with '{build}', or set {variable})", path.display());
            Ok(path)
        };
        let command_line = this.with_file_name("gco");
        let folders = environment.non_empty("PATH").map(std::env::split_paths);
        let has_kubectl = folders.into_iter().flatten().any(|folder| folder.join("kubectl").is_file());
        let proxy = environment.non_empty("GCO_LOCAL_PROXY").map(PathBuf::from);
        let proxy = proxy.unwrap_or_else(|| this.with_file_name("gco-proxy"));
        Ok(Self {
            proxy: proxy.is_file().then_some(proxy),
            engine: find("GCO_LOCAL_ENGINE", "gco-engine", "cargo build -p gco-local")?,
            monitor: find("GCO_LOCAL_MONITOR", "gco-monitor", "cargo build -p gco-monitor --features embedded-table")?,
            command_line: command_line.is_file().then_some(command_line),
            has_kubectl,
        })
    }
}

/// Runs an instance until `stop` is cancelled, the sample has answered (when that is all that was
/// asked for) or a control plane fails.
///
/// # Errors
///
/// When the folder is in use, something cannot be started, or a control plane ends.
pub async fn up(settings: &UpSettings, environment: &Environment, stop: CancellationToken) -> anyhow::Result<()> {
    if settings.split.is_none() || !settings.regions.is_empty() {
        check_regions(&settings.regions)?;
    }
    let progress = Progress::start();
    let held = DataFolder::open_or_create(&settings.data_dir)?.hold().await?;
    let programs = Programs::find(environment)?;
    log_to(&held.folder().log_file())?;
    let run = stop.run_until_cancelled(start(settings, &held, &programs, environment, progress)).await;
    // Started parts of a start that was broken off have been killed by being dropped.
    let Some(started) = run else {
        progress.say("stopped before everything was up");
        return Ok(());
    };
    let Running { regions, split, table } = started?;
    let serving = serve(settings, &held, &programs, &regions, split.as_ref(), &table, progress);
    let outcome = stop.run_until_cancelled(serving).await;
    progress.say("stopping …");
    let stopped = Progress::start();
    let all = async {
        let split = async {
            if let Some(split) = split {
                split.stop().await;
            }
        };
        tokio::join!(join_all(regions.into_iter().map(Region::stop)), split)
    };
    if tokio::time::timeout(region::STOP_BOUND, all).await.is_err() {
        progress.say("not everything stopped in time: what is left is killed");
    }
    held.tell_nothing();
    stopped.say_time("everything is stopped; rows and objects are kept");
    outcome.unwrap_or(Ok(()))
}

fn check_regions(regions: &[String]) -> anyhow::Result<()> {
    ensure!(!regions.is_empty(), "name at least one region");
    ensure!(regions.len() <= MAXIMUM_REGIONS, "at most {MAXIMUM_REGIONS} regions fit on one machine");
    for (position, region) in regions.iter().enumerate() {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_name =
            !region.is_empty() && region.len() <= 30 && region.bytes().all(allowed) && !region.starts_with('-');
        ensure!(is_name, "{region:?} is no region: lower-case letters, digits and hyphens, at most 30");
        ensure!(!regions[..position].contains(region), "region {region} is named twice");
    }
    Ok(())
}

fn log_to(file: &Path) -> anyhow::Result<()> {
    use gco_runtime::clock::{Clock, SystemClock};
    use gco_runtime::log::{LogLayer, LogSettings};
    use std::io::Write as _;
    use std::sync::{Arc, Mutex, PoisonError};
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;

    let opened = std::fs::File::options().create(true).append(true).open(file);
    let log = Mutex::new(opened.with_context(|| format!("opening {}", file.display()))?);
    let settings = LogSettings { service: "gco-local".to_owned(), ..LogSettings::default() };
    let targets = settings.targets();
    let layer = LogLayer::new(settings, Arc::new(SystemClock) as Arc<dyn Clock>, move |line| {
        // A full disk must not end the regions; there is nowhere to report it either.
        let _ = log.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
    });
    // A suite that runs several instances in one process has its own log.
    let _ = tracing_subscriber::registry().with(targets).with(layer).try_init();
    Ok(())
}

async fn start(
    settings: &UpSettings,
    held: &HeldFolder,
    programs: &Programs,
    environment: &Environment,
    progress: Progress,
) -> anyhow::Result<Running> {
    let folder = held.folder();
    progress.say(format_args!("data folder: {}", folder.path().display()));
    let split = async {
        let Some(split) = &settings.split else { return Ok(None) };
        let proxy = programs.proxy.as_deref();
        let proxy = proxy
            .context("there is no gco-proxy (build it with 'cargo build -p gco-proxy', or set GCO_LOCAL_PROXY)")?;
        Split::start(split, &programs.engine, proxy, &folder.split(), environment, progress).await.map(Some)
    };
    let split = split.await?;
    if !settings.regions.is_empty() {
        Binaries::ready().await.context("getting the programs of the control plane")?;
    }
    let table = SharedTable::open(folder, settings.dynamodb_endpoint.as_deref()).await?;
    let described = table.endpoint_url.as_deref().unwrap_or(&table.choice);
    progress.say_time(format_args!("table ready: {described}"));
    for region in &settings.regions {
        progress.say(format_args!("region {region}: starting etcd, kube-apiserver, controllers and scheduler"));
    }
    let starting = settings.regions.iter().enumerate().map(|(number, name)| {
        Region::start(name, number, folder.region(name), &table, programs, environment, progress)
    });
    let regions = try_join_all(starting).await?;
    held.tell(&InstanceState {
        pid: std::process::id(),
        table: table.choice.clone(),
        table_name: table.name.clone(),
        table_region: table.region.clone(),
        table_endpoint_url: table.endpoint_url.clone(),
        regions: regions.iter().map(Region::state).collect(),
        proxy: split.as_ref().map(|split| split.address.clone()),
    })?;
    progress.say_time("everything is up");
    Ok(Running { regions, split, table })
}

/// What was started.
struct Running {
    regions: Vec<Region>,
    split: Option<Split>,
    table: SharedTable,
}

async fn serve(
    settings: &UpSettings,
    held: &HeldFolder,
    programs: &Programs,
    regions: &[Region],
    split: Option<&Split>,
    table: &SharedTable,
    progress: Progress,
) -> anyhow::Result<()> {
    let failed = async {
        if regions.is_empty() {
            return std::future::pending().await;
        }
        select_all(regions.iter().map(|region| Box::pin(region.failed()))).await.0
    };
    let proxy_failed = async {
        match split {
            Some(split) => split.failed(progress).await,
            None => std::future::pending().await,
        }
    };
    let work = async {
        if settings.sample {
            run_sample(regions, table, progress).await?;
        }
        if settings.then_stop {
            return Ok(());
        }
        if let Some(split) = split {
            println!("{}\n", split.hints());
        }
        if regions.is_empty() {
            println!("Ctrl-C or 'gco local down' stops everything.");
        } else {
            println!("{}", hints(held.folder(), programs, &held.folder().state()?, settings.sample));
        }
        std::future::pending().await
    };
    tokio::select! {
        said = failed => bail!(said),
        said = proxy_failed => bail!(said),
        outcome = work => outcome,
    }
}

async fn run_sample(regions: &[Region], table: &SharedTable, progress: Progress) -> anyhow::Result<()> {
    let store = table.store();
    let names: Vec<String> = regions.iter().map(|region| region.name.clone()).collect();
    sample::deploy(&store, &names, progress).await?;
    let serving = regions.iter().map(|region| sample::serves(&store, &region.name, region.gateway.port(), progress));
    try_join_all(serving).await?;
    for region in regions {
        sample::stream_answer(&region.name, region.gateway.port()).await?;
    }
    println!();
    Ok(())
}

/// Where everything is and what to try, to be pasted.
fn hints(folder: &DataFolder, programs: &Programs, state: &InstanceState, has_sample: bool) -> String {
    use std::fmt::Write as _;
    let mut text = String::from("Addresses:\n");
    // Writing to a string cannot fail.
    for region in &state.regions {
        let _ = writeln!(text, "  {:<14} {}/inference/<endpoint>/v1/…", region.name, region.gateway);
        let _ = writeln!(text, "  {:<14} monitor: {}  log: {}", "", region.monitor, region.monitor_log.display());
    }
    let _ = writeln!(text, "\nTo try, in another terminal:");
    if let Some(folder) = programs.command_line.as_deref().and_then(Path::parent) {
        let _ = writeln!(text, "  export PATH=\"{}:$PATH\"", folder.display());
    }
    let _ = writeln!(text, "  export GCO_LOCAL=\"{}\"", folder.path().display());
    let name = if has_sample { SAMPLE_NAME } else { "chat" };
    if !has_sample {
        let _ = writeln!(text, "  gco inference deploy {name} -i {SAMPLE_IMAGE} --wait");
    }
    let _ = writeln!(text, "  gco inference status {name}");
    for region in &state.regions {
        let _ = writeln!(
            text,
            "  curl -N {}/inference/{name}/v1/chat/completions -H 'content-type: application/json' \\\n    \
             -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hello!\"}}], \"stream\": true}}'",
            region.gateway
        );
    }
    let _ = writeln!(text, "  gco inference scale {name} --replicas 3");
    let _ = writeln!(text, "  gco inference status {name} --watch --until running");
    if let Some(region) = state.regions.first().filter(|_| programs.has_kubectl) {
        let _ = writeln!(
            text,
            "  KUBECONFIG=\"{}\" kubectl -n {INFERENCE_NAMESPACE} get pods -o wide",
            region.kubeconfig.display()
        );
    }
    let _ = write!(
        text,
        "  gco inference delete {name} -y\n\nCtrl-C or 'gco local down' stops everything; rows and objects are kept."
    );
    text
}

/// What is said about an instance that runs.
///
/// # Errors
///
/// When none does.
pub fn status(data_dir: &Path) -> anyhow::Result<InstanceState> {
    let folder = DataFolder::open(data_dir)?;
    ensure!(folder.holder().is_some(), "nothing runs in {}", folder.path().display());
    folder.state().context("the instance is still starting")
}

/// Asks a running instance to stop and waits until it has.
///
/// # Errors
///
/// When none runs, or it does not stop in time.
pub async fn down(data_dir: &Path) -> anyhow::Result<()> {
    let folder = DataFolder::open(data_dir)?;
    let Some(pid) = folder.holder() else { bail!("nothing runs in {}", folder.path().display()) };
    // The lock is held, so that the process is the one that wrote its number into it.
    kill(Pid::from_raw(pid), Signal::SIGTERM).with_context(|| format!("asking process {pid} to stop"))?;
    let what = format!("process {pid} to stop");
    gco_bed::wait::until(&what, DOWN_BOUND, || {
        std::future::ready(match folder.holder() {
            None => Ok(()),
            Some(_) => Err("it still runs".to_owned()),
        })
    })
    .await?;
    Ok(())
}

/// Deletes everything that an instance left behind.
///
/// # Errors
///
/// When the folder is not one of ours, or an instance runs in it.
pub async fn reset(data_dir: &Path) -> anyhow::Result<PathBuf> {
    let folder = DataFolder::open(data_dir)?;
    let path = folder.path().to_owned();
    folder.hold().await?.delete()?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_checked_before_anything_starts() {
        let check = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            check_regions(&names).map_err(|problem| problem.to_string())
        };
        assert_eq!(check(&["us-east-1", "eu-west-1"]), Ok(()));
        assert!(check(&[]).is_err());
        assert_eq!(check(&["a", "a"]).unwrap_err(), "region a is named twice");
        assert!(check(&["../x"]).unwrap_err().contains("is no region"));
        assert!(check(&["US"]).is_err());
    }
}
