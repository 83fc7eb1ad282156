//! The API server's audit log: exactly what was asked of it, by whom.
//!
//! The server writes in blocking mode and buffers the end of a response until its handler is done, so an
//! event is in the file before a client has the whole answer. Level Metadata, no bodies.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use jiff::Timestamp;
use serde::Deserialize;

/// What the server is told to write.
pub(super) const POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
                                 rules:\n- level: Metadata\n";

/// The annotation in which the authorizer writes what it decided: `allow` or `forbid`.
const DECISION: &str = "authorization.k8s.io/decision";

/// How far a request had come when an event was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum AuditStage {
    /// A long request (a watch) has sent its head.
    ResponseStarted,
    /// The answer is complete.
    ResponseComplete,
    /// The server panicked.
    Panic,
}

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEvent {
    /// The same for all events of one request.
    pub audit_id: String,
    /// How far the request had come.
    pub stage: AuditStage,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// Path and query.
    pub uri: String,
    /// Who asked: `admin`, `system:serviceaccount:<namespace>:<name>`, …
    pub user: String,
    /// What the client calls itself; empty when it does not say.
    pub user_agent: String,
    /// The group of the resource; empty for the core group and for paths that are no resource.
    pub api_group: String,
    /// The resource in plural; empty for paths that are no resource.
    pub resource: String,
    /// The namespace; empty when there is none.
    pub namespace: String,
    /// The object's name; empty when there is none, as in lists.
    pub name: String,
    /// `status`, `scale`, `token`, …; mostly empty.
    pub subresource: String,
    /// The HTTP status; zero when none was sent.
    pub code: u16,
    /// Whether the asker lacked the right: refused by the authorizer, not by admission.
    pub without_right: bool,
    /// When the request came in.
    pub received_at: Timestamp,
    /// When it reached this stage.
    pub stage_at: Timestamp,
}

impl AuditEvent {
    /// Whether the request could change something: create, update, patch, delete, deletecollection. Dry
    /// runs count too.
    pub fn is_write(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }

    /// Whether it is a watch.
    pub fn is_watch(&self) -> bool {
        self.verb == "watch"
    }
}

/// A place in the log, to read from there on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditMark(u64);

impl AuditMark {
    /// The beginning of the log.
    pub const START: Self = Self(0);
}

/// The log of one API server.
#[derive(Clone, Debug)]
pub struct AuditLog {
    path: PathBuf,
}

impl AuditLog {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The place behind the last complete event.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn mark(&self) -> anyhow::Result<AuditMark> {
        let (_, end) = self.read(AuditMark::START)?;
        Ok(end)
    }

    /// All events from `mark` on, in the order of writing. A watch has one when it starts and one when
    /// it ends.
    ///
    /// # Errors
    /// When the file cannot be read or understood.
    pub fn events_since(&self, mark: AuditMark) -> anyhow::Result<Vec<AuditEvent>> {
        let (text, _) = self.read(mark)?;
        text.lines().map(parse).collect()
    }

    /// The requests from `mark` on: one event each, the last one written of it.
    ///
    /// A watch that ends after `mark` is among them even if it started before.
    ///
    /// # Errors
    /// When the file cannot be read or understood.
    pub fn requests_since(&self, mark: AuditMark) -> anyhow::Result<Vec<AuditEvent>> {
        Ok(last_of_each(self.events_since(mark)?))
    }

    /// The requests from `mark` on for which `wanted` holds.
    ///
    /// # Errors
    /// When the file cannot be read or understood.
    pub fn requests_where(
        &self,
        mark: AuditMark,
        wanted: impl Fn(&AuditEvent) -> bool,
    ) -> anyhow::Result<Vec<AuditEvent>> {
        let mut requests = self.requests_since(mark)?;
        requests.retain(wanted);
        Ok(requests)
    }

    /// The requests of one user from `mark` on. Quicker than [`AuditLog::requests_where`]: others' lines are not taken apart.
    ///
    /// # Errors
    /// When the file cannot be read or understood.
    pub fn requests_of_user(&self, mark: AuditMark, user: &str) -> anyhow::Result<Vec<AuditEvent>> {
        let (text, _) = self.read(mark)?;
        let events: anyhow::Result<Vec<AuditEvent>> =
            text.lines().filter(|line| line.contains(user)).map(parse).collect();
        let mut requests = last_of_each(events?);
        requests.retain(|request| request.user == user);
        Ok(requests)
    }

