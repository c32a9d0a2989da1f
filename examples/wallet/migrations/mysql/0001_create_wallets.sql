CREATE TABLE wallets (
    id           char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    owner        varchar(255) NOT NULL,
    currency     varchar(3) NOT NULL,
    balance      decimal(20, 2) NOT NULL,
    state        varchar(24) NOT NULL,
    version      bigint NOT NULL,
    created_date datetime(6) NOT NULL,
    updated_date datetime(6) NOT NULL
) DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin;
