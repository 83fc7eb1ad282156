//! One run of a container: a process with its probes, or a simulation of that.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use nix::sys::signal::Signal;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use gco_bed::process::Supervised;
use gco_runtime::clock::{Clock as _, SystemClock};

use super::container::{ContainerLife, RunEnd, termination};
use super::images::PodFault;
use super::launch::Launch;
use super::probe::{ProbePlan, Reach, Verdict, before_stop};
use super::status::Activity;
use crate::engine::Fault;

/// How often a process that lost its port is started with another one.
const PORT_TRIES: usize = 10;

/// Before another try to start a container whose variables cannot be resolved.
const CONFIGURATION_RETRY: Duration = Duration::from_secs(2);

/// A kubelet gives a container at least this long after its SIGTERM, unless the grace is zero.
const LEAST_GRACE_AFTER_SIGNAL: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Startup,
    Readiness,
    Liveness,
}

/// Runs the container's process until it ends or has been stopped.
pub(super) async fn process(life: &mut ContainerLife, image: &str, fault: Option<&PodFault>) -> RunEnd {
    for _ in 0..PORT_TRIES {
        let Some(launch) = launch(life, image, fault).await else { return RunEnd::Stopped };
        let taken = launch.port_taken_exit_code;
        let end = match Supervised::start(launch.process) {
            Ok(process) => run_started(life, process, launch.port).await,
            Err(problem) => {
                let now = SystemClock.wall();
                RunEnd::Ended {
                    termination: termination(128, Some(format!("{problem:#}")), now),
                    lasted: Duration::ZERO,
                }
            }
        };
        match end {
            RunEnd::Ended { termination, .. } if taken.is_some_and(|code| i32::from(code) == termination.exit_code) => {
            }
            end => return end,
        }
    }
    let message = "its port was taken by another process, ten times in a row".to_owned();
    RunEnd::Ended { termination: termination(128, Some(message), SystemClock.wall()), lasted: Duration::ZERO }
}

/// Waits until everything that the process needs is there; `None` when it was asked to stop first.
async fn launch(life: &mut ContainerLife, image: &str, fault: Option<&PodFault>) -> Option<Launch> {
    loop {
        // Images do not become unknown while a pod runs.
        let program = life.shared.settings.images.program(image)?;
        let address = life.address.to_string();
        match Launch::new(&life.shared, &life.pod, &life.container, program, fault, &address).await {
            Ok(launch) => return Some(launch),
            Err(message) => {
                life.tell(Activity::Waiting { reason: "CreateContainerConfigError", message: Some(message.clone()) });
                life.shared.warn(&life.pod, "Failed", &format!("Error: {message}")).await;
                if life.rests(CONFIGURATION_RETRY).await {
                    return None;
                }
            }
        }
    }
}

async fn run_started(life: &mut ContainerLife, process: Supervised, port: Option<(u16, u16)>) -> RunEnd {
    let (started_at, started) = (SystemClock.wall(), Instant::now());
    let reach = Reach { ports: port.into_iter().collect() };
    let address = IpAddr::V4(life.address);
    let listening = port.map(|(port, local)| (port, SocketAddr::from((Ipv4Addr::LOCALHOST, local))));
    // Before the pod can become ready, so that whoever sees it ready can reach it.
    if let Err(problem) = life.shared.dial_map.insert(address, listening) {
        tracing::error!(%problem, "writing the dial map");
    }
    let message = watch_process(life, &process, &reach, started_at, started).await;
    let status = process.exit_status().unwrap_or_default();
    if let Err(problem) = life.shared.dial_map.remove(address, reach.ports.into_keys()) {
        tracing::error!(%problem, "writing the dial map");
    }
    // Ends what the process may have left behind.
    process.stop(Duration::ZERO).await;
    let exit_code = exit_code(status);
    tracing::info!(pod = life.pod_name(), container = life.container.name, exit_code, "a container ended");
    let termination = termination(exit_code, message, started_at);
    if life.stop.borrow().is_some() {
        (life.snapshot.ready, life.snapshot.started) = (false, false);
        life.tell(Activity::Terminated(termination));
        return RunEnd::Stopped;
    }
    RunEnd::Ended { termination, lasted: started.elapsed() }
}

