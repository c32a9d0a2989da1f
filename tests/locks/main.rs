//! The conformance suite of lock providers: each test runs on every provider.
//!
//! A test is an `async fn(&TestLocks)`; `on_every_provider!` makes a `#[tokio::test]` of it for each
//! provider. A new provider adds one line to that macro and a variant to [`providers::Kind`].

macro_rules! on_every_provider {
    (only $module:ident $kind:ident: $($test:ident),* $(,)?) => {
        mod $module {
            use crate::providers::{Kind, TestLocks};
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test(&TestLocks::start(Kind::$kind).await).await;
                }
            )*
        }
    };
    ($($test:ident),* $(,)?) => {
        on_every_provider!(only process Process: $($test),*);
        on_every_provider!(only redis Redis: $($test),*);
        on_every_provider!(only postgres_lease PostgresLease: $($test),*);
        on_every_provider!(only postgres_session PostgresSession: $($test),*);
        on_every_provider!(only sqlite Sqlite: $($test),*);
        on_every_provider!(only mysql_lease MySqlLease: $($test),*);
        on_every_provider!(only mysql_session MySqlSession: $($test),*);
        on_every_provider!(only mariadb_lease MariaDbLease: $($test),*);
        on_every_provider!(only mariadb_session MariaDbSession: $($test),*);
    };
}

/// Declares each test once for each database.
macro_rules! on_every_database {
    ($($tests:tt)*) => {
        support::on_every_database! {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            |dialect| &crate::database::TestDatabase::start(dialect).await;
            $($tests)*
        }
    };
}

mod database;
mod pooler;
mod providers;

mod commit;
mod encryption;
mod ends;
mod exclusion;
mod force;
mod mysql;
mod postgres;
mod queue;
mod reads;
mod redis;
mod registry;
mod run_once;
mod scopes;
mod several;
mod sql;
mod sqlite;
mod telemetry;
mod trap;
mod trips;
