//! A further API server over the same etcd: what a cluster with several control plane machines has.

use std::path::PathBuf;

use anyhow::Context as _;
use kube::Client;

use super::credentials::Credentials;
use super::{AuditLog, ControlPlane, PORT_TRIES, Ports, flags, readiness, started, url};
use crate::binaries::Binaries;
use crate::ports::{free_ports, lost_port};
use crate::process::Supervised;

/// A further API server. It shares certificates, keys and tokens with the first, so that everybody's credentials are good
/// at both; its caches are its own. Dropping it kills it.
pub struct AnotherApiServer {
    port: u16,
    process: Supervised,
    audit: Option<AuditLog>,
    admin: Client,
}

impl std::fmt::Debug for AnotherApiServer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("AnotherApiServer").field("process", &self.process).finish_non_exhaustive()
    }
}

impl AnotherApiServer {
    /// Its address, `https://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        url(self.port)
    }

    /// Its process, to pause or kill it.
    pub fn process(&self) -> &Supervised {
        &self.process
    }

    /// What was asked of it; `None` when the control plane was started without the log.
    pub fn audit(&self) -> Option<&AuditLog> {
        self.audit.as_ref()
    }

    /// An administrator's client that goes to it. It belongs to the runtime that it was made in.
    pub fn client(&self) -> &Client {
        &self.admin
    }
}

impl ControlPlane {
    /// Starts a further API server and returns when it is ready. `name` tells its files from other servers'.
    ///
    /// # Errors
    /// When it does not start; then with the end of its log.
    pub async fn another_api_server(&self, name: &str) -> anyhow::Result<AnotherApiServer> {
        let binaries = Binaries::ready().await?;
        let credentials = Credentials::load_or_create(&self.layout.folder)?;
        for _ in 1..PORT_TRIES {
            match self.try_another(&binaries, &credentials, name).await {
                Err(error) if lost_port(&format!("{error:#}")) => {}
                result => return result,
            }
        }
        self.try_another(&binaries, &credentials, name).await
    }

    async fn try_another(
        &self,
        binaries: &Binaries,
        credentials: &Credentials,
        name: &str,
    ) -> anyhow::Result<AnotherApiServer> {
        let port = free_ports(1).context("picking a free port")?.first().copied().context("no free port")?;
        let ports = Ports { api_server: port, ..self.ports };
        let settings = flags::api_server(binaries, &self.layout, ports, credentials, &self.settings, name);
        let process = Supervised::start(settings)?;
        let admin = self.client_with_token(&url(port), &self.admin_token)?;
        started("the further API server to be ready", &[&process], || {
            let admin = admin.clone();
            async move { readiness(&admin).await }
        })
        .await?;
        let log: PathBuf = self.layout.audit_log(name);
        Ok(AnotherApiServer { port, process, audit: self.settings.audit.then(|| AuditLog::new(log)), admin })
    }
}
