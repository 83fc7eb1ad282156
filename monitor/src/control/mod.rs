//! The loop: what became dirty gets a pass, one at a time per endpoint, a bounded number at once.
//!
//! Wake-ups carry nothing: a table read, a watch event, a timer and a forced pass all only mark names, and the same code
//! looks at what is there.

pub mod action;
pub mod announce;
pub mod changes;
pub mod feed;
pub mod fence;
pub mod heartbeat;
pub mod metered;
mod pass;
pub mod preview;
mod proposal;
pub mod queue;
pub mod restarts;
pub mod rows;
pub mod shared;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gco_runtime::clock::BootTime;
use gco_runtime::shutdown::drain;
use gco_store::index::PartState;
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::admin::telemetry::category_word;
use crate::leadership::Claim;
use crate::report::Category;
use pass::PassEnd;
use queue::{Cause, Ended, Queue};
use shared::Shared;

/// The loop wakes at least this often, so that its health can be told from its last tick.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// How long passes in flight may take to finish when the process is asked to end. A container is given 30 s by default;
/// releasing the Lease and closing ports need the rest.
const DRAIN_BOUND: Duration = Duration::from_secs(8);

/// The loop's state.
struct Controller {
    shared: Arc<Shared>,
    queue: Queue,
    workers: JoinSet<(String, PassEnd)>,
    /// Names by task, for a worker that panics and cannot say its own.
    names: BTreeMap<Id, String>,
    /// The term for which everything was marked.
    term: Option<u64>,
    heard: watch::Receiver<u64>,
    next_full_pass: BootTime,
    next_look_at_restarts: BootTime,
}

/// A task that must run as long as the process does has ended.
#[derive(Debug, thiserror::Error)]
#[error("a task that feeds the control loop ended by itself: {0}")]
pub struct TaskEnded(String);

/// Runs until `stop`, then lets passes in flight finish, bounded in time. `index`: what the table's check told of its
/// change index.
///
/// # Errors
/// When the table's feed or the heartbeat ended by itself: a process that goes on without them would only look alive.
pub async fn run(shared: Arc<Shared>, index: PartState, stop: CancellationToken) -> Result<(), TaskEnded> {
    let (sender, heard) = watch::channel(0);
    let mut tasks = JoinSet::new();
    tasks.spawn(feed::run(shared.clone(), index, stop.clone()));
    tasks.spawn(fence::run(shared.clone(), stop.clone()));
    tasks.spawn(heartbeat::run(shared.clone(), sender, stop.clone()));
    let started = shared.now();
    let next_full_pass = started + shared.config.full_pass_interval;
    let mut controller = Controller {
        shared,
        queue: Queue::default(),
        workers: JoinSet::new(),
        names: BTreeMap::new(),
        term: None,
        heard,
        next_full_pass,
        next_look_at_restarts: started,
    };
    let result = tokio::select! {
        biased;
        () = controller.run(&stop) => Ok(()),
        Some(ended) = tasks.join_next() => {
            let why = ended.err().map_or_else(|| "without a reason".to_owned(), |error| error.to_string());
            if stop.is_cancelled() { Ok(()) } else { Err(TaskEnded(why)) }
        }
    };
    let Controller { mut workers, .. } = controller;
    drain("passes", DRAIN_BOUND, async { while workers.join_next().await.is_some() {} }).await;
    // A pass that did not finish is abandoned here; its change counts as unanswered, so the Lease is not released early.
    workers.abort_all();
    tasks.abort_all();
    result
}