    /// The requests of one user from `mark` on, as the number of each (verb, resource/subresource).
    ///
    /// # Errors
    /// When the file cannot be read or understood.
    pub fn counts_of_user(&self, mark: AuditMark, user: &str) -> anyhow::Result<BTreeMap<(String, String), usize>> {
        let mut counts = BTreeMap::new();
        for request in self.requests_where(mark, |request| request.user == user)? {
            let AuditEvent { verb, resource, subresource, uri, .. } = request;
            let what = match (resource.is_empty(), subresource.is_empty()) {
                (true, _) => uri,
                (false, true) => resource,
                (false, false) => format!("{resource}/{subresource}"),
            };
            *counts.entry((verb, what)).or_default() += 1;
        }
        Ok(counts)
    }

    /// The complete lines behind `mark`, and where they end.
    fn read(&self, mark: AuditMark) -> anyhow::Result<(String, AuditMark)> {
        let read = || -> std::io::Result<String> {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(mark.0))?;
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            Ok(text)
        };
        let mut text = read().with_context(|| format!("reading {}", self.path.display()))?;
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        let end = AuditMark(mark.0 + text.len() as u64);
        Ok((text, end))
    }
}

fn last_of_each(events: Vec<AuditEvent>) -> Vec<AuditEvent> {
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut requests: Vec<AuditEvent> = Vec::new();
    for event in events {
        match places.get(&event.audit_id) {
            Some(place) => requests[*place] = event,
            None => {
                places.insert(event.audit_id.clone(), requests.len());
                requests.push(event);
            }
        }
    }
    requests
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    #[serde(rename = "auditID")]
    audit_id: String,
    stage: AuditStage,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: LineUser,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: LineObject,
    #[serde(default)]
    response_status: LineStatus,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    request_received_timestamp: String,
    stage_timestamp: String,
}

#[derive(Deserialize)]
struct LineUser {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LineObject {
    api_group: String,
    resource: String,
    namespace: String,
    name: String,
    subresource: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LineStatus {
    code: u16,
}

fn parse(line: &str) -> anyhow::Result<AuditEvent> {
    let shown = || format!("in the audit log: {}", gco_runtime::text::bounded(line, 300));
    let line: Line = serde_json::from_str(line).with_context(shown)?;
    let object = line.object_ref;
    Ok(AuditEvent {
        audit_id: line.audit_id,
        stage: line.stage,
        verb: line.verb,
        uri: line.request_uri,
        user: line.user.username,
        user_agent: line.user_agent,
        api_group: object.api_group,
        resource: object.resource,
        namespace: object.namespace,
        name: object.name,
        subresource: object.subresource,
        code: line.response_status.code,
        without_right: line.annotations.get(DECISION).is_some_and(|decision| decision == "forbid"),
        received_at: line.request_received_timestamp.parse().context("requestReceivedTimestamp")?,
        stage_at: line.stage_timestamp.parse().context("stageTimestamp")?,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn line(id: &str, stage: &str, verb: &str) -> String {
        serde_json::json!({
            "kind": "Event", "auditID": id, "stage": stage, "requestURI": "/apis/apps/v1/deployments",
            "verb": verb, "user": {"username": "admin"},
            "objectRef": {"resource": "deployments", "apiGroup": "apps", "apiVersion": "v1"},
            "responseStatus": {"metadata": {}, "code": 200},
            "requestReceivedTimestamp": "2025-01-01T00:00:00.000001Z",
            "stageTimestamp": "2025-01-01T00:00:01.000000Z",
        })
        .to_string()
    }

    #[test]
    fn events_are_read_from_a_mark_on_and_a_line_that_is_being_written_waits() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let log = AuditLog::new(file.path().to_owned());
        assert_eq!(log.mark().unwrap(), AuditMark::START);
        writeln!(file, "{}", line("a", "ResponseComplete", "get")).unwrap();
        let mark = log.mark().unwrap();
        writeln!(file, "{}", line("b", "ResponseStarted", "watch")).unwrap();
        let half = line("b", "ResponseComplete", "watch");
        write!(file, "{}", &half[..20]).unwrap();
        let events = log.events_since(mark).unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].stage, events[0].is_watch()), (AuditStage::ResponseStarted, true));
        writeln!(file, "{}", &half[20..]).unwrap();
        assert_eq!(log.events_since(mark).unwrap().len(), 2);
        let requests = log.requests_since(mark).unwrap();
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].stage, AuditStage::ResponseComplete);
        assert_eq!(requests[0].stage_at.duration_since(requests[0].received_at).as_millis(), 999);
        let counts = log.counts_of_user(AuditMark::START, "admin").unwrap();
        let key = |verb: &str| (verb.to_owned(), "deployments".to_owned());
        assert_eq!(counts, BTreeMap::from([(key("get"), 1), (key("watch"), 1)]));
    }
}
