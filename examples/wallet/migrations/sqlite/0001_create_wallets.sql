-- SQLite has no exact decimal: a balance is kept as text, and compared by its value.
CREATE TABLE wallets (
    id           TEXT PRIMARY KEY,
    owner        TEXT NOT NULL,
    currency     TEXT NOT NULL,
    balance      TEXT NOT NULL,
    state        TEXT NOT NULL,
    version      INTEGER NOT NULL,
    created_date TEXT NOT NULL,
    updated_date TEXT NOT NULL
);
