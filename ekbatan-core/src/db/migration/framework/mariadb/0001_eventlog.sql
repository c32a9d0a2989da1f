-- The word in braces stands for the database that holds these tables, quoted.
CREATE TABLE {eventlog}.events (
    id              uuid NOT NULL PRIMARY KEY,
    namespace       varchar(255) NOT NULL,
    action_id       uuid NOT NULL,
    action_name     varchar(255) NOT NULL,
    action_params   json NOT NULL,
    started_date    datetime(6) NOT NULL,
    completion_date datetime(6) NOT NULL,
    model_id        varchar(255),
    model_type      varchar(255),
    event_type      varchar(255),
    payload         json,
    event_date      datetime(6) NOT NULL,
    delivered       boolean NOT NULL,
    principal       varchar(255),
    reason          text,
    trace_parent    varchar(255),
    model_version   bigint,
    event_index     integer,
    event_version   integer,
    INDEX events_action_id (action_id),
    INDEX events_undelivered (delivered, event_type, event_date)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

CREATE TABLE {eventlog}.idempotency_keys (
    namespace       varchar(255) NOT NULL,
    idempotency_key varchar(255) NOT NULL,
    action_name     varchar(255) NOT NULL,
    fingerprint     varchar(64) NOT NULL,
    action_id       uuid NOT NULL,
    output          json NOT NULL,
    created_date    datetime(6) NOT NULL,
    PRIMARY KEY (namespace, idempotency_key),
    INDEX idempotency_keys_created_date (created_date)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

CREATE TABLE {eventlog}.lock_fences (
    lock_key varchar(255) NOT NULL PRIMARY KEY,
    token    bigint NOT NULL,
    until    datetime(6) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
