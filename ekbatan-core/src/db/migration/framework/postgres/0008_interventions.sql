-- What operators did with deliveries: who, why, and how far it went.
CREATE TABLE eventlog.interventions (
    id            uuid PRIMARY KEY,
    kind          varchar(16) NOT NULL,
    handler       varchar(255) NOT NULL,
    subject       text NOT NULL,
    who           varchar(255) NOT NULL,
    why           text NOT NULL,
    started       timestamp NOT NULL,
    counted       bigint NOT NULL,
    done          bigint NOT NULL,
    state         varchar(16) NOT NULL,
    version       bigint NOT NULL
);
