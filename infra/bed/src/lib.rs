//! The test bed: real Kubernetes control planes and DynamoDB protocol servers on loopback, and a
//! rewriting proxy before either of them.
//!
//! Everything listens on 127.0.0.1, on ports that were free, and ends with the process that started
//! it, even when that one is killed. Programs are built or installed once into a cache folder outside
//! the checkout (see [`cache`]).
//!
//! | Part | Type |
//! |---|---|
//! | etcd, kube-apiserver, kube-controller-manager, kube-scheduler | [`control_plane::ControlPlane`] |
//! | what clients asked the API server | [`control_plane::AuditLog`] |
//! | ministack, dynalite | [`table_server::TableServer`] |
//! | throttling, lost answers, late writes | [`rewriting_proxy::RewritingProxy`] |
//! | a folder for what is built or installed once | [`cache::Cache`] |
//! | a child process that cannot outlive us | [`process::Supervised`] |
//! | waiting for a state, never for a time | [`wait::until`] |
//!
//! The feature `servers` (on by default) is the first four rows; what remains without it has few dependencies.

#[cfg(feature = "servers")]
pub mod binaries;
pub mod cache;
#[cfg(feature = "servers")]
pub mod control_plane;
pub mod ports;
pub mod process;
#[cfg(feature = "servers")]
pub mod rewriting_proxy;
#[cfg(feature = "servers")]
pub mod table_server;
pub mod wait;
