//! One region's Kubernetes control plane: etcd, kube-apiserver, kube-controller-manager and, when asked
//! for, kube-scheduler; the released programs, on loopback.
//!
//! Nothing runs pods here: a kubelet stand-in has to write nodes and pod statuses.

mod another;
mod audit;
mod credentials;
mod flags;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use gco_runtime::environment::Environment;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

pub use self::another::AnotherApiServer;
pub use self::audit::{AuditEvent, AuditLog, AuditMark, AuditStage};
use self::credentials::{Credentials, write_kubeconfig};
use crate::binaries::Binaries;
use crate::cache::{Cache, RunFolder};
use crate::ports::{free_ports, is_free, loopback, lost_port};
use crate::process::Supervised;
use crate::rewriting_proxy::Upstream;
use crate::wait;

/// How long a program may take to start. Generous: two of these may share two busy cores.
const START_BOUND: Duration = Duration::from_secs(120);

/// How long each program has to end when asked to.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// How often a start is tried when another process takes a port in between.
const PORT_TRIES: usize = 5;

/// How long a service account's token is good.
const TOKEN_SECONDS: i64 = 24 * 3600;

/// The first API server's name, for its files.
const API_SERVER: &str = "kube-apiserver";

/// What kind of control plane to start.
#[derive(Clone, Debug)]
pub struct ControlPlaneSettings {
    /// Its name, such as the region's; also the name of the kubeconfig's context.
    pub name: String,
    /// Where everything is kept. A later start with the same folder finds all objects, tokens and, when
    /// nobody took it, the same port. `None`: a folder that goes away with the control plane.
    pub data_dir: Option<PathBuf>,
    /// Whether kube-scheduler runs too. Without it nobody binds pods to nodes.
    pub scheduler: bool,
    /// Whether the API server keeps the audit log.
    pub audit: bool,
    /// Further flags for kube-apiserver; of a doubled flag the last one counts.
    pub api_server_flags: Vec<String>,
    /// Further flags for kube-controller-manager, such as
    /// `--horizontal-pod-autoscaler-sync-period=2s`.
    pub controller_manager_flags: Vec<String>,
    /// Further flags for kube-scheduler.
    pub scheduler_flags: Vec<String>,
}

impl Default for ControlPlaneSettings {
    fn default() -> Self {
        Self::named("bed")
    }
}

impl ControlPlaneSettings {
    /// A throw-away control plane with the audit log and without a scheduler.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            data_dir: None,
            scheduler: false,
            audit: true,
            api_server_flags: Vec::new(),
            controller_manager_flags: Vec::new(),
            scheduler_flags: Vec::new(),
        }
    }
}

/// A running control plane. Dropping it kills it; [`ControlPlane::stop`] ends it in order.
#[derive(Debug)]
pub struct ControlPlane {
    name: String,
    port: u16,
    admin_token: String,
    // Fields are dropped in this order: the clients before their server, the folder last.
    scheduler: Option<Supervised>,
    controller_manager: Supervised,
    api_server: Supervised,
    etcd: Supervised,
    audit: Option<AuditLog>,
    settings: ControlPlaneSettings,
    ports: Ports,
    layout: Layout,
    _folder: Folder,
}

impl ControlPlane {
    /// Starts a control plane and returns when its API server is ready and the controllers have made
    /// the default service account.
    ///
    /// # Errors
    /// When the programs cannot be found or built, the data folder is in use or cannot be written, or a
    /// program does not start; then with the end of its log.
    pub async fn start(settings: ControlPlaneSettings) -> anyhow::Result<Self> {
        gco_runtime::tls::install_provider();
        let binaries = Binaries::ready().await?;
        let folder = Folder::open(&settings).await?;
        let layout = Layout { folder: folder.path().to_owned() };
        let credentials = Credentials::load_or_create(&layout.folder)?;
        if settings.audit {
            std::fs::write(layout.audit_policy(), audit::POLICY).context("writing the audit policy")?;
        }
        let mut ports = Ports::remembered_or_free(&layout)?;
        for _ in 1..PORT_TRIES {
            match Servers::start(&binaries, &layout, ports, &credentials, &settings).await {
                Err(error) if lost_port(&format!("{error:#}")) => ports = Ports::free()?,
                Err(error) => return Err(error),
                Ok(servers) => return servers.finish(&binaries, folder, credentials, settings).await,
            }
        }
        let servers = Servers::start(&binaries, &layout, ports, &credentials, &settings).await?;
        servers.finish(&binaries, folder, credentials, settings).await
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The API server's address, `https://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        url(self.port)
    }

