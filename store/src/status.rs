//! What a region says of an endpoint: one entry of `region_status` (contract A.5), with our additions.

use crate::problem::{FieldProblem, bounded};
use crate::wire::{Item, Value};

/// The state words of the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// No complete serving path yet.
    Creating,
    /// This region can serve a request now.
    Running,
    /// The original's word for "changing": routers refuse traffic. Ours never writes it for an endpoint that can serve.
    Updating,
    /// Scaling down for a stop.
    Stopping,
    /// No pods, as asked.
    Stopped,
    /// Being removed.
    Deleting,
    /// Removed, twice observed.
    Deleted,
    /// The row cannot be served as it is.
    Failed,
    /// The original's word for an unexpected failure.
    Error,
    /// A word that this version does not know.
    Other(String),
}

/// One condition, Kubernetes style.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusCondition {
    /// CamelCase type, for example `Ready`, `SpecValid`, `RolledOut`, `Blocked`.
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// CamelCase reason.
    pub reason: String,
    /// Bounded text for people.
    pub message: String,
    /// When `status` last changed, ISO-8601.
    pub since: String,
}

/// Hashes (64 hexadecimal digits) of the spec as this region saw, applied and serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedSpec {
    /// Hash of the spec in the row that was last read.
    pub seen: Option<String>,
    /// Hash that the cluster's objects were last written for.
    pub applied: Option<String>,
    /// Hash that every ready pod runs; absent while pods of several specs serve.
    pub serving: Option<String>,
}

/// Progress of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// Pods of the newest template.
    pub updated: u32,
    /// Ready pods of the newest template.
    pub updated_ready: u32,
    /// All pods that exist (without terminating ones).
    pub total: u32,
    /// CamelCase reason when it cannot go on (`ProgressDeadlineExceeded`, `FailedCreate` …).
    pub stuck: Option<String>,
}

/// Why pods are not ready: one line per distinct reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodReason {
    /// CamelCase reason, for example `ImagePullBackOff`, `Unschedulable`, `CrashLoopBackOff`, `NotReady`.
    pub reason: String,
    /// Bounded text, for example the scheduler's own words.
    pub message: String,
    /// How many pods it holds for.
    pub count: u32,
    /// One pod's name, to look at.
    pub example: String,
    /// Exit code of the last crash.
    pub exit_code: Option<i64>,
}

/// The autoscaler that owns the replica count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Autoscaler {
    /// `hpa` (Kubernetes' own) or `keda`.
    pub kind: String,
    /// Fewest replicas, as the autoscaler has it.
    pub min_replicas: u32,
    /// Most replicas, as the autoscaler has it.
    pub max_replicas: u32,
    /// The count that it asks for now.
    pub replicas: u32,
}

/// One region's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionEntry {
    /// `state`; absent reads as `Other("")`.
    pub state: State,
    /// `replicas_ready`
    pub replicas_ready: u32,
    /// `replicas_desired`
    pub replicas_desired: u32,
    /// `last_sync`: when it was written, and the version that compare-and-set uses.
    pub last_sync: Option<String>,
    /// Copy of the row's lifecycle at the time.
    pub lifecycle_id: Option<String>,
    /// Copy of the region's generation at the time.
    pub region_generation: Option<String>,
    /// Copy of the deletion generation, on deletion writes.
    pub deletion_generation: Option<String>,
    /// Short text when something is wrong: a code and a bounded message.
    pub error: Option<String>,
    /// Consecutive complete absence sweeps, on clean-up writes.
    pub absence_observations: Option<u32>,
    /// Serves, with less than asked for.
    pub degraded: bool,
    /// Conditions.
    pub conditions: Vec<StatusCondition>,
    /// Spec hashes.
    pub observed_spec: Option<ObservedSpec>,
    /// Rollout progress while one is under way.
    pub rollout: Option<Rollout>,
    /// The autoscaler while one owns the replica count.
    pub autoscaler: Option<Autoscaler>,
    /// Objects in the way that are not ours, as `kind/name`.
    pub blocked_by: Vec<String>,
    /// Why pods are not ready; at most 8.
    pub pods: Vec<PodReason>,
    /// Every other key (`canary`, `roles`, `store`, unknown ones), as read.
    pub extra: Item,
}

