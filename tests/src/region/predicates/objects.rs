//! Predicates on objects (the wire contract, C.5, C.7, C.9, C.12, C.13).

use futures::StreamExt as _;
use kube::Client;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::Book;
use crate::region::objects::{annotation, label, text};

/// Kinds that the monitor writes: group, version, kind, plural.
const KINDS: [(&str, &str, &str, &str); 4] = [
    ("apps", "v1", "Deployment", "deployments"),
    ("", "v1", "Service", "services"),
    ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    ("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects"),
];

/// How long to wait before a kind that the cluster does not have is looked for again.
const ABSENT_KIND: std::time::Duration = std::time::Duration::from_millis(500);

/// Only objects that the monitor stamped are its own writes; what a test makes by hand may be anything.
const OUR_MARK: &str = "gco.io/leader-term";

/// An object with this annotation was made or changed by a test that plays a monitor, or somebody else, by hand.
const BY_HAND: &str = "suite/mark";

/// Starts a watch for each kind.
pub(super) fn watch(client: &Client, namespace: &str, book: &Book) -> Vec<tokio::task::JoinHandle<()>> {
    let one = |(group, version, kind, plural): (&str, &str, &str, &str)| {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        tokio::spawn(watch_one(api, kind.to_owned(), book.clone()))
    };
    KINDS.into_iter().map(one).collect()
}

async fn watch_one(api: Api<DynamicObject>, kind: String, book: Book) {
    loop {
        let Ok(list) = api.list(&ListParams::default()).await else {
            tokio::time::sleep(ABSENT_KIND).await;
            continue;
        };
        let mut version = list.metadata.resource_version.unwrap_or_default();
        for object in list.items {
            look(&kind, &object, &book);
        }
        // From the list's version on every version comes, one by one; a watch that ends is continued where it was.
        while let Ok(events) = api.watch(&WatchParams::default().timeout(60), &version).await {
            let mut events = std::pin::pin!(events);
            let mut broken = false;
            while let Some(event) = events.next().await {
                match event {
                    Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                        version = object.resource_version().unwrap_or(version);
                        look(&kind, &object, &book);
                    }
                    Ok(WatchEvent::Deleted(object)) => version = object.resource_version().unwrap_or(version),
                    Ok(WatchEvent::Bookmark(_)) => {}
                    Ok(WatchEvent::Error(_)) | Err(_) => broken = true,
                }
            }
            if broken {
                break;
            }
        }
    }
}

fn look(kind: &str, object: &DynamicObject, book: &Book) {
    let Ok(body) = serde_json::to_value(object) else { return };
    let by_hand = annotation(&body, OUR_MARK).is_none() || annotation(&body, BY_HAND).is_some();
    if by_hand || body["metadata"].get("deletionTimestamp").is_some() {
        return;
    }
    let what = format!("{kind}/{} version {}", object.name_any(), object.resource_version().unwrap_or_default());
    book.note(&what, violations(kind, &body));
}

/// What the original would not accept in an object of ours.
fn violations(kind: &str, body: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |holds: bool, rule: &str| {
        if !holds {
            found.push(rule.to_owned());
        }
    };
    let name = text(body, "/metadata/name").unwrap_or_default();
    // KEDA names its autoscaler and copies labels and annotations of the ScaledObject to it.
    let app = name.strip_prefix("keda-hpa-").unwrap_or(name);
    check(label(body, "project") == Some("gco"), "C.5: label project=gco");
    check(label(body, "gco.io/type") == Some("inference"), "C.5: label gco.io/type=inference");
    check(label(body, "app") == Some(app), "C.12: label app is the object's name");
    for mark in ["gco.io/lifecycle-id", "gco.io/region-generation", "gco.io/leader-epoch"] {
        check(annotation(body, mark).is_some_and(|value| !value.is_empty()), &format!("C.5, I.6: annotation {mark}"));
    }
    match kind {
        "Deployment" => {
            check(body["spec"]["selector"] == json!({"matchLabels": {"app": name}}), "C.12.1: selector is app alone");
            for (label, value) in [("app", name), ("project", "gco"), ("gco.io/type", "inference")] {
                let found = &body["spec"]["template"]["metadata"]["labels"][label];
                check(found == value, &format!("C.9: pods carry the label {label}"));
            }
            let first = &body["spec"]["template"]["spec"]["containers"][0];
            check(
                first["name"] == "inference" || name.ends_with("-proxy"),
                "C.7.8: the first container is `inference`",
            );
            check(first["image"].as_str().is_some_and(|image| !image.is_empty()), "C.7.8: it has an image");
            check(body["spec"]["replicas"].as_i64().is_some(), "C.7.4: spec.replicas is a number");
        }
        "Service" => {
            check(body["spec"]["selector"]["app"] == name, "C.12.2: selector has app");
            check(body["spec"]["selector"]["gco.io/type"] == "inference", "C.12.2: selector has gco.io/type");
            let role = name.ends_with("-prefill") || name.ends_with("-decode");
            check(body["spec"]["ports"][0]["port"] == 80 || role, "E.2: the router asks port 80");
            check(body["spec"]["type"] == "ClusterIP", "C.12.2: ClusterIP");
        }
        "HorizontalPodAutoscaler" => {
            let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": app});
            check(body["spec"]["scaleTargetRef"] == target, "C.13: scaleTargetRef is exactly the Deployment");
        }
        "ScaledObject" => {
            check(body["spec"]["scaleTargetRef"]["name"] == name, "C.13: scaleTargetRef names the Deployment");
        }
        _ => {}
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_can_fail() {
        let good = json!({
            "metadata": {"name": "a", "labels": {"app": "a", "project": "gco", "gco.io/type": "inference"},
                "annotations": {"gco.io/lifecycle-id": "l", "gco.io/region-generation": "g", "gco.io/leader-epoch": "e"}},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "a"}}, "template": {
                "metadata": {"labels": {"app": "a", "project": "gco", "gco.io/type": "inference"}},
                "spec": {"containers": [{"name": "inference", "image": "x:1"}]}}},
        });
        assert_eq!(violations("Deployment", &good), Vec::<String>::new());
        for (pointer, value) in [
            ("/metadata/labels/project", json!("other")),
            ("/metadata/labels/app", json!("b")),
            ("/metadata/annotations/gco.io~1leader-epoch", json!("")),
            ("/metadata/annotations/gco.io~1region-generation", json!(null)),
            ("/spec/selector/matchLabels/app", json!("b")),
            ("/spec/template/metadata/labels/gco.io~1type", json!("x")),
            ("/spec/template/spec/containers/0/name", json!("model")),
            ("/spec/template/spec/containers/0/image", json!("")),
            ("/spec/replicas", json!(null)),
        ] {
            let mut bad = good.clone();
            *bad.pointer_mut(pointer).unwrap() = value;
            assert_eq!(violations("Deployment", &bad).len(), 1, "{pointer}");
        }
    }
}
