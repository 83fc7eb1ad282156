//! The status of a pod, computed from what its containers do. Pure: the time is an argument.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// What a container does now.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Activity {
    /// It does not run, and will.
    Waiting { reason: &'static str, message: Option<String> },
    /// It runs.
    Running { since: Timestamp },
    /// It ran.
    Terminated(Termination),
}

/// How a run of a container ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Termination {
    pub(super) exit_code: i32,
    pub(super) reason: String,
    pub(super) message: Option<String>,
    pub(super) started_at: Option<Timestamp>,
    pub(super) finished_at: Timestamp,
}

/// Everything that a pod's status says of one container.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Snapshot {
    pub(super) activity: Activity,
    pub(super) last: Option<Termination>,
    pub(super) restart_count: i32,
    /// The startup probe, if there is one, has succeeded.
    pub(super) started: bool,
    pub(super) ready: bool,
}

impl Snapshot {
    /// A container that has not run yet.
    pub(super) fn creating() -> Self {
        Self::waiting("ContainerCreating", None)
    }

    /// A container that waits and has not run yet.
    pub(super) fn waiting(reason: &'static str, message: Option<String>) -> Self {
        Self {
            activity: Activity::Waiting { reason, message },
            last: None,
            restart_count: 0,
            started: false,
            ready: false,
        }
    }

    /// An init container that did its work in no time.
    pub(super) fn completed(at: Timestamp) -> Self {
        let termination = Termination {
            exit_code: 0,
            reason: "Completed".to_owned(),
            message: None,
            started_at: Some(at),
            finished_at: at,
        };
        Self { activity: Activity::Terminated(termination), ready: true, ..Self::creating() }
    }

    /// What an earlier status said of a container whose process is gone since then. `None` when it
    /// had not run.
    pub(super) fn after_a_lost_process(before: &ContainerStatus, now: Timestamp) -> Option<Self> {
        let state = before.state.as_ref();
        let running = state.and_then(|state| state.running.as_ref());
        let ended = state.and_then(|state| state.terminated.as_ref()).map(Termination::read);
        let ended_before =
            before.last_state.as_ref().and_then(|state| state.terminated.as_ref()).map(Termination::read);
        let lost = running.map(|running| Termination {
            exit_code: 255,
            reason: "Unknown".to_owned(),
            message: None,
            started_at: running.started_at.as_ref().map(|time| time.0),
            finished_at: now,
        });
        let last = lost.or(ended).or(ended_before)?;
        Some(Self { last: Some(last), restart_count: before.restart_count + 1, ..Self::creating() })
    }
}

impl Termination {
    fn read(state: &ContainerStateTerminated) -> Self {
        Self {
            exit_code: state.exit_code,
            reason: state.reason.clone().unwrap_or_default(),
            message: state.message.clone(),
            started_at: state.started_at.as_ref().map(|time| time.0),
            finished_at: state.finished_at.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        }
    }

    fn to_state(&self) -> ContainerState {
        let terminated = ContainerStateTerminated {
            exit_code: self.exit_code,
            reason: Some(self.reason.clone()),
            message: self.message.clone(),
            started_at: self.started_at.map(seconds),
            finished_at: Some(seconds(self.finished_at)),
            ..ContainerStateTerminated::default()
        };
        ContainerState { terminated: Some(terminated), ..ContainerState::default() }
    }
}

/// The API's times have whole seconds.
pub(crate) fn seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// Where a pod is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    /// `None` before an address is needed.
    pub(super) address: Option<String>,
    pub(super) host_address: String,
    pub(super) started_at: Timestamp,
}

