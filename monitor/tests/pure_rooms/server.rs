//! A small API server for plans: preconditions, versions, and the defaults that a real one (1.35) was measured to add. It
//! knows nothing of the tables in `plan::compare`; where the two disagree, a plan does not come to rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use gco_monitor::identity::LeaderMark;
use gco_monitor::intent::CleanUp;
use gco_monitor::object::{DesiredSet, Kind, ObjectKey, Observed, ObservedObject, ObservedPod};
use gco_monitor::plan::{Goal, Plan, PlanInput, Precondition, Step, Upkeep, plan};
use gco_store::spec::Spec;
use serde_json::{Map, Value, json};

use super::support::{NAMESPACE, NOW, leader, small_spec};
use gco_monitor::identity::RowIdentity;

pub(crate) struct Server {
    pub(crate) objects: BTreeMap<ObjectKey, Value>,
    pub(crate) pods: Vec<ObservedPod>,
    version: u64,
    /// Lifecycles of all rows.
    pub(crate) known: std::collections::BTreeSet<String>,
    pub(crate) leader: LeaderMark,
    pub(crate) futile: BTreeMap<ObjectKey, String>,
    pub(crate) table_away: bool,
    /// The row's spec, as far as plans look at it.
    pub(crate) spec: Spec,
    /// Digest of the row's spec.
    pub(crate) spec_digest: String,
    /// The row's last refresh.
    pub(crate) refresh: Option<String>,
    /// Whether a restart that no edit asks for may begin.
    pub(crate) may_restart: bool,
    /// Kinds that the cluster does not have.
    pub(crate) missing: std::collections::BTreeSet<Kind>,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            pods: Vec::new(),
            version: 100,
            known: std::collections::BTreeSet::new(),
            leader: leader(1),
            futile: BTreeMap::new(),
            table_away: false,
            spec: small_spec(),
            spec_digest: "digest".to_owned(),
            refresh: None,
            may_restart: true,
            missing: std::collections::BTreeSet::new(),
        }
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    /// Puts an object as a client would POST it; returns its key.
    pub(crate) fn post(&mut self, mut body: Value) -> ObjectKey {
        let key = key_of(&body);
        assert!(!self.objects.contains_key(&key), "{key} already exists");
        let version = self.next_version();
        let uid = format!("uid-{version}");
        if key.kind == Kind::Service {
            body["spec"]["clusterIP"] = json!(format!("10.0.0.{version}"));
            body["spec"]["clusterIPs"] = json!([format!("10.0.0.{version}")]);
            body["spec"]["ipFamilies"] = json!(["IPv4"]);
            body["spec"]["ipFamilyPolicy"] = json!("SingleStack");
        }
        stored(key.kind, &mut body);
        let metadata = body["metadata"].as_object_mut().unwrap();
        metadata.insert("uid".into(), json!(uid));
        metadata.insert("resourceVersion".into(), json!(version));
        metadata.insert("creationTimestamp".into(), json!("2026-11-29T10:00:00Z"));
        if key.kind == Kind::Deployment {
            metadata.insert("generation".into(), json!(1));
            // The Deployment controller's mark.
            metadata
                .entry("annotations")
                .or_insert_with(|| json!({}))
                .as_object_mut()
                .unwrap()
                .insert("deployment.kubernetes.io/revision".into(), json!("1"));
        }
        self.objects.insert(key.clone(), body);
        key
    }

    /// Somebody edits a live object.
    pub(crate) fn edit(&mut self, key: &ObjectKey, change: impl FnOnce(&mut Value)) {
        let version = self.next_version();
        let body = self.objects.get_mut(key).unwrap();
        change(body);
        body["metadata"]["resourceVersion"] = json!(version);
    }

    fn check(&self, key: &ObjectKey, of: &Precondition) {
        let live = self.objects.get(key).unwrap_or_else(|| panic!("{key} does not exist"));
        assert_eq!(live["metadata"]["uid"], json!(of.uid), "{key}");
        assert_eq!(live["metadata"]["resourceVersion"], json!(of.resource_version), "{key}");
    }

    /// Executes the steps; returns how many changed something.
    pub(crate) fn apply(&mut self, plan: &Plan) -> usize {
        let before = self.version;
        for step in &plan.steps {
            self.step(step);
        }
        usize::try_from(self.version - before).unwrap()
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Create { key, body, .. } => {
                assert!(body["metadata"].get("resourceVersion").is_none(), "a POST with a version is refused");
                assert_eq!(&self.post(body.clone()), key);
            }
            Step::Replace { key, of, body, .. } => {
                self.check(key, of);
                assert_eq!(body["metadata"]["uid"], json!(of.uid));
                assert_eq!(body["metadata"]["resourceVersion"], json!(of.resource_version));
                assert!(body.get("status").is_none(), "a replacement carries no status");
                let live = self.objects[key].clone();
                let mut body = body.clone();
                if key.kind == Kind::Service {
                    assert_eq!(body["spec"]["clusterIP"], live["spec"]["clusterIP"], "the address is carried");
                }
                stored(key.kind, &mut body);
                for field in ["creationTimestamp", "generation"] {
                    if let Some(value) = live["metadata"].get(field) {
                        body["metadata"][field] = value.clone();
                    }
                }
                if let Some(status) = live.get("status") {
                    body["status"] = status.clone();
                }
                if key.kind == Kind::Deployment {
                    assert_eq!(body["spec"]["selector"], live["spec"]["selector"], "a selector is immutable");
                }
                if body != live {
                    body["metadata"]["resourceVersion"] = json!(self.next_version());
                    self.objects.insert(key.clone(), body);
                }
            }
            Step::Stamp { key, of, annotations, .. } => {
                self.check(key, of);
                let version = self.next_version();
                let metadata = self.objects.get_mut(key).unwrap()["metadata"].as_object_mut().unwrap();
                metadata.insert("resourceVersion".into(), json!(version));
                let live = metadata.entry("annotations").or_insert_with(|| json!({}));
                live.as_object_mut()
                    .unwrap()
                    .extend(annotations.iter().map(|(name, value)| (name.clone(), json!(value))));
            }
            Step::Delete { key, of, .. } => {
                self.check(key, of);
                self.next_version();
                self.objects.remove(key);
                self.pods.retain(|pod| key.kind != Kind::Deployment || pod.app != key.name);
            }
            Step::ProveAbsence => {}
        }
    }

    pub(crate) fn observed(&self) -> Observed {
        let objects = self.objects.iter().map(|(key, body)| (key.clone(), observed(key, body))).collect();
        Observed { objects, pods: self.pods.clone(), replica_sets: Vec::new(), missing_kinds: self.missing.clone() }
    }

    fn plan_for(&self, name: &str, goal: Goal<'_>) -> Plan {
        plan(&PlanInput {
            name,
            namespace: NAMESPACE,
            goal,
            observed: &self.observed(),
            known_lifecycles: &self.known,
            leader: &self.leader,
            futile: &self.futile,
            table_away: self.table_away,
        })
    }

    pub(crate) fn hold(&self, name: &str, identity: &RowIdentity, desired: &DesiredSet) -> Plan {
        let upkeep = Upkeep {
            spec: &self.spec,
            spec_digest: &self.spec_digest,
            canary_spec_digest: &self.spec_digest,
            refresh: self.refresh.as_deref(),
            may_restart: self.may_restart,
            now: NOW,
        };
        self.plan_for(name, Goal::Hold { identity, desired, upkeep })
    }

    pub(crate) fn stop(&self, name: &str, identity: &RowIdentity) -> Plan {
        self.plan_for(name, Goal::Stop { identity })
    }

    pub(crate) fn remove(&self, name: &str, clean_up: &CleanUp) -> Plan {
        self.plan_for(name, Goal::Remove { clean_up, region_generation: Some("whatever") })
    }
}

