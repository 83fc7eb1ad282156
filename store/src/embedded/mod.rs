//! A SQLite file with the same semantics.
//!
//! For one machine: `gco local`, tests, trying things out. Several processes may share the file. Rows are stored as
//! DynamoDB JSON text by key; conditions are evaluated by [`crate::transition::Condition::holds`] inside an immediate
//! transaction, so that exactly one of several racing writers wins. Every read is a strong one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};

use crate::index::{ChangeRead, INDEX_NAME, IndexEntry, Part, PartState, STATES};
use crate::problem::FieldProblem;
use crate::table::{
    Consistency, ErrorCategory, FullRead, Outcome, RegionHeartbeat, RegionItem, Table, TableDescription, TableError,
};
use crate::transition::Transition;
use crate::wire::{Item, Value, item_from_dynamodb_json, item_to_dynamodb_json};

/// How long a call waits for another process's write. Writes take milliseconds.
const BUSY_TIME_OUT: Duration = Duration::from_secs(10);

/// Both tables in one SQLite file.
#[derive(Clone)]
pub struct EmbeddedTable {
    file: PathBuf,
    connection: Arc<Mutex<Connection>>,
}

impl std::fmt::Debug for EmbeddedTable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("EmbeddedTable").field("file", &self.file).finish_non_exhaustive()
    }
}

/// One of the two tables of the file.
#[derive(Clone, Copy)]
enum Kind {
    Endpoints,
    Regions,
}

impl Kind {
    fn select(self) -> &'static str {
        match self {
            Self::Endpoints => "SELECT item FROM endpoints WHERE key = ?1",
            Self::Regions => "SELECT item FROM regions WHERE key = ?1",
        }
    }

    fn select_all(self) -> &'static str {
        match self {
            Self::Endpoints => "SELECT key, item FROM endpoints ORDER BY key",
            Self::Regions => "SELECT key, item FROM regions ORDER BY key",
        }
    }

    fn upsert(self) -> &'static str {
        match self {
            Self::Endpoints => {
                "INSERT INTO endpoints (key, item) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET item = excluded.item"
            }
            Self::Regions => {
                "INSERT INTO regions (key, item) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET item = excluded.item"
            }
        }
    }
}

impl EmbeddedTable {
    /// Opens the file, or makes an empty one (without tables; see [`Table::create_tables`]).
    ///
    /// Does file I/O; call it outside of asynchronous code or accept a short block.
    ///
    /// # Errors
    /// A path that cannot be opened, or that is no SQLite file.
    pub fn open(file: &Path) -> Result<Self, TableError> {
        let open = || -> rusqlite::Result<Connection> {
            let connection = Connection::open(file)?;
            connection.busy_timeout(BUSY_TIME_OUT)?;
            // Readers then never wait for a writer. Kept in the file: only its first opener changes anything.
            let _: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
            Ok(connection)
        };
        // Of several processes that open a new file at once, all but one may be told "busy" without having waited.
        const TRIES: u32 = 100;
        let mut result = open();
        for _ in 1..TRIES {
            match &result {
                Err(error) if is_busy(error) => {
                    std::thread::park_timeout(Duration::from_millis(20));
                    result = open();
                }
                _ => break,
            }
        }
        let connection = result.map_err(|error| failed("Open", &error))?;
        Ok(Self { file: file.to_owned(), connection: Arc::new(Mutex::new(connection)) })
    }

    /// Runs `work` with the connection on a thread that may block.
    async fn run<T, F>(&self, operation: &'static str, work: F) -> Result<T, TableError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> Result<T, TableError> + Send + 'static,
    {
        let connection = Arc::clone(&self.connection);
        let task = tokio::task::spawn_blocking(move || {
            // A panic while the lock was held left no half transaction: dropping one rolls it back.
            work(&mut connection.lock().unwrap_or_else(PoisonError::into_inner))
        });
        let stopped = |error: tokio::task::JoinError| {
            TableError::new(ErrorCategory::Unknown, operation, format!("the call was cut off: {error}"))
        };
        task.await.map_err(stopped)?
    }

    /// Reads, changes and writes one item of the second table in a transaction.
    async fn change_region<F>(&self, region: &str, change: F) -> Result<RegionItem, TableError>
    where
        F: FnOnce(&mut Item) + Send + 'static,
    {
        const OPERATION: &str = "UpdateItem";
        let region = region.to_owned();
        self.run(OPERATION, move |connection| {
            let transaction = begin(OPERATION, connection)?;
            let mut item = read(OPERATION, &transaction, Kind::Regions, &region)?.unwrap_or_default();
            item.insert(RegionHeartbeat::KEY.to_owned(), Value::from(region.as_str()));
            change(&mut item);
            write(OPERATION, &transaction, Kind::Regions, &region, &item)?;
            transaction.commit().map_err(|error| failed(OPERATION, &error))?;
            Ok(RegionItem::parse(&item))
        })
        .await
    }
}

#[async_trait::async_trait]
impl Table for EmbeddedTable {
    async fn get(&self, name: &str, _: Consistency) -> Result<Option<Item>, TableError> {
        let name = name.to_owned();
        self.run("GetItem", move |connection| read("GetItem", connection, Kind::Endpoints, &name)).await
    }

