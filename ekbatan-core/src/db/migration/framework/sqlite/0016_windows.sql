-- Windows of participants: rows come in until the cutoff. The id follows from series, participant and key.
CREATE TABLE eventlog_windows (
    id            TEXT NOT NULL PRIMARY KEY,
    series        TEXT NOT NULL,
    participant   TEXT NOT NULL,
    window_key    TEXT NOT NULL,
    cutoff        TEXT NOT NULL,
    closing_date  TEXT,
    closed_date   TEXT,
    chunks        INTEGER NOT NULL,
    batched       INTEGER NOT NULL,
    state         TEXT NOT NULL,
    version       INTEGER NOT NULL,
    created_date  TEXT NOT NULL,
    updated_date  TEXT NOT NULL
);

CREATE INDEX eventlog_windows_due ON eventlog_windows (series, state, cutoff);
