//! The kubelet stand-in: runs the pods of one region as local processes and writes their status
//! the way a kubelet does.
//!
//! | Part | What it does |
//! |---|---|
//! | [`Kubelet`] | watches pods that are bound to nodes, one worker for each |
//! | worker | puts the containers of one pod together, writes the pod's status, ends it |
//! | container | one container's runs: process, probes, restarts; or a simulation of all that |
//! | [`DialMap`] | where the pods' addresses really listen |
//!
//! When the process that holds a [`Kubelet`] is killed, the processes of all pods end with it.

mod addresses;
mod container;
mod dial_map;
mod images;
mod launch;
mod probe;
mod run;
mod status;
mod worker;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Event, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use gco_runtime::clock::{Clock as _, SystemClock};

pub use addresses::MAXIMUM_REGIONS;
pub use dial_map::DialMap;
pub(crate) use dial_map::replace_file;
pub use images::{ImageRule, ImageTable, PortPassing, Program};
pub(crate) use status::seconds as api_time;

use addresses::PodAddresses;

/// The label or annotation by which a pod asks for a fault: `pull`, `crash`, `never-ready`, or what
/// [`crate::engine::Fault::parse`] reads.
pub const FAULT_KEY: &str = "gco.io/simulated-fault";

/// How many requests to the API server may be under way at once.
const REQUESTS_AT_ONCE: usize = 16;

/// How long one request to the API server may take: a server that hangs must not hold up the end of a pod.
const REQUEST_BOUND: Duration = Duration::from_secs(10);

/// What happens for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// A local process runs and is probed.
    Processes,
    /// No process: only the status is written, for suites with hundreds of pods.
    StatusOnly {
        /// From the start of a container until it is ready.
        ready_delay: Duration,
        /// From the request to stop until the container has ended, within the grace.
        stop_delay: Duration,
    },
}

/// How long a container that ended waits for its next run: doubled each time, from the first to the
/// longest; from the start again after a run that lasted twice the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartDelay {
    /// After the first end.
    pub first: Duration,
    /// At most.
    pub longest: Duration,
}

impl Default for RestartDelay {
    /// 1 s to 30 s: a tenth of a kubelet's, because people are waiting.
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_secs(30) }
    }
}

/// What a stand-in is told.
#[derive(Clone, Debug)]
pub struct KubeletSettings {
    /// The region that processes are told (`GCO_REGION`).
    pub region: String,
    /// The region's number, counted from 0: decides about the addresses of pods.
    pub region_number: usize,
    /// The nodes whose pods it runs, with their addresses.
    pub nodes: BTreeMap<String, String>,
    /// Which images are known.
    pub images: ImageTable,
    /// Processes or only their status.
    pub behaviour: Behaviour,
    /// The dial map's file.
    pub dial_map_file: PathBuf,
    /// Where the output of the processes goes, one file per container.
    pub log_folder: PathBuf,
    /// Before a container that ended runs again.
    pub restart_delay: RestartDelay,
    /// The probes' delays and periods are divided by this; 1 keeps them as they are.
    pub probe_pace: u32,
    /// Variables of every process; those of its container win.
    pub variables: BTreeMap<String, String>,
}

/// A running stand-in. Dropping it kills the processes of all pods; [`Kubelet::stop`] asks them first.
#[derive(Debug)]
pub struct Kubelet {
    dial_map: DialMap,
    shutdown: CancellationToken,
    tasks: TaskTracker,
}

/// What all workers of a stand-in share.
struct Shared {
    settings: KubeletSettings,
    client: Client,
    dial_map: DialMap,
    addresses: PodAddresses,
    requests: Semaphore,
    shutdown: CancellationToken,
}

impl Kubelet {
    /// Starts to watch and run pods.
    ///
    /// # Errors
    ///
    /// When the dial map's file or the log folder cannot be written.
    pub async fn start(client: Client, settings: KubeletSettings) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&settings.log_folder)
            .with_context(|| format!("creating {}", settings.log_folder.display()))?;
        let dial_map = DialMap::create(&settings.dial_map_file)
            .with_context(|| format!("writing {}", settings.dial_map_file.display()))?;
        let shutdown = CancellationToken::new();
        let tasks = TaskTracker::new();
        let shared = Arc::new(Shared {
            addresses: PodAddresses::of_region(settings.region_number),
            settings,
            client,
            dial_map: dial_map.clone(),
            requests: Semaphore::new(REQUESTS_AT_ONCE),
            shutdown: shutdown.clone(),
        });
        tasks.spawn(watch_pods(shared, tasks.clone()));
        Ok(Self { dial_map, shutdown, tasks })
    }

    /// Where the pods' addresses really listen.
    #[must_use]
    pub fn dial_map(&self) -> &DialMap {
        &self.dial_map
    }

    /// Stops the processes of all pods, as the end of a machine does: their objects stay as they
    /// are. Returns when all have ended, after a few seconds at most.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// The latest that was heard of a pod; `None` when it is gone.
