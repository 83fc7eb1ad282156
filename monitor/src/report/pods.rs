//! Why pods are not ready, in words that do not change from look to look.
//!
//! A crashing container alternates between "crashed", "waits" and "runs, not ready", and the kubelet's words count the
//! seconds of its back-off. Written as they come, they would rewrite the row several times a minute, and every writer that
//! edits under the row's version would lose (D-15).

use std::collections::BTreeMap;

use gco_store::status::{MOST_POD_REASONS, PodReason, RegionEntry};

use super::codes::{self, Code};
use crate::object::ObservedPod;

const CRASH_LOOP: &str = "CrashLoopBackOff";
const OUT_OF_MEMORY: &str = "OOMKilled";
const IMAGE_PULL: &str = "ImagePullBackOff";
/// Exit code of a container that was killed (128 + 9).
const KILLED: i64 = 137;

/// One line per distinct reason, the most frequent first.
pub(super) fn reasons(pods: &[&ObservedPod], stored: Option<&RegionEntry>) -> Vec<PodReason> {
    let was_out_of_memory = stored.is_some_and(|entry| entry.pods.iter().any(|line| line.reason == OUT_OF_MEMORY));
    let mut lines: BTreeMap<(String, Option<i64>), PodReason> = BTreeMap::new();
    let mut waiting: Vec<&&ObservedPod> = pods.iter().filter(|pod| !pod.ready && !pod.terminating).collect();
    // The caches have no order; the example and the message must not depend on one.
    waiting.sort_by(|one, other| one.name.cmp(&other.name));
    for pod in waiting {
        let reason = settled_reason(pod, was_out_of_memory);
        let line = lines.entry((reason.clone(), pod.exit_code)).or_insert_with(|| PodReason {
            message: settled_message(&reason, pod),
            reason,
            count: 0,
            example: pod.name.clone(),
            exit_code: pod.exit_code,
        });
        line.count += 1;
        if line.message.is_empty() {
            line.message = settled_message(&line.reason, pod);
        }
    }
    let mut lines: Vec<PodReason> = lines.into_values().collect();
    // Stable: equal counts stay in the order of their reasons.
    lines.sort_by_key(|line| std::cmp::Reverse(line.count));
    lines.truncate(MOST_POD_REASONS);
    lines
}

/// One reason for all phases of the same trouble.
fn settled_reason(pod: &ObservedPod, was_out_of_memory: bool) -> String {
    let reason = pod.reason.as_deref().unwrap_or("NotReady");
    let between_crashes = matches!(reason, CRASH_LOOP | "Error" | "NotReady" | "ContainersNotReady");
    match reason {
        "ErrImagePull" | IMAGE_PULL => IMAGE_PULL.to_owned(),
        _ if between_crashes && pod.exit_code == Some(KILLED) && was_out_of_memory => OUT_OF_MEMORY.to_owned(),
        _ if between_crashes && pod.exit_code.is_some() => CRASH_LOOP.to_owned(),
        other => other.to_owned(),
    }
}

/// The message without what counts seconds.
fn settled_message(reason: &str, pod: &ObservedPod) -> String {
    match reason {
        CRASH_LOOP | OUT_OF_MEMORY => {
            let code = pod.exit_code.map_or_else(String::new, |code| format!(" with exit code {code}"));
            format!("the container keeps ending{code}")
        }
        _ => pod.message.clone().unwrap_or_default(),
    }
}

/// The code for an endpoint that does not serve because of this.
pub(super) fn code(reason: &str) -> Option<Code> {
    match reason {
        IMAGE_PULL | "InvalidImageName" | "ErrImageNeverPull" | "ImageInspectError" | "RegistryUnavailable" => {
            Some(codes::IMAGE)
        }
        "Unschedulable" => Some(codes::UNSCHEDULABLE),
        CRASH_LOOP => Some(codes::CRASHING),
        OUT_OF_MEMORY => Some(codes::OUT_OF_MEMORY),
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" | "PreStartHookError" => {
            Some(codes::CONTAINER)
        }
        _ => None,
    }
}
