//! The model: state behind a lock, a clock, and whoever waits for changes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::answer::Answer;
use crate::clock::VirtualClock;
use crate::request::Request;
use crate::server;
use crate::state::{Now, State};

struct Inner {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    clock: VirtualClock,
    namespace: String,
}

/// The Kubernetes API of one cluster, in this process. Clones share it.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Model").field("version", &self.lock().version()).finish_non_exhaustive()
    }
}

impl Model {
    /// An empty cluster with one namespace. Belongs to the runtime whose paused clock `clock` shows.
    #[must_use]
    pub fn new(namespace: &str, clock: VirtualClock) -> Self {
        let (changed, _) = watch::channel(0);
        let namespace = namespace.to_owned();
        Self { inner: Arc::new(Inner { state: Mutex::new(State::new(&namespace)), changed, clock, namespace }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The namespace of everything.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.inner.namespace
    }

    /// The cluster's clock.
    #[must_use]
    pub fn clock(&self) -> VirtualClock {
        self.inner.clock
    }

    /// Looks at the state.
    pub fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.lock())
    }

    /// Changes the state in somebody's name.
    pub fn act<T>(&self, actor: &Arc<str>, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        state.actor = actor.clone();
        let clock = self.inner.clock;
        state.now = Now { stamp: clock.stamp(), milliseconds: clock.elapsed().as_millis() };
        let before = state.version();
        let result = act(&mut state);
        let version = state.version();
        drop(state);
        if version != before {
            self.inner.changed.send_replace(version);
        }
        result
    }

    /// Does what a request asks for.
    pub fn handle(&self, actor: &Arc<str>, request: &Request) -> Answer {
        self.act(actor, |state| server::handle(state, request))
    }

    /// Wakes with every change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changed.subscribe()
    }
}
