//! What every database has to do, written once and run on each of them.
//!
//! A test is an `async fn(&TestDatabase)`; `on_every_database!` makes a `#[tokio::test]` of it
//! per dialect. A new dialect adds one line to that macro and one to [`database::Dialect`].

/// Runs tests on every database, or with `only` on the one that is named.
macro_rules! on_every_database {
    (only mysql and mariadb: $($test:ident),* $(,)?) => {
        on_every_database!(only mysql MySql: $($test),*);
        on_every_database!(only mariadb MariaDb: $($test),*);
    };
    (only $module:ident $dialect:ident: $($test:ident),* $(,)?) => {
        mod $module {
            use crate::database::{Dialect, TestDatabase};
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test(&TestDatabase::start(Dialect::$dialect).await).await;
                }
            )*
        }
    };
    ($($test:ident),* $(,)?) => {
        on_every_database!(only sqlite Sqlite: $($test),*);
        on_every_database!(only postgres Postgres: $($test),*);
        on_every_database!(only mysql MySql: $($test),*);
        on_every_database!(only mariadb MariaDb: $($test),*);
    };
}

mod actions;
mod database;
mod models;
#[path = "../../examples/wallet/wallet.rs"]
mod wallet;

mod batches;
mod checks;
mod conditions;
mod domain;
mod errors;
mod executor;
mod hooks;
mod idempotency;
mod migrations;
mod outbox;
mod outcome;
mod pages;
mod repository;
mod retry;
mod tracing;
mod transactions;
mod transactions_mysql;
mod transactions_postgres;
mod types_mysql;
mod types_postgres;
