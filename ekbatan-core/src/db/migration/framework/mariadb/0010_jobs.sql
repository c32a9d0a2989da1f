-- The jobs that some process has ever registered, and when each is due. Registering only adds rows.
CREATE TABLE {eventlog}.jobs (
    id            uuid NOT NULL PRIMARY KEY,
    name          varchar(255) NOT NULL,
    schedule      varchar(255) NOT NULL,
    misfire       varchar(64) NOT NULL,
    overlap       varchar(16) NOT NULL,
    at_least      bigint NOT NULL,
    longest       bigint NOT NULL,
    attempts      bigint NOT NULL,
    kept          bigint NOT NULL,
    revision      bigint NOT NULL,
    next_slot     datetime(6),
    last_slot     datetime(6),
    last_started  datetime(6),
    omitted       bigint NOT NULL,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- Runs of jobs: those that wait, those that a node runs, and the last ones that ended. Slots that were not run
-- have a row, too.
CREATE TABLE {eventlog}.job_runs (
    id            uuid NOT NULL PRIMARY KEY,
    job           varchar(255) NOT NULL,
    kind          varchar(16) NOT NULL,
    slot          datetime(6) NOT NULL,
    last_slot     datetime(6) NOT NULL,
    slots         bigint NOT NULL,
    node          uuid NOT NULL,
    attempt       bigint NOT NULL,
    started       datetime(6),
    deadline      datetime(6),
    changed       datetime(6) NOT NULL,
    error         text,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL,
    INDEX job_runs_state (state, job),
    INDEX job_runs_changed (job, changed)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- The processes that run jobs. A process renews its row by adding one to the version. Others take over what it
-- ran once the version has stood still for the lease, in milliseconds.
CREATE TABLE {eventlog}.job_nodes (
    id            uuid NOT NULL PRIMARY KEY,
    name          varchar(255) NOT NULL,
    lease         bigint NOT NULL,
    started       datetime(6) NOT NULL,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