impl Controller {
    async fn run(&mut self, stop: &CancellationToken) {
        let mut leadership = self.shared.leadership.clone();
        let shared = self.shared.clone();
        loop {
            shared.tick();
            let claim = self.follow_leadership();
            self.collect();
            if let Some(claim) = &claim {
                self.start(claim);
            } else {
                shared.note_pass();
                // A standby deals with no change, so none of them waits for it.
                shared.forget_unapplied();
            }
            self.measure();
            let now = shared.now();
            let due = self.queue.next_due().filter(|_| claim.is_some()).unwrap_or(self.next_full_pass);
            let sleep = due.min(self.next_full_pass).saturating_duration_since(now).min(LONGEST_SLEEP);
            // With every place taken, or before the first heartbeat, only an ending or a change helps.
            let sleep = if sleep.is_zero() { LONGEST_SLEEP } else { sleep };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(ended) = self.workers.join_next_with_id() => self.ended(ended),
                () = leadership.changed() => {}
                // An error means that the heartbeat ended, which ends this loop from outside.
                Ok(()) = self.heard.changed() => {}
                () = shared.dirty_rows.arrived() => {}
                () = shared.cluster.caches.dirty().arrived() => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// The claim to work under. A new one makes everything dirty; a lost one empties the queue.
    fn follow_leadership(&mut self) -> Option<Claim> {
        let claim = self.shared.leadership.claim();
        let term = claim.as_ref().map(|claim| claim.mark().term);
        if term != self.term {
            self.term = term;
            self.queue.clear();
            if term.is_some() {
                self.mark_all(Cause::Row);
            }
        }
        claim.filter(|claim| *self.heard.borrow() == claim.mark().term)
    }

    fn mark_all(&mut self, cause: Cause) {
        let now = self.shared.now();
        for name in self.shared.rows().names().iter() {
            self.queue.mark(name, cause, now);
        }
    }

    /// Takes what became dirty into the queue. A standby takes it too, and forgets it: with a claim all is dirty anyway.
    fn collect(&mut self) {
        let now = self.shared.now();
        let everything = self.shared.take_everything();
        let of_rows = self.shared.dirty_rows.take();
        let of_cluster = self.shared.cluster.caches.dirty().take();
        let full_pass = now >= self.next_full_pass;
        if full_pass {
            self.next_full_pass = now + self.shared.config.full_pass_interval;
        }
        if self.term.is_none() {
            return;
        }
        let names = self.shared.rows().names();
        for name in of_rows {
            if names.contains(&name) {
                self.queue.mark(&name, Cause::Row, now);
            } else {
                self.queue.forget(&name);
            }
        }
        for name in of_cluster.iter().filter(|name| names.contains(*name)) {
            self.queue.mark(name, Cause::Cluster, now);
        }
        if everything {
            self.mark_all(Cause::Row);
        } else if full_pass {
            self.mark_all(Cause::Timer);
        }
    }

    fn start(&mut self, claim: &Claim) {
        let now = self.shared.now();
        for name in self.queue.take(now, self.shared.config.max_concurrent_endpoints) {
            let (shared, claim) = (self.shared.clone(), claim.clone());
            let span = tracing::info_span!("pass", endpoint = %name);
            let endpoint = name.clone();
            let worker = async move {
                let began = shared.now();
                let end = pass::run(&shared, &name, &claim).await;
                shared.telemetry.pass(end.outcome, shared.now().saturating_duration_since(began));
                shared.note_pass();
                (name, end)
            };
            let task = self.workers.spawn(worker.instrument(span));
            self.names.insert(task.id(), endpoint);
        }
    }

    fn ended(&mut self, ended: Result<(Id, (String, PassEnd)), tokio::task::JoinError>) {
        let (name, end) = match ended {
            Ok((id, (name, end))) => {
                self.names.remove(&id);
                (name, end)
            }
            Err(error) => {
                // One endpoint's bug is that endpoint's: the others go on.
                let Some(name) = self.names.remove(&error.id()) else { return };
                let outcome = category_word(Category::Bug);
                self.shared.telemetry.pass(outcome, Duration::ZERO);
                tracing::error!(endpoint = %name, panicked = error.is_panic(), "a pass ended by a bug");
                let ended = Ended::Failed { category: Category::Bug, least: Duration::ZERO };
                (name, PassEnd { outcome, ended })
            }
        };
        self.queue.ended(&name, end.ended, self.shared.now(), self.shared.jitter());
    }

    fn measure(&mut self) {
        let (shared, now) = (&self.shared, self.shared.now());
        if now >= self.next_look_at_restarts {
            self.next_look_at_restarts = now + LONGEST_SLEEP;
            shared.look_at_restarts(self.term.is_some());
        }
        let whole = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        shared.telemetry.queue_depth.set(whole(self.queue.depth(now)));
        shared.telemetry.queue_running.set(whole(self.queue.running()));
        shared.telemetry.queue_oldest_seconds.set(self.queue.oldest_age(now).as_secs_f64());
    }
}
