//! What the suites of this crate share: one real control plane with nodes, and what is put on it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use gco_bed::control_plane::{ControlPlane, ControlPlaneSettings};
use gco_local::kubelet::{Behaviour, ImageTable, Kubelet, KubeletSettings, RestartDelay};
use gco_local::nodes::{Fleet, Nodes};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Longer than anything here takes on a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(90);

/// A control plane for all tests of a binary. It ends with the process.
pub(crate) struct Bed {
    pub(crate) control_plane: ControlPlane,
    folder: TempDir,
    /// What runs for all tests runs here: the runtime of a test ends with the test.
    _runtime: Runtime,
}

static BED: LazyLock<Bed> = LazyLock::new(|| {
    // A new thread, because a runtime may not be made inside of another one's task.
    std::thread::spawn(|| {
        let runtime = Runtime::new().unwrap();
        let settings = ControlPlaneSettings { scheduler: true, ..ControlPlaneSettings::named("local") };
        let control_plane = runtime.block_on(ControlPlane::start(settings)).unwrap();
        Bed { control_plane, folder: tempfile::tempdir().unwrap(), _runtime: runtime }
    })
    .join()
    .unwrap()
});

/// The control plane of this binary, started by whoever asks first.
pub(crate) async fn bed() -> &'static Bed {
    tokio::task::spawn_blocking(|| &*BED).await.unwrap()
}

/// A region of its own on the shared control plane: nodes that only pods that select them get.
pub(crate) struct Region {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) kubelet: Kubelet,
    settings: KubeletSettings,
    _nodes: Nodes,
}

impl Bed {
    /// Nodes and a stand-in of a region with this number, and a namespace of the same name.
    pub(crate) async fn region(
        &'static self,
        number: usize,
        change: impl FnOnce(&mut KubeletSettings, &mut Fleet),
    ) -> Region {
        let client = self.control_plane.client().await.unwrap();
        let name = format!("region-{number}");
        let namespace = json!({"metadata": {"name": name}});
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();

        let mut fleet = Fleet::default();
        let mut settings = KubeletSettings {
            region: name.clone(),
            region_number: number,
            nodes: BTreeMap::new(),
            images: ImageTable::with_engine(PathBuf::from(env!("CARGO_BIN_EXE_gco-engine"))),
            behaviour: Behaviour::Processes,
            dial_map_file: self.folder.path().join(format!("{name}-dial-map.json")),
            log_folder: self.folder.path().join(format!("{name}-logs")),
            restart_delay: RestartDelay { first: Duration::from_millis(200), longest: Duration::from_secs(2) },
            probe_pace: 10,
            variables: BTreeMap::from([("GCO_ENGINE_TOKEN_MILLISECONDS".to_owned(), "5".to_owned())]),
        };
        change(&mut settings, &mut fleet);
        let nodes = Nodes::start(client.clone(), &name, number, fleet).await.unwrap();
        settings.nodes = nodes.addresses().clone();
        let kubelet = Kubelet::start(client.clone(), settings.clone()).await.unwrap();
        Region { client, name, kubelet, settings, _nodes: nodes }
    }
}

impl Region {
    /// Stops the stand-in and starts another one in its place.
    pub(crate) async fn restart_kubelet(self) -> Self {
        let Self { client, name, kubelet, settings, _nodes } = self;
        kubelet.stop().await;
        let kubelet = Kubelet::start(client.clone(), settings.clone()).await.unwrap();
        Self { client, name, kubelet, settings, _nodes }
    }

    pub(crate) fn dial_map_file(&self) -> PathBuf {
        self.settings.dial_map_file.clone()
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Makes a Deployment with one container. `container` and `pod` add to what is usual.
    pub(crate) async fn deploy(&self, name: &str, replicas: u32, container: &Value, pod: &Value) {
        let mut one = json!({
            "name": "inference",
            "image": "vllm/vllm-openai:v0.11.0",
            "ports": [{"name": "http", "containerPort": 8000}],
            "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1},
        });
        merge(&mut one, container);
        let mut spec = json!({
            "nodeSelector": {"topology.kubernetes.io/region": self.name},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Equal", "value": "true", "effect": "NoSchedule"}],
            "containers": [one],
        });
        merge(&mut spec, pod);
        let deployment = json!({
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
            },
        });
        let deployments = self.api::<Deployment>();
        deployments.create(&PostParams::default(), &serde_json::from_value(deployment).unwrap()).await.unwrap();
        let service = json!({
            "metadata": {"name": name},
            "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": "http"}]},
        });
        self.api::<Service>().create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();
    }

    /// The pods of a Deployment, as JSON.
    pub(crate) async fn pods(&self, name: &str) -> Vec<Value> {
        let of_it = ListParams::default().labels(&format!("app={name}"));
        let pods = self.api::<Pod>().list(&of_it).await.unwrap();
        pods.items.into_iter().map(|pod| serde_json::to_value(pod).unwrap()).collect()
    }

    /// Waits until every one of so many pods satisfies `holds`.
    pub(crate) async fn wait_for_pods(
        &self,
        what: &str,
        name: &str,
        count: usize,
        holds: impl Fn(&Value) -> bool,
    ) -> Vec<Value> {
        gco_bed::wait::until(what, BOUND, || async {
            let pods = self.pods(name).await;
            if pods.len() == count && pods.iter().all(&holds) {
                return Ok(pods);
            }
            let statuses: Vec<&Value> = pods.iter().map(|pod| &pod["status"]).take(3).collect();
            Err(format!("{} pods, the first ones {statuses:#?}", pods.len()))
        })
        .await
        .unwrap()
    }
}

/// The status of one of a pod's conditions.
pub(crate) fn condition<'p>(pod: &'p Value, kind: &str) -> &'p Value {
    let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|one| one["type"] == kind).unwrap_or(&Value::Null)
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready")["status"] == "True"
}

fn merge(into: &mut Value, from: &Value) {
    for (key, value) in from.as_object().into_iter().flatten() {
        into[key] = value.clone();
    }
}
