//! Complete desired objects of an endpoint, canary included, from its checked spec. Pure.
//!
//! What the wire contract (C.12.1, C.12.2) fixes is rendered exactly; what was mended says so where it is rendered, and
//! why. Every field whose server default matters is rendered, because a default belongs to nobody and survives the change
//! that made it wrong (`imagePullPolicy` of an earlier tag, for example). Maps of the spec are read, never written
//! into (D-53).

mod autoscaler;
pub mod original;
mod pod;
mod resources;

use std::collections::BTreeMap;

use gco_store::spec::Spec;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;
use serde_json::Value;

use crate::identity::{self, ANNOTATION_INPUT_HASH, ANNOTATION_RENDERER, RowIdentity};
use crate::object::{DesiredObject, DesiredSet, Kind, ObjectKey};

/// Version of this renderer; raised when the same inputs render to another pod template. An object that an older one
/// wrote keeps its live template until the row's spec changes.
pub const RENDERER_VERSION: u32 = 1;

/// What [`classic`] needs.
#[derive(Clone, Debug)]
pub struct RenderInput<'a> {
    /// Endpoint name.
    pub name: &'a str,
    /// Namespace.
    pub namespace: &'a str,
    /// Region.
    pub region: &'a str,
    /// Name of the cluster, a dimension of KEDA's metrics.
    pub cluster_name: &'a str,
    /// Whose objects.
    pub identity: &'a RowIdentity,
    /// What to run.
    pub spec: &'a Spec,
}

/// Name of the model server's port, on the container and on the Service.
///
/// Mended: the original leaves the container port unnamed and the Service targets the number. By name, an edit of the port
/// needs no change of the Service: old and new pods are both reached while they are replaced.
pub const PORT_NAME: &str = "http";
/// Port of every classic endpoint's Service.
pub const SERVICE_PORT: i32 = 80;

/// Seconds for which a canary's pod must be ready before it counts as available, and with it the canary as one that gets
/// requests: whoever balances over a Service hears of a new pod up to a second or two after us (EndpointSlices, then
/// kube-proxy), and a router that was told too early would send its share to a Service that has nobody behind it yet.
const CANARY_SETTLING_SECONDS: i32 = 5;

/// Seconds that a rollout may take beyond one start-up: scheduling, a new node and the image pull come before the start-up
/// probe begins to count. A deadline below the start-up budget would call every slow model stuck.
const ROLLOUT_MARGIN_SECONDS: u32 = 300;
/// Old ReplicaSets that are kept for a look back. Each is an object in every watch; the server's default is 10.
const REVISION_HISTORY: i32 = 3;
/// From this many replicas on, a quarter is at least one whole pod (4 × 25 % = 1, rounded down).
const QUARTER_IS_A_POD: u32 = 4;

/// Suffix of everything that belongs to the canary of an endpoint (the wire contract, C.11).
pub const CANARY_SUFFIX: &str = "-canary";

/// Name of the canary's Deployment and Service.
#[must_use]
pub fn canary_name(endpoint: &str) -> String {
    format!("{endpoint}{CANARY_SUFFIX}")
}

/// Everything of a classic endpoint: its Deployment and Service, then those of its canary, if the spec has one, then its
/// autoscaler, if it is asked for (the wire contract, C.11, C.12.1, C.12.2 and C.13).
#[must_use]
pub fn classic(input: &RenderInput<'_>) -> DesiredSet {
    let mut objects = model_server(input, input.name, 0);
    if let Some(spec) = input.spec.of_canary() {
        // Mended (D-37): rendered for the endpoint, only the objects are called otherwise. The original renders an endpoint
        // `<name>-canary`, which downloads the model a second time into a directory of its own, and believes to be reached
        // under a path that no client ever asks for.
        let input = RenderInput { spec: &spec, ..input.clone() };
        objects.extend(model_server(&input, &canary_name(input.name), CANARY_SETTLING_SECONDS));
    }
    objects.extend(autoscaler::of(input));
    DesiredSet { objects }
}