pub(crate) fn observed(key: &ObjectKey, body: &Value) -> ObservedObject {
    let text = |field: &str| body["metadata"][field].as_str().unwrap_or_default().to_owned();
    ObservedObject {
        key: key.clone(),
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        terminating: body["metadata"].get("deletionTimestamp").is_some(),
        body: Arc::new(body.clone()),
    }
}

pub(crate) fn key_of(body: &Value) -> ObjectKey {
    let kind = match body["kind"].as_str().unwrap() {
        "Deployment" => Kind::Deployment,
        "Service" => Kind::Service,
        "HorizontalPodAutoscaler" => Kind::HorizontalPodAutoscaler,
        "ScaledObject" => Kind::ScaledObject,
        other => panic!("{other}"),
    };
    ObjectKey { kind, name: body["metadata"]["name"].as_str().unwrap().to_owned() }
}

pub(crate) fn key(kind: Kind, name: &str) -> ObjectKey {
    ObjectKey { kind, name: name.to_owned() }
}

fn default(map: &mut Map<String, Value>, field: &str, value: Value) {
    map.entry(field).or_insert(value);
}

/// What is stored for a body that was sent.
fn stored(kind: Kind, body: &mut Value) {
    let spec = body["spec"].as_object_mut().unwrap();
    match kind {
        Kind::Service => {
            default(spec, "type", json!("ClusterIP"));
            default(spec, "sessionAffinity", json!("None"));
            default(spec, "internalTrafficPolicy", json!("Cluster"));
            for port in spec["ports"].as_array_mut().unwrap() {
                let port = port.as_object_mut().unwrap();
                let number = port["port"].clone();
                default(port, "protocol", json!("TCP"));
                default(port, "targetPort", number);
            }
        }
        Kind::Deployment => {
            default(spec, "replicas", json!(1));
            default(spec, "revisionHistoryLimit", json!(10));
            default(spec, "progressDeadlineSeconds", json!(600));
            default(
                spec,
                "strategy",
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}),
            );
            if spec.get("minReadySeconds") == Some(&json!(0)) {
                spec.remove("minReadySeconds");
            }
            let template = spec["template"].as_object_mut().unwrap();
            template.entry("metadata").or_insert_with(|| json!({}));
            template["metadata"]["creationTimestamp"] = Value::Null;
            pod_defaults(template["spec"].as_object_mut().unwrap());
        }
        // Nothing is added to what names its bounds and metrics.
        Kind::HorizontalPodAutoscaler | Kind::ScaledObject => {}
        other => panic!("{other:?}"),
    }
}

