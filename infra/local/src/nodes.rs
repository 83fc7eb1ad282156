//! The nodes of a region: objects with the devices, labels and taints that nodes of the node pools
//! have, so that the real scheduler decides about pods as it would there.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

use gco_runtime::clock::{Clock as _, SystemClock};

use crate::kubelet::api_time;

/// Where kubelets keep their Leases.
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// How often the Leases are renewed and for how long they hold, as kubelets do it.
const LEASE_RENEWAL: Duration = Duration::from_secs(10);
const LEASE_SECONDS: i32 = 40;

/// Pods that fit on one node.
const PODS_PER_NODE: usize = 250;

/// Which devices a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeKind {
    /// Eight GPUs.
    Gpu,
    /// Eight GPUs and 32 EFA devices.
    Efa,
    /// Sixteen neuron devices.
    Neuron,
    /// Neither.
    Cpu,
}

/// How many nodes of each kind a region has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// Of [`NodeKind::Gpu`].
    pub gpu: usize,
    /// Of [`NodeKind::Efa`].
    pub efa: usize,
    /// Of [`NodeKind::Neuron`].
    pub neuron: usize,
    /// Of [`NodeKind::Cpu`].
    pub cpu: usize,
}

impl Default for Fleet {
    /// Two nodes with GPUs (one on demand, one spot) and one of every other kind.
    fn default() -> Self {
        Self { gpu: 2, efa: 1, neuron: 1, cpu: 1 }
    }
}

/// The nodes of a region, kept alive while this value lives.
#[derive(Debug)]
pub struct Nodes {
    addresses: BTreeMap<String, String>,
    _heartbeat: DropGuard,
}

impl Nodes {
    /// Makes the nodes, or brings those that are there into shape, and keeps their Leases renewed.
    ///
    /// # Errors
    ///
    /// When the API server refuses one of them.
    pub async fn start(client: Client, region: &str, region_number: usize, fleet: Fleet) -> anyhow::Result<Self> {
        let plans = plans(region, region_number, fleet);
        for plan in &plans {
            ensure(&client, plan).await.with_context(|| format!("making node {}", plan.name))?;
        }
        let addresses = plans.iter().map(|plan| (plan.name.clone(), plan.address.clone())).collect();
        let stop = CancellationToken::new();
        tokio::spawn(keep_alive(client, plans, stop.clone()));
        Ok(Self { addresses, _heartbeat: stop.drop_guard() })
    }

    /// The names of the nodes and their addresses.
    #[must_use]
    pub fn addresses(&self) -> &BTreeMap<String, String> {
        &self.addresses
    }
}

#[derive(Clone, Debug, PartialEq)]
struct NodePlan {
    name: String,
    address: String,
    labels: BTreeMap<String, String>,
    taints: Vec<(&'static str, &'static str)>,
    resources: BTreeMap<String, String>,
}

fn plans(region: &str, region_number: usize, fleet: Fleet) -> Vec<NodePlan> {
    let kinds = [
        (NodeKind::Gpu, fleet.gpu),
        (NodeKind::Efa, fleet.efa),
        (NodeKind::Neuron, fleet.neuron),
        (NodeKind::Cpu, fleet.cpu),
    ];
    let all = kinds.into_iter().flat_map(|(kind, count)| (0..count).map(move |number| (kind, number)));
    all.enumerate().map(|(position, (kind, number))| plan(region, region_number, kind, number, position)).collect()
}