/// The Deployment `object` of model servers of an endpoint, and its Service.
///
/// The Deployment comes first, as in the original: a Service without pods answers nothing either way, and a Deployment
/// without its Service is at least starting.
fn model_server(input: &RenderInput<'_>, object: &str, settling_seconds: i32) -> Vec<DesiredObject> {
    let RenderInput { name: _, namespace: _, region, cluster_name: _, identity, spec } = input;
    let name = object;
    let input_hash = spec.template_input_hash(region);
    let mut annotations = identity.annotations();
    annotations.insert(ANNOTATION_INPUT_HASH.to_owned(), input_hash.clone());
    let template = pod::template(input, object, &annotations);
    annotations.insert(ANNOTATION_RENDERER.to_owned(), RENDERER_VERSION.to_string());
    let deployment = Deployment {
        metadata: metadata(input, name, annotations),
        spec: Some(DeploymentSpec {
            min_ready_seconds: Some(settling_seconds),
            progress_deadline_seconds: Some(signed(
                spec.startup_timeout_seconds.saturating_add(ROLLOUT_MARGIN_SECONDS),
            )),
            replicas: Some(signed(spec.first_replicas())),
            revision_history_limit: Some(REVISION_HISTORY),
            // Only `app`, as in the original: a selector can never be changed.
            selector: LabelSelector { match_labels: Some(app_selector(name)), match_expressions: None },
            strategy: Some(strategy(spec)),
            template,
            ..DeploymentSpec::default()
        }),
        status: None,
    };
    let mut selector = app_selector(name);
    // Egress policies of the VPC CNI are only evaluated for Services that select by this label too.
    selector.insert(identity::LABEL_TYPE.0.to_owned(), identity::LABEL_TYPE.1.to_owned());
    let service = Service {
        metadata: metadata(input, name, identity.annotations()),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            selector: Some(selector),
            ports: Some(vec![ServicePort {
                name: Some(PORT_NAME.to_owned()),
                port: SERVICE_PORT,
                protocol: Some("TCP".to_owned()),
                target_port: Some(IntOrString::String(PORT_NAME.to_owned())),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    };
    let object = |kind, body, input_hash, autoscaled| DesiredObject {
        key: ObjectKey { kind, name: name.to_owned() },
        body,
        input_hash,
        autoscaled,
    };
    vec![
        object(Kind::Deployment, json(&deployment), Some(input_hash), spec.autoscaled().is_some()),
        object(Kind::Service, json(&service), None, false),
    ]
}

/// Metadata of the object `name` of an endpoint.
fn metadata(input: &RenderInput<'_>, name: &str, annotations: BTreeMap<String, String>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(input.namespace.to_owned()),
        labels: Some(identity::labels(name)),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    }
}

/// How pods are replaced.
///
/// Mended (D-36): the original leaves the server's default, which at one to three replicas needs a spare accelerator (25 %
/// surge rounds up to one pod, 25 % unavailable rounds down to none) or waits for ever. Without surge, one pod goes before
/// its replacement comes; from four replicas on, a quarter at a time. With surge, none goes before its replacement is
/// ready. Never are both zero, which the server refuses.
fn strategy(spec: &Spec) -> DeploymentStrategy {
    // Not the live count: an autoscaler's step would then be a reason to write the Deployment.
    let fewest = spec.autoscaled().map_or(spec.replicas, |bounds| bounds.min_replicas);
    let unavailable = if spec.max_surge > 0 {
        IntOrString::Int(0)
    } else if fewest >= QUARTER_IS_A_POD {
        IntOrString::String("25%".to_owned())
    } else {
        IntOrString::Int(1)
    };
    DeploymentStrategy {
        type_: Some("RollingUpdate".to_owned()),
        rolling_update: Some(RollingUpdateDeployment {
            max_surge: Some(IntOrString::Int(signed(spec.max_surge))),
            max_unavailable: Some(unavailable),
        }),
    }
}

fn app_selector(name: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(identity::LABEL_APP.to_owned(), name.to_owned())])
}

/// Counts of a checked spec are far below 2^31 (the largest, `startup_timeout_seconds`, is 21,600).
fn signed(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn json(object: &impl Serialize) -> Value {
    // Fails only for maps whose keys are not strings; the generated types have none. An empty body would be refused by the
    // server, visibly.
    serde_json::to_value(object).unwrap_or_default()
}
