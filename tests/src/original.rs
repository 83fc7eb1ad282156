//! The control plane that came before, as far as its requests to the cluster and the table go: the bodies it creates, the
//! patches it sends and the statuses it writes (the wire contract, C and B.9). Written from the contract, not from our code.
//!
//! It is what ours takes over from and gives back to. It knows classic endpoints only, and does a pass when it is told to.

mod bodies;
mod cluster;
mod scaling;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_runtime::clock::{Clock as _, SystemClock};
use gco_runtime::random::{Randomness as _, SystemRandomness};
use gco_store::row::EndpointRow;
use gco_store::wire::{Item, Value};
use serde_json::{Value as Json, json};

pub use self::bodies::{canary_spec, deployment, service};
use self::cluster::Cluster;
use crate::region::Region;
use crate::region::objects::{annotation, number, text};

/// Its marks on objects (C.5).
const LIFECYCLE: &str = "gco.io/lifecycle-id";
const GENERATION: &str = "gco.io/region-generation";
const EPOCH: &str = "gco.io/leader-epoch";

/// The original monitor of a region.
#[derive(Debug)]
pub struct Original<'r> {
    region: &'r Region,
    cluster: Cluster,
    epoch: String,
}

/// How long its Lease lasts here: three intervals of a second.
const LEASE_SECONDS: i64 = 3;

impl<'r> Original<'r> {
    /// Starts it: takes the Lease once nobody holds it, with an epoch of its own (C.2).
    ///
    /// # Errors
    /// When the Lease cannot be had within the bound.
    pub async fn start(region: &'r Region) -> anyhow::Result<Self> {
        let cluster = Cluster::new(region.client().clone(), region.namespace());
        let original = Self { region, cluster, epoch: SystemRandomness.token() };
        gco_bed::wait::until("the original to take the Lease", crate::region::BOUND, || async {
            match original.take_lease().await {
                Ok(true) => Ok(()),
                Ok(false) => Err("somebody holds it".to_owned()),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await?;
        Ok(original)
    }

    /// It is scaled to zero: the Lease is not released (C.2), so whoever comes next waits for its end.
    pub fn stop(self) {}

    async fn take_lease(&self) -> anyhow::Result<bool> {
        let now = gco_store::time::format(SystemClock.wall());
        let Some(mut lease) = self.cluster.get("leases", "inference-monitor-leader").await? else {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "inference-monitor-leader", "annotations": {EPOCH: self.epoch}},
                "spec": {"holderIdentity": "original-0", "leaseDurationSeconds": LEASE_SECONDS, "acquireTime": micro(&now),
                    "renewTime": micro(&now), "leaseTransitions": 0},
            });
            return Ok(self.cluster.create("leases", &lease).await? == 201);
        };
        let holder = text(&lease, "/spec/holderIdentity").unwrap_or_default();
        let renewed = text(&lease, "/spec/renewTime").and_then(gco_store::time::parse);
        let lasts = Duration::from_secs(u64::try_from(number(&lease, "/spec/leaseDurationSeconds")).unwrap_or(15));
        let over = renewed.is_none_or(|renewed| {
            let age = SystemClock.wall().duration_since(renewed);
            age >= jiff::SignedDuration::try_from(lasts).unwrap_or_default()
        });
        if !holder.is_empty() && !over {
            return Ok(false);
        }
        let transitions = number(&lease, "/spec/leaseTransitions") + 1;
        lease["metadata"]["annotations"][EPOCH] = json!(self.epoch);
        lease["spec"] = json!({"holderIdentity": "original-0", "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": micro(&now), "renewTime": micro(&now), "leaseTransitions": transitions});
        Ok(self.cluster.replace("leases", "inference-monitor-leader", &lease).await? == 200)
    }

    /// One pass over these endpoints, in order.
    ///
    /// # Errors
    /// When a request is refused that it does not expect to be.
    pub async fn pass(&self, names: &[String]) -> anyhow::Result<()> {
        for name in names {
            let row = self.region.row(name).await?.with_context(|| format!("there is no row {name}"))?;
            self.reconcile(&row).await.with_context(|| format!("the original's pass over {name}"))?;
        }
        Ok(())
    }

    async fn reconcile(&self, row: &EndpointRow) -> anyhow::Result<()> {
        match row.desired_state.as_str() {
            "deploying" | "running" => self.serve(row).await,
            "stopped" => self.stop_endpoint(row).await,
            _ => Ok(()),
        }
    }

