//! The typed spec of an endpoint, and the one validator that command line and monitor share.

mod autoscaling;
mod check;
mod hash;
mod label;
mod quantity;

use std::collections::BTreeMap;

pub use autoscaling::{AutoscalingEdit, metrics_value};
pub use check::MOST_REPLICAS;

use crate::problem::FieldProblem;
use crate::wire::{Item, Value};

/// `resources` of the model container: quantities by resource name, as Kubernetes writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Requested quantities.
    pub requests: BTreeMap<String, String>,
    /// Limits.
    pub limits: BTreeMap<String, String>,
}

/// A key of a Secret's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretKey {
    /// Name of the Secret, in the endpoints' namespace.
    pub name: String,
    /// Key in its data.
    pub key: String,
}

/// Which accelerator a pod asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accelerator {
    /// `nvidia.com/gpu`
    #[default]
    Nvidia,
    /// `aws.amazon.com/neuron`
    Neuron,
}

/// `capacity_type`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapacityType {
    /// Karpenter's `spot`.
    Spot,
    /// Karpenter's `on-demand`.
    OnDemand,
}

/// `framework`: which model server the image holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framework {
    /// vLLM.
    Vllm,
    /// Text Generation Inference.
    Tgi,
}

/// `autoscaling` of a classic endpoint (contract A.4.1), bounds checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Autoscaling {
    /// Whether an autoscaler owns the replica count.
    pub enabled: bool,
    /// Fewest replicas, at least 1.
    pub min_replicas: u32,
    /// Most replicas, at least `min_replicas`.
    pub max_replicas: u32,
    /// What is measured, in the row's order; never empty.
    pub metrics: Vec<Metric>,
}

/// One thing that an autoscaler keeps near a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// What is measured.
    pub kind: MetricKind,
    /// Target in percent: of what pods request (`cpu`, `memory`), or of what the accelerator has.
    pub target_percent: u32,
}

/// What an autoscaler can measure (contract A.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricKind {
    /// `cpu`: processor time.
    Cpu,
    /// `memory`: main memory.
    Memory,
    /// `gpu`: how busy the accelerators are.
    Gpu,
    /// `gpu_memory`: memory of the accelerators.
    GpuMemory,
}

impl MetricKind {
    /// All of them, in the order of messages.
    pub const ALL: [Self; 4] = [Self::Cpu, Self::Memory, Self::Gpu, Self::GpuMemory];

    /// The word of the row.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Gpu => "gpu",
            Self::GpuMemory => "gpu_memory",
        }
    }

    /// Reads a word of the row.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// Largest target in percent. An accelerator cannot be used more than whole; processor time and memory are measured
    /// against what a pod *requests*, and its limit is above that (by default four times, contract C.12.1).
    #[must_use]
    pub fn largest_target_percent(self) -> u32 {
        match self {
            Self::Cpu | Self::Memory => 1_000,
            Self::Gpu | Self::GpuMemory => 100,
        }
    }

    /// Whether Kubernetes cannot measure it by itself: then all metrics of the endpoint go to KEDA (contract C.13).
    #[must_use]
    pub fn needs_keda(self) -> bool {
        matches!(self, Self::Gpu | Self::GpuMemory)
    }
}

impl Autoscaling {
    /// Fewest replicas when the row does not say (contract A.4.1).
    pub const DEFAULT_MIN_REPLICAS: u32 = 1;
    /// Most replicas when the row does not say (contract A.4.1).
    pub const DEFAULT_MAX_REPLICAS: u32 = 10;
    /// The metric when the row names none (contract A.4.1).
    pub const DEFAULT_METRIC: Metric = Metric { kind: MetricKind::Cpu, target_percent: Self::DEFAULT_TARGET_PERCENT };
    /// Target of a metric that has none (contract A.4.1).
    pub const DEFAULT_TARGET_PERCENT: u32 = 70;

    /// Whether KEDA scales the endpoint, and not Kubernetes' own autoscaler (contract C.13).
    #[must_use]
    pub fn needs_keda(&self) -> bool {
        self.metrics.iter().any(|metric| metric.kind.needs_keda())
    }
}

/// `canary` (contract A.4.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canary {
    /// Image of the canary.
    pub image: String,
    /// Percentage of requests, 1 to 99.
    pub weight: u32,
    /// Replicas of the canary, at least 1.
    pub replicas: u32,
}

