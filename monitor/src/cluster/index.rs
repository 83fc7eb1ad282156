//! What the watches have told, by endpoint, with our own newer writes laid over it. Pure: events in, observations out.

use std::collections::{BTreeMap, BTreeSet};

use gco_runtime::clock::BootTime;
use gco_store::name::{KEDA_PREFIX, RESERVED_SUFFIXES};
use gco_store::row::EndpointRow;

use super::api::resource;
use crate::identity::{ANNOTATION_LEADER_TERM, LABEL_PROJECT, LABEL_TYPE};
use crate::object::{Kind, ObjectKey, Observed, ObservedObject, ObservedPod, ObservedReplicaSet};
use crate::orphans::{Suspect, suspects};
use crate::plan::inventory;

/// Highest term on an object that is believed. The admission policies compare terms of up to nine digits; a typing mistake on
/// one object must not use them up for all: a million take-overs are left above this, more than a region sees in a year at
/// one every 30 s.
const HIGHEST_BELIEVED_TERM: u64 = 999_999_999 - 1_000_000;

/// One event of a watch, the object already reduced.
#[derive(Clone, Debug)]
pub enum Event<T> {
    /// A list begins.
    Init,
    /// An object of the list.
    InitApply(T),
    /// The list is complete.
    InitDone,
    /// An object is there or changed.
    Apply(T),
    /// An object left the selection: deleted, or its labels changed.
    Delete(T),
}

/// Something with a name and the label `app`.
pub trait Named {
    /// Object name.
    fn name(&self) -> &str;
    /// Label `app`, or the name where that decides.
    fn app(&self) -> &str;
}

impl Named for ObservedObject {
    fn name(&self) -> &str {
        &self.key.name
    }
    fn app(&self) -> &str {
        &self.key.name
    }
}

impl Named for ObservedPod {
    fn name(&self) -> &str {
        &self.name
    }
    fn app(&self) -> &str {
        &self.app
    }
}

impl Named for ObservedReplicaSet {
    fn name(&self) -> &str {
        &self.name
    }
    fn app(&self) -> &str {
        &self.app
    }
}

/// The cache of one watch.
#[derive(Debug)]
pub struct Cache<T> {
    synced: bool,
    /// Lists begun so far.
    lists: u64,
    by_name: BTreeMap<String, T>,
    by_app: BTreeMap<String, BTreeSet<String>>,
    staging: BTreeMap<String, T>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { synced: false, lists: 0, by_name: BTreeMap::new(), by_app: BTreeMap::new(), staging: BTreeMap::new() }
    }
}

impl<T: Named + PartialEq> Cache<T> {
    /// Takes an event; adds the names of endpoints that it may concern to `touched`.
    fn take(&mut self, event: Event<T>, touched: &mut BTreeSet<String>) {
        match event {
            Event::Init => {
                self.lists += 1;
                self.staging.clear();
            }
            Event::InitApply(object) => {
                self.staging.insert(object.name().to_owned(), object);
            }
            Event::InitDone => {
                let staged = std::mem::take(&mut self.staging);
                // What a new list lacks is only a reason to look: it is never a proof of absence.
                for (name, old) in &self.by_name {
                    if staged.get(name) != Some(old) {
                        touch(old, touched);
                    }
                }
                for (name, new) in &staged {
                    if self.by_name.get(name) != Some(new) {
                        touch(new, touched);
                    }
                }
                self.by_app.clear();
                for object in staged.values() {
                    self.by_app.entry(object.app().to_owned()).or_default().insert(object.name().to_owned());
                }
                self.by_name = staged;
                self.synced = true;
            }
            Event::Apply(object) => {
                touch(&object, touched);
                if let Some(old) = self.by_name.remove(object.name()) {
                    touch(&old, touched);
                    self.forget_app(&old);
                }
                self.by_app.entry(object.app().to_owned()).or_default().insert(object.name().to_owned());
                self.by_name.insert(object.name().to_owned(), object);
            }
            Event::Delete(object) => {
                touch(&object, touched);
                if let Some(old) = self.by_name.remove(object.name()) {
                    self.forget_app(&old);
                }
            }
        }
    }