    /// The API server's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder with data, logs and credentials.
    pub fn folder(&self) -> &Path {
        &self.layout.folder
    }

    /// The kubeconfig file of the administrator.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.layout.kubeconfig("admin")
    }

    /// The administrator's bearer token.
    pub fn admin_token(&self) -> &str {
        &self.admin_token
    }

    /// The PEM file with the certificate that the API server's is signed by.
    pub fn certificate_authority_path(&self) -> PathBuf {
        self.layout.certificate_authority()
    }

    /// What a rewriting proxy needs to stand before the API server.
    ///
    /// # Errors
    /// When the certificate cannot be read.
    pub fn upstream(&self) -> anyhow::Result<Upstream> {
        let path = self.certificate_authority_path();
        let read = std::fs::read(&path).with_context(|| format!("reading {}", path.display()));
        Ok(Upstream::Https { address: loopback(self.port), certificate_authorities: read? })
    }

    /// A new client of the administrator that goes through another address, such as a rewriting proxy's.
    ///
    /// # Errors
    /// When the address is none.
    pub fn client_through(&self, url: &str) -> anyhow::Result<Client> {
        self.client_with_token(url, &self.admin_token)
    }

    /// A new client that goes through `url` with `token`, such as a service account's.
    ///
    /// # Errors
    /// When the address is none.
    pub fn client_with_token(&self, url: &str, token: &str) -> anyhow::Result<Client> {
        let parsed = url.parse().with_context(|| format!("not an address: {url:?}"))?;
        let mut config = Config::new(parsed);
        config.auth_info.token = Some(token.to_owned().into());
        let authority = std::fs::read(self.certificate_authority_path()).context("reading the certificate")?;
        let certificates = pem::parse_many(authority).context("reading the certificate")?;
        config.root_cert = Some(certificates.into_iter().map(pem::Pem::into_contents).collect());
        client_with(config)
    }

    /// A new client of the administrator. A client belongs to the runtime that it was made in. Like all
    /// clients made here, it does not retry what is refused with 429, 503 or 504.
    ///
    /// # Errors
    /// When the kubeconfig file cannot be read.
    pub async fn client(&self) -> anyhow::Result<Client> {
        client_of(&self.kubeconfig_path()).await
    }

    /// A token of a service account that exists, good for a day: its real permissions are in force.
    ///
    /// # Errors
    /// When the account does not exist.
    pub async fn service_account_token(&self, namespace: &str, name: &str) -> anyhow::Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let spec = TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..Default::default() };
        let request = TokenRequest { spec, ..Default::default() };
        let answer = accounts.create_token_request(name, &Default::default(), &request).await;
        let answer = answer.with_context(|| format!("asking for a token of {namespace}/{name}"))?;
        Ok(answer.status.context("the answer has no token")?.token)
    }

    /// Writes a kubeconfig file for whoever holds `token`, such as a service account's.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_kubeconfig(&self, path: &Path, token: &str) -> anyhow::Result<()> {
        self.write_kubeconfig_through(path, token, &self.url())
    }

    /// The same with another address in it, such as a rewriting proxy's.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_kubeconfig_through(&self, path: &Path, token: &str, url: &str) -> anyhow::Result<()> {
        write_kubeconfig(path, &self.name, url, &self.certificate_authority_path(), token)
    }

    /// What was asked of the API server; `None` when it was started without the log.
    pub fn audit(&self) -> Option<&AuditLog> {
        self.audit.as_ref()
    }

    /// The API server's process, to pause or kill it.
    pub fn api_server(&self) -> &Supervised {
        &self.api_server
    }

    /// The controller manager's process, to pause or kill it.
    pub fn controller_manager(&self) -> &Supervised {
        &self.controller_manager
    }

    /// The scheduler's process, if there is one.
    pub fn scheduler(&self) -> Option<&Supervised> {
        self.scheduler.as_ref()
    }

    /// etcd's process.
    pub fn etcd(&self) -> &Supervised {
        &self.etcd
    }

    /// Ends everything in order: controllers, API server, etcd.
    pub async fn stop(self) {
        let scheduler = async {
            if let Some(scheduler) = &self.scheduler {
                scheduler.stop(STOP_GRACE).await;
            }
        };
        tokio::join!(scheduler, self.controller_manager.stop(STOP_GRACE));
        self.api_server.stop(STOP_GRACE).await;
        self.etcd.stop(STOP_GRACE).await;
    }
}