/// The whole status. `init` and `main` are in the order of the pod's containers. Times at which a
/// condition changed are taken from the pod's present status where it did not change.
pub(super) fn pod_status(pod: &Pod, place: &Place, init: &[Snapshot], main: &[Snapshot], now: Timestamp) -> PodStatus {
    let before = pod.status.clone().unwrap_or_default();
    let spec = pod.spec.clone().unwrap_or_default();
    let init_containers = spec.init_containers.unwrap_or_default();
    let initialized = init.iter().all(is_successful);
    let restarts = spec.restart_policy.as_deref().unwrap_or("Always");
    let phase = phase(initialized, main, restarts);
    let ended = matches!(phase, "Succeeded" | "Failed");

    let named = |containers: &[Container], snapshots: &[Snapshot], wanted: fn(&Snapshot) -> bool| -> Vec<String> {
        let pairs = containers.iter().zip(snapshots);
        pairs.filter(|(_, snapshot)| !wanted(snapshot)).map(|(container, _)| container.name.clone()).collect()
    };
    let uninitialized = named(&init_containers, init, is_successful);
    let unready = named(&spec.containers, main, |snapshot| snapshot.ready);
    let condition =
        |kind: &str, holds: bool, reason: &str, message: String| condition(&before, now, kind, holds, reason, message);
    let unready_message = format!("containers with unready status: [{}]", unready.join(" "));
    let reason = if ended { "PodCompleted" } else { "ContainersNotReady" };
    let unready_message = if ended { String::new() } else { unready_message };
    let mut conditions = vec![
        condition("PodReadyToStartContainers", place.address.is_some(), "", String::new()),
        condition(
            "Initialized",
            initialized,
            "ContainersNotInitialized",
            format!("containers with incomplete status: [{}]", uninitialized.join(" ")),
        ),
        condition("Ready", initialized && unready.is_empty() && !ended, reason, unready_message.clone()),
        condition("ContainersReady", initialized && unready.is_empty() && !ended, reason, unready_message),
    ];
    let ours: Vec<String> = conditions.iter().map(|one| one.type_.clone()).collect();
    conditions.extend(before.conditions.iter().flatten().filter(|one| !ours.contains(&one.type_)).cloned());

    PodStatus {
        phase: Some(phase.to_owned()),
        conditions: Some(conditions),
        host_ip: Some(place.host_address.clone()),
        host_ips: Some(vec![HostIP { ip: place.host_address.clone() }]),
        pod_ip: place.address.clone(),
        pod_ips: place.address.clone().map(|ip| vec![PodIP { ip }]),
        start_time: Some(before.start_time.clone().unwrap_or_else(|| seconds(place.started_at))),
        init_container_statuses: (!init.is_empty()).then(|| container_statuses(&init_containers, init)),
        container_statuses: Some(container_statuses(&spec.containers, main)),
        ..PodStatus::default()
    }
}

fn is_successful(snapshot: &Snapshot) -> bool {
    matches!(&snapshot.activity, Activity::Terminated(end) if end.exit_code == 0)
}

fn phase(initialized: bool, main: &[Snapshot], restarts: &str) -> &'static str {
    // A container that waits for its first run keeps the pod pending; one that waits for its next
    // run does not.
    let unstarted = |one: &Snapshot| matches!(one.activity, Activity::Waiting { .. }) && one.last.is_none();
    if !initialized || main.iter().any(unstarted) {
        return "Pending";
    }
    let all_ended = main.iter().all(|one| matches!(one.activity, Activity::Terminated(_)));
    match (all_ended, restarts, main.iter().all(is_successful)) {
        (false, _, _) | (true, "Always", _) | (true, "OnFailure", false) => "Running",
        (true, _, true) => "Succeeded",
        (true, _, false) => "Failed",
    }
}

fn condition(
    before: &PodStatus,
    now: Timestamp,
    kind: &str,
    holds: bool,
    reason: &str,
    message: String,
) -> PodCondition {
    let status = if holds { "True" } else { "False" };
    let unchanged = before.conditions.iter().flatten().find(|one| one.type_ == kind && one.status == status);
    PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: (!holds && !reason.is_empty()).then(|| reason.to_owned()),
        message: (!holds && !message.is_empty()).then_some(message),
        last_transition_time: Some(
            unchanged.and_then(|one| one.last_transition_time.clone()).unwrap_or_else(|| seconds(now)),
        ),
        ..PodCondition::default()
    }
}

fn container_statuses(containers: &[Container], snapshots: &[Snapshot]) -> Vec<ContainerStatus> {
    containers
        .iter()
        .zip(snapshots)
        .map(|(container, snapshot)| {
            let image = container.image.clone().unwrap_or_default();
            let has_run = snapshot.last.is_some() || !matches!(snapshot.activity, Activity::Waiting { .. });
            ContainerStatus {
                name: container.name.clone(),
                image_id: if has_run { format!("gco-local://{image}") } else { String::new() },
                image,
                ready: snapshot.ready,
                started: Some(snapshot.started),
                restart_count: snapshot.restart_count,
                state: Some(state(&snapshot.activity)),
                last_state: snapshot.last.as_ref().map(Termination::to_state),
                ..ContainerStatus::default()
            }
        })
        .collect()
}

