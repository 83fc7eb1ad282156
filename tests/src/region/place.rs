//! One region of one test: a namespace, an account with the monitor's real Role, pods that become ready, a table.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use gco_bed::control_plane::{AuditEvent, AuditLog, AuditMark};
use gco_bed::wait::{self, WaitError};
use gco_local::platform::{self, ACCOUNTS, INFERENCE_NAMESPACE, MONITOR_ACCOUNT, PROXY_ROLE, ROLE, SYSTEM_NAMESPACE};
use gco_runtime::random::{Randomness as _, SystemRandomness};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Service};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::BOUND;
use super::objects::Snapshot;
use super::planes::{Plane, Pods, plane};
use super::predicates::Checker;
use super::table::TestTable;

/// The claim that model storage is mounted from.
const MODEL_CLAIM: &str = "efs-claim";

/// What a region is made of.
#[derive(Clone, Debug)]
pub struct RegionSettings {
    /// Its name, such as `us-east-1`.
    pub name: String,
    /// On which of the binary's control planes.
    pub plane: usize,
    /// The namespace; `None`: a fresh one. The fence and the outsiders' rule hold in `gco-inference` only.
    pub namespace: Option<String>,
    /// What its pods are.
    pub pods: Pods,
}

impl RegionSettings {
    /// A region on the first control plane, with a fresh namespace, whose pods become ready.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), plane: 0, namespace: None, pods: Pods::StatusOnly }
    }
}

/// A region. Its namespace goes with the control plane.
pub struct Region {
    name: String,
    namespace: String,
    plane: &'static Plane,
    client: Client,
    table: TestTable,
    token: String,
    folder: tempfile::TempDir,
    start: AuditMark,
    recorded: bool,
    checker: Checker,
}

impl Drop for Region {
    /// Notes what its monitors asked for, when somebody wants to compare that with the Role (`tests/run.sh` does).
    fn drop(&mut self) {
        if !self.recorded {
            return;
        }
        if let Err(error) = crate::rights::record(self) {
            eprintln!("what the monitors of {} asked for was not noted: {error:#}", self.namespace);
        }
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, namespace, .. } = self;
        formatter.debug_struct("Region").field("name", name).field("namespace", namespace).finish_non_exhaustive()
    }
}

