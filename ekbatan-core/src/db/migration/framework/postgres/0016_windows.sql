-- Windows of participants: rows come in until the cutoff. The id follows from series, participant and key.
CREATE TABLE eventlog.windows (
    id            uuid PRIMARY KEY,
    series        varchar(255) NOT NULL,
    participant   varchar(255) NOT NULL,
    window_key    varchar(255) NOT NULL,
    cutoff        timestamp NOT NULL,
    closing_date  timestamp,
    closed_date   timestamp,
    chunks        bigint NOT NULL,
    batched       bigint NOT NULL,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL,
    created_date  timestamp NOT NULL,
    updated_date  timestamp NOT NULL
);

CREATE INDEX windows_due ON eventlog.windows (series, state, cutoff);
