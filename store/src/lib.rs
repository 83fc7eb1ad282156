//! The endpoint table: what a row holds, how it may change, and where it is kept.
//!
//! One row per inference endpoint says what should run and in which regions; every region's monitor writes back what is
//! true there. The schema is wire-compatible with fleets that an older control plane wrote: rows are read and written
//! back without losing a key that this crate does not know.
//!
//! * [`wire`]: attribute values as DynamoDB types them, number text kept.
//! * [`spec`], [`row`], [`status`]: typed views and the one validator.
//! * [`time`], [`name`]: the time-stamp format, and which names an endpoint may have.
//! * [`transition`]: every operation as data: a condition and changes.
//! * [`table`]: the trait that backends implement, and their errors.
//! * [`index`]: the change index: which rows changed lately.
//! * [`operations`]: read, decide, execute, and retry a lost race while the edit still makes sense.
//! * [`orphans`]: what a region tells of objects that no row owns.
//! * `dynamodb`, `embedded` (features): the two backends.

pub mod index;
pub mod name;
pub mod operations;
pub mod orphans;
pub mod problem;
pub mod row;
pub mod spec;
pub mod status;
pub mod table;
pub mod time;
pub mod transition;
pub mod wire;

#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "embedded")]
pub mod embedded;