fn plan(region: &str, region_number: usize, kind: NodeKind, number: usize, position: usize) -> NodePlan {
    let zone = format!("{region}{}", ["a", "b", "c"][number % 3]);
    let address = format!("10.{region_number}.{}.{}", position / 250, position % 250 + 1);
    let name = format!("ip-{}.{region}.compute.internal", address.replace('.', "-"));
    let (family, instance, cpu, memory) = match kind {
        NodeKind::Gpu | NodeKind::Efa => ("p5", "p5.48xlarge", "192", "2Ti"),
        NodeKind::Neuron => ("trn1", "trn1.32xlarge", "128", "512Gi"),
        NodeKind::Cpu => ("m7i", "m7i.8xlarge", "32", "128Gi"),
    };
    let mut labels: Vec<(&str, &str)> = vec![
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/hostname", &name),
        ("node.kubernetes.io/instance-type", instance),
        ("eks.amazonaws.com/instance-family", family),
        ("topology.kubernetes.io/region", region),
        ("topology.kubernetes.io/zone", &zone),
        ("project", "gco"),
        ("arch", "x86_64"),
        // The second node with GPUs is a spot one, so that both words of `capacity_type` fit somewhere.
        ("karpenter.sh/capacity-type", if kind == NodeKind::Gpu && number % 2 == 1 { "spot" } else { "on-demand" }),
    ];
    let mut resources: Vec<(&str, &str)> = vec![("cpu", cpu), ("memory", memory), ("ephemeral-storage", "1Ti")];
    let mut taints = Vec::new();
    match kind {
        NodeKind::Gpu => {
            labels.extend([("karpenter.sh/nodepool", "gpu-inference-pool"), ("workload-type", "inference")])
        }
        NodeKind::Efa => labels.extend([
            ("karpenter.sh/nodepool", "mooncake-efa-pool"),
            ("workload-type", "gpu-efa-mooncake"),
            ("efa", "true"),
            ("mooncake-efa", "true"),
        ]),
        NodeKind::Neuron => labels.extend([("karpenter.sh/nodepool", "neuron-pool"), ("accelerator", "neuron")]),
        NodeKind::Cpu => labels.push(("karpenter.sh/nodepool", "general-purpose")),
    }
    if matches!(kind, NodeKind::Gpu | NodeKind::Efa) {
        labels.extend([
            ("eks.amazonaws.com/instance-gpu-manufacturer", "nvidia"),
            ("eks.amazonaws.com/instance-gpu-name", "h100"),
            ("eks.amazonaws.com/instance-gpu-count", "8"),
        ]);
        resources.push(("nvidia.com/gpu", "8"));
        taints.push(("nvidia.com/gpu", "true"));
    }
    if kind == NodeKind::Efa {
        resources.extend([("vpc.amazonaws.com/efa", "32"), ("hugepages-2Mi", "10Gi")]);
        taints.push(("vpc.amazonaws.com/efa", "true"));
    }
    if kind == NodeKind::Neuron {
        resources.push(("aws.amazon.com/neuron", "16"));
        taints.push(("aws.amazon.com/neuron", "true"));
    }
    let owned = |pairs: Vec<(&str, &str)>| -> BTreeMap<String, String> {
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    let mut resources = owned(resources);
    resources.insert("pods".to_owned(), PODS_PER_NODE.to_string());
    NodePlan { labels: owned(labels), taints, resources, name, address }
}

async fn ensure(client: &Client, plan: &NodePlan) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let taints: Vec<Taint> = plan
        .taints
        .iter()
        .map(|(key, value)| Taint {
            key: (*key).to_owned(),
            value: Some((*value).to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        })
        .collect();
    let node = Node {
        metadata: ObjectMeta {
            name: Some(plan.name.clone()),
            labels: Some(plan.labels.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec { taints: Some(taints.clone()), ..NodeSpec::default() }),
        status: None,
    };
    match nodes.create(&PostParams::default(), &node).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        result => drop(result?),
    }
    let parameters = PatchParams::default();
    nodes.patch_status(&plan.name, &parameters, &Patch::Merge(json!({"status": status(plan)}))).await?;
    // A new node is tainted as not ready by an admission plugin; the controller that would take that
    // away once the node is ready does not run here.
    let shape = json!({"metadata": {"labels": plan.labels}, "spec": {"taints": taints}});
    nodes.patch(&plan.name, &parameters, &Patch::Merge(shape)).await?;

    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    let lease = Lease {
        metadata: ObjectMeta { name: Some(plan.name.clone()), ..ObjectMeta::default() },
        spec: Some(LeaseSpec {
            holder_identity: Some(plan.name.clone()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            renew_time: Some(MicroTime(SystemClock.wall())),
            ..LeaseSpec::default()
        }),
    };
    match leases.create(&PostParams::default(), &lease).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        result => drop(result?),
    }
    Ok(())
}

fn status(plan: &NodePlan) -> NodeStatus {
    let now = Some(api_time(SystemClock.wall()));
    let condition = |kind: &str, status: &str, reason: &str, message: &str| NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: now.clone(),
        last_transition_time: now.clone(),
    };
    let sufficient = |kind: &str, reason: &str, what: &str| {
        condition(kind, "False", reason, &format!("kubelet has {what} available"))
    };
    let resources: BTreeMap<String, Quantity> =
        plan.resources.iter().map(|(name, amount)| (name.clone(), Quantity(amount.clone()))).collect();
    let address = |kind: &str, address: &str| NodeAddress { type_: kind.to_owned(), address: address.to_owned() };
    NodeStatus {
        addresses: Some(vec![address("InternalIP", &plan.address), address("Hostname", &plan.name)]),
        capacity: Some(resources.clone()),
        allocatable: Some(resources),
        conditions: Some(vec![
            sufficient("MemoryPressure", "KubeletHasSufficientMemory", "sufficient memory"),
            sufficient("DiskPressure", "KubeletHasNoDiskPressure", "no disk pressure and space"),
            sufficient("PIDPressure", "KubeletHasSufficientPID", "sufficient PID"),
            condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ]),
        node_info: Some(NodeSystemInfo {
            architecture: "amd64".to_owned(),
            operating_system: "linux".to_owned(),
            kubelet_version: "v1.35.0".to_owned(),
            container_runtime_version: concat!("gco-local://", env!("CARGO_PKG_VERSION")).to_owned(),
            os_image: "a process on this machine".to_owned(),
            ..NodeSystemInfo::default()
        }),
        ..NodeStatus::default()
    }
}

