//! The embedded table and the real client on three table servers do what the pure evaluation says, in seeded sequences of
//! operations by three actors with stale reads.
//!
//! `GCO_SUITE_SIZE=full` runs 500 sequences of 40 operations; `GCO_SEED=<number>` repeats one.
#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gco_runtime::clock::{BootTime, Clock as _, SystemClock};
use gco_runtime::environment::Environment;
use gco_tests::size::Size;
use gco_tests::tables::backends::{Backend, Servers};
use gco_tests::tables::sequence::{self, Figures, OPERATIONS};

/// The atomic conditions of the operations, so that none is lost unseen. On top of these every one that is found counts.
const PREDICATES: [&str; 50] = [
    // B.1
    "Create: endpoint_name exists",
    // B.4
    "BackFill: endpoint_name exists",
    "BackFill: updated_at = as read",
    // B.5
    "SetDesiredState: endpoint_name exists",
    "SetDesiredState: labels.<label> = as read",
    "SetDesiredState: lifecycle_id = as read",
    "SetDesiredState: desired_state = deleted",
    "SetDesiredState: updated_at before the new version",
    "Promote: endpoint_name exists",
    "Promote: lifecycle_id = as read",
    "Promote: desired_state = deploying",
    "Promote: updated_at = as read",
    // B.6
    "Start: endpoint_name exists",
    "Start: lifecycle_id = as read",
    "Start: desired_state = stopped",
    // B.7
    "UpdateSpec: endpoint_name exists",
    "UpdateSpec: lifecycle_id = as read",
    "UpdateSpec: desired_state = deleted",
    "UpdateSpec: updated_at = as read",
    // B.8
    "Scale: endpoint_name exists",
    "Scale: lifecycle_id = as read",
    "Scale: desired_state = deleted",
    "Scale: spec.mooncake exists",
    "Scale: spec.autoscaling.enabled exists",
    "Scale: spec.autoscaling.enabled = false",
    // B.9
    "WriteRegionStatus: endpoint_name exists",
    "WriteRegionStatus: lifecycle_id = as read",
    "WriteRegionStatus: region_generations.<region> = as read",
    "WriteRegionStatus: desired_state = deleted",
    "WriteRegionStatus: deletion_generation = as read",
    "WriteRegionStatus: region_status.<region>.state = deleted",
    "WriteRegionStatus: region_status.<region>.deletion_generation = as read",
    "WriteRegionStatus: region_status.<region>.last_sync = as read",
    // B.10
    "UpdateTargetRegions: endpoint_name exists",
    "UpdateTargetRegions: lifecycle_id = as read",
    "UpdateTargetRegions: desired_state = deleted",
    "UpdateTargetRegions: updated_at = as read",
    // B.11
    "Purge: endpoint_name exists",
    "Purge: desired_state = deleted",
    "Purge: updated_at = as read",
    "Purge: lifecycle_id = as read",
    "Purge: deletion_generation = as read",
    // Ours
    "SetPaused: endpoint_name exists",
    "SetPaused: lifecycle_id = as read",
    "SetPaused: desired_state = deleted",
    "DeclareAbsent: endpoint_name exists",
    "DeclareAbsent: lifecycle_id = as read",
    "DeclareAbsent: desired_state = deleted",
    "DeclareAbsent: deletion_generation = as read",
    "DeclareAbsent: updated_at = as read",
];

/// One in this many sequences runs on moto, too.
const MOTO_SHARE: u64 = 3;

/// Sequences that run at the same time, each on tables of its own.
const WORKERS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn every_backend_does_what_the_conditions_and_changes_say() {
    let started = SystemClock.boot();
    let servers = Arc::new(Servers::start().await.unwrap());
    let one = Environment::process().non_empty("GCO_SEED").map(|seed| seed.parse::<u64>().unwrap());
    let seeds: Arc<Vec<u64>> = Arc::new(match one {
        Some(seed) => vec![seed],
        None => (1..=Size::asked().choose(30, 500)).collect(),
    });
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..WORKERS.min(seeds.len()) {
        let (servers, seeds, next) = (servers.clone(), seeds.clone(), next.clone());
        workers.spawn(async move {
            let backends: Vec<Backend> = servers.fresh_tables(&format!("endpoints-{worker}")).await?;
            let mut figures = Figures::default();
            while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                // moto answers one request at a time: it gets every third sequence.
                let with_moto = *seed % MOTO_SHARE == 0;
                let chosen = backends.iter().filter(|backend| with_moto || backend.name != "moto");
                figures.add(&sequence::run(*seed, &chosen.cloned().collect::<Vec<_>>()).await?);
            }
            anyhow::Ok(figures)
        });
    }
    let mut figures = Figures::default();
    while let Some(worker) = workers.join_next().await {
        figures.add(&worker.unwrap().unwrap_or_else(|error| panic!("{error:#}")));
    }
    print(&figures, seeds.len(), started);
    if one.is_some() {
        return;
    }
    let operations = figures.applied + figures.refused + figures.invalid + figures.reads;
    assert_eq!(operations, seeds.len() * OPERATIONS);
    let found: Vec<_> = figures.predicates.0.keys().map(ToString::to_string).collect();
    let missing: Vec<_> = PREDICATES.iter().filter(|wanted| !found.iter().any(|found| found == *wanted)).collect();
    assert!(missing.is_empty(), "never evaluated: {missing:?}");
    let rare = figures.predicates.seen_less_than(Size::asked().choose(1, 100));
    assert!(rare.is_empty(), "not seen often enough both ways: {rare:#?}");
}

fn print(figures: &Figures, sequences: usize, started: BootTime) {
    println!("{}", figures.predicates);
    let Figures { applied, refused, invalid, reads, refused_draws, .. } = figures;
    let seconds = SystemClock.boot().saturating_duration_since(started).as_secs_f64();
    println!(
        "{sequences} sequences of {OPERATIONS} operations on 3 backends (every third on 4) in {seconds:.0} s: {applied} applied, {refused} refused, {invalid} \
         impossible, {reads} reads; {refused_draws} further draws forbidden by the row's state"
    );
}
