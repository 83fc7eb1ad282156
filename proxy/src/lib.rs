//! The prefill-decode proxy.
//!
//! For each request it chooses one prefill and one decode engine, makes the prompt's KV cache move from the first to the
//! second, and relays decode's answer byte for byte.
//!
//! | Room | What it holds |
//! |---|---|
//! | [`config`] | settings from the environment, all checked before a port opens |
//! | [`backends`] | the engines: where they come from, which can be used, passive health |
//! | [`select`] | which of several engines gets a request; waiting for a place |
//! | [`exchange`] | one request as a state machine without I/O: which leg is sent when, what a failure leads to |
//! | [`relay`] | bodies, headers, errors; connections to engines |
//! | [`front`] | the listening port's TLS, with certificate reload |
//! | [`admin`] | health, readiness, metrics, and the routes behind the admin key |
//! | [`residency`] | the seam for asking where a prompt's KV already is; answers "unknown" |
//! | [`server`] | the listening side: connections, limits, one task per request, drain |

pub mod admin;
pub mod backends;
pub mod config;
pub mod exchange;
pub mod front;
pub mod relay;
pub mod residency;
pub mod select;
pub mod server;
