//! Rendering beyond the reference files: what each field of a spec does.

use gco_monitor::identity::{ANNOTATION_LEADER_EPOCH, ANNOTATION_LEADER_TERM};
use gco_monitor::object::Kind;
use gco_monitor::render::{RenderInput, classic};
use gco_store::spec::{Accelerator, CapacityType, Framework, Spec};
use serde_json::{Value, json};

use super::support::{CLUSTER, NAMESPACE, REGION, identity, rendered, small_spec, spec_of, texts};

const NAME: &str = "chat";

fn deployment(spec: &Spec) -> Value {
    let set = rendered(NAME, &identity('1'), spec);
    set.objects.into_iter().find(|object| object.key.kind == Kind::Deployment).unwrap().body
}

fn container(spec: &Spec) -> Value {
    deployment(spec).pointer("/spec/template/spec/containers/0").unwrap().clone()
}

fn spec(change: impl FnOnce(&mut Spec)) -> Spec {
    let mut spec = small_spec();
    change(&mut spec);
    spec
}

/// A name, and a spec that differs in one field from the small one.
fn edits() -> Vec<(&'static str, Spec)> {
    vec![
        ("image", spec(|spec| spec.image = "vllm/vllm-openai:v0.29.0".to_owned())),
        ("region_image_uris", spec(|spec| spec.region_image_uris = texts(&[(REGION, "mirror.example/vllm:v0.28.0")]))),
        ("port", spec(|spec| spec.port = 9000)),
        ("gpu_count", spec(|spec| spec.gpu_count = 2)),
        ("health_check_path", spec(|spec| spec.health_check_path = "/v1/health".to_owned())),
        ("model_path", spec(|spec| spec.model_path = Some("/mnt".to_owned()))),
        ("model_source", spec(|spec| spec.model_source = Some("s3://bucket/model".to_owned()))),
        ("env", spec(|spec| spec.env = texts(&[("A", "1")]))),
        ("resources.requests", spec(|spec| spec.resources.requests = texts(&[("cpu", "2")]))),
        ("resources.limits", spec(|spec| spec.resources.limits = texts(&[("memory", "64Gi")]))),
        ("command", spec(|spec| spec.command = Some(vec!["serve".to_owned()]))),
        ("args", spec(|spec| spec.args = vec!["--x".to_owned()])),
        ("accelerator", spec(|spec| spec.accelerator = Accelerator::Neuron)),
        ("node_selector", spec(|spec| spec.node_selector = texts(&[("zone", "a")]))),
        ("capacity_type", spec(|spec| spec.capacity_type = Some(CapacityType::Spot))),
        ("framework", spec(|spec| spec.framework = Some(Framework::Tgi))),
        ("startup_timeout_seconds", spec(|spec| spec.startup_timeout_seconds = 3600)),
        ("drain_seconds", spec(|spec| spec.drain_seconds = 120)),
    ]
}

#[test]
fn every_field_of_a_spec_reaches_the_pod_template_and_its_hash() {
    // D-7: the original applies two of them to an existing workload.
    let before = deployment(&small_spec());
    let template = |body: &Value| body.pointer("/spec/template/spec").unwrap().clone();
    let hash = |body: &Value| body.pointer("/metadata/annotations/gco.io~1input-hash").unwrap().clone();
    for (field, spec) in edits() {
        let after = deployment(&spec);
        assert_ne!(template(&after), template(&before), "{field} changes nothing in the template");
        assert_ne!(hash(&after), hash(&before), "{field} is not in the hash");
    }
}

#[test]
fn counts_change_the_deployment_and_not_its_template() {
    let before = deployment(&small_spec());
    for changed in [spec(|spec| spec.replicas = 7), spec(|spec| spec.max_surge = 2)] {
        let after = deployment(&changed);
        assert_ne!(after["spec"], before["spec"]);
        assert_eq!(after["spec"]["template"], before["spec"]["template"]);
    }
}

#[test]
fn the_marks_of_a_leader_are_in_nothing_that_is_rendered() {
    // D-8.
    let set = rendered(NAME, &identity('1'), &small_spec());
    for object in &set.objects {
        let text = object.body.to_string();
        assert!(!text.contains(ANNOTATION_LEADER_EPOCH) && !text.contains(ANNOTATION_LEADER_TERM), "{}", object.key);
    }
}

#[test]
fn a_model_of_any_framework_may_load_as_long_as_its_budget_says() {
    // D-10.
    for (framework, image) in
        [(None, "vllm/vllm-openai:v1"), (Some(Framework::Tgi), "tgi:v1"), (None, "nvcr.io/nvidia/tritonserver:v1")]
    {
        for (budget, failures) in [(1800, 360), (31, 7), (30, 6), (21_600, 4320)] {
            let container = container(&spec(|spec| {
                spec.framework = framework;
                spec.image = image.to_owned();
                spec.startup_timeout_seconds = budget;
            }));
            assert_eq!(container["startupProbe"]["failureThreshold"], json!(failures));
            assert!(failures * 5 >= budget, "the probe gives the whole budget");
            assert!(container["livenessProbe"].get("initialDelaySeconds").is_none());
            for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
                assert_eq!(container[probe]["timeoutSeconds"], json!(5), "{probe}");
            }
        }
    }
    let slow = deployment(&spec(|spec| spec.startup_timeout_seconds = 7200));
    assert_eq!(slow["spec"]["progressDeadlineSeconds"], json!(7500), "the deadline exceeds the budget");
}

