//! Every replica count that a Deployment ever had: one for each event of a watch.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use futures::TryStreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};

use super::Region;

/// How long one watch may last, in seconds; the server's bound is 295.
const WATCH_SECONDS: u32 = 290;

#[derive(Debug, Default)]
struct Seen {
    counts: Vec<i32>,
    events: usize,
    broken: Option<String>,
}

/// A running observation of one Deployment; ends when dropped.
#[derive(Debug)]
pub struct Counts {
    seen: Arc<Mutex<Seen>>,
    task: tokio::task::JoinHandle<()>,
}

impl Region {
    /// Begins to note every count of a Deployment that is there.
    ///
    /// # Errors
    /// When it is not there, or the watch cannot begin.
    pub async fn counts(&self, name: &str) -> anyhow::Result<Counts> {
        let deployments: Api<Deployment> = Api::namespaced(self.client().clone(), self.namespace());
        let list = deployments.list(&ListParams::default().fields(&format!("metadata.name={name}"))).await?;
        let version = list.metadata.resource_version.clone().context("the list has no version")?;
        let first = list.items.first().and_then(|one| one.spec.as_ref()?.replicas).context("there is no Deployment")?;
        let seen = Arc::new(Mutex::new(Seen { counts: vec![first], events: 0, broken: None }));
        let parameters = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS);
        let told = seen.clone();
        let task = tokio::spawn(async move {
            let ended = follow(&deployments, &parameters, &version, &told).await;
            let why = ended.err().map_or_else(|| "it ended".to_owned(), |error| format!("{error:#}"));
            told.lock().unwrap_or_else(PoisonError::into_inner).broken = Some(why);
        });
        Ok(Counts { seen, task })
    }
}

async fn follow(
    deployments: &Api<Deployment>,
    parameters: &WatchParams,
    version: &str,
    told: &Mutex<Seen>,
) -> anyhow::Result<()> {
    let mut events = std::pin::pin!(deployments.watch(parameters, version).await?);
    while let Some(event) = events.try_next().await? {
        match event {
            WatchEvent::Added(one) | WatchEvent::Modified(one) | WatchEvent::Deleted(one) => {
                let count = one.spec.and_then(|spec| spec.replicas).context("an event without a count")?;
                let mut seen = told.lock().unwrap_or_else(PoisonError::into_inner);
                seen.events += 1;
                seen.counts.push(count);
            }
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => anyhow::bail!("{status:?}"),
        }
    }
    Ok(())
}

impl Counts {
    /// Every count from the first look on, one for each event.
    ///
    /// # Errors
    /// When the watch broke, so that an event may be missing.
    pub fn all(&self) -> anyhow::Result<Vec<i32>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(seen.broken.is_none(), "the watch broke: {:?}", seen.broken);
        Ok(seen.counts.clone())
    }

    /// Events so far.
    #[must_use]
    pub fn events(&self) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).events
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        self.task.abort();
    }
}
