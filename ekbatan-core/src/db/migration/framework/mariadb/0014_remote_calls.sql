-- Calls of other systems that handlers make for events, and what is known of each. The id is the key that the
-- other system gets.
CREATE TABLE {eventlog}.remote_calls (
    id            uuid NOT NULL PRIMARY KEY,
    handler       varchar(255) NOT NULL,
    event_id      uuid NOT NULL,
    name          varchar(255) NOT NULL,
    delivery      uuid NOT NULL,
    request       uuid NOT NULL,
    requests      bigint NOT NULL,
    sent          datetime(6) NOT NULL,
    outcome       mediumtext,
    error         text,
    settled       datetime(6),
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL,
    INDEX remote_calls_state (state, sent),
    INDEX remote_calls_settled (settled)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