impl Region {
    /// Makes a region called `us-east-1` with a table file of its own.
    ///
    /// # Errors
    /// When a part of it cannot be started.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_with(RegionSettings::named("us-east-1"), TestTable::embedded().await?).await
    }

    /// Makes a region.
    ///
    /// # Errors
    /// When a part of it cannot be started.
    pub async fn start_with(settings: RegionSettings, table: TestTable) -> anyhow::Result<Self> {
        let plane = plane(settings.plane, settings.pods).await?;
        let client = plane.control_plane().client().await?;
        let start = plane.audit()?.mark()?;
        let namespace = settings.namespace.unwrap_or_else(fresh_namespace);
        if namespace != INFERENCE_NAMESPACE {
            make_namespace(&client, &namespace).await?;
        }
        may_work(&client, &namespace).await?;
        let token = plane.control_plane().service_account_token(SYSTEM_NAMESPACE, MONITOR_ACCOUNT).await?;
        let folder = tempfile::tempdir().context("making a folder")?;
        let checker = Checker::start(&client, &namespace, &settings.name, &table)?;
        let recorded = true;
        Ok(Self { name: settings.name, namespace, plane, client, table, token, folder, start, recorded, checker })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The control plane under it.
    #[must_use]
    pub fn plane(&self) -> &'static Plane {
        self.plane
    }

    /// An administrator's client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its table.
    #[must_use]
    pub fn table(&self) -> &TestTable {
        &self.table
    }

    /// What the control plane that came before would say of everything written here so far.
    #[must_use]
    pub fn checker(&self) -> &Checker {
        &self.checker
    }

    /// A folder for files of this region.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The user that monitors are in the audit log; those of all regions on a control plane are the same.
    #[must_use]
    pub fn monitor_user(&self) -> String {
        monitor_user()
    }

    /// A bearer token of the monitor's account.
    #[must_use]
    pub fn monitor_token(&self) -> &str {
        &self.token
    }

    /// What is asked in the monitor's name here is asked by a test, and tells nothing about the monitor.
    pub fn do_not_record_rights(&mut self) {
        self.recorded = false;
    }

    /// Everything that monitors asked of this region since it was made, and of the cluster outside of any namespace.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn asked_by_monitors(&self) -> anyhow::Result<Vec<AuditEvent>> {
        let mut asked = self.audit()?.requests_of_user(self.start, &self.monitor_user())?;
        asked.retain(|event| event.namespace == self.namespace || event.namespace.is_empty());
        Ok(asked)
    }

    /// Writes the kubeconfig file of a monitor; `url`: through this address.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_kubeconfig(&self, holder: &str, url: Option<&str>) -> anyhow::Result<PathBuf> {
        let path = self.folder.path().join(format!("{holder}.kubeconfig"));
        match url {
            Some(url) => self.plane.control_plane().write_kubeconfig_through(&path, &self.token, url)?,
            None => self.plane.control_plane().write_kubeconfig(&path, &self.token)?,
        }
        Ok(path)
    }

    /// Everything in the namespace now.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn snapshot(&self) -> anyhow::Result<Snapshot> {
        Snapshot::take(&self.client, &self.namespace).await
    }

    /// Everything of one endpoint now.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn objects_of(&self, endpoint: &str) -> anyhow::Result<Snapshot> {
        Ok(self.snapshot().await?.of(endpoint))
    }

    /// The Lease's holder now; empty when nobody holds it.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn leader(&self) -> anyhow::Result<String> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let lease = leases.get_opt("inference-monitor-leader").await.context("reading the Lease")?;
        let holder = lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity);
        Ok(holder.unwrap_or_default())
    }

    /// Waits until a monitor whose holder begins so leads.
    ///
    /// # Errors
    /// When none does within the bound.
    pub async fn wait_for_leader(&self, holder_prefix: &str) -> Result<String, WaitError> {
        wait::until(&format!("{holder_prefix} to lead {}", self.namespace), BOUND, || async {
            match self.leader().await {
                Ok(holder) if holder.starts_with(holder_prefix) => Ok(holder),
                Ok(holder) => Err(format!("the Lease is held by {holder:?}")),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await
    }

    /// The audit log of its control plane.
    ///
    /// # Errors
    /// When there is none.
    pub fn audit(&self) -> anyhow::Result<&'static AuditLog> {
        self.plane.audit()
    }

    /// Requests in this namespace since this region was made for which `wanted` holds.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn requests_where(&self, wanted: impl Fn(&AuditEvent) -> bool) -> anyhow::Result<Vec<AuditEvent>> {
        self.requests_since(self.start, wanted)
    }

    /// Requests in this namespace from a mark on for which `wanted` holds.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn requests_since(
        &self,
        mark: AuditMark,
        wanted: impl Fn(&AuditEvent) -> bool,
    ) -> anyhow::Result<Vec<AuditEvent>> {
        self.audit()?.requests_where(mark, |event| event.namespace == self.namespace && wanted(event))
    }

    /// Writes of this region's monitors to objects (not to the Lease, and not Events) from a mark on.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn monitor_writes_since(&self, mark: AuditMark) -> anyhow::Result<Vec<AuditEvent>> {
        let user = self.monitor_user();
        let aside = |event: &AuditEvent| ["leases", "events"].contains(&event.resource.as_str());
        self.requests_since(mark, |event| event.user == user && event.is_write() && !aside(event))
    }

    /// Waits until `look` at the whole namespace gives a value.
    ///
    /// # Errors
    /// When it does not within the bound.
    pub async fn wait_for<T>(
        &self,
        what: &str,
        bound: Duration,
        look: impl FnMut(&Snapshot) -> Result<T, String>,
    ) -> Result<T, WaitError> {
        let look = std::cell::RefCell::new(look);
        let looking = async || {
            let snapshot = self.snapshot().await.map_err(|error| format!("{error:#}"))?;
            (look.borrow_mut())(&snapshot)
        };
        wait::until(what, bound, looking).await
    }

    /// Deletes the namespace: what a test with hundreds of endpoints does for the next one.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn delete_namespace(&self) -> anyhow::Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces.delete(&self.namespace, &DeleteParams::default()).await.context("deleting the namespace")?;
        Ok(())
    }
}

