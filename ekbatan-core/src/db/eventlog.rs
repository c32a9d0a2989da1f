//! The framework's own tables, which its migrations create in the schema `eventlog`.
//!
//! Invariant: the columns stand in the order in which the code that writes a row lists its
//! values.

use std::time::Duration;

use crate::domain::{ColumnDef, Table, ValueType};

/// For how long a row of [`EVENTS`] cannot be deleted after it was written; a trigger refuses it. A
/// lane that lost its connection looks for the row to find out whether a commit succeeded.
pub(crate) const EVENTS_KEPT: Duration = Duration::from_secs(60 * 60);

/// Events, and one row for each recorded action without events. The first columns are those of
/// the Java framework; ours follow.
pub(crate) static EVENTS: Table = Table {
    schema: Some("eventlog"),
    name: "events",
    model: "outbox",
    columns: &[
        ColumnDef::new("id", ValueType::Uuid),
        ColumnDef::new("namespace", ValueType::Text),
        ColumnDef::new("action_id", ValueType::Uuid),
        ColumnDef::new("action_name", ValueType::Text),
        ColumnDef::new("action_params", ValueType::Json),
        ColumnDef::new("started_date", ValueType::Timestamp),
        ColumnDef::new("completion_date", ValueType::Timestamp),
        ColumnDef::nullable("model_id", ValueType::Text),
        ColumnDef::nullable("model_type", ValueType::Text),
        ColumnDef::nullable("event_type", ValueType::Text),
        ColumnDef::nullable("payload", ValueType::Json),
        ColumnDef::new("event_date", ValueType::Timestamp),
        ColumnDef::new("delivered", ValueType::Bool),
        ColumnDef::nullable("principal", ValueType::Text),
        ColumnDef::nullable("reason", ValueType::Text),
        ColumnDef::nullable("trace_parent", ValueType::Text),
        ColumnDef::nullable("model_version", ValueType::Int),
        ColumnDef::nullable("event_index", ValueType::Int),
        ColumnDef::nullable("event_version", ValueType::Int),
        ColumnDef::nullable("fanned_out", ValueType::Int),
    ],
    version: None,
    dates: None,
    state: None,
};

/// Keys of idempotent calls, with the output of the call.
pub(crate) static IDEMPOTENCY_KEYS: Table = Table {
    schema: Some("eventlog"),
    name: "idempotency_keys",
    model: "idempotency keys",
    columns: &[
        ColumnDef::new("namespace", ValueType::Text),
        ColumnDef::new("principal", ValueType::Text),
        ColumnDef::new("idempotency_key", ValueType::Text),
        ColumnDef::new("action_name", ValueType::Text),
        ColumnDef::new("fingerprint", ValueType::Text),
        ColumnDef::new("action_id", ValueType::Uuid),
        ColumnDef::new("output", ValueType::Json),
        ColumnDef::new("created_date", ValueType::Timestamp),
        ColumnDef::nullable("shards", ValueType::Text),
        ColumnDef::nullable("claim_id", ValueType::Uuid),
    ],
    version: None,
    dates: None,
    state: None,
};

/// Messages that were handled.
pub(crate) static INBOX: Table = Table {
    schema: Some("eventlog"),
    name: "inbox",
    model: "messages of the inbox",
    columns: &[
        ColumnDef::new("namespace", ValueType::Text),
        ColumnDef::new("consumer", ValueType::Text),
        ColumnDef::new("message_id", ValueType::Text),
        ColumnDef::new("action_id", ValueType::Uuid),
        ColumnDef::new("received_date", ValueType::Timestamp),
        ColumnDef::nullable("shards", ValueType::Text),
        ColumnDef::nullable("claim_id", ValueType::Uuid),
    ],
    version: None,
    dates: None,
    state: None,
};

/// Whether the call that claimed a key or a message has committed or never will.
pub(crate) static IDEMPOTENCY_DECISIONS: Table = Table {
    schema: Some("eventlog"),
    name: "idempotency_decisions",
    model: "decisions on idempotency keys",
    columns: &[
        ColumnDef::new("claim_id", ValueType::Uuid),
        ColumnDef::new("committed", ValueType::Bool),
        ColumnDef::new("decided_date", ValueType::Timestamp),
    ],
    version: None,
    dates: None,
    state: None,
};

/// One row per shard of an action that commits on several shards.
pub(crate) static CROSS_SHARD_PARTS: Table = Table {
    schema: Some("eventlog"),
    name: "cross_shard_parts",
    model: "parts of cross-shard actions",
    columns: &[
        ColumnDef::new("action_id", ValueType::Uuid),
        ColumnDef::new("shard", ValueType::Text),
        ColumnDef::new("shards", ValueType::Text),
        ColumnDef::new("namespace", ValueType::Text),
        ColumnDef::new("action_name", ValueType::Text),
        ColumnDef::new("committed_date", ValueType::Timestamp),
    ],
    version: None,
    dates: None,
    state: None,
};

/// Deliveries that were given up. Only the name is taken from here.
pub(crate) static DEAD_LETTERS: Table = Table {
    schema: Some("eventlog"),
    name: "dead_letters",
    model: "dead letters",
    columns: &[],
    version: None,
    dates: None,
    state: None,
};

/// Runs of jobs, which `ekbatan-jobs` maps. Only the name is taken from here.
pub(crate) static JOB_RUNS: Table = Table {
    schema: Some("eventlog"),
    name: "job_runs",
    model: "runs of jobs",
    columns: &[],
    version: None,
    dates: None,
    state: None,
};

/// Fence tokens of lock keys. Each dialect writes its own SQL to raise and to check them.
pub(crate) static LOCK_FENCES: Table = Table {
    schema: Some("eventlog"),
    name: "lock_fences",
    model: "lock fences",
    columns: &[
        ColumnDef::new("lock_key", ValueType::Text),
        ColumnDef::new("token", ValueType::Int),
        ColumnDef::new("until", ValueType::Timestamp),
    ],
    version: None,
    dates: None,
    state: None,
};

/// Migrations that have run.
pub(crate) static MIGRATIONS: Table = Table {
    schema: Some("eventlog"),
    name: "migrations",
    model: "migrations",
    columns: &[
        ColumnDef::new("source", ValueType::Text),
        ColumnDef::new("version", ValueType::Int),
        ColumnDef::new("name", ValueType::Text),
        ColumnDef::new("checksum", ValueType::Text),
        ColumnDef::new("applied_date", ValueType::Timestamp),
    ],
    version: None,
    dates: None,
    state: None,
};
