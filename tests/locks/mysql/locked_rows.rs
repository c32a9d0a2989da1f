//! Rows of leases that somebody else has locked.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, Lease, LockError, LockKey, LockOptions};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

use crate::providers::{Kind, LONG};
use crate::sql::place::{Place, mysql_client};

on_providers! {
    |kind| kind;
    [mysql_lease, mariadb_lease]
    a_locked_row_takes_no_other_lease_away,
    a_caller_that_waits_outlasts_a_locked_row,
}

/// The term at the server. It would end while a renewal waited for the locked row for 10 s.
const TERM: Duration = Duration::from_secs(9);

/// How often the test begins again because the machine was too busy to renew in time.
const TRIES: usize = 3;

/// Locks the row of a key, until the connection is closed.
async fn lock_row(place: &Place, key: &str) -> MySqlConnection {
    let mut somebody = mysql_client(&place.url).await;
    // The condition names the whole key, so that no other row is locked.
    let name = format!("SELECT HEX(lock_key) FROM lock_leases WHERE lock_key LIKE '%{key}'");
    let name: String =
        sqlx::query_scalar(AssertSqlSafe(name)).fetch_one(&mut somebody).await.unwrap();
    let lock = format!(
        "START TRANSACTION; \
         SELECT token FROM lock_leases WHERE lock_key = _utf8mb4 x'{name}' FOR UPDATE"
    );
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut somebody).await.unwrap();
    somebody
}

async fn a_locked_row_takes_no_other_lease_away(kind: Kind) {
    let place = Place::shared(kind).await;
    for _ in 0..TRIES {
        if others_stay(&place).await {
            return;
        }
    }
    panic!("the leases whose rows come before the locked one were lost");
}

/// Whether two leases are renewed while the row of a third one is locked. One statement renews all three.
async fn others_stay(place: &Place) -> bool {
    let locks = place.process().await;
    let options = LockOptions::wait(LONG).hold(LONG * 10).renewed(TERM);
    let mut leases = Vec::new();
    for name in ["a", "b", "locked"] {
        leases.push(locks.take(&LockKey::named(name), &options).await.unwrap().unwrap());
    }
    let locked = leases.pop().unwrap();
    let somebody = lock_row(place, "locked").await;
    tokio::time::timeout(LONG, locked.lost()).await.expect("it cannot be renewed");
    // Without a renewal since the row was locked, the others are over now.
    tokio::time::sleep(TERM / 3).await;
    let stay = leases.iter().all(Lease::is_held);
    somebody.close().await.unwrap();
    stay
}

async fn a_caller_that_waits_outlasts_a_locked_row(kind: Kind) {
    let place = Place::shared(kind).await;
    let locks = place.process().await;
    let key = LockKey::named("locked");
    assert!(locks.acquire(&key, LONG).await.unwrap().release().await);
    let somebody = lock_row(&place, "locked").await;
    let tried = locks.try_acquire(&key, Duration::ZERO, LONG).await;
    let is_unknown = |error: &LockError| {
        matches!(error, LockError::Unavailable { .. } | LockError::InDoubt { .. })
    };
    assert!(tried.as_ref().is_err_and(is_unknown), "{tried:?}");
    let unlocking = async {
        // Longer than a statement waits for a row.
        tokio::time::sleep(Duration::from_secs(3)).await;
        somebody.close().await.unwrap();
    };
    let (waited, ()) = tokio::join!(locks.try_acquire(&key, LONG, LONG), unlocking);
    assert!(waited.unwrap().expect("the key is free").release().await);
}
