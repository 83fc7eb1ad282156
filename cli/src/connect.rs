//! Which table, and opening it.
//!
//! One rule: `--table` and `--local` first, then `GCO_LOCAL`, then `GCO_TABLE`, then DynamoDB. Every message about a table
//! says which one it was.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gco_runtime::clock::{Clock as _, SystemClock};
use gco_runtime::environment::Environment;
use gco_runtime::random::{Randomness as _, SystemRandomness};
use gco_store::dynamodb::{DynamoDbSettings, DynamoDbTable};
use gco_store::embedded::EmbeddedTable;
use gco_store::operations::{Store, StoreError};
use gco_store::problem::{FieldProblem, QUOTED_VALUE_CHARACTERS, bounded};
use gco_store::row::EndpointRow;
use gco_store::table::{Consistency, ErrorCategory, Table, TableError};

use crate::arguments::CommonFlags;
use crate::failure::Failure;
use crate::flags;
use crate::instance::{self, LocalInstance};
use crate::regions::KnownRegions;

const TABLE_VARIABLE: &str = "GCO_TABLE";
const LOCAL_VARIABLE: &str = "GCO_LOCAL";
const TABLE_NAME_VARIABLE: &str = "INFERENCE_ENDPOINTS_TABLE_NAME";
const DEFAULT_TABLE_NAME: &str = "gco-inference-endpoints";
/// Variables with the table's region, the first that is set counts.
const REGION_VARIABLES: [&str; 2] = ["DYNAMODB_REGION", "GCO_GLOBAL_REGION"];
const DEFAULT_TABLE_REGION: &str = "us-east-2";
const ENDPOINT_URL_VARIABLE: &str = "DYNAMODB_ENDPOINT_URL";
/// How long an operation is retried: a person waits.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a table may be called in a flag or variable.
const ALLOWED_TABLES: &str = "must be dynamodb or embedded:PATH";

/// Where the endpoints are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A DynamoDB table.
    DynamoDb {
        /// Its name; the regions' table is this plus `-regions`.
        table_name: String,
        /// Its region.
        region: String,
        /// Another server than AWS's.
        endpoint_url: Option<String>,
    },
    /// A file on this machine.
    Embedded(PathBuf),
}

impl Backend {
    /// Words for messages.
    #[must_use]
    pub fn described(&self) -> String {
        match self {
            Self::DynamoDb { table_name, region, endpoint_url: None } => format!("table {table_name} in {region}"),
            Self::DynamoDb { table_name, region, endpoint_url: Some(address) } => {
                format!("table {table_name} in {region} at {}", without_credentials(address))
            }
            Self::Embedded(path) => format!("table file {}", path.display()),
        }
    }
}

/// The table that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Where the endpoints are kept.
    pub backend: Backend,
    /// The local instance that the table belongs to, if one.
    pub local: Option<LocalInstance>,
}

impl Selection {
    /// Reads flags and environment.
    ///
    /// # Errors
    /// A wrong flag or variable, or an absent local instance.
    pub fn of(common: &CommonFlags, environment: &Environment) -> Result<Self, Failure> {
        if common.local && common.table.is_some() {
            return Err(Failure::usage("--local", "cannot be used with --table: each names a table"));
        }
        if let Some(table) = &common.table {
            return Self::named("--table", table, environment);
        }
        let local = environment.non_empty(LOCAL_VARIABLE);
        if common.local || local.is_some() {
            let asked = if common.local { "--local" } else { LOCAL_VARIABLE };
            if let Some(instance) = instance::find(asked, common.local, local, environment)? {
                return Ok(Self { backend: instance.backend.clone(), local: Some(instance) });
            }
        }
        Self::named(TABLE_VARIABLE, environment.non_empty(TABLE_VARIABLE).unwrap_or("dynamodb"), environment)
    }

    fn named(field: &str, text: &str, environment: &Environment) -> Result<Self, Failure> {
        let backend = backend(text, environment).map_err(|problems| {
            let problems = problems.into_iter().map(|problem| match problem.field.as_str() {
                "" => FieldProblem { field: field.to_owned(), ..problem },
                _ => problem,
            });
            Failure::Usage(problems.collect())
        })?;
        Ok(Self { backend, local: None })
    }

