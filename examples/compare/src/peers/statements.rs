//! The SQL that is written by hand. All statements of a kind take the same values in the same
//! order, whatever the database.

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
    /// The same, and keeps others from the row until the transaction ends.
    pub read_for_update: &'static str,
    /// Takes balance, date, id and version.
    pub update: &'static str,
    /// Takes an event's columns.
    pub insert: &'static str,
    /// Takes amount, date and id.
    pub add: &'static str,
    /// Takes an event's columns up to the payload, which lacks the balance, and the wallet's
    /// id. The balance and the version are taken from the row.
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
    // Never sent: both in one statement is quicker.
    add: "",
    insert_after: "",
};

/// UPDATE and INSERT in one statement and one round trip. Takes an event's columns up to the
/// payload, then the wallet's id, the amount and the date.
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

/// `FOR UPDATE` is not known: a transaction that begins with `BEGIN IMMEDIATE` keeps all
/// others from writing, from its first statement on. Sums are made of floats, as SQLite has
/// no decimals; below 2^53 cents the two digits are right.
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
