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
//! | a child process that cannot outlive us | [`process::Supervised`] |
//! | waiting for a state, never for a time | [`wait::until`] |

pub mod binaries;
pub mod cache;
pub mod control_plane;
mod ports;
pub mod process;
pub mod rewriting_proxy;
pub mod table_server;
pub mod wait;
