//! One pod: its containers, its status, its end.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use gco_runtime::clock::{Clock as _, SystemClock};

use super::container::{ContainerLife, Report, Which};
use super::status::{Place, Snapshot, pod_status};
use super::{Behaviour, REQUEST_BOUND, Shared, pod_address};

/// How long processes have to end when the stand-in itself is stopped.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// Before a request that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The grace of a pod whose deletion names none.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// What became of a request for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Done,
    /// The pod does not exist any more.
    Gone,
    /// To be tried again.
    Failed,
}

struct Worker {
    shared: Arc<Shared>,
    /// As last heard, with the status as last written.
    pod: Pod,
    news: watch::Receiver<Option<Arc<Pod>>>,
    place: Place,
    init: Vec<Snapshot>,
    main: Vec<Snapshot>,
    stop: watch::Sender<Option<Duration>>,
    written: Option<PodStatus>,
}

/// Runs a pod until it is gone or the stand-in stops.
pub(super) async fn run(shared: Arc<Shared>, pod: Arc<Pod>, news: watch::Receiver<Option<Arc<Pod>>>) {
    let address = match pod_address(&pod) {
        Some(IpAddr::V4(address)) => {
            shared.addresses.claim(address.into());
            address
        }
        _ => match shared.addresses.take() {
            Some(address) => address,
            None => {
                tracing::error!("there is no free address for another pod");
                return;
            }
        },
    };
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let place = Place {
        address: Some(address.to_string()),
        host_address: shared.settings.nodes.get(&node).cloned().unwrap_or_default(),
        started_at: SystemClock.wall(),
    };
    let (stop, _) = watch::channel(None);
    let worker = Worker {
        shared: Arc::clone(&shared),
        pod: Pod::clone(&pod),
        news,
        place,
        init: Vec::new(),
        main: Vec::new(),
        stop,
        written: None,
    };
    worker.live(address).await;
    shared.addresses.release(IpAddr::V4(address));
}

impl Worker {
    async fn live(mut self, address: Ipv4Addr) {
        let (reports, mut heard) = mpsc::unbounded_channel();
        let mut lives = JoinSet::new();
        let phase = self.pod.status.as_ref().and_then(|status| status.phase.clone());
        let is_over = matches!(phase.as_deref(), Some("Succeeded" | "Failed"));
        let is_deleted = self.pod.metadata.deletion_timestamp.is_some();
        if !is_over && !is_deleted {
            self.start_containers(address, &reports, &mut lives);
        }
        let mut is_dirty = !is_over && !is_deleted;
        let mut retry_at = None;
        let shared = Arc::clone(&self.shared);
        loop {
            if self.pod.metadata.deletion_timestamp.is_some() && lives.is_empty() {
                return self.finish(&mut heard).await;
            }
            // What containers say in one go is written in one go.
            while let Ok(report) = heard.try_recv() {
                self.apply(report);
                is_dirty = true;
            }
            if is_dirty && retry_at.is_none() {
                match self.write_status().await {
                    Asked::Failed => retry_at = Some(tokio::time::Instant::now() + RETRY),
                    Asked::Done | Asked::Gone => is_dirty = false,
                }
            }
            let retry = async {
                match retry_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = shared.shutdown.cancelled() => {
                    self.stop.send_replace(Some(SHUTDOWN_GRACE));
                    while lives.join_next().await.is_some() {}
                    return;
                }
                changed = self.news.changed() => {
                    let latest = if changed.is_ok() { self.news.borrow_and_update().clone() } else { None };
                    let Some(latest) = latest else {
                        // The object is gone: nothing is left that a grace could belong to.
                        self.stop.send_replace(Some(Duration::ZERO));
                        while lives.join_next().await.is_some() {}
                        return;
                    };
                    self.hear(&latest);
                }
                Some(report) = heard.recv() => {
                    self.apply(report);
                    is_dirty = true;
                }
                Some(ended) = lives.join_next() => {
                    if let Err(problem) = ended {
                        tracing::error!(%problem, "a container's task failed");
                    }
                }
                () = retry => retry_at = None,
            }
        }
    }

    fn start_containers(
        &mut self,
        address: Ipv4Addr,
        reports: &mpsc::UnboundedSender<Report>,
        lives: &mut JoinSet<()>,
    ) {
        let spec = self.pod.spec.clone().unwrap_or_default();
        let now = SystemClock.wall();
        let mut waits_for = None;
        for (number, container) in spec.init_containers.iter().flatten().enumerate() {
            let image = container.image.as_deref().unwrap_or_default();
            let known = self.shared.settings.images.initializes(image);
            if waits_for.is_none() && !known {
                waits_for = Some((number, container.clone()));
            }
            let snapshot = match waits_for {
                None => Snapshot::completed(now),
                Some(_) => Snapshot::waiting("PodInitializing", None),
            };
            self.init.push(snapshot);
        }
        let before = self.pod.status.as_ref().and_then(|status| status.container_statuses.clone()).unwrap_or_default();
        let pod = Arc::new(self.pod.clone());
        let life = |container, which, snapshot| ContainerLife {
            shared: Arc::clone(&self.shared),
            pod: Arc::clone(&pod),
            container,
            which,
            address,
            snapshot,
            reports: reports.clone(),
            stop: self.stop.subscribe(),
        };
        if let Some((number, container)) = waits_for {
            self.main = vec![Snapshot::waiting("PodInitializing", None); spec.containers.len()];
            lives.spawn(life(container, Which::Init(number), Snapshot::creating()).run());
            return;
        }
        let mut main = Vec::with_capacity(spec.containers.len());
        for (number, container) in spec.containers.into_iter().enumerate() {
            let earlier = before.iter().find(|status| status.name == container.name);
            let snapshot = earlier.and_then(|status| self.continued(status)).unwrap_or_else(Snapshot::creating);
            main.push(snapshot.clone());
            lives.spawn(life(container, Which::Main(number), snapshot).run());
        }
        self.main = main;
    }