    /// The regions of the local instance, when its table was chosen.
    #[must_use]
    pub fn local_regions(&self) -> Option<KnownRegions> {
        let regions = self.local.as_ref()?.regions.clone();
        (!regions.is_empty()).then(|| KnownRegions { regions, source: "the local instance".to_owned() })
    }

    /// Opens the table.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub async fn open(&self) -> Result<Connection, Failure> {
        let table = open(&self.backend).await.map_err(|error| failed(&self.backend, &error))?;
        let now = Arc::new(|| SystemClock.wall());
        let token = Arc::new(|| SystemRandomness.token());
        let sleeper = Arc::new(|duration: Duration| -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
            Box::pin(tokio::time::sleep(duration))
        });
        let store = Store::new(Arc::clone(&table), now, token).with_sleeper(sleeper);
        Ok(Connection { table, store, described: self.backend.described(), backend: self.backend.clone() })
    }
}

/// Reads what a flag or variable says of the table; a problem without a field is of that flag or variable.
///
/// # Errors
/// Every problem of the text, and of the variables that it needs.
pub fn backend(text: &str, environment: &Environment) -> Result<Backend, Vec<FieldProblem>> {
    if let Some(path) = text.strip_prefix("embedded:") {
        if path.is_empty() {
            return Err(vec![FieldProblem::new("", format!("{ALLOWED_TABLES}; there is no path after 'embedded:'"))]);
        }
        return Ok(Backend::Embedded(PathBuf::from(path)));
    }
    if text != "dynamodb" {
        let shown = bounded(text, QUOTED_VALUE_CHARACTERS);
        return Err(vec![FieldProblem::new("", format!("{ALLOWED_TABLES}, got '{shown}'"))]);
    }
    let mut problems = Vec::new();
    let (variable, region) = REGION_VARIABLES
        .iter()
        .find_map(|variable| Some((*variable, environment.non_empty(variable)?)))
        .unwrap_or((REGION_VARIABLES[0], DEFAULT_TABLE_REGION));
    flags::regions(variable, &[region.to_owned()], &mut problems);
    let endpoint_url = environment.non_empty(ENDPOINT_URL_VARIABLE);
    if endpoint_url.is_some_and(|address| !address.starts_with("http://") && !address.starts_with("https://")) {
        problems.push(FieldProblem::new(ENDPOINT_URL_VARIABLE, "must be an http:// or https:// address"));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(Backend::DynamoDb {
        table_name: environment.non_empty(TABLE_NAME_VARIABLE).unwrap_or(DEFAULT_TABLE_NAME).to_owned(),
        region: region.to_owned(),
        endpoint_url: endpoint_url.map(str::to_owned),
    })
}

async fn open(backend: &Backend) -> Result<Arc<dyn Table>, TableError> {
    match backend {
        Backend::Embedded(path) => {
            // Opening would make an empty file, and a mistyped path would look like a table without endpoints.
            if !path.is_file() {
                let message = "there is no such file ('gco local up' makes one)";
                return Err(TableError::new(ErrorCategory::Table, "Open", message));
            }
            let path = path.clone();
            let opened = tokio::task::spawn_blocking(move || EmbeddedTable::open(&path)).await;
            let cut_off = |error: tokio::task::JoinError| {
                TableError::new(ErrorCategory::Unavailable, "Open", format!("the call was cut off: {error}"))
            };
            Ok(Arc::new(opened.map_err(cut_off)??))
        }
        Backend::DynamoDb { table_name, region, endpoint_url } => {
            gco_runtime::tls::install_provider();
            let clock = Arc::new(|| SystemClock.boot().elapsed_since_boot());
            let settings = DynamoDbSettings {
                endpoint_url: endpoint_url.clone(),
                total_time: PATIENCE,
                ..DynamoDbSettings::new(table_name, region, clock)
            };
            Ok(Arc::new(DynamoDbTable::connect(settings).await?))
        }
    }
}

/// An open table.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The tables.
    pub table: Arc<dyn Table>,
    /// The operations on endpoints.
    pub store: Store,
    /// Words for messages: which table it is.
    pub described: String,
    /// Where it is.
    pub backend: Backend,
}

impl Connection {
    /// Reads one row, strongly.
    ///
    /// # Errors
    /// When it is absent or cannot be read.
    pub async fn read(&self, name: &str) -> Result<EndpointRow, Failure> {
        let row = self.store.get(name, Consistency::Strong).await.map_err(|error| self.refused(error))?;
        row.ok_or_else(|| self.refused(StoreError::NotFound(name.to_owned())))
    }

