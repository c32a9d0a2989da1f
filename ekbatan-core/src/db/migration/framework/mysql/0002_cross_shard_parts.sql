CREATE TABLE {eventlog}.cross_shard_parts (
    action_id      char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    shard          varchar(16) NOT NULL,
    shards         text NOT NULL,
    namespace      varchar(255) NOT NULL,
    action_name    varchar(255) NOT NULL,
    committed_date datetime(6) NOT NULL,
    PRIMARY KEY (action_id, shard)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin;