    fn forget_app(&mut self, object: &T) {
        if let Some(names) = self.by_app.get_mut(object.app()) {
            names.remove(object.name());
            if names.is_empty() {
                self.by_app.remove(object.app());
            }
        }
    }

    fn of_app(&self, app: &str) -> impl Iterator<Item = &T> {
        self.by_app.get(app).into_iter().flatten().filter_map(|name| self.by_name.get(name))
    }
}

/// Endpoints that an object may belong to: named as it, as its `app`, or as these without a reserved suffix. KEDA's
/// autoscalers have a prefix, too.
fn touch(object: &impl Named, touched: &mut BTreeSet<String>) {
    let scaled = object.name().strip_prefix(KEDA_PREFIX);
    touched.extend(scaled.map(str::to_owned));
    for name in [object.name(), object.app()].into_iter().chain(scaled) {
        for suffix in RESERVED_SUFFIXES {
            if let Some(endpoint) = name.strip_suffix(suffix).filter(|endpoint| !endpoint.is_empty()) {
                touched.insert(endpoint.to_owned());
            }
        }
    }
    touched.insert(object.app().to_owned());
    // A pod's or ReplicaSet's own name ends in hashes and is nobody's; that of other objects is their `app` here.
}

/// A version as a number; the API documents them as comparable.
fn version(object: &ObservedObject) -> u64 {
    object.resource_version.parse().unwrap_or(0)
}

/// What a write or a read of ours was answered, until the cache has caught up with it.
#[derive(Clone, Debug)]
struct Overlay {
    /// `None`: the object with this uid is gone.
    object: Option<ObservedObject>,
    uid: String,
    version: u64,
    /// Lists begun when it was laid; a list that begins later sees it.
    lists: u64,
    /// For an object outside of our selection, which no watch will ever tell about: when to stop believing in it.
    until: Option<BootTime>,
}

/// Everything that is known of the namespace.
#[derive(Debug)]
pub struct Index {
    objects: BTreeMap<Kind, Cache<ObservedObject>>,
    missing_kinds: BTreeSet<Kind>,
    pods: Cache<ObservedPod>,
    replica_sets: Cache<ObservedReplicaSet>,
    overlays: BTreeMap<ObjectKey, Overlay>,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            objects: Kind::WATCHED.into_iter().map(|kind| (kind, Cache::default())).collect(),
            missing_kinds: BTreeSet::new(),
            pods: Cache::default(),
            replica_sets: Cache::default(),
            overlays: BTreeMap::new(),
        }
    }
}

/// Which cache an event is for, with the event.
#[derive(Clone, Debug)]
pub enum Told {
    /// The cluster does not have this kind: its cache is complete, and empty.
    MissingKind(Kind),
    /// Of a watched kind of our own objects.
    Object(Kind, Event<ObservedObject>),
    /// Of pods.
    Pod(Event<ObservedPod>),
    /// Of ReplicaSets.
    ReplicaSet(Event<ObservedReplicaSet>),
}

impl Index {
    fn cache(&self, kind: Kind) -> Option<&Cache<ObservedObject>> {
        self.objects.get(&kind)
    }

