//! Regions on one machine: real control planes, nodes, a kubelet stand-in that runs pods as local
//! processes, a simulated engine, and the real monitor.

pub mod engine;
pub mod kubelet;
pub mod loopback;
pub mod nodes;
