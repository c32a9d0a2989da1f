-- One row for each message from outside that an action has handled. `shards` is set while it is not known that
-- all of them have committed, `claim_id` while another shard decides, as for an idempotency key.
CREATE TABLE eventlog_inbox (
    namespace     TEXT NOT NULL,
    consumer      TEXT NOT NULL,
    message_id    TEXT NOT NULL,
    action_id     TEXT NOT NULL,
    received_date TEXT NOT NULL,
    shards        TEXT,
    claim_id      TEXT,
    PRIMARY KEY (namespace, consumer, message_id)
);

CREATE INDEX eventlog_inbox_received_date ON eventlog_inbox (received_date);

-- When somebody settled a dead letter. By this date it is deleted.
ALTER TABLE eventlog_dead_letters ADD COLUMN settled TEXT;

CREATE INDEX eventlog_dead_letters_settled ON eventlog_dead_letters (settled);

CREATE INDEX eventlog_dead_letters_event_id ON eventlog_dead_letters (event_id);