fn fresh_namespace() -> String {
    let token = SystemRandomness.token();
    format!("region-{}", &token[..8])
}

/// The user that monitors are.
fn monitor_user() -> String {
    format!("system:serviceaccount:{SYSTEM_NAMESPACE}:{MONITOR_ACCOUNT}")
}

/// A models' namespace besides the one that is installed: the same accounts, and the same Role for the same monitor.
async fn make_namespace(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let mut object = Namespace::default();
    object.metadata.name = Some(namespace.to_owned());
    namespaces.create(&PostParams::default(), &object).await.with_context(|| format!("making {namespace}"))?;
    let manifests = [platform::objects(ACCOUNTS)?, platform::objects(ROLE)?, platform::objects(PROXY_ROLE)?];
    for mut object in manifests.concat() {
        if object["metadata"]["namespace"] == INFERENCE_NAMESPACE {
            object["metadata"]["namespace"] = json!(namespace);
            for subject in object.get_mut("subjects").and_then(serde_json::Value::as_array_mut).into_iter().flatten() {
                if subject["namespace"] == INFERENCE_NAMESPACE {
                    subject["namespace"] = json!(namespace);
                }
            }
            platform::apply(client, &object).await?;
        }
    }
    Ok(())
}

/// Waits until the API server knows of the monitor's rights: it follows its Roles with a delay.
async fn may_work(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let attributes = ResourceAttributes {
        namespace: Some(namespace.to_owned()),
        verb: Some("create".to_owned()),
        group: Some("apps".to_owned()),
        resource: Some("deployments".to_owned()),
        ..Default::default()
    };
    let spec = SubjectAccessReviewSpec {
        user: Some(monitor_user()),
        resource_attributes: Some(attributes),
        ..Default::default()
    };
    let review = SubjectAccessReview { spec, ..Default::default() };
    wait::until("the monitor's Role to be in force", BOUND, || async {
        match reviews.create(&PostParams::default(), &review).await {
            Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => Ok(()),
            Ok(answer) => Err(format!("{:?}", answer.status)),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    Ok(())
}

impl Region {
    /// Makes the volume claim that endpoints with a model path or source mount, with a volume behind it.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn make_model_storage(&self) -> anyhow::Result<()> {
        let volume_name = format!("models-{}", self.namespace);
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": volume_name},
            "spec": {
                "capacity": {"storage": "1Ti"}, "accessModes": ["ReadWriteMany"], "storageClassName": "",
                "hostPath": {"path": "/nonexistent"},
                "claimRef": {"namespace": self.namespace, "name": MODEL_CLAIM},
            },
        }))?;
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": MODEL_CLAIM},
            "spec": {
                "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": volume_name,
                "resources": {"requests": {"storage": "1Ti"}},
            },
        }))?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        volumes.create(&PostParams::default(), &volume).await.context("making a volume")?;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &self.namespace);
        claims.create(&PostParams::default(), &claim).await.context("claiming the volume")?;
        Ok(())
    }

    /// Makes the Deployments and Services that the original control plane made for a fixture.
    ///
    /// # Errors
    /// When there are none, or the API server refuses one.
    pub async fn make_original_objects(&self, fixture: &str) -> anyhow::Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/original-objects");
        let path = folder.join(format!("{fixture}.objects.json"));
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let file: serde_json::Value = serde_json::from_str(&text)?;
        let objects = file["objects"].as_array().or_else(|| file.as_array()).context("no list of objects")?;
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        let services: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        for object in objects {
            let mut object = object.clone();
            object["metadata"]["namespace"] = json!(self.namespace);
            match object["kind"].as_str() {
                Some("Deployment") => {
                    let deployment: Deployment = serde_json::from_value(object)?;
                    deployments.create(&PostParams::default(), &deployment).await?;
                }
                Some("Service") => {
                    if let Some(spec) = object["spec"].as_object_mut() {
                        spec.remove("clusterIP");
                        spec.remove("clusterIPs");
                    }
                    let service: Service = serde_json::from_value(object)?;
                    services.create(&PostParams::default(), &service).await?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
