//! Regions on one machine: real control planes, nodes, a kubelet stand-in that runs pods as local
//! processes, a simulated engine, and the real monitor.
//!
//! | Part | What it is |
//! |---|---|
//! | [`engine`] | a model server without a model (`gco-engine`) |
//! | [`kubelet`] | runs the pods of a region, and knows where they really listen |
//! | [`nodes`] | the node objects that the scheduler places pods on |
//! | [`gateway`] | the address that people call in a region |
//! | [`instance`] | all of that together, from `gco local up` to `gco local down` |
//! | [`platform`] | the manifests that a cluster of the fleet has, too |
//! | [`loopback`] | HTTP to servers on this machine |

pub mod engine;
pub mod gateway;
pub mod instance;
pub mod kubelet;
pub mod loopback;
pub mod nodes;
pub mod platform;
