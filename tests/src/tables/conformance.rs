//! What DynamoDB does and a table server may not: each as a probe with the server's own answers, by name.

use anyhow::{Context as _, ensure};
use serde_json::{Value as Json, json};

use super::raw::{Answer, RawClient};

/// The key attribute of the probes' table.
const KEY: &str = "endpoint_name";

/// Something that DynamoDB does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// A failed condition answers with the row as it was (`ALL_OLD`), of put, update and delete.
    RefusalShowsTheRow,
    /// Several writes can be one transaction.
    Transactions,
    /// A replica can be added and is described.
    Replicas,
    /// The consistency of a global table is described (`MultiRegionConsistency`).
    ReplicaConsistency,
    /// Rows can end by themselves (TTL).
    TimeToLive,
    /// Reads count units by size: 15 strong, 7.5 eventual for a row of 60 KB.
    UnitsOfReads,
    /// Writes count units by size: 60 for a row of 60 KB.
    UnitsOfWrites,
    /// A strong scan counts twice an eventual one.
    UnitsOfScans,
    /// Lists and maps nested deeper than 32 levels are refused.
    NestingLimit,
    /// A row over 400 KB is refused.
    SizeLimit,
    /// A number of more than 38 digits is refused.
    NumberLimit,
    /// Number text is stored in one form: `8000.0` reads back as `8000`.
    NumberForm,
    /// An empty key is refused.
    EmptyKeyRefused,
    /// A change below a map that is not there is refused.
    MissingParentRefused,
    /// A change below something that is no map is refused, and the others of its request with it.
    ParentThatIsNoMapRefused,
    /// Copying an attribute that is not there is refused.
    MissingSourceRefused,
    /// A reserved word in an expression is refused.
    ReservedWordRefused,
    /// A scan ends a page at 1 MB.
    Pages,
    /// A condition and its write are one step: of ten at once, one wins.
    OneWinner,
    /// A table can be made with a secondary index, which a query reads from a lower bound of its sort key on.
    IndexQuery,
    /// An index can be added to a table that holds rows, and holds them then.
    IndexAdded,
    /// An index holds no row that lacks one of its keys.
    SparseIndex,
    /// An index refuses a strong read.
    IndexIsEventual,
}

/// Every capability.
pub const ALL: [Capability; 23] = [
    Capability::RefusalShowsTheRow,
    Capability::Transactions,
    Capability::Replicas,
    Capability::ReplicaConsistency,
    Capability::TimeToLive,
    Capability::UnitsOfReads,
    Capability::UnitsOfWrites,
    Capability::UnitsOfScans,
    Capability::NestingLimit,
    Capability::SizeLimit,
    Capability::NumberLimit,
    Capability::NumberForm,
    Capability::EmptyKeyRefused,
    Capability::MissingParentRefused,
    Capability::ParentThatIsNoMapRefused,
    Capability::MissingSourceRefused,
    Capability::ReservedWordRefused,
    Capability::Pages,
    Capability::OneWinner,
    Capability::IndexQuery,
    Capability::IndexAdded,
    Capability::SparseIndex,
    Capability::IndexIsEventual,
];

/// A table of a server to probe.
#[derive(Debug)]
pub struct Probe {
    client: RawClient,
    table: String,
}

