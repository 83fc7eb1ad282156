//! The life of one container: pull, run, restart, stop.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::sync::{mpsc, watch};

use gco_runtime::clock::{Clock as _, SystemClock};

use super::images::PodFault;
use super::run;
use super::status::{Activity, Snapshot, Termination};
use super::{Behaviour, Shared};
use crate::engine::{EngineArguments, Fault};

/// How long an image that cannot be pulled rests between two tries, as its status shows it.
const PULL_RETRY: Duration = Duration::from_secs(2);

/// Which container of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Init(usize),
    Main(usize),
}

/// What a container has come to; the last one it says counts.
pub(super) type Report = (Which, Snapshot);

/// One container and whoever listens to it. Whatever it does ends soon after `stop` holds a grace;
/// a shorter grace may follow.
pub(super) struct ContainerLife {
    pub(super) shared: Arc<Shared>,
    pub(super) pod: Arc<Pod>,
    pub(super) container: Container,
    pub(super) which: Which,
    /// The pod's address.
    pub(super) address: std::net::Ipv4Addr,
    pub(super) snapshot: Snapshot,
    pub(super) reports: mpsc::UnboundedSender<Report>,
    pub(super) stop: watch::Receiver<Option<Duration>>,
}

/// How a run came to its end.
pub(super) enum RunEnd {
    /// The container may run again.
    Ended { termination: Termination, lasted: Duration },
    /// It was asked to stop, and has.
    Stopped,
}

impl ContainerLife {
    pub(super) async fn run(mut self) {
        let image = self.container.image.clone().unwrap_or_default();
        let fault = PodFault::asked(&self.pod.metadata, &image);
        let known = match self.which {
            // An init container that is known has succeeded without a life.
            Which::Init(_) => false,
            Which::Main(_) => self.shared.settings.images.program(&image).is_some(),
        };
        if !known || fault == Some(PodFault::Pull) {
            return self.fail_to_pull(&image).await;
        }
        let restarts = self.pod.spec.as_ref().and_then(|spec| spec.restart_policy.clone());
        let delays = self.shared.settings.restart_delay;
        let mut delay = delays.first;
        loop {
            let end = match self.shared.settings.behaviour {
                Behaviour::Processes => run::process(&mut self, &image, fault.as_ref()).await,
                Behaviour::StatusOnly { ready_delay, stop_delay } => {
                    let fault = self.engine_fault(fault.as_ref());
                    run::simulated(&mut self, &fault, ready_delay, stop_delay).await
                }
            };
            let RunEnd::Ended { termination, lasted } = end else { return };
            let runs_again = match restarts.as_deref() {
                Some("Never") => false,
                Some("OnFailure") => termination.exit_code != 0,
                _ => true,
            };
            (self.snapshot.ready, self.snapshot.started) = (false, false);
            self.tell(Activity::Terminated(termination.clone()));
            if !runs_again {
                return;
            }
            if lasted > delays.longest * 2 {
                delay = delays.first;
            }
            self.snapshot.last = Some(termination);
            self.snapshot.restart_count += 1;
            let message = format!(
                "back-off {}s restarting failed container={} pod={}",
                delay.as_secs_f64(),
                self.container.name,
                self.pod_name()
            );
            self.tell(Activity::Waiting { reason: "CrashLoopBackOff", message: Some(message) });
            let message =
                format!("Back-off restarting failed container {} in pod {}", self.container.name, self.pod_name());
            self.shared.warn(&self.pod, "BackOff", &message).await;
            if self.rests(delay).await {
                return;
            }
            delay = (delay * 2).min(delays.longest);
        }
    }

    pub(super) fn pod_name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    /// Says what the container does now.
    pub(super) fn tell(&mut self, activity: Activity) {
        self.snapshot.activity = activity;
        self.tell_again();
    }

    /// Says what the snapshot holds now.
    pub(super) fn tell_again(&self) {
        // A worker that does not listen any more has ended, and the life with it.
        let _ = self.reports.send((self.which, self.snapshot.clone()));
    }

    /// Waits; `true` when it was asked to stop meanwhile.
    pub(super) async fn rests(&mut self, time: Duration) -> bool {
        let asked = self.stop.wait_for(Option::is_some);
        tokio::time::timeout(time, asked).await.is_ok()
    }

    /// The fault that an engine would have: asked for by the pod, a variable, or the model's name.
    fn engine_fault(&self, asked: Option<&PodFault>) -> Fault {
        if let Some(PodFault::Engine(fault)) = asked {
            return fault.clone();
        }
        let variable = self.container.env.iter().flatten().find(|variable| variable.name == "GCO_ENGINE_FAULT");
        let of_variable = variable.and_then(|variable| Fault::parse(variable.value.as_deref()?));
        of_variable.unwrap_or_else(|| {
            let arguments = EngineArguments::parse(self.container.args.iter().flatten().cloned());
            arguments.ok().and_then(|arguments| Fault::of_model(&arguments.model)).unwrap_or_default()
        })
    }

    /// Tries to pull for ever, as a kubelet does.
    async fn fail_to_pull(mut self, image: &str) {
        let failure =
            format!("failed to pull and unpack image \"{image}\": this machine has no program that stands for it");
        let message = format!("Failed to pull image \"{image}\": {failure}");
        self.tell(Activity::Waiting { reason: "ErrImagePull", message: Some(failure) });
        self.shared.warn(&self.pod, "Failed", &message).await;
        if self.rests(PULL_RETRY).await {
            return;
        }
        // A kubelet goes back and forth between the two; nothing is learnt from that.
        let message = format!("Back-off pulling image \"{image}\"");
        self.tell(Activity::Waiting { reason: "ImagePullBackOff", message: Some(message.clone()) });
        self.shared.warn(&self.pod, "BackOff", &message).await;
        // The sender lives as long as the pod's worker.
        let _ = self.stop.wait_for(Option::is_some).await;
    }
}

/// How a run ended that began at a certain time.
pub(super) fn termination(exit_code: i32, message: Option<String>, started_at: jiff::Timestamp) -> Termination {
    Termination {
        exit_code,
        reason: if exit_code == 0 { "Completed" } else { "Error" }.to_owned(),
        message,
        started_at: Some(started_at),
        finished_at: SystemClock.wall(),
    }
}
