//! Tables to test on, and actors that use them.
//!
//! | Part | What for |
//! |---|---|
//! | [`backends`] | the embedded table, both table servers, and the product's client for them |
//! | [`reference`] | what a transition should do, evaluated on a map |
//! | [`predicates`] | how often each atomic condition was seen true and false |
//! | [`generator`] | seeded actors with stale snapshots |
//! | [`scenarios`], [`faults`] | one transition of every kind, and one of them under a fault |
//! | [`sequence`] | one seeded sequence of operations on the reference and every backend |
//! | [`conformance`], [`raw`] | what DynamoDB does and a server may not, as probes past the product's client |
//! | [`races`] | writers that race for one row |
//! | [`specs`], [`seed`] | the endpoint specs and the random choices that they use |

pub mod backends;
pub mod conformance;
pub mod faults;
pub mod generator;
pub mod predicates;
pub mod races;
pub mod raw;
pub mod reference;
pub mod scenarios;
pub mod seed;
pub mod sequence;
pub mod specs;
