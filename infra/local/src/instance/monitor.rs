//! Keeps a region's monitor running: the real program, with the account and the rights that it has
//! in a cluster of the fleet.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use gco_bed::control_plane::ControlPlane;
use gco_bed::process::{ProcessSettings, Supervised};
use gco_bed::wait;
use gco_runtime::environment::Environment;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::folder::RegionFolder;
use super::manifests::{INFERENCE_NAMESPACE, MONITOR_ACCOUNT, SYSTEM_NAMESPACE};
use super::progress::Progress;
use super::table::SharedTable;
use crate::loopback::LoopbackClient;

/// How long the monitor has to release its Lease and end.
const STOP_GRACE: Duration = Duration::from_secs(15);

/// Before a monitor that ended is started again: doubled from the first to the longest, from the
/// start again after a run that lasted as long as `SOUND_RUN`.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(30);
const SOUND_RUN: Duration = Duration::from_secs(60);

/// A token is good for a day.
const TOKEN_RENEWAL: Duration = Duration::from_secs(6 * 3600);

/// How long a monitor may take to say that it is ready. A Lease that a killed monitor left behind
/// has to expire first.
const READY_BOUND: Duration = Duration::from_secs(60);

/// Settings that people who wait like better than the fleet's; anybody's own variable wins.
const QUICKER: [(&str, &str); 2] = [("RECONCILE_INTERVAL_SECONDS", "2"), ("ABSENCE_GAP_SECONDS", "5")];

/// A monitor that is kept running.
#[derive(Debug)]
pub(super) struct KeptMonitor {
    stop: CancellationToken,
    keeper: tokio::task::JoinHandle<()>,
    port: watch::Receiver<Option<u16>>,
}

/// What it is started with.
#[derive(Clone, Debug)]
pub(super) struct MonitorSettings {
    pub(super) region: String,
    pub(super) program: PathBuf,
    pub(super) log: PathBuf,
    pub(super) variables: Vec<(String, String)>,
}

