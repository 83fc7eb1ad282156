//! What people do with an endpoint: the same steps on the model and on a real region.

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use gco_store::operations::Store;
use gco_store::row::EndpointRow;
use gco_store::spec::{AutoscalingEdit, Canary, MetricKind};
use gco_store::status::{RegionEntry, State};
use gco_store::table::{Consistency, Outcome};
use gco_store::transition::{self, StatusAuthority};
use gco_store::wire::{Item, Value, item_from_dynamodb_json};
use jiff::Timestamp;
use serde_json::{Value as Json, json};

/// The endpoint that every scenario is about.
pub const ENDPOINT: &str = "chat";

/// Where a scenario is played.
#[async_trait]
pub trait Stage: Sync {
    /// What people use.
    fn store(&self) -> Store;
    /// The time of day.
    fn now(&self) -> Timestamp;
    /// The region whose monitor is looked at.
    fn region(&self) -> String;
    /// A region without a monitor: the stage plays it.
    fn elsewhere(&self) -> String;
    /// Makes an endpoint.
    async fn deploy(&self, name: &str, spec: &Json, regions: &[String]) -> anyhow::Result<()>;
    /// Makes an object, as an earlier control plane did.
    async fn make(&self, object: &Json) -> anyhow::Result<()>;
    /// Puts a row as it is.
    async fn put_row(&self, row: Item) -> anyhow::Result<()>;
    /// Waits until the monitor has begun to remove the endpoint, and not until it has finished; in virtual time, so many
    /// seconds.
    async fn begun_to_remove(&self, virtual_seconds: u64) -> anyhow::Result<()>;
    /// Waits until nothing is left to do.
    async fn rest(&self) -> anyhow::Result<()>;
}

/// What is done while the monitor is disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// A new endpoint.
    Create,
    /// An edit that replaces the pods.
    Edit,
    /// More replicas.
    ScaleUp,
    /// Fewer replicas.
    ScaleDown,
    /// No pods any more.
    Stop,
    /// Pods again.
    Start,
    /// Another image while stopped, then started.
    EditAndStart,
    /// The region is removed; the endpoint lives on elsewhere.
    RegionRemoved,
    /// It was removed, and cleaned up, and is added again.
    RegionAddedAgain,
    /// It is removed and added again before the clean-up is over.
    RegionRemovedAndAdded,
    /// It was removed, and the endpoint is deleted then.
    RemovedThenDeleted,
    /// Deletion, up to the purge.
    Delete,
    /// Deletion and a new endpoint of the same name.
    DeleteAndCreate,
    /// The last acknowledgement comes from elsewhere: this region purges.
    Purge,
    /// The row of an endpoint whose objects the original made, and whose pods serve.
    Adopt,
    /// The same of one that Kubernetes' own autoscaler scales.
    AdoptScaled,
    /// The same of one with a canary.
    AdoptCanaried,
    /// Another one sets the replica count from now on.
    HandOver(Scaler, Scaler),
    /// No pods any more of an endpoint that KEDA scales.
    StopScaled,
    /// Pods again of an endpoint that KEDA scales.
    StartScaled,
    /// Deletion of an endpoint that KEDA scales.
    DeleteScaled,
    /// A canary beside the endpoint.
    GiveCanary,
    /// The canary becomes the endpoint.
    Promote,
    /// The canary goes.
    RollBack,
    /// No pods any more, of the canary neither.
    StopCanaried,
}

/// Who sets the replica count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scaler {
    /// The row.
    Row,
    /// Kubernetes' own autoscaler.
    Kubernetes,
    /// KEDA.
    Keda,
}

