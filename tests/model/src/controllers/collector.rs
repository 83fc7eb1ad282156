//! The garbage collector: what has lost every owner goes; a deletion in the foreground ends when the last dependent that
//! holds it up is gone.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Round;
use crate::object::{finalizers, is_terminating, text};
use crate::server::{self, FOREGROUND};
use crate::state::Place;

pub(super) fn round(round: &mut Round<'_>) {
    let all: Vec<(Place, Arc<Value>)> = round
        .state
        .objects()
        .iter()
        .filter(|(place, _)| place.plural != "leases")
        .map(|(place, object)| (place.clone(), object.clone()))
        .collect();
    for (place, object) in &all {
        let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        if let Some(owners) = owners.filter(|owners| !owners.is_empty())
            && !is_terminating(object)
            && owners.iter().all(|owner| !round.state.has_identity(text(owner, "/uid")))
        {
            server::remove(round.state, place, false, None);
        }
        if is_terminating(object) && finalizers(object).contains(&FOREGROUND) {
            end_foreground(round, place, object, &all);
        }
    }
}

fn end_foreground(round: &mut Round<'_>, place: &Place, object: &Value, all: &[(Place, Arc<Value>)]) {
    let uid = text(object, "/metadata/uid");
    let holds = |dependent: &Value| {
        let owners = dependent.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        owners.into_iter().flatten().any(|owner| text(owner, "/uid") == uid)
    };
    let mut waiting = false;
    for (dependent, content) in all.iter().filter(|(_, content)| holds(content)) {
        if round.state.get(dependent).is_none() {
            continue;
        }
        waiting = true;
        if !is_terminating(content) {
            server::remove(round.state, dependent, dependent.plural != "pods", None);
        }
    }
    if waiting {
        return;
    }
    let Some(live) = round.state.get(place).cloned() else { return };
    let kept: Vec<String> = finalizers(&live).into_iter().filter(|one| *one != FOREGROUND).map(str::to_owned).collect();
    if kept.is_empty() {
        round.state.remove(place);
    } else {
        let mut object = (*live).clone();
        object["metadata"]["finalizers"] = json!(kept);
        round.state.put(place, object);
    }
}
