-- A key is unique within a namespace and a principal; no principal is an empty text. `shards` is set while it
-- is not known that all of them have committed, `claim_id` while another shard decides; see `idempotency_decisions`.
-- SQLite cannot change a primary key, so the table is made again.
CREATE TABLE eventlog_idempotency_keys_new (
    namespace       TEXT NOT NULL,
    principal       TEXT NOT NULL DEFAULT '',
    idempotency_key TEXT NOT NULL,
    action_name     TEXT NOT NULL,
    fingerprint     TEXT NOT NULL,
    action_id       TEXT NOT NULL,
    output          TEXT NOT NULL,
    created_date    TEXT NOT NULL,
    shards          TEXT,
    claim_id        TEXT,
    PRIMARY KEY (namespace, principal, idempotency_key)
);

INSERT INTO eventlog_idempotency_keys_new
    (namespace, idempotency_key, action_name, fingerprint, action_id, output, created_date)
SELECT namespace, idempotency_key, action_name, fingerprint, action_id, output, created_date
FROM eventlog_idempotency_keys;

DROP TABLE eventlog_idempotency_keys;

ALTER TABLE eventlog_idempotency_keys_new RENAME TO eventlog_idempotency_keys;

CREATE INDEX eventlog_idempotency_keys_created_date ON eventlog_idempotency_keys (created_date);

-- Whether the call that claimed a key has committed or never will. The first row of a claim decides.
CREATE TABLE eventlog_idempotency_decisions (
    claim_id     TEXT PRIMARY KEY,
    committed    INTEGER NOT NULL,
    decided_date TEXT NOT NULL
);
