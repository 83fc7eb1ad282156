//! A real control plane, a table file, and the monitor's binary between them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use gco_bed::control_plane::{ControlPlane, ControlPlaneSettings};
use gco_bed::process::{ProcessSettings, Supervised};
use gco_bed::wait;
use gco_runtime::clock::{Clock as _, SystemClock};
use gco_runtime::random::{Randomness as _, SystemRandomness};
use gco_store::embedded::EmbeddedTable;
use gco_store::operations::Store;
use gco_store::row::EndpointRow;
use gco_store::table::{Consistency, Table};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// Every wait of these tests; two busy cores are slow.
pub const BOUND: Duration = Duration::from_secs(60);
/// The region of the monitors.
pub const REGION: &str = "test-region-1";

async fn plane() -> anyhow::Result<&'static ControlPlane> {
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    SHARED.get_or_try_init(|| ControlPlane::start(ControlPlaneSettings::named("monitor-shell"))).await
}

/// Endpoints are served in this namespace only, so one test has the control plane at a time.
const NAMESPACE: &str = "gco-inference";
static TURN: Mutex<()> = Mutex::const_new(());

/// The shared control plane, with a table of one test's own.
pub struct Place {
    _turn: MutexGuard<'static, ()>,
    pub plane: &'static ControlPlane,
    pub client: Client,
    pub store: Store,
    folder: tempfile::TempDir,
}

impl Place {
    pub async fn new() -> anyhow::Result<Self> {
        let turn = TURN.lock().await;
        let plane = plane().await?;
        let client = plane.client().await?;
        let namespaces = Api::<Namespace>::all(client.clone());
        if namespaces.get_opt(NAMESPACE).await?.is_none() {
            let object = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
            namespaces.create(&PostParams::default(), &object).await?;
            // The account of model pods; without it none is made.
            let account = serde_json::from_value(json!({"metadata": {"name": "gco-service-account"}}))?;
            let accounts = Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE);
            accounts.create(&PostParams::default(), &account).await?;
        }
        let folder = tempfile::tempdir()?;
        let table: Arc<dyn Table> = Arc::new(EmbeddedTable::open(&folder.path().join("table.sqlite"))?);
        table.create_tables().await?;
        let store = Store::new(table, Arc::new(|| SystemClock.wall()), Arc::new(|| SystemRandomness.token()));
        Ok(Self { _turn: turn, plane, client, store, folder })
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a monitor; `more` overrides settings.
    pub async fn monitor(&self, name: &str, more: &[(&str, &str)]) -> anyhow::Result<Monitor> {
        let table = format!("embedded:{}", self.path("table.sqlite").display());
        let kubeconfig = self.plane.kubeconfig_path();
        let mut variables: BTreeMap<&str, String> = [
            ("HOSTNAME", name),
            ("REGION", REGION),
            ("CLUSTER_NAME", "bed"),
            ("INFERENCE_NAMESPACE", NAMESPACE),
            ("GCO_TABLE", table.as_str()),
            ("RECONCILE_INTERVAL_SECONDS", "0.2"),
            ("ABSENCE_GAP_SECONDS", "0.5"),
            ("LEASE_DURATION_SECONDS", "6"),
            ("LEASE_RENEW_INTERVAL_SECONDS", "1"),
            ("LEASE_RENEW_TIMEOUT_SECONDS", "2"),
            ("LEASE_MARGIN_SECONDS", "1"),
            ("CLAIM_MINIMUM_SECONDS", "0.5"),
            ("METRICS_HOST", "127.0.0.1"),
            ("METRICS_PORT", "0"),
            ("GCO_ALLOW_FORCED_PASS", "true"),
            ("LOG_LEVEL", "DEBUG"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .into();
        variables.insert("KUBECONFIG", kubeconfig.display().to_string());
        variables.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let mut settings = ProcessSettings::new(env!("CARGO_BIN_EXE_gco-monitor"), self.path(&format!("{name}.log")))
            .without_our_environment();
        for (name, value) in variables {
            settings = settings.variable(name, value);
        }
        Ok(Monitor { process: Supervised::start(settings)?, port: OnceCell::new() })
    }

    pub async fn row(&self, name: &str) -> anyhow::Result<Option<EndpointRow>> {
        Ok(self.store.get(name, Consistency::Strong).await?)
    }

    /// Waits until the row, or its absence, is as wanted.
    pub async fn row_until(
        &self,
        what: &str,
        name: &str,
        wanted: impl Fn(Option<&EndpointRow>) -> bool,
    ) -> anyhow::Result<Option<EndpointRow>> {
        let wanted = &wanted;
        let look = || async move {
            let row = self.row(name).await.map_err(|error| error.to_string())?;
            if wanted(row.as_ref()) {
                return Ok(row);
            }
            let seen = row.map(|row| (row.desired_state.clone(), row.region_status.get(REGION).cloned()));
            Err(format!("{seen:?}"))
        };
        Ok(wait::until(what, BOUND, look).await?)
    }

    /// Waits until the Deployment is as wanted.
    pub async fn deployment_until(
        &self,
        what: &str,
        name: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Value> {
        let (api, wanted) = (self.api::<Deployment>(), &wanted);
        let look = || {
            let api = api.clone();
            async move {
                let found = api.get_opt(name).await.map_err(|error| error.to_string())?;
                let found = serde_json::to_value(found).map_err(|error| error.to_string())?;
                if wanted(&found) { Ok(found) } else { Err(found.to_string()) }
            }
        };
        Ok(wait::until(what, BOUND, look).await?)
    }

    /// Says for the absent kubelet that `count` pods of an endpoint are ready.
    pub async fn ready_pods(&self, app: &str, count: usize) -> anyhow::Result<()> {
        let (api, deployments) = (self.api::<Pod>(), self.api::<Deployment>());
        let look = || {
            let (api, deployments) = (api.clone(), deployments.clone());
            async move {
                let params = ListParams::default().labels(&format!("app={app}"));
                let pods = api.list(&params).await.map_err(|error| error.to_string())?.items;
                let pods: Vec<Pod> = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
                if pods.len() == count {
                    return Ok(pods);
                }
                let status = deployments.get_opt(app).await.map(|found| found.and_then(|found| found.status));
                Err(format!("{} pods; {status:?}", pods.len()))
            }
        };
        let pods = wait::until("the pods", BOUND, look).await?;
        let status = json!({"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"},
        ]}});
        for pod in pods {
            let name = pod.metadata.name.context("a pod has a name")?;
            self.api::<Pod>().patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
        }
        Ok(())
    }
}

