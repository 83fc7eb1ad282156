//! The autoscaler of an endpoint: Kubernetes' own, or KEDA's ScaledObject (the wire contract, C.13).

use gco_store::spec::{Autoscaling, Metric, MetricKind};
use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, MetricSpec, MetricTarget,
    ResourceMetricSource,
};
use serde_json::{Value, json};

use super::{RenderInput, json, metadata, signed};
use crate::object::{DesiredObject, Kind, ObjectKey};

/// The autoscaler of the Deployment that has the endpoint's name; `None` for a static count.
///
/// One metric that Kubernetes cannot measure moves all of them to KEDA: two autoscalers of one Deployment would pull it
/// apart.
pub(super) fn of(input: &RenderInput<'_>) -> Option<DesiredObject> {
    let autoscaling = input.spec.autoscaled()?;
    let (kind, body) = if autoscaling.needs_keda() {
        (Kind::ScaledObject, scaled_object(input, autoscaling))
    } else {
        (Kind::HorizontalPodAutoscaler, json(&horizontal(input, autoscaling)))
    };
    let key = ObjectKey { kind, name: input.name.to_owned() };
    Some(DesiredObject { key, body, input_hash: None, autoscaled: false })
}

fn horizontal(input: &RenderInput<'_>, autoscaling: &Autoscaling) -> HorizontalPodAutoscaler {
    let Autoscaling { enabled: _, min_replicas, max_replicas, metrics } = autoscaling;
    let metric = |Metric { kind, target_percent }: &Metric| MetricSpec {
        type_: "Resource".to_owned(),
        resource: Some(ResourceMetricSource {
            name: kind.word().to_owned(),
            target: MetricTarget {
                type_: "Utilization".to_owned(),
                average_utilization: Some(signed(*target_percent)),
                ..MetricTarget::default()
            },
        }),
        ..MetricSpec::default()
    };
    HorizontalPodAutoscaler {
        metadata: metadata(input, input.name, input.identity.annotations()),
        spec: Some(HorizontalPodAutoscalerSpec {
            scale_target_ref: CrossVersionObjectReference {
                api_version: Some("apps/v1".to_owned()),
                kind: "Deployment".to_owned(),
                name: input.name.to_owned(),
            },
            min_replicas: Some(signed(*min_replicas)),
            max_replicas: signed(*max_replicas),
            metrics: Some(metrics.iter().map(metric).collect()),
            behavior: None,
        }),
        status: None,
    }
}

fn scaled_object(input: &RenderInput<'_>, autoscaling: &Autoscaling) -> Value {
    let Autoscaling { enabled: _, min_replicas, max_replicas, metrics } = autoscaling;
    let triggers: Vec<Value> = metrics.iter().map(|metric| trigger(input, metric)).collect();
    json!({
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": json(&metadata(input, input.name, input.identity.annotations())),
        "spec": {
            // Without kind and version it is a Deployment of apps/v1.
            "scaleTargetRef": {"name": input.name},
            "minReplicaCount": min_replicas,
            "maxReplicaCount": max_replicas,
            "triggers": triggers,
        },
    })
}

/// KEDA takes every value of a trigger's metadata as a string.
fn trigger(input: &RenderInput<'_>, metric: &Metric) -> Value {
    let RenderInput { name, namespace, region, cluster_name, identity: _, spec: _ } = input;
    let Metric { kind, target_percent } = metric;
    let of_cloudwatch = |metric_name: &str| {
        json!({
            "type": "aws-cloudwatch",
            "metadata": {
                "namespace": "ContainerInsights",
                "metricName": metric_name,
                "dimensionName": "ClusterName;Namespace;PodName",
                "dimensionValue": format!("{cluster_name};{namespace};{name}"),
                "targetMetricValue": target_percent.to_string(),
                "minMetricValue": "0",
                "metricStat": "Average",
                "awsRegion": region,
                "identityOwner": "operator",
            },
        })
    };
    match kind {
        MetricKind::Gpu => of_cloudwatch("pod_gpu_utilization"),
        MetricKind::GpuMemory => of_cloudwatch("pod_gpu_memory_utilization"),
        MetricKind::Cpu | MetricKind::Memory => json!({
            "type": kind.word(),
            "metricType": "Utilization",
            "metadata": {"value": target_percent.to_string()},
        }),
    }
}
