//! Read, decide, execute; a lost race is read again and retried while the edit still makes sense (D-15).
//!
//! Nothing is cached: every operation starts with a strong read. Time, tokens and waiting come from the caller.

mod canary;
mod regions;

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::name;
use crate::problem::FieldProblem;
use crate::row::{DesiredState, EndpointRow, Refresh};
use crate::spec::AutoscalingEdit;
use crate::table::{Consistency, ErrorCategory, Outcome, Table, TableError};
use crate::transition::{self, CreateRequest, OperationError, Transition};
use crate::wire::{Item, Value};

/// Tries of one edit: with a status write every few seconds per region, losing eight races in a row means that something
/// is wrong with the row, not with luck.
const MOST_TRIES: u32 = 8;
/// First wait after a lost race; doubled for each further one.
const FIRST_WAIT: Duration = Duration::from_millis(20);
/// Longest wait after a lost race.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Tells the time.
pub type TimeSource = Arc<dyn Fn() -> Timestamp + Send + Sync>;
/// Mints a token: 32 random bytes as 64 lowercase hexadecimal digits.
pub type TokenSource = Arc<dyn Fn() -> String + Send + Sync>;
/// Waits.
pub type Sleeper = Arc<dyn Fn(Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Why an operation on an endpoint was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There is no such row.
    #[error("Endpoint '{0}' not found")]
    NotFound(String),
    /// The request or the row's state does not allow it.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// Somebody else changed what this edit was about; the contract's words (F.1).
    #[error("{0}")]
    Conflict(String),
    /// The table could not be read or written.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Which rows to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// Only rows that ask for this state.
    pub desired_state: Option<DesiredState>,
    /// Only rows that target this region.
    pub region: Option<String>,
}

/// The operations of the command line and of tools on endpoints.
#[derive(Clone)]
pub struct Store {
    table: Arc<dyn Table>,
    now: TimeSource,
    token: TokenSource,
    sleeper: Option<Sleeper>,
}

impl fmt::Debug for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Store").field("table", &self.table).finish_non_exhaustive()
    }
}

/// What one try of an edit decided.
enum Decision {
    /// Write this.
    Write(Transition),
    /// The row is already as asked.
    Done,
}

/// Words for messages about one edit.
#[derive(Clone, Copy)]
struct Words<'a> {
    /// As in "changed while being updated".
    participle: &'a str,
    /// As in "changed while initializing lifecycle identity".
    identity: &'a str,
    /// Whether a row that is being deleted may be edited.
    takes_deleted: bool,
}

impl<'a> Words<'a> {
    fn new(participle: &'a str) -> Self {
        Self { participle, identity: "lifecycle", takes_deleted: false }
    }
}

impl Store {
    /// Operations on `table`. Lost races are retried without waiting; see [`Store::with_sleeper`].
    #[must_use]
    pub fn new(table: Arc<dyn Table>, now: TimeSource, token: TokenSource) -> Self {
        Self { table, now, token, sleeper: None }
    }

    /// Waits between the tries of a lost race: doubling from 20 ms to 1 s, of which a random half to all.
    #[must_use]
    pub fn with_sleeper(self, sleeper: Sleeper) -> Self {
        Self { sleeper: Some(sleeper), ..self }
    }

    /// The table below.
    #[must_use]
    pub fn table(&self) -> &Arc<dyn Table> {
        &self.table
    }

    /// One row, or none.
    ///
    /// # Errors
    /// A failed read.
    pub async fn get(&self, name: &str, consistency: Consistency) -> Result<Option<EndpointRow>, StoreError> {
        self.table.get(name, consistency).await?.map(parse).transpose()
    }

    /// Rows that the filter takes, the newest first (by `created_at`, then by name). All pages (D-17).
    ///
    /// # Errors
    /// A failed read.
    pub async fn list(&self, filter: &ListFilter) -> Result<Vec<EndpointRow>, StoreError> {
        let rows = self.table.read_all(Consistency::Eventual).await?.items.into_iter().map(parse);
        let mut rows = rows.collect::<Result<Vec<_>, _>>()?;
        rows.retain(|row| {
            filter.desired_state.as_ref().is_none_or(|state| *state == row.desired_state)
                && filter.region.as_ref().is_none_or(|region| row.is_target(region))
        });
        rows.sort_by(|one, other| other.created_at.cmp(&one.created_at).then_with(|| one.name.cmp(&other.name)));
        Ok(rows)
    }