    /// Takes an event; returns the names of endpoints that it may concern.
    pub fn take(&mut self, told: Told) -> BTreeSet<String> {
        let mut touched = BTreeSet::new();
        match told {
            Told::Pod(event) => self.pods.take(event, &mut touched),
            Told::ReplicaSet(event) => self.replica_sets.take(event, &mut touched),
            Told::MissingKind(kind) => {
                let news = self.missing_kinds.insert(kind);
                let Some(cache) = self.objects.get_mut(&kind) else { return touched };
                cache.take(Event::Init, &mut touched);
                cache.take(Event::InitDone, &mut touched);
                if news {
                    self.overlays.retain(|key, _| key.kind != kind);
                }
            }
            Told::Object(kind, event) => {
                let (caught_up, listed) = match &event {
                    Event::Apply(object) => {
                        (Some((object.key.clone(), object.uid.clone(), version(object), true)), false)
                    }
                    Event::Delete(object) => {
                        (Some((object.key.clone(), object.uid.clone(), version(object), false)), false)
                    }
                    Event::InitDone => (None, true),
                    Event::Init | Event::InitApply(_) => (None, false),
                };
                let Some(cache) = self.objects.get_mut(&kind) else { return touched };
                cache.take(event, &mut touched);
                let lists = cache.lists;
                if let Some((key, uid, version, applied)) = caught_up
                    && let Some(overlay) = self.overlays.get(&key)
                {
                    let over = if applied {
                        // A tombstone is believed against old news of the same object, and against nothing else.
                        (overlay.object.is_some() && version >= overlay.version)
                            || (overlay.object.is_none() && uid != overlay.uid)
                    } else {
                        uid == overlay.uid || version >= overlay.version
                    };
                    if over {
                        self.overlays.remove(&key);
                    }
                }
                if listed {
                    if self.missing_kinds.remove(&kind) {
                        // Whoever waits for it has at least a Deployment.
                        let deployments =
                            self.objects.get(&Kind::Deployment).map(|cache| cache.by_name.keys().cloned());
                        touched.extend(deployments.into_iter().flatten());
                    }
                    self.overlays
                        .retain(|key, overlay| key.kind != kind || overlay.until.is_some() || overlay.lists >= lists);
                }
            }
        }
        touched
    }

    /// Lays an answer of the server over the cache. `foreign_until` bounds the belief in an object that no watch selects.
    pub fn remember(&mut self, object: ObservedObject, foreign_until: BootTime) {
        let Some(cache) = self.cache(object.key.kind) else { return };
        let version = version(&object);
        let known = cache.by_name.get(&object.key.name).map_or(0, self::version);
        if known >= version {
            return;
        }
        if self.overlays.get(&object.key).is_some_and(|overlay| overlay.object.is_some() && overlay.version > version) {
            return;
        }
        let selected =
            object.label(LABEL_PROJECT.0) == Some(LABEL_PROJECT.1) && object.label(LABEL_TYPE.0) == Some(LABEL_TYPE.1);
        let overlay = Overlay {
            uid: object.uid.clone(),
            version,
            lists: cache.lists,
            until: (!selected).then_some(foreign_until),
            object: Some(object.clone()),
        };
        self.overlays.insert(object.key, overlay);
    }

    /// Notes that a GET or DELETE said that the object with this uid is gone.
    pub fn forget(&mut self, key: &ObjectKey, uid: &str) {
        let Some(cache) = self.cache(key.kind) else { return };
        if cache.by_name.get(&key.name).is_some_and(|object| object.uid == uid) {
            let overlay =
                Overlay { object: None, uid: uid.to_owned(), version: u64::MAX, lists: cache.lists, until: None };
            self.overlays.insert(key.clone(), overlay);
        } else if self.overlays.get(key).is_some_and(|overlay| overlay.uid == uid) {
            self.overlays.remove(key);
        }
    }

