-- Calls of other systems that handlers make for events, and what is known of each. The id is the key that the
-- other system gets.
CREATE TABLE eventlog_remote_calls (
    id            TEXT NOT NULL PRIMARY KEY,
    handler       TEXT NOT NULL,
    event_id      TEXT NOT NULL,
    name          TEXT NOT NULL,
    delivery      TEXT NOT NULL,
    request       TEXT NOT NULL,
    requests      INTEGER NOT NULL,
    sent          TEXT NOT NULL,
    outcome       TEXT,
    error         TEXT,
    settled       TEXT,
    state         TEXT NOT NULL,
    version       INTEGER NOT NULL
);

CREATE INDEX eventlog_remote_calls_state ON eventlog_remote_calls (state, sent);

CREATE INDEX eventlog_remote_calls_settled ON eventlog_remote_calls (settled);