    fn marks(&self, row: &EndpointRow) -> anyhow::Result<Json> {
        Ok(json!({
            LIFECYCLE: row.lifecycle_id.as_deref().context("no lifecycle")?,
            GENERATION: row.region_generation(self.region.name()).context("no generation")?,
            EPOCH: self.epoch,
        }))
    }

    /// C.7.
    async fn serve(&self, row: &EndpointRow) -> anyhow::Result<()> {
        let spec = row.spec.to_plain_json();
        let marks = self.marks(row)?;
        let name = row.name.as_str();
        let autoscaled = spec["autoscaling"]["enabled"].as_bool() == Some(true);
        let replicas = spec["replicas"].as_i64().unwrap_or(1);
        let floor = if autoscaled { spec["autoscaling"]["min_replicas"].as_i64().unwrap_or(1) } else { replicas };
        let image = bodies::image(&spec, self.region.name());
        let Some(live) = self.cluster.get("deployments", name).await? else {
            self.make(name, &spec, &image, &marks).await?;
            if autoscaled {
                let _pending = self.autoscale(name, &spec, &marks).await?;
            }
            return self.status(row, "creating", 0, floor, None).await;
        };
        let mut live = self.authorise("deployments", live, &marks).await?;
        match self.cluster.get("services", name).await? {
            None => ensure!(self.cluster.create("services", &service(name, &spec, &marks)).await? == 201),
            Some(live) => drop(self.authorise("services", live, &marks).await?),
        }
        let (ready, desired) = (number(&live, "/status/readyReplicas"), number(&live, "/spec/replicas"));
        if autoscaled {
            if !self.autoscale(name, &spec, &marks).await? {
                return self.status(row, "updating", ready, desired, None).await;
            }
        } else {
            self.unscale(name).await?;
            if desired != replicas {
                live["spec"]["replicas"] = json!(replicas);
                self.cluster.patch("deployments", name, &live).await?;
                return self.status(row, "updating", ready, replicas, None).await;
            }
        }
        if text(&live, "/spec/template/spec/containers/0/image") != Some(image.as_str()) {
            // The whole object as it was read, with the image of the container `inference` changed.
            let containers = live["spec"]["template"]["spec"]["containers"].as_array_mut().context("no containers")?;
            let server =
                containers.iter_mut().find(|one| one["name"] == "inference").context("no container `inference`")?;
            server["image"] = json!(image);
            self.cluster.patch("deployments", name, &live).await?;
            return self.status(row, "updating", ready, desired, None).await;
        }
        let canary = self.canary(name, &spec, &marks).await?;
        let state = if ready >= floor { "running" } else { "creating" };
        self.status(row, state, ready, desired, canary).await?;
        if state == "running" && row.desired_state.as_str() == "deploying" {
            self.change_row(name, |item| {
                item.insert("desired_state".to_owned(), Value::from("running"));
            })
            .await?;
        }
        Ok(())
    }

    /// C.11.
    async fn canary(&self, name: &str, spec: &Json, marks: &Json) -> anyhow::Result<Option<Value>> {
        let app = format!("{name}-canary");
        let Some(canary) = canary_spec(spec) else {
            for kind in ["deployments", "services"] {
                if self.cluster.get(kind, &app).await?.is_some() {
                    self.cluster.delete(kind, &app).await?;
                }
            }
            return Ok(None);
        };
        let image = canary["image"].as_str().unwrap_or_default().to_owned();
        let replicas = canary["replicas"].as_i64().unwrap_or(1);
        let (state, ready) = match self.cluster.get("deployments", &app).await? {
            None => {
                self.make(&app, &canary, &image, marks).await?;
                ("creating", 0)
            }
            Some(live) => {
                let live = self.authorise("deployments", live, marks).await?;
                if let Some(live) = self.cluster.get("services", &app).await? {
                    self.authorise("services", live, marks).await?;
                }
                let ready = number(&live, "/status/readyReplicas");
                (if ready >= replicas { "running" } else { "creating" }, ready)
            }
        };
        let weight = spec["canary"]["weight"].as_i64().unwrap_or(10);
        Ok(Some(Value::Map(Item::from([
            ("state".to_owned(), Value::from(state)),
            ("image".to_owned(), Value::from(image)),
            ("weight".to_owned(), Value::from(weight)),
            ("replicas_ready".to_owned(), Value::from(ready)),
            ("replicas_desired".to_owned(), Value::from(replicas)),
        ]))))
    }

    /// C.10.
    async fn stop_endpoint(&self, row: &EndpointRow) -> anyhow::Result<()> {
        let marks = self.marks(row)?;
        self.unscale(&row.name).await?;
        if let Some(live) = self.cluster.get("deployments", &row.name).await? {
            let mut live = self.authorise("deployments", live, &marks).await?;
            if number(&live, "/spec/replicas") > 0 {
                live["spec"]["replicas"] = json!(0);
                self.cluster.patch("deployments", &row.name, &live).await?;
            }
        }
        self.status(row, "stopped", 0, 0, None).await
    }

