-- Calls of other systems that handlers make for events, and what is known of each. The id is the key that the
-- other system gets.
CREATE TABLE eventlog.remote_calls (
    id            uuid PRIMARY KEY,
    handler       varchar(255) NOT NULL,
    event_id      uuid NOT NULL,
    name          varchar(255) NOT NULL,
    delivery      uuid NOT NULL,
    request       uuid NOT NULL,
    requests      bigint NOT NULL,
    sent          timestamp NOT NULL,
    outcome       text,
    error         text,
    settled       timestamp,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
);

CREATE INDEX remote_calls_state ON eventlog.remote_calls (state, sent);

CREATE INDEX remote_calls_settled ON eventlog.remote_calls (settled);
