CREATE TABLE eventlog_cross_shard_parts (
    action_id      TEXT NOT NULL,
    shard          TEXT NOT NULL,
    shards         TEXT NOT NULL,
    namespace      TEXT NOT NULL,
    action_name    TEXT NOT NULL,
    committed_date TEXT NOT NULL,
    PRIMARY KEY (action_id, shard)
);
