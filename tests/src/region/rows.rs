//! What people do with endpoints: through the same operations as the command line.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use gco_runtime::clock::{Clock as _, SystemClock};
use gco_runtime::random::{Randomness as _, SystemRandomness};
use gco_store::operations::Store;
use gco_store::row::EndpointRow;
use gco_store::table::{Consistency, Outcome};
use gco_store::transition::{self, Condition, CreateRequest, NAMESPACE, OperationError, Transition, Write};
use gco_store::wire::{Item, Value, item_from_dynamodb_json};
use serde_json::Value as Json;

use super::Region;

/// How often a lost race is tried again: monitors write statuses in between.
const TRIES: usize = 50;

/// The image that a kubelet stand-in knows.
pub const IMAGE: &str = "vllm/vllm-openai:v0.28.0";

/// A small classic spec: one accelerator, this many replicas, and a mark in its environment that tells edits apart.
#[must_use]
pub fn spec(replicas: u32, edit: &str) -> Json {
    serde_json::json!({
        "image": IMAGE,
        "port": 8000,
        "replicas": replicas,
        "gpu_count": 1,
        "health_check_path": "/health",
        "env": {"EDIT": edit},
        // Nothing is open in a pod that only looks ready, so nothing needs draining.
        "drain_seconds": 0,
    })
}

/// A row of the fixtures.
///
/// # Errors
/// When there is none of that name or it is not DynamoDB JSON.
pub fn fixture(name: &str) -> anyhow::Result<Item> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/rows").join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let json: Json = serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
    item_from_dynamodb_json(&json).map_err(|problem| anyhow::anyhow!("{}: {problem}", path.display()))
}

/// The names of all row fixtures, sorted.
///
/// # Errors
/// When the folder cannot be read.
pub fn fixture_names() -> anyhow::Result<Vec<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/rows");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".json").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

impl Region {
    /// Makes an endpoint for this region alone.
    ///
    /// # Errors
    /// When the name is taken or the table does not answer.
    pub async fn deploy(&self, name: &str, spec: Json) -> anyhow::Result<EndpointRow> {
        self.deploy_to(name, spec, &[self.name()]).await
    }

    /// Makes an endpoint for these regions.
    ///
    /// # Errors
    /// As [`Region::deploy`].
    pub async fn deploy_to(&self, name: &str, spec: Json, regions: &[&str]) -> anyhow::Result<EndpointRow> {
        let request = CreateRequest {
            name: name.to_owned(),
            spec: plain(&spec)?,
            target_regions: regions.iter().map(|region| (*region).to_owned()).collect(),
            namespace: NAMESPACE.to_owned(),
            labels: BTreeMap::new(),
            created_by: None,
        };
        let mut token = || SystemRandomness.token();
        let mut transition = transition::create(&request, SystemClock.wall(), &mut token)?;
        // A suite's regions share a cluster, so each has a namespace of its own; people's rows all name one.
        if let Write::Put(item) = &mut transition.write {
            item.insert("namespace".to_owned(), Value::from(self.namespace()));
        }
        match self.table().store().execute(&transition).await? {
            Outcome::Applied(Some(item)) => parse(item),
            Outcome::Applied(None) => bail!("creating {name} left no row"),
            Outcome::Refused(_) => bail!("the endpoint {name} exists already"),
        }
    }

    /// Puts a row as it is, but for the namespace, which becomes this region's; whatever was there is replaced.
    ///
    /// # Errors
    /// When the table does not answer.
    pub async fn put_row(&self, mut item: Item) -> anyhow::Result<()> {
        item.insert("namespace".to_owned(), Value::from(self.namespace()));
        self.put_raw(item).await
    }

    /// Puts a row exactly as it is.
    ///
    /// # Errors
    /// When the table does not answer.
    pub async fn put_raw(&self, item: Item) -> anyhow::Result<()> {
        let name = item.get("endpoint_name").and_then(Value::as_str).context("the row has no name")?.to_owned();
        self.checker().expect_write(&item);
        let transition = Transition {
            operation: transition::Operation::Create,
            name: name.clone(),
            condition: whatever_is_there(),
            write: Write::Put(item),
            base_updated_at: None,
            new_updated_at: None,
        };
        match self.table().store().execute(&transition).await? {
            Outcome::Applied(_) => Ok(()),
            Outcome::Refused(_) => bail!("an unconditional write of {name} was refused"),
        }
    }

    /// The row now, read strongly; `None` when there is none.
    ///
    /// # Errors
    /// When the table does not answer.
    pub async fn row(&self, name: &str) -> anyhow::Result<Option<EndpointRow>> {
        let item = self.table().store().get(name, Consistency::Strong).await?;
        item.map(parse).transpose()
    }

