//! The controllers of a cluster: Deployments, ReplicaSets, pods and their kubelet, EndpointSlices, the garbage collector,
//! autoscalers. Each makes a round over what is stored whenever something changed or its time came.
//!
//! A controller can be slow (it looks only every ten seconds) or broken (it does nothing).

mod autoscaler;
mod collector;
mod deployment;
mod keda;
mod pods;
mod replica_set;
mod slices;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use crate::model::Model;
use crate::state::State;

/// How long a change takes to reach a controller.
const LAG: Duration = Duration::from_millis(5);

/// How often a slow controller looks.
const SLOW: Duration = Duration::from_secs(10);

/// How often the autoscaler looks (the controller's default is 15 s).
const AUTOSCALER_PERIOD: Duration = Duration::from_secs(15);

/// One of the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Rolls Deployments out.
    Deployment,
    /// Makes and removes pods.
    ReplicaSet,
    /// Scheduler and kubelet: places pods, makes them ready, ends them.
    Kubelet,
    /// Follows Services.
    EndpointSlice,
    /// Removes what has lost its owner, and ends deletions in the foreground.
    Collector,
    /// HPA.
    Autoscaler,
    /// Makes an HPA of a ScaledObject, as KEDA's operator does.
    Keda,
}

/// All of them, in the order of their rounds.
pub const CONTROLLERS: [Controller; 7] = [
    Controller::Deployment,
    Controller::ReplicaSet,
    Controller::Kubelet,
    Controller::EndpointSlice,
    Controller::Collector,
    Controller::Autoscaler,
    Controller::Keda,
];

/// How a controller works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// As it should.
    #[default]
    Good,
    /// It looks only every ten seconds.
    Slow,
    /// It does nothing.
    Broken,
}

/// What the controllers are told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a pod takes to become ready.
    pub ready_after: Duration,
    /// How long a pod takes to end.
    pub stopped_after: Duration,
    /// Paces that are not good.
    pub paces: BTreeMap<Controller, Pace>,
    /// What the load of each scaled Deployment asks for, by its name.
    pub wanted_replicas: BTreeMap<String, i64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ready_after: Duration::from_secs(2),
            stopped_after: Duration::from_secs(1),
            paces: BTreeMap::new(),
            wanted_replicas: BTreeMap::new(),
        }
    }
}

/// The controllers of a model, running; they end when dropped.
#[derive(Debug)]
pub struct Controllers {
    settings: Arc<Mutex<Settings>>,
    _task: AbortOnDropHandle<()>,
}

/// A look of one controller: what it may do, and when it wants to look again.
pub(crate) struct Round<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) namespace: &'a str,
    pub(crate) settings: &'a Settings,
    /// Virtual milliseconds since the run began.
    pub(crate) now: u128,
    /// When to look again at the latest.
    pub(crate) again: Option<u128>,
}

impl Round<'_> {
    pub(crate) fn look_again_at(&mut self, milliseconds: u128) {
        self.again = Some(self.again.map_or(milliseconds, |known| known.min(milliseconds)));
    }
}

impl Controllers {
    /// Starts them.
    #[must_use]
    pub fn start(model: &Model, settings: Settings) -> Self {
        let settings = Arc::new(Mutex::new(settings));
        let task = AbortOnDropHandle::new(tokio::spawn(run(model.clone(), settings.clone())));
        Self { settings, _task: task }
    }

    /// Changes what they are told.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

async fn run(model: Model, settings: Arc<Mutex<Settings>>) {
    let mut changes = model.changes();
    let actors: BTreeMap<Controller, Arc<str>> = CONTROLLERS
        .into_iter()
        .map(|controller| (controller, Arc::from(format!("{controller:?} controller"))))
        .collect();
    let mut next_look: BTreeMap<Controller, u128> = BTreeMap::new();
    let mut pods = pods::Timers::default();
    let mut looked = (0, None);
    loop {
        changes.mark_unchanged();
        let told = settings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let now = model.clock().elapsed().as_millis();
        // The Lease is renewed all the time and concerns no controller.
        let before = model.look(State::version);
        let relevant = model.look(crate::judge::last_change);
        if looked.0 == relevant && looked.1.is_none_or(|again| now < again) {
            wait(&mut changes, looked.1, now).await;
            continue;
        }
        let mut again: Option<u128> = None;
        for controller in CONTROLLERS {
            let period = match (told.paces.get(&controller).copied().unwrap_or_default(), controller) {
                (Pace::Broken, _) => continue,
                (_, Controller::Autoscaler) => Some(AUTOSCALER_PERIOD),
                (Pace::Slow, _) => Some(SLOW),
                (Pace::Good, _) => None,
            };
            if let Some(period) = period {
                let due = next_look.entry(controller).or_insert(now + period.as_millis());
                if now < *due {
                    again = Some(again.map_or(*due, |known| known.min(*due)));
                    continue;
                }
                *due = now + period.as_millis();
                again = Some(again.map_or(*due, |known| known.min(*due)));
            }
            let Some(actor) = actors.get(&controller) else { continue };
            let namespace = model.namespace();
            let wish = model.act(actor, |state| {
                let mut round = Round { state, namespace, settings: &told, now, again: None };
                match controller {
                    Controller::Deployment => deployment::round(&mut round),
                    Controller::ReplicaSet => replica_set::round(&mut round),
                    Controller::Kubelet => pods.round(&mut round),
                    Controller::EndpointSlice => slices::round(&mut round),
                    Controller::Collector => collector::round(&mut round),
                    Controller::Autoscaler => autoscaler::round(&mut round),
                    Controller::Keda => keda::round(&mut round),
                }
                round.again
            });
            again = match (again, wish) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        if model.look(State::version) != before {
            tokio::time::sleep(LAG).await;
            continue;
        }
        looked = (relevant, again);
        wait(&mut changes, again, now).await;
    }
}

/// Waits for a change, or until a moment.
async fn wait(changes: &mut tokio::sync::watch::Receiver<u64>, until: Option<u128>, now: u128) {
    let left = until.map(|until| Duration::from_millis(u64::try_from(until.saturating_sub(now)).unwrap_or(u64::MAX)));
    let timer = async {
        match left {
            Some(left) => tokio::time::sleep(left.max(Duration::from_millis(1))).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = changes.changed() => tokio::time::sleep(LAG).await,
        () = timer => {}
    }
}