/// Whether a program still runs; its end is an error that shows why.
fn check_running(process: &Supervised) -> anyhow::Result<()> {
    if let Some(status) = process.exit_status() {
        bail!("{} ended ({status}); the end of its log:\n{}", process.name(), process.log_tail());
    }
    Ok(())
}

/// Waits until `look` gives a value, or one of the programs ends.
async fn started<T, Look, Looking>(what: &str, programs: &[&Supervised], mut look: Look) -> anyhow::Result<T>
where
    Look: FnMut() -> Looking,
    Looking: Future<Output = Result<T, String>>,
{
    let outcome = wait::until(what, START_BOUND, || {
        let ended = programs.iter().find_map(|program| check_running(program).err());
        let looking = look();
        async move {
            match ended {
                Some(error) => Ok(Err(error)),
                None => looking.await.map(Ok),
            }
        }
    });
    outcome.await?
}

/// The servers that must be ready before their clients start.
struct Servers {
    etcd: Supervised,
    api_server: Supervised,
    client: Client,
    ports: Ports,
}

impl Servers {
    async fn start(
        binaries: &Binaries,
        layout: &Layout,
        ports: Ports,
        credentials: &Credentials,
        settings: &ControlPlaneSettings,
    ) -> anyhow::Result<Self> {
        // Logs of a failed try would be read as this one's.
        let _ = std::fs::remove_dir_all(layout.folder.join("logs"));
        let etcd = Supervised::start(flags::etcd(binaries, layout, ports))?;
        // The API server retries until etcd answers.
        let api_server =
            Supervised::start(flags::api_server(binaries, layout, ports, credentials, settings, API_SERVER))?;
        let programs = [&etcd, &api_server];
        let authority = layout.certificate_authority();
        started("the API server's certificate", &programs, || {
            let written = std::fs::metadata(&authority).is_ok_and(|metadata| metadata.len() > 0);
            std::future::ready(written.then_some(()).ok_or_else(|| "no certificate yet".to_owned()))
        })
        .await?;

        let url = url(ports.api_server);
        for (name, token) in [
            ("admin", &credentials.admin_token),
            ("controller-manager", &credentials.controller_manager_token),
            ("scheduler", &credentials.scheduler_token),
        ] {
            write_kubeconfig(&layout.kubeconfig(name), &settings.name, &url, &authority, token)?;
        }
        let client = client_of(&layout.kubeconfig("admin")).await?;
        started("the API server to be ready", &programs, || {
            let client = client.clone();
            async move { readiness(&client).await }
        })
        .await?;
        Ok(Self { etcd, api_server, client, ports })
    }

    async fn finish(
        self,
        binaries: &Binaries,
        folder: Folder,
        credentials: Credentials,
        settings: ControlPlaneSettings,
    ) -> anyhow::Result<ControlPlane> {
        let Self { etcd, api_server, client, ports } = self;
        let layout = Layout { folder: folder.path().to_owned() };
        ports.remember(&layout)?;
        let manager = flags::controller_manager(binaries, &layout, &credentials, &settings);
        let controller_manager = Supervised::start(manager)?;
        let scheduler = match settings.scheduler {
            true => Some(Supervised::start(flags::scheduler(binaries, &layout, &settings))?),
            false => None,
        };
        let mut programs = vec![&etcd, &api_server, &controller_manager];
        programs.extend(&scheduler);
        let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
        started("the default service account", &programs, || async {
            accounts.get("default").await.map(drop).map_err(|error| error.to_string())
        })
        .await?;
        Ok(ControlPlane {
            name: settings.name.clone(),
            port: ports.api_server,
            admin_token: credentials.admin_token,
            scheduler,
            controller_manager,
            api_server,
            etcd,
            audit: settings.audit.then(|| AuditLog::new(layout.audit_log(API_SERVER))),
            settings,
            ports,
            layout,
            _folder: folder,
        })
    }
}