#[test]
fn several_accelerators_of_a_pod_get_shared_memory_and_one_does_not() {
    // D-35.
    for (gpus, size) in [(0, None), (1, None), (2, Some("2Gi")), (8, Some("8Gi"))] {
        let body = deployment(&spec(|spec| spec.gpu_count = gpus));
        let volumes = body.pointer("/spec/template/spec/volumes");
        let found = volumes.and_then(|list| list.as_array()?.iter().find(|one| one["name"] == "shared-memory"));
        assert_eq!(found.map(|volume| volume["emptyDir"]["sizeLimit"].as_str().unwrap()), size, "{gpus}");
        let mount = json!({"name": "shared-memory", "mountPath": "/dev/shm"});
        let mounts = body.pointer("/spec/template/spec/containers/0/volumeMounts").and_then(Value::as_array);
        assert_eq!(mounts.is_some_and(|mounts| mounts.contains(&mount)), size.is_some(), "{gpus}");
    }
}

#[test]
fn a_rollout_needs_no_spare_accelerator_unless_the_spec_grants_one() {
    // D-36.
    for (replicas, surge, unavailable) in [
        (0, 0, json!(1)),
        (1, 0, json!(1)),
        (3, 0, json!(1)),
        (4, 0, json!("25%")),
        (100, 0, json!("25%")),
        (1, 1, json!(0)),
        (8, 3, json!(0)),
    ] {
        let body = deployment(&spec(|spec| {
            spec.replicas = replicas;
            spec.max_surge = surge;
        }));
        let rolling = &body["spec"]["strategy"]["rollingUpdate"];
        assert_eq!(rolling["maxSurge"], json!(surge));
        assert_eq!(rolling["maxUnavailable"], unavailable, "{replicas} {surge}");
        assert!(surge > 0 || unavailable != json!(0), "both zero is refused by the server");
    }
}

#[test]
fn a_pod_drains_after_it_left_the_service_and_before_it_is_killed() {
    // D-36.
    for (drain, sleep, grace) in [(60, Some(10), 75), (3600, Some(10), 3615), (4, Some(4), 13), (0, None, 5)] {
        let body = deployment(&spec(|spec| spec.drain_seconds = drain));
        let pod = body.pointer("/spec/template/spec").unwrap();
        let found = pod.pointer("/containers/0/lifecycle/preStop/sleep/seconds").and_then(Value::as_i64);
        assert_eq!(found, sleep, "{drain}");
        assert_eq!(pod["terminationGracePeriodSeconds"], json!(grace), "{drain}");
    }
}

#[test]
fn no_container_can_gain_rights() {
    // D-47.
    let body = deployment(&spec(|spec| spec.model_source = Some("s3://bucket/model".to_owned())));
    let pod = body.pointer("/spec/template/spec").unwrap();
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], json!("RuntimeDefault"));
    assert_eq!(pod["automountServiceAccountToken"], json!(false));
    for list in ["initContainers", "containers"] {
        for container in pod[list].as_array().unwrap() {
            assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], json!(false));
            assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
        }
    }
}

#[test]
fn rendering_twice_or_for_another_endpoint_sees_the_same_untouched_spec() {
    // D-53: the original writes accelerators and node labels into the row's own maps.
    let spec = spec_of(&super::support::row("classic-full"));
    let before = spec.clone();
    let first = rendered(NAME, &identity('1'), &spec);
    let _ = rendered("another", &identity('2'), &spec);
    assert_eq!(spec, before);
    assert_eq!(rendered(NAME, &identity('1'), &spec), first);
}

#[test]
fn the_entry_of_the_region_wins_over_the_image_there_and_nowhere_else() {
    let spec = spec(|spec| spec.region_image_uris = texts(&[("eu-west-1", "mirror.eu/vllm:v1")]));
    let image = |region: &str| {
        let identity = identity('1');
        let set = classic(&RenderInput {
            name: NAME,
            namespace: NAMESPACE,
            region,
            cluster_name: CLUSTER,
            identity: &identity,
            spec: &spec,
        });
        set.objects[0].body.pointer("/spec/template/spec/containers/0/image").unwrap().as_str().unwrap().to_owned()
    };
    assert_eq!(image("eu-west-1"), "mirror.eu/vllm:v1");
    assert_eq!(image("us-east-1"), "vllm/vllm-openai:v0.28.0");
}

