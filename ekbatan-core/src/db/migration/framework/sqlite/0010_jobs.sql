-- The jobs that some process has ever registered, and when each is due. Registering only adds rows.
CREATE TABLE eventlog_jobs (
    id            TEXT NOT NULL PRIMARY KEY,
    name          TEXT NOT NULL,
    schedule      TEXT NOT NULL,
    misfire       TEXT NOT NULL,
    overlap       TEXT NOT NULL,
    at_least      INTEGER NOT NULL,
    longest       INTEGER NOT NULL,
    attempts      INTEGER NOT NULL,
    kept          INTEGER NOT NULL,
    revision      INTEGER NOT NULL,
    next_slot     TEXT,
    last_slot     TEXT,
    last_started  TEXT,
    omitted       INTEGER NOT NULL,
    state         TEXT NOT NULL,
    version       INTEGER NOT NULL
);

-- Runs of jobs: those that wait, those that a node runs, and the last ones that ended. Slots that were not run
-- have a row, too.
CREATE TABLE eventlog_job_runs (
    id            TEXT NOT NULL PRIMARY KEY,
    job           TEXT NOT NULL,
    kind          TEXT NOT NULL,
    slot          TEXT NOT NULL,
    last_slot     TEXT NOT NULL,
    slots         INTEGER NOT NULL,
    node          TEXT NOT NULL,
    attempt       INTEGER NOT NULL,
    started       TEXT,
    deadline      TEXT,
    changed       TEXT NOT NULL,
    error         TEXT,
    state         TEXT NOT NULL,
    version       INTEGER NOT NULL
);

CREATE INDEX eventlog_job_runs_state ON eventlog_job_runs (state, job);

CREATE INDEX eventlog_job_runs_changed ON eventlog_job_runs (job, changed);

-- The processes that run jobs. A process renews its row by adding one to the version. Others take over what it
-- ran once the version has stood still for the lease, in milliseconds.
CREATE TABLE eventlog_job_nodes (
    id            TEXT NOT NULL PRIMARY KEY,
    name          TEXT NOT NULL,
    lease         INTEGER NOT NULL,
    started       TEXT NOT NULL,
    state         TEXT NOT NULL,
    version       INTEGER NOT NULL
);
