//! The pod template of a model server (the wire contract, C.12.1).

use std::collections::BTreeMap;

use gco_store::spec::{Accelerator, CapacityType, Framework, Spec};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource, HTTPGetAction, Lifecycle,
    LifecycleHandler, LocalObjectReference, PersistentVolumeClaimVolumeSource, PodSecurityContext, PodSpec,
    PodTemplateSpec, Probe, SeccompProfile, SecretKeySelector, SecurityContext, SleepAction, Toleration,
    TopologySpreadConstraint, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{PORT_NAME, RenderInput, app_selector, resources, signed};
use crate::identity;
use crate::object::MODEL_CONTAINER;

/// Service account of every model pod.
pub(super) const SERVICE_ACCOUNT: &str = "gco-service-account";
/// Claim of the shared model storage.
pub(super) const MODEL_CLAIM: &str = "efs-claim";
/// Volume of the shared model storage.
pub(super) const MODEL_VOLUME: &str = "model-storage";
/// Where the shared model storage is mounted.
pub(super) const MODEL_DIRECTORY: &str = "/models";
/// Volume for `/dev/shm`.
const SHARED_MEMORY_VOLUME: &str = "shared-memory";
/// Image that copies a model from S3 (contract C.12.1: tag and digest are part of the wire).
pub(super) const SYNC_IMAGE: &str =
    "public.ecr.aws/aws-cli/aws-cli:2.36.44@sha256:e8467f2c319f9bc9a1471808a69949a76915e9c95eaf4a09ece9f9e85fd32747";

/// Seconds between two start-up probes: a model that is ready serves at most this much later.
const STARTUP_PERIOD_SECONDS: u32 = 5;
/// Seconds between two liveness probes: 15 × 5 failures = a hung server is restarted after 75 s, as in the original.
const LIVENESS_PERIOD_SECONDS: i32 = 15;
/// Failures of the liveness probe that restart the container.
const LIVENESS_FAILURES: i32 = 5;
/// Seconds between two readiness probes: 5 × 3 failures = no requests after 15 s.
const READINESS_PERIOD_SECONDS: i32 = 5;
/// Failures of the readiness probe that take a pod out of the Service.
const READINESS_FAILURES: i32 = 3;
/// Time limit of one probe. Mended (D-10): the server's default is 1 s, which a busy model server misses.
const PROBE_TIMEOUT_SECONDS: i32 = 5;

/// Longest wait between "leaves the Service" and "is told to stop": routers need a few seconds to hear of the former.
const LONGEST_LEAVE_SECONDS: u32 = 10;
/// Seconds from the end of the drain to SIGKILL, for the model server to exit by itself.
const EXIT_SECONDS: u32 = 5;

/// The template of the Deployment `object`; `annotations` are those of the metadata that belong on pods too: whose they are
/// and from which inputs. Never a leader's mark: it would restart every pod at each change of leader (D-8).
pub(super) fn template(
    input: &RenderInput<'_>,
    object: &str,
    annotations: &BTreeMap<String, String>,
) -> PodTemplateSpec {
    let RenderInput { name, namespace: _, region, cluster_name: _, identity: _, spec } = input;
    let image = spec.image_for(region);
    let storage = spec.model_path.is_some() || spec.model_source.is_some();
    let node_selector = node_selector(spec);
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(identity::labels(object)),
            annotations: Some(annotations.clone()),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            image_pull_secrets: some_list(
                spec.image_pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() }).collect(),
            ),
            service_account_name: Some(SERVICE_ACCOUNT.to_owned()),
            automount_service_account_token: Some(false),
            security_context: Some(PodSecurityContext {
                seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
                ..PodSecurityContext::default()
            }),
            termination_grace_period_seconds: Some(grace_seconds(spec)),
            init_containers: model_sync(name, spec).map(|container| vec![container]),
            containers: vec![model_server(name, image, spec)],
            volumes: some_list(volumes(spec, storage)),
            node_selector: if node_selector.is_empty() { None } else { Some(node_selector) },
            tolerations: Some(vec![toleration(spec.accelerator)]),
            topology_spread_constraints: Some(spread(object)),
            ..PodSpec::default()
        }),
    }
}

