-- Up to which subscription an event has its deliveries: 0 for none. Null where another program wrote the row.
ALTER TABLE eventlog.events ADD COLUMN fanned_out bigint;

CREATE INDEX events_fanned_out ON eventlog.events (fanned_out, id);

-- Handlers find their events by deliveries.
DROP INDEX eventlog.events_undelivered;

-- One row for each event that a handler has not handled yet.
CREATE TABLE eventlog.deliveries (
    id            uuid PRIMARY KEY,
    handler       varchar(255) NOT NULL,
    stream        uuid NOT NULL,
    model_version bigint NOT NULL,
    event_index   bigint NOT NULL,
    event_id      uuid NOT NULL,
    due           timestamp NOT NULL,
    attempts      bigint NOT NULL,
    node          uuid NOT NULL,
    last_error    text,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
);

CREATE INDEX deliveries_due ON eventlog.deliveries (state, due);

CREATE INDEX deliveries_order ON eventlog.deliveries (stream, handler, model_version, event_index);

-- Deliveries that were given up. The event stays in eventlog.events.
CREATE TABLE eventlog.dead_letters (
    id            uuid PRIMARY KEY,
    handler       varchar(255) NOT NULL,
    stream        uuid NOT NULL,
    model_version bigint NOT NULL,
    event_index   bigint NOT NULL,
    event_id      uuid NOT NULL,
    attempts      bigint NOT NULL,
    error         text NOT NULL,
    died          timestamp NOT NULL,
    settled_by    varchar(255),
    settled_why   text,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
);

CREATE INDEX dead_letters_state ON eventlog.dead_letters (state, handler, died);

-- Which handler wants which events, since which generation.
CREATE TABLE eventlog.subscriptions (
    id            uuid PRIMARY KEY,
    handler       varchar(255) NOT NULL,
    event_type    varchar(255) NOT NULL,
    since         bigint NOT NULL,
    since_date    timestamp,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
);

-- One row. Its version is the generation of the subscriptions.
CREATE TABLE eventlog.subscription_registry (
    id            uuid PRIMARY KEY,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
);

-- The processes that handle events. A process renews its row by adding one to the version.
CREATE TABLE eventlog.nodes (
    id            uuid PRIMARY KEY,
    name          varchar(255) NOT NULL,
    started       timestamp NOT NULL,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
);
