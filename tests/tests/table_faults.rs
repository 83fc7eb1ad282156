//! Throttling, 500s, lost answers and late writes before real table servers: what the client is told is true, and no write
//! takes effect twice.
#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gco_bed::rewriting_proxy::{Answer, Decision, Exchange, Gate, RequestFacts};
use gco_bed::table_server::TableServer;
use gco_store::table::{Consistency, ErrorCategory, Outcome, Table as _};
use gco_tests::tables::backends::{Servers, Times, connect};
use gco_tests::tables::faults::{self, FAULTS, Fault, FaultBed, Told, settled};
use gco_tests::tables::scenarios::{KINDS, Kind, Scenarios};

/// Cases that run at the same time on one server, each behind a proxy of its own.
const WORKERS: usize = 4;

/// Every kind of transition under every fault, with and without another writer in between.
async fn all_cases(server_name: &'static str, server: &TableServer) {
    let mut cases = Vec::new();
    for kind in KINDS {
        for fault in FAULTS {
            cases.extend([(kind, fault, false), (kind, fault, true)]);
        }
    }
    let (cases, next) = (Arc::new(cases), Arc::new(AtomicUsize::new(0)));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..WORKERS {
        let bed = FaultBed::new(server, "faults").await.unwrap();
        let (cases, next) = (cases.clone(), next.clone());
        workers.spawn(async move {
            let mut done = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some((kind, fault, meddled)) = cases.get(number).copied() else { return done };
                let name = format!("case-{number}");
                let case = faults::run(&bed, &name, kind, fault, meddled).await;
                done.push(((fault, meddled), kind, case));
            }
        });
    }
    let (mut problems, mut told, mut requests) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    while let Some(worker) = workers.join_next().await {
        for (situation, kind, case) in worker.unwrap() {
            match case {
                Err(error) => problems.push(format!("{kind:?} under {situation:?}: {error:#}")),
                Ok(case) => {
                    *told.entry((situation, case.told)).or_insert(0_usize) += 1;
                    let most: &mut (usize, usize) = requests.entry(situation).or_default();
                    *most = (most.0.max(case.writes), most.1.max(case.reads));
                }
            }
        }
    }
    println!("{server_name}: {} cases; told (fault, another writer in between):", cases.len());
    for (((fault, meddled), told), count) in &told {
        let (writes, reads) = requests.get(&(*fault, *meddled)).copied().unwrap_or_default();
        let meddled = if *meddled { "another writer" } else { "alone" };
        println!(
            "  {fault:<14?} {meddled:<14} {told:<8?} {count:>3}   (requests at most: {writes} writes, {reads} reads)"
        );
    }
    assert!(
        problems.is_empty(),
        "{server_name}: {} of {} cases:\n{}",
        problems.len(),
        cases.len(),
        problems.join("\n")
    );
    // Alone, a fault is mended: by sending again what was not done, by looking at what was.
    let alone = told.iter().filter(|(((_, meddled), _), _)| !meddled);
    assert!(alone.clone().all(|((_, told), _)| *told == Told::Applied), "{told:?}");
    let looked = |fault: Fault| requests.get(&(fault, false)).copied().unwrap_or_default();
    assert_eq!(looked(Fault::DroppedAfter), (1, 1), "a lost answer costs one read and no second write");
    assert_eq!(looked(Fault::ErrorAfter), (1, 1), "a 500 after the write costs one read and no second write");
    assert_eq!(looked(Fault::Throttled), (2, 0), "what was throttled is sent again, unseen");
    let unknown: usize = told.iter().filter(|((_, told), _)| *told == Told::Unknown).map(|(_, count)| count).sum();
    assert!(unknown > 0, "no other writer ever came in between: the suite does not reach what it is for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_every_fault_the_client_is_told_the_truth_and_nothing_is_done_twice() {
    let servers = Servers::start().await.unwrap();
    let [(one, first), (other, second)] = servers.both();
    tokio::join!(all_cases(one, first), all_cases(other, second));
}

/// A name, its row as a history makes it, and the transition.
async fn prepared(bed: &FaultBed, name: &str, kind: Kind) -> gco_store::transition::Transition {
    let mut scenarios = Scenarios::new(name, 7);
    let history = scenarios.history(kind).unwrap();
    let reference = bed.prepare(&history).await.unwrap();
    scenarios.transition(kind, reference.row(name)).unwrap()
}

fn effects(exchanges: &[Exchange]) -> usize {
    exchanges.iter().filter(|exchange| exchange.request.is_write() && exchange.upstream_status == Some(200)).count()
}

