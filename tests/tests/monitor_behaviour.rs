//! Weaknesses of the control plane that came before, and how the monitor behaves instead: serving and changing.
//!
//! Each test is one of the numbered weaknesses that docs/weaknesses.md lists.

use std::time::Duration;

use gco_store::row::DesiredState;
use gco_store::status::State;
use gco_tests::region::objects::{annotation, model_container, number, text, variable};
use gco_tests::region::rows::{IMAGE, spec};
use gco_tests::region::{BOUND, Monitor, MonitorSettings, Region};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

type TestResult = anyhow::Result<()>;

#[tokio::test(flavor = "multi_thread")]
async fn d1_the_first_region_that_serves_promotes_the_endpoint_for_all() -> TestResult {
    let region = Region::start().await?;
    let _monitor = Monitor::leading(&region).await?;
    let row = region.deploy_to("chat", spec(1, "0"), &["us-east-1", "eu-west-1"]).await?;
    assert_eq!(row.desired_state, DesiredState::Deploying);
    region.agrees("chat").await?;
    let row = region.row("chat").await?.unwrap();
    assert_eq!(row.desired_state, DesiredState::Running, "though nobody serves in eu-west-1");
    assert!(!row.region_status.contains_key("eu-west-1"), "{:?}", row.region_status);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_one_unready_replica_of_three_leaves_the_region_running_and_says_degraded() -> TestResult {
    let region = Region::start().await?;
    let _monitor = Monitor::leading(&region).await?;
    region.deploy("chat", spec(3, "0")).await?;
    region.agrees("chat").await?;
    let history = region.history("chat");
    // A rollout to an image that never becomes ready takes away one pod of three.
    region.set("chat", "image", "vllm/vllm-openai:fault-never-ready").await?;
    let entry = gco_bed::wait::until("the region to say degraded", BOUND, || async {
        let row = region.row("chat").await.map_err(|error| error.to_string())?;
        let entry = row.and_then(|row| row.region_status.get("us-east-1").cloned()).ok_or("no entry")?;
        // The reason comes with the new pod, a moment after the old one has gone.
        if entry.degraded && entry.replicas_ready == 2 && !entry.pods.is_empty() {
            Ok(entry)
        } else {
            Err(format!("{entry:?}"))
        }
    })
    .await?;
    assert_eq!(entry.state, State::Running);
    assert_eq!((entry.replicas_ready, entry.replicas_desired), (2, 3));
    assert_eq!(history.unroutable(), [], "all looks: {:?}", history.looks());
    // And back.
    region.set("chat", "image", IMAGE).await?;
    region.agrees("chat").await?;
    assert_eq!(history.unroutable(), []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d4_an_edit_keeps_serving_and_keeps_the_desired_state() -> TestResult {
    let region = Region::start().await?;
    let _monitor = Monitor::leading(&region).await?;
    region.deploy("chat", spec(2, "0")).await?;
    region.agrees("chat").await?;
    let history = region.history("chat");
    let row = region.mark("chat", "1").await?;
    assert_eq!(row.desired_state, DesiredState::Running);
    region.settled("chat").await?;
    assert_eq!(history.unroutable(), [], "all looks: {:?}", history.looks());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d33_an_edit_of_a_stopped_endpoint_starts_nothing_and_is_taken_at_the_next_start() -> TestResult {
    let region = Region::start().await?;
    let _monitor = Monitor::leading(&region).await?;
    region.deploy("chat", spec(2, "0")).await?;
    region.agrees("chat").await?;
    region.stop("chat").await?;
    region.agrees("chat").await?;
    let row = region.mark("chat", "1").await?;
    assert_eq!(row.desired_state, DesiredState::Stopped);
    let objects = region.settled("chat").await?;
    assert!(objects.pods.is_empty());
    region.start_endpoint("chat").await?;
    let objects = region.settled("chat").await?;
    assert_eq!(variable(&model_container(&objects.deployments["chat"]), "EDIT"), Some("1"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d5_a_row_whose_name_another_endpoint_owns_touches_nothing_of_it_and_says_so() -> TestResult {
    let region = Region::start().await?;
    let monitor = Monitor::leading(&region).await?;
    region.deploy("a", spec(1, "0")).await?;
    region.agrees("a").await?;
    let before = region.objects_of("a").await?;
    // No command line writes such a name; a row of the original may have it.
    let mut item = region.row("a").await?.unwrap().item;
    item.insert("endpoint_name".to_owned(), "a-canary".into());
    item.insert("lifecycle_id".to_owned(), "c".repeat(64).into());
    let mark = region.audit()?.mark()?;
    region.put_row(item).await?;
    gco_bed::wait::until("a-canary to be refused", BOUND, || async {
        let row = region.row("a-canary").await.map_err(|error| error.to_string())?.ok_or("no row")?;
        let entry = row.region_status.get("us-east-1").ok_or("no entry")?;
        let refused = entry.conditions.iter().any(|condition| condition.reason == "NameCollision");
        if refused { Ok(()) } else { Err(format!("{entry:?}")) }
    })
    .await?;
    monitor.full_pass().await?;
    assert_eq!(region.monitor_writes_since(mark)?, []);
    let after = region.objects_of("a").await?;
    assert_eq!(after.versions(), before.versions());
    // And it does not keep the endpoint from its edits.
    region.scale("a", 2).await?;
    region.settled("a").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d7_every_field_of_the_spec_reaches_the_running_workload() -> TestResult {
    let region = Region::start().await?;
    let _monitor = Monitor::leading(&region).await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.agrees("chat").await?;
    let edits = [
        ("image", json!("vllm/vllm-openai:v0.29.0")),
        ("region_image_uris", json!({"us-east-1": "registry.example/vllm:regional"})),
        ("port", json!(9000)),
        ("replicas", json!(2)),
        ("gpu_count", json!(2)),
        ("gpu_count", json!(0)),
        ("health_check_path", json!("/v1/models")),
        ("env", json!({"EDIT": "7", "MORE": "yes"})),
        ("env", json!({"EDIT": "8"})),
        ("args", json!(["--max-model-len", "4096"])),
        // While there is no command, the family decides about arguments.
        ("framework", json!("tgi")),
        ("command", json!(["vllm", "serve"])),
        ("resources", json!({"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"cpu": "8", "memory": "32Gi"}})),
        ("node_selector", json!({"eks.amazonaws.com/instance-family": "p5"})),
        ("capacity_type", json!("on-demand")),
        ("model_path", json!("/models/x")),
        ("startup_timeout_seconds", json!(600)),
        ("drain_seconds", json!(7)),
        ("max_surge", json!(1)),
    ];
    let mut last = region.objects_of("chat").await?.deployments["chat"]["spec"].clone();
    for (key, value) in edits {
        region.set("chat", key, value.clone()).await?;
        // A model path needs a volume claim that nobody made here: the pod waits, but the template is there.
        let what = format!("{key} = {value} to reach the Deployment");
        let changed = region.wait_for(&what, BOUND, |snapshot| {
            let deployment = snapshot.deployments.get("chat").ok_or("no Deployment")?;
            let row_spec = json!({ key: value });
            match key {
                "env" | "args" | "command" | "resources" | "node_selector" | "region_image_uris" | "image" | "port"
                | "gpu_count" | "health_check_path" => partly_matches(&row_spec, key, deployment)?,
                _ => {}
            }
            let spec = deployment["spec"].clone();
            if spec == last { Err("the Deployment is as before".to_owned()) } else { Ok(spec) }
        });
        last = changed.await?;
    }
    let template = &last["template"]["spec"];
    assert_eq!(template["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"], json!(7), "{template}");
    assert!(template["terminationGracePeriodSeconds"].as_i64() > Some(7), "{template}");
    assert_eq!(template["nodeSelector"]["karpenter.sh/capacity-type"], json!("on-demand"));
    assert_eq!(last["strategy"]["rollingUpdate"]["maxSurge"], json!(1), "{}", last["strategy"]);
    assert_eq!(template["containers"][0]["env"].as_array().unwrap().iter().filter(|e| e["name"] == "MORE").count(), 0);
    assert!(template["volumes"].to_string().contains("efs-claim"), "{}", template["volumes"]);
    Ok(())
}

/// The part of `agreement::matches` that one key is about: the others have the spec's own values.
fn partly_matches(spec: &serde_json::Value, key: &str, deployment: &serde_json::Value) -> Result<(), String> {
    let container = model_container(deployment);
    let value = &spec[key];
    let (found, wanted) = match key {
        "image" => (container["image"].clone(), value.clone()),
        "region_image_uris" => (container["image"].clone(), value["us-east-1"].clone()),
        "port" => (container["ports"][0]["containerPort"].clone(), value.clone()),
        "gpu_count" => {
            let count = value.as_i64().filter(|count| *count > 0);
            let wanted = count.map_or(json!(null), |count| json!(count.to_string()));
            (container["resources"]["limits"]["nvidia.com/gpu"].clone(), wanted)
        }
        "health_check_path" => {
            let path = text(&container, "/readinessProbe/httpGet/path").unwrap_or_default();
            (json!(path.ends_with(value.as_str().unwrap_or_default())), json!(true))
        }
        "env" => (json!(variable(&container, "EDIT")), value["EDIT"].clone()),
        "args" => (container["args"][0].clone(), value[0].clone()),
        "node_selector" => {
            let name = "eks.amazonaws.com/instance-family";
            (deployment["spec"]["template"]["spec"]["nodeSelector"][name].clone(), value[name].clone())
        }
        "resources" => (container["resources"]["limits"]["memory"].clone(), value["limits"]["memory"].clone()),
        _ => (container[key].clone(), value.clone()),
    };
    if found == wanted { Ok(()) } else { Err(format!("{key} is {found}, not {wanted}")) }
}

#[tokio::test(flavor = "multi_thread")]
async fn d8_a_take_over_restarts_no_pod_and_writes_nothing_at_rest() -> TestResult {
    let region = Region::start().await?;
    let first = Monitor::leading(&region).await?;
    region.deploy("chat", spec(2, "0")).await?;
    let before = region.settled("chat").await?;
    let mark = region.audit()?.mark()?;
    let second = Monitor::start(&region, MonitorSettings::named("m2")).await?;
    first.terminate(Duration::from_secs(20)).await?;
    region.wait_for_leader("m2").await?;
    second.full_pass().await?;
    let after = region.settled("chat").await?;
    assert_eq!(before.versions(), after.versions());
    assert_eq!(region.monitor_writes_since(mark)?, []);
    // The first act of the new term marks the object, and no template ever holds a leader's mark.
    region.scale("chat", 3).await?;
    let after = region.settled("chat").await?;
    let deployment = &after.deployments["chat"];
    let term = |object| annotation(object, "gco.io/leader-term").and_then(|term| term.parse::<u64>().ok());
    assert!(term(deployment) > term(&before.deployments["chat"]), "{:?}", term(deployment));
    let template = deployment["spec"]["template"]["metadata"].to_string();
    assert!(!template.contains("leader"), "{template}");
    assert!(before.pods.keys().all(|pod| after.pods.contains_key(pod)), "a pod was restarted");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d10_a_model_has_half_an_hour_to_load_before_it_counts_as_failed() -> TestResult {
    let region = Region::start().await?;
    let _monitor = Monitor::leading(&region).await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.agrees("chat").await?;
    let objects = region.objects_of("chat").await?;
    let probe = &model_container(&objects.deployments["chat"])["startupProbe"];
    let budget = number(probe, "/failureThreshold") * number(probe, "/periodSeconds");
    assert!(budget >= 1800, "{probe}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d11_a_scale_in_either_direction_never_leaves_running() -> TestResult {
    let region = Region::start().await?;
    let _monitor = Monitor::leading(&region).await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.settled("chat").await?;
    let history = region.history("chat");
    for replicas in [4, 2, 3] {
        region.scale("chat", replicas).await?;
        region.agrees("chat").await?;
    }
    assert_eq!(history.unroutable(), [], "all looks: {:?}", history.looks());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d14_stop_leaves_no_pod_and_start_brings_the_same_endpoint_back() -> TestResult {
    let region = Region::start().await?;
    let _monitor = Monitor::leading(&region).await?;
    region.deploy("chat", spec(2, "0")).await?;
    region.agrees("chat").await?;
    region.stop("chat").await?;
    let stopped = region.settled("chat").await?;
    assert!(stopped.pods.is_empty());
    assert_eq!(region.row("chat").await?.unwrap().region_status["us-east-1"].state, State::Stopped);
    region.start_endpoint("chat").await?;
    let started = region.settled("chat").await?;
    assert_eq!(started.pods.len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d15_at_rest_the_row_keeps_its_version_so_that_an_edit_never_meets_a_status_write() -> TestResult {
    let region = Region::start().await?;
    let monitor = Monitor::leading(&region).await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.settled("chat").await?;
    let before = region.row("chat").await?.unwrap();
    for _ in 0..5 {
        monitor.full_pass().await?;
    }
    let after = region.row("chat").await?.unwrap();
    assert_eq!(before.item, after.item);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d20_a_monitor_that_is_asked_to_end_hands_over_within_two_seconds() -> TestResult {
    let region = Region::start().await?;
    // The Lease's usual length: without a release the other would wait for it.
    let long = |name| {
        MonitorSettings::named(name)
            .with("LEASE_DURATION_SECONDS", 15)
            .with("LEASE_RENEW_INTERVAL_SECONDS", 5)
            .with("LEASE_RENEW_TIMEOUT_SECONDS", 3)
            .with("LEASE_MARGIN_SECONDS", 2)
            .with("CLAIM_MINIMUM_SECONDS", 2)
    };
    let first = Monitor::leading_with(&region, long("m1")).await?;
    let second = Monitor::start(&region, long("m2")).await?;
    second.answers("/healthz", 200).await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.settled("chat").await?;
    let mark = region.audit()?.mark()?;
    let asked = tokio::time::Instant::now();
    let (ended, led) = tokio::join!(first.terminate(Duration::from_secs(20)), region.wait_for_leader("m2"));
    println!("SIGTERM to the next leader: {:?}; the first had ended after {:?}", asked.elapsed(), ended?);
    led?;
    // By the API server's own clock: the two writes of the Lease, the release and the take-over.
    let written =
        region.requests_since(mark, |event| event.resource == "leases" && event.is_write() && event.code == 200)?;
    let [.., release, take_over] = &written[..] else { panic!("{written:?}") };
    let took = take_over.received_at.duration_since(release.stage_at);
    println!("release to take-over: {} ms", took.as_millis());
    assert!(took.as_millis() < 2000, "{took:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_changes_by_hand_is_put_right_and_what_others_add_is_kept() -> TestResult {
    let region = Region::start().await?;
    let _monitor = Monitor::leading(&region).await?;
    region.deploy("chat", spec(1, "0")).await?;
    region.settled("chat").await?;
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> =
        Api::namespaced(region.client().clone(), region.namespace());
    let by_hand = json!({
        "metadata": {"annotations": {"team.example/note": "kept"}},
        "spec": {"replicas": 3, "template": {"spec": {"containers": [{"name": "inference", "image": "busybox"}]}}},
    });
    deployments.patch("chat", &PatchParams::default(), &Patch::Strategic(by_hand)).await?;
    let objects = region.settled("chat").await?;
    let deployment = &objects.deployments["chat"];
    assert_eq!(annotation(deployment, "team.example/note"), Some("kept"));
    assert_eq!(text(&model_container(deployment), "/image"), Some(IMAGE));
    Ok(())
}
