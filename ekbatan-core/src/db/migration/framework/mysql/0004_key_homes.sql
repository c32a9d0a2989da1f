-- A key is unique within a namespace and a principal; no principal is an empty text. `shards` is set while it
-- is not known that all of them have committed, `claim_id` while another shard decides; see `idempotency_decisions`.
ALTER TABLE {eventlog}.idempotency_keys
    ADD COLUMN principal varchar(255) NOT NULL DEFAULT '',
    ADD COLUMN shards text,
    ADD COLUMN claim_id char(36) CHARACTER SET ascii COLLATE ascii_bin,
    DROP PRIMARY KEY,
    ADD PRIMARY KEY (namespace, principal, idempotency_key);

-- Whether the call that claimed a key has committed or never will. The first row of a claim decides.
CREATE TABLE {eventlog}.idempotency_decisions (
    claim_id     char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    committed    boolean NOT NULL,
    decided_date datetime(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin;
