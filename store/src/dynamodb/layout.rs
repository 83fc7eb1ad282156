//! What the tables are made of: looked at, judged, made. Never touches an item.

use std::time::Duration;

use aws_sdk_dynamodb::error::{BuildError, SdkError};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, CreateGlobalSecondaryIndexAction, GlobalSecondaryIndexDescription,
    GlobalSecondaryIndexUpdate, IndexStatus, KeySchemaElement, KeyType, MultiRegionConsistency, Projection,
    ProjectionType, ProvisionedThroughput, ScalarAttributeType, TableDescription as SdkTableDescription, TableStatus,
};

use super::{Answered, DynamoDbTable, KEY, failure};
use crate::index::{INDEX_NAME, Part, PartState, STATE_ATTRIBUTE, VERSION_ATTRIBUTE};
use crate::table::{ErrorCategory, RegionHeartbeat, TableDescription, TableError};

/// A table of a local server is there at once; AWS takes some seconds. Times [`POLL_WAIT`]: 30 s.
const LONGEST_POLLS: u32 = 150;
const POLL_WAIT: Duration = Duration::from_millis(200);

impl DynamoDbTable {
    /// The table's description; `None` when there is no such table.
    async fn describe_if_there(&self, table: &str) -> Result<Option<SdkTableDescription>, TableError> {
        match self.describe(table).await {
            Ok(description) => Ok(Some(description)),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn describe(&self, table: &str) -> Result<SdkTableDescription, TableError> {
        const OPERATION: &str = "DescribeTable";
        let answered = self
            .repeat(OPERATION, &mut self.budget(), || async {
                let output = self.client.describe_table().table_name(table).send().await?;
                Ok::<_, SdkError<_, _>>(Answered { value: output.table, consumed_units: None })
            })
            .await?;
        answered.value.ok_or_else(|| TableError::new(ErrorCategory::Table, OPERATION, "the answer describes no table"))
    }

    pub(super) async fn inspect_part(&self, part: Part) -> Result<PartState, TableError> {
        let table = match part {
            Part::Endpoints | Part::ChangeIndex => self.settings.table_name.clone(),
            Part::Regions => self.regions_table(),
        };
        let Some(description) = self.describe_if_there(&table).await? else { return Ok(PartState::Missing) };
        if matches!(description.table_status(), Some(TableStatus::Creating)) {
            return Ok(PartState::Making);
        }
        Ok(match part {
            Part::Endpoints => match judge(&table, &description) {
                Ok(_) => PartState::Ready,
                Err(error) => PartState::Unusable(error.message),
            },
            Part::Regions if has_key(&description, RegionHeartbeat::KEY) => PartState::Ready,
            Part::Regions => {
                let key = RegionHeartbeat::KEY;
                PartState::Unusable(format!("table {table} must have the one key {key} of type S"))
            }
            Part::ChangeIndex => {
                let (state, name) = change_index(&description);
                self.note_index(name);
                state
            }
        })
    }

    pub(super) async fn create_part(&self, part: Part) -> Result<(), TableError> {
        match part {
            Part::Endpoints => self.create_table(&self.settings.table_name, KEY).await,
            Part::Regions => self.create_table(&self.regions_table(), RegionHeartbeat::KEY).await,
            Part::ChangeIndex => self.create_index().await,
        }
    }

    async fn create_table(&self, table: &str, key: &str) -> Result<(), TableError> {
        const OPERATION: &str = "CreateTable";
        let bad = |error: BuildError| TableError::new(ErrorCategory::Invalid, OPERATION, error.to_string());
        let created = self
            .client
            .create_table()
            .table_name(table)
            .key_schema(key_element(key, KeyType::Hash).map_err(bad)?)
            .attribute_definitions(text_attribute(key).map_err(bad)?)
            .billing_mode(BillingMode::PayPerRequest)
            .send()
            .await;
        if let Err(error) = created {
            let exists = error.as_service_error().is_some_and(|error| error.is_resource_in_use_exception());
            if !exists {
                return Err(failure::classify(&error).into_error(OPERATION));
            }
        }
        for _ in 0..LONGEST_POLLS {
            if self.describe(table).await?.table_status == Some(TableStatus::Active) {
                return Ok(());
            }
            tokio::time::sleep(POLL_WAIT).await;
        }
        Err(TableError::new(ErrorCategory::Table, OPERATION, format!("{table} did not become active")))
    }

    async fn create_index(&self) -> Result<(), TableError> {
        const OPERATION: &str = "UpdateTable";
        let bad = |error: BuildError| TableError::new(ErrorCategory::Invalid, OPERATION, error.to_string());
        let table = &self.settings.table_name;
        let description = self.describe(table).await?;
        match change_index(&description).0 {
            PartState::Missing => {}
            PartState::Making | PartState::Ready => return Ok(()),
            PartState::Unusable(why) => return Err(TableError::new(ErrorCategory::Table, OPERATION, why)),
        }
        let mut definitions = description.attribute_definitions().to_vec();
        for attribute in [STATE_ATTRIBUTE, VERSION_ATTRIBUTE] {
            if !definitions.iter().any(|defined| defined.attribute_name() == attribute) {
                definitions.push(text_attribute(attribute).map_err(bad)?);
            }
        }
        let action = CreateGlobalSecondaryIndexAction::builder()
            .index_name(INDEX_NAME)
            .key_schema(key_element(STATE_ATTRIBUTE, KeyType::Hash).map_err(bad)?)
            .key_schema(key_element(VERSION_ATTRIBUTE, KeyType::Range).map_err(bad)?)
            .projection(Projection::builder().projection_type(ProjectionType::KeysOnly).build())
            // An index of a table that pays for capacity needs some of its own; each write of a row writes it twice.
            .set_provisioned_throughput(provisioned(&description).map_err(bad)?)
            .build()
            .map_err(bad)?;
        self.client
            .update_table()
            .table_name(table)
            .set_attribute_definitions(Some(definitions))
            .global_secondary_index_updates(GlobalSecondaryIndexUpdate::builder().create(action).build())
            .send()
            .await
            .map_err(|error| failure::classify(&error).into_error(OPERATION))?;
        Ok(())
    }
}

fn key_element(name: &str, kind: KeyType) -> Result<KeySchemaElement, BuildError> {
    KeySchemaElement::builder().attribute_name(name).key_type(kind).build()
}

fn text_attribute(name: &str) -> Result<AttributeDefinition, BuildError> {
    AttributeDefinition::builder().attribute_name(name).attribute_type(ScalarAttributeType::S).build()
}

/// The table's capacity when it pays for capacity; `None` on demand.
fn provisioned(description: &SdkTableDescription) -> Result<Option<ProvisionedThroughput>, BuildError> {
    let on_demand = description
        .billing_mode_summary()
        .is_some_and(|summary| summary.billing_mode() == Some(&BillingMode::PayPerRequest));
    let Some(throughput) = description.provisioned_throughput().filter(|_| !on_demand) else { return Ok(None) };
    let units = |units: Option<i64>| units.unwrap_or(0);
    let (reads, writes) = (units(throughput.read_capacity_units()), units(throughput.write_capacity_units()));
    if reads == 0 || writes == 0 {
        return Ok(None);
    }
    let builder = ProvisionedThroughput::builder().read_capacity_units(reads).write_capacity_units(writes);
    builder.build().map(Some)
}

/// Whether an error says that the table does not exist.
fn is_absence(error: &TableError) -> bool {
    error.category == ErrorCategory::Table
        && ["ResourceNotFoundException", "TableNotFoundException"].iter().any(|code| error.message.starts_with(code))
}

fn is_text(description: &SdkTableDescription, name: &str) -> bool {
    description
        .attribute_definitions()
        .iter()
        .any(|attribute| attribute.attribute_name() == name && *attribute.attribute_type() == ScalarAttributeType::S)
}

fn has_key(description: &SdkTableDescription, key: &str) -> bool {
    let right_key = matches!(
        description.key_schema(),
        [only] if only.attribute_name() == key && *only.key_type() == KeyType::Hash
    );
    right_key && is_text(description, key)
}

/// The change index of a table and its name: the index whose keys are right, whatever it is called.
pub(super) fn change_index(description: &SdkTableDescription) -> (PartState, Option<String>) {
    let right = |index: &&GlobalSecondaryIndexDescription| {
        let key = |kind: KeyType, name: &str| {
            index.key_schema().iter().any(|element| *element.key_type() == kind && element.attribute_name() == name)
        };
        index.key_schema().len() == 2 && key(KeyType::Hash, STATE_ATTRIBUTE) && key(KeyType::Range, VERSION_ATTRIBUTE)
    };
    let indexes = description.global_secondary_indexes();
    let Some(index) = indexes.iter().find(right) else {
        let taken = indexes.iter().any(|index| index.index_name() == Some(INDEX_NAME));
        let why = || format!("an index called {INDEX_NAME} has other keys than {STATE_ATTRIBUTE}, {VERSION_ATTRIBUTE}");
        return (if taken { PartState::Unusable(why()) } else { PartState::Missing }, None);
    };
    if !is_text(description, STATE_ATTRIBUTE) || !is_text(description, VERSION_ATTRIBUTE) {
        let why = format!("the keys {STATE_ATTRIBUTE} and {VERSION_ATTRIBUTE} of the index must be of type S");
        return (PartState::Unusable(why), None);
    }
    let state = match index.index_status() {
        _ if index.backfilling() == Some(true) => PartState::Making,
        Some(IndexStatus::Creating) => PartState::Making,
        Some(IndexStatus::Deleting) => PartState::Unusable("the index is being deleted".to_owned()),
        // Active, being given another capacity, or a server that does not tell.
        _ => PartState::Ready,
    };
    (state, index.index_name().map(str::to_owned))
}

/// Whether a table may be used.
pub(super) fn judge(name: &str, description: &SdkTableDescription) -> Result<TableDescription, TableError> {
    let refuse = |message: String| Err(TableError::new(ErrorCategory::Table, "DescribeTable", message));
    if !has_key(description, KEY) {
        return refuse(format!("table {name} must have the one key {KEY} of type S"));
    }
    let replicas: Vec<String> =
        description.replicas().iter().filter_map(|replica| replica.region_name().map(str::to_owned)).collect();
    let consistency = description.multi_region_consistency();
    if !description.replicas().is_empty() && consistency != Some(&MultiRegionConsistency::Strong) {
        return refuse(format!(
            "table {name} is an eventually consistent global table ({}): conditions there hold in one region only, so that \
             monitors would overwrite each other. Use a table of one region, or one with strong multi-region consistency",
            replicas.join(", ")
        ));
    }
    let multi_region_consistency = consistency.map(|consistency| consistency.as_str().to_owned());
    Ok(TableDescription { replicas, multi_region_consistency, change_index: change_index(description).0 })
}
