//! What a pass over an endpoint would do, from what a cluster holds now: for `gco inference plan`. Reads only.
//!
//! The same rooms decide as in a pass (intent, render, plan), on the same caches. Nothing is acted upon, no Lease is taken, and
//! the marks of leadership that every step would carry are left out of the account: they are never a reason to write.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use gco_runtime::clock::{Clock as _, SystemClock};
use gco_store::row::EndpointRow;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio_util::sync::CancellationToken;

use super::action::intent_word;
use crate::admin::telemetry::Telemetry;
use crate::cluster::{Api, Caches};
use crate::identity::{ANNOTATION_LEADER_TERM, LeaderMark};
use crate::intent::{Intent, RegionContext, decide};
use crate::object::{DesiredSet, ObjectKey, Observed};
use crate::plan::{Goal, PlanInput, Step, Upkeep, plan, spec_digest};
use crate::render::{RenderInput, classic};

/// How long one call about the cluster may take.
const CALL_TIME_OUT: Duration = Duration::from_secs(15);

/// How often it is looked whether everything was read.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// One step that would be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewStep {
    /// `create`, `replace`, `delete`, `prove_absence`.
    pub verb: &'static str,
    /// `kind/name`; empty for a proof of absence.
    pub object: String,
    /// Why, for people: names the fields that differ.
    pub reason: String,
    /// Pods are replaced by it.
    pub restarts: bool,
    /// The replica count becomes smaller by it.
    pub scales_down: bool,
}

/// What would be done for one endpoint in one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// What the region is asked for, in one word: `serve`, `stop`, `delete` …
    pub asked: &'static str,
    /// It would only be observed.
    pub paused: bool,
    /// Why nothing can be done for it.
    pub problems: Vec<String>,
    /// In order; empty: nothing would be changed.
    pub steps: Vec<PreviewStep>,
    /// What would be left alone, as `kind/name: reason`.
    pub obstacles: Vec<String>,
    /// Objects that carry no mark of a leader of ours yet: their metadata is marked first, which restarts nothing.
    pub first_marks: usize,
}

/// What [`preview`] needs.
#[derive(Clone, Debug)]
pub struct PreviewInput<'a> {
    /// The row.
    pub row: &'a EndpointRow,
    /// Where, beside whom, and whether changes are frozen.
    pub context: RegionContext<'a>,
    /// The region's cluster, as its monitor's `CLUSTER_NAME` says: a GPU metric of an autoscaler names it.
    pub cluster_name: &'a str,
    /// Lifecycles of all rows.
    pub known_lifecycles: &'a BTreeSet<String>,
    /// What is there.
    pub observed: &'a Observed,
}

/// Plans without acting.
#[must_use]
pub fn preview(input: &PreviewInput<'_>) -> Preview {
    let PreviewInput { row, context, cluster_name, known_lifecycles, observed } = input;
    let intent = decide(row, context);
    let desired = desired_of(row, context, cluster_name, &intent);
    let digest = spec_digest(&row.spec);
    let goal = match (&intent, &desired) {
        (Intent::Serve { identity, spec, refresh, .. }, Some(desired)) => {
            let refresh = refresh.as_ref().map(|refresh| refresh.requested_at.as_str());
            // Restarts are shown, whenever their turn may be; the time only goes into bodies, which are not.
            let upkeep = Upkeep { spec: &spec.spec, spec_digest: &digest, refresh, may_restart: true, now: "" };
            Some(Goal::Hold { identity, desired, upkeep })
        }
        (Intent::Stop { identity, .. }, _) => Some(Goal::Stop { identity }),
        (Intent::Remove { clean_up, .. }, _) => {
            Some(Goal::Remove { clean_up, region_generation: row.region_generation(context.region) })
        }
        _ => None,
    };
    let leader = LeaderMark { epoch: "preview".to_owned(), term: u64::MAX };
    let planned = goal.map_or_else(Default::default, |goal| {
        plan(&PlanInput {
            name: &row.name,
            namespace: context.namespace,
            goal,
            observed,
            known_lifecycles,
            leader: &leader,
            futile: &BTreeMap::new(),
            table_away: false,
        })
    });
    let unmarked = |key: &ObjectKey| {
        observed.objects.get(key).is_some_and(|object| object.annotation(ANNOTATION_LEADER_TERM).is_none())
    };
    let stamped = planned.steps.iter().filter(|step| matches!(step, Step::Stamp { key, .. } if unmarked(key)));
    Preview {
        asked: intent_word(&intent),
        paused: matches!(
            &intent,
            Intent::Serve { paused: true, .. }
                | Intent::Stop { paused: true, .. }
                | Intent::Remove { paused: true, .. }
        ),
        problems: match &intent {
            Intent::Reject { reason, problems, .. } => {
                std::iter::once((*reason).to_owned()).chain(problems.iter().map(ToString::to_string)).collect()
            }
            Intent::Unusable { reason } => vec![(*reason).to_owned()],
            _ => Vec::new(),
        },
        first_marks: stamped.count(),
        steps: planned.steps.iter().filter_map(step).collect(),
        obstacles: planned.obstacles.iter().map(|one| format!("{}: {}", one.key, one.reason)).collect(),
    }
}

fn desired_of(
    row: &EndpointRow,
    context: &RegionContext<'_>,
    cluster_name: &str,
    intent: &Intent,
) -> Option<DesiredSet> {
    let Intent::Serve { identity, spec, .. } = intent else { return None };
    Some(classic(&RenderInput {
        name: &row.name,
        namespace: context.namespace,
        region: context.region,
        cluster_name,
        identity,
        spec: &spec.spec,
    }))
}

fn step(step: &Step) -> Option<PreviewStep> {
    let plain = |verb, key: &ObjectKey, reason: &str| PreviewStep {
        verb,
        object: key.to_string(),
        reason: reason.to_owned(),
        restarts: false,
        scales_down: false,
    };
    Some(match step {
        Step::Create { key, reason, .. } => plain("create", key, reason),
        Step::Replace { key, reason, restarts, scales_down, .. } => {
            PreviewStep { restarts: *restarts, scales_down: *scales_down, ..plain("replace", key, reason) }
        }
        Step::Delete { key, reason, .. } => plain("delete", key, reason),
        Step::ProveAbsence => PreviewStep {
            verb: "prove_absence",
            object: String::new(),
            reason: "nothing of it may be left".to_owned(),
            restarts: false,
            scales_down: false,
        },
        Step::Stamp { .. } => return None,
    })
}

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
