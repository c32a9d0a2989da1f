//! What every database must do: each test runs on each of them.
//!
//! A test is an `async fn(&TestDatabase)`, listed in `on_every_database!`.

/// Declares each test once for each database, or only for those that `only` names.
macro_rules! on_every_database {
    ($($tests:tt)*) => {
        support::on_every_database! {
            #[tokio::test]
            |dialect| &support::TestDatabase::start(&support::things::THINGS, dialect).await;
            $($tests)*
        }
    };
}

mod actions;
mod sessions;

mod batches;
mod beside_transaction;
mod catalogue;
mod changed_columns;
mod checks;
mod closing;
mod conditions;
mod domain;
mod errors;
mod executor;
mod greatest_times;
mod hooks;
mod idempotency;
mod inbox;
mod migration_scripts;
mod migration_sessions;
mod migrations;
mod nested;
mod outbox;
mod outcome;
mod pages;
mod refused_values;
mod repository;
mod retry;
mod sizes;
mod suppressed_rows;
mod texts_mysql;
mod texts_postgres;
mod tracing;
mod transactions;
mod transactions_mysql;
mod transactions_postgres;
mod transactions_servers;
mod transactions_sqlite;
mod types_mysql;
mod types_postgres;
mod types_sqlite;
mod views;
mod write_order;
