//! One region: its control plane and everything around it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use gco_bed::control_plane::{ControlPlane, ControlPlaneSettings};
use gco_bed::process::Supervised;
use gco_runtime::environment::Environment;

use super::folder::{RegionFolder, RegionState};
use super::manifests::{self, INFERENCE_NAMESPACE};
use super::monitor::{KeptMonitor, MonitorSettings};
use super::progress::Progress;
use super::table::SharedTable;
use super::{Programs, REMOVAL_BOUND};
use crate::gateway::{Gateway, GatewaySettings};
use crate::kubelet::{Behaviour, ImageTable, Kubelet, KubeletSettings, RestartDelay};
use crate::nodes::{Fleet, Nodes};

/// What people may set for the engines of an instance.
const ENGINE_VARIABLES: [&str; 4] = ["GCO_ENGINE_LOAD_SECONDS", "GCO_ENGINE_TOKEN_MILLISECONDS", "LOG_LEVEL", "PATH"];

/// A running region.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) name: String,
    pub(super) gateway: Gateway,
    monitor: KeptMonitor,
    kubelet: Kubelet,
    _nodes: Nodes,
    control_plane: Arc<ControlPlane>,
    state: RegionState,
}

impl Region {
    /// Starts everything; says what is ready as it becomes ready.
    pub(super) async fn start(
        name: &str,
        number: usize,
        folder: RegionFolder,
        table: &SharedTable,
        programs: &Programs,
        environment: &Environment,
        progress: Progress,
    ) -> anyhow::Result<Self> {
        let say = |what: &str| progress.say_time(format_args!("region {name}: {what}"));
        let in_region = || format!("region {name}");
        let started = Progress::start();
        let settings = ControlPlaneSettings {
            data_dir: Some(folder.control_plane()),
            scheduler: true,
            audit: false,
            ..ControlPlaneSettings::named(name)
        };
        let control_plane = Arc::new(ControlPlane::start(settings).await.with_context(in_region)?);
        started.say_time(format_args!("region {name}: etcd, kube-apiserver, controllers and scheduler ready"));

        let client = control_plane.client().await.with_context(in_region)?;
        manifests::apply_all(&client, &folder.models()).await.with_context(in_region)?;
        let nodes = Nodes::start(client.clone(), name, number, Fleet::default()).await.with_context(in_region)?;
        // Output of pods of an earlier run would be read as this one's.
        let _ = std::fs::remove_dir_all(folder.pod_logs());
        let variables = ENGINE_VARIABLES
            .iter()
            .filter_map(|variable| Some(((*variable).to_owned(), environment.non_empty(variable)?.to_owned())));
        let kubelet = KubeletSettings {
            region: name.to_owned(),
            region_number: number,
            nodes: nodes.addresses().clone(),
            images: ImageTable::with_engine(programs.engine.clone()),
            behaviour: Behaviour::Processes,
            dial_map_file: folder.dial_map(),
            log_folder: folder.pod_logs(),
            restart_delay: RestartDelay::default(),
            probe_pace: 1,
            variables: variables.collect(),
        };
        let kubelet = Kubelet::start(client.clone(), kubelet).await.with_context(in_region)?;
        say(&format!("{} nodes ready", nodes.addresses().len()));

        let gateway = GatewaySettings {
            region: name.to_owned(),
            namespace: INFERENCE_NAMESPACE.to_owned(),
            preferred_port: folder.gateway_port(),
        };
        let gateway = Gateway::start(client, Arc::clone(&table.table), kubelet.dial_map().clone(), gateway).await;
        let gateway = gateway.with_context(in_region)?;
        folder.remember_gateway_port(gateway.port())?;

        let monitor = MonitorSettings::new(name, programs.monitor.clone(), &folder, table, environment);
        let monitor = KeptMonitor::start(monitor, Arc::clone(&control_plane), &folder, progress).await;
        let monitor = monitor.with_context(in_region)?;
        match monitor.ready().await {
            Ok(()) => say("monitor ready"),
            // It is kept running: it may become ready later.
            Err(problem) => {
                say(&format!("the monitor is not ready yet: {problem}; its log: {}", folder.monitor_log().display()))
            }
        }
        let state = RegionState {
            name: name.to_owned(),
            api_server: control_plane.url(),
            kubeconfig: control_plane.kubeconfig_path(),
            gateway: format!("http://127.0.0.1:{}", gateway.port()),
            monitor: monitor.port().map(|port| format!("http://127.0.0.1:{port}")).unwrap_or_default(),
            monitor_log: folder.monitor_log(),
            dial_map: folder.dial_map(),
            pod_logs: folder.pod_logs(),
        };
        Ok(Self { name: name.to_owned(), gateway, monitor, kubelet, _nodes: nodes, control_plane, state })
    }

    /// What is told about it.
    pub(super) fn state(&self) -> RegionState {
        self.state.clone()
    }

    /// Waits until a program of the control plane ends, which none should; says which and why.
    pub(super) async fn failed(&self) -> String {
        let control_plane = &self.control_plane;
        let ended = |program: &'_ Supervised| {
            format!("region {}: {} ended; the end of its log:\n{}", self.name, program.name(), program.log_tail())
        };
        let scheduler = async {
            match control_plane.scheduler() {
                Some(scheduler) => {
                    scheduler.wait().await;
                    ended(scheduler)
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = control_plane.etcd().wait() => ended(control_plane.etcd()),
            _ = control_plane.api_server().wait() => ended(control_plane.api_server()),
            _ = control_plane.controller_manager().wait() => ended(control_plane.controller_manager()),
            said = scheduler => said,
        }
    }

    /// Stops everything in order: what asks before what answers.
    pub(super) async fn stop(self) {
        let Self { gateway, monitor, kubelet, control_plane, .. } = self;
        tokio::join!(gateway.stop(), monitor.stop());
        kubelet.stop().await;
        // The task that renews the monitor's token may still hold it for an instant.
        let mut control_plane = Some(control_plane);
        let alone = gco_bed::wait::until("the control plane to be ours alone", REMOVAL_BOUND, || {
            let held = control_plane.take().map(Arc::try_unwrap);
            std::future::ready(match held {
                Some(Ok(alone)) => Ok(Some(alone)),
                Some(Err(shared)) => {
                    control_plane = Some(shared);
                    Err("a task still holds it".to_owned())
                }
                None => Ok(None),
            })
        });
        if let Ok(Some(control_plane)) = alone.await {
            control_plane.stop().await;
        }
    }
}

/// How long a whole region may take to stop.
pub(super) const STOP_BOUND: Duration = Duration::from_secs(50);
