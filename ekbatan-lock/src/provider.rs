//! What is the same for every backend: the fair queue within the process, re-entry, deadlines, renewal and loss.

pub(crate) mod force;
pub(crate) mod inline_task;
pub(crate) mod key_queue;
pub(crate) mod key_worker;
pub(crate) mod lease;
pub(crate) mod lock_provider;
pub(crate) mod renewals;
pub(crate) mod state;
pub(crate) mod telemetry;
