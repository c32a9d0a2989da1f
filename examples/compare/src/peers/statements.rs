//! The hand-written SQL. Every database's statement of a kind takes the same values in
//! the same order.

/// The columns of an event, in the order in which they are bound.
macro_rules! event_columns {
    () => {
        "id, namespace, action_id, action_name, action_params, started_date, completion_date, \
         model_id, model_type, event_type, event_date, delivered, principal, event_index, \
         event_version, payload, model_version"
    };
}

pub struct DepositSql {
    /// Takes the id.
    pub read: &'static str,
    /// Takes the id. Locks the row until the transaction ends.
    pub read_for_update: &'static str,
    /// Takes the balance, the date, the id and the version.
    pub update: &'static str,
    /// Takes the columns of an event.
    pub insert: &'static str,
    /// Takes the amount, the date and the id.
    pub add: &'static str,
    /// Takes the columns of an event up to the payload, which lacks the balance, and the
    /// id of the wallet. Reads the balance and the version from the row.
    pub insert_after: &'static str,
}

pub const POSTGRES: DepositSql = DepositSql {
    read: "SELECT balance, version FROM wallets WHERE id = $1",
    read_for_update: "SELECT balance, version FROM wallets WHERE id = $1 FOR UPDATE",
    update: "UPDATE wallets SET balance = $1, updated_date = $2, version = version + 1 \
             WHERE id = $3 AND version = $4",
    insert: concat!(
        "INSERT INTO eventlog.events (",
        event_columns!(),
        ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)"
    ),
    // Not used: one statement for both is faster.
    add: "",
    insert_after: "",
};

/// `UPDATE` and `INSERT` in one statement and one round trip. Takes the columns of an
/// event up to the payload, then the id of the wallet, the amount and the date.
pub const POSTGRES_BOTH: &str = concat!(
    "WITH changed AS (UPDATE wallets SET balance = balance + $18, updated_date = $19, \
     version = version + 1 WHERE id = $17 RETURNING balance, version) \
     INSERT INTO eventlog.events (",
    event_columns!(),
    ") SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, \
     $16::jsonb || jsonb_build_object('balance', CAST(balance AS text)), version FROM changed"
);

pub const MYSQL: DepositSql = DepositSql {
    read: "SELECT balance, version FROM wallets WHERE id = ?",
    read_for_update: "SELECT balance, version FROM wallets WHERE id = ? FOR UPDATE",
    update: "UPDATE wallets SET balance = ?, updated_date = ?, version = version + 1 \
             WHERE id = ? AND version = ?",
    insert: concat!(
        "INSERT INTO eventlog.events (",
        event_columns!(),
        ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    ),
    add: "UPDATE wallets SET balance = balance + ?, updated_date = ?, version = version + 1 \
          WHERE id = ?",
    insert_after: concat!(
        "INSERT INTO eventlog.events (",
        event_columns!(),
        ") SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
         json_set(?, '$.balance', CAST(balance AS char)), version FROM wallets WHERE id = ?"
    ),
};

/// SQLite has no `FOR UPDATE`: a transaction that starts with `BEGIN IMMEDIATE` blocks
/// all other writers. SQLite has no decimals, so sums are floats; they are exact to the
/// cent below 2^53 cents.
pub const SQLITE: DepositSql = DepositSql {
    read: "SELECT balance, version FROM wallets WHERE id = ?",
    read_for_update: "SELECT balance, version FROM wallets WHERE id = ?",
    update: "UPDATE wallets SET balance = ?, updated_date = ?, version = version + 1 \
             WHERE id = ? AND version = ?",
    insert: concat!(
        "INSERT INTO eventlog_events (",
        event_columns!(),
        ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    ),
    add: "UPDATE wallets SET balance = printf('%.2f', balance + ?), updated_date = ?, \
          version = version + 1 WHERE id = ?",
    insert_after: concat!(
        "INSERT INTO eventlog_events (",
        event_columns!(),
        ") SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
         json_set(?, '$.balance', balance), version FROM wallets WHERE id = ?"
    ),
};