    /// Changes a row; a race lost to another writer is read again and tried anew.
    ///
    /// # Errors
    /// When there is no such row, its state forbids the change, or the table does not answer.
    pub async fn change(
        &self,
        name: &str,
        build: impl Fn(&EndpointRow) -> anyhow::Result<Transition>,
    ) -> anyhow::Result<EndpointRow> {
        for _ in 0..TRIES {
            let row = self.row(name).await?.with_context(|| format!("there is no endpoint {name}"))?;
            match self.table().store().execute(&build(&row)?).await? {
                Outcome::Applied(Some(item)) => return parse(item),
                Outcome::Applied(None) => return Ok(row),
                Outcome::Refused(_) => {}
            }
        }
        bail!("{TRIES} changes of {name} in a row lost their race")
    }

    /// Edits the spec, as plain JSON.
    ///
    /// # Errors
    /// When there is no such row, its state or the new spec is refused, or the table does not answer.
    pub async fn edit(&self, name: &str, edit: impl Fn(&mut Json) + Send + Sync) -> anyhow::Result<EndpointRow> {
        let change = |_: &EndpointRow, spec: &mut Item| {
            let mut json = Value::Map(spec.clone()).to_plain_json();
            edit(&mut json);
            match Value::from_plain_json("spec", &json) {
                Ok(Value::Map(edited)) => *spec = edited,
                Ok(_) => return Err(OperationError::State("a spec is a map".to_owned())),
                Err(problem) => return Err(OperationError::Invalid(vec![problem])),
            }
            Ok(())
        };
        Ok(self.operations().update_spec_with(name, change).await?)
    }

    /// Edits one top-level key of the spec.
    ///
    /// # Errors
    /// As [`Region::edit`].
    pub async fn set(&self, name: &str, key: &str, value: impl Into<Json>) -> anyhow::Result<EndpointRow> {
        let value = value.into();
        self.edit(name, |spec| spec[key] = value.clone()).await
    }

    /// Edits the mark that [`spec`] puts into the environment.
    ///
    /// # Errors
    /// As [`Region::edit`].
    pub async fn mark(&self, name: &str, edit: &str) -> anyhow::Result<EndpointRow> {
        self.edit(name, |spec| spec["env"]["EDIT"] = edit.into()).await
    }

    /// Scales.
    ///
    /// # Errors
    /// As the operation.
    pub async fn scale(&self, name: &str, replicas: i64) -> anyhow::Result<EndpointRow> {
        Ok(self.operations().scale(name, replicas).await?)
    }

    /// Stops.
    ///
    /// # Errors
    /// As the operation.
    pub async fn stop(&self, name: &str) -> anyhow::Result<EndpointRow> {
        Ok(self.operations().stop(name).await?)
    }

    /// Starts.
    ///
    /// # Errors
    /// As the operation.
    pub async fn start_endpoint(&self, name: &str) -> anyhow::Result<EndpointRow> {
        Ok(self.operations().start(name).await?)
    }

    /// Deletes.
    ///
    /// # Errors
    /// As the operation.
    pub async fn delete(&self, name: &str) -> anyhow::Result<EndpointRow> {
        Ok(self.operations().delete(name, None).await?)
    }

    /// Pauses or resumes.
    ///
    /// # Errors
    /// As the operation.
    pub async fn set_paused(&self, name: &str, paused: bool) -> anyhow::Result<EndpointRow> {
        Ok(self.operations().set_paused(name, paused).await?)
    }

    /// Sets the target regions.
    ///
    /// # Errors
    /// As the operation.
    pub async fn set_regions(&self, name: &str, regions: &[&str]) -> anyhow::Result<EndpointRow> {
        let regions: Vec<String> = regions.iter().map(|region| (*region).to_owned()).collect();
        Ok(self.operations().set_target_regions(name, &regions).await?)
    }

    /// The operations of the command line on this region's table.
    #[must_use]
    pub fn operations(&self) -> Store {
        let now = Arc::new(|| SystemClock.wall());
        let token = Arc::new(|| SystemRandomness.token());
        Store::new(self.table().store().clone(), now, token)
    }
}

/// Reads a row that must have a name.
///
/// # Errors
/// When it has none.
pub fn parse(item: Item) -> anyhow::Result<EndpointRow> {
    EndpointRow::parse(item).map_err(|problem| anyhow::anyhow!("{problem}"))
}

/// A condition that always holds.
fn whatever_is_there() -> Condition {
    let there = || Condition::Exists(transition::Path::of(["endpoint_name"]));
    Condition::Any(vec![there(), Condition::Not(Box::new(there()))])
}

fn plain(json: &Json) -> anyhow::Result<Value> {
    ensure!(json.is_object(), "a spec is a map");
    Value::from_plain_json("spec", json).map_err(|problem| anyhow::anyhow!("{problem}"))
}