#[test]
fn only_vllm_without_a_command_gets_a_root_path_and_only_once() {
    let root = ["--root-path", "/inference/chat"];
    for (change, args, path) in [
        (spec(|_| {}), Some(json!(root)), "/inference/chat/health"),
        (spec(|spec| spec.image = "mirror/VLLM:1".to_owned()), Some(json!(root)), "/inference/chat/health"),
        (spec(|spec| spec.command = Some(vec!["serve".to_owned()])), None, "/health"),
        (spec(|spec| spec.command = Some(Vec::new())), Some(json!(root)), "/inference/chat/health"),
        (spec(|spec| spec.framework = Some(Framework::Tgi)), None, "/health"),
        (spec(|spec| spec.image = "tritonserver:1".to_owned()), None, "/health"),
        (
            spec(|spec| spec.args = vec!["--root-path".to_owned(), "/mine".to_owned()]),
            Some(json!(["--root-path", "/mine"])),
            "/inference/chat/health",
        ),
        (
            spec(|spec| spec.args = vec!["--root-path=/mine".to_owned()]),
            Some(json!(["--root-path=/mine"])),
            "/inference/chat/health",
        ),
    ] {
        let container = container(&change);
        assert_eq!(container.get("args"), args.as_ref());
        assert_eq!(container["readinessProbe"]["httpGet"]["path"], json!(path));
    }
    // The start-up probe of TGI asks the bare path, also below a root path.
    let tgi = container(&spec(|spec| {
        spec.framework = Some(Framework::Tgi);
        spec.args = vec!["--root-path".to_owned(), "/inference/chat".to_owned()];
    }));
    assert_eq!(tgi["startupProbe"]["httpGet"]["path"], json!("/health"));
    assert_eq!(tgi["livenessProbe"]["httpGet"]["path"], json!("/inference/chat/health"));
}

#[test]
fn the_hash_seed_comes_first_and_the_spec_may_replace_it() {
    let env = |pairs: &[(&str, &str)]| container(&spec(|spec| spec.env = texts(pairs)))["env"].clone();
    assert_eq!(env(&[]), json!([{"name": "PYTHONHASHSEED", "value": "0"}]));
    assert_eq!(
        env(&[("Z", "1"), ("A", ""), ("PYTHONHASHSEED", "random")]),
        json!([{"name": "PYTHONHASHSEED", "value": "random"}, {"name": "A"}, {"name": "Z", "value": "1"}])
    );
}

#[test]
fn a_default_resource_gives_way_to_one_of_the_spec() {
    let resources = |requests: &[(&str, &str)], limits: &[(&str, &str)]| {
        container(&spec(|spec| {
            spec.gpu_count = 0;
            spec.resources.requests = texts(requests);
            spec.resources.limits = texts(limits);
        }))["resources"]
            .clone()
    };
    assert_eq!(
        resources(&[("memory", "32Gi")], &[]),
        json!({"requests": {"cpu": "1", "memory": "32Gi"}, "limits": {"cpu": "4", "memory": "32Gi"}})
    );
    assert_eq!(
        resources(&[], &[("memory", "2Gi"), ("cpu", "500m")]),
        json!({"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"cpu": "500m", "memory": "2Gi"}})
    );
    assert_eq!(
        resources(&[("ephemeral-storage", "1Gi")], &[("memory", "64Gi")]),
        json!({"requests": {"cpu": "1", "memory": "4Gi", "ephemeral-storage": "1Gi"},
               "limits": {"cpu": "4", "memory": "64Gi"}})
    );
}

#[test]
fn node_labels_of_the_spec_replace_the_accelerators_and_capacity_adds_to_either() {
    let selector = |change: fn(&mut Spec)| {
        deployment(&spec(change)).pointer("/spec/template/spec/nodeSelector").cloned().unwrap_or_default()
    };
    assert_eq!(selector(|_| {}), json!({"eks.amazonaws.com/instance-gpu-manufacturer": "nvidia"}));
    assert_eq!(selector(|spec| spec.accelerator = Accelerator::Neuron), json!({"accelerator": "neuron"}));
    assert_eq!(selector(|spec| spec.gpu_count = 0), Value::Null);
    assert_eq!(
        selector(|spec| spec.capacity_type = Some(CapacityType::Spot)),
        json!({"eks.amazonaws.com/instance-gpu-manufacturer": "nvidia", "karpenter.sh/capacity-type": "spot"})
    );
    assert_eq!(
        selector(|spec| {
            spec.node_selector = texts(&[("zone", "a")]);
            spec.capacity_type = Some(CapacityType::OnDemand);
        }),
        json!({"zone": "a", "karpenter.sh/capacity-type": "on-demand"})
    );
}

#[test]
fn the_service_reaches_pods_by_the_name_of_their_port_so_that_a_new_port_number_changes_no_service() {
    let service = |port: u16| {
        let set = rendered(NAME, &identity('1'), &spec(|spec| spec.port = port));
        set.objects.into_iter().find(|object| object.key.kind == Kind::Service).unwrap()
    };
    assert_eq!(service(8000), service(9000));
    assert!(service(8000).input_hash.is_none());
}
