-- The jobs that some process has ever registered, and when each is due. Registering only adds rows.
CREATE TABLE eventlog.jobs (
    id            uuid PRIMARY KEY,
    name          varchar(255) NOT NULL,
    schedule      varchar(255) NOT NULL,
    misfire       varchar(64) NOT NULL,
    overlap       varchar(16) NOT NULL,
    at_least      bigint NOT NULL,
    longest       bigint NOT NULL,
    attempts      bigint NOT NULL,
    kept          bigint NOT NULL,
    revision      bigint NOT NULL,
    next_slot     timestamp,
    last_slot     timestamp,
    last_started  timestamp,
    omitted       bigint NOT NULL,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
);

-- Runs of jobs: those that wait, those that a node runs, and the last ones that ended. Slots that were not run
-- have a row, too.
CREATE TABLE eventlog.job_runs (
    id            uuid PRIMARY KEY,
    job           varchar(255) NOT NULL,
    kind          varchar(16) NOT NULL,
    slot          timestamp NOT NULL,
    last_slot     timestamp NOT NULL,
    slots         bigint NOT NULL,
    node          uuid NOT NULL,
    attempt       bigint NOT NULL,
    started       timestamp,
    deadline      timestamp,
    changed       timestamp NOT NULL,
    error         text,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
);

CREATE INDEX job_runs_state ON eventlog.job_runs (state, job);

CREATE INDEX job_runs_changed ON eventlog.job_runs (job, changed);

-- The processes that run jobs. A process renews its row by adding one to the version. Others take over what it
-- ran once the version has stood still for the lease, in milliseconds.
CREATE TABLE eventlog.job_nodes (
    id            uuid PRIMARY KEY,
    name          varchar(255) NOT NULL,
    lease         bigint NOT NULL,
    started       timestamp NOT NULL,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
);
