-- What operators did with deliveries: who, why, and how far it went.
CREATE TABLE eventlog_interventions (
    id            TEXT NOT NULL PRIMARY KEY,
    kind          TEXT NOT NULL,
    handler       TEXT NOT NULL,
    subject       TEXT NOT NULL,
    who           TEXT NOT NULL,
    why           TEXT NOT NULL,
    started       TEXT NOT NULL,
    counted       INTEGER NOT NULL,
    done          INTEGER NOT NULL,
    state         TEXT NOT NULL,
    version       INTEGER NOT NULL
);
