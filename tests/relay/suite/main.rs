//! The conformance suite of brokers: events that arrive at least once, in the order of their models,
//! whatever happens to the broker and to the nodes.
//!
//! A test is an `async fn(Kind)` or an `async fn(Kind, Dialect)`, listed in `on_every_broker!` or
//! `on_every_database_and_broker!`.

/// Declares each test once for each broker of this build, with SQLite as the database; or for those that
/// are servers, or that may be full.
macro_rules! on_every_broker {
    (only servers: $($test:ident),* $(,)?) => {
        mod servers {
            use super::*;
            on_every_broker! { @nats [$($test),*] }
            #[cfg(feature = "rabbitmq")]
            on_every_broker! { @rabbitmq [$($test),*] }
            #[cfg(feature = "kafka")]
            on_every_broker! { @kafka [$($test),*] }
        }
    };
    (only if it may be full: $($test:ident),* $(,)?) => {
        mod that_may_be_full {
            use super::*;
            on_every_broker! { @in_process [$($test),*] }
            on_every_broker! { @nats [$($test),*] }
            #[cfg(feature = "rabbitmq")]
            on_every_broker! { @rabbitmq [$($test),*] }
        }
    };
    (@in_process $tests:tt) => { on_every_broker! { @case in_process InProcess $tests } };
    (@nats $tests:tt) => { on_every_broker! { @case nats Nats $tests } };
    (@rabbitmq $tests:tt) => { on_every_broker! { @case rabbitmq RabbitMq $tests } };
    (@kafka $tests:tt) => { on_every_broker! { @case kafka Kafka $tests } };
    (@case $module:ident $kind:ident $tests:tt) => {
        support::test_matrix! {
            #[tokio::test(flavor = "multi_thread")]
            |kind| kind;
            [$module = crate::site::Kind::$kind]
            $tests
        }
    };
    ($($test:ident),* $(,)?) => {
        on_every_broker! { @in_process [$($test),*] }
        on_every_broker! { @nats [$($test),*] }
        #[cfg(feature = "rabbitmq")]
        on_every_broker! { @rabbitmq [$($test),*] }
        #[cfg(feature = "kafka")]
        on_every_broker! { @kafka [$($test),*] }
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
mod debezium;
mod fences;
mod in_process_broker;
#[cfg(feature = "kafka")]
mod kafka;
mod nats;
mod order;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
mod refusals;
mod reopening;
mod repetition;
mod replay;
mod sizes;
