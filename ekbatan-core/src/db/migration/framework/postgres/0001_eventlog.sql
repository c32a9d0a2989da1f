CREATE TABLE eventlog.events (
    id              uuid PRIMARY KEY,
    namespace       varchar(255) NOT NULL,
    action_id       uuid NOT NULL,
    action_name     varchar(255) NOT NULL,
    action_params   jsonb NOT NULL,
    started_date    timestamp NOT NULL,
    completion_date timestamp NOT NULL,
    model_id        varchar(255),
    model_type      varchar(255),
    event_type      varchar(255),
    payload         jsonb,
    event_date      timestamp NOT NULL,
    delivered       boolean NOT NULL,
    principal       varchar(255),
    reason          text,
    trace_parent    varchar(255),
    model_version   bigint,
    event_index     integer,
    event_version   integer
);

CREATE INDEX events_action_id ON eventlog.events (action_id);

CREATE INDEX events_undelivered ON eventlog.events (event_type, event_date) WHERE delivered = false;

CREATE TABLE eventlog.idempotency_keys (
    namespace       varchar(255) NOT NULL,
    idempotency_key varchar(255) NOT NULL,
    action_name     varchar(255) NOT NULL,
    fingerprint     varchar(64) NOT NULL,
    action_id       uuid NOT NULL,
    output          jsonb NOT NULL,
    created_date    timestamp NOT NULL,
    CONSTRAINT idempotency_keys_pkey PRIMARY KEY (namespace, idempotency_key)
);

CREATE INDEX idempotency_keys_created_date ON eventlog.idempotency_keys (created_date);

CREATE TABLE eventlog.lock_fences (
    lock_key varchar(255) PRIMARY KEY,
    token    bigint NOT NULL,
    until    timestamp NOT NULL
);