    /// The failure of an operation, in words.
    #[must_use]
    pub fn refused(&self, error: StoreError) -> Failure {
        match error {
            StoreError::NotFound(_) => Failure::Refused(format!("{error} in {}", self.described)),
            StoreError::Operation(_) | StoreError::Conflict(_) => Failure::Refused(error.to_string()),
            StoreError::Table(error) => self.failed(&error),
        }
    }

    /// The failure of a call to the table, in words.
    #[must_use]
    pub fn failed(&self, error: &TableError) -> Failure {
        failed(&self.backend, error)
    }
}

fn failed(backend: &Backend, error: &TableError) -> Failure {
    let writes = ["PutItem", "UpdateItem", "DeleteItem"].contains(&error.operation);
    let hint = match (error.category, backend) {
        (ErrorCategory::Forbidden, Backend::DynamoDb { .. }) => "; check the credentials and their rights on the table",
        (ErrorCategory::Table, Backend::DynamoDb { .. }) => {
            "; check --table, the table's name and region, or deploy the infrastructure first"
        }
        (ErrorCategory::Throttled, _) => "; the table is busy, try again",
        (ErrorCategory::Unavailable, _) if writes => "; nothing was changed",
        (ErrorCategory::Unknown, _) => {
            "; it is not known whether the change was made, look with 'gco inference status'"
        }
        _ => "",
    };
    Failure::Refused(format!("{}: {error}{hint}", backend.described()))
}

/// An address without user and password.
fn without_credentials(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return bounded(address, QUOTED_VALUE_CHARACTERS) };
    let authority_end = rest.find('/').unwrap_or(rest.len());
    let host = rest[..authority_end].rsplit('@').next().unwrap_or_default();
    bounded(&format!("{scheme}://{host}"), QUOTED_VALUE_CHARACTERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(common: &CommonFlags, variables: &[(&str, &str)]) -> Result<Selection, Failure> {
        Selection::of(common, &Environment::from_pairs(variables.iter().copied()))
    }

    fn described(variables: &[(&str, &str)]) -> String {
        select(&CommonFlags::default(), variables).unwrap().backend.described()
    }

    #[test]
    fn without_any_setting_it_is_the_contracts_table_and_region() {
        assert_eq!(described(&[]), "table gco-inference-endpoints in us-east-2");
        assert_eq!(described(&[("GCO_GLOBAL_REGION", "eu-west-1")]), "table gco-inference-endpoints in eu-west-1");
        let both = [("GCO_GLOBAL_REGION", "eu-west-1"), ("DYNAMODB_REGION", "us-west-2"), (TABLE_NAME_VARIABLE, "t")];
        assert_eq!(described(&both), "table t in us-west-2");
    }

    #[test]
    fn an_address_is_shown_without_its_credentials() {
        let address = [("DYNAMODB_ENDPOINT_URL", "http://user:secret@127.0.0.1:8000/x?y=secret")];
        assert_eq!(described(&address), "table gco-inference-endpoints in us-east-2 at http://127.0.0.1:8000");
    }

    #[test]
    fn a_flag_wins_over_the_environment() {
        let common = CommonFlags { table: Some("embedded:/tmp/a".to_owned()), ..CommonFlags::default() };
        let selection = select(&common, &[("GCO_TABLE", "dynamodb"), ("GCO_LOCAL", "1")]).unwrap();
        assert_eq!(selection.backend, Backend::Embedded(PathBuf::from("/tmp/a")));
        assert_eq!(described(&[("GCO_TABLE", "embedded:/tmp/b")]), "table file /tmp/b");
    }

    #[test]
    fn a_wrong_table_is_named_by_flag_or_variable() {
        let common = CommonFlags { table: Some("mysql".to_owned()), ..CommonFlags::default() };
        assert!(
            select(&common, &[]).unwrap_err().messages()[0].starts_with("--table: must be dynamodb or embedded:PATH")
        );
        let said = select(&CommonFlags::default(), &[("GCO_TABLE", "embedded:")]).unwrap_err().messages();
        assert!(said[0].starts_with("GCO_TABLE: "), "{said:?}");
    }
}
