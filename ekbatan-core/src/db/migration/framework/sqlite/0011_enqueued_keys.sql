-- The keys of enqueued calls: which call with the key was enqueued last. The version counts them.
CREATE TABLE eventlog_enqueued_keys (
    id            TEXT NOT NULL PRIMARY KEY,
    delivery      TEXT NOT NULL,
    changed       TEXT NOT NULL,
    state         TEXT NOT NULL,
    version       INTEGER NOT NULL
);

CREATE INDEX eventlog_enqueued_keys_changed ON eventlog_enqueued_keys (changed);