/// Little time, so that an outage outlasts it.
const IMPATIENT: Times =
    Times { call: std::time::Duration::from_secs(5), total: std::time::Duration::from_millis(1500) };

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_throttles_for_longer_than_the_total_time_is_reported_as_throttled_and_unchanged() {
    let servers = Servers::start().await.unwrap();
    for (server_name, server) in servers.both() {
        let bed = FaultBed::new(server, "throttled").await.unwrap();
        let transition = prepared(&bed, "chat", Kind::Stop).await;
        let table = connect(&bed.proxy.url(), "throttled", IMPATIENT).await.unwrap();
        let before = bed.direct.get("chat", Consistency::Strong).await.unwrap();
        let mark = bed.proxy.mark();
        bed.proxy.set_hook(|request| match request.is_write() {
            true => Decision::AnswerInstead(Answer::dynamodb_throttled()),
            false => Decision::Forward,
        });
        let error = table.execute(&transition).await.unwrap_err();
        assert_eq!(error.category, ErrorCategory::Throttled, "{server_name}: {error}");
        let tries = bed.proxy.exchanges_since(mark).len();
        assert!((3..=40).contains(&tries), "{server_name}: {tries} requests in 1.5 s");
        assert_eq!(bed.direct.get("chat", Consistency::Strong).await.unwrap(), before);
        println!("{server_name}: throttled for 1.5 s: {tries} requests, then {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_that_cannot_be_looked_up_is_reported_as_unknown() {
    let servers = Servers::start().await.unwrap();
    for (server_name, server) in servers.both() {
        let bed = FaultBed::new(server, "blind").await.unwrap();
        let transition = prepared(&bed, "chat", Kind::Stop).await;
        let table = connect(&bed.proxy.url(), "blind", IMPATIENT).await.unwrap();
        bed.proxy.once(RequestFacts::is_write, Decision::ForwardThenDrop);
        bed.proxy.set_hook(|_| Decision::AnswerInstead(Answer::dynamodb_internal_error()));
        let error = table.execute(&transition).await.unwrap_err();
        assert_eq!(error.category, ErrorCategory::Unknown, "{server_name}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_still_on_its_way_is_never_reported_as_not_done() {
    let servers = Servers::start().await.unwrap();
    for (server_name, server) in servers.both() {
        let bed = FaultBed::new(server, "late").await.unwrap();
        let transition = prepared(&bed, "chat", Kind::Stop).await;
        let times = Times { call: std::time::Duration::from_millis(700), ..IMPATIENT };
        let table = connect(&bed.proxy.url(), "late", times).await.unwrap();
        let (gate, mark) = (Gate::new(), bed.proxy.mark());
        let held = gate.clone();
        bed.proxy.set_hook(move |request| match request.is_write() {
            true => Decision::HoldThenForward(held.clone()),
            false => Decision::Forward,
        });
        let error = table.execute(&transition).await.unwrap_err();
        assert_eq!(error.category, ErrorCategory::Unknown, "{server_name}: {error}");
        gate.open();
        let exchanges = settled(&bed.proxy, mark).await.unwrap();
        assert_eq!(effects(&exchanges), 1, "{server_name}: the first that arrives is done, and only that one");
    }
}

/// The second request is refused because the first was done after all; then nothing can be read any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_request_that_meets_the_late_first_one_is_not_reported_as_not_done() {
    let servers = Servers::start().await.unwrap();
    for (server_name, server) in servers.both() {
        let bed = FaultBed::new(server, "overtaken").await.unwrap();
        let transition = prepared(&bed, "chat", Kind::Stop).await;
        let times = Times { call: std::time::Duration::from_millis(700), total: std::time::Duration::from_secs(6) };
        let table = connect(&bed.proxy.url(), "overtaken", times).await.unwrap();
        let (first, second, mark) = (Gate::new(), Gate::new(), bed.proxy.mark());
        bed.proxy.once(RequestFacts::is_write, Decision::HoldThenForward(first.clone()));
        bed.proxy.once(|request| request.is_operation("GetItem"), Decision::Forward);
        bed.proxy.once(RequestFacts::is_write, Decision::HoldThenForward(second.clone()));
        bed.proxy.set_hook(|request| match request.is_write() {
            true => Decision::Forward,
            false => Decision::AnswerInstead(Answer::dynamodb_internal_error()),
        });
        let arriving = async {
            let bound = std::time::Duration::from_secs(20);
            let writes =
                |exchanges: &[Exchange]| exchanges.iter().filter(|e| e.request.is_write()).cloned().collect::<Vec<_>>();
            gco_bed::wait::until("the second request", bound, || {
                let count = writes(&bed.proxy.exchanges_since(mark)).len();
                std::future::ready(if count >= 2 { Ok(()) } else { Err(format!("{count} writes")) })
            })
            .await
            .unwrap();
            first.open();
            let done = |exchange: &Exchange| exchange.request.is_write() && exchange.upstream_status == Some(200);
            bed.proxy.wait_for("the first request to be done", bound, mark, done).await.unwrap();
            second.open();
        };
        let (outcome, ()) = tokio::join!(table.execute(&transition), arriving);
        let exchanges = settled(&bed.proxy, mark).await.unwrap();
        assert_eq!(effects(&exchanges), 1, "{server_name}");
        let true_to_the_row = match &outcome {
            Ok(Outcome::Applied(_)) => true,
            Err(error) => error.category == ErrorCategory::Unknown,
            Ok(Outcome::Refused(_)) => false,
        };
        let log: Vec<_> = exchanges.iter().map(Exchange::summary).collect();
        assert!(
            true_to_the_row,
            "{server_name}: the row was written, and the client was told {outcome:?}; {}",
            log.join("; ")
        );
    }
}
