CREATE TABLE eventlog.cross_shard_parts (
    action_id      uuid NOT NULL,
    shard          varchar(16) NOT NULL,
    shards         text NOT NULL,
    namespace      varchar(255) NOT NULL,
    action_name    varchar(255) NOT NULL,
    committed_date timestamp NOT NULL,
    PRIMARY KEY (action_id, shard)
);