type PodNews = watch::Sender<Option<Arc<Pod>>>;

async fn watch_pods(shared: Arc<Shared>, tasks: TaskTracker) {
    let pods: Api<Pod> = Api::all(shared.client.clone());
    let bound = watcher::Config::default().fields("spec.nodeName!=");
    let mut events = pin!(watcher(pods, bound).default_backoff());
    let mut workers: HashMap<String, PodNews> = HashMap::new();
    let mut listed: Vec<Pod> = Vec::new();
    loop {
        let event = tokio::select! {
            () = shared.shutdown.cancelled() => return,
            event = events.next() => event,
        };
        match event {
            None => return,
            // The watcher starts anew by itself.
            Some(Err(problem)) => tracing::debug!(%problem, "watching pods"),
            Some(Ok(watcher::Event::Init)) => listed.clear(),
            Some(Ok(watcher::Event::InitApply(pod))) => listed.extend(Some(pod).filter(|pod| shared.runs(pod))),
            Some(Ok(watcher::Event::InitDone)) => {
                let uids: BTreeSet<&str> = listed.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
                workers.retain(|uid, news| {
                    let is_there = uids.contains(uid.as_str());
                    if !is_there {
                        news.send_replace(None);
                    }
                    is_there
                });
                // Pods keep their addresses, so these are taken before any new pod asks for one.
                listed.iter().filter_map(pod_address).for_each(|address| shared.addresses.claim(address));
                for pod in std::mem::take(&mut listed) {
                    hear(&shared, &tasks, &mut workers, pod);
                }
            }
            Some(Ok(watcher::Event::Apply(pod))) => hear(&shared, &tasks, &mut workers, pod),
            Some(Ok(watcher::Event::Delete(pod))) => {
                if let Some(news) = pod.metadata.uid.and_then(|uid| workers.remove(&uid)) {
                    news.send_replace(None);
                }
            }
        }
    }
}

/// The address that a pod's status names.
fn pod_address(pod: &Pod) -> Option<IpAddr> {
    pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok()
}

fn hear(shared: &Arc<Shared>, tasks: &TaskTracker, workers: &mut HashMap<String, PodNews>, pod: Pod) {
    let Some(uid) = pod.metadata.uid.clone() else { return };
    if !shared.runs(&pod) {
        return;
    }
    let pod = Arc::new(pod);
    if let Some(news) = workers.get(&uid).filter(|news| !news.is_closed()) {
        news.send_replace(Some(pod));
        return;
    }
    let (news, heard) = watch::channel(Some(Arc::clone(&pod)));
    workers.insert(uid, news);
    tasks.spawn(worker::run(Arc::clone(shared), pod, heard));
}

impl Shared {
    /// Whether a pod is on one of our nodes.
    fn runs(&self, pod: &Pod) -> bool {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        node.is_some_and(|node| self.settings.nodes.contains_key(node))
    }

    /// Writes a warning about a pod, once for each different text. Failing is no reason to do
    /// anything else differently.
    async fn warn(&self, pod: &Pod, reason: &str, message: &str) {
        let metadata = &pod.metadata;
        let (Some(namespace), Some(name)) = (&metadata.namespace, &metadata.name) else { return };
        let Ok(_place) = self.requests.acquire().await else { return };
        let now = Time(SystemClock.wall());
        let event = Event {
            metadata: ObjectMeta {
                // The same text gives the same name, and the second write of it is refused.
                name: Some(format!("{name}.{:016x}", crate::engine::stable_hash(&format!("{reason}\n{message}")))),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(name.clone()),
                namespace: Some(namespace.clone()),
                uid: metadata.uid.clone(),
                ..ObjectReference::default()
            },
            type_: Some("Warning".to_owned()),
            reason: Some(reason.to_owned()),
            message: Some(gco_runtime::text::bounded(message, 1000)),
            count: Some(1),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            reporting_component: Some("kubelet".to_owned()),
            source: Some(k8s_openapi::api::core::v1::EventSource {
                component: Some("kubelet".to_owned()),
                host: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            }),
            ..Event::default()
        };
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let parameters = PostParams::default();
        match tokio::time::timeout(REQUEST_BOUND, events.create(&parameters, &event)).await {
            Ok(Ok(_)) => {}
            Ok(Err(problem)) => tracing::debug!(%problem, pod = name, reason, "writing an event"),
            Err(_) => tracing::debug!(pod = name, reason, "writing an event took too long"),
        }
    }
}
