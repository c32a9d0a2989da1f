-- One row for each message from outside that an action has handled. `shards` is set while it is not known that
-- all of them have committed, `claim_id` while another shard decides, as for an idempotency key.
CREATE TABLE {eventlog}.inbox (
    namespace     varchar(255) NOT NULL,
    consumer      varchar(255) NOT NULL,
    message_id    varchar(255) NOT NULL,
    action_id     char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    received_date datetime(6) NOT NULL,
    shards        text,
    claim_id      char(36) CHARACTER SET ascii COLLATE ascii_bin,
    PRIMARY KEY (namespace, consumer, message_id),
    INDEX inbox_received_date (received_date)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin;

-- When somebody settled a dead letter. By this date it is deleted.
ALTER TABLE {eventlog}.dead_letters
    ADD COLUMN settled datetime(6),
    ADD INDEX dead_letters_settled (settled),
    ADD INDEX dead_letters_event_id (event_id);
