//! Who sets the replica count: us, or an autoscaler, and never two at once (the wire contract, C.13).
//!
//! An autoscaler that is no longer asked for goes first, and until it is really gone every write of the Deployment carries
//! the live count. So a count only ever moves from where it is to where the new owner wants it: whatever the old
//! autoscaler writes meanwhile is either before our version, and our write is refused, or after it, and then it has
//! clamped our count to its bounds, which lies between the two.

use std::collections::BTreeSet;

use super::goals::{Draft, delete};
use super::obstacle;
use super::ownership::Owner;
use crate::object::{DesiredSet, Kind, ObjectKey, ObservedObject, target_of};

/// Removes the autoscalers that are not asked for; returns the names of Deployments whose count is still theirs.
pub(super) fn release(draft: &mut Draft<'_>, desired: &DesiredSet) -> BTreeSet<String> {
    let mut held = BTreeSet::new();
    for object in draft.objects().into_iter().filter(|object| object.key.kind.is_autoscaler()) {
        let target = target_of(&object.key.name);
        let owner = draft.viewpoint.owner_of(object);
        let mut wanted = desired.objects.iter().map(|one| &one.key);
        let wanted = wanted.find(|key| key.kind.is_autoscaler() && target_of(&key.name) == target);
        let belongs =
            wanted.is_some_and(|key| *key == object.key || (owner == Owner::OfKeda && key.kind == Kind::ScaledObject));
        if belongs || matches!(owner, Owner::Foreign | Owner::OtherEndpoint) {
            continue;
        }
        held.insert(target.to_owned());
        if wanted.is_none_or(|key| !draft.input.observed.missing_kinds.contains(&key.kind)) {
            remove(draft, object, owner, "another way of scaling is asked for");
        }
        // Else: what should take over cannot exist here. An endpoint that scales by its former rules is better than one
        // that does not scale.
    }
    held
}

/// Whether a wanted autoscaler that is absent can be made now; says why not.
pub(super) fn may_be_made(draft: &mut Draft<'_>, key: &ObjectKey, held: &BTreeSet<String>) -> bool {
    if draft.input.observed.missing_kinds.contains(&key.kind) {
        draft.obstruct(key, obstacle::KIND_MISSING);
        return false;
    }
    !held.contains(target_of(&key.name))
}

/// Removes the autoscaler of an endpoint that is stopped.
pub(super) fn stop_one(draft: &mut Draft<'_>, object: &ObservedObject, owner: Owner) {
    if !matches!(owner, Owner::Foreign | Owner::OtherEndpoint) {
        remove(draft, object, owner, "stopped: nothing may scale it up again");
    }
}

/// Whether something would scale a Deployment up from none. Kubernetes' own autoscaler leaves a count of none alone; KEDA
/// does not, until it knows that the ScaledObject goes.
pub(super) fn may_raise_from_none(draft: &Draft<'_>, deployment: &str) -> bool {
    let key = ObjectKey { kind: Kind::ScaledObject, name: deployment.to_owned() };
    draft.input.observed.objects.get(&key).is_some_and(|object| {
        !object.terminating && matches!(draft.viewpoint.owner_of(object), Owner::Ours | Owner::Unmarked)
    })
}

/// Whether KEDA, or the garbage collector after it, removes this autoscaler by itself: its ScaledObject is still there.
pub(super) fn goes_by_itself(draft: &Draft<'_>, object: &ObservedObject) -> bool {
    let key = ObjectKey { kind: Kind::ScaledObject, name: target_of(&object.key.name).to_owned() };
    object.is_of_keda() && draft.input.observed.objects.contains_key(&key)
}

fn remove(draft: &mut Draft<'_>, object: &ObservedObject, owner: Owner, why: &str) {
    // Stale ones are handed off with everything else that is stale.
    if matches!(owner, Owner::StaleLifecycle | Owner::StaleGeneration) || goes_by_itself(draft, object) {
        return;
    }
    if object.terminating {
        draft.obstruct(&object.key, obstacle::TERMINATING);
    } else if draft.input.table_away {
        draft.obstruct(&object.key, obstacle::TABLE_AWAY);
    } else {
        draft.steps.push(delete(object, why.to_owned()));
    }
}
