-- A key is unique within a namespace and a principal; no principal is an empty text. `shards` is set while it
-- is not known that all of them have committed, `claim_id` while another shard decides; see `idempotency_decisions`.
ALTER TABLE eventlog.idempotency_keys
    ADD COLUMN principal varchar(255) NOT NULL DEFAULT '',
    ADD COLUMN shards text,
    ADD COLUMN claim_id uuid,
    DROP CONSTRAINT idempotency_keys_pkey,
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (namespace, principal, idempotency_key);

-- Whether the call that claimed a key has committed or never will. The first row of a claim decides.
CREATE TABLE eventlog.idempotency_decisions (
    claim_id     uuid CONSTRAINT idempotency_decisions_pkey PRIMARY KEY,
    committed    boolean NOT NULL,
    decided_date timestamp NOT NULL
);
