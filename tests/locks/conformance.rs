//! The conformance suite of lock backends, on every backend of the framework.

mod wrong;

use ekbatan::lock::{LockBackend, MySqlLocks, PostgresLocks, ProcessBackend, SqliteLocks};
use ekbatan_lock_etcd::EtcdBackend;
use ekbatan_lock_redis::RedisBackend;
use ekbatan_testkit::locks::LockConformance;
use ekbatan_testkit::{EtcdServer, PostgresServer, RedisServer, TempSqlite};
use uuid::Uuid;

use crate::providers::{CONNECTIONS, Kind, mysql_database};

on_providers! {
    |kind| kind;
    [
        process, redis, etcd, sqlite, postgres_lease, postgres_session,
        mysql_lease, mysql_session, mariadb_lease, mariadb_session; stores
    ]
    the_backend_conforms
}

async fn the_backend_conforms(kind: Kind) {
    let suite = match kind {
        Kind::Process => LockConformance::of_one(ProcessBackend::new()),
        Kind::Redis => {
            let (server, namespace) = (RedisServer::shared().await.unwrap(), Uuid::new_v4());
            let backend = async || {
                RedisBackend::connect(&server.url(), &namespace.to_string()).await.unwrap()
            };
            LockConformance::of(backend().await, backend().await)
        }
        Kind::Etcd => {
            let (server, namespace) = (EtcdServer::shared().await.unwrap(), Uuid::new_v4());
            let backend =
                async || EtcdBackend::connect(&server.url(), &namespace.to_string()).await.unwrap();
            // A waiter is registered at the server, and no other caller is told of a release.
            LockConformance::of(backend().await, backend().await)
                .without_hints()
                .without_late_requests()
        }
        Kind::MongoDb | Kind::Aerospike | Kind::HBase => return a_store_conforms(kind).await,
        Kind::Sqlite => {
            let file = TempSqlite::new().unwrap();
            let suite = LockConformance::of(in_a_file(&file).await, in_a_file(&file).await);
            return judge(suite.without_hints()).await;
        }
        Kind::PostgresLease | Kind::PostgresSession => {
            let server = PostgresServer::shared().await.unwrap();
            let url = server.create_database().await.unwrap();
            let locks = async || PostgresLocks::connect(&url, CONNECTIONS).await.unwrap();
            if kind.is_session() {
                let backend = async || locks().await.session().await.unwrap();
                // The server ends no lock of another session without the session.
                LockConformance::of(backend().await, backend().await)
                    .without_force_on_others()
                    .without_listing()
            } else {
                let backend = async || locks().await.leases().await.unwrap();
                // A release hands the key over to a waiter that is registered, and tells no other.
                LockConformance::of(backend().await, backend().await).without_hints()
            }
        }
        Kind::MySqlLease | Kind::MySqlSession | Kind::MariaDbLease | Kind::MariaDbSession => {
            let url = mysql_database(kind).await;
            let database = url.rsplit('/').next().unwrap_or_default();
            let locks =
                async || MySqlLocks::connect(&url, CONNECTIONS).await.unwrap().eventlog(database);
            if kind.is_session() {
                let backend = async || locks().await.session().await.unwrap();
                LockConformance::of(backend().await, backend().await)
                    .without_hints()
                    .without_force_on_others()
            } else {
                let backend = async || locks().await.leases().await.unwrap();
                LockConformance::of(backend().await, backend().await).without_hints()
            }
        }
    };
    judge(suite).await;
}

#[cfg(not(any(feature = "mongodb", feature = "aerospike", feature = "hbase")))]
async fn a_store_conforms(kind: Kind) {
    unreachable!("{kind:?} is built without its feature");
}

#[cfg(any(feature = "mongodb", feature = "aerospike", feature = "hbase"))]
async fn a_store_conforms(kind: Kind) {
    let (url, namespace) = (crate::stores::url(kind).await, Uuid::new_v4().to_string());
    let suite = match kind {
        #[cfg(feature = "mongodb")]
        Kind::MongoDb => {
            use ekbatan_lock_mongodb::MongoDbBackend;
            let backend = async || MongoDbBackend::connect(&url, &namespace).await.unwrap();
            // A release hands the key over to a waiter that is registered, and tells no other.
            LockConformance::of(backend().await, backend().await).without_hints()
        }
        #[cfg(feature = "aerospike")]
        Kind::Aerospike => {
            use ekbatan_lock_aerospike::AerospikeBackend;
            let backend = async || AerospikeBackend::connect(&url, &namespace).await.unwrap();
            LockConformance::of(backend().await, backend().await)
        }
        #[cfg(feature = "hbase")]
        Kind::HBase => {
            use ekbatan_lock_hbase::HBaseBackend;
            let backend = async || HBaseBackend::connect(&url, &namespace).await.unwrap();
            // A waiter is registered at the server, and no other caller is told of a release.
            LockConformance::of(backend().await, backend().await)
                .without_hints()
                .without_late_requests()
        }
        _ => unreachable!("{kind:?} is built without its feature"),
    };
    judge(suite).await;
}

async fn in_a_file(file: &TempSqlite) -> impl LockBackend + use<> {
    SqliteLocks::connect(&file.url()).await.unwrap().leases().await.unwrap()
}

async fn judge(suite: LockConformance) {
    if let Err(failures) = suite.run().await {
        panic!("{failures}");
    }
}