    async fn read_all(&self, _: Consistency) -> Result<FullRead, TableError> {
        const OPERATION: &str = "Scan";
        self.run(OPERATION, |connection| {
            let items = read_all(OPERATION, connection, Kind::Endpoints)?.into_iter().map(|(_, item)| item).collect();
            Ok(FullRead { items, pages: 1, consumed_read_units: None })
        })
        .await
    }

    async fn execute(&self, transition: &Transition) -> Result<Outcome, TableError> {
        let transition = transition.clone();
        let operation = transition.write.server_operation();
        self.run(operation, move |connection| {
            let transaction = begin(operation, connection)?;
            let current = read(operation, &transaction, Kind::Endpoints, &transition.name)?;
            let outcome = transition.evaluate(current).map_err(|problem| invalid(operation, &problem))?;
            match &outcome {
                Outcome::Refused(_) => return Ok(outcome),
                Outcome::Applied(Some(item)) => {
                    write(operation, &transaction, Kind::Endpoints, &transition.name, item)?;
                }
                Outcome::Applied(None) => {
                    let delete = "DELETE FROM endpoints WHERE key = ?1";
                    transaction.execute(delete, params![transition.name]).map_err(|error| failed(operation, &error))?;
                }
            }
            transaction.commit().map_err(|error| failed(operation, &error))?;
            Ok(outcome)
        })
        .await
    }

    async fn check(&self) -> Result<TableDescription, TableError> {
        const OPERATION: &str = "DescribeTable";
        self.run(OPERATION, |connection| {
            if has(OPERATION, connection, Part::Endpoints)? && has(OPERATION, connection, Part::Regions)? {
                let change_index = part_state(has(OPERATION, connection, Part::ChangeIndex)?);
                return Ok(TableDescription { replicas: Vec::new(), multi_region_consistency: None, change_index });
            }
            Err(TableError::new(ErrorCategory::Table, OPERATION, "the file holds no endpoint table"))
        })
        .await
    }

    async fn write_heartbeat(&self, heartbeat: &RegionHeartbeat, time_out: Duration) -> Result<RegionItem, TableError> {
        let attributes = heartbeat.to_attributes();
        let write = self.change_region(&heartbeat.region, move |item| item.extend(attributes));
        let late = |_| TableError::new(ErrorCategory::Unavailable, "UpdateItem", "no answer in time");
        tokio::time::timeout(time_out, write).await.map_err(late)?
    }

    async fn set_frozen(&self, region: &str, frozen: bool) -> Result<RegionItem, TableError> {
        let freeze = move |item: &mut Item| {
            item.insert(RegionItem::FREEZE.to_owned(), Value::Bool(frozen));
        };
        self.change_region(region, freeze).await
    }

    async fn clear_restarts(&self, region: &str, at: &str) -> Result<RegionItem, TableError> {
        let at = Value::from(at);
        let clear = move |item: &mut Item| {
            item.insert(RegionItem::RESTARTS_CLEARED_AT.to_owned(), at);
        };
        self.change_region(region, clear).await
    }

    async fn read_region(&self, region: &str) -> Result<Option<RegionItem>, TableError> {
        let region = region.to_owned();
        let item = self.run("GetItem", move |connection| read("GetItem", connection, Kind::Regions, &region)).await?;
        Ok(item.as_ref().map(RegionItem::parse))
    }

    async fn read_regions(&self) -> Result<BTreeMap<String, RegionItem>, TableError> {
        let items = self.run("Scan", |connection| read_all("Scan", connection, Kind::Regions)).await?;
        Ok(items.iter().map(|(region, item)| (region.clone(), RegionItem::parse(item))).collect())
    }

    async fn changed_since(&self, since: &str) -> Result<ChangeRead, TableError> {
        const OPERATION: &str = "Query";
        let since = since.to_owned();
        self.run(OPERATION, move |connection| {
            // SQLite would search the whole table instead; a server would refuse.
            if !has(OPERATION, connection, Part::ChangeIndex)? {
                return Err(TableError::new(ErrorCategory::Invalid, OPERATION, "the table has no change index"));
            }
            let failed = |error: rusqlite::Error| failed(OPERATION, &error);
            let mut statement = connection.prepare_cached(SELECT_CHANGED).map_err(failed)?;
            let mut read = ChangeRead::default();
            for state in STATES {
                let entry = |row: &rusqlite::Row<'_>| Ok(IndexEntry { name: row.get(0)?, updated_at: row.get(1)? });
                let rows = statement.query_map(params![state, since], entry).map_err(failed)?;
                for row in rows {
                    read.entries.push(row.map_err(failed)?);
                }
                read.pages += 1;
            }
            Ok(read)
        })
        .await
    }

