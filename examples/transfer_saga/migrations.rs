//! The tables of wallets, transfers and offers, in the SQL of each database.

#[path = "../wallet/migrations.rs"]
mod wallets;

use ekbatan::db::Dialect;
use ekbatan::prelude::Migrations;

/// The migrations of this example.
pub fn migrations() -> Migrations {
    let dialects = [Dialect::Sqlite, Dialect::Postgres, Dialect::MySql, Dialect::MariaDb];
    dialects.into_iter().fold(wallets::migrations(), |migrations, of| {
        migrations
            .script_for(of, 2, "transfers", table(of, "transfers", &["sender", "offer"]))
            .script_for(of, 3, "offers", table(of, "offers", &["transfer", "receiver"]))
    })
}

/// A table with these columns of ids, an amount, and what every model has.
fn table(of: Dialect, name: &str, ids: &[&str]) -> String {
    let [id, amount, text, number, time] = match of {
        Dialect::Sqlite => ["TEXT", "TEXT", "TEXT", "INTEGER", "TEXT"],
        Dialect::Postgres => ["uuid", "numeric(20, 2)", "varchar(24)", "bigint", "timestamp"],
        Dialect::MariaDb => ["uuid", "decimal(20, 2)", "varchar(24)", "bigint", "datetime(6)"],
        _ => [
            "char(36) CHARACTER SET ascii COLLATE ascii_bin",
            "decimal(20, 2)",
            "varchar(24)",
            "bigint",
            "datetime(6)",
        ],
    };
    let ids: String = ids.iter().map(|column| format!("{column} {id} NOT NULL, ")).collect();
    format!(
        "CREATE TABLE {name} (id {id} NOT NULL PRIMARY KEY, {ids}amount {amount} NOT NULL, \
         state {text} NOT NULL, version {number} NOT NULL, created_date {time} NOT NULL, \
         updated_date {time} NOT NULL)"
    )
}
