CREATE TABLE eventlog_events (
    id              TEXT PRIMARY KEY,
    namespace       TEXT NOT NULL,
    action_id       TEXT NOT NULL,
    action_name     TEXT NOT NULL,
    action_params   TEXT NOT NULL,
    started_date    TEXT NOT NULL,
    completion_date TEXT NOT NULL,
    model_id        TEXT,
    model_type      TEXT,
    event_type      TEXT,
    payload         TEXT,
    event_date      TEXT NOT NULL,
    delivered       INTEGER NOT NULL,
    principal       TEXT,
    reason          TEXT,
    trace_parent    TEXT,
    model_version   INTEGER,
    event_index     INTEGER,
    event_version   INTEGER
);

CREATE INDEX eventlog_events_action_id ON eventlog_events (action_id);

CREATE INDEX eventlog_events_undelivered ON eventlog_events (event_type, event_date) WHERE delivered = 0;

CREATE TABLE eventlog_idempotency_keys (
    namespace       TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    action_name     TEXT NOT NULL,
    fingerprint     TEXT NOT NULL,
    action_id       TEXT NOT NULL,
    output          TEXT NOT NULL,
    created_date    TEXT NOT NULL,
    PRIMARY KEY (namespace, idempotency_key)
);

CREATE INDEX eventlog_idempotency_keys_created_date ON eventlog_idempotency_keys (created_date);

CREATE TABLE eventlog_lock_fences (
    lock_key TEXT PRIMARY KEY,
    token    INTEGER NOT NULL,
    until    TEXT NOT NULL
);
