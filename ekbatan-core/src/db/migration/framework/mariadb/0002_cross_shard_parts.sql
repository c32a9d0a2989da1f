CREATE TABLE {eventlog}.cross_shard_parts (
    action_id      uuid NOT NULL,
    shard          varchar(16) NOT NULL,
    shards         text NOT NULL,
    namespace      varchar(255) NOT NULL,
    action_name    varchar(255) NOT NULL,
    committed_date datetime(6) NOT NULL,
    PRIMARY KEY (action_id, shard)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