    async fn make(&self, app: &str, spec: &Json, image: &str, marks: &Json) -> anyhow::Result<()> {
        ensure!(self.cluster.create("deployments", &deployment(app, spec, image, marks)).await? == 201, "Deployment");
        ensure!(self.cluster.create("services", &service(app, spec, marks)).await? == 201, "Service");
        Ok(())
    }

    /// C.5: an object that is its own is accepted when all three marks are equal; otherwise it is claimed by a patch of the
    /// metadata with the observed version, read again and looked at.
    async fn authorise(&self, kind: &str, live: Json, marks: &Json) -> anyhow::Result<Json> {
        let name = text(&live, "/metadata/name").context("no name")?.to_owned();
        let labels =
            live["metadata"]["labels"]["project"] == "gco" && live["metadata"]["labels"]["gco.io/type"] == "inference";
        let mark = |object: &Json, key: &str| annotation(object, key).map(str::to_owned);
        let wanted = |key: &str| marks[key].as_str().map(str::to_owned);
        ensure!(labels || mark(&live, LIFECYCLE).is_some(), "{kind} {name} has ambiguous legacy ownership");
        if mark(&live, LIFECYCLE).is_some() {
            ensure!(mark(&live, LIFECYCLE) == wanted(LIFECYCLE), "{kind} {name} belongs to another endpoint lifecycle");
        }
        if mark(&live, GENERATION).is_some() {
            ensure!(
                mark(&live, GENERATION) == wanted(GENERATION),
                "{kind} {name} belongs to another Region generation"
            );
        }
        if [LIFECYCLE, GENERATION, EPOCH].iter().all(|key| mark(&live, key) == wanted(key)) {
            return Ok(live);
        }
        let mut annotations = live["metadata"]["annotations"].clone();
        if annotations.is_null() {
            annotations = json!({});
        }
        for key in [LIFECYCLE, GENERATION, EPOCH] {
            annotations[key] = marks[key].clone();
        }
        let claim = json!({"metadata": {
            "resourceVersion": live["metadata"]["resourceVersion"], "annotations": annotations,
        }});
        self.cluster.patch(kind, &name, &claim).await?;
        let live = self.cluster.get(kind, &name).await?.context("vanished after its claim")?;
        let claimed = [LIFECYCLE, GENERATION, EPOCH].iter().all(|key| mark(&live, key) == wanted(key));
        ensure!(claimed, "{kind} {name} authority claim could not be verified");
        Ok(live)
    }

    /// B.9: the region's whole entry is replaced.
    async fn status(
        &self,
        row: &EndpointRow,
        state: &str,
        ready: i64,
        desired: i64,
        canary: Option<Value>,
    ) -> anyhow::Result<()> {
        let region = self.region.name();
        let mut entry = Item::from([
            ("state".to_owned(), Value::from(state)),
            ("replicas_ready".to_owned(), Value::from(ready)),
            ("replicas_desired".to_owned(), Value::from(desired)),
            ("last_sync".to_owned(), Value::from(gco_store::time::format(SystemClock.wall()))),
            ("lifecycle_id".to_owned(), Value::from(row.lifecycle_id.clone().context("no lifecycle")?)),
            ("region_generation".to_owned(), Value::from(row.region_generation(region).context("no generation")?)),
        ]);
        entry.extend(canary.map(|canary| ("canary".to_owned(), canary)));
        self.change_row(&row.name, |item| {
            let statuses = item.entry("region_status".to_owned()).or_insert_with(|| Value::Map(Item::new()));
            if let Value::Map(statuses) = statuses {
                statuses.insert(region.to_owned(), Value::Map(entry));
            }
        })
        .await
    }

    async fn change_row(&self, name: &str, change: impl FnOnce(&mut Item)) -> anyhow::Result<()> {
        let row = self.region.row(name).await?.context("the row vanished")?;
        let mut item = row.item;
        change(&mut item);
        let version = gco_store::time::next_version(SystemClock.wall(), row.updated_at.as_deref());
        item.insert("updated_at".to_owned(), Value::from(version));
        self.region.put_raw(item).await
    }
}

/// A time as a Lease holds it: microseconds and `Z`.
fn micro(now: &str) -> String {
    let time = now.trim_end_matches("+00:00");
    if time.contains('.') { format!("{time}Z") } else { format!("{time}.000000Z") }
}
