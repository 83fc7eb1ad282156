//! The kubelet stand-in on a real control plane with a real scheduler.

use std::net::IpAddr;
use std::time::Duration;

use crate::bed::{BOUND, bed, condition, is_ready};
use gco_bed::wait::until;
use gco_local::kubelet::{Behaviour, DialMap};
use gco_local::loopback::{LoopbackClient, json_request};
use gco_local::nodes::Fleet;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

fn address(pod: &Value) -> IpAddr {
    pod["status"]["podIP"].as_str().unwrap().parse().unwrap()
}

fn container(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_becomes_ready_and_its_endpoints_lead_to_the_engine() {
    let region = bed().await.region(0, |_, _| {}).await;
    let config = json!({"metadata": {"name": "settings"}, "data": {"greeting": "hello"}});
    let config: ConfigMap = serde_json::from_value(config).unwrap();
    region.api::<ConfigMap>().create(&PostParams::default(), &config).await.unwrap();
    let container = json!({
        "args": ["--root-path", "/inference/demo", "--tensor-parallel-size", "8", "--served-model-name", "$(MODEL)"],
        "env": [
            {"name": "MODEL", "value": "demo"},
            {"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "greeting"}}},
        ],
        "readinessProbe": {"httpGet": {"path": "/inference/demo/health", "port": "http"}, "periodSeconds": 1},
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    });
    let init = json!({"initContainers": [{"name": "model-sync", "image": "public.ecr.aws/aws-cli/aws-cli:2.36.44"}]});
    region.deploy("demo", 2, &container, &init).await;
    let pods = region.wait_for_pods("both pods to be ready", "demo", 2, is_ready).await;
    for pod in &pods {
        let status = &pod["status"];
        assert_eq!(status["phase"], "Running");
        assert!(status["podIP"].as_str().unwrap().starts_with("192.0.2."), "{status}");
        assert!(status["hostIP"].as_str().unwrap().starts_with("10.0."), "{status}");
        assert_eq!(status["initContainerStatuses"][0]["state"]["terminated"]["reason"], "Completed");
        assert_eq!(condition(pod, "PodScheduled")["status"], "True", "{status}");
        assert!(status["containerStatuses"][0]["state"]["running"]["startedAt"].is_string(), "{status}");
    }
    assert_ne!(pods[0]["spec"]["nodeName"], pods[1]["spec"]["nodeName"], "eight devices fill a node");

    let endpoints = until("two ready endpoints", BOUND, || async {
        let of_it = ListParams::default().labels("kubernetes.io/service-name=demo");
        let slices = region.api::<EndpointSlice>().list(&of_it).await.unwrap();
        let ready: Vec<(IpAddr, u16)> = slices
            .items
            .iter()
            .flat_map(|slice| {
                let port = slice.ports.iter().flatten().next().and_then(|port| port.port).unwrap_or_default();
                let ready = slice.endpoints.iter();
                let ready = ready.filter(|one| one.conditions.as_ref().is_some_and(|seen| seen.ready == Some(true)));
                let port = u16::try_from(port).unwrap();
                ready.map(move |one| (one.addresses[0].parse().unwrap(), port)).collect::<Vec<_>>()
            })
            .collect();
        if ready.len() == 2 { Ok(ready) } else { Err(format!("{slices:?}")) }
    })
    .await
    .unwrap();

    let mut answered = Vec::new();
    for (address, port) in endpoints {
        let local = region.kubelet.dial_map().resolve(address, port).unwrap();
        assert!(local.ip().is_loopback());
        let info = LoopbackClient::new().get(local.port(), "/server_info", BOUND).await.unwrap().json();
        assert_eq!(info["region"], "region-0");
        assert_eq!(info["served_model_names"], json!(["demo"]));
        assert_eq!(info["environment"], json!({"MODEL": "demo", "GREETING": "hello"}));
        answered.push(info["pod"].clone());
    }
    let mut names: Vec<Value> = pods.iter().map(|pod| pod["metadata"]["name"].clone()).collect();
    names.sort_by_key(Value::to_string);
    answered.sort_by_key(Value::to_string);
    assert_eq!(answered, names);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_image_cannot_be_pulled_and_an_event_says_so() {
    let region = bed().await.region(1, |_, _| {}).await;
    region.deploy("demo", 1, &json!({"image": "nginx:1"}), &json!({})).await;
    let waits = |reason: &'static str| {
        move |pod: &Value| container(pod)["state"]["waiting"]["reason"] == reason && pod["status"]["phase"] == "Pending"
    };
    let pods = region.wait_for_pods("the first failure", "demo", 1, waits("ErrImagePull")).await;
    assert!(!is_ready(&pods[0]));
    region.wait_for_pods("the back-off", "demo", 1, waits("ImagePullBackOff")).await;
    let message = until("the warning", BOUND, || async {
        let events = region.api::<Event>().list(&ListParams::default()).await.unwrap();
        let failed = events.items.iter().find(|event| event.reason.as_deref() == Some("Failed"));
        failed.and_then(|event| event.message.clone()).ok_or_else(|| format!("{} events", events.items.len()))
    })
    .await
    .unwrap();
    assert!(message.starts_with("Failed to pull image \"nginx:1\""), "{message}");
    region.api::<Pod>().delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    let old = pods[0]["metadata"]["uid"].clone();
    region.wait_for_pods("another pod in its place", "demo", 1, move |pod| pod["metadata"]["uid"] != old).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_crashes_is_restarted_with_a_back_off_and_its_exit_code_is_told() {
    let region = bed().await.region(2, |_, _| {}).await;
    region.deploy("demo", 1, &json!({"args": ["--model", "sample/fault-crash-3"]}), &json!({})).await;
    let pods = region
        .wait_for_pods("two crashes", "demo", 1, |pod| {
            container(pod)["restartCount"].as_u64() >= Some(2)
                && container(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        })
        .await;
    let terminated = &container(&pods[0])["lastState"]["terminated"];
    assert_eq!((&terminated["exitCode"], &terminated["reason"]), (&json!(3), &json!("Error")));
    assert_eq!(pods[0]["status"]["phase"], "Running");
    assert_eq!(condition(&pods[0], "Ready")["reason"], "ContainersNotReady");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_pod_finishes_its_open_stream_within_the_grace() {
    let region = bed().await.region(3, |_, _| {}).await;
    let hook = json!({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}});
    region.deploy("demo", 1, &hook, &json!({"terminationGracePeriodSeconds": 60})).await;
    let pods = region.wait_for_pods("the pod to be ready", "demo", 1, is_ready).await;
    let local = region.kubelet.dial_map().resolve(address(&pods[0]), 8000).unwrap();
    let body = json!({"prompt": "a", "max_tokens": 600, "ignore_eos": true, "stream": true});
    let request = json_request("/v1/completions", &body).unwrap();
    let mut stream = LoopbackClient::new().send(local.port(), request).await.unwrap().into_body();
    stream.frame().await.unwrap().unwrap();

    let none = json!({"spec": {"replicas": 0}});
    let deployments = region.api::<k8s_openapi::api::apps::v1::Deployment>();
    deployments.patch("demo", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    region
        .wait_for_pods("the pod to be on its way out", "demo", 1, |pod| {
            pod["metadata"]["deletionTimestamp"].is_string()
        })
        .await;
    let rest = stream.collect().await.unwrap().to_bytes();
    assert!(rest.ends_with(b"data: [DONE]\n\n"), "the stream was cut off");
    region.wait_for_pods("the pod to be gone", "demo", 0, |_| true).await;
    let map = region.kubelet.dial_map();
    until("the dial map to forget it", BOUND, || async {
        if map.is_empty() { Ok(()) } else { Err(format!("{map:?}")) }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_outlives_its_grace_is_killed() {
    let region = bed().await.region(4, |_, _| {}).await;
    let slow = json!({"env": [{"name": "GCO_ENGINE_GRACE_SECONDS", "value": "600"}]});
    region.deploy("demo", 1, &slow, &json!({"terminationGracePeriodSeconds": 1})).await;
    let pods = region.wait_for_pods("the pod to be ready", "demo", 1, is_ready).await;
    let local = region.kubelet.dial_map().resolve(address(&pods[0]), 8000).unwrap();
    let body = json!({"prompt": "a", "max_tokens": 8000, "ignore_eos": true, "stream": true});
    let request = json_request("/v1/completions", &body).unwrap();
    let mut stream = LoopbackClient::new().send(local.port(), request).await.unwrap().into_body();
    stream.frame().await.unwrap().unwrap();
    let none = json!({"spec": {"replicas": 0}});
    let deployments = region.api::<k8s_openapi::api::apps::v1::Deployment>();
    deployments.patch("demo", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    region.wait_for_pods("the pod to be gone", "demo", 0, |_| true).await;
    assert!(stream.collect().await.is_err(), "a stream of 40 s cannot have come to its end");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_scheduler_places_pods_by_their_devices_and_says_why_it_cannot() {
    let region = bed().await.region(5, |_, _| {}).await;
    region.deploy("large", 1, &json!({"resources": {"limits": {"nvidia.com/gpu": "16"}}}), &json!({})).await;
    let efa = json!({"resources": {"limits": {"nvidia.com/gpu": "1", "vpc.amazonaws.com/efa": "1"}}});
    let tolerated = |keys: &[&str]| -> Vec<Value> {
        let one = |key: &&str| json!({"key": key, "operator": "Equal", "value": "true", "effect": "NoSchedule"});
        keys.iter().map(one).collect()
    };
    let scheduling = json!({
        "tolerations": tolerated(&["nvidia.com/gpu", "vpc.amazonaws.com/efa"]),
        "nodeSelector": {"topology.kubernetes.io/region": "region-5", "efa": "true", "mooncake-efa": "true"},
    });
    region.deploy("efa", 1, &efa, &scheduling).await;
    let neuron = json!({"resources": {"limits": {"aws.amazon.com/neuron": "16"}}});
    let scheduling = json!({
        "tolerations": tolerated(&["aws.amazon.com/neuron"]),
        "nodeSelector": {"topology.kubernetes.io/region": "region-5", "accelerator": "neuron"},
    });
    region.deploy("neuron", 1, &neuron, &scheduling).await;

    let refused = region
        .wait_for_pods("the scheduler's refusal", "large", 1, |pod| {
            condition(pod, "PodScheduled")["reason"] == "Unschedulable"
        })
        .await;
    let message = condition(&refused[0], "PodScheduled")["message"].as_str().unwrap();
    assert!(message.contains("Insufficient nvidia.com/gpu"), "{message}");
    assert_eq!(refused[0]["status"]["phase"], "Pending");

    for name in ["efa", "neuron"] {
        let pods = region.wait_for_pods("the pod to be ready", name, 1, is_ready).await;
        let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(region.client.clone());
        let node = nodes.get(pods[0]["spec"]["nodeName"].as_str().unwrap()).await.unwrap();
        let labels = node.metadata.labels.unwrap();
        let pool = if name == "efa" { "mooncake-efa-pool" } else { "neuron-pool" };
        assert_eq!(labels["karpenter.sh/nodepool"], pool);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_decide_about_readiness_and_restarts() {
    let region = bed().await.region(6, |_, _| {}).await;
    let health = json!({"path": "/health", "port": "http"});
    let slow = json!({
        "env": [{"name": "GCO_ENGINE_LOAD_SECONDS", "value": "2"}],
        "startupProbe": {"httpGet": health, "periodSeconds": 1, "failureThreshold": 600},
        "livenessProbe": {"httpGet": health, "periodSeconds": 1, "failureThreshold": 1},
    });
    region.deploy("slow", 1, &slow, &json!({})).await;
    let dead = json!({
        "args": ["--model", "sample/fault-never-healthy"],
        "livenessProbe": {"tcpSocket": {"port": 9999}, "periodSeconds": 1, "failureThreshold": 2},
    });
    region.deploy("dead", 1, &dead, &json!({"terminationGracePeriodSeconds": 2})).await;

    let loading = region
        .wait_for_pods("the slow engine to run", "slow", 1, |pod| container(pod)["state"]["running"].is_object())
        .await;
    assert_eq!((&container(&loading[0])["started"], is_ready(&loading[0])), (&json!(false), false));
    let ready = region.wait_for_pods("the slow engine to be ready", "slow", 1, is_ready).await;
    assert_eq!(container(&ready[0])["restartCount"], 0, "liveness waits for the startup probe");
    let dead = region
        .wait_for_pods("the dead one to be restarted", "dead", 1, |pod| {
            container(pod)["restartCount"].as_u64() >= Some(1)
        })
        .await;
    assert!(!is_ready(&dead[0]));
    assert_eq!(container(&dead[0])["lastState"]["terminated"]["exitCode"], 0, "it was asked to end, and did");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_of_the_stand_in_every_pod_has_a_new_process_and_one_restart_more() {
    let region = bed().await.region(7, |_, _| {}).await;
    region.deploy("demo", 2, &json!({}), &json!({})).await;
    let before = region.wait_for_pods("both pods to be ready", "demo", 2, is_ready).await;
    let addresses: Vec<IpAddr> = before.iter().map(address).collect();
    let region = region.restart_kubelet().await;
    let after = region
        .wait_for_pods("both pods to be ready again", "demo", 2, |pod| {
            is_ready(pod) && container(pod)["restartCount"] == 1
        })
        .await;
    let names = |pods: &[Value]| pods.iter().map(|pod| pod["metadata"]["uid"].clone()).collect::<Vec<_>>();
    assert_eq!(names(&before), names(&after), "the objects stay");
    assert_eq!(addresses, after.iter().map(address).collect::<Vec<_>>());
    assert_eq!(container(&after[0])["lastState"]["terminated"]["reason"], "Unknown");
    for address in addresses {
        let local = region.kubelet.dial_map().resolve(address, 8000).unwrap();
        assert_eq!(LoopbackClient::new().get(local.port(), "/health", BOUND).await.unwrap().status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_pods_without_processes_become_ready_fail_and_go() {
    let region = bed()
        .await
        .region(8, |settings, fleet| {
            settings.behaviour =
                Behaviour::StatusOnly { ready_delay: Duration::from_millis(50), stop_delay: Duration::ZERO };
            *fleet = Fleet { gpu: 6, ..Fleet::default() };
        })
        .await;
    region.deploy("many", 300, &json!({}), &json!({})).await;
    region.deploy("pull", 2, &json!({"image": "vllm:fault-pull"}), &json!({})).await;
    region.deploy("crash", 2, &json!({"args": ["--model", "x/fault-crash-7"]}), &json!({})).await;
    region
        .deploy("never", 2, &json!({"env": [{"name": "GCO_ENGINE_FAULT", "value": "never-healthy"}]}), &json!({}))
        .await;
    let pods = region.wait_for_pods("all to be ready", "many", 300, is_ready).await;
    let addresses: std::collections::BTreeSet<IpAddr> = pods.iter().map(address).collect();
    assert_eq!(addresses.len(), 300, "every pod has its own address");
    region
        .wait_for_pods("pull errors", "pull", 2, |pod| {
            container(pod)["state"]["waiting"]["reason"] == "ImagePullBackOff"
        })
        .await;
    region.wait_for_pods("crashes", "crash", 2, |pod| container(pod)["lastState"]["terminated"]["exitCode"] == 7).await;
    let never =
        region.wait_for_pods("running pods", "never", 2, |pod| container(pod)["state"]["running"].is_object()).await;
    assert!(never.iter().all(|pod| !is_ready(pod)));

    let none = json!({"spec": {"replicas": 0}});
    let deployments = region.api::<k8s_openapi::api::apps::v1::Deployment>();
    deployments.patch("many", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    region.wait_for_pods("all to be gone", "many", 0, |_| true).await;
    let file = DialMap::read(&region.dial_map_file()).unwrap();
    assert!(file.is_empty(), "nothing listens for a pod without a process");
}
