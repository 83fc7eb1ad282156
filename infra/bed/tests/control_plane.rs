//! A control plane is real: its controllers work, its audit log counts, its data stays.
#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::collections::BTreeMap;
use std::time::Duration;

use futures::TryStreamExt as _;
use gco_bed::control_plane::{AuditStage, ControlPlane, ControlPlaneSettings};
use gco_bed::wait;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::OnceCell;

const BOUND: Duration = Duration::from_secs(60);

/// One for the tests that do not mind each other. It ends with the test process.
async fn shared() -> &'static ControlPlane {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    let start = || async { ControlPlane::start(ControlPlaneSettings::named("shared")).await.unwrap() };
    SHARED.get_or_init(start).await
}

async fn namespace(client: &Client, name: &str) {
    let object = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"key": value}})).unwrap()
}

fn deployment(name: &str, replicas: u32) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "engine", "image": "example.invalid/engine"}]},
            },
        },
    }))
    .unwrap()
}

#[tokio::test]
async fn a_deployment_gets_its_replica_set_and_pods_from_the_real_controller() {
    let client = shared().await.client().await.unwrap();
    namespace(&client, "rollout").await;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "rollout");
    deployments.create(&PostParams::default(), &deployment("llama", 3)).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "rollout");
    let look = || async {
        let found = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        if found.len() == 3 { Ok(found) } else { Err(format!("{} pods", found.len())) }
    };
    let found = wait::until("three pods", BOUND, look).await.unwrap();
    let sets: Api<ReplicaSet> = Api::namespaced(client, "rollout");
    let sets = sets.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(sets.len(), 1);
    for pod in found {
        let owner = &pod.metadata.owner_references.unwrap()[0];
        assert_eq!(Some(&owner.name), sets[0].metadata.name.as_ref());
        assert_eq!(pod.spec.unwrap().node_name, None, "nobody schedules here");
    }
}

#[tokio::test]
async fn the_audit_log_counts_exactly_the_requests_made() {
    let plane = shared().await;
    let audit = plane.audit().unwrap();
    let client = plane.client().await.unwrap();
    namespace(&client, "counted").await;
    let mark = audit.mark().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client, "counted");
    for number in 0..20 {
        let map = config_map(&format!("map-{number}"), &"x".repeat(10_000));
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    for _ in 0..7 {
        maps.get("map-3").await.unwrap();
    }
    maps.get_opt("absent").await.unwrap();
    // Long enough to be sent in several parts.
    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), 21, "kube-root-ca.crt too");
    let change = Patch::Merge(json!({"data": {"key": "y"}}));
    maps.patch("map-3", &PatchParams::default(), &change).await.unwrap();
    maps.delete("map-3", &DeleteParams::default()).await.unwrap();

    // No waiting: the log is complete once the answers are there.
    let requests =
        audit.requests_where(mark, |request| request.namespace == "counted" && request.user == "admin").unwrap();
    let mut counts: BTreeMap<(&str, u16), usize> = BTreeMap::new();
    for request in &requests {
        assert_eq!(request.resource, "configmaps");
        assert_eq!(request.stage, AuditStage::ResponseComplete);
        *counts.entry((request.verb.as_str(), request.code)).or_default() += 1;
    }
    let expected = [
        (("create", 201), 20),
        (("delete", 200), 1),
        (("get", 200), 7),
        (("get", 404), 1),
        (("list", 200), 1),
        (("patch", 200), 1),
    ];
    assert_eq!(counts, BTreeMap::from(expected));
    assert_eq!(requests.iter().filter(|request| request.is_write()).count(), 22);
    assert!(requests.iter().all(|request| request.stage_at >= request.received_at));
}

#[tokio::test]
async fn a_watch_is_in_the_audit_log_when_it_starts_and_when_it_ends() {
    let plane = shared().await;
    let audit = plane.audit().unwrap();
    let client = plane.client().await.unwrap();
    namespace(&client, "watched").await;
    let mark = audit.mark().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client, "watched");
    let watch = maps.watch(&WatchParams::default().timeout(2), "0").await.unwrap();
    let stages = || -> Vec<AuditStage> {
        let events = audit.events_since(mark).unwrap().into_iter();
        let ours = events.filter(|event| event.is_watch() && event.namespace == "watched" && event.user == "admin");
        ours.map(|event| event.stage).collect()
    };
    assert_eq!(stages(), [AuditStage::ResponseStarted]);
    let seen: Vec<_> = watch.try_collect().await.unwrap();
    assert!(!seen.is_empty());
    let ended = || {
        let stages = stages();
        let both = stages == [AuditStage::ResponseStarted, AuditStage::ResponseComplete];
        std::future::ready(if both { Ok(()) } else { Err(format!("{stages:?}")) })
    };
    wait::until("the end of the watch in the log", BOUND, ended).await.unwrap();
    let requests = audit.requests_where(mark, |request| request.namespace == "watched" && request.is_watch());
    assert_eq!(requests.unwrap().iter().filter(|request| request.user == "admin").count(), 1);
}

