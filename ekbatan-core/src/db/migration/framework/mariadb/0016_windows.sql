-- Windows of participants: rows come in until the cutoff. The id follows from series, participant and key.
CREATE TABLE {eventlog}.windows (
    id            uuid NOT NULL PRIMARY KEY,
    series        varchar(255) NOT NULL,
    participant   varchar(255) NOT NULL,
    window_key    varchar(255) NOT NULL,
    cutoff        datetime(6) NOT NULL,
    closing_date  datetime(6),
    closed_date   datetime(6),
    chunks        bigint NOT NULL,
    batched       bigint NOT NULL,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL,
    created_date  datetime(6) NOT NULL,
    updated_date  datetime(6) NOT NULL,
    INDEX windows_due (series, state, cutoff)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
