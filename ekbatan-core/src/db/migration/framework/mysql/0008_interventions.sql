-- What operators did with deliveries: who, why, and how far it went.
CREATE TABLE {eventlog}.interventions (
    id            char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    kind          varchar(16) NOT NULL,
    handler       varchar(255) NOT NULL,
    subject       text NOT NULL,
    who           varchar(255) NOT NULL,
    why           text NOT NULL,
    started       datetime(6) NOT NULL,
    counted       bigint NOT NULL,
    done          bigint NOT NULL,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin;
