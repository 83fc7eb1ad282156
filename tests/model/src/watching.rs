//! Watches: what happened after a version, as a stream of lines, with bookmarks and an end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::line::Line;
use crate::object::Resource;
use crate::request::{Request, Selector};
use crate::server;
use crate::state::{Change, Entry};

/// Time between two bookmarks.
const BOOKMARK: Duration = Duration::from_secs(60);

/// How long a watch lasts that does not say it.
const DEFAULT_LENGTH: Duration = Duration::from_secs(1_800);

/// A watch under way.
pub(crate) struct Watching {
    line: Arc<Line>,
    resource: &'static Resource,
    namespace: String,
    selector: Selector,
    bookmarks: bool,
    /// Everything up to here was looked at.
    seen: u64,
    ready: std::collections::VecDeque<Value>,
    ends: Instant,
    next_bookmark: Instant,
    ended: bool,
    era: u32,
}

fn event(kind: &str, object: &Value) -> Value {
    json!({"type": kind, "object": object})
}

/// 410 inside of a stream.
fn too_old(from: u64, oldest: u64) -> Value {
    event("ERROR", &server::expired(&format!("too old resource version: {from} ({oldest})")).body)
}

impl Watching {
    pub(crate) fn begin(line: Arc<Line>, resource: &'static Resource, namespace: &str, request: &Request) -> Self {
        let now = Instant::now();
        let seconds = request.parameter("timeoutSeconds").and_then(|seconds| seconds.parse().ok());
        let mut watching = Self {
            line,
            resource,
            namespace: namespace.to_owned(),
            selector: Selector::parse(request.parameter("labelSelector").unwrap_or_default()),
            bookmarks: request.parameter("allowWatchBookmarks") == Some("true"),
            seen: 0,
            ready: std::collections::VecDeque::new(),
            ends: now + seconds.map_or(DEFAULT_LENGTH, Duration::from_secs),
            next_bookmark: now + BOOKMARK,
            ended: false,
            era: 0,
        };
        watching.era = watching.line.era();
        let from = request.parameter("resourceVersion").and_then(|version| version.parse::<u64>().ok()).unwrap_or(0);
        let streamed = request.parameter("sendInitialEvents") == Some("true");
        watching.line.model().look(|state| {
            watching.seen = state.version();
            if from == 0 {
                for (_, object) in state.all(resource, namespace) {
                    if watching.selector.takes(object) {
                        watching.ready.push_back(event("ADDED", object));
                    }
                }
                if streamed && watching.bookmarks {
                    let mut mark = bookmark(resource, state.version());
                    mark["object"]["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
                    watching.ready.push_back(mark);
                }
            } else if from < state.compacted() {
                watching.ready.push_back(too_old(from, state.compacted()));
                watching.ended = true;
            } else {
                watching.seen = from;
            }
        });
        watching
    }

    /// The next line of the stream; `None` at its end.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        let mut changes = self.line.model().changes();
        loop {
            self.line.open().await;
            self.break_if_disturbed();
            if let Some(event) = self.ready.pop_front() {
                let mut line = event.to_string();
                line.push('\n');
                return Some(Bytes::from(line));
            }
            if self.ended || Instant::now() >= self.ends {
                return None;
            }
            if self.collect().await {
                continue;
            }
            if Instant::now() >= self.next_bookmark {
                self.next_bookmark = Instant::now() + BOOKMARK;
                if self.bookmarks {
                    self.ready.push_back(bookmark(self.resource, self.seen));
                }
                continue;
            }
            tokio::select! {
                _ = changes.changed() => tokio::time::sleep(self.line.latency()).await,
                () = self.line.interrupted() => {}
                () = tokio::time::sleep_until(self.ends.min(self.next_bookmark)) => {}
            }
        }
    }

    /// A watch that was disturbed ends once the disturbance is over: only a new list can mend what it told.
    fn break_if_disturbed(&mut self) {
        if self.era != self.line.era() && !self.ended {
            self.ready.clear();
            self.ready.push_back(too_old(self.seen, self.seen));
            self.ended = true;
        }
    }

    /// Takes what happened since the last look; returns whether anything did.
    async fn collect(&mut self) -> bool {
        let (events, now) = self.line.model().look(|state| {
            let concerns =
                |entry: &&Entry| entry.place.plural == self.resource.plural && entry.place.group == self.resource.group;
            let events: Vec<Entry> = state
                .since(self.seen)
                .iter()
                .filter(concerns)
                .filter(|entry| entry.place.namespace == self.namespace)
                .cloned()
                .collect();
            (events, state.version())
        });
        self.seen = now;
        for entry in &events {
            let Some(told) = self.told(entry) else { continue };
            match self.line.watch_fault(entry) {
                None => self.ready.push_back(told),
                Some(fault) => {
                    tokio::select! {
                        () = tokio::time::sleep(fault.delay) => {}
                        () = self.line.interrupted() => {}
                    }
                    if self.era != self.line.era() {
                        break;
                    }
                    for _ in 0..fault.copies {
                        self.ready.push_back(told.clone());
                    }
                    if fault.copies > 0
                        && let Some(before) = entry.before.as_ref().filter(|_| fault.repeats_the_past)
                        && self.selector.takes(before)
                    {
                        self.ready.push_back(event("MODIFIED", before));
                    }
                    if fault.expires {
                        self.ready.push_back(too_old(entry.version, now));
                        self.ended = true;
                        break;
                    }
                }
            }
        }
        !self.ready.is_empty() || self.ended || self.era != self.line.era()
    }

    /// An entry as this watch tells it: entering the selection is ADDED, leaving it is DELETED with the old content.
    fn told(&self, entry: &Entry) -> Option<Value> {
        let is = entry.change != Change::Deleted && self.selector.takes(&entry.object);
        let was = entry.before.as_ref().is_some_and(|before| self.selector.takes(before));
        match (was, is) {
            (false, false) => None,
            (false, true) => Some(event("ADDED", &entry.object)),
            (true, true) => Some(event("MODIFIED", &entry.object)),
            (true, false) => {
                let mut last = entry.before.as_ref().map(|before| (**before).clone())?;
                last["metadata"]["resourceVersion"] = json!(entry.version.to_string());
                Some(event("DELETED", &last))
            }
        }
    }
}

fn bookmark(resource: &Resource, version: u64) -> Value {
    event(
        "BOOKMARK",
        &json!({"kind": resource.kind, "apiVersion": resource.api_version(),
            "metadata": {"resourceVersion": version.to_string()}}),
    )
}
