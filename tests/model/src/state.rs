//! What is stored: objects, one counter of versions for all of them, and everything that ever happened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::object::{RESOURCES, Resource, text};

/// Where an object is stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Plural.
    pub plural: &'static str,
    /// API group.
    pub group: &'static str,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Place {
    /// The place of an object of this kind.
    #[must_use]
    pub fn of(resource: &Resource, namespace: &str, name: &str) -> Self {
        Self { plural: resource.plural, group: resource.group, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The kind stored here.
    #[must_use]
    pub fn resource(&self) -> &'static Resource {
        let fits = |one: &&Resource| one.plural == self.plural && one.group == self.group;
        RESOURCES.iter().find(fits).unwrap_or(&RESOURCES[0])
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.plural, self.name)
    }
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was made.
    Added,
    /// It was changed.
    Modified,
    /// It is gone.
    Deleted,
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The version that it made.
    pub version: u64,
    /// Which object.
    pub place: Place,
    /// What.
    pub change: Change,
    /// The object afterwards; the last one, with the new version, when it is gone.
    pub object: Arc<Value>,
    /// The object before.
    pub before: Option<Arc<Value>>,
    /// Who did it: the user agent of a request, or the controller.
    pub by: Arc<str>,
    /// When, in virtual milliseconds since the run began.
    pub at_milliseconds: u128,
}

/// The first version of a fresh cluster.
const FIRST_VERSION: u64 = 1_000;

/// Everything that is stored.
#[derive(Debug)]
pub struct State {
    version: u64,
    identities: u64,
    objects: BTreeMap<Place, Arc<Value>>,
    history: Vec<Entry>,
    /// Versions up to this one are forgotten: a watch from there is told that it is too late.
    compacted: u64,
    /// Kinds that somebody installed.
    pub installed: BTreeSet<&'static str>,
    /// Namespaces that exist.
    pub namespaces: BTreeSet<String>,
    /// Who acts now, for the history.
    pub actor: Arc<str>,
    /// When, for the history and for objects.
    pub now: Now,
}

/// The time as [`State`] is told it.
#[derive(Clone, Debug, Default)]
pub struct Now {
    /// For objects.
    pub stamp: String,
    /// Virtual milliseconds since the run began.
    pub milliseconds: u128,
}

impl State {
    /// An empty cluster with one namespace.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        Self {
            version: FIRST_VERSION,
            identities: 0,
            objects: BTreeMap::new(),
            history: Vec::new(),
            compacted: 0,
            installed: BTreeSet::new(),
            namespaces: BTreeSet::from([namespace.to_owned()]),
            actor: Arc::from("nobody"),
            now: Now::default(),
        }
    }

    /// The last version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The last version that watches cannot begin at any more.
    #[must_use]
    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Forgets what happened up to now, as etcd's compaction does.
    pub fn compact(&mut self) {
        self.compacted = self.version;
    }

    /// Everything that happened, oldest first.
    #[must_use]
    pub fn history(&self) -> &[Entry] {
        &self.history
    }

    /// What happened after a version.
    #[must_use]
    pub fn since(&self, version: u64) -> &[Entry] {
        let first = self.history.partition_point(|entry| entry.version <= version);
        &self.history[first..]
    }

    /// A new uid.
    pub fn identity(&mut self) -> String {
        self.identities += 1;
        format!("00000000-0000-4000-8000-{:012x}", self.identities)
    }

    /// Five characters that no name has had before, as the server appends them to generated names.
    pub fn suffix(&mut self) -> String {
        const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
        self.identities += 1;
        let mut number = self.identities;
        let mut suffix = String::new();
        for _ in 0..5 {
            let index = usize::try_from(number % 27).unwrap_or(0);
            suffix.push(char::from(LETTERS[index]));
            number /= 27;
        }
        suffix
    }

    /// One object.
    #[must_use]
    pub fn get(&self, place: &Place) -> Option<&Arc<Value>> {
        self.objects.get(place)
    }

    /// All objects of a kind in a namespace, by name.
    pub fn all(&self, resource: &'static Resource, namespace: &str) -> impl Iterator<Item = (&Place, &Arc<Value>)> {
        let first = Place::of(resource, namespace, "");
        self.objects.range(first.clone()..).take_while(move |(place, _)| {
            place.plural == first.plural && place.group == first.group && place.namespace == first.namespace
        })
    }

    /// Everything.
    #[must_use]
    pub fn objects(&self) -> &BTreeMap<Place, Arc<Value>> {
        &self.objects
    }

    /// All objects of a kind in a namespace as they were at a version.
    #[must_use]
    pub fn all_at(&self, resource: &'static Resource, namespace: &str, version: u64) -> BTreeMap<Place, Arc<Value>> {
        let mut objects: BTreeMap<Place, Arc<Value>> =
            self.all(resource, namespace).map(|(place, object)| (place.clone(), object.clone())).collect();
        for entry in self.since(version).iter().rev() {
            let of_kind = entry.place.plural == resource.plural && entry.place.group == resource.group;
            if !of_kind || entry.place.namespace != namespace {
                continue;
            }
            match &entry.before {
                Some(before) => objects.insert(entry.place.clone(), before.clone()),
                None => objects.remove(&entry.place),
            };
        }
        objects
    }

    /// Stores an object under a new version.
    pub fn put(&mut self, place: &Place, mut object: Value) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Arc::new(object);
        let before = self.objects.insert(place.clone(), object.clone());
        let change = if before.is_some() { Change::Modified } else { Change::Added };
        self.note(place, change, object.clone(), before);
        object
    }

    /// Removes an object; its last content is told with a new version.
    pub fn remove(&mut self, place: &Place) {
        let Some(before) = self.objects.remove(place) else { return };
        self.version += 1;
        let mut last = (*before).clone();
        last["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.note(place, Change::Deleted, Arc::new(last), Some(before));
    }

    fn note(&mut self, place: &Place, change: Change, object: Arc<Value>, before: Option<Arc<Value>>) {
        self.history.push(Entry {
            version: self.version,
            place: place.clone(),
            change,
            object,
            before,
            by: self.actor.clone(),
            at_milliseconds: self.now.milliseconds,
        });
    }

    /// Whether an object with this uid exists.
    #[must_use]
    pub fn has_identity(&self, uid: &str) -> bool {
        self.objects.values().any(|object| text(object, "/metadata/uid") == uid)
    }
}
