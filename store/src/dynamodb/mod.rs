//! The real table, over aws-sdk-dynamodb.
//!
//! The SDK's retries are off. A request that certainly was not carried out is sent again after a back-off, within a total
//! time; after a write whose answer was lost the row is read, and only what certainly did not happen is sent again, under
//! an added condition. So a transition never takes effect twice, and what cannot be known is said to be unknown.

mod convert;
mod expression;
mod failure;
mod layout;
mod resolve;
mod settings;

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::error::ConditionalCheckFailedException;
use aws_sdk_dynamodb::types::{
    AttributeValue, ConsumedCapacity, ReturnConsumedCapacity, ReturnValue, ReturnValuesOnConditionCheckFailure,
};

pub use settings::{DynamoDbSettings, MonotonicClock};

use self::expression::Placeholders;
use self::failure::Failure;
use self::resolve::Fate;
use crate::index::{ChangeRead, INDEX_NAME, Part, PartState, STATE_ATTRIBUTE, STATES, VERSION_ATTRIBUTE, entry_of};
use crate::problem::FieldProblem;
use crate::table::{
    CallOutcome, Consistency, ErrorCategory, FullRead, ObservedCall, Outcome, RegionHeartbeat, RegionItem, Table,
    TableDescription, TableError, regions_table_name,
};
use crate::transition::{Change, Condition, Transition, Write};
use crate::wire::{Item, LARGEST_ITEM_BYTES, Value, item_size_bytes};

/// Key attribute of the endpoint table.
const KEY: &str = "endpoint_name";
/// First wait before a request is sent again; doubled for each further one.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// Longest wait before a request is sent again.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Both tables in DynamoDB, or in a server that speaks its protocol.
#[derive(Debug)]
pub struct DynamoDbTable {
    client: Client,
    settings: DynamoDbSettings,
    dice: AtomicU64,
    /// Name of the change index.
    index: Mutex<String>,
}

/// A request that was answered.
struct Answered<T> {
    value: T,
    consumed_units: Option<f64>,
}

/// What one write request came to.
enum Written {
    Done(Option<Item>),
    /// The row as the server sent it along, if it did.
    Refused(Option<Item>),
    Failed(Failure),
}

/// The part of an operation's total time that is left, and the waits so far.
struct Budget<'a> {
    table: &'a DynamoDbTable,
    began: Duration,
    waits: u32,
}

impl Budget<'_> {
    /// Waits before the next request; `false` when no time is left for one.
    async fn wait(&mut self) -> bool {
        let longest = FIRST_WAIT.saturating_mul(1 << self.waits.min(10)).min(LONGEST_WAIT);
        let wait = longest.mul_f64(0.5 + 0.5 * self.table.die());
        self.waits += 1;
        let used = (self.table.settings.clock)().saturating_sub(self.began);
        if used + wait >= self.table.settings.total_time {
            return false;
        }
        tokio::time::sleep(wait).await;
        true
    }
}

impl DynamoDbTable {
    /// A client for the two tables. Nothing is asked of the server yet; see [`Table::check`].
    ///
    /// # Errors
    /// Credentials that were given for a server elsewhere.
    pub async fn connect(settings: DynamoDbSettings) -> Result<Self, TableError> {
        Ok(Self {
            client: settings.client().await?,
            settings,
            dice: AtomicU64::new(0),
            index: Mutex::new(INDEX_NAME.to_owned()),
        })
    }

    fn regions_table(&self) -> String {
        regions_table_name(&self.settings.table_name)
    }

