//! A cluster read by a person, for a preview of what a monitor would do: with their own rights, and changing nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use gco_runtime::clock::{Clock as _, SystemClock};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio_util::sync::CancellationToken;

use super::{Api, Caches};
use crate::admin::telemetry::Telemetry;
use crate::object::Observed;

/// How long one call about the cluster may take.
const CALL_TIME_OUT: Duration = Duration::from_secs(15);

/// How often it is looked whether everything was read.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A cluster, read with somebody's own rights: list and watch of what the monitor watches.
#[derive(Debug)]
pub struct ClusterReader {
    caches: Caches,
    stop: CancellationToken,
}

impl ClusterReader {
    /// Reads everything of ours in a namespace, within `bound`.
    ///
    /// # Errors
    /// No such kubeconfig or context, or a cluster that does not let everything be read in time.
    pub async fn open(
        kubeconfig: Option<&Path>,
        context: Option<&str>,
        namespace: &str,
        bound: Duration,
    ) -> anyhow::Result<Self> {
        gco_runtime::tls::install_provider();
        let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
        let mut config = match (kubeconfig, context) {
            (Some(path), _) => {
                let file = Kubeconfig::read_from(path).with_context(|| format!("reading {}", path.display()))?;
                kube::Config::from_custom_kubeconfig(file, &options).await.context("the kubeconfig")?
            }
            (None, Some(_)) => kube::Config::from_kubeconfig(&options).await.context("the kubeconfig")?,
            (None, None) => kube::Config::infer().await.context("no kubeconfig")?,
        };
        config.default_retry = false;
        config.connect_timeout = Some(CALL_TIME_OUT);
        let client = kube::Client::try_from(config).context("no client for the cluster")?;
        let clock = Arc::new(SystemClock);
        let telemetry = Arc::new(Telemetry::new()?);
        let api = Api::new(client, namespace, CALL_TIME_OUT, clock.clone(), telemetry);
        let caches = Caches::new(clock.clone());
        let stop = CancellationToken::new();
        let reader = Self { caches: caches.clone(), stop: stop.clone() };
        tokio::spawn(async move { caches.watch(&api, stop).await });
        let began = clock.boot();
        while !reader.caches.is_synced() {
            if clock.boot().saturating_duration_since(began) > bound {
                let missing = reader.caches.missing().join(", ");
                bail!("could not read {missing} of namespace {namespace} within {} s", bound.as_secs());
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        Ok(reader)
    }

    /// Everything of one endpoint.
    #[must_use]
    pub fn observe(&self, endpoint: &str) -> Observed {
        self.caches.observe(endpoint).unwrap_or_default()
    }
}

impl Drop for ClusterReader {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
