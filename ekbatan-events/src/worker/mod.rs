//! What works on one shard for a node: its heart, its doorbell, and the worker that claims and handles.

pub(crate) mod doorbell;
pub(crate) mod gauges;
pub(crate) mod hand_back;
pub(crate) mod heart;
pub(crate) mod relay_gates;
pub(crate) mod run_tasks;
pub(crate) mod shard_worker;
