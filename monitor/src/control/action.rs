//! What a pass did, in the words of the contract's action records (C.14). Pure.

use serde_json::Value;

use crate::intent::{CleanUp, Intent};
use crate::object::{Kind, Observed};
use crate::plan::{Plan, Step};

/// One action record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// `create`, `scale`, `update_image`, `update`, `reconcile_autoscaler`, `stop`, `delete`, `cleanup`, `claim`.
    pub action: &'static str,
    /// New image, of `update_image`.
    pub image: Option<String>,
    /// New count, of `scale`.
    pub replicas: Option<u64>,
}

/// The word for what an intent asks.
#[must_use]
pub fn intent_word(intent: &Intent) -> &'static str {
    match intent {
        Intent::Serve { .. } => "serve",
        Intent::Stop { .. } => "stop",
        Intent::Remove { clean_up: CleanUp::Deleted { .. }, .. } => "delete",
        Intent::Remove { clean_up: CleanUp::RegionRemoved(_), .. } => "remove_region",
        Intent::AwaitPurge => "await_purge",
        Intent::BackFill => "back_fill",
        Intent::Reject { .. } => "reject",
        Intent::Ignore => "ignore",
        Intent::Unusable { .. } => "unusable",
    }
}

/// The record of a plan that is about to be carried out; `None` when it changes nothing on objects.
#[must_use]
pub fn action_of(intent: &Intent, plan: &Plan, observed: &Observed) -> Option<Action> {
    let mut steps = plan.steps.iter().filter(|step| !matches!(step, Step::ProveAbsence)).peekable();
    steps.peek()?;
    let plain = |action| Some(Action { action, ..Action::default() });
    match intent {
        Intent::Stop { .. } => return plain("stop"),
        Intent::Remove { clean_up: CleanUp::Deleted { .. }, .. } => return plain("delete"),
        Intent::Remove { clean_up: CleanUp::RegionRemoved(_), .. } => return plain("cleanup"),
        _ => {}
    }
    let mut action = Action { action: "claim", ..Action::default() };
    for step in steps {
        match step {
            Step::Create { key, .. } if key.kind == Kind::Deployment => return plain("create"),
            Step::Replace { key, body, .. } if key.kind == Kind::Deployment => {
                let live = observed.objects.get(key).map(|object| &*object.body);
                let change = |pointer: &str| {
                    let new = body.pointer(pointer);
                    new.filter(|new| live.and_then(|live| live.pointer(pointer)) != Some(*new)).cloned()
                };
                let image = change("/spec/template/spec/containers/0/image");
                let replicas = change("/spec/replicas").and_then(|count| count.as_u64());
                action = match (image, replicas) {
                    (Some(Value::String(image)), _) => {
                        return Some(Action { action: "update_image", image: Some(image), replicas });
                    }
                    (_, Some(count)) => Action { action: "scale", image: None, replicas: Some(count) },
                    _ => Action { action: "update", ..Action::default() },
                };
            }
            Step::Create { key, .. } | Step::Replace { key, .. } | Step::Delete { key, .. }
                if key.kind.is_autoscaler() && matches!(action.action, "claim" | "update") =>
            {
                action.action = "reconcile_autoscaler";
            }
            Step::Create { .. } | Step::Replace { .. } | Step::Delete { .. } if action.action == "claim" => {
                action.action = "update";
            }
            _ => {}
        }
    }
    Some(action)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::RowIdentity;
    use crate::object::{ObjectKey, ObservedObject};
    use crate::plan::Precondition;
    use serde_json::json;
    use std::sync::Arc;

    fn key() -> ObjectKey {
        ObjectKey { kind: Kind::Deployment, name: "a".to_owned() }
    }

    fn body(image: &str, replicas: u64) -> Value {
        json!({"spec": {"replicas": replicas, "template": {"spec": {"containers": [{"image": image}]}}}})
    }

    fn observed() -> Observed {
        let object = ObservedObject {
            key: key(),
            uid: "u".into(),
            resource_version: "1".into(),
            terminating: false,
            body: Arc::new(body("one", 1)),
        };
        Observed { objects: [(key(), object)].into(), ..Observed::default() }
    }

    fn replace(body: Value) -> Plan {
        let of = Precondition { uid: "u".into(), resource_version: "1".into() };
        let step = Step::Replace {
            key: key(),
            of,
            body,
            reason: String::new(),
            restarts: false,
            unasked: false,
            scales_down: false,
        };
        Plan { steps: vec![step], obstacles: Vec::new() }
    }

    #[test]
    fn records_have_the_contracts_words() {
        let identity = RowIdentity { lifecycle_id: "l".into(), region_generation: "g".into() };
        let removed = Intent::Remove { clean_up: CleanUp::RegionRemoved(identity.clone()), paused: false };
        let stop = Intent::Stop { identity, paused: false };
        let word = |intent: &Intent, plan: &Plan| action_of(intent, plan, &observed()).map(|action| action.action);
        assert_eq!(word(&Intent::Ignore, &Plan::default()), None);
        assert_eq!(word(&stop, &replace(body("one", 0))), Some("stop"));
        assert_eq!(word(&removed, &replace(body("one", 0))), Some("cleanup"));
        let other = &Intent::Ignore;
        assert_eq!(word(other, &replace(body("one", 1))), Some("update"));
        let scaled = action_of(other, &replace(body("one", 3)), &observed()).unwrap();
        assert_eq!((scaled.action, scaled.replicas), ("scale", Some(3)));
        let updated = action_of(other, &replace(body("two", 3)), &observed()).unwrap();
        assert_eq!((updated.action, updated.image.as_deref()), ("update_image", Some("two")));
        let create = Plan {
            steps: vec![Step::Create { key: key(), body: json!({}), reason: String::new() }],
            obstacles: Vec::new(),
        };
        assert_eq!(word(other, &create), Some("create"));
    }
}