/// A checked spec. Every default of the contract is filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Container image.
    pub image: String,
    /// Image by region; the entry of a region wins over `image` there.
    pub region_image_uris: BTreeMap<String, String>,
    /// Port of the model server, 1 to 65535; default 8000.
    pub port: u16,
    /// Static replicas per region, 0 to 1000; default 1.
    pub replicas: u32,
    /// Accelerators per pod, 0 to 64; default 1.
    pub gpu_count: u32,
    /// Instance type hint that the original CLI stores; nothing reads it.
    pub gpu_type: Option<String>,
    /// Path of the health check; default `/health`.
    pub health_check_path: String,
    /// Present: the shared model storage is mounted.
    pub model_path: Option<String>,
    /// Present: the storage is mounted; an `s3://` value is synchronised before the start.
    pub model_source: Option<String>,
    /// Environment of the model container, sorted by name.
    pub env: BTreeMap<String, String>,
    /// Variables of the model container whose values Kubernetes takes from Secrets, sorted by name; none is in `env`, too.
    /// Ours. Nothing of ours reads the values.
    pub env_from_secret: BTreeMap<String, SecretKey>,
    /// Secrets with the registries' credentials, in the endpoints' namespace. Ours.
    pub image_pull_secrets: Vec<String>,
    /// Resource overrides.
    pub resources: Resources,
    /// Replaces the image's entry point.
    pub command: Option<Vec<String>>,
    /// Arguments of the model server.
    pub args: Vec<String>,
    /// Accelerator family; default `nvidia`.
    pub accelerator: Accelerator,
    /// Node labels that the pod needs.
    pub node_selector: BTreeMap<String, String>,
    /// Spot or on-demand capacity.
    pub capacity_type: Option<CapacityType>,
    /// Model server family; absent: told from the image name.
    pub framework: Option<Framework>,
    /// How long a start may take before the pod counts as failed, in seconds, 30 to 21600; default 1800. Ours: the
    /// original has no such key (D-10).
    pub startup_timeout_seconds: u32,
    /// How long a pod that is being replaced goes on serving its open requests, in seconds, 0 to 3600; default 60. Ours
    /// (D-36).
    pub drain_seconds: u32,
    /// Pods above the replica count during a rollout, 0 to 100; default 0: needs no spare accelerator (D-36). Ours.
    pub max_surge: u32,
    /// Autoscaling block.
    pub autoscaling: Option<Autoscaling>,
    /// Canary block.
    pub canary: Option<Canary>,
    /// Mooncake block, unread so far.
    pub mooncake: Option<Item>,
}

/// A spec that passed, with what has no effect in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedSpec {
    /// The typed spec.
    pub spec: Spec,
    /// Fields that are kept but change nothing: unknown keys, unknown capacity types …
    pub without_effect: Vec<FieldProblem>,
}

impl Accelerator {
    /// Resource names of all accelerators.
    pub const RESOURCES: [&'static str; 2] = ["nvidia.com/gpu", "aws.amazon.com/neuron"];

    /// The resource that a pod asks for.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Self::Nvidia => Self::RESOURCES[0],
            Self::Neuron => Self::RESOURCES[1],
        }
    }
}

impl Spec {
    /// Checks the `spec` attribute of a row. Paths in problems start with `spec`.
    ///
    /// # Errors
    /// Every bad field at once, sorted by path.
    pub fn check(value: &Value) -> Result<CheckedSpec, Vec<FieldProblem>> {
        let check::Findings { spec, problems, without_effect } = check::inspect(value);
        if problems.is_empty() { Ok(CheckedSpec { spec, without_effect }) } else { Err(problems) }
    }

    /// Fields of a spec that change nothing, sorted by path, whether the spec is otherwise right or not.
    #[must_use]
    pub fn fields_without_effect(value: &Value) -> Vec<FieldProblem> {
        check::inspect(value).without_effect
    }

    /// What the canary runs: this spec with the canary's image and count, everywhere the same image, without autoscaler
    /// (contract C.11). Its template hash is the one that the endpoint's own pods have after a promotion.
    #[must_use]
    pub fn of_canary(&self) -> Option<Self> {
        let Canary { image, weight: _, replicas } = self.canary.as_ref()?;
        Some(Self {
            image: image.clone(),
            replicas: *replicas,
            region_image_uris: BTreeMap::new(),
            autoscaling: None,
            canary: None,
            ..self.clone()
        })
    }

    /// The autoscaling block when it is in force.
    #[must_use]
    pub fn autoscaled(&self) -> Option<&Autoscaling> {
        self.autoscaling.as_ref().filter(|autoscaling| autoscaling.enabled)
    }

    /// How many replicas the endpoint has when it starts from none: the static count, within the autoscaler's bounds where
    /// there is one. After that, an autoscaled count is the autoscaler's alone.
    #[must_use]
    pub fn first_replicas(&self) -> u32 {
        self.autoscaled().map_or(self.replicas, |bounds| self.replicas.clamp(bounds.min_replicas, bounds.max_replicas))
    }

    /// The image that runs in a region: the region's own entry, else the common one.
    #[must_use]
    pub fn image_for(&self, region: &str) -> &str {
        self.region_image_uris.get(region).unwrap_or(&self.image)
    }
}

/// Whether a spec asks for Mooncake's roles. An empty block asks for nothing.
pub(crate) fn is_mooncake(spec: &Item) -> bool {
    spec.get("mooncake").and_then(Value::as_map).is_some_and(|block| !block.is_empty())
}