fn model_server(name: &str, image: &str, spec: &Spec) -> Container {
    let framework = framework(spec, image);
    let args = args(name, spec, framework);
    let health = &spec.health_check_path;
    // The contract's rule, for any framework: with a root path the server expects its health check below it.
    let path = if has_root_path(&args) { format!("/inference/{name}{health}") } else { health.clone() };
    // The start-up probe of TGI asks the bare path (contract C.12.1), whatever the arguments say.
    let startup_path = if framework == Some(Framework::Tgi) { health.clone() } else { path.clone() };
    Container {
        name: MODEL_CONTAINER.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: Some(pull_policy(image).to_owned()),
        command: command(spec).cloned(),
        args: some_list(args),
        env: Some(environment(spec)),
        ports: Some(vec![ContainerPort {
            name: Some(PORT_NAME.to_owned()),
            container_port: i32::from(spec.port),
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        resources: Some(resources::of(spec)),
        // Mended (D-10): a start-up probe for every framework with the endpoint's own budget; the original kills any other
        // model that loads longer than about three minutes, in a loop.
        startup_probe: Some(probe(
            startup_path,
            spec,
            signed(STARTUP_PERIOD_SECONDS),
            signed(spec.startup_timeout_seconds.div_ceil(STARTUP_PERIOD_SECONDS)),
        )),
        // No initial delay: neither begins before the start-up probe has succeeded once.
        liveness_probe: Some(probe(path.clone(), spec, LIVENESS_PERIOD_SECONDS, LIVENESS_FAILURES)),
        readiness_probe: Some(probe(path, spec, READINESS_PERIOD_SECONDS, READINESS_FAILURES)),
        lifecycle: leave(spec),
        security_context: Some(confined()),
        volume_mounts: some_list(mounts(spec)),
        ..Container::default()
    }
}

/// The init container that copies the model from S3 into the shared storage.
fn model_sync(name: &str, spec: &Spec) -> Option<Container> {
    let source = spec.model_source.as_ref().filter(|source| source.starts_with("s3://"))?;
    let target = format!("{MODEL_DIRECTORY}/{name}");
    Some(Container {
        name: "model-sync".to_owned(),
        image: Some(SYNC_IMAGE.to_owned()),
        image_pull_policy: Some(pull_policy(SYNC_IMAGE).to_owned()),
        command: Some(vec!["aws".to_owned()]),
        args: Some(["s3", "sync", source.as_str(), target.as_str(), "--quiet"].map(str::to_owned).to_vec()),
        resources: Some(resources::fixed(&[("cpu", "1"), ("memory", "2Gi")], &[("cpu", "4"), ("memory", "8Gi")])),
        security_context: Some(confined()),
        volume_mounts: Some(vec![mount(MODEL_VOLUME, MODEL_DIRECTORY)]),
        ..Container::default()
    })
}

/// Told by the spec, else by the image's name (contract C.12.1).
pub(super) fn framework(spec: &Spec, image: &str) -> Option<Framework> {
    let image = image.to_lowercase();
    spec.framework.or_else(|| {
        if image.contains("vllm") {
            Some(Framework::Vllm)
        } else if image.contains("text-generation-inference") || image.contains("/tgi") {
            Some(Framework::Tgi)
        } else {
            None
        }
    })
}

/// An empty command is none: the server drops it, and the image's entry point runs.
fn command(spec: &Spec) -> Option<&Vec<String>> {
    spec.command.as_ref().filter(|command| !command.is_empty())
}

fn args(name: &str, spec: &Spec, framework: Option<Framework>) -> Vec<String> {
    let mut args = spec.args.clone();
    if command(spec).is_none() && framework == Some(Framework::Vllm) && !has_root_path(&args) {
        args.extend(["--root-path".to_owned(), format!("/inference/{name}")]);
    }
    args
}

/// Mended: `--root-path=…` counts too. The original looks for the bare word only and would add a second, winning one.
fn has_root_path(args: &[String]) -> bool {
    args.iter().any(|argument| argument == "--root-path" || argument.starts_with("--root-path="))
}

/// `PYTHONHASHSEED=0` first (block hashes of several pods must agree), the spec's own after it, sorted by name; the spec's
/// value of `PYTHONHASHSEED` wins, in the same place.
fn environment(spec: &Spec) -> Vec<EnvVar> {
    const HASH_SEED: &str = "PYTHONHASHSEED";
    let variable = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        // An empty value is the default, which the server leaves out.
        value: (!value.is_empty()).then(|| value.to_owned()),
        value_from: None,
    };
    let seed = (!spec.env_from_secret.contains_key(HASH_SEED))
        .then(|| variable(HASH_SEED, spec.env.get(HASH_SEED).map_or("0", String::as_str)));
    let others = spec.env.iter().filter(|(name, _)| *name != HASH_SEED);
    // By reference: the value goes from the Secret to the container without passing us. A missing Secret or key keeps the
    // container from starting, and the kubelet's words name it.
    let from_secrets = spec.env_from_secret.iter().map(|(name, secret)| EnvVar {
        name: name.clone(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: secret.name.clone(),
                key: secret.key.clone(),
                optional: None,
            }),
            ..EnvVarSource::default()
        }),
    });
    seed.into_iter().chain(others.map(|(name, value)| variable(name, value))).chain(from_secrets).collect()
}

