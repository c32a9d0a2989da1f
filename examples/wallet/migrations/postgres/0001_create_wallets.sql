CREATE TABLE wallets (
    id           uuid PRIMARY KEY,
    owner        text NOT NULL,
    currency     varchar(3) NOT NULL,
    balance      numeric(20, 2) NOT NULL,
    state        varchar(24) NOT NULL,
    version      bigint NOT NULL,
    created_date timestamp NOT NULL,
    updated_date timestamp NOT NULL
);