/// Until the process has ended: by itself, because a probe said so (then with the words), or because
/// it was asked to stop.
async fn watch_process(
    life: &mut ContainerLife,
    process: &Supervised,
    reach: &Reach,
    started_at: jiff::Timestamp,
    started: Instant,
) -> Option<String> {
    let container = life.container.clone();
    let mut stop = life.stop.clone();
    life.snapshot.started = container.startup_probe.is_none();
    life.snapshot.ready = life.snapshot.started && container.readiness_probe.is_none();
    life.tell(Activity::Running { since: started_at });

    // Dropped, and every prober with it, when this function returns.
    let mut probers = Probers::new(life, reach.clone(), started);
    if let Some(probe) = &container.startup_probe {
        probers.start(Kind::Startup, probe);
    } else {
        probers.start_after_startup();
    }
    loop {
        tokio::select! {
            _ = process.wait() => return None,
            () = asked_to_stop(&mut stop) => {
                stop_process(process, &container, reach, life.stop.clone()).await;
                return None;
            }
            Some((kind, verdict)) = probers.verdicts.recv() => match (kind, verdict) {
                (Kind::Startup, Verdict::Good) => {
                    life.snapshot.started = true;
                    life.snapshot.ready = container.readiness_probe.is_none();
                    life.tell_again();
                    probers.start_after_startup();
                }
                (Kind::Readiness, verdict) => {
                    life.snapshot.ready = verdict == Verdict::Good;
                    life.tell_again();
                }
                (Kind::Liveness, Verdict::Good) => {}
                (Kind::Startup | Kind::Liveness, Verdict::Bad(_)) => {
                    let (word, probe) = match kind {
                        Kind::Startup => ("startup", container.startup_probe.as_ref()),
                        _ => ("liveness", container.liveness_probe.as_ref()),
                    };
                    let message = format!("Container {} failed {word} probe, will be restarted", container.name);
                    life.shared.warn(&life.pod, "Killing", &message).await;
                    let of_probe = probe.and_then(|probe| probe.termination_grace_period_seconds);
                    let of_pod = life.pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
                    let grace = u64::try_from(of_probe.or(of_pod).unwrap_or(30)).unwrap_or_default();
                    kill_within(process, &container, reach, Duration::from_secs(grace), &mut stop).await;
                    return Some(message);
                }
            },
        }
    }
}

/// The probers of one run.
struct Probers {
    container: k8s_openapi::api::core::v1::Container,
    pod: std::sync::Arc<k8s_openapi::api::core::v1::Pod>,
    shared: std::sync::Arc<super::Shared>,
    reach: Reach,
    started: Instant,
    tell: mpsc::UnboundedSender<(Kind, Verdict)>,
    verdicts: mpsc::UnboundedReceiver<(Kind, Verdict)>,
    tasks: JoinSet<()>,
}

impl Probers {
    fn new(life: &ContainerLife, reach: Reach, started: Instant) -> Self {
        let (tell, verdicts) = mpsc::unbounded_channel();
        Self {
            container: life.container.clone(),
            pod: life.pod.clone(),
            shared: life.shared.clone(),
            reach,
            started,
            tell,
            verdicts,
            tasks: JoinSet::new(),
        }
    }

    fn start_after_startup(&mut self) {
        for (kind, probe) in [
            (Kind::Readiness, self.container.readiness_probe.clone()),
            (Kind::Liveness, self.container.liveness_probe.clone()),
        ] {
            if let Some(probe) = probe {
                self.start(kind, &probe);
            }
        }
    }

    fn start(&mut self, kind: Kind, probe: &Probe) {
        let plan = ProbePlan::new(probe, &self.container, self.shared.settings.probe_pace);
        let tell = self.tell.clone();
        let (failed, mut failures) = watch::channel(None::<String>);
        let verdict = plan.run(
            self.reach.clone(),
            self.started,
            move |verdict| {
                // The run that listens has ended when this fails, and aborts this prober.
                let _ = tell.send((kind, verdict));
            },
            move |message| {
                failed.send_replace(Some(message.to_owned()));
            },
        );
        self.tasks.spawn(verdict);
        let (shared, pod) = (self.shared.clone(), self.pod.clone());
        self.tasks.spawn(async move {
            while failures.changed().await.is_ok() {
                let message = failures.borrow_and_update().clone().unwrap_or_default();
                shared.warn(&pod, "Unhealthy", &format!("{kind:?} probe failed: {message}")).await;
            }
        });
    }
}

