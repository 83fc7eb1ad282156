//! From what a region is asked for to a plan, through the pure rooms: the same for a pass and for a preview of one, so that a
//! preview can never show another plan than the one that a pass would carry out. Pure.

use std::collections::{BTreeMap, BTreeSet};

use gco_store::row::EndpointRow;

use crate::identity::LeaderMark;
use crate::intent::Intent;
use crate::object::{DesiredSet, ObjectKey, Observed};
use crate::plan::{Goal, Plan, PlanInput, Upkeep, plan, spec_digests};
use crate::render::{RenderInput, classic};

/// What is asked, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proposal<'a> {
    /// The row.
    pub(super) row: &'a EndpointRow,
    /// What the region is asked for by it.
    pub(super) intent: &'a Intent,
    /// The region.
    pub(super) region: &'a str,
    /// The endpoints' namespace.
    pub(super) namespace: &'a str,
    /// The region's cluster; a GPU metric of an autoscaler names it.
    pub(super) cluster_name: &'a str,
}

/// What a plan depends on besides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances<'a> {
    /// What is there.
    pub(super) observed: &'a Observed,
    /// Lifecycles of all rows.
    pub(super) known_lifecycles: &'a BTreeSet<String>,
    /// Whose marks the steps carry.
    pub(super) leader: &'a LeaderMark,
    /// Digests of desires whose last write changed nothing.
    pub(super) futile: &'a BTreeMap<ObjectKey, String>,
    /// The table cannot be read.
    pub(super) table_away: bool,
    /// Pods may be restarted now though no edit asks for it.
    pub(super) may_restart: bool,
    /// The time, ISO-8601.
    pub(super) now: &'a str,
}

impl Proposal<'_> {
    /// What should exist; `None` unless the region is asked to serve.
    pub(super) fn desired(&self) -> Option<DesiredSet> {
        let Self { row, intent, region, namespace, cluster_name } = *self;
        let Intent::Serve { identity, spec, refresh: _, paused: _ } = intent else { return None };
        Some(classic(&RenderInput { name: &row.name, namespace, region, cluster_name, identity, spec: &spec.spec }))
    }

    /// The plan; empty for an intent that asks for nothing in the cluster. `desired` is what [`Proposal::desired`] said.
    pub(super) fn plan(&self, desired: Option<&DesiredSet>, circumstances: &Circumstances<'_>) -> Plan {
        let Self { row, intent, region, namespace, cluster_name: _ } = *self;
        let Circumstances { observed, known_lifecycles, leader, futile, table_away, may_restart, now } = *circumstances;
        let plan_for = |goal| {
            plan(&PlanInput {
                name: &row.name,
                namespace,
                goal,
                observed,
                known_lifecycles,
                leader,
                futile,
                table_away,
            })
        };
        match (intent, desired) {
            (Intent::Serve { identity, spec, refresh, paused: _ }, Some(desired)) => {
                let digests = spec_digests(&row.spec);
                let upkeep = Upkeep {
                    spec: &spec.spec,
                    spec_digest: &digests.own,
                    canary_spec_digest: &digests.canary,
                    refresh: refresh.as_ref().map(|refresh| refresh.requested_at.as_str()),
                    may_restart,
                    now,
                };
                plan_for(Goal::Hold { identity, desired, upkeep })
            }
            (Intent::Stop { identity, paused: _ }, _) => plan_for(Goal::Stop { identity }),
            (Intent::Remove { clean_up, paused: _ }, _) => {
                plan_for(Goal::Remove { clean_up, region_generation: row.region_generation(region) })
            }
            _ => Plan::default(),
        }
    }
}