impl RegionEntry {
    /// Reads an entry; keys of a wrong type read as absent and are named, paths starting with `path`.
    #[must_use]
    pub fn parse(path: &str, value: &Value) -> (Self, Vec<FieldProblem>) {
        let mut entry = Self::new(State::Other(String::new()));
        let Value::Map(map) = value else {
            let message = format!("must be a map, is of type {}", value.type_name());
            return (entry, vec![FieldProblem::new(path, message)]);
        };
        let mut reader = MapReader::new(path, map);
        entry.state = State::from_word(reader.text("state").unwrap_or_default().as_str());
        entry.replicas_ready = reader.count("replicas_ready").unwrap_or(0);
        entry.replicas_desired = reader.count("replicas_desired").unwrap_or(0);
        entry.last_sync = reader.text("last_sync");
        entry.lifecycle_id = reader.text("lifecycle_id");
        entry.region_generation = reader.text("region_generation");
        entry.deletion_generation = reader.text("deletion_generation");
        entry.error = reader.text("error");
        entry.absence_observations = reader.count("absence_observations");
        entry.degraded = reader.boolean("degraded").unwrap_or(false);
        entry.conditions = reader.maps("conditions", StatusCondition::read);
        entry.observed_spec = reader.map("observed_spec", |reader| ObservedSpec {
            seen: reader.text("seen"),
            applied: reader.text("applied"),
            serving: reader.text("serving"),
        });
        entry.rollout = reader.map("rollout", |reader| Rollout {
            updated: reader.count("updated").unwrap_or(0),
            updated_ready: reader.count("updated_ready").unwrap_or(0),
            total: reader.count("total").unwrap_or(0),
            stuck: reader.text("stuck"),
        });
        entry.autoscaler = reader.map("autoscaler", |reader| Autoscaler {
            kind: reader.text("kind").unwrap_or_default(),
            min_replicas: reader.count("min_replicas").unwrap_or(0),
            max_replicas: reader.count("max_replicas").unwrap_or(0),
            replicas: reader.count("replicas").unwrap_or(0),
        });
        entry.blocked_by = reader.texts("blocked_by");
        entry.pods = reader.maps("pods", PodReason::read);
        let known = |key: &str| KNOWN_KEYS.contains(&key);
        entry.extra =
            map.iter().filter(|(key, _)| !known(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
        (entry, reader.problems)
    }

    /// An entry with a state and nothing else.
    #[must_use]
    pub fn new(state: State) -> Self {
        Self {
            state,
            replicas_ready: 0,
            replicas_desired: 0,
            last_sync: None,
            lifecycle_id: None,
            region_generation: None,
            deletion_generation: None,
            error: None,
            absence_observations: None,
            degraded: false,
            conditions: Vec::new(),
            observed_spec: None,
            rollout: None,
            autoscaler: None,
            blocked_by: Vec::new(),
            pods: Vec::new(),
            extra: Item::new(),
        }
    }

    /// The entry as an attribute map, in the contract's types; absent and empty parts are left out.
    ///
    /// Bounded, whatever the fields hold, so that no region can fill the row: 1,000 characters of error, 16 conditions,
    /// 20 blocking objects, 8 pod reasons, 300 characters in each of their texts. Keys of `extra` that have a field of
    /// their own are left out.
    #[must_use]
    pub fn to_item(&self) -> Item {
        // Taken apart without `..`: a new field cannot be forgotten here.
        let Self {
            state,
            replicas_ready,
            replicas_desired,
            last_sync,
            lifecycle_id,
            region_generation,
            deletion_generation,
            error,
            absence_observations,
            degraded,
            conditions,
            observed_spec,
            rollout,
            autoscaler,
            blocked_by,
            pods,
            extra,
        } = self;
        let mut item: Item = extra
            .iter()
            .filter(|(key, _)| !KNOWN_KEYS.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let mut put = |key: &str, value: Value| {
            item.insert(key.to_owned(), value);
        };
        if !state.as_str().is_empty() {
            put("state", Value::from(state.as_str()));
        }
        put("replicas_ready", count(*replicas_ready));
        put("replicas_desired", count(*replicas_desired));
        for (key, text) in [
            ("last_sync", last_sync),
            ("lifecycle_id", lifecycle_id),
            ("region_generation", region_generation),
            ("deletion_generation", deletion_generation),
        ] {
            if let Some(text) = text {
                put(key, Value::from(text.as_str()));
            }
        }
        if let Some(error) = error.as_ref().filter(|error| !error.is_empty()) {
            put("error", Value::from(cut(error, LONGEST_ERROR_CHARACTERS)));
        }
        if let Some(observations) = absence_observations {
            put("absence_observations", count(*observations));
        }
        if *degraded {
            put("degraded", Value::Bool(true));
        }
        let mut put_list = |key: &str, list: Vec<Value>| {
            if !list.is_empty() {
                put(key, Value::List(list));
            }
        };
        put_list("conditions", conditions.iter().take(MOST_CONDITIONS).map(StatusCondition::to_value).collect());
        put_list("blocked_by", blocked_by.iter().take(MOST_BLOCKING_OBJECTS).map(|object| short(object)).collect());
        put_list("pods", pods.iter().take(MOST_POD_REASONS).map(PodReason::to_value).collect());
        if let Some(ObservedSpec { seen, applied, serving }) = observed_spec {
            let hashes = [("seen", seen), ("applied", applied), ("serving", serving)];
            let hashes = hashes.into_iter().filter_map(|(key, hash)| Some((key.to_owned(), short(hash.as_ref()?))));
            put("observed_spec", Value::Map(hashes.collect()));
        }
        if let Some(Rollout { updated, updated_ready, total, stuck }) = rollout {
            let mut progress = Item::from([
                ("updated".to_owned(), count(*updated)),
                ("updated_ready".to_owned(), count(*updated_ready)),
                ("total".to_owned(), count(*total)),
            ]);
            if let Some(stuck) = stuck {
                progress.insert("stuck".to_owned(), short(stuck));
            }
            put("rollout", Value::Map(progress));
        }
        if let Some(Autoscaler { kind, min_replicas, max_replicas, replicas }) = autoscaler {
            let counts = [("min_replicas", min_replicas), ("max_replicas", max_replicas), ("replicas", replicas)];
            let mut entries: Item = counts.into_iter().map(|(key, number)| (key.to_owned(), count(*number))).collect();
            entries.insert("kind".to_owned(), short(kind));
            put("autoscaler", Value::Map(entries));
        }
        item
    }

    /// Whether the two say the same, apart from when they were written (`last_sync`): a status that does is not written
    /// again (contract I.5).
    #[must_use]
    pub fn says_the_same_as(&self, other: &Self) -> bool {
        let without_time = |entry: &Self| Self { last_sync: None, ..entry.clone() }.to_item();
        crate::wire::same_items(&without_time(self), &without_time(other))
    }
}

/// Keys of an entry that have a field of their own.
const KNOWN_KEYS: [&str; 16] = [
    "state",
    "replicas_ready",
    "replicas_desired",
    "last_sync",
    "lifecycle_id",
    "region_generation",
    "deletion_generation",
    "error",
    "absence_observations",
    "degraded",
    "conditions",
    "observed_spec",
    "rollout",
    "autoscaler",
    "blocked_by",
    "pods",
];

/// Longest error text or condition message that is written, in characters: room for ten bad fields of a spec, all named at
/// once.
pub const LONGEST_ERROR_CHARACTERS: usize = 1_000;
/// Longest other text that is written, in characters. At worst an entry holds 16 conditions of 1,000 + 4 × 300, 8 pods of
/// 3 × 300 and 20 names of 300 characters, 50 KB: seven regions of that and a spec fit a row's 400 KB.
pub const LONGEST_TEXT_CHARACTERS: usize = 300;
/// Most conditions that are written.
pub const MOST_CONDITIONS: usize = 16;
/// Most objects in `blocked_by` that are written.
pub const MOST_BLOCKING_OBJECTS: usize = 20;
/// Most pod reasons that are written.
pub const MOST_POD_REASONS: usize = 8;

fn count(number: u32) -> Value {
    Value::from(i64::from(number))
}

/// Cut at `limit` characters; otherwise exactly as given, line breaks included.
fn cut(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit { text.to_owned() } else { bounded(text, limit) }
}

fn short(text: &str) -> Value {
    Value::from(cut(text, LONGEST_TEXT_CHARACTERS))
}

impl State {
    /// The word of the contract.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Updating => "updating",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Deleting => "deleting",
            Self::Deleted => "deleted",
            Self::Failed => "failed",
            Self::Error => "error",
            Self::Other(word) => word,
        }
    }

    /// Reads a word of the contract.
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        match word {
            "creating" => Self::Creating,
            "running" => Self::Running,
            "updating" => Self::Updating,
            "stopping" => Self::Stopping,
            "stopped" => Self::Stopped,
            "deleting" => Self::Deleting,
            "deleted" => Self::Deleted,
            "failed" => Self::Failed,
            "error" => Self::Error,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl StatusCondition {
    fn read(reader: &mut MapReader<'_>) -> Self {
        let mut text = |key| reader.text(key).unwrap_or_default();
        Self {
            kind: text("type"),
            status: text("status"),
            reason: text("reason"),
            message: text("message"),
            since: text("since"),
        }
    }

    fn to_value(&self) -> Value {
        let Self { kind, status, reason, message, since } = self;
        let entries = [("type", kind), ("status", status), ("reason", reason), ("message", message), ("since", since)];
        let limit = |key| if key == "message" { LONGEST_ERROR_CHARACTERS } else { LONGEST_TEXT_CHARACTERS };
        Value::Map(
            entries.into_iter().map(|(key, text)| (key.to_owned(), Value::from(cut(text, limit(key))))).collect(),
        )
    }
}

impl PodReason {
    fn read(reader: &mut MapReader<'_>) -> Self {
        Self {
            reason: reader.text("reason").unwrap_or_default(),
            message: reader.text("message").unwrap_or_default(),
            count: reader.count("count").unwrap_or(0),
            example: reader.text("example").unwrap_or_default(),
            exit_code: reader.integer("exit_code"),
        }
    }

    fn to_value(&self) -> Value {
        let Self { reason, message, count: pods, example, exit_code } = self;
        let mut entries = Item::from([
            ("reason".to_owned(), short(reason)),
            ("message".to_owned(), short(message)),
            ("count".to_owned(), count(*pods)),
            ("example".to_owned(), short(example)),
        ]);
        if let Some(exit_code) = exit_code {
            entries.insert("exit_code".to_owned(), Value::from(*exit_code));
        }
        Value::Map(entries)
    }
}

/// Reads keys of known types out of a map, noting those of others.
struct MapReader<'a> {
    path: String,
    map: &'a Item,
    problems: Vec<FieldProblem>,
}

impl<'a> MapReader<'a> {
    fn new(path: &str, map: &'a Item) -> Self {
        Self { path: path.to_owned(), map, problems: Vec::new() }
    }

    /// The value when `read` takes it; otherwise it is noted. `NULL` counts as absent.
    fn take<T>(&mut self, key: &str, wanted: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> Option<T> {
        let value = self.map.get(key).filter(|value| **value != Value::Null)?;
        let taken = read(value);
        if taken.is_none() {
            let message = format!("must be {wanted}, is of type {}", value.type_name());
            self.problems.push(FieldProblem::new(format!("{}.{key}", self.path), message));
        }
        taken
    }

    fn text(&mut self, key: &str) -> Option<String> {
        self.take(key, "a string", |value| value.as_str().map(str::to_owned))
    }

    fn boolean(&mut self, key: &str) -> Option<bool> {
        self.take(key, "a boolean", Value::as_bool)
    }

    fn integer(&mut self, key: &str) -> Option<i64> {
        self.take(key, "an integer", Value::as_integer)
    }

    fn count(&mut self, key: &str) -> Option<u32> {
        self.take(key, "an integer from 0 to 4294967295", |value| u32::try_from(value.as_integer()?).ok())
    }

    fn map<T>(&mut self, key: &str, read: impl FnOnce(&mut MapReader<'a>) -> T) -> Option<T> {
        let map = self.take(key, "a map", Value::as_map)?;
        let mut reader = MapReader::new(&format!("{}.{key}", self.path), map);
        let value = read(&mut reader);
        self.problems.append(&mut reader.problems);
        Some(value)
    }

    fn texts(&mut self, key: &str) -> Vec<String> {
        let texts = |value: &'a Value| {
            value.as_list()?.iter().map(|element| element.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        };
        self.take(key, "a list of strings", texts).unwrap_or_default()
    }

    fn maps<T>(&mut self, key: &str, read: impl Fn(&mut MapReader<'a>) -> T) -> Vec<T> {
        let mut values = Vec::new();
        for (index, element) in self.take(key, "a list of maps", Value::as_list).unwrap_or_default().iter().enumerate()
        {
            let path = format!("{}.{key}[{index}]", self.path);
            let Some(map) = element.as_map() else {
                self.problems
                    .push(FieldProblem::new(path, format!("must be a map, is of type {}", element.type_name())));
                continue;
            };
            let mut reader = MapReader::new(&path, map);
            values.push(read(&mut reader));
            self.problems.append(&mut reader.problems);
        }
        values
    }
}
