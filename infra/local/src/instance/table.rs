//! The table that the regions of an instance share.

use std::sync::Arc;

use anyhow::Context as _;
use gco_runtime::clock::{Clock as _, SystemClock};
use gco_runtime::environment::Environment;
use gco_runtime::random::{Randomness as _, SystemRandomness};
use gco_store::dynamodb::{DynamoDbSettings, DynamoDbTable};
use gco_store::embedded::EmbeddedTable;
use gco_store::operations::Store;
use gco_store::table::Table;

use super::folder::DataFolder;

/// Where a table at a DynamoDB address is said to be.
const TABLE_REGION: &str = "us-east-1";

const TABLE_NAME: &str = "gco-inference-endpoints";

/// Variables that a program needs to reach AWS, or a server that asks for credentials.
const CREDENTIALS: [&str; 6] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
];

/// Which table, and how others get to it.
#[derive(Clone, Debug)]
pub(super) struct SharedTable {
    pub(super) table: Arc<dyn Table>,
    /// As `GCO_TABLE` has it.
    pub(super) choice: String,
    pub(super) name: String,
    pub(super) region: Option<String>,
    pub(super) endpoint_url: Option<String>,
}

impl SharedTable {
    /// Opens the table at the address, or the file in the data folder; makes both tables when they
    /// are absent.
    pub(super) async fn open(folder: &DataFolder, endpoint_url: Option<&str>) -> anyhow::Result<Self> {
        let file = folder.table_file();
        let (table, choice): (Arc<dyn Table>, _) = match endpoint_url {
            None => {
                let path = file.clone();
                let opened = tokio::task::spawn_blocking(move || EmbeddedTable::open(&path)).await?;
                let table = opened.with_context(|| format!("opening the table {}", file.display()))?;
                (Arc::new(table), format!("embedded:{}", file.display()))
            }
            Some(url) => {
                gco_runtime::tls::install_provider();
                let clock = Arc::new(|| SystemClock.boot().elapsed_since_boot());
                let settings = DynamoDbSettings {
                    endpoint_url: Some(url.to_owned()),
                    ..DynamoDbSettings::new(TABLE_NAME, TABLE_REGION, clock)
                };
                let table = DynamoDbTable::connect(settings).await;
                (Arc::new(table.with_context(|| format!("opening the table at {url}"))?), "dynamodb".to_owned())
            }
        };
        table.create_tables().await.context("making the tables")?;
        Ok(Self {
            table,
            choice,
            name: TABLE_NAME.to_owned(),
            region: endpoint_url.map(|_| TABLE_REGION.to_owned()),
            endpoint_url: endpoint_url.map(str::to_owned),
        })
    }

    /// The variables by which a monitor finds it.
    pub(super) fn variables(&self, environment: &Environment) -> Vec<(String, String)> {
        let mut variables = vec![
            ("GCO_TABLE".to_owned(), self.choice.clone()),
            ("INFERENCE_ENDPOINTS_TABLE_NAME".to_owned(), self.name.clone()),
        ];
        if let (Some(region), Some(url)) = (&self.region, &self.endpoint_url) {
            variables.push(("DYNAMODB_REGION".to_owned(), region.clone()));
            variables.push(("DYNAMODB_ENDPOINT_URL".to_owned(), url.clone()));
            let named = |name: &&str| Some(((*name).to_owned(), environment.get(name)?.to_owned()));
            variables.extend(CREDENTIALS.iter().filter_map(named));
        }
        variables
    }

    /// The operations that the command line uses.
    pub(super) fn store(&self) -> Store {
        let now = Arc::new(|| SystemClock.wall());
        let token = Arc::new(|| SystemRandomness.token());
        Store::new(Arc::clone(&self.table), now, token)
    }
}
