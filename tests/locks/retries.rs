//! A lock server that is away for a moment: takes, extensions and releases are repeated within what
//! their callers asked for.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockError, LockKey};

use crate::providers::LONG;
use crate::silence::Silenced;

on_providers! {
    |kind| crate::silence::Silenced::start(kind).await;
    [
        redis, etcd, postgres_lease, postgres_session,
        mysql_lease, mysql_session, mariadb_lease, mariadb_session; stores
    ]
    a_waiter_outlasts_an_outage,
    a_release_outlasts_an_outage,
    a_wait_that_is_shorter_than_the_outage_ends_with_the_cause,
}
mod leases {
    use super::*;

    on_providers! {
        |kind| crate::silence::Silenced::start(kind).await;
        [redis, etcd, postgres_lease, mysql_lease, mariadb_lease; stores]
        an_extension_outlasts_an_outage,
    }
}

/// Longer than the first pauses between retries.
const OUTAGE: Duration = Duration::from_millis(400);

/// An hour: no lease ends by itself during a test.
const HOUR: Duration = Duration::from_secs(3_600);

async fn outage(t: &Silenced) {
    tokio::time::sleep(OUTAGE).await;
    t.proxy.restore();
}

async fn a_waiter_outlasts_an_outage(t: Silenced) {
    t.proxy.cut();
    let key = LockKey::named("k");
    let (taken, ()) = tokio::join!(t.locks.try_acquire(&key, LONG, LONG), outage(&t));
    let lease = taken.unwrap().expect("the key is free");
    assert!(t.other.try_acquire(&key, Duration::ZERO, LONG).await.unwrap().is_none());
    assert!(lease.release().await);
}

async fn a_release_outlasts_an_outage(t: Silenced) {
    let key = LockKey::named("k");
    let lease = t.locks.acquire(&key, HOUR).await.unwrap();
    t.proxy.cut();
    // A session ends with its connection, and then the lease with it.
    tokio::join!(lease.release(), outage(&t));
    let next = t.other.try_acquire(&key, LONG, LONG).await.unwrap();
    assert!(next.expect("the server has the key back").release().await);
}

async fn a_wait_that_is_shorter_than_the_outage_ends_with_the_cause(t: Silenced) {
    let key = LockKey::named("k");
    t.proxy.cut();
    let error = t.locks.try_acquire(&key, OUTAGE, LONG).await.unwrap_err();
    let is_unknown = matches!(error, LockError::Unavailable { .. } | LockError::InDoubt { .. });
    assert!(is_unknown, "{error:?}");
    t.proxy.restore();
    assert!(t.locks.acquire(&key, LONG).await.unwrap().release().await);
}

async fn an_extension_outlasts_an_outage(t: Silenced) {
    let key = LockKey::named("k");
    let lease = t.locks.acquire(&key, LONG).await.unwrap();
    t.proxy.cut();
    let (extended, ()) = tokio::join!(lease.extend(HOUR), outage(&t));
    extended.unwrap();
    assert!(lease.remaining() > HOUR / 2);
    let there = t.other.inspect(&key).await.unwrap().unwrap().remaining;
    assert!(there.is_some_and(|there| there > HOUR / 2), "{there:?}");
    assert!(lease.release().await);
}
