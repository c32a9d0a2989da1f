//! Servers whose defaults are hostile: a session sets what its statements rely on.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockKey, LockOptions, lock_key};
use sqlx::{AssertSqlSafe, Connection};

use crate::providers::{Kind, LONG};
use crate::sql::place::{Place, Server, mysql_client};

on_providers! {
    |kind| kind;
    [mysql_lease, mysql_session, mariadb_lease, mariadb_session]
    locks_hold_whatever_the_defaults_of_the_server,
}

/// Each of them breaks statements of a session that relies on the usual value.
const HOSTILE: [(&str, &str); 10] = [
    ("transaction_isolation", "'SERIALIZABLE'"),
    ("transaction_read_only", "1"),
    ("autocommit", "0"),
    ("sql_mode", "'ANSI,NO_BACKSLASH_ESCAPES'"),
    ("innodb_lock_wait_timeout", "1"),
    ("lock_wait_timeout", "1"),
    ("wait_timeout", "1"),
    ("sql_select_limit", "1"),
    ("max_join_size", "1"),
    ("time_zone", "'+05:00'"),
];

async fn set(url: &str, values: impl Iterator<Item = (&str, &str)>) {
    let mut administrator = mysql_client(url).await;
    // A machine may pause for longer than the hostile idle time, also while it is reset.
    sqlx::raw_sql("SET SESSION wait_timeout = 600").execute(&mut administrator).await.unwrap();
    for (name, value) in values {
        // Older versions know the transaction's defaults by other names.
        let older = name.replace("transaction_", "tx_");
        let set = async |name: &str, connection: &mut sqlx::MySqlConnection| {
            let sql = AssertSqlSafe(format!("SET GLOBAL {name} = {value}"));
            sqlx::raw_sql(sql).execute(connection).await
        };
        if set(name, &mut administrator).await.is_err() {
            set(&older, &mut administrator).await.unwrap();
        }
    }
    administrator.close().await.unwrap();
}

async fn locks_hold_whatever_the_defaults_of_the_server(kind: Kind) {
    let server = Server::alone(kind).await;
    let place = Place { kind, url: server.create_database().await };
    set(&place.url, HOSTILE.into_iter()).await;
    let worked = tokio::spawn({
        let url = place.url.clone();
        async move { hold_and_wait(&Place { kind, url }).await }
    });
    let worked = worked.await;
    // The next test finds the server as it was.
    set(&place.url, HOSTILE.into_iter().map(|(name, _)| (name, "DEFAULT"))).await;
    worked.unwrap();
}

async fn hold_and_wait(place: &Place) {
    let (locks, others) = (place.process().await, place.process().await);
    let key = LockKey::named("k");
    // Longer than the default idle time, after which the server ends a connection.
    let options = LockOptions::wait(LONG).hold(LONG).renewed(Duration::from_secs(30));
    let lease = locks.take(&key, &options).await.unwrap().unwrap();
    assert!(others.try_acquire(&key, Duration::ZERO, LONG).await.unwrap().is_none());
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    lease.extend(LONG).await.unwrap();
    assert!(lease.is_held());
    let waiting = {
        let (others, key) = (others.clone(), key.clone());
        tokio::spawn(async move { others.acquire(&key, LONG).await.unwrap() })
    };
    assert!(others.inspect(&key).await.unwrap().is_some());
    assert!(lease.release().await, "the lease was held until its release");
    assert!(waiting.await.unwrap().release().await);
    // Several keys at once share a statement, and its answer has several rows.
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..50 {
        let locks = locks.clone();
        tasks.spawn(async move { locks.acquire(&lock_key!("key", n), LONG).await.unwrap() });
    }
    for lease in tasks.join_all().await {
        assert!(lease.release().await);
    }
}
