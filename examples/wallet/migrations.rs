//! The table of wallets, in the SQL of each database.

use ekbatan::db::Dialect;
use ekbatan::prelude::Migrations;

/// The migrations of the wallet examples, for every database.
pub fn migrations() -> Migrations {
    let name = "create_wallets";
    Migrations::none()
        .script_for(
            Dialect::Sqlite,
            1,
            name,
            include_str!("migrations/sqlite/0001_create_wallets.sql"),
        )
        .script_for(
            Dialect::Postgres,
            1,
            name,
            include_str!("migrations/postgres/0001_create_wallets.sql"),
        )
        .script_for(
            Dialect::MySql,
            1,
            name,
            include_str!("migrations/mysql/0001_create_wallets.sql"),
        )
        .script_for(
            Dialect::MariaDb,
            1,
            name,
            include_str!("migrations/mariadb/0001_create_wallets.sql"),
        )
}