fn state(activity: &Activity) -> ContainerState {
    match activity {
        Activity::Waiting { reason, message } => ContainerState {
            waiting: Some(ContainerStateWaiting { reason: Some((*reason).to_owned()), message: message.clone() }),
            ..ContainerState::default()
        },
        Activity::Running { since } => ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(seconds(*since)) }),
            ..ContainerState::default()
        },
        Activity::Terminated(termination) => termination.to_state(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "demo", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "inference", "image": "vllm"}], "nodeName": "node"},
            "status": status,
        }))
        .unwrap()
    }

    fn place() -> Place {
        Place { address: Some("192.0.2.1".to_owned()), host_address: "10.0.0.1".to_owned(), started_at: at(1) }
    }

    fn running(ready: bool) -> Snapshot {
        Snapshot { activity: Activity::Running { since: at(5) }, started: true, ready, ..Snapshot::creating() }
    }

    fn find<'s>(status: &'s PodStatus, kind: &str) -> &'s PodCondition {
        status.conditions.as_ref().unwrap().iter().find(|one| one.type_ == kind).unwrap()
    }

    fn ended(exit_code: i32) -> Termination {
        Termination { exit_code, reason: "Error".into(), message: None, started_at: Some(at(5)), finished_at: at(6) }
    }

    #[test]
    fn a_ready_pod_is_running_with_all_conditions_true() {
        let status = pod_status(&pod(&json!({})), &place(), &[], &[running(true)], at(9));
        assert_eq!(status.phase.as_deref(), Some("Running"));
        for kind in ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"] {
            assert_eq!(find(&status, kind).status, "True", "{kind}");
        }
        assert_eq!(status.pod_ip.as_deref(), Some("192.0.2.1"));
    }

    #[test]
    fn an_unready_pod_names_its_unready_containers() {
        let status = pod_status(&pod(&json!({})), &place(), &[], &[running(false)], at(9));
        let ready = find(&status, "Ready");
        assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("False", Some("ContainersNotReady")));
        assert_eq!(ready.message.as_deref(), Some("containers with unready status: [inference]"));
    }

    #[test]
    fn what_the_scheduler_wrote_and_times_that_did_not_change_are_kept() {
        let first = pod_status(
            &pod(&json!({"conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:00:03Z"}
            ]})),
            &place(),
            &[],
            &[running(false)],
            at(9),
        );
        assert_eq!(find(&first, "PodScheduled").last_transition_time, Some(seconds(at(3))));
        let then = pod(&serde_json::to_value(&first).unwrap());
        let second = pod_status(&then, &place(), &[], &[running(true)], at(20));
        assert_eq!(find(&second, "Initialized").last_transition_time, Some(seconds(at(9))));
        assert_eq!(find(&second, "Ready").last_transition_time, Some(seconds(at(20))));
        let third = pod(&serde_json::to_value(&second).unwrap());
        assert_eq!(pod_status(&third, &place(), &[], &[running(true)], at(30)), second);
    }

    #[test]
    fn a_pod_that_waits_for_its_first_run_is_pending_and_one_that_crashed_is_running() {
        let pull = Snapshot::waiting("ErrImagePull", Some("no such image".to_owned()));
        let status = pod_status(&pod(&json!({})), &place(), &[], std::slice::from_ref(&pull), at(9));
        assert_eq!(status.phase.as_deref(), Some("Pending"));
        let crashed =
            Snapshot { last: Some(ended(3)), restart_count: 1, ..Snapshot::waiting("CrashLoopBackOff", None) };
        let status = pod_status(&pod(&json!({})), &place(), &[], &[crashed], at(9));
        assert_eq!(status.phase.as_deref(), Some("Running"));
        let container = &status.container_statuses.unwrap()[0];
        let last = container.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
        assert_eq!((last.exit_code, container.restart_count), (3, 1));
    }

    #[test]
    fn a_container_that_ran_before_the_stand_in_was_restarted_counts_a_restart() {
        let before = pod_status(&pod(&json!({})), &place(), &[], &[running(true)], at(9));
        let before = &before.container_statuses.unwrap()[0];
        let after = Snapshot::after_a_lost_process(before, at(50)).unwrap();
        assert_eq!((after.restart_count, after.ready), (1, false));
        assert_eq!(after.last.as_ref().unwrap().exit_code, 255);
        let never_ran = pod_status(&pod(&json!({})), &place(), &[], &[Snapshot::creating()], at(9));
        assert_eq!(Snapshot::after_a_lost_process(&never_ran.container_statuses.unwrap()[0], at(50)), None);
    }

    #[test]
    fn a_pod_that_does_not_restart_ends_as_its_containers_did() {
        for (exit_code, expected) in [(0, "Succeeded"), (3, "Failed")] {
            let mut pod = pod(&json!({}));
            pod.spec.as_mut().unwrap().restart_policy = Some("Never".to_owned());
            let end = Snapshot { activity: Activity::Terminated(ended(exit_code)), ..Snapshot::creating() };
            let status = pod_status(&pod, &place(), &[], &[end], at(9));
            assert_eq!(status.phase.as_deref(), Some(expected));
            assert_eq!(find(&status, "Ready").reason.as_deref(), Some("PodCompleted"));
        }
    }
}
