//! The original's autoscalers (C.13): which one there is, who removes the other, and what it looks for afterwards.

use anyhow::{Context as _, ensure};
use serde_json::{Value as Json, json};

use super::{Original, bodies};
use crate::region::objects::number;

const AUTOSCALERS: &str = "horizontalpodautoscalers";
const SCALED_OBJECTS: &str = "scaledobjects";

/// KEDA's name for the autoscaler of a ScaledObject.
fn of_keda(name: &str) -> String {
    format!("keda-hpa-{name}")
}

/// Whether Kubernetes' own autoscaler cannot measure one of the metrics.
fn needs_keda(spec: &Json) -> bool {
    let metrics = spec["autoscaling"]["metrics"].as_array();
    metrics.into_iter().flatten().any(|metric| metric["type"].as_str().is_some_and(|kind| kind.starts_with("gpu")))
}

impl Original<'_> {
    /// Removes every autoscaler of an endpoint.
    pub(super) async fn unscale(&self, name: &str) -> anyhow::Result<()> {
        self.remove(&[(SCALED_OBJECTS, name.to_owned())]).await?;
        self.remove(&[(AUTOSCALERS, name.to_owned()), (AUTOSCALERS, of_keda(name))]).await
    }

    async fn remove(&self, unwanted: &[(&str, String)]) -> anyhow::Result<()> {
        for (kind, name) in unwanted {
            if self.cluster.get(kind, name).await?.is_some() {
                self.cluster.delete(kind, name).await?;
            }
        }
        Ok(())
    }

    /// Removes the other kind; once that is gone, makes the wanted one, or patches it whole with the version that was read,
    /// in every pass; then looks at who scales. Whether all of that was done.
    pub(super) async fn autoscale(&self, name: &str, spec: &Json, marks: &Json) -> anyhow::Result<bool> {
        let by_keda = needs_keda(spec);
        let unwanted = if by_keda {
            vec![(AUTOSCALERS, name.to_owned())]
        } else {
            vec![(SCALED_OBJECTS, name.to_owned()), (AUTOSCALERS, of_keda(name))]
        };
        self.remove(&unwanted).await?;
        for (kind, name) in &unwanted {
            if self.cluster.get(kind, name).await?.is_some() {
                return Ok(false);
            }
        }
        if let Some(mut live) = self.cluster.get("deployments", name).await?
            && number(&live, "/spec/replicas") == 0
        {
            live["spec"]["replicas"] = json!(spec["autoscaling"]["min_replicas"].as_i64().unwrap_or(1).max(1));
            self.cluster.patch("deployments", name, &live).await?;
        }
        let (kind, mut body) = if by_keda {
            (SCALED_OBJECTS, bodies::scaled_object(name, spec, marks, self.region))
        } else {
            (AUTOSCALERS, bodies::autoscaler(name, spec, marks))
        };
        if self.cluster.create(kind, &body).await? == 409 {
            let live = self.cluster.get(kind, name).await?.context("the autoscaler vanished")?;
            let live = self.authorise(kind, live, marks).await?;
            body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
            self.cluster.patch(kind, name, &body).await?;
        }
        let scaling = if by_keda { of_keda(name) } else { name.to_owned() };
        // KEDA makes its own after a while: until then it is pending.
        let Some(live) = self.cluster.get(AUTOSCALERS, &scaling).await? else { return Ok(false) };
        let live = self.authorise(AUTOSCALERS, live, marks).await?;
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name});
        ensure!(live["spec"]["scaleTargetRef"] == target, "pending hpa/{scaling}: {}", live["spec"]["scaleTargetRef"]);
        Ok(true)
    }
}