    /// Creates an endpoint (B.1). A name whose objects could collide with those of an existing row is refused (D-5). Two
    /// creates of colliding names at the same moment can both succeed; the monitors then report both as blocked.
    ///
    /// # Errors
    /// Bad fields; `Endpoint '<name>' already exists`; a failed call.
    pub async fn create(&self, request: &CreateRequest) -> Result<EndpointRow, StoreError> {
        let transition = transition::create(request, (self.now)(), &mut || (self.token)())?;
        let everything = self.table.read_all(Consistency::Strong).await?;
        let names = everything.items.iter().filter_map(|item| item.get("endpoint_name")?.as_str());
        let colliding = name::colliding(&request.name, names);
        if let Some(first) = colliding.first() {
            let message = format!("objects of this endpoint could be called like objects of the endpoint '{first}'");
            return Err(OperationError::Invalid(vec![FieldProblem::new("endpoint_name", message)]).into());
        }
        match self.table.execute(&transition).await? {
            Outcome::Applied(item) => applied(&transition, item),
            Outcome::Refused(_) => {
                Err(OperationError::State(format!("Endpoint '{}' already exists", request.name)).into())
            }
        }
    }

    /// Edits the spec of an endpoint: `edit` changes the spec in place and may refuse. It runs again on the newer row when
    /// the race was lost, unless one of the top-level fields that it changed was changed by somebody else as well.
    /// Returns the row as it is afterwards; nothing is written when `edit` changed nothing.
    ///
    /// # Errors
    /// An absent or deleted row, a refusal of `edit`, a bad spec, a conflict, a failed call.
    pub async fn update_spec_with<F>(&self, name: &str, edit: F) -> Result<EndpointRow, StoreError>
    where
        F: Fn(&EndpointRow, &mut Item) -> Result<(), OperationError> + Send + Sync,
    {
        self.update_spec_as(name, "updated", edit).await
    }

    /// [`Store::update_spec_with`], with the word for what is being done in messages: `updated`, `promoted` …
    ///
    /// # Errors
    /// As [`Store::update_spec_with`].
    pub async fn update_spec_as<F>(&self, name: &str, participle: &str, edit: F) -> Result<EndpointRow, StoreError>
    where
        F: Fn(&EndpointRow, &mut Item) -> Result<(), OperationError> + Send + Sync,
    {
        let edited = |row: &EndpointRow| -> Result<(Item, Item), OperationError> {
            let invalid = || OperationError::State(format!("Endpoint '{}' has an invalid spec", row.name));
            let before = row.spec.as_map().ok_or_else(invalid)?.clone();
            let mut after = before.clone();
            edit(row, &mut after)?;
            Ok((before, after))
        };
        let decide = |seen: &EndpointRow, row: &EndpointRow| {
            let (before, after) = edited(row)?;
            let changed = |before: &Item, after: &Item| -> BTreeSet<String> {
                before.keys().chain(after.keys()).filter(|key| before.get(*key) != after.get(*key)).cloned().collect()
            };
            let mut touched = changed(&before, &after);
            if row.updated_at != seen.updated_at {
                let (seen_before, seen_after) = edited(seen)?;
                touched.extend(changed(&seen_before, &seen_after));
                if touched.iter().any(|key| seen_before.get(key) != before.get(key)) {
                    return Ok(None);
                }
            }
            if before == after {
                return Ok(Some(Decision::Done));
            }
            transition::update_spec(row, Value::Map(after), (self.now)())
                .map(|transition| Some(Decision::Write(transition)))
        };
        self.edit(name, Words::new(participle), decide).await
    }

    /// Brings back the spec before the last edit; the replica count stays. Undoing twice is doing the edit again.
    ///
    /// # Errors
    /// No earlier spec, a writer that keeps none has edited since, and as [`Store::update_spec_with`].
    pub async fn undo(&self, name: &str) -> Result<EndpointRow, StoreError> {
        let edit = |row: &EndpointRow, spec: &mut Item| {
            *spec = transition::undone(row)?;
            Ok(())
        };
        self.update_spec_as(name, "undone", edit).await
    }

    /// Sets the image and drops the images by region, which were made from the old one.
    ///
    /// # Errors
    /// As [`Store::update_spec_with`]; an empty image.
    pub async fn update_image(&self, name: &str, image: &str) -> Result<EndpointRow, StoreError> {
        if image.trim().is_empty() {
            return Err(OperationError::State("Image must be a non-empty string".to_owned()).into());
        }
        let edit = |_: &EndpointRow, spec: &mut Item| {
            spec.insert("image".to_owned(), Value::from(image));
            spec.remove("region_image_uris");
            Ok(())
        };
        self.update_spec_with(name, edit).await
    }