/// A monitor's process.
pub struct Monitor {
    pub process: Supervised,
    port: OnceCell<u16>,
}

impl Monitor {
    /// What it logged, as far as it is JSON.
    pub fn log(&self) -> Vec<Value> {
        read_lines(self.process.log_file())
    }

    /// Waits for a log line.
    pub async fn logged(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        let wanted = &wanted;
        let look = || async move {
            let found = self.log().into_iter().find(|line| wanted(line));
            found.ok_or_else(|| format!("running: {}; {}", self.process.is_running(), self.process.log_tail()))
        };
        Ok(wait::until(what, BOUND, look).await?)
    }

    async fn port(&self) -> anyhow::Result<u16> {
        let find = || async {
            let line = self.logged("the port", |line| line.get("port").is_some()).await?;
            let port = line["port"].as_u64().or_else(|| line["port"].as_str()?.parse().ok());
            u16::try_from(port.context("the port is a number")?).context("the port is a port")
        };
        Ok(*self.port.get_or_try_init(find).await?)
    }

    /// One HTTP request; status and body.
    pub async fn http(&self, method: &str, path: &str) -> anyhow::Result<(u16, String)> {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port().await?)).await?;
        let request = format!("{method} {path} HTTP/1.1\r\nHost: monitor\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).context("a status")?;
        let Some((_, body)) = answer.split_once("\r\n\r\n") else { bail!("no body in {answer}") };
        Ok((status, body.to_owned()))
    }

    /// One series of `/metrics`.
    pub async fn metric(&self, series: &str) -> anyhow::Result<f64> {
        let (_, text) = self.http("GET", "/metrics").await?;
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.with_context(|| format!("{series} in\n{text}"))?.parse().context("a number")
    }

    /// Waits until a series is as wanted.
    pub async fn metric_until(&self, series: &str, wanted: impl Fn(f64) -> bool) -> anyhow::Result<f64> {
        let wanted = &wanted;
        let look = || async move {
            let value = self.metric(series).await.map_err(|error| error.to_string())?;
            if wanted(value) {
                return Ok(value);
            }
            let state = self.http("GET", "/state").await.map_err(|error| error.to_string())?;
            Err(format!("{value}; {state:?}; {}", self.process.log_tail()))
        };
        Ok(wait::until(series, BOUND, look).await?)
    }
}

fn read_lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
