//! Callers of a pool whose connections are all in use.

use std::error::Error;
use std::time::Duration;

use ekbatan::config::DataSourceConfig;
use ekbatan::lock::{
    Attempt, GrantRequest, KeyedLockProvider, LockBackend, LockError, LockKey, LockProvider,
    MySqlLocks, PostgresLocks,
};
use futures_util::future::{join_all, select_all};
use support::until;
use uuid::Uuid;

use crate::providers::{Kind, LONG};
use crate::sql::place::Place;

on_providers! {
    |kind| kind;
    [postgres_lease, mysql_lease, mariadb_lease]
    a_connection_is_waited_for_as_long_as_configured,
    the_time_of_a_take_begins_when_it_has_a_connection,
}

/// A provider whose pool a slow machine may take longer to open than `connection_timeout`.
async fn leases(kind: Kind, config: DataSourceConfig) -> LockProvider {
    let mut locks = None;
    until("the pool opens", async || {
        let opened = opened(kind, &config).await;
        locks = opened.inspect_err(|error| println!("{kind:?}: {error}")).ok();
        locks.is_some()
    })
    .await;
    locks.unwrap()
}

async fn opened(kind: Kind, config: &DataSourceConfig) -> Result<LockProvider, Box<dyn Error>> {
    if kind == Kind::PostgresLease {
        let database = PostgresLocks::open(config).await?;
        Ok(LockProvider::new(database.leases().await?, "test"))
    } else {
        let database = MySqlLocks::open(config).await?;
        let database = database.eventlog(config.url.rsplit('/').next().unwrap());
        Ok(LockProvider::new(database.leases().await?, "test"))
    }
}

async fn a_connection_is_waited_for_as_long_as_configured(kind: Kind) {
    let place = Place::shared(kind).await;
    let proxy = place.proxy().await;
    let config = DataSourceConfig::new(proxy.url_for(&place.url)).maximum_pool_size(1);
    let locks = leases(kind, config.connection_timeout(Duration::from_secs(1))).await;
    let key = LockKey::named("k");
    // A release would have old rows deleted, by a statement that may still run.
    assert!(locks.inspect(&key).await.unwrap().is_none());
    proxy.stall();
    // One of them has the connection, whose server does not answer.
    let looks = (0..2).map(|_| Box::pin(locks.inspect(&key)));
    let (first, ..) = select_all(looks).await;
    assert!(matches!(first, Err(LockError::Unavailable { .. })), "{first:?}");
}

/// Each statement takes a second, and many takes wait for the only connection: longer than a server
/// of MySQL has for its answer here.
async fn the_time_of_a_take_begins_when_it_has_a_connection(kind: Kind) {
    let place = Place::shared(kind).await;
    let proxy = place.proxy().await;
    let config = DataSourceConfig::new(proxy.url_for(&place.url)).maximum_pool_size(1);
    let config = config.connection_timeout(Duration::from_secs(600));
    let locks = leases(kind, config.read_timeout(Duration::from_secs(8))).await;
    let taken = |n: usize| {
        let (locks, key) = (locks.clone(), LockKey::named(&format!("busy {n}")));
        async move { locks.try_acquire(&key, Duration::from_secs(600), Duration::from_secs(600)).await }
    };
    let first = taken(0).await.unwrap().unwrap();
    proxy.set_delay(Duration::from_millis(700));
    let all = join_all((1..16).map(taken)).await;
    proxy.set_delay(Duration::ZERO);
    for answer in all {
        assert!(answer.unwrap().unwrap().release().await);
    }
    assert!(first.release().await);
}

/// A common renewal that is late is dropped, for example.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_owes_an_answer_is_not_used_again_on_postgres() {
    let place = Place::shared(Kind::PostgresLease).await;
    let proxy = place.proxy().await;
    let url = proxy.url_for(&place.url);
    let leases = PostgresLocks::connect(&url, 1).await.unwrap().leases().await.unwrap();
    let request = GrantRequest::new(Uuid::new_v4(), "a test", LONG * 10);
    let Attempt::Granted(grant) = leases.try_grant("k", &request).await.unwrap() else {
        panic!("the key is free");
    };
    proxy.silence();
    let extending = leases.extend("k", &grant, LONG * 10);
    // So long that the statement is sent.
    let dropped = tokio::time::timeout(Duration::from_millis(300), extending).await;
    assert!(dropped.is_err(), "the only connection carries nothing");
    assert!(leases.extend("k", &grant, LONG * 10).await.unwrap(), "over a new connection");
}
