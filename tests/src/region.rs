//! A region to test on: a real control plane, nodes, a table, and monitors as processes.