    async fn inspect(&self, part: Part) -> Result<PartState, TableError> {
        const OPERATION: &str = "DescribeTable";
        self.run(OPERATION, move |connection| Ok(part_state(has(OPERATION, connection, part)?))).await
    }

    async fn create(&self, part: Part) -> Result<(), TableError> {
        const OPERATION: &str = "CreateTable";
        let create = match part {
            Part::Endpoints => {
                "CREATE TABLE IF NOT EXISTS endpoints (key TEXT PRIMARY KEY, item TEXT NOT NULL) STRICT".to_owned()
            }
            Part::Regions => {
                "CREATE TABLE IF NOT EXISTS regions (key TEXT PRIMARY KEY, item TEXT NOT NULL) STRICT".to_owned()
            }
            Part::ChangeIndex => format!(
                "CREATE INDEX IF NOT EXISTS \"{INDEX_NAME}\" ON endpoints (json_extract(item, '$.desired_state.S'), \
                 json_extract(item, '$.updated_at.S'))"
            ),
        };
        self.run(OPERATION, move |connection| {
            connection.execute_batch(&create).map_err(|error| failed(OPERATION, &error))
        })
        .await
    }
}

/// The index's expressions, word for word: otherwise SQLite does not use it.
const SELECT_CHANGED: &str = "SELECT key, json_extract(item, '$.updated_at.S') FROM endpoints \
     WHERE json_extract(item, '$.desired_state.S') = ?1 AND json_extract(item, '$.updated_at.S') >= ?2";

/// Whether the file holds a part.
fn has(operation: &'static str, connection: &Connection, part: Part) -> Result<bool, TableError> {
    let (kind, name) = match part {
        Part::Endpoints => ("table", "endpoints"),
        Part::Regions => ("table", "regions"),
        Part::ChangeIndex => ("index", INDEX_NAME),
    };
    let select = "SELECT count(*) FROM sqlite_master WHERE type = ?1 AND name = ?2";
    let count: i64 = connection
        .query_row(select, params![kind, name], |row| row.get(0))
        .map_err(|error| failed(operation, &error))?;
    Ok(count > 0)
}

fn part_state(is_there: bool) -> PartState {
    if is_there { PartState::Ready } else { PartState::Missing }
}

/// A transaction that owns the write lock from its start: what it reads cannot change before it writes.
fn begin<'a>(operation: &'static str, connection: &'a mut Connection) -> Result<rusqlite::Transaction<'a>, TableError> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|error| failed(operation, &error))
}

fn read(operation: &'static str, connection: &Connection, kind: Kind, key: &str) -> Result<Option<Item>, TableError> {
    if key.is_empty() {
        return Err(TableError::new(ErrorCategory::Invalid, operation, "the key must not be empty"));
    }
    let select = || connection.prepare_cached(kind.select())?.query_row(params![key], |row| row.get(0)).optional();
    let text: Option<String> = select().map_err(|error| failed(operation, &error))?;
    text.map(|text| decode(operation, &text)).transpose()
}

/// Every key and item. One statement sees one moment of the file, whatever other processes write meanwhile.
fn read_all(operation: &'static str, connection: &Connection, kind: Kind) -> Result<Vec<(String, Item)>, TableError> {
    let failed = |error: rusqlite::Error| failed(operation, &error);
    let mut statement = connection.prepare_cached(kind.select_all()).map_err(failed)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, String>(1)?))).map_err(failed)?;
    rows.map(|row| {
        let (key, text) = row.map_err(failed)?;
        Ok((key, decode(operation, &text)?))
    })
    .collect()
}

fn write(
    operation: &'static str,
    connection: &Connection,
    kind: Kind,
    key: &str,
    item: &Item,
) -> Result<(), TableError> {
    let text = item_to_dynamodb_json(item).to_string();
    connection.execute(kind.upsert(), params![key, text]).map_err(|error| failed(operation, &error))?;
    Ok(())
}

fn decode(operation: &'static str, text: &str) -> Result<Item, TableError> {
    let damaged = |message: String| TableError::new(ErrorCategory::Table, operation, format!("damaged row: {message}"));
    let json: serde_json::Value = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    item_from_dynamodb_json(&json).map_err(|problem| damaged(problem.to_string()))
}

fn invalid(operation: &'static str, problem: &FieldProblem) -> TableError {
    TableError::new(ErrorCategory::Invalid, operation, problem.to_string())
}

fn is_busy(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
    matches!(error.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked))
}

/// SQLite failures; none of them leaves a half write, so that none is of an unknown outcome.
fn failed(operation: &'static str, error: &rusqlite::Error) -> TableError {
    use rusqlite::ErrorCode::{CannotOpen, NotADatabase, PermissionDenied, ReadOnly};
    let category = match error.sqlite_error_code() {
        Some(NotADatabase) => ErrorCategory::Table,
        Some(PermissionDenied | ReadOnly | CannotOpen) => ErrorCategory::Forbidden,
        _ if error.to_string().contains("no such table") => ErrorCategory::Table,
        _ => ErrorCategory::Unavailable,
    };
    TableError::new(category, operation, error.to_string())
}
