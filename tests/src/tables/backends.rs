//! The backends under test: the embedded table, and the real client on every table server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gco_bed::table_server::{Kind, TableServer};
use gco_runtime::clock::{Clock as _, SystemClock};
use gco_store::dynamodb::{DynamoDbSettings, DynamoDbTable};
use gco_store::embedded::EmbeddedTable;
use gco_store::table::Table;

/// The region that requests to a server are signed for; both servers take any.
const REGION: &str = "us-east-1";

/// A table to execute transitions on.
#[derive(Clone, Debug)]
pub struct Backend {
    /// `embedded`, `ministack`, `dynalite` or `moto`.
    pub name: &'static str,
    /// The table.
    pub table: Arc<dyn Table>,
}

/// How long the client tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// One request.
    pub call: Duration,
    /// One operation with all its requests.
    pub total: Duration,
}

impl Times {
    /// Long enough for a machine that compiles meanwhile.
    pub const PATIENT: Self = Self { call: Duration::from_secs(15), total: Duration::from_secs(60) };
}

/// Every table server, and a folder for embedded tables.
#[derive(Debug)]
pub struct Servers {
    /// ministack.
    pub ministack: TableServer,
    /// dynalite.
    pub dynalite: TableServer,
    /// moto, with one thread.
    pub moto: TableServer,
    folder: tempfile::TempDir,
}

impl Servers {
    /// Starts all servers.
    ///
    /// # Errors
    /// A server that cannot be installed or started.
    pub async fn start() -> anyhow::Result<Self> {
        let (ministack, dynalite, moto) = tokio::try_join!(
            TableServer::start(Kind::Ministack),
            TableServer::start(Kind::Dynalite),
            TableServer::start(Kind::Moto)
        )?;
        Ok(Self { ministack, dynalite, moto, folder: tempfile::tempdir()? })
    }

    /// Every server by name.
    #[must_use]
    pub fn all(&self) -> [(&'static str, &TableServer); 3] {
        [("ministack", &self.ministack), ("dynalite", &self.dynalite), ("moto", &self.moto)]
    }

    /// The two servers that answer several requests at once, by name.
    #[must_use]
    pub fn both(&self) -> [(&'static str, &TableServer); 2] {
        [("ministack", &self.ministack), ("dynalite", &self.dynalite)]
    }

    /// The file of an embedded table.
    #[must_use]
    pub fn embedded_file(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.sqlite"))
    }

    /// Empty tables of this name on every backend.
    ///
    /// # Errors
    /// A table that cannot be made.
    pub async fn fresh_tables(&self, name: &str) -> anyhow::Result<Vec<Backend>> {
        let embedded = EmbeddedTable::open(&self.embedded_file(name))?;
        let mut backends = vec![Backend { name: "embedded", table: Arc::new(embedded) }];
        for (server_name, server) in self.all() {
            let table = Arc::new(connect(&server.url(), name, Times::PATIENT).await?);
            backends.push(Backend { name: server_name, table });
        }
        for backend in &backends {
            backend.table.create_tables().await?;
        }
        Ok(backends)
    }
}

/// The product's client for a table behind `url`.
///
/// # Errors
/// Settings that the client refuses.
pub async fn connect(url: &str, table: &str, times: Times) -> anyhow::Result<DynamoDbTable> {
    let clock = Arc::new(|| SystemClock.boot().elapsed_since_boot());
    let mut settings = DynamoDbSettings::new(table, REGION, clock);
    settings.endpoint_url = Some(url.to_owned());
    settings.call_time_out = times.call;
    settings.total_time = times.total;
    Ok(DynamoDbTable::connect(settings).await?)
}
