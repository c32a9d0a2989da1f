//! The conformance suite of lock providers: each test runs on every provider.
//!
//! A test is an `async fn(&TestLocks)`; `on_every_provider!` makes a `#[tokio::test]` of it for each
//! provider. A new provider adds its name to the macros here and a variant to [`providers::Kind`].

/// Declares each test once for each provider that is named. A list that ends with `; stores` also
/// names the providers whose features are enabled: `scripts/test stores` enables them.
macro_rules! on_providers {
    (|$kind:ident| $argument:expr; [$($provider:ident),+ $(,)?; stores] $($tests:tt)*) => {
        on_providers! { |$kind| $argument; [$($provider),+] $($tests)* }
        on_providers! { |$kind| $argument; [; stores] $($tests)* }
    };
    (|$kind:ident| $argument:expr; [; stores] $($tests:tt)*) => {
        #[cfg(feature = "mongodb")]
        on_providers! { |$kind| $argument; [mongodb] $($tests)* }
        #[cfg(feature = "aerospike")]
        on_providers! { |$kind| $argument; [aerospike] $($tests)* }
        #[cfg(feature = "hbase")]
        on_providers! { |$kind| $argument; [hbase] $($tests)* }
    };
    (|$kind:ident| $argument:expr; [$($provider:ident),+ $(,)?] $($tests:tt)*) => {
        support::test_matrix! {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            |$kind| $argument;
            [$($provider = on_providers!(@kind $provider)),+]
            [$($tests)*]
        }
    };
    (@kind process) => { crate::providers::Kind::Process };
    (@kind redis) => { crate::providers::Kind::Redis };
    (@kind etcd) => { crate::providers::Kind::Etcd };
    (@kind mongodb) => { crate::providers::Kind::MongoDb };
    (@kind aerospike) => { crate::providers::Kind::Aerospike };
    (@kind hbase) => { crate::providers::Kind::HBase };
    (@kind sqlite) => { crate::providers::Kind::Sqlite };
    (@kind postgres_lease) => { crate::providers::Kind::PostgresLease };
    (@kind postgres_session) => { crate::providers::Kind::PostgresSession };
    (@kind mysql_lease) => { crate::providers::Kind::MySqlLease };
    (@kind mysql_session) => { crate::providers::Kind::MySqlSession };
    (@kind mariadb_lease) => { crate::providers::Kind::MariaDbLease };
    (@kind mariadb_session) => { crate::providers::Kind::MariaDbSession };
}

macro_rules! on_every_provider {
    ($($tests:tt)*) => {
        on_providers! {
            |kind| &crate::providers::TestLocks::start(kind).await;
            [
                process, redis, etcd, sqlite, postgres_lease, postgres_session,
                mysql_lease, mysql_session, mariadb_lease, mariadb_session; stores
            ]
            $($tests)*
        }
    };
}

/// Like [`on_every_provider!`], for tests that set up their providers themselves.
macro_rules! on_every_sql_server {
    ($($tests:tt)*) => {
        on_providers! {
            |kind| kind;
            [
                postgres_lease, postgres_session,
                mysql_lease, mysql_session, mariadb_lease, mariadb_session,
            ]
            $($tests)*
        }
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

#[cfg(feature = "aerospike")]
mod aerospike;
mod cleaning;
mod commit;
mod conformance;
mod deadlines;
mod defaults;
mod demoted;
mod encryption;
mod ends;
mod ends_exactly_once;
mod etcd;
mod exclusion;
mod failing;
mod fences;
mod force;
mod forced_successors;
mod grants;
mod hand_over;
#[cfg(feature = "hbase")]
mod hbase;
mod late_answers;
mod late_extensions;
mod late_grants;
mod lead;
mod listing;
mod locked_rows;
#[cfg(feature = "mongodb")]
mod mongodb;
mod mysql;
mod pools;
mod postgres;
mod queue;
mod read_write;
mod read_write_commits;
mod reads;
mod redis;
mod registry;
mod renewals;
mod retries;
mod run_once;
mod run_once_at;
mod runtimes;
mod scopes;
mod semaphore;
mod server_clock;
mod several;
mod siblings;
mod silence;
mod silent_connections;
mod sql;
mod sqlite;
mod starving;
mod stores;
mod telemetry;
mod trap;
mod trips;
mod waiting;
mod wanted;
mod workers;
