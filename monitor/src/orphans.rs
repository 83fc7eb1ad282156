//! Objects of ours that no row owns any more. Pure: they are counted and listed, and nothing is ever deleted because of it.
//!
//! They come about when a region is declared gone while its row is deleted, and its cluster comes back; when a row is removed
//! by hand; when a backup of the table is restored. Whatever the reason, the monitor cannot know whether they are still of
//! use, so a person decides.

use std::collections::{BTreeMap, BTreeSet};

use gco_store::orphans::Orphan;
use gco_store::row::EndpointRow;

use crate::identity::{ANNOTATION_LIFECYCLE, LABEL_APP};
use crate::object::{ObjectKey, ObservedObject};
use crate::plan::inventory;

/// An object that looks like an orphan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// The object.
    pub key: ObjectKey,
    /// `metadata.uid`
    pub uid: String,
    /// What is told of it.
    pub orphan: Orphan,
}

/// Which of our objects no row owns: neither by lifecycle, nor by a name that belongs to a row which concerns this region (the
/// plan of that row deals with it). `pods` tells how many pods carry a label `app`.
#[must_use]
pub fn suspects<'objects, 'rows>(
    objects: impl IntoIterator<Item = &'objects ObservedObject>,
    rows: impl IntoIterator<Item = &'rows EndpointRow>,
    region: &str,
    pods: impl Fn(&str) -> u32,
) -> Vec<Suspect> {
    let mut lifecycles: BTreeSet<&str> = BTreeSet::new();
    let mut owned: BTreeSet<ObjectKey> = BTreeSet::new();
    for row in rows {
        lifecycles.extend(row.lifecycle_id.as_deref());
        if row.concerns(region) {
            owned.extend(inventory(&row.name));
        }
    }
    let is_suspect = |object: &&ObservedObject| {
        let lifecycle = object.annotation(ANNOTATION_LIFECYCLE);
        // Without a lifecycle the labels are all there is to go by, so they must all fit.
        let is_ours = lifecycle.is_some() || object.label(LABEL_APP) == Some(object.key.name.as_str());
        is_ours
            && !object.terminating
            && !lifecycle.is_some_and(|lifecycle| lifecycles.contains(lifecycle))
            && !owned.contains(&object.key)
    };
    let suspect = |object: &ObservedObject| Suspect {
        key: object.key.clone(),
        uid: object.uid.clone(),
        orphan: Orphan {
            object: object.key.to_string(),
            lifecycle_id: object.annotation(ANNOTATION_LIFECYCLE).map(str::to_owned),
            // Once, under what makes them.
            pods: if object.key.kind == crate::object::Kind::Deployment { pods(&object.key.name) } else { 0 },
        },
    };
    objects.into_iter().filter(is_suspect).map(suspect).collect()
}

/// Remembers since when objects have been suspected: the caches hear of objects before a read of the table hears of their row,
/// so one is told of only after a complete read that began later. `T` is a moment of the caller's clock.
#[derive(Clone, Debug)]
pub struct Suspicion<T> {
    since: BTreeMap<(ObjectKey, String), T>,
}

impl<T> Default for Suspicion<T> {
    fn default() -> Self {
        Self { since: BTreeMap::new() }
    }
}

impl<T: Copy + PartialOrd> Suspicion<T> {
    /// Takes the suspects of `now`; returns those that a complete read, begun at `read_began`, has confirmed.
    pub fn confirmed(&mut self, suspects: Vec<Suspect>, now: T, read_began: Option<T>) -> Vec<Orphan> {
        let before = std::mem::take(&mut self.since);
        let mut confirmed = Vec::new();
        for Suspect { key, uid, orphan } in suspects {
            let place = (key, uid);
            let since = before.get(&place).copied().unwrap_or(now);
            self.since.insert(place, since);
            if read_began.is_some_and(|began| began > since) {
                confirmed.push(orphan);
            }
        }
        confirmed
    }
}