async fn keep_alive(client: Client, plans: Vec<NodePlan>, stop: CancellationToken) {
    let leases: Api<Lease> = Api::namespaced(client, LEASE_NAMESPACE);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LEASE_RENEWAL) => {}
        }
        for plan in &plans {
            let renewed = json!({"spec": {"renewTime": MicroTime(SystemClock.wall())}});
            if let Err(problem) = leases.patch(&plan.name, &PatchParams::default(), &Patch::Merge(renewed)).await {
                tracing::debug!(%problem, node = plan.name, "renewing a node's Lease");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_fleet_has_every_kind_of_device_and_both_capacity_types() {
        let plans = plans("us-east-1", 0, Fleet::default());
        assert_eq!(plans.len(), 5);
        let with = |resource: &str| plans.iter().filter(|plan| plan.resources.contains_key(resource)).count();
        assert_eq!((with("nvidia.com/gpu"), with("vpc.amazonaws.com/efa"), with("aws.amazon.com/neuron")), (3, 1, 1));
        let capacity: Vec<_> = plans.iter().map(|plan| plan.labels["karpenter.sh/capacity-type"].as_str()).collect();
        assert!(capacity.contains(&"spot") && capacity.contains(&"on-demand"));
        let efa = plans.iter().find(|plan| plan.labels.contains_key("mooncake-efa")).unwrap();
        assert_eq!(efa.taints, [("nvidia.com/gpu", "true"), ("vpc.amazonaws.com/efa", "true")]);
    }

    #[test]
    fn names_and_addresses_differ_also_in_a_large_fleet() {
        let plans = plans("eu-west-1", 1, Fleet { gpu: 600, ..Fleet::default() });
        let names: std::collections::BTreeSet<_> = plans.iter().map(|plan| &plan.name).collect();
        assert_eq!(names.len(), plans.len());
        assert!(plans[300].address.parse::<std::net::Ipv4Addr>().is_ok(), "{}", plans[300].address);
    }
}