fn probe(path: String, spec: &Spec, period_seconds: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path),
            port: IntOrString::Int(i32::from(spec.port)),
            scheme: Some("HTTP".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        timeout_seconds: Some(PROBE_TIMEOUT_SECONDS),
        failure_threshold: Some(failures),
        success_threshold: Some(1),
        ..Probe::default()
    }
}

/// Seconds that a terminating pod goes on accepting requests while routers hear that it leaves.
fn leave_seconds(spec: &Spec) -> u32 {
    spec.drain_seconds.min(LONGEST_LEAVE_SECONDS)
}

/// Mended (D-36): without this wait SIGTERM reaches the server while routers still send to it. The native `sleep` action
/// needs no shell in the image. Nothing to wait for means no hook: older servers refuse a sleep of zero seconds.
fn leave(spec: &Spec) -> Option<Lifecycle> {
    let seconds = leave_seconds(spec);
    (seconds > 0).then(|| Lifecycle {
        pre_stop: Some(LifecycleHandler {
            sleep: Some(SleepAction { seconds: i64::from(seconds) }),
            ..LifecycleHandler::default()
        }),
        ..Lifecycle::default()
    })
}

/// The whole drain follows SIGTERM; the wait before it counts against the grace period too, hence the sum. Defaults:
/// 60 s drain + 10 s wait + 5 s exit = 75 s.
fn grace_seconds(spec: &Spec) -> i64 {
    i64::from(spec.drain_seconds) + i64::from(leave_seconds(spec)) + i64::from(EXIT_SECONDS)
}

/// Mended (D-47). Not `runAsNonRoot`: the public images of model servers run as root, and the kubelet would refuse to start
/// them.
fn confined() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { add: None, drop: Some(vec!["ALL".to_owned()]) }),
        ..SecurityContext::default()
    }
}

/// Whether the pod needs more than the 64 MiB of `/dev/shm` that a container runtime gives (D-35): several accelerators of
/// one pod talk through it.
fn needs_shared_memory(spec: &Spec) -> bool {
    spec.gpu_count > 1
}

fn volumes(spec: &Spec, storage: bool) -> Vec<Volume> {
    let mut volumes = Vec::new();
    if storage {
        volumes.push(Volume {
            name: MODEL_VOLUME.to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: MODEL_CLAIM.to_owned(),
                read_only: None,
            }),
            ..Volume::default()
        });
    }
    if needs_shared_memory(spec) {
        volumes.push(Volume {
            name: SHARED_MEMORY_VOLUME.to_owned(),
            empty_dir: Some(EmptyDirVolumeSource {
                medium: Some("Memory".to_owned()),
                // 1 GiB for each accelerator. What is written there counts against the container's memory limit: eight
                // accelerators may use 8Gi of the default 16Gi.
                size_limit: Some(Quantity(format!("{}Gi", spec.gpu_count))),
            }),
            ..Volume::default()
        });
    }
    volumes
}