/// All of them.
pub const SCENARIOS: [Scenario; 30] = [
    Scenario::Create,
    Scenario::Edit,
    Scenario::ScaleUp,
    Scenario::ScaleDown,
    Scenario::Stop,
    Scenario::Start,
    Scenario::EditAndStart,
    Scenario::RegionRemoved,
    Scenario::RegionAddedAgain,
    Scenario::RegionRemovedAndAdded,
    Scenario::RemovedThenDeleted,
    Scenario::Delete,
    Scenario::DeleteAndCreate,
    Scenario::Purge,
    Scenario::Adopt,
    Scenario::AdoptScaled,
    Scenario::AdoptCanaried,
    Scenario::HandOver(Scaler::Row, Scaler::Kubernetes),
    Scenario::HandOver(Scaler::Kubernetes, Scaler::Row),
    Scenario::HandOver(Scaler::Row, Scaler::Keda),
    Scenario::HandOver(Scaler::Keda, Scaler::Row),
    Scenario::HandOver(Scaler::Kubernetes, Scaler::Keda),
    Scenario::HandOver(Scaler::Keda, Scaler::Kubernetes),
    Scenario::StopScaled,
    Scenario::StartScaled,
    Scenario::DeleteScaled,
    Scenario::GiveCanary,
    Scenario::Promote,
    Scenario::RollBack,
    Scenario::StopCanaried,
];

/// The image that canaries have.
const CANARY_IMAGE: &str = "vllm/vllm-openai:v0.29.0";

/// An edit that gives the count to somebody. Before it changes hands the count is 2, and an autoscaler may have 2 to 4; after
/// it, the new one wants more, or less in every other pair of variants.
fn given_to(scaler: Scaler, is_new: bool, variant: u32) -> AutoscalingEdit {
    let grows = (variant / 2).is_multiple_of(2);
    let (least, most, count) = match (is_new, grows) {
        (false, _) => (2, 4, 2),
        (true, true) => (3, 6, 4),
        (true, false) => (1, 1, 1),
    };
    let metric = match scaler {
        Scaler::Row => return AutoscalingEdit::Off { replicas: Some(count) },
        Scaler::Kubernetes => MetricKind::Cpu,
        Scaler::Keda => MetricKind::Gpu,
    };
    AutoscalingEdit::On { min_replicas: Some(least), max_replicas: Some(most), metrics: Some(vec![(metric, 70)]) }
}

/// A small classic spec with a mark that tells edits apart. Odd variants replace pods with surge, even ones without.
#[must_use]
pub fn spec(replicas: u32, edit: &str, variant: u32) -> Json {
    json!({
        "image": "vllm/vllm-openai:v0.28.0",
        "port": 8000,
        "replicas": replicas,
        "gpu_count": 1,
        "health_check_path": "/health",
        "env": {"EDIT": edit},
        "max_surge": variant % 2,
        "drain_seconds": 0,
    })
}

impl Scenario {
    /// Whether the endpoint is for the other region too.
    fn is_wide(self) -> bool {
        matches!(
            self,
            Self::RegionRemoved
                | Self::RegionAddedAgain
                | Self::RegionRemovedAndAdded
                | Self::RemovedThenDeleted
                | Self::Purge
        )
    }

    /// Whether KEDA is in the cluster.
    #[must_use]
    pub fn needs_keda(self) -> bool {
        match self {
            Self::HandOver(from, to) => from == Scaler::Keda || to == Scaler::Keda,
            Self::StopScaled | Self::StartScaled | Self::DeleteScaled => true,
            _ => false,
        }
    }

