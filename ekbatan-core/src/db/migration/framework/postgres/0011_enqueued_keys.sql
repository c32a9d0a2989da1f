-- The keys of enqueued calls: which call with the key was enqueued last. The version counts them.
CREATE TABLE eventlog.enqueued_keys (
    id            uuid PRIMARY KEY,
    delivery      uuid NOT NULL,
    changed       timestamp NOT NULL,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
);

CREATE INDEX enqueued_keys_changed ON eventlog.enqueued_keys (changed);
