//! A connection that is accepted and never answered, not even its login, is given up.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockKey};
use support::until;

use crate::providers::{Kind, LONG};
use crate::silence::Silenced;
use crate::sql::place::Place;

on_providers! {
    |kind| crate::silence::Silenced::start(kind).await;
    [
        redis, etcd, postgres_lease, postgres_session,
        mysql_lease, mysql_session, mariadb_lease, mariadb_session; stores
    ]
    a_connection_that_is_never_answered_is_given_up,
    closing_does_not_wait_for_a_connection_that_is_never_answered,
}

/// Longer than several connections that are given up, one after another.
const GIVEN_UP: Duration = Duration::from_secs(120);

/// So long that the caller has tried to connect.
const MOMENT: Duration = Duration::from_millis(300);

/// Ends all connections. New ones are accepted, and carry nothing.
fn accept_and_say_nothing(t: &Silenced) {
    t.proxy.stall();
    t.proxy.cut();
    t.proxy.restore();
}

async fn a_connection_that_is_never_answered_is_given_up(t: Silenced) {
    accept_and_say_nothing(&t);
    let (locks, key) = (t.locks.clone(), LockKey::named("k"));
    let taking = tokio::spawn(async move { locks.try_acquire(&key, GIVEN_UP, LONG).await });
    until("it connects", async || t.proxy.connections() > 0).await;
    tokio::time::sleep(MOMENT).await;
    t.proxy.silence();
    t.proxy.resume();
    let taken = tokio::time::timeout(GIVEN_UP * 2, taking).await.expect("the wait ends");
    let lease = taken.unwrap().unwrap().expect("new connections are served, and the key is free");
    assert!(lease.release().await);
}

async fn closing_does_not_wait_for_a_connection_that_is_never_answered(t: Silenced) {
    accept_and_say_nothing(&t);
    let (locks, key) = (t.locks.clone(), LockKey::named("k"));
    let taking = tokio::spawn(async move { locks.acquire(&key, LONG).await });
    until("it connects", async || t.proxy.connections() > 0).await;
    let closed = tokio::time::timeout(GIVEN_UP, t.locks.close_within(Duration::ZERO)).await;
    assert!(closed.is_ok(), "it closes");
    assert!(taking.await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_connection_for_messages_is_opened_again_with_leases_on_postgres() {
    const LISTENERS: &str = "SELECT count(*) FROM pg_stat_activity \
         WHERE datname = current_database() AND query LIKE 'LISTEN ekbatan_lock_%'";
    let place = Place::shared(Kind::PostgresLease).await;
    let proxy = place.proxy().await;
    let _locks = place.process_through(&proxy).await;
    until("the process listens", async || place.number(LISTENERS).await == 1).await;
    proxy.stall();
    proxy.cut();
    proxy.restore();
    until("the connection has ended", async || place.number(LISTENERS).await == 0).await;
    until("it connects again", async || proxy.connections() > 0).await;
    proxy.silence();
    proxy.resume();
    until("the process listens again", async || place.number(LISTENERS).await == 1).await;
}