impl Probe {
    /// Makes an empty table for probes.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn new(client: RawClient, table: &str) -> anyhow::Result<Self> {
        let created = client
            .call(
                "CreateTable",
                &json!({
                    "TableName": table,
                    "AttributeDefinitions": [{"AttributeName": KEY, "AttributeType": "S"}],
                    "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
                    "BillingMode": "PAY_PER_REQUEST",
                }),
            )
            .await?;
        ensure!(created.succeeded(), "CreateTable: {created:?}");
        let probe = Self { client, table: table.to_owned() };
        probe.active().await?;
        Ok(probe)
    }

    async fn active(&self) -> anyhow::Result<()> {
        let active = || async {
            let described = self.describe().await.map_err(|error| format!("{error:#}"))?;
            let status = described.pointer("/Table/TableStatus").and_then(Json::as_str).unwrap_or_default();
            let indexes = described.pointer("/Table/GlobalSecondaryIndexes").and_then(Json::as_array);
            let building = indexes.into_iter().flatten().any(|index| index["IndexStatus"] == "CREATING");
            if status == "ACTIVE" && !building { Ok(()) } else { Err(format!("status {status:?}")) }
        };
        gco_bed::wait::until("the probes' table to be active", std::time::Duration::from_secs(20), active).await?;
        Ok(())
    }

    /// Whether the server has the capability.
    ///
    /// # Errors
    /// No answer, or one that is not JSON.
    pub async fn has(&self, capability: Capability) -> anyhow::Result<bool> {
        Ok(match capability {
            Capability::RefusalShowsTheRow => self.refusal_shows_the_row().await?,
            Capability::Transactions => {
                let put = json!({"Put": {"TableName": self.table, "Item": item("in-a-transaction", json!({}))}});
                self.client.call("TransactWriteItems", &json!({"TransactItems": [put]})).await?.succeeded()
            }
            Capability::Replicas => self.add_replica(&json!({})).await?.pointer("/Table/Replicas/0").is_some(),
            Capability::ReplicaConsistency => {
                let described = self.add_replica(&json!({"MultiRegionConsistency": "EVENTUAL"})).await?;
                described.pointer("/Table/MultiRegionConsistency").is_some()
            }
            Capability::TimeToLive => {
                let setting = json!({"Enabled": true, "AttributeName": "ends_at"});
                self.call("UpdateTimeToLive", json!({"TimeToLiveSpecification": setting})).await?.succeeded()
            }
            Capability::UnitsOfReads => {
                self.put_large("sized").await?;
                let read = |strong: bool| async move {
                    let body =
                        json!({"Key": key("sized"), "ConsistentRead": strong, "ReturnConsumedCapacity": "TOTAL"});
                    self.call("GetItem", body).await.map(|answer| units(&answer))
                };
                read(true).await? == Some(15.0) && read(false).await? == Some(7.5)
            }
            Capability::UnitsOfWrites => units(&self.put_large("sized").await?) == Some(60.0),
            Capability::UnitsOfScans => {
                self.put_large("sized").await?;
                let scan = |strong: bool| async move {
                    let body = json!({"ConsistentRead": strong, "ReturnConsumedCapacity": "TOTAL"});
                    self.call("Scan", body).await.map(|answer| units(&answer))
                };
                let (strong, eventual) = (scan(true).await?, scan(false).await?);
                strong.is_some() && strong == eventual.map(|units| 2.0 * units)
            }
            Capability::NestingLimit => {
                let deep = (0..40).fold(json!({"S": "bottom"}), |inner, _| json!({"M": {"a": inner}}));
                self.refuses(item("deep", json!({"x": deep}))).await?
            }
            Capability::SizeLimit => self.refuses(item("large", json!({"x": {"S": "x".repeat(400 * 1024)}}))).await?,
            Capability::NumberLimit => self.refuses(item("number", json!({"x": {"N": "1".repeat(39)}}))).await?,
            Capability::NumberForm => {
                self.put(item("number", json!({"x": {"N": "8000.0"}}))).await?;
                let read = self.call("GetItem", json!({"Key": key("number")})).await?;
                read.body.pointer("/Item/x/N") == Some(&json!("8000"))
            }
            Capability::EmptyKeyRefused => self.refuses(item("", json!({}))).await?,
            Capability::MissingParentRefused => self.refuses_update("SET x.y = :value").await?,
            Capability::ParentThatIsNoMapRefused => {
                let text = json!({"x": {"S": "no map"}});
                self.refuses_update_of(text, "SET z = :value, x.y = :value").await?
            }
            Capability::MissingSourceRefused => self.refuses_update("SET y = if_not_exists(y, x), z = :value").await?,
            Capability::ReservedWordRefused => self.refuses_update("SET region = :value").await?,
            Capability::Pages => self.pages().await?,
            Capability::OneWinner => self.one_winner().await?,
            Capability::IndexQuery => self.indexed(true).await?.query("1", false).await? == ["both"],
            Capability::IndexAdded => self.indexed(false).await?.query("1", false).await? == ["both"],
            Capability::SparseIndex => self.indexed(true).await?.query("0", false).await? == ["both", "early"],
            Capability::IndexIsEventual => self.indexed(true).await?.query("0", true).await?.is_empty(),
        })
    }

    async fn call(&self, operation: &str, mut body: Json) -> anyhow::Result<Answer> {
        let object = body.as_object_mut().context("a request is an object")?;
        object.insert("TableName".to_owned(), json!(self.table));
        self.client.call(operation, &body).await
    }

    async fn describe(&self) -> anyhow::Result<Json> {
        Ok(self.call("DescribeTable", json!({})).await?.body)
    }

    async fn put(&self, item: Json) -> anyhow::Result<Answer> {
        self.call("PutItem", json!({"Item": item, "ReturnConsumedCapacity": "TOTAL"})).await
    }

    /// A row of between 59 and 60 KB.
    async fn put_large(&self, name: &str) -> anyhow::Result<Answer> {
        self.put(item(name, json!({"x": {"S": "x".repeat(60 * 1024 - 200)}}))).await
    }

    async fn refuses(&self, item: Json) -> anyhow::Result<bool> {
        Ok(self.put(item).await?.error() == "ValidationException")
    }

    async fn refuses_update(&self, expression: &str) -> anyhow::Result<bool> {
        self.refuses_update_of(json!({}), expression).await
    }

    async fn refuses_update_of(&self, attributes: Json, expression: &str) -> anyhow::Result<bool> {
        self.put(item("updated", attributes)).await?;
        let body = json!({
            "Key": key("updated"),
            "UpdateExpression": expression,
            "ExpressionAttributeValues": {":value": {"S": "value"}},
        });
        Ok(self.call("UpdateItem", body).await?.error() == "ValidationException")
    }

    async fn refusal_shows_the_row(&self) -> anyhow::Result<bool> {
        let row = item("shown", json!({"x": {"S": "as it was"}}));
        self.put(row.clone()).await?;
        let condition = json!({
            "ConditionExpression": format!("attribute_not_exists({KEY})"),
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        });
        let mut shown = true;
        for (operation, mut body) in [
            ("PutItem", json!({"Item": row})),
            ("DeleteItem", json!({"Key": key("shown")})),
            ("UpdateItem", json!({"Key": key("shown"), "UpdateExpression": "REMOVE x"})),
        ] {
            let (Some(body_map), Some(condition)) = (body.as_object_mut(), condition.as_object()) else { continue };
            body_map.extend(condition.clone());
            let refused = self.call(operation, body).await?;
            ensure!(refused.error() == "ConditionalCheckFailedException", "{operation}: {refused:?}");
            shown &= refused.body.get("Item") == Some(&row);
        }
        Ok(shown)
    }

    async fn add_replica(&self, more: &Json) -> anyhow::Result<Json> {
        let mut body = json!({"ReplicaUpdates": [{"Create": {"RegionName": "eu-west-1"}}]});
        if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
            body.extend(more.clone());
        }
        // Whether it was refused or not, the description says what came of it.
        self.call("UpdateTable", body).await?;
        self.describe().await
    }

    /// Another table with three rows and an index, made with the table or added to it.
    async fn indexed(&self, at_once: bool) -> anyhow::Result<Self> {
        let indexed = Self { client: self.client.clone(), table: format!("{}-indexed", self.table) };
        let definitions = |names: &[&str]| -> Json {
            names.iter().map(|name| json!({"AttributeName": name, "AttributeType": "S"})).collect()
        };
        let index = json!({
            "IndexName": "index",
            "KeySchema": [{"AttributeName": "state", "KeyType": "HASH"}, {"AttributeName": "version", "KeyType": "RANGE"}],
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        });
        let mut table = json!({
            "AttributeDefinitions": definitions(&[KEY]),
            "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
        });
        let all = definitions(&[KEY, "state", "version"]);
        if at_once {
            table["AttributeDefinitions"] = all.clone();
            table["GlobalSecondaryIndexes"] = json!([index]);
        }
        let created = indexed.call("CreateTable", table).await?;
        ensure!(created.succeeded(), "CreateTable: {created:?}");
        indexed.active().await?;
        for (name, more) in [
            ("both", json!({"state": {"S": "on"}, "version": {"S": "2"}})),
            ("early", json!({"state": {"S": "on"}, "version": {"S": "0"}})),
            ("versionless", json!({"state": {"S": "on"}})),
        ] {
            ensure!(indexed.put(item(name, more)).await?.succeeded(), "PutItem {name}");
        }
        if !at_once {
            let update = json!({"AttributeDefinitions": all, "GlobalSecondaryIndexUpdates": [{"Create": index}]});
            // Whether it was refused or not, the query says what came of it.
            indexed.call("UpdateTable", update).await?;
            indexed.active().await?;
        }
        Ok(indexed)
    }

    /// Names that the index shows from a version on, sorted; none when it refuses.
    async fn query(&self, from: &str, strong: bool) -> anyhow::Result<Vec<String>> {
        let body = json!({
            "IndexName": "index",
            "ConsistentRead": strong,
            "KeyConditionExpression": "#s = :s AND #v >= :v",
            "ExpressionAttributeNames": {"#s": "state", "#v": "version"},
            "ExpressionAttributeValues": {":s": {"S": "on"}, ":v": {"S": from}},
        });
        let answer = self.call("Query", body).await?;
        let items = answer.body.get("Items").and_then(Json::as_array).cloned().unwrap_or_default();
        let name = |item: &Json| item.pointer(&format!("/{KEY}/S")).and_then(Json::as_str).map(str::to_owned);
        let mut names: Vec<String> = items.iter().filter_map(name).collect();
        names.sort();
        Ok(names)
    }

    async fn pages(&self) -> anyhow::Result<bool> {
        for number in 0..20 {
            self.put_large(&format!("page-{number}")).await?;
        }
        let first = self.call("Scan", json!({"ConsistentRead": true})).await?;
        let Some(last) = first.body.get("LastEvaluatedKey") else { return Ok(false) };
        let second = self.call("Scan", json!({"ConsistentRead": true, "ExclusiveStartKey": last})).await?;
        Ok(second.succeeded() && second.body.get("Count").and_then(Json::as_u64).is_some_and(|count| count > 0))
    }

    async fn one_winner(&self) -> anyhow::Result<bool> {
        let attempt = || {
            let body = json!({
                "Item": item("raced", json!({})),
                "ConditionExpression": format!("attribute_not_exists({KEY})"),
            });
            self.call("PutItem", body)
        };
        let answers = futures::future::try_join_all((0..10).map(|_| attempt())).await?;
        Ok(answers.iter().filter(|answer| answer.succeeded()).count() == 1)
    }
}

fn key(name: &str) -> Json {
    json!({KEY: {"S": name}})
}

fn item(name: &str, more: Json) -> Json {
    let mut item = key(name);
    if let (Some(item), Some(more)) = (item.as_object_mut(), more.as_object()) {
        item.extend(more.clone());
    }
    item
}

fn units(answer: &Answer) -> Option<f64> {
    answer.body.pointer("/ConsumedCapacity/CapacityUnits").and_then(Json::as_f64)
}