#[tokio::test]
async fn a_service_account_may_do_only_what_its_role_says() {
    let plane = shared().await;
    let client = plane.client().await.unwrap();
    namespace(&client, "bound").await;
    let accounts = Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(client, "bound");
    let account = serde_json::from_value(json!({"metadata": {"name": "monitor"}})).unwrap();
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let token = plane.service_account_token("bound", "monitor").await.unwrap();
    let bound = plane.client_with_token(&plane.url(), &token).unwrap();
    let refused = Api::<Pod>::namespaced(bound, "bound").list(&ListParams::default()).await.unwrap_err();
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!(status.code, 403);
    assert!(status.message.contains("system:serviceaccount:bound:monitor"), "{}", status.message);
}

#[tokio::test]
async fn objects_tokens_and_the_port_outlive_a_restart_with_the_same_folder() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ControlPlaneSettings {
        data_dir: Some(folder.path().join("region")),
        audit: false,
        ..ControlPlaneSettings::named("kept")
    };
    let first = ControlPlane::start(settings.clone()).await.unwrap();
    assert!(first.audit().is_none());
    let client = first.client().await.unwrap();
    let created = Api::<ConfigMap>::namespaced(client, "default")
        .create(&PostParams::default(), &config_map("kept", "value"))
        .await
        .unwrap();
    let error = ControlPlane::start(settings.clone()).await.unwrap_err();
    assert!(error.to_string().ends_with("belongs to a control plane that runs"), "{error:#}");
    let (token, account_token) =
        (first.admin_token().to_owned(), first.service_account_token("default", "default").await.unwrap());
    let port = first.port();
    first.stop().await;

    let second = ControlPlane::start(settings).await.unwrap();
    assert_eq!((second.admin_token(), second.port()), (token.as_str(), port));
    let found = Api::<ConfigMap>::namespaced(second.client().await.unwrap(), "default").get("kept").await.unwrap();
    assert_eq!(found.metadata.uid, created.metadata.uid);
    assert_eq!(found.metadata.resource_version, created.metadata.resource_version);
    let account = second.client_with_token(&second.url(), &account_token).unwrap();
    let refused = Api::<ConfigMap>::namespaced(account, "default").get("kept").await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "known, but not allowed: {refused}");
    second.stop().await;
}

#[tokio::test]
async fn a_kept_control_plane_moves_when_its_port_was_taken_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let settings =
        ControlPlaneSettings { data_dir: Some(folder.path().to_owned()), ..ControlPlaneSettings::named("moved") };
    let first = ControlPlane::start(settings.clone()).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(first.client().await.unwrap(), "default");
    maps.create(&PostParams::default(), &config_map("kept", "value")).await.unwrap();
    let port = first.port();
    first.stop().await;
    let _taken = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let second = ControlPlane::start(settings).await.unwrap();
    assert_ne!(second.port(), port);
    let maps: Api<ConfigMap> = Api::namespaced(second.client().await.unwrap(), "default");
    assert!(maps.get_opt("kept").await.unwrap().is_some());
    second.stop().await;
}

#[tokio::test]
async fn two_regions_run_side_by_side_and_a_pod_is_bound_where_there_is_room() {
    let settings = |name: &str| ControlPlaneSettings { scheduler: true, ..ControlPlaneSettings::named(name) };
    let (one, two) = tokio::join!(ControlPlane::start(settings("one")), ControlPlane::start(settings("two")));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_ne!(one.port(), two.port());

    let client = one.client().await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({"metadata": {"name": "gpu-1"}});
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let room = json!({"status": {
        "capacity": {"cpu": "8", "memory": "64Gi", "pods": "10", "nvidia.com/gpu": "8"},
        "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "10", "nvidia.com/gpu": "8"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
    }});
    nodes.patch_status("gpu-1", &PatchParams::default(), &Patch::Merge(room)).await.unwrap();
    // Node objects are born with this taint, which the node life-cycle controller would remove.
    let untaint = json!({"spec": {"taints": null}});
    nodes.patch("gpu-1", &PatchParams::default(), &Patch::Merge(untaint)).await.unwrap();
    let pod = json!({
        "metadata": {"name": "llama"},
        "spec": {"containers": [{
            "name": "engine", "image": "example.invalid/engine", "resources": {"limits": {"nvidia.com/gpu": "8"}},
        }]},
    });
    let pods: Api<Pod> = Api::namespaced(client, "default");
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let look = || async {
        let pod = pods.get("llama").await.map_err(|error| error.to_string())?;
        pod.spec.and_then(|spec| spec.node_name).ok_or_else(|| format!("{:?}", pod.status))
    };
    assert_eq!(wait::until("the pod to be bound", BOUND, look).await.unwrap(), "gpu-1");

    let elsewhere: Api<Pod> = Api::all(two.client().await.unwrap());
    assert!(elsewhere.list(&ListParams::default()).await.unwrap().items.is_empty());
    tokio::join!(one.stop(), two.stop());
}

#[tokio::test]
async fn a_flag_that_a_program_refuses_is_reported_with_the_programs_words() {
    let settings = ControlPlaneSettings {
        api_server_flags: vec!["--no-such-flag".to_owned()],
        ..ControlPlaneSettings::named("refused")
    };
    let error = format!("{:#}", ControlPlane::start(settings).await.unwrap_err());
    assert!(error.contains("kube-apiserver ended") && error.contains("unknown flag: --no-such-flag"), "{error}");
}
