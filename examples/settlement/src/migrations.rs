//! The tables of orders and batches, in the SQL of each database.

use ekbatan::db::Dialect;
use ekbatan::prelude::Migrations;

/// The migrations of this example.
pub fn migrations() -> Migrations {
    let dialects = [Dialect::Sqlite, Dialect::Postgres, Dialect::MySql, Dialect::MariaDb];
    dialects.into_iter().fold(Migrations::none(), |migrations, of| {
        migrations.script_for(of, 1, "settlement", tables(of))
    })
}

fn tables(of: Dialect) -> String {
    let [id, amount, text, number, time] = match of {
        Dialect::Sqlite => ["TEXT", "TEXT", "TEXT", "INTEGER", "TEXT"],
        Dialect::Postgres => ["uuid", "numeric(20, 2)", "varchar(255)", "bigint", "timestamp"],
        Dialect::MariaDb => ["uuid", "decimal(20, 2)", "varchar(255)", "bigint", "datetime(6)"],
        _ => [
            "char(36) CHARACTER SET ascii COLLATE ascii_bin",
            "decimal(20, 2)",
            "varchar(255)",
            "bigint",
            "datetime(6)",
        ],
    };
    let state = if of == Dialect::Sqlite { "TEXT" } else { "varchar(24)" };
    format!(
        "CREATE TABLE orders (id {id} NOT NULL PRIMARY KEY, bank {text} NOT NULL, \
         window_id {id} NOT NULL, amount {amount} NOT NULL, batch_id {id}, \
         state {state} NOT NULL, version {number} NOT NULL); \
         CREATE INDEX orders_window ON orders (window_id, state); \
         CREATE TABLE order_batches (id {id} NOT NULL PRIMARY KEY, window_id {id} NOT NULL, \
         number {number} NOT NULL, orders {number} NOT NULL, amount {amount} NOT NULL, \
         state {state} NOT NULL, version {number} NOT NULL, created_date {time} NOT NULL, \
         updated_date {time} NOT NULL); \
         CREATE INDEX order_batches_window ON order_batches (window_id);"
    )
}
