//! The prefill-decode proxy measured beside others, on one machine, over loopback only.
//!
//! | Part | Where |
//! |---|---|
//! | what the engine is told, in the prompt | [`tag`] |
//! | events that carry the time at which they were written | [`event`] |
//! | bodies of HTTP/1.1 and where they end | [`http`] |
//! | the engine | [`mock`] |
//! | the load | [`load`] |
//! | who is measured, and where they come from | [`peers`], [`install`] |
//! | what is measured | [`cells`], [`measure`], [`machine`] |
//! | the whole run | [`run`] |
//! | what it means | [`figures`], [`gates`], [`report`] |

pub mod cells;
pub mod clock;
pub mod event;
pub mod figures;
pub mod gates;
pub mod http;
pub mod install;
pub mod lane;
pub mod load;
pub mod machine;
pub mod measure;
pub mod mock;
pub mod peers;
pub mod record;
pub mod report;
pub mod run;
pub mod statistics;
pub mod tag;