    /// Sets the static replica count (B.8).
    ///
    /// # Errors
    /// A bad count, an autoscaled or Mooncake endpoint, an absent or deleted row, a conflict, a failed call.
    pub async fn scale(&self, name: &str, replicas: i64) -> Result<EndpointRow, StoreError> {
        let decide = |seen: &EndpointRow, row: &EndpointRow| {
            if seen.spec.at(&["replicas"]) != row.spec.at(&["replicas"]) {
                return Ok(None);
            }
            transition::scale(row, replicas, (self.now)()).map(|transition| Some(Decision::Write(transition)))
        };
        self.edit(name, Words::new("scaled"), decide).await
    }

    /// Turns autoscaling on, changes it, or turns it off. A row that is already as asked is not written.
    ///
    /// # Errors
    /// As [`Store::update_spec_with`]; a Mooncake endpoint.
    pub async fn autoscale(&self, name: &str, edit: &AutoscalingEdit) -> Result<EndpointRow, StoreError> {
        self.update_spec_as(name, "updated", |row, spec| edit.apply(row, spec)).await
    }

    /// Asks for no pods (B.5). A stopped row stays as it is.
    ///
    /// # Errors
    /// An absent or deleted row, a conflict, a failed call.
    pub async fn stop(&self, name: &str) -> Result<EndpointRow, StoreError> {
        let decide = |_: &EndpointRow, row: &EndpointRow| {
            if row.desired_state == DesiredState::Stopped {
                return Ok(Some(Decision::Done));
            }
            let transition =
                transition::set_desired_state(row, DesiredState::Stopped, None, (self.now)(), &mut || (self.token)())?;
            Ok(Some(Decision::Write(transition)))
        };
        self.edit(name, Words::new("stopped"), decide).await
    }

    /// Starts a stopped endpoint (B.6).
    ///
    /// # Errors
    /// A row in another state, an absent row, a conflict, a failed call.
    pub async fn start(&self, name: &str) -> Result<EndpointRow, StoreError> {
        // The builder knows better words for a deleted row than the common ones.
        let words = Words { takes_deleted: true, ..Words::new("started") };
        let decide = |_: &EndpointRow, row: &EndpointRow| {
            transition::start(row, (self.now)()).map(|transition| Some(Decision::Write(transition)))
        };
        self.edit(name, words, decide).await
    }

    /// Asks for removal everywhere (B.5). Repeatable: a row that is being deleted keeps its deletion generation. With a
    /// label, only a row that carries it is deleted.
    ///
    /// # Errors
    /// An absent row, another label, a conflict, a failed call.
    pub async fn delete(&self, name: &str, label: Option<(&str, &str)>) -> Result<EndpointRow, StoreError> {
        let words = Words { identity: "deletion", takes_deleted: true, ..Words::new("deleted") };
        let decide = |_: &EndpointRow, row: &EndpointRow| {
            if let Some((label, value)) = label
                && !label.is_empty()
                && row.labels.get(label).map(String::as_str) != Some(value)
            {
                let message = format!("Endpoint '{}' does not carry the label {label}={value}", row.name);
                return Err(OperationError::State(message));
            }
            let begun = row.desired_state == DesiredState::Deleted
                && row.deletion_generation.is_some()
                && row.deletion_regions.is_some();
            if begun {
                return Ok(Some(Decision::Done));
            }
            let transition =
                transition::set_desired_state(row, DesiredState::Deleted, label, (self.now)(), &mut || (self.token)())?;
            Ok(Some(Decision::Write(transition)))
        };
        self.edit(name, words, decide).await
    }

    /// Asks the monitors to change nothing for this endpoint, or lifts that.
    ///
    /// # Errors
    /// An absent or deleted row, a conflict, a failed call.
    pub async fn set_paused(&self, name: &str, paused: bool) -> Result<EndpointRow, StoreError> {
        let decide = |_: &EndpointRow, row: &EndpointRow| {
            if row.paused == paused {
                return Ok(Some(Decision::Done));
            }
            transition::set_paused(row, paused, (self.now)()).map(|transition| Some(Decision::Write(transition)))
        };
        self.edit(name, Words::new(if paused { "paused" } else { "resumed" }), decide).await
    }

