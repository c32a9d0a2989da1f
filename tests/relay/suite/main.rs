//! The conformance suite of brokers: events that arrive at least once, in the order of their models,
//! whatever happens to the broker and to the nodes.
//!
//! A test is an `async fn(Kind)` or an `async fn(Kind, Dialect)`, listed in `on_every_broker!` or
//! `on_every_database_and_broker!`.

/// Declares each test once for each broker of this build, with SQLite as the database.
macro_rules! on_every_broker {
    ($($test:ident),* $(,)?) => {
        support::test_matrix! {
            #[tokio::test(flavor = "multi_thread")]
            |kind| kind;
            [in_process = crate::site::Kind::InProcess, nats = crate::site::Kind::Nats]
            [$($test),*]
        }
    };
    (only servers: $($test:ident),* $(,)?) => {
        support::test_matrix! {
            #[tokio::test(flavor = "multi_thread")]
            |kind| kind;
            [nats_server = crate::site::Kind::Nats]
            [$($test),*]
        }
    };
}

/// Declares each test once for each database, with the broker of this process.
macro_rules! on_every_database {
    ($($test:ident),* $(,)?) => {
        support::test_matrix! {
            #[tokio::test(flavor = "multi_thread")]
            |dialect| crate::site::Kind::InProcess, dialect;
            [
                sqlite = support::Dialect::Sqlite,
                postgres = support::Dialect::Postgres,
                mysql = support::Dialect::MySql,
                mariadb = support::Dialect::MariaDb,
            ]
            [$($test),*]
        }
    };
}

mod scene;
mod site;

mod arrival;
mod order;
mod refusals;
mod repetition;
mod sizes;
