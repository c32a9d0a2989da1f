-- Up to which subscription an event has its deliveries: 0 for none. Null where another program wrote the row.
ALTER TABLE eventlog_events ADD COLUMN fanned_out INTEGER;

CREATE INDEX eventlog_events_fanned_out ON eventlog_events (fanned_out, id);

-- Handlers find their events by deliveries.
DROP INDEX eventlog_events_undelivered;

-- One row for each event that a handler has not handled yet.
CREATE TABLE eventlog_deliveries (
    id            TEXT NOT NULL PRIMARY KEY,
    handler       TEXT NOT NULL,
    stream        TEXT NOT NULL,
    model_version INTEGER NOT NULL,
    event_index   INTEGER NOT NULL,
    event_id      TEXT NOT NULL,
    due           TEXT NOT NULL,
    attempts      INTEGER NOT NULL,
    node          TEXT NOT NULL,
    last_error    TEXT,
    state         TEXT NOT NULL,
    version       INTEGER NOT NULL
);

CREATE INDEX eventlog_deliveries_due ON eventlog_deliveries (state, due);

CREATE INDEX eventlog_deliveries_order ON eventlog_deliveries (stream, handler, model_version, event_index);

-- Deliveries that were given up. The event stays in eventlog_events.
CREATE TABLE eventlog_dead_letters (
    id            TEXT NOT NULL PRIMARY KEY,
    handler       TEXT NOT NULL,
    stream        TEXT NOT NULL,
    model_version INTEGER NOT NULL,
    event_index   INTEGER NOT NULL,
    event_id      TEXT NOT NULL,
    attempts      INTEGER NOT NULL,
    error         TEXT NOT NULL,
    died          TEXT NOT NULL,
    settled_by    TEXT,
    settled_why   TEXT,
    state         TEXT NOT NULL,
    version       INTEGER NOT NULL
);

CREATE INDEX eventlog_dead_letters_state ON eventlog_dead_letters (state, handler, died);

-- Which handler wants which events, since which generation.
CREATE TABLE eventlog_subscriptions (
    id            TEXT NOT NULL PRIMARY KEY,
    handler       TEXT NOT NULL,
    event_type    TEXT NOT NULL,
    since         INTEGER NOT NULL,
    since_date    TEXT,
    state         TEXT NOT NULL,
    version       INTEGER NOT NULL
);

-- One row. Its version is the generation of the subscriptions.
CREATE TABLE eventlog_subscription_registry (
    id            TEXT NOT NULL PRIMARY KEY,
    state         TEXT NOT NULL,
    version       INTEGER NOT NULL
);

-- The processes that handle events. A process renews its row by adding one to the version.
CREATE TABLE eventlog_nodes (
    id            TEXT NOT NULL PRIMARY KEY,
    name          TEXT NOT NULL,
    started       TEXT NOT NULL,
    state         TEXT NOT NULL,
    version       INTEGER NOT NULL
);