    /// Where a container of a pod begins that an earlier stand-in ran.
    fn continued(&self, before: &ContainerStatus) -> Option<Snapshot> {
        match self.shared.settings.behaviour {
            Behaviour::Processes => Snapshot::after_a_lost_process(before, SystemClock.wall()),
            // No process was lost.
            Behaviour::StatusOnly { .. } => {
                Some(Snapshot { ready: before.ready, restart_count: before.restart_count, ..Snapshot::creating() })
            }
        }
    }

    fn apply(&mut self, (which, snapshot): Report) {
        let place = match which {
            Which::Init(number) => self.init.get_mut(number),
            Which::Main(number) => self.main.get_mut(number),
        };
        if let Some(place) = place {
            *place = snapshot;
        }
    }

    fn hear(&mut self, latest: &Pod) {
        // Our own writes come back late; what we wrote last is newer than what the watch says.
        let status = self.written.is_some().then(|| self.pod.status.take()).flatten();
        self.pod = latest.clone();
        self.pod.status = status.or_else(|| self.pod.status.take());
        if latest.metadata.deletion_timestamp.is_some() {
            let seconds = latest.metadata.deletion_grace_period_seconds;
            let grace = seconds
                .map_or(DEFAULT_GRACE, |seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or_default()));
            self.stop.send_if_modified(|stop| {
                let shorter = stop.is_none_or(|before| grace < before);
                *stop = Some(if shorter { grace } else { stop.unwrap_or(grace) });
                shorter
            });
        }
    }

    fn api(&self) -> Api<Pod> {
        let namespace = self.pod.metadata.namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.shared.client.clone(), namespace)
    }

    fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    /// Writes the status if it differs from what was written last.
    async fn write_status(&mut self) -> Asked {
        let status = pod_status(&self.pod, &self.place, &self.init, &self.main, SystemClock.wall());
        if self.written.as_ref() == Some(&status) {
            return Asked::Done;
        }
        let Ok(_place) = self.shared.requests.acquire().await else { return Asked::Gone };
        // With the uid, a pod of the same name that came later is left alone.
        let patch = json!({"metadata": {"uid": self.pod.metadata.uid}, "status": status_patch(&status)});
        let (pods, parameters, patch) = (self.api(), PatchParams::default(), Patch::Strategic(patch));
        let writing = pods.patch_status(self.name(), &parameters, &patch);
        let Ok(written) = tokio::time::timeout(REQUEST_BOUND, writing).await else { return Asked::Failed };
        let asked = asked(written.as_ref().err());
        if let Ok(pod) = written {
            self.pod.status = pod.status;
            self.written = Some(status);
        } else if let (Asked::Failed, Err(problem)) = (asked, written) {
            tracing::warn!(%problem, pod = self.name(), "writing a pod's status");
        }
        asked
    }

    /// The containers have ended: the last status, and the object goes away.
    async fn finish(mut self, heard: &mut mpsc::UnboundedReceiver<Report>) {
        while let Ok(report) = heard.try_recv() {
            self.apply(report);
        }
        // Suites that only look at statuses have hundreds of pods, and nobody reads this one.
        if self.shared.settings.behaviour == Behaviour::Processes && !self.main.is_empty() {
            self.write_status().await;
        }
        let preconditions = Preconditions { uid: self.pod.metadata.uid.clone(), resource_version: None };
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        loop {
            let deleted = {
                let Ok(_place) = self.shared.requests.acquire().await else { return };
                tokio::time::timeout(REQUEST_BOUND, self.api().delete(self.name(), &parameters)).await
            };
            match deleted.map_or(Asked::Failed, |deleted| asked(deleted.as_ref().err())) {
                Asked::Failed => {}
                // A finalizer may keep the object; whoever holds it will let go of it.
                Asked::Done | Asked::Gone => return,
            }
            tokio::select! {
                () = self.shared.shutdown.cancelled() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }
}

fn asked(problem: Option<&kube::Error>) -> Asked {
    match problem {
        None => Asked::Done,
        // 409: another pod has the name now.
        Some(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Asked::Gone,
        Some(_) => Asked::Failed,
    }
}

/// The status as a strategic merge patch: conditions are merged one by one, so that what a condition
/// does not say any more must be taken away expressly.
fn status_patch(status: &PodStatus) -> Value {
    let mut patch = serde_json::to_value(status).unwrap_or_default();
    for condition in patch.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        for key in ["reason", "message"] {
            if condition.get(key).is_none() {
                condition[key] = Value::Null;
            }
        }
    }
    patch
}