    /// Asks that pods run what the monitors render now (`control.refresh`).
    ///
    /// # Errors
    /// A bad count, an absent or deleted row, a conflict, a failed call.
    pub async fn refresh(&self, name: &str, wish: &Refresh) -> Result<EndpointRow, StoreError> {
        let decide = |_: &EndpointRow, row: &EndpointRow| {
            if row.refresh.as_ref() == Some(wish) {
                return Ok(Some(Decision::Done));
            }
            transition::refresh(row, wish, (self.now)()).map(|transition| Some(Decision::Write(transition)))
        };
        self.edit(name, Words::new("refreshed"), decide).await
    }

    /// Sets the target regions (B.10).
    ///
    /// # Errors
    /// Bad regions, an absent or deleted row, a conflict, a failed call.
    pub async fn set_target_regions(&self, name: &str, regions: &[String]) -> Result<EndpointRow, StoreError> {
        let decide = |seen: &EndpointRow, row: &EndpointRow| {
            if seen.target_regions != row.target_regions {
                return Ok(None);
            }
            if row.target_regions == regions {
                return Ok(Some(Decision::Done));
            }
            let transition = transition::update_target_regions(row, regions, (self.now)(), &mut || (self.token)())?;
            Ok(Some(Decision::Write(transition)))
        };
        self.edit(name, Words::new("moved to other regions"), decide).await
    }

    /// Reads, back-fills a row that is older than lifecycle fencing, decides, executes; after a lost race again on the
    /// newer row, as long as it is of the same lifecycle. `decide` is given the row as first seen and as it is now, and
    /// returns `None` when the edit no longer makes sense.
    async fn edit<D>(&self, name: &str, words: Words<'_>, decide: D) -> Result<EndpointRow, StoreError>
    where
        D: Fn(&EndpointRow, &EndpointRow) -> Result<Option<Decision>, OperationError> + Send + Sync,
    {
        let conflict = || {
            let Words { participle, .. } = words;
            StoreError::Conflict(format!(
                "Endpoint '{name}' changed while being {participle}; retry after reading status"
            ))
        };
        let absent = || StoreError::NotFound(name.to_owned());
        let mut row = self.get(name, Consistency::Strong).await?.ok_or_else(absent)?;
        let mut seen: Option<EndpointRow> = None;
        for lost in 0..MOST_TRIES {
            if lost > 0 {
                self.wait(lost).await;
            }
            if row.desired_state == DesiredState::Deleted && !words.takes_deleted {
                return Err(OperationError::State(transition::deleted_message(name, words.participle)).into());
            }
            if !row.lifecycle_complete() {
                if let Some(transition) = transition::back_fill(&row, (self.now)(), &mut || (self.token)())? {
                    row = match self.table.execute(&transition).await? {
                        Outcome::Applied(item) => applied(&transition, item)?,
                        Outcome::Refused(item) => parse(item.ok_or_else(absent)?)?,
                    };
                }
                if !row.lifecycle_complete() {
                    continue;
                }
            }
            let first = seen.get_or_insert_with(|| row.clone());
            if first.lifecycle_id != row.lifecycle_id {
                return Err(conflict());
            }
            let transition = match decide(first, &row)? {
                None => return Err(conflict()),
                Some(Decision::Done) => return Ok(row),
                Some(Decision::Write(transition)) => transition,
            };
            row = match self.table.execute(&transition).await? {
                Outcome::Applied(item) => return applied(&transition, item),
                Outcome::Refused(item) => parse(item.ok_or_else(absent)?)?,
            };
        }
        if seen.is_none() {
            let message = format!("Endpoint '{name}' changed while initializing {} identity", words.identity);
            return Err(StoreError::Conflict(message));
        }
        Err(conflict())
    }

    /// A random half to all of the back-off for this many lost races.
    async fn wait(&self, lost: u32) {
        let Some(sleeper) = &self.sleeper else { return };
        let longest = FIRST_WAIT.saturating_mul(1 << lost.min(10)).min(LONGEST_WAIT);
        // A token is random hexadecimal text: its first two digits are as good a die as any. A source that gives
        // something else gives no jitter.
        let die = (self.token)().get(..2).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(255);
        sleeper(longest.mul_f64(0.5 + f64::from(die) / 510.0)).await;
    }
}

fn parse(item: Item) -> Result<EndpointRow, StoreError> {
    EndpointRow::parse(item)
        .map_err(|problem| TableError::new(ErrorCategory::Invalid, "GetItem", problem.to_string()).into())
}

/// The row after a write that leaves one.
fn applied(transition: &Transition, item: Option<Item>) -> Result<EndpointRow, StoreError> {
    let gone = || TableError::new(ErrorCategory::Unknown, "UpdateItem", format!("{} left no row", transition.name));
    parse(item.ok_or_else(gone)?)
}
