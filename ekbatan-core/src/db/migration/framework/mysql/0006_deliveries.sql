-- Up to which subscription an event has its deliveries: 0 for none. Null where another program wrote the row.
-- Handlers find their events by deliveries, so the index on undelivered events goes.
ALTER TABLE {eventlog}.events
    ADD COLUMN fanned_out bigint,
    ADD INDEX events_fanned_out (fanned_out, id),
    DROP INDEX events_undelivered;

-- One row for each event that a handler has not handled yet.
CREATE TABLE {eventlog}.deliveries (
    id            char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    handler       varchar(255) NOT NULL,
    stream        char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    model_version bigint NOT NULL,
    event_index   bigint NOT NULL,
    event_id      char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    due           datetime(6) NOT NULL,
    attempts      bigint NOT NULL,
    node          char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    last_error    text,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL,
    INDEX deliveries_due (state, due),
    INDEX deliveries_order (stream, handler, model_version, event_index)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin;

-- Deliveries that were given up. The event stays in eventlog.events.
CREATE TABLE {eventlog}.dead_letters (
    id            char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    handler       varchar(255) NOT NULL,
    stream        char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    model_version bigint NOT NULL,
    event_index   bigint NOT NULL,
    event_id      char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    attempts      bigint NOT NULL,
    error         text NOT NULL,
    died          datetime(6) NOT NULL,
    settled_by    varchar(255),
    settled_why   text,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL,
    INDEX dead_letters_state (state, handler, died)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin;

-- Which handler wants which events, since which generation.
CREATE TABLE {eventlog}.subscriptions (
    id            char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    handler       varchar(255) NOT NULL,
    event_type    varchar(255) NOT NULL,
    since         bigint NOT NULL,
    since_date    datetime(6),
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin;

-- One row. Its version is the generation of the subscriptions.
CREATE TABLE {eventlog}.subscription_registry (
    id            char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin;

-- The processes that handle events. A process renews its row by adding one to the version.
CREATE TABLE {eventlog}.nodes (
    id            char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    name          varchar(255) NOT NULL,
    started       datetime(6) NOT NULL,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin;