    /// The endpoint of the fixtures that the original made, in the scenarios that take one over.
    fn original(self) -> Option<&'static Original> {
        match self {
            Self::Adopt => Some(&MINIMAL),
            Self::AdoptScaled => Some(&SCALED),
            Self::AdoptCanaried => Some(&CANARIED),
            _ => None,
        }
    }

    /// What stands before the disturbance.
    ///
    /// # Errors
    /// When a step fails.
    pub async fn prepare(self, stage: &impl Stage, variant: u32) -> anyhow::Result<()> {
        if self == Self::Create {
            return stage.rest().await;
        }
        if let Some(original) = self.original() {
            for object in original.objects()? {
                stage.make(&object).await?;
            }
            return stage.rest().await;
        }
        let mut regions = vec![stage.region()];
        if self.is_wide() {
            regions.push(stage.elsewhere());
        }
        let replicas = if self == Self::ScaleDown { 3 } else { 2 };
        stage.deploy(ENDPOINT, &spec(replicas, "before", variant), &regions).await?;
        stage.rest().await?;
        let store = stage.store();
        match self {
            Self::HandOver(from, _) if from != Scaler::Row => {
                store.autoscale(ENDPOINT, &given_to(from, false, variant)).await?;
            }
            Self::StopScaled | Self::StartScaled | Self::DeleteScaled => {
                store.autoscale(ENDPOINT, &given_to(Scaler::Keda, false, variant)).await?;
                if self == Self::StartScaled {
                    stage.rest().await?;
                    store.stop(ENDPOINT).await?;
                }
            }
            Self::Promote | Self::RollBack | Self::StopCanaried => give_canary(&store).await?,
            Self::Start | Self::EditAndStart => drop(store.stop(ENDPOINT).await?),
            Self::RegionAddedAgain => drop(store.set_target_regions(ENDPOINT, &[stage.elsewhere()]).await?),
            Self::Purge => drop(store.delete(ENDPOINT, None).await?),
            _ => return Ok(()),
        }
        stage.rest().await
    }

    /// What is done.
    ///
    /// # Errors
    /// When a step fails.
    pub async fn act(self, stage: &impl Stage, variant: u32) -> anyhow::Result<()> {
        let store = stage.store();
        let both = [stage.region(), stage.elsewhere()];
        match self {
            Self::Create => {
                stage.deploy(ENDPOINT, &spec(2, "after", variant), &[stage.region()]).await?;
            }
            Self::Edit => edit(&store, "after").await?,
            Self::HandOver(_, to) => drop(store.autoscale(ENDPOINT, &given_to(to, true, variant)).await?),
            Self::GiveCanary => give_canary(&store).await?,
            Self::Promote => drop(store.promote_canary(ENDPOINT, Some(CANARY_IMAGE)).await?),
            Self::RollBack => drop(store.roll_back_canary(ENDPOINT).await?),
            Self::ScaleUp => drop(store.scale(ENDPOINT, 4).await?),
            Self::ScaleDown => drop(store.scale(ENDPOINT, 1).await?),
            Self::Stop | Self::StopScaled | Self::StopCanaried => drop(store.stop(ENDPOINT).await?),
            Self::Start | Self::StartScaled => drop(store.start(ENDPOINT).await?),
            Self::EditAndStart => {
                edit(&store, "after").await?;
                store.start(ENDPOINT).await?;
            }
            Self::RegionRemoved => drop(store.set_target_regions(ENDPOINT, &both[1..]).await?),
            Self::RegionAddedAgain => drop(store.set_target_regions(ENDPOINT, &both).await?),
            Self::RegionRemovedAndAdded => {
                store.set_target_regions(ENDPOINT, &both[1..]).await?;
                // Long enough for the monitor to have begun, too short for the proof of absence.
                stage.begun_to_remove(18).await?;
                store.set_target_regions(ENDPOINT, &both).await?;
            }
            Self::RemovedThenDeleted => {
                store.set_target_regions(ENDPOINT, &both[1..]).await?;
                stage.begun_to_remove(20).await?;
                store.delete(ENDPOINT, None).await?;
                acknowledge(stage, &stage.elsewhere()).await?;
            }
            Self::Delete | Self::DeleteScaled => drop(store.delete(ENDPOINT, None).await?),
            Self::DeleteAndCreate => {
                store.delete(ENDPOINT, None).await?;
                stage.rest().await?;
                if let Some(left) = store.get(ENDPOINT, Consistency::Strong).await? {
                    bail!("the row is still there: {:?}", left.region_status);
                }
                stage.deploy(ENDPOINT, &spec(1, "again", variant), &[stage.region()]).await?;
            }
            Self::Purge => acknowledge(stage, &stage.elsewhere()).await?,
            Self::Adopt | Self::AdoptScaled | Self::AdoptCanaried => {
                let original = self.original().context("nothing of the original's")?;
                stage.put_row(original.row()?).await?;
            }
        }
        Ok(())
    }
}