async fn readiness(client: &Client) -> Result<(), String> {
    let request = http::Request::get("/readyz").body(Vec::new()).map_err(|error| error.to_string())?;
    match client.request_text(request).await {
        Ok(text) if text == "ok" => Ok(()),
        Ok(text) => Err(text),
        Err(error) => Err(error.to_string()),
    }
}

async fn client_of(kubeconfig: &Path) -> anyhow::Result<Client> {
    let shown = || format!("reading {}", kubeconfig.display());
    let file = Kubeconfig::read_from(kubeconfig).with_context(shown)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.with_context(shown)?;
    client_with(config)
}

/// A client without the library's own retries: a test must see each answer, and count each request.
fn client_with(mut config: Config) -> anyhow::Result<Client> {
    config.default_retry = false;
    Client::try_from(config).context("making a client")
}

fn url(port: u16) -> String {
    format!("https://{}", loopback(port))
}

/// The ports of one control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ports {
    api_server: u16,
    etcd_client: u16,
    etcd_peer: u16,
}

impl Ports {
    fn free() -> anyhow::Result<Self> {
        let ports = free_ports(3).context("picking free ports")?;
        let [api_server, etcd_client, etcd_peer] = ports[..] else { bail!("picking free ports gave too few") };
        Ok(Self { api_server, etcd_client, etcd_peer })
    }

    /// The ports of the last run in this folder, so that addresses that were handed out stay good.
    fn remembered_or_free(layout: &Layout) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(layout.ports()).unwrap_or_default();
        let ports: Vec<u16> = text.split_whitespace().filter_map(|port| port.parse().ok()).collect();
        match ports[..] {
            [api_server, etcd_client, etcd_peer] if ports.iter().all(|port| is_free(*port)) => {
                Ok(Self { api_server, etcd_client, etcd_peer })
            }
            _ => Self::free(),
        }
    }

    fn remember(self, layout: &Layout) -> anyhow::Result<()> {
        let text = format!("{} {} {}\n", self.api_server, self.etcd_client, self.etcd_peer);
        std::fs::write(layout.ports(), text).context("writing down the ports")
    }
}

/// Where things are in a control plane's folder.
#[derive(Clone, Debug)]
struct Layout {
    folder: PathBuf,
}

impl Layout {
    fn log(&self, program: &str) -> PathBuf {
        self.folder.join("logs").join(format!("{program}.log"))
    }

    fn certificates(&self) -> PathBuf {
        self.folder.join("certificates")
    }

    /// The API server writes its certificate and the one that signed it into one file.
    fn certificate_authority(&self) -> PathBuf {
        self.certificates().join("apiserver.crt")
    }

    fn kubeconfig(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.kubeconfig"))
    }

    fn audit_policy(&self) -> PathBuf {
        self.folder.join("audit-policy.yaml")
    }

    fn audit_log(&self, server: &str) -> PathBuf {
        self.folder.join(format!("{server}.audit.log"))
    }

    fn ports(&self) -> PathBuf {
        self.folder.join("ports")
    }
}

/// The folder of a control plane, held by this process alone.
#[derive(Debug)]
enum Folder {
    Kept { path: PathBuf, _owner: File },
    ThrownAway(RunFolder),
}

impl Folder {
    async fn open(settings: &ControlPlaneSettings) -> anyhow::Result<Self> {
        let Some(folder) = &settings.data_dir else {
            let cache = Cache::from_environment(&Environment::process())?;
            return Ok(Self::ThrownAway(cache.run_folder("control-plane").await?));
        };
        let path = std::path::absolute(folder).with_context(|| format!("resolving {}", folder.display()))?;
        std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        let lock = path.join("owner.lock");
        let owner = File::options().create(true).truncate(false).write(true).open(&lock);
        let owner = owner.with_context(|| format!("opening {}", lock.display()))?;
        if owner.try_lock().is_err() {
            bail!("{} belongs to a control plane that runs", path.display());
        }
        Ok(Self::Kept { path, _owner: owner })
    }

    fn path(&self) -> &Path {
        match self {
            Self::Kept { path, .. } => path,
            Self::ThrownAway(folder) => folder.path(),
        }
    }
}