    /// Whether every cache is complete.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.objects.values().all(|cache| cache.synced) && self.pods.synced && self.replica_sets.synced
    }

    /// Which caches are complete and how many objects they hold, by resource.
    #[must_use]
    pub fn sizes(&self) -> Vec<(&'static str, bool, usize)> {
        let objects = self.objects.iter().map(|(kind, cache)| (resource(*kind).1, cache.synced, cache.by_name.len()));
        let generated = [
            ("replicasets", self.replica_sets.synced, self.replica_sets.by_name.len()),
            ("pods", self.pods.synced, self.pods.by_name.len()),
        ];
        objects.chain(generated).collect()
    }

    fn look(&self, key: &ObjectKey, now: BootTime) -> Option<ObservedObject> {
        let cached = self.cache(key.kind)?.by_name.get(&key.name);
        match self.overlays.get(key) {
            Some(overlay) if overlay.until.is_none_or(|until| now < until) => match &overlay.object {
                Some(object) => match cached {
                    Some(cached) if version(cached) >= overlay.version => Some(cached.clone()),
                    _ => Some(object.clone()),
                },
                None => cached.filter(|cached| cached.uid != overlay.uid).cloned(),
            },
            _ => cached.cloned(),
        }
    }

    /// The uid under which an object is known, if it is.
    #[must_use]
    pub fn uid_of(&self, key: &ObjectKey, now: BootTime) -> Option<String> {
        self.look(key, now).map(|object| object.uid)
    }

    /// Everything of one endpoint; `None` while a cache is incomplete.
    #[must_use]
    pub fn observe(&self, endpoint: &str, now: BootTime) -> Option<Observed> {
        if !self.is_synced() {
            return None;
        }
        let mut observed = Observed { missing_kinds: self.missing_kinds.clone(), ..Observed::default() };
        for key in inventory(endpoint) {
            if let Some(object) = self.look(&key, now) {
                observed.objects.insert(key.clone(), object);
            }
            if key.kind == Kind::Deployment {
                observed.pods.extend(self.pods.of_app(&key.name).cloned());
                observed.replica_sets.extend(self.replica_sets.of_app(&key.name).cloned());
            }
        }
        Some(observed)
    }

    /// When the first belief in an object outside of our selection ends, for this endpoint: time to look again.
    #[must_use]
    pub fn foreign_until(&self, endpoint: &str, now: BootTime) -> Option<BootTime> {
        let keys = inventory(endpoint);
        keys.iter().filter_map(|key| self.overlays.get(key)?.until.filter(|until| *until > now)).min()
    }

    /// Deployments that `wanted` picks, each with its pods and ReplicaSets; `None` while a cache is incomplete.
    #[must_use]
    pub fn deployments_where(
        &self,
        now: BootTime,
        wanted: impl Fn(&ObservedObject) -> bool,
    ) -> Option<Vec<(ObservedObject, Observed)>> {
        if !self.is_synced() {
            return None;
        }
        let names = self.objects.get(&Kind::Deployment).into_iter().flat_map(|cache| cache.by_name.keys());
        let one = |name: &String| {
            let key = ObjectKey { kind: Kind::Deployment, name: name.clone() };
            // Our own newest write counts: what it began must be seen by whoever asks next.
            let deployment = self.look(&key, now).filter(&wanted)?;
            let observed = Observed {
                objects: BTreeMap::from([(key, deployment.clone())]),
                pods: self.pods.of_app(name).cloned().collect(),
                replica_sets: self.replica_sets.of_app(name).cloned().collect(),
                missing_kinds: BTreeSet::new(),
            };
            Some((deployment, observed))
        };
        Some(names.filter_map(one).collect())
    }

    /// Every object of ours that a watch told of, whoever's it is.
    fn owned(&self) -> impl Iterator<Item = &ObservedObject> {
        let caches = Kind::WATCHED.into_iter().filter_map(|kind| self.cache(kind));
        caches.flat_map(|cache| cache.by_name.values())
    }

    /// Objects that no row owns, as far as these rows tell; `None` while a cache is incomplete.
    #[must_use]
    pub fn suspects<'a>(&self, rows: impl IntoIterator<Item = &'a EndpointRow>, region: &str) -> Option<Vec<Suspect>> {
        let pods = |app: &str| u32::try_from(self.pods.of_app(app).count()).unwrap_or(u32::MAX);
        self.is_synced().then(|| suspects(self.owned(), rows, region, pods))
    }

    /// The highest `gco.io/leader-term` on any object of ours; `None` while a cache is incomplete.
    #[must_use]
    pub fn highest_term(&self) -> Option<u64> {
        self.is_synced().then(|| self.newest_stamped().map_or(0, |(_, term)| term))
    }

    /// The object of ours with the highest term, and that. Terms that no leader can have had are nobody's.
    #[must_use]
    pub fn newest_stamped(&self) -> Option<(ObservedObject, u64)> {
        let term = |object: &ObservedObject| object.annotation(ANNOTATION_LEADER_TERM)?.parse().ok();
        let stamped = self
            .owned()
            .filter_map(|object| Some((object, term(object).filter(|term| *term <= HIGHEST_BELIEVED_TERM)?)));
        stamped.max_by_key(|(_, term)| *term).map(|(object, term)| (object.clone(), term))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::reduce;
    use serde_json::json;
    use std::time::Duration;

    fn deployment(name: &str, uid: &str, version: u64) -> ObservedObject {
        let body = json!({"metadata": {"name": name, "uid": uid, "resourceVersion": version.to_string(),
            "labels": {"project": "gco", "gco.io/type": "inference"},
            "annotations": {"gco.io/leader-term": version.to_string()}}});
        reduce::object(Kind::Deployment, body).unwrap()
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey { kind: Kind::Deployment, name: name.to_owned() }
    }

    fn now() -> BootTime {
        BootTime::since_boot(Duration::from_secs(100))
    }

    fn synced() -> Index {
        let mut index = Index::default();
        for kind in Kind::WATCHED {
            index.take(Told::Object(kind, Event::Init));
            index.take(Told::Object(kind, Event::InitDone));
        }
        index.take(Told::Pod(Event::InitDone));
        assert!(index.highest_term().is_none(), "leadership must wait for complete caches");
        assert!(index.observe("a", now()).is_none());
        index.take(Told::ReplicaSet(Event::InitDone));
        index
    }

    fn apply(index: &mut Index, object: ObservedObject) -> BTreeSet<String> {
        index.take(Told::Object(Kind::Deployment, Event::Apply(object)))
    }

    #[test]
    fn an_event_touches_the_endpoint_and_what_it_may_be_a_part_of() {
        let mut index = synced();
        let touched = apply(&mut index, deployment("a-canary", "u", 5));
        assert_eq!(touched.into_iter().collect::<Vec<_>>(), ["a", "a-canary"]);
        assert_eq!(index.highest_term(), Some(5));
    }

    #[test]
    fn a_term_that_no_leader_can_have_had_counts_for_nothing() {
        let stamped = |name: &str, term: &str| {
            let mut object = deployment(name, "u", 5);
            let mut body = (*object.body).clone();
            body["metadata"]["annotations"][ANNOTATION_LEADER_TERM] = json!(term);
            object.body = std::sync::Arc::new(body);
            object
        };
        let mut index = synced();
        assert_eq!(index.highest_term(), Some(0));
        for (name, term) in [("a", "7"), ("b", "999999999"), ("c", "many"), ("d", "99999999999999999999"), ("e", "-1")]
        {
            apply(&mut index, stamped(name, term));
        }
        assert_eq!(index.highest_term(), Some(7));
        assert_eq!(index.newest_stamped().unwrap().0.key.name, "a");
    }

    #[test]
    fn our_own_write_is_seen_until_the_cache_has_it() {
        let mut index = synced();
        apply(&mut index, deployment("a", "u", 5));
        index.remember(deployment("a", "u", 9), now());
        assert_eq!(index.look(&key("a"), now()).unwrap().resource_version, "9");
        // Older news does not hide it.
        apply(&mut index, deployment("a", "u", 7));
        assert_eq!(index.look(&key("a"), now()).unwrap().resource_version, "9");
        apply(&mut index, deployment("a", "u", 10));
        assert_eq!(index.look(&key("a"), now()).unwrap().resource_version, "10");
        assert!(index.overlays.is_empty());
        // An answer that the cache is past is not laid over it.
        index.remember(deployment("a", "u", 9), now());
        assert!(index.overlays.is_empty());
    }

    #[test]
    fn a_deleted_object_stays_gone_against_old_news_of_itself_only() {
        let mut index = synced();
        apply(&mut index, deployment("a", "u", 5));
        index.forget(&key("a"), "u");
        assert_eq!(index.look(&key("a"), now()), None);
        apply(&mut index, deployment("a", "u", 6));
        assert_eq!(index.look(&key("a"), now()), None);
        apply(&mut index, deployment("a", "another", 7));
        assert_eq!(index.look(&key("a"), now()).unwrap().uid, "another");
    }

    #[test]
    fn a_new_list_replaces_everything_and_touches_what_it_lacks() {
        let mut index = synced();
        apply(&mut index, deployment("a", "u", 5));
        apply(&mut index, deployment("b", "v", 5));
        index.remember(deployment("b", "v", 6), now());
        index.take(Told::Object(Kind::Deployment, Event::Init));
        index.remember(deployment("c", "w", 8), now());
        index.take(Told::Object(Kind::Deployment, Event::InitApply(deployment("b", "v", 5))));
        let touched = index.take(Told::Object(Kind::Deployment, Event::InitDone));
        assert_eq!(touched.into_iter().collect::<Vec<_>>(), ["a"]);
        assert_eq!(index.look(&key("a"), now()), None);
        assert_eq!(index.look(&key("b"), now()).unwrap().resource_version, "5");
        // Created after the list had begun: the list proves nothing about it.
        assert_eq!(index.look(&key("c"), now()).unwrap().resource_version, "8");
    }

    #[test]
    fn a_foreign_object_is_believed_in_for_a_while() {
        let mut index = synced();
        let body = json!({"metadata": {"name": "a", "uid": "f", "resourceVersion": "3"}});
        let until = now() + Duration::from_secs(60);
        index.remember(reduce::object(Kind::Deployment, body).unwrap(), until);
        assert_eq!(index.look(&key("a"), now()).unwrap().uid, "f");
        assert_eq!(index.look(&key("a"), until), None);
    }

    #[test]
    fn a_kind_that_the_cluster_lacks_is_complete_and_its_appearance_touches_who_may_wait_for_it() {
        let mut index = synced();
        apply(&mut index, deployment("a", "u", 5));
        index.take(Told::MissingKind(Kind::ScaledObject));
        assert!(index.observe("a", now()).unwrap().missing_kinds.contains(&Kind::ScaledObject));
        assert!(index.is_synced());
        index.take(Told::Object(Kind::ScaledObject, Event::Init));
        let touched = index.take(Told::Object(Kind::ScaledObject, Event::InitDone));
        assert_eq!(touched.into_iter().collect::<Vec<_>>(), ["a"]);
        assert!(index.observe("a", now()).unwrap().missing_kinds.is_empty());
    }

    #[test]
    fn an_autoscaler_that_keda_made_touches_the_endpoint_that_it_scales() {
        let mut index = synced();
        let mut object = deployment("keda-hpa-a-decode", "u", 5);
        object.key.kind = Kind::HorizontalPodAutoscaler;
        let touched = index.take(Told::Object(Kind::HorizontalPodAutoscaler, Event::Apply(object)));
        assert!(touched.contains("a") && touched.contains("a-decode"), "{touched:?}");
    }

    #[test]
    fn pods_are_found_by_their_app() {
        let mut index = synced();
        let pod = |name: &str, app: &str| {
            reduce::pod(&json!({"metadata": {"name": name, "labels": {"app": app}}, "status": {}})).unwrap()
        };
        index.take(Told::Pod(Event::Apply(pod("a-1", "a"))));
        index.take(Told::Pod(Event::Apply(pod("ab-1", "ab"))));
        assert_eq!(index.pods.of_app("a").count(), 1);
        let touched = index.take(Told::Pod(Event::Apply(pod("a-1", "ab"))));
        assert!(touched.contains("a") && touched.contains("ab"));
        assert_eq!((index.pods.of_app("a").count(), index.pods.of_app("ab").count()), (0, 2));
        index.take(Told::Pod(Event::Delete(pod("a-1", "ab"))));
        assert_eq!(index.pods.of_app("ab").count(), 1);
    }
}
