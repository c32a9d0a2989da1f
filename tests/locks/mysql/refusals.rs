//! Servers that are rejected because locks on them would not exclude each other.

use ekbatan::lock::{KeyedLockProvider, LockKey, LockProvider, MySqlLocks, MySqlLocksError};
use ekbatan_testkit::MariaDbServer;
use sqlx::Connection;

use crate::providers::{Kind, LONG};
use crate::sql::place::{Server, mysql_client};

on_providers! {
    |kind| kind;
    [mysql_lease, mariadb_lease]
    a_read_only_server_is_rejected
}

async fn rejected(url: &str) -> String {
    match MySqlLocks::connect(url, 1).await.err().unwrap() {
        MySqlLocksError::Unsafe { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

async fn a_read_only_server_is_rejected(kind: Kind) {
    let server = Server::alone(kind).await;
    let url = server.create_database().await;
    assert!(MySqlLocks::connect(&url, 1).await.is_ok());
    let mut administrator = mysql_client(&url).await;
    sqlx::raw_sql("SET GLOBAL read_only = 1").execute(&mut administrator).await.unwrap();
    let reason = rejected(&url).await;
    assert!(reason.contains("read_only is ON") && reason.contains("primary"), "{reason}");
    sqlx::raw_sql("SET GLOBAL read_only = 0").execute(&mut administrator).await.unwrap();
    administrator.close().await.unwrap();
    let locks = MySqlLocks::connect(&url, 1).await.unwrap();
    drop(LockProvider::new(locks.leases().await.unwrap(), "test"));
}

/// Every node of a Galera cluster grants a named lock on its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_galera_node_offers_leases_and_no_named_locks() {
    let settings =
        [("wsrep-on", "ON"), ("binlog-format", "ROW"), ("innodb-autoinc-lock-mode", "2")];
    let mut builder = MariaDbServer::builder();
    for (name, value) in settings {
        builder = builder.setting(name, value);
    }
    let node = builder.start().await.unwrap();
    let url = node.create_database().await.unwrap();
    let locks = MySqlLocks::connect(&url, 1).await.unwrap();
    match locks.session().await.err().unwrap() {
        MySqlLocksError::Unsafe { reason, .. } => {
            assert!(reason.contains("Galera") && reason.contains("MySqlLocks::leases"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let leases = LockProvider::new(locks.leases().await.unwrap(), "test");
    let lease = leases.acquire(&LockKey::named("k"), LONG).await.unwrap();
    assert!(lease.release().await);
}

/// The error does not contain the password.
#[tokio::test]
async fn an_invalid_address_is_rejected() {
    for url in ["postgres://u:secret@localhost/db", "mysql://u:secret@localhost:x/db", "mysql"] {
        let error = MySqlLocks::connect(url, 1).await.err().unwrap();
        assert!(matches!(error, MySqlLocksError::Address(_)), "{error:?}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

/// The error says how a privileged user can create the table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_cannot_be_created_is_named() {
    let url = MariaDbServer::shared().await.unwrap().create_database().await.unwrap();
    let (address, database) = url.rsplit_once('/').unwrap();
    let user = format!("u{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
    let script = format!("CREATE USER {user}; GRANT SELECT ON {database}.* TO {user}");
    let mut administrator = mysql_client(&url).await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(script)).execute(&mut administrator).await.unwrap();
    let host = address.rsplit('@').next().unwrap();
    let locks = MySqlLocks::connect(&format!("mariadb://{user}@{host}/{database}"), 1).await;
    let error = locks.unwrap().eventlog("nowhere").leases().await.err().unwrap().to_string();
    assert!(error.contains("`nowhere`.lock_leases") && error.contains("GRANT"), "{error}");
}
