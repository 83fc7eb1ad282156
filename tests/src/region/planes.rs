//! The control planes that all tests of a binary share, each with a node and a kubelet stand-in: starting one takes
//! seconds and a quarter of a gigabyte.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use gco_bed::control_plane::{AuditLog, ControlPlane, ControlPlaneSettings};
use gco_local::kubelet::{Behaviour, DialMap, ImageTable, Kubelet, KubeletSettings, RestartDelay};
use gco_local::platform;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::OnceCell;

/// What a container of a pod is on a control plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pods {
    /// Nothing: its status says that it runs and is ready.
    #[default]
    StatusOnly,
    /// The simulated engine, probed as a kubelet does.
    Engines,
    /// There are no pods: nothing makes any of a ReplicaSet. For what is measured while two cores are to be the monitor's.
    Never,
}

/// How many regions there can be whose endpoints have the same row: rows name a namespace, so two regions of one row need
/// two clusters, and tests of the admission fence need one each, since that holds for a whole cluster.
const MOST: usize = 3;

/// The name of each control plane's one node.
const NODE: &str = "suite-node";

static WITH_STATUS_ONLY: [OnceCell<Plane>; MOST] = [const { OnceCell::const_new() }; MOST];
static WITH_ENGINES: [OnceCell<Plane>; MOST] = [const { OnceCell::const_new() }; MOST];
static WITHOUT_PODS: [OnceCell<Plane>; MOST] = [const { OnceCell::const_new() }; MOST];

/// A control plane whose pods run, or seem to.
#[derive(Debug)]
pub struct Plane {
    control_plane: ControlPlane,
    dial_map: DialMap,
    // Files of pods; the folder stays as long as the process.
    folder: tempfile::TempDir,
}

/// The file in which the stand-in says where pods really listen.
const DIAL_MAP_FILE: &str = "dial-map.json";

impl Plane {
    /// The control plane.
    #[must_use]
    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// Where its pods really listen.
    #[must_use]
    pub fn dial_map(&self) -> &DialMap {
        &self.dial_map
    }

    /// The file that says so, for programs that are told it.
    #[must_use]
    pub fn dial_map_file(&self) -> PathBuf {
        self.folder.path().join(DIAL_MAP_FILE)
    }

    /// Its audit log.
    ///
    /// # Errors
    /// When it was started without one, which [`plane`] does not do.
    pub fn audit(&self) -> anyhow::Result<&AuditLog> {
        self.control_plane.audit().context("this control plane has no audit log")
    }
}

/// The control plane with this number, counted from 0, and this kind of pods; started by whoever asks first.
///
/// # Errors
/// When it cannot be started, or there are not that many.
pub async fn plane(number: usize, pods: Pods) -> anyhow::Result<&'static Plane> {
    let cells = match pods {
        Pods::StatusOnly => &WITH_STATUS_ONLY,
        Pods::Engines => &WITH_ENGINES,
        Pods::Never => &WITHOUT_PODS,
    };
    let cell = cells.get(number).with_context(|| format!("there are {MOST} control planes, not {number}"))?;
    cell.get_or_try_init(|| start(number, pods)).await
}

async fn start(number: usize, pods: Pods) -> anyhow::Result<Plane> {
    let mut settings = ControlPlaneSettings::named(format!("region-{number}"));
    settings.scheduler = pods != Pods::Never;
    if pods == Pods::Never {
        settings.controller_manager_flags.push("--controllers=-replicaset-controller".to_owned());
    }
    // The default is 15 s, and nobody measures anything here: all that an autoscaler does is to keep within its bounds.
    settings.controller_manager_flags.push("--horizontal-pod-autoscaler-sync-period=1s".to_owned());
    let control_plane = ControlPlane::start(settings).await?;
    let client = control_plane.client().await?;
    make_node(&client).await?;
    // As it is installed, but for what puts the admission fence in force.
    platform::apply_all(&client, &platform::WITHOUT_BINDINGS).await?;
    let folder = tempfile::tempdir().context("making a folder for pods")?;
    let region = ["us-east-1", "eu-west-1", "eu-central-1"].get(number).copied().unwrap_or("region");
    let settings = KubeletSettings {
        region: region.to_owned(),
        region_number: number,
        nodes: BTreeMap::from([(NODE.to_owned(), "10.0.0.1".to_owned())]),
        images: images(engine(pods)?),
        behaviour: match pods {
            Pods::StatusOnly | Pods::Never => {
                Behaviour::StatusOnly { ready_delay: Duration::ZERO, stop_delay: Duration::ZERO }
            }
            Pods::Engines => Behaviour::Processes,
        },
        dial_map_file: folder.path().join(DIAL_MAP_FILE),
        log_folder: folder.path().join("logs"),
        restart_delay: RestartDelay::default(),
        probe_pace: 20,
        variables: BTreeMap::new(),
    };
    let dial_map = run_kubelet(control_plane.kubeconfig_path(), settings).await?;
    Ok(Plane { control_plane, dial_map, folder })
}