fn pod_defaults(pod: &mut Map<String, Value>) {
    default(pod, "restartPolicy", json!("Always"));
    default(pod, "terminationGracePeriodSeconds", json!(30));
    default(pod, "dnsPolicy", json!("ClusterFirst"));
    default(pod, "securityContext", json!({}));
    default(pod, "schedulerName", json!("default-scheduler"));
    if let Some(account) = pod.get("serviceAccountName").cloned() {
        pod.insert("serviceAccount".into(), account);
    }
    for list in ["initContainers", "containers"] {
        for container in pod.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            container_defaults(container.as_object_mut().unwrap());
        }
    }
    for volume in pod.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(size) = volume.pointer_mut("/emptyDir/sizeLimit") {
            *size = canonical(size);
        }
    }
}

fn container_defaults(container: &mut Map<String, Value>) {
    default(container, "imagePullPolicy", json!("IfNotPresent"));
    default(container, "terminationMessagePath", json!("/dev/termination-log"));
    default(container, "terminationMessagePolicy", json!("File"));
    default(container, "resources", json!({}));
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        default(port.as_object_mut().unwrap(), "protocol", json!("TCP"));
    }
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        if let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) {
            for (field, value) in
                [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
            {
                default(probe, field, json!(value));
            }
            if let Some(http) = probe.get_mut("httpGet").and_then(Value::as_object_mut) {
                default(http, "scheme", json!("HTTP"));
            }
        }
    }
    for variable in container.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
        let variable = variable.as_object_mut().unwrap();
        if variable.get("value") == Some(&json!("")) {
            variable.remove("value");
        }
    }
    for part in ["requests", "limits"] {
        let quantities = container["resources"].get_mut(part).and_then(Value::as_object_mut);
        for quantity in quantities.into_iter().flat_map(|map| map.values_mut()) {
            *quantity = canonical(quantity);
        }
    }
}

/// The canonical spelling, for the spellings that the tests use.
fn canonical(quantity: &Value) -> Value {
    let text = quantity.as_str().unwrap();
    json!(match text {
        "1000m" => "1",
        "0.5" => "500m",
        "2.0" => "2",
        "1024Mi" => "1Gi",
        "32768Mi" => "32Gi",
        other => other,
    })
}