    fn budget(&self) -> Budget<'_> {
        Budget { table: self, began: (self.settings.clock)(), waits: 0 }
    }

    /// A number from 0 to 1 for jitter: each hasher of the standard library is seeded at random.
    fn die(&self) -> f64 {
        let throw = std::hash::RandomState::new().hash_one(self.dice.fetch_add(1, Ordering::Relaxed));
        f64::from(u32::try_from(throw >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
    }

    fn observe(&self, operation: &'static str, began: Duration, outcome: CallOutcome, consumed_units: Option<f64>) {
        if let Some(observer) = &self.settings.observer {
            let duration = (self.settings.clock)().saturating_sub(began);
            observer.observe(&ObservedCall { operation, outcome, consumed_units, duration });
        }
    }

    /// One request that is harmless to repeat, repeated while that may help and time is left.
    async fn repeat<T, E, F, R>(
        &self,
        operation: &'static str,
        budget: &mut Budget<'_>,
        request: R,
    ) -> Result<Answered<T>, TableError>
    where
        E: std::error::Error + ProvideErrorMetadata + 'static,
        F: Future<Output = Result<Answered<T>, SdkError<E, HttpResponse>>>,
        R: Fn() -> F,
    {
        loop {
            let began = (self.settings.clock)();
            let error = match request().await {
                Ok(answered) => {
                    self.observe(operation, began, CallOutcome::Success, answered.consumed_units);
                    return Ok(answered);
                }
                Err(error) => error,
            };
            let failure = failure::classify(&error);
            self.observe(operation, began, CallOutcome::Failed(failure.category), None);
            if !failure.category.retryable() || !budget.wait().await {
                return Err(failure.into_error(operation));
            }
            tracing::debug!(operation, category = failure.category.as_str(), error = failure.message, "sent again");
        }
    }

    async fn read_item(
        &self,
        table: &str,
        key: (&str, &str),
        consistency: Consistency,
        budget: &mut Budget<'_>,
    ) -> Result<Option<Item>, TableError> {
        const OPERATION: &str = "GetItem";
        let answered = self
            .repeat(OPERATION, budget, || async {
                let output = self
                    .client
                    .get_item()
                    .table_name(table)
                    .key(key.0, AttributeValue::S(key.1.to_owned()))
                    .consistent_read(consistency == Consistency::Strong)
                    .return_consumed_capacity(ReturnConsumedCapacity::Total)
                    .send()
                    .await?;
                let consumed_units = units(output.consumed_capacity());
                Ok::<_, SdkError<_, _>>(Answered { value: output.item, consumed_units })
            })
            .await?;
        answered.value.map(|item| from_sdk(OPERATION, &item)).transpose()
    }

    /// Sends the write once.
    async fn write_once(&self, transition: &Transition, condition: &Condition) -> Written {
        let mut placeholders = Placeholders::default();
        let condition_text = placeholders.condition(condition);
        let operation = transition.write.server_operation();
        let table_name = &self.settings.table_name;
        let key = || AttributeValue::S(transition.name.clone());
        let all_old = ReturnValuesOnConditionCheckFailure::AllOld;
        let total = ReturnConsumedCapacity::Total;
        let began = (self.settings.clock)();
        let sent = match &transition.write {
            Write::Update(changes) => {
                let update_text = placeholders.update(changes);
                self.client
                    .update_item()
                    .table_name(table_name)
                    .key(KEY, key())
                    .update_expression(update_text)
                    .condition_expression(condition_text)
                    .set_expression_attribute_names(placeholders.names())
                    .set_expression_attribute_values(sdk_values(&placeholders))
                    .return_values(ReturnValue::AllNew)
                    .return_values_on_condition_check_failure(all_old)
                    .return_consumed_capacity(total)
                    .send()
                    .await
                    .map(|output| (output.attributes.unwrap_or_default(), units(output.consumed_capacity.as_ref())))
                    .map(|(item, units)| (from_sdk(operation, &item).map(Some), units))
                    .map_err(|error| match error.as_service_error() {
                        Some(UpdateItemError::ConditionalCheckFailedException(refusal)) => refused(refusal),
                        _ => Written::Failed(failure::classify(&error)),
                    })
            }
            Write::Put(item) => self
                .client
                .put_item()
                .table_name(table_name)
                .set_item(Some(convert::to_sdk_item(item)))
                .condition_expression(condition_text)
                .set_expression_attribute_names(placeholders.names())
                .set_expression_attribute_values(sdk_values(&placeholders))
                .return_values_on_condition_check_failure(all_old)
                .return_consumed_capacity(total)
                .send()
                .await
                .map(|output| {
                    let stored = item.iter().map(|(name, value)| (name.clone(), value.as_stored())).collect();
                    (Ok(Some(stored)), units(output.consumed_capacity()))
                })
                .map_err(|error| match error.as_service_error() {
                    Some(PutItemError::ConditionalCheckFailedException(refusal)) => refused(refusal),
                    _ => Written::Failed(failure::classify(&error)),
                }),
            Write::Delete => self
                .client
                .delete_item()
                .table_name(table_name)
                .key(KEY, key())
                .condition_expression(condition_text)
                .set_expression_attribute_names(placeholders.names())
                .set_expression_attribute_values(sdk_values(&placeholders))
                .return_values_on_condition_check_failure(all_old)
                .return_consumed_capacity(total)
                .send()
                .await
                .map(|output| (Ok(None), units(output.consumed_capacity())))
                .map_err(|error| match error.as_service_error() {
                    Some(DeleteItemError::ConditionalCheckFailedException(refusal)) => refused(refusal),
                    _ => Written::Failed(failure::classify(&error)),
                }),
        };
        let (written, consumed_units) = match sent {
            Ok((Ok(item), units)) => (Written::Done(item), units),
            // The write was done, but its answer holds something unreadable: looking again would not help.
            Ok((Err(error), units)) => {
                let failure = Failure { category: error.category, message: error.message, may_be_done: false };
                (Written::Failed(failure), units)
            }
            Err(written) => (written, None),
        };
        let outcome = match &written {
            Written::Done(_) => CallOutcome::Success,
            Written::Refused(_) => CallOutcome::Refused,
            Written::Failed(failure) => CallOutcome::Failed(failure.category),
        };
        self.observe(operation, began, outcome, consumed_units);
        written
    }

    async fn execute_within(&self, transition: &Transition, budget: &mut Budget<'_>) -> Result<Outcome, TableError> {
        let operation = transition.write.server_operation();
        check_size(operation, &transition.write)?;
        let guarded = resolve::guarded(transition);
        // Whether an earlier request may have been carried out.
        let mut in_doubt = false;
        loop {
            let condition = if in_doubt { &guarded } else { &transition.condition };
            let failure = match self.write_once(transition, condition).await {
                Written::Done(item) => return Ok(Outcome::Applied(item)),
                Written::Refused(sent_along) => {
                    // Some servers do not send the row along, and one that did not is not to be told from one that had
                    // none to send.
                    let row = match sent_along {
                        Some(row) => Some(row),
                        None => {
                            let looked = self.strongly(transition, budget).await;
                            // What refused this request may have been our own earlier one.
                            looked.map_err(
                                |error| if in_doubt { unknown(operation, &error.to_string()) } else { error },
                            )?
                        }
                    };
                    if !in_doubt {
                        return Ok(Outcome::Refused(row));
                    }
                    return match resolve::fate(transition, row.as_ref()) {
                        Fate::Applied => Ok(Outcome::Applied(row)),
                        Fate::NotApplied | Fate::Forestalled => Ok(Outcome::Refused(row)),
                        Fate::Unknown => Err(unknown(operation, "somebody else wrote meanwhile")),
                    };
                }
                Written::Failed(failure) => failure,
            };
            if failure.may_be_done {
                in_doubt = true;
                let looked = self.strongly(transition, budget).await;
                let row = looked.map_err(|error| unknown(operation, &format!("{}; {error}", failure.message)))?;
                match resolve::fate(transition, row.as_ref()) {
                    Fate::Applied => return Ok(Outcome::Applied(row)),
                    Fate::Forestalled => return Ok(Outcome::Refused(row)),
                    Fate::Unknown => return Err(unknown(operation, &failure.message)),
                    Fate::NotApplied => {}
                }
            }
            let (category, lost) = (failure.category.as_str(), failure.may_be_done);
            tracing::debug!(operation, name = transition.name, category, lost, error = failure.message, "write failed");
            let again = failure.may_be_done || failure.category.retryable();
            if !again || !budget.wait().await {
                // A request on its way may still arrive, however often the row was seen without its effect.
                let error = if in_doubt { unknown(operation, &failure.message) } else { failure.into_error(operation) };
                return Err(error);
            }
        }
    }

    async fn strongly(&self, transition: &Transition, budget: &mut Budget<'_>) -> Result<Option<Item>, TableError> {
        self.read_item(&self.settings.table_name, (KEY, &transition.name), Consistency::Strong, budget).await
    }

    /// Sets attributes of a region's item of the second table.
    async fn set_region(&self, region: &str, attributes: &Item) -> Result<RegionItem, TableError> {
        const OPERATION: &str = "UpdateItem";
        let changes: Vec<Change> = attributes
            .iter()
            .map(|(name, value)| Change::Set(crate::transition::Path::of([name.as_str()]), value.clone()))
            .collect();
        let mut placeholders = Placeholders::default();
        let update = placeholders.update(&changes);
        let table = self.regions_table();
        let answered = self
            .repeat(OPERATION, &mut self.budget(), || async {
                let output = self
                    .client
                    .update_item()
                    .table_name(&table)
                    .key(RegionHeartbeat::KEY, AttributeValue::S(region.to_owned()))
                    .update_expression(&update)
                    .set_expression_attribute_names(placeholders.names())
                    .set_expression_attribute_values(sdk_values(&placeholders))
                    .return_values(ReturnValue::AllNew)
                    .return_consumed_capacity(ReturnConsumedCapacity::Total)
                    .send()
                    .await?;
                let consumed_units = units(output.consumed_capacity());
                Ok::<_, SdkError<_, _>>(Answered { value: output.attributes.unwrap_or_default(), consumed_units })
            })
            .await?;
        Ok(RegionItem::parse(&from_sdk(OPERATION, &answered.value)?))
    }

    /// Every item of a table, all pages.
    async fn scan(&self, table: &str, consistency: Consistency) -> Result<FullRead, TableError> {
        const OPERATION: &str = "Scan";
        let mut read = FullRead::default();
        let mut start: Option<HashMap<String, AttributeValue>> = None;
        loop {
            // Each page has the total time for itself: a large table is not a slow server.
            let answered = self
                .repeat(OPERATION, &mut self.budget(), || async {
                    let output = self
                        .client
                        .scan()
                        .table_name(table)
                        .consistent_read(consistency == Consistency::Strong)
                        .set_exclusive_start_key(start.clone())
                        .return_consumed_capacity(ReturnConsumedCapacity::Total)
                        .send()
                        .await?;
                    let consumed_units = units(output.consumed_capacity());
                    Ok::<_, SdkError<_, _>>(Answered {
                        value: (output.items, output.last_evaluated_key),
                        consumed_units,
                    })
                })
                .await?;
            let (items, last) = answered.value;
            for item in items.unwrap_or_default() {
                read.items.push(from_sdk(OPERATION, &item)?);
            }
            read.pages += 1;
            add_units(&mut read.consumed_read_units, answered.consumed_units);
            start = next_page(OPERATION, start.as_ref(), last)?;
            if start.is_none() {
                return Ok(read);
            }
        }
    }

    /// Entries of one state in the change index, all pages.
    async fn changed_in(&self, state: &str, since: &str) -> Result<ChangeRead, TableError> {
        const OPERATION: &str = "Query";
        let index_name = self.index_name();
        let mut read = ChangeRead::default();
        let mut start: Option<HashMap<String, AttributeValue>> = None;
        loop {
            let answered = self
                .repeat(OPERATION, &mut self.budget(), || async {
                    let output = self
                        .client
                        .query()
                        .table_name(&self.settings.table_name)
                        .index_name(&index_name)
                        .key_condition_expression("#state = :state AND #version >= :since")
                        .expression_attribute_names("#state", STATE_ATTRIBUTE)
                        .expression_attribute_names("#version", VERSION_ATTRIBUTE)
                        .expression_attribute_values(":state", AttributeValue::S(state.to_owned()))
                        .expression_attribute_values(":since", AttributeValue::S(since.to_owned()))
                        .set_exclusive_start_key(start.clone())
                        .return_consumed_capacity(ReturnConsumedCapacity::Total)
                        .send()
                        .await?;
                    let consumed_units = units(output.consumed_capacity());
                    Ok::<_, SdkError<_, _>>(Answered {
                        value: (output.items, output.last_evaluated_key),
                        consumed_units,
                    })
                })
                .await?;
            let (items, last) = answered.value;
            for item in items.unwrap_or_default() {
                // A projection of keys holds exactly what an entry is made of.
                read.entries.extend(entry_of(&from_sdk(OPERATION, &item)?));
            }
            read.pages += 1;
            add_units(&mut read.consumed_read_units, answered.consumed_units);
            start = next_page(OPERATION, start.as_ref(), last)?;
            if start.is_none() {
                return Ok(read);
            }
        }
    }

    /// Under which name the change index was found last.
    fn index_name(&self) -> String {
        self.index.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_index(&self, name: Option<String>) {
        if let Some(name) = name {
            *self.index.lock().unwrap_or_else(PoisonError::into_inner) = name;
        }
    }
}

#[async_trait::async_trait]
impl Table for DynamoDbTable {
    async fn get(&self, name: &str, consistency: Consistency) -> Result<Option<Item>, TableError> {
        self.read_item(&self.settings.table_name, (KEY, name), consistency, &mut self.budget()).await
    }

    async fn read_all(&self, consistency: Consistency) -> Result<FullRead, TableError> {
        self.scan(&self.settings.table_name, consistency).await
    }

    async fn execute(&self, transition: &Transition) -> Result<Outcome, TableError> {
        self.execute_within(transition, &mut self.budget()).await
    }

    async fn check(&self) -> Result<TableDescription, TableError> {
        let description = self.describe(&self.settings.table_name).await?;
        self.note_index(layout::change_index(&description).1);
        layout::judge(&self.settings.table_name, &description)
    }

    async fn write_heartbeat(&self, heartbeat: &RegionHeartbeat, time_out: Duration) -> Result<RegionItem, TableError> {
        let attributes = heartbeat.to_attributes();
        let late = |_| TableError::new(ErrorCategory::Unavailable, "UpdateItem", "no answer in time");
        // Cut off at any point, it is simply written again next time.
        tokio::time::timeout(time_out, self.set_region(&heartbeat.region, &attributes)).await.map_err(late)?
    }

    async fn set_frozen(&self, region: &str, frozen: bool) -> Result<RegionItem, TableError> {
        let attributes = Item::from([(RegionItem::FREEZE.to_owned(), Value::Bool(frozen))]);
        self.set_region(region, &attributes).await
    }

    async fn clear_restarts(&self, region: &str, at: &str) -> Result<RegionItem, TableError> {
        let attributes = Item::from([(RegionItem::RESTARTS_CLEARED_AT.to_owned(), Value::from(at))]);
        self.set_region(region, &attributes).await
    }

    async fn read_region(&self, region: &str) -> Result<Option<RegionItem>, TableError> {
        let key = (RegionHeartbeat::KEY, region);
        let item = self.read_item(&self.regions_table(), key, Consistency::Strong, &mut self.budget()).await?;
        Ok(item.as_ref().map(RegionItem::parse))
    }

    async fn read_regions(&self) -> Result<BTreeMap<String, RegionItem>, TableError> {
        let read = self.scan(&self.regions_table(), Consistency::Strong).await?;
        let named = read.items.iter().filter_map(|item| {
            let region = item.get(RegionHeartbeat::KEY).and_then(Value::as_str)?;
            Some((region.to_owned(), RegionItem::parse(item)))
        });
        Ok(named.collect())
    }

    async fn changed_since(&self, since: &str) -> Result<ChangeRead, TableError> {
        let [first, second, third, fourth] = STATES.map(|state| self.changed_in(state, since));
        let (first, second, third, fourth) = tokio::try_join!(first, second, third, fourth)?;
        let mut read = ChangeRead::default();
        for part in [first, second, third, fourth] {
            read.entries.extend(part.entries);
            read.pages += part.pages;
            add_units(&mut read.consumed_read_units, part.consumed_read_units);
        }
        Ok(read)
    }

    async fn inspect(&self, part: Part) -> Result<PartState, TableError> {
        self.inspect_part(part).await
    }

    async fn create(&self, part: Part) -> Result<(), TableError> {
        self.create_part(part).await
    }
}

/// Where the next page begins; `None` after the last one.
///
/// # Errors
/// A server that gives the page again that was just read: following it would never end.
fn next_page(
    operation: &'static str,
    start: Option<&HashMap<String, AttributeValue>>,
    last: Option<HashMap<String, AttributeValue>>,
) -> Result<Option<HashMap<String, AttributeValue>>, TableError> {
    let next = last.filter(|key| !key.is_empty());
    if next.is_some() && next.as_ref() == start {
        let message = "the server gave the same page twice";
        return Err(TableError::new(ErrorCategory::Unavailable, operation, message));
    }
    Ok(next)
}

/// Adds what a page cost, when the server told.
fn add_units(total: &mut Option<f64>, units: Option<f64>) {
    if let Some(units) = units {
        *total = Some(total.unwrap_or(0.0) + units);
    }
}

/// Refuses what DynamoDB would refuse anyway, before it is sent.
fn check_size(operation: &'static str, write: &Write) -> Result<(), TableError> {
    let bytes = match write {
        Write::Put(item) => item_size_bytes(item),
        // Of an update only the written parts are known; the server judges the whole row.
        Write::Update(changes) => changes
            .iter()
            .map(|change| match change {
                Change::Set(_, value) | Change::SetIfAbsent(_, value) => value.size_bytes(),
                Change::CopyIfAbsent { .. } | Change::Remove(_) => 0,
            })
            .sum(),
        Write::Delete => 0,
    };
    if bytes > LARGEST_ITEM_BYTES {
        let message = format!("the row would have {bytes} bytes; DynamoDB allows {LARGEST_ITEM_BYTES} (400 KB)");
        return Err(TableError::new(ErrorCategory::Invalid, operation, message));
    }
    Ok(())
}

fn unknown(operation: &'static str, message: &str) -> TableError {
    TableError::new(ErrorCategory::Unknown, operation, format!("it is not known whether it was done: {message}"))
}

fn units(capacity: Option<&ConsumedCapacity>) -> Option<f64> {
    capacity.and_then(ConsumedCapacity::capacity_units)
}

fn sdk_values(placeholders: &Placeholders) -> Option<HashMap<String, AttributeValue>> {
    placeholders.values().map(|values| values.into_iter().map(|(name, value)| (name, convert::to_sdk(value))).collect())
}

fn from_sdk(operation: &'static str, item: &HashMap<String, AttributeValue>) -> Result<Item, TableError> {
    let unreadable = |problem: FieldProblem| TableError::new(ErrorCategory::Invalid, operation, problem.to_string());
    convert::from_sdk_item(item).map_err(unreadable)
}

/// A refusal with the row that the server sent along; an unreadable one is read again, and then reported.
fn refused(refusal: &ConditionalCheckFailedException) -> Written {
    let sent_along = refusal.item().filter(|item| !item.is_empty());
    Written::Refused(sent_along.and_then(|item| convert::from_sdk_item(item).ok()))
}