/// The usual images, and the one model server of the fixtures that no simulation stands for.
fn images(engine: PathBuf) -> ImageTable {
    let mut images = ImageTable::with_engine(engine);
    for rule in &mut images.rules {
        rule.any_of.push("tritonserver".to_owned());
    }
    images
}

/// Runs the stand-in on a thread of its own: tests come and go with their runtimes, pods stay.
async fn run_kubelet(kubeconfig: PathBuf, settings: KubeletSettings) -> anyhow::Result<DialMap> {
    let (tell, told) = tokio::sync::oneshot::channel();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let started = async {
            let client = client_of(&kubeconfig).await?;
            Kubelet::start(client, settings).await
        };
        match runtime.context("making a runtime").and_then(|runtime| Ok((runtime.block_on(started)?, runtime))) {
            Err(error) => drop(tell.send(Err(error))),
            Ok((kubelet, runtime)) => {
                drop(tell.send(Ok(kubelet.dial_map().clone())));
                runtime.block_on(std::future::pending::<()>());
            }
        }
    };
    std::thread::Builder::new().name("kubelet".to_owned()).spawn(run).context("starting the stand-in's thread")?;
    told.await.context("the stand-in's thread ended")?
}

async fn client_of(kubeconfig: &Path) -> anyhow::Result<Client> {
    let file = kube::config::Kubeconfig::read_from(kubeconfig).context("reading a kubeconfig file")?;
    let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await;
    Ok(Client::try_from(config.context("reading a kubeconfig file")?)?)
}

/// One node that has room for everything and all labels that a selector may ask for.
async fn make_node(client: &Client) -> anyhow::Result<()> {
    let node: Node = serde_json::from_value(json!({
        "metadata": {
            "name": NODE,
            "labels": {
                "kubernetes.io/hostname": NODE,
                "topology.kubernetes.io/zone": "zone-a",
                "eks.amazonaws.com/instance-gpu-manufacturer": "nvidia",
                "eks.amazonaws.com/instance-family": "p5",
                "karpenter.sh/capacity-type": "on-demand",
                "accelerator": "neuron",
            },
        },
    }))?;
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node).await.context("making the node")?;
    let room = json!({
        "cpu": "100000", "memory": "1000Ti", "pods": "20000", "ephemeral-storage": "1000Ti",
        "nvidia.com/gpu": "100000", "aws.amazon.com/neuron": "100000",
    });
    let status = json!({"status": {
        "capacity": room, "allocatable": room,
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "stand-in"}],
    }});
    nodes.patch_status(NODE, &PatchParams::default(), &Patch::Merge(status)).await.context("the node's status")?;
    // Admission marks every new node as not ready; the controller that ends that does not run here.
    let ready = json!({"spec": {"taints": null}});
    nodes.patch(NODE, &PatchParams::default(), &Patch::Merge(ready)).await.context("the node's taints")?;
    Ok(())
}

/// The simulated engine's binary; a plane without processes needs none.
fn engine(pods: Pods) -> anyhow::Result<PathBuf> {
    let path = super::monitor::beside_this_test("gco-engine")?;
    if pods == Pods::Engines && !path.is_file() {
        bail!("there is no engine at {}: build it with `cargo build --workspace`", path.display());
    }
    Ok(path)
}
