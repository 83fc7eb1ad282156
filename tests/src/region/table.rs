//! A region's two tables: in a file, or on a server that speaks DynamoDB's protocol.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
pub use gco_bed::table_server::Kind as TableKind;
use gco_bed::table_server::TableServer;
use gco_bed::wait;
use gco_runtime::clock::{Clock as _, SystemClock};
use gco_runtime::random::{Randomness as _, SystemRandomness};
use gco_store::dynamodb::{DynamoDbSettings, DynamoDbTable};
use gco_store::embedded::EmbeddedTable;
use gco_store::index::{Part, PartState};
use gco_store::table::Table;
use tokio::sync::OnceCell;

/// How long a server may take to make an index of an empty table.
const INDEX_BOUND: Duration = Duration::from_secs(60);

/// The region that a monitor looks for a table server's tables in.
const TABLE_REGION: &str = "us-east-2";

static MINISTACK: OnceCell<TableServer> = OnceCell::const_new();
static DYNALITE: OnceCell<TableServer> = OnceCell::const_new();
static MOTO: OnceCell<TableServer> = OnceCell::const_new();

/// Both tables of a region, made and empty. Clones are the same tables.
#[derive(Clone, Debug)]
pub struct TestTable {
    store: Arc<dyn Table>,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    File { path: PathBuf, _folder: Arc<tempfile::TempDir> },
    Server { address: SocketAddr, name: String },
}

impl TestTable {
    /// Tables in a file of their own.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub async fn embedded() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("making a folder for a table")?;
        let path = folder.path().join("table.sqlite");
        let store = EmbeddedTable::open(&path)?;
        store.create_tables().await?;
        Ok(Self { store: Arc::new(store), place: Place::File { path, _folder: Arc::new(folder) } })
    }

    /// Tables with names of their own on the server that this binary's tests share.
    ///
    /// # Errors
    /// When the server does not start, or refuses to make tables.
    pub async fn on_server(kind: TableKind) -> anyhow::Result<Self> {
        let cell = match kind {
            TableKind::Ministack => &MINISTACK,
            TableKind::Dynalite => &DYNALITE,
            TableKind::Moto => &MOTO,
        };
        let address = cell.get_or_try_init(|| TableServer::start(kind)).await?.address();
        let name = format!("endpoints-{}", &SystemRandomness.token()[..8]);
        let clock = Arc::new(|| SystemClock.boot().elapsed_since_boot());
        let settings = DynamoDbSettings {
            endpoint_url: Some(format!("http://{address}")),
            ..DynamoDbSettings::new(&name, TABLE_REGION, clock)
        };
        let store = DynamoDbTable::connect(settings).await?;
        store.create_tables().await?;
        Ok(Self { store: Arc::new(store), place: Place::Server { address, name } })
    }

    /// The same tables with a change index that can be used.
    ///
    /// # Errors
    /// When the server makes none.
    pub async fn with_change_index(self) -> anyhow::Result<Self> {
        self.store.create(Part::ChangeIndex).await?;
        wait::until("the change index to be ready", INDEX_BOUND, || async {
            match self.store.inspect(Part::ChangeIndex).await {
                Ok(PartState::Ready) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
        Ok(self)
    }

    /// The suite's own access, past any proxy.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Table> {
        &self.store
    }

    /// The file that it is in; `None` for a server.
    #[must_use]
    pub fn file(&self) -> Option<&std::path::Path> {
        match &self.place {
            Place::File { path, .. } => Some(path),
            Place::Server { .. } => None,
        }
    }

    /// Where its server is; `None` for a file.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.place {
            Place::File { .. } => None,
            Place::Server { address, .. } => Some(*address),
        }
    }

    /// The variables that tell a monitor of it; `url`: through this address.
    #[must_use]
    pub fn environment(&self, url: Option<&str>) -> Vec<(String, String)> {
        let variables = match &self.place {
            Place::File { path, .. } => vec![("GCO_TABLE", format!("embedded:{}", path.display()))],
            Place::Server { address, name } => vec![
                ("GCO_TABLE", "dynamodb".to_owned()),
                ("INFERENCE_ENDPOINTS_TABLE_NAME", name.clone()),
                ("DYNAMODB_ENDPOINT_URL", url.map_or_else(|| format!("http://{address}"), str::to_owned)),
                ("DYNAMODB_REGION", TABLE_REGION.to_owned()),
            ],
        };
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}