/// An endpoint of the fixtures that the original deployed.
struct Original {
    /// Its name there.
    name: &'static str,
    /// What was made of it.
    objects: &'static str,
    /// Its row.
    row: &'static str,
}

macro_rules! original {
    ($name:literal, $file:literal) => {
        Original {
            name: $name,
            objects: include_str!(concat!("../../fixtures/original-objects/", $file, ".objects.json")),
            row: include_str!(concat!("../../fixtures/original-objects/", $file, ".row.json")),
        }
    };
}

static MINIMAL: Original = original!("chat-small", "classic-minimal");
static SCALED: Original = original!("chat-hpa", "classic-hpa");
static CANARIED: Original = original!("chat-canary-on", "classic-canary");

impl Original {
    /// A file under the name that scenarios use.
    fn renamed(&self, text: &str) -> anyhow::Result<Json> {
        Ok(serde_json::from_str(&text.replace(self.name, ENDPOINT))?)
    }

    /// What the original made of it.
    fn objects(&self) -> anyhow::Result<Vec<Json>> {
        let mut file = self.renamed(self.objects)?;
        let Some(Json::Array(objects)) = file.get_mut("objects").map(Json::take) else { bail!("no objects") };
        let known = ["Deployment", "Service", "HorizontalPodAutoscaler"];
        Ok(objects.into_iter().filter(|object| known.iter().any(|kind| object["kind"] == *kind)).collect())
    }

    /// Its row.
    fn row(&self) -> anyhow::Result<Item> {
        let file = self.renamed(self.row)?;
        item_from_dynamodb_json(&file["row"]).map_err(|problem| anyhow::anyhow!("{problem}"))
    }
}

/// A canary of one pod.
async fn give_canary(store: &Store) -> anyhow::Result<()> {
    let canary = Canary { image: CANARY_IMAGE.to_owned(), weight: 20, replicas: 1 };
    store.set_canary(ENDPOINT, &canary).await?;
    Ok(())
}

/// Changes the mark in the environment, which replaces the pods.
///
/// # Errors
/// As the operation.
pub async fn edit(store: &Store, mark: &str) -> anyhow::Result<()> {
    let change = |_: &EndpointRow, spec: &mut Item| {
        let env = Item::from([("EDIT".to_owned(), Value::from(mark))]);
        spec.insert("env".to_owned(), Value::Map(env));
        Ok(())
    };
    store.update_spec_with(ENDPOINT, change).await?;
    Ok(())
}

/// Another region's monitor says, with finality, that nothing is left there of a deleted endpoint.
///
/// # Errors
/// When the row is not deleted, or the table refuses.
pub async fn acknowledge(stage: &impl Stage, region: &str) -> anyhow::Result<()> {
    let store = stage.store();
    for _ in 0..20 {
        let row = store.get(ENDPOINT, Consistency::Strong).await?.context("there is no row")?;
        let authority = StatusAuthority::Deletion {
            lifecycle_id: row.lifecycle_id.clone().context("no lifecycle")?,
            deletion_generation: row.deletion_generation.clone().context("no deletion generation")?,
        };
        let mut entry = RegionEntry::new(State::Deleted);
        entry.absence_observations = Some(2);
        let transition = transition::write_region_status(&row, region, &entry, &authority, stage.now())?;
        if let Outcome::Applied(_) = store.table().execute(&transition).await? {
            return Ok(());
        }
    }
    bail!("the acknowledgement of {region} lost every race")
}
