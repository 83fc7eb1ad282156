//! Restarts that no edit asked for, as they stand on the objects themselves: what the limits on them count.
//!
//! Nothing of it is in a process's memory, so that neither a take-over nor a crash of the monitor forgets a failure.

use serde_json::Value;

use super::pods;
use super::standing::Standing;
use crate::identity::{ANNOTATION_LIFECYCLE, ANNOTATION_RESTART_CAUSE};
use crate::object::{Kind, Observed, ObservedObject};

/// How a restart stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartState {
    /// Not every pod is of the newest template and ready.
    UnderWay,
    /// It cannot go on by itself, or a new pod says why it does not start.
    Failed,
}

/// One restart that no edit asked for and that is not over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnaskedRestart {
    /// Name of the Deployment.
    pub app: String,
    /// When it began, ISO-8601.
    pub began: String,
    /// How it stands.
    pub state: RestartState,
}

/// When a Deployment's pods were last restarted without an edit that asked for it; `None`: an edit asked, or nothing was
/// restarted.
#[must_use]
pub fn began(deployment: &ObservedObject) -> Option<&str> {
    let (began, _) = deployment.annotation(ANNOTATION_RESTART_CAUSE)?.split_once(' ')?;
    Some(began)
}

/// The restart of a Deployment that no edit asked for, if it is not over.
#[must_use]
pub fn unasked_restart(observed: &Observed, deployment: &ObservedObject) -> Option<UnaskedRestart> {
    let began = began(deployment).filter(|_| deployment.key.kind == Kind::Deployment)?;
    let app = &deployment.key.name;
    let lifecycle_id = deployment.annotation(ANNOTATION_LIFECYCLE).unwrap_or_default();
    let standing = Standing::of(observed, app, lifecycle_id);
    let rollout = standing.progress()?.rollout;
    // A template that its controller has not seen is a restart that has not shown yet, whatever hash it carries.
    if rollout.is_none() && !is_seen(deployment) {
        return Some(UnaskedRestart { app: app.clone(), began: began.to_owned(), state: RestartState::UnderWay });
    }
    let rollout = rollout?;
    let broken = pods::reasons(&standing.new_pods(), None).iter().any(|line| pods::code(&line.reason).is_some());
    let state = if rollout.stuck.is_some() || broken { RestartState::Failed } else { RestartState::UnderWay };
    Some(UnaskedRestart { app: app.clone(), began: began.to_owned(), state })
}

/// Whether the Deployment's controller has seen it as it is.
fn is_seen(deployment: &ObservedObject) -> bool {
    let number = |pointer: &str| deployment.body.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    number("/status/observedGeneration") >= number("/metadata/generation")
}