fn mounts(spec: &Spec) -> Vec<VolumeMount> {
    let mut mounts = Vec::new();
    if spec.model_path.is_some() || spec.model_source.is_some() {
        mounts.push(mount(MODEL_VOLUME, MODEL_DIRECTORY));
    }
    if needs_shared_memory(spec) {
        mounts.push(mount(SHARED_MEMORY_VOLUME, "/dev/shm"));
    }
    mounts
}

fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount { name: volume.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

/// Exactly one, also without accelerators (contract C.12.1).
fn toleration(accelerator: Accelerator) -> Toleration {
    Toleration {
        key: Some(accelerator.resource().to_owned()),
        operator: Some("Equal".to_owned()),
        value: Some("true".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        toleration_seconds: None,
    }
}

fn node_selector(spec: &Spec) -> BTreeMap<String, String> {
    let mut selector = spec.node_selector.clone();
    if selector.is_empty() && spec.gpu_count > 0 {
        let (label, value) = match spec.accelerator {
            Accelerator::Nvidia => ("eks.amazonaws.com/instance-gpu-manufacturer", "nvidia"),
            Accelerator::Neuron => ("accelerator", "neuron"),
        };
        selector.insert(label.to_owned(), value.to_owned());
    }
    if let Some(capacity) = spec.capacity_type {
        let value = match capacity {
            CapacityType::Spot => "spot",
            CapacityType::OnDemand => "on-demand",
        };
        selector.insert("karpenter.sh/capacity-type".to_owned(), value.to_owned());
    }
    selector
}

/// Mended (D-36): replicas spread over zones and nodes as far as capacity allows, so that one failure does not take all.
/// Never a reason not to schedule: accelerators are scarce.
fn spread(object: &str) -> Vec<TopologySpreadConstraint> {
    let constraint = |topology_key: &str| TopologySpreadConstraint {
        topology_key: topology_key.to_owned(),
        max_skew: 1,
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(LabelSelector { match_labels: Some(app_selector(object)), match_expressions: None }),
        ..TopologySpreadConstraint::default()
    };
    vec![constraint("topology.kubernetes.io/zone"), constraint("kubernetes.io/hostname")]
}

/// What the server would default for this image. Rendered, because its default outlives the tag that it was made for: an
/// object that moved from `latest` to a fixed tag would go on pulling for ever.
pub(super) fn pull_policy(image: &str) -> &'static str {
    let (reference, digest) = match image.split_once('@') {
        Some((reference, digest)) => (reference, Some(digest)),
        None => (image, None),
    };
    // A colon before the last slash belongs to the registry's port.
    let last = reference.rsplit('/').next().unwrap_or(reference);
    match (last.split_once(':').map(|(_, tag)| tag), digest) {
        (Some("latest"), _) | (None, None) => "Always",
        _ => "IfNotPresent",
    }
}

/// Absent rather than empty: the server drops empty lists, and the comparison would look for them.
fn some_list<T>(list: Vec<T>) -> Option<Vec<T>> {
    if list.is_empty() { None } else { Some(list) }
}

#[cfg(test)]
mod tests {
    use super::pull_policy;

    #[test]
    fn the_pull_policy_is_what_the_server_would_choose() {
        for (image, policy) in [
            ("vllm/vllm-openai:v0.28.0", "IfNotPresent"),
            ("vllm/vllm-openai:latest", "Always"),
            ("vllm/vllm-openai", "Always"),
            ("registry.local:5000/vllm", "Always"),
            ("registry.local:5000/vllm:v1", "IfNotPresent"),
            ("vllm@sha256:00", "IfNotPresent"),
            ("vllm:latest@sha256:00", "Always"),
            ("vllm:v1@sha256:00", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }
}
