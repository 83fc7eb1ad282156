//! What each table server of the bed does not do as DynamoDB does, by name: other suites rely on the rest.
//!
//! A gap that closes fails this suite too, so that the suites that work around it can be mended.
#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::collections::BTreeSet;

use gco_bed::table_server::{Kind, TableServer};
use gco_tests::tables::conformance::{ALL, Capability, Probe};
use gco_tests::tables::raw::RawClient;

/// Gaps of ministack 1.5.33.
const MINISTACK_GAPS: &[Capability] = &[Capability::ReplicaConsistency, Capability::UnitsOfReads];

/// Gaps of moto 5.2.5 with one thread.
const MOTO_GAPS: &[Capability] = &[
    Capability::Replicas,
    Capability::ReplicaConsistency,
    Capability::UnitsOfReads,
    Capability::UnitsOfWrites,
    Capability::UnitsOfScans,
    Capability::NestingLimit,
    Capability::NumberLimit,
    Capability::NumberForm,
    Capability::ParentThatIsNoMapRefused,
];

/// Gaps of dynalite 4.0.0.
const DYNALITE_GAPS: &[Capability] = &[
    Capability::RefusalShowsTheRow,
    Capability::Transactions,
    Capability::Replicas,
    Capability::ReplicaConsistency,
    Capability::TimeToLive,
    Capability::UnitsOfScans,
    Capability::NestingLimit,
    Capability::IndexAdded,
];

async fn gaps(kind: Kind) -> BTreeSet<Capability> {
    let server = TableServer::start(kind).await.unwrap();
    let mut gaps = BTreeSet::new();
    println!("{kind:?}:");
    for (number, capability) in ALL.into_iter().enumerate() {
        let probe = Probe::new(RawClient::new(server.url()), &format!("probes-{number}")).await.unwrap();
        let has = probe.has(capability).await.unwrap();
        println!("  {:<24} {}", format!("{capability:?}"), if has { "yes" } else { "NO" });
        if !has {
            gaps.insert(capability);
        }
    }
    gaps
}

#[tokio::test(flavor = "multi_thread")]
async fn ministack_lacks_exactly_what_is_known() {
    assert_eq!(gaps(Kind::Ministack).await, MINISTACK_GAPS.iter().copied().collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn moto_lacks_exactly_what_is_known() {
    assert_eq!(gaps(Kind::Moto).await, MOTO_GAPS.iter().copied().collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn dynalite_lacks_exactly_what_is_known() {
    assert_eq!(gaps(Kind::Dynalite).await, DYNALITE_GAPS.iter().copied().collect());
}
