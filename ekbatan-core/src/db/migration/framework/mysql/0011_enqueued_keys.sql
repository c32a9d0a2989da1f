-- The keys of enqueued calls: which call with the key was enqueued last. The version counts them.
CREATE TABLE {eventlog}.enqueued_keys (
    id            char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    delivery      char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    changed       datetime(6) NOT NULL,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL,
    INDEX enqueued_keys_changed (changed)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin;