/// preStop, SIGTERM, and SIGKILL when the grace is over. The grace may be cut short meanwhile.
async fn stop_process(
    process: &Supervised,
    container: &k8s_openapi::api::core::v1::Container,
    reach: &Reach,
    mut grace: watch::Receiver<Option<Duration>>,
) {
    let begun = Instant::now();
    let mut hook = Some(Box::pin(before_stop(container, reach)));
    let mut signalled = None;
    loop {
        let now = grace.borrow_and_update().unwrap_or_default();
        let mut deadline = begun + now;
        if let Some(signalled) = signalled
            && !now.is_zero()
        {
            deadline = deadline.max(signalled + LEAST_GRACE_AFTER_SIGNAL);
        }
        let hook_done = async {
            match hook.as_mut() {
                Some(hook) => hook.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = process.wait() => return,
            Ok(()) = grace.changed() => {}
            () = tokio::time::sleep_until(deadline) => {
                if signalled.is_some() || now.is_zero() {
                    process.kill().await;
                    return;
                }
                // The hook used up the grace: the process is asked all the same.
                hook = None;
                signalled = Some(Instant::now());
                ask_to_end(process);
            }
            () = hook_done => {
                hook = None;
                signalled = Some(Instant::now());
                ask_to_end(process);
            }
        }
    }
}

fn ask_to_end(process: &Supervised) {
    if let Err(problem) = process.signal(Signal::SIGTERM) {
        tracing::warn!(%problem, "asking a process to end");
    }
}

async fn asked_to_stop(stop: &mut watch::Receiver<Option<Duration>>) {
    // The sender outlives every run of the pod's containers.
    let _ = stop.wait_for(Option::is_some).await;
}

/// As [`stop_process`] with a grace of its own, which the pod's end can cut short.
async fn kill_within(
    process: &Supervised,
    container: &k8s_openapi::api::core::v1::Container,
    reach: &Reach,
    grace: Duration,
    stop: &mut watch::Receiver<Option<Duration>>,
) {
    let (shorten, own) = watch::channel(Some(grace));
    let cut_short = async {
        if let Ok(asked) = stop.wait_for(Option::is_some).await {
            shorten.send_replace(asked.map(|asked| asked.min(grace)));
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = stop_process(process, container, reach, own) => {}
        () = cut_short => {}
    }
}

/// A container's exit code: the process's, or 128 and the number of the signal that ended it.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255)
}

/// The same as [`process`] would make of the status, without a process.
pub(super) async fn simulated(
    life: &mut ContainerLife,
    fault: &Fault,
    ready_delay: Duration,
    stop_delay: Duration,
) -> RunEnd {
    let (started_at, started) = (SystemClock.wall(), Instant::now());
    let (ready_after, crash) = match fault {
        Fault::None => (Some(ready_delay), None),
        Fault::NeverHealthy => (None, None),
        Fault::SlowLoad { delay } => (Some(*delay), None),
        Fault::CrashAtStart { exit_code } => (None, Some((Duration::ZERO, *exit_code))),
        Fault::CrashAfter { delay, exit_code } => (Some(ready_delay), Some((*delay, *exit_code))),
    };
    // One write less for a pod that is ready at once; and one that was ready before the stand-in
    // was restarted is ready now.
    let was_ready = std::mem::take(&mut life.snapshot.ready);
    life.snapshot.started = true;
    life.snapshot.ready = ready_after.is_some_and(|delay| was_ready || delay.is_zero());
    life.tell(Activity::Running { since: started_at });
    let mut stop = life.stop.clone();
    let exit_code = {
        let end = async {
            if let Some(delay) = ready_after.filter(|_| !life.snapshot.ready) {
                let delay = crash.map_or(delay, |(crash, _)| delay.min(crash));
                tokio::time::sleep(delay).await;
                life.snapshot.ready = true;
                life.tell_again();
            }
            match crash {
                Some((delay, exit_code)) => {
                    tokio::time::sleep_until(started + delay).await;
                    i32::from(exit_code)
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            exit_code = end => Some(exit_code),
            () = asked_to_stop(&mut stop) => None,
        }
    };
    if let Some(exit_code) = exit_code {
        return RunEnd::Ended { termination: termination(exit_code, None, started_at), lasted: started.elapsed() };
    }
    // A later request may shorten the grace, down to nothing.
    let asked = Instant::now();
    loop {
        let grace = stop.borrow_and_update().unwrap_or_default();
        let end = asked + stop_delay.min(grace);
        tokio::select! {
            () = tokio::time::sleep_until(end) => break,
            Ok(()) = stop.changed() => {}
        }
    }
    (life.snapshot.ready, life.snapshot.started) = (false, false);
    life.tell(Activity::Terminated(termination(0, None, started_at)));
    RunEnd::Stopped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_gives_the_exit_code_that_shells_give_it() {
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
    }
}
