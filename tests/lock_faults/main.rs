//! Keyed locks and fenced commits under faults: lock servers that are killed or lose their data,
//! sessions that are ended, processes that are stopped, connections that go silent, callers that
//! are dropped.
//!
//! Invariants: a run that commits deposits records a [`history`] of grants and commits, and is
//! judged by that history alone.
//!
//! A test is an `async fn(Kind)`; the macros here make a `#[tokio::test]` of it for each provider. A
//! new provider adds one line to them, a variant to [`providers::Kind`], and its server to
//! [`server`]. A test that deposits also needs PostgreSQL, and its module says so.

/// Declares each test in a module for each provider that is named, for those whose features are
/// enabled (`@stores`, see `scripts/test stores`), or for every one of the providers on a server.
macro_rules! on_providers {
    ([$($module:ident $kind:ident),+] $($tests:tt)*) => {
        support::test_matrix! {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            |kind| kind;
            [$($module = crate::providers::Kind::$kind),+]
            [$($tests)*]
        }
    };
    (@stores $($tests:tt)*) => {
        #[cfg(feature = "mongodb")]
        on_providers! { [mongodb MongoDb] $($tests)* }
        #[cfg(feature = "aerospike")]
        on_providers! { [aerospike Aerospike] $($tests)* }
        #[cfg(feature = "hbase")]
        on_providers! { [hbase HBase] $($tests)* }
    };
    (@servers [$($module:ident $kind:ident),*] $($tests:tt)*) => {
        on_providers! {
            [
                redis Redis, etcd Etcd, postgres_lease PostgresLease, postgres_session PostgresSession,
                mysql_lease MySqlLease, mysql_session MySqlSession,
                mariadb_lease MariaDbLease, mariadb_session MariaDbSession
                $(, $module $kind)*
            ]
            $($tests)*
        }
        on_providers! { @stores $($tests)* }
    };
}

/// Declares each test once for each provider whose locks are on a server.
macro_rules! on_every_server {
    ($($tests:tt)*) => { on_providers! { @servers [] $($tests)* } };
}

/// Declares each test once for each provider whose locks several processes share.
macro_rules! on_every_provider {
    ($($tests:tt)*) => { on_providers! { @servers [sqlite Sqlite] $($tests)* } };
}

/// Like [`on_every_provider!`], for tests that make deposits on PostgreSQL.
macro_rules! on_every_provider_with_deposits {
    ($($tests:tt)*) => { on_providers! { @servers [sqlite_and_postgres Sqlite] $($tests)* } };
}

mod history;
mod holds;
mod ledger;
mod providers;
mod server;
mod stores;
mod worker;

mod attack;
mod calls;
mod crash;
mod dropped;
mod fairness;
mod faults;
mod many;
mod overdue;
#[cfg(feature = "hbase")]
mod skewed;
mod standstills;
mod stopped;
#[cfg(any(feature = "mongodb", feature = "aerospike", feature = "hbase"))]
mod wrong_clock;
