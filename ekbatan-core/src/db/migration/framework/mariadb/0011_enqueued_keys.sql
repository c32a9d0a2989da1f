-- The keys of enqueued calls: which call with the key was enqueued last. The version counts them.
CREATE TABLE {eventlog}.enqueued_keys (
    id            uuid NOT NULL PRIMARY KEY,
    delivery      uuid NOT NULL,
    changed       datetime(6) NOT NULL,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL,
    INDEX enqueued_keys_changed (changed)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
