-- One row for each message from outside that an action has handled. `shards` is set while it is not known that
-- all of them have committed, `claim_id` while another shard decides, as for an idempotency key.
CREATE TABLE eventlog.inbox (
    namespace     varchar(255) NOT NULL,
    consumer      varchar(255) NOT NULL,
    message_id    varchar(255) NOT NULL,
    action_id     uuid NOT NULL,
    received_date timestamp NOT NULL,
    shards        text,
    claim_id      uuid,
    CONSTRAINT inbox_pkey PRIMARY KEY (namespace, consumer, message_id)
);

CREATE INDEX inbox_received_date ON eventlog.inbox (received_date);

-- When somebody settled a dead letter. By this date it is deleted.
ALTER TABLE eventlog.dead_letters ADD COLUMN settled timestamp;

CREATE INDEX dead_letters_settled ON eventlog.dead_letters (settled);

CREATE INDEX dead_letters_event_id ON eventlog.dead_letters (event_id);