impl MonitorSettings {
    /// Puts the monitor's environment together: the names of the fleet's manifests.
    pub(super) fn new(
        region: &str,
        program: PathBuf,
        folder: &RegionFolder,
        table: &SharedTable,
        environment: &Environment,
    ) -> Self {
        let mut variables: Vec<(String, String)> = [
            ("CLUSTER_NAME", format!("gco-local-{region}")),
            ("REGION", region.to_owned()),
            ("HOSTNAME", format!("monitor-{region}")),
            ("INFERENCE_NAMESPACE", INFERENCE_NAMESPACE.to_owned()),
            ("PROJECT_NAME", "gco".to_owned()),
            ("METRICS_HOST", Ipv4Addr::LOCALHOST.to_string()),
            ("KUBECONFIG", folder.monitor_kubeconfig().display().to_string()),
            ("LOG_FORMAT", "json".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        for name in ["HOME", "PATH", "LOG_LEVEL", "GCO_ALLOW_FORCED_PASS"] {
            variables.extend(environment.get(name).map(|value| (name.to_owned(), value.to_owned())));
        }
        for (name, value) in QUICKER {
            variables.push((name.to_owned(), environment.non_empty(name).unwrap_or(value).to_owned()));
        }
        variables.extend(table.variables(environment));
        Self { region: region.to_owned(), program, log: folder.monitor_log(), variables }
    }
}

impl KeptMonitor {
    /// Gives the monitor its account and starts it.
    pub(super) async fn start(
        settings: MonitorSettings,
        control_plane: Arc<ControlPlane>,
        folder: &RegionFolder,
        progress: Progress,
    ) -> anyhow::Result<Self> {
        let token_file = folder.monitor_token();
        write_token(&control_plane, &token_file).await?;
        write_kubeconfig(&control_plane, &folder.monitor_kubeconfig(), &token_file)?;
        let stop = CancellationToken::new();
        let (tell_port, port) = watch::channel(None);
        let renewal = stop.clone().run_until_cancelled_owned(renew_token(control_plane, token_file));
        tokio::spawn(renewal);
        let keeper = tokio::spawn(keep(settings, tell_port, stop.clone(), progress));
        Ok(Self { stop, keeper, port })
    }

    /// Where it tells about itself now.
    pub(super) fn port(&self) -> Option<u16> {
        *self.port.borrow()
    }

    /// Waits until it says that it is ready.
    ///
    /// # Errors
    ///
    /// With what it said last.
    pub(super) async fn ready(&self) -> Result<(), wait::WaitError> {
        let client = LoopbackClient::without_reuse();
        let port = || self.port();
        wait::until("the monitor to be ready", READY_BOUND, || {
            let (client, port) = (client.clone(), port());
            async move {
                let Some(port) = port else { return Err("it does not run".to_owned()) };
                match client.get(port, "/readyz", Duration::from_secs(5)).await {
                    Ok(answer) if answer.status.is_success() => Ok(()),
                    Ok(answer) => Err(answer.text()),
                    Err(problem) => Err(problem.to_string()),
                }
            }
        })
        .await
    }

    /// Asks it to end and waits for that.
    pub(super) async fn stop(mut self) {
        self.stop.cancel();
        if let Err(problem) = (&mut self.keeper).await {
            tracing::error!(%problem, "the monitor's keeper failed");
        }
    }
}

impl Drop for KeptMonitor {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn keep(
    settings: MonitorSettings,
    tell_port: watch::Sender<Option<u16>>,
    stop: CancellationToken,
    progress: Progress,
) {
    let mut delay = FIRST_DELAY;
    let mut last_port = None;
    loop {
        let started = Instant::now();
        let ended = match start(&settings, last_port) {
            Ok((monitor, port)) => {
                last_port = Some(port);
                tell_port.send_replace(Some(port));
                tokio::select! {
                    () = stop.cancelled() => {
                        monitor.stop(STOP_GRACE).await;
                        return;
                    }
                    status = monitor.wait() => {
                        let said = monitor.log_tail();
                        let last = said.lines().next_back().unwrap_or_default();
                        format!("{status}; its last word: {}", gco_runtime::text::bounded(last, 400))
                    }
                }
            }
            Err(problem) => format!("{problem:#}"),
        };
        tell_port.send_replace(None);
        if started.elapsed() > SOUND_RUN {
            delay = FIRST_DELAY;
        }
        progress.say(format_args!(
            "region {}: the monitor ended ({ended}); it is started again in {} s",
            settings.region,
            delay.as_secs()
        ));
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(delay) => delay = (delay * 2).min(LONGEST_DELAY),
        }
    }
}

/// Starts the monitor on the port that it had before, if that is free, so that its address stays good.
fn start(settings: &MonitorSettings, last_port: Option<u16>) -> anyhow::Result<(Supervised, u16)> {
    // When another process takes it first, the monitor ends, and is started again.
    let bind = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).and_then(|free| free.local_addr());
    let port = last_port.map(bind).and_then(Result::ok).map_or_else(|| bind(0), Ok);
    let port = port.context("picking a free port")?.port();
    let mut process = ProcessSettings::new(&settings.program, &settings.log)
        .without_our_environment()
        .orphan_grace_seconds(3)
        .variable("METRICS_PORT", port.to_string());
    for (name, value) in &settings.variables {
        process = process.variable(name, value);
    }
    Ok((Supervised::start(process)?, port))
}

async fn renew_token(control_plane: Arc<ControlPlane>, file: PathBuf) {
    loop {
        tokio::time::sleep(TOKEN_RENEWAL).await;
        if let Err(problem) = write_token(&control_plane, &file).await {
            tracing::warn!(problem = format!("{problem:#}"), "renewing the monitor's token");
        }
    }
}

async fn write_token(control_plane: &ControlPlane, file: &Path) -> anyhow::Result<()> {
    let token = control_plane.service_account_token(SYSTEM_NAMESPACE, MONITOR_ACCOUNT).await?;
    crate::kubelet::replace_file(file, token.as_bytes()).with_context(|| format!("writing {}", file.display()))
}

/// The token is read from its file again and again, so that a monitor outlives it.
fn write_kubeconfig(control_plane: &ControlPlane, file: &Path, token_file: &Path) -> anyhow::Result<()> {
    let name = control_plane.name();
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {
            "server": control_plane.url(),
            "certificate-authority": control_plane.certificate_authority_path(),
        }}],
        "users": [{"name": MONITOR_ACCOUNT, "user": {"tokenFile": token_file}}],
        "contexts": [{"name": name, "context": {
            "cluster": name, "user": MONITOR_ACCOUNT, "namespace": INFERENCE_NAMESPACE,
        }}],
    });
    // JSON is YAML.
    crate::kubelet::replace_file(file, &serde_json::to_vec_pretty(&kubeconfig)?)
        .with_context(|| format!("writing {}", file.display()))
}
