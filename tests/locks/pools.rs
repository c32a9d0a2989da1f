//! Callers of a pool whose connections are all in use.

use std::time::Duration;

use ekbatan::config::DataSourceConfig;
use ekbatan::lock::{
    KeyedLockProvider, LockError, LockKey, LockProvider, MySqlLocks, PostgresLocks,
};
use futures_util::future::select_all;

use crate::providers::Kind;
use crate::sql::place::Place;

on_providers! {
    |kind| kind;
    [postgres_lease, mysql_lease, mariadb_lease]
    a_connection_is_waited_for_as_long_as_configured,
}

async fn a_connection_is_waited_for_as_long_as_configured(kind: Kind) {
    let place = Place::shared(kind).await;
    let proxy = place.proxy().await;
    let url = proxy.url_for(&place.url);
    let timeout = Duration::from_secs(1);
    let config = DataSourceConfig::new(&url).maximum_pool_size(1).connection_timeout(timeout);
    let locks = if kind == Kind::PostgresLease {
        let database = PostgresLocks::open(&config).await.unwrap();
        LockProvider::new(database.leases().await.unwrap(), "test")
    } else {
        let database = MySqlLocks::open(&config).await.unwrap();
        let database = database.eventlog(url.rsplit('/').next().unwrap());
        LockProvider::new(database.leases().await.unwrap(), "test")
    };
    let key = LockKey::named("k");
    // A release would have old rows deleted, by a statement that may still run.
    assert!(locks.inspect(&key).await.unwrap().is_none());
    proxy.stall();
    // One of them has the connection, whose server does not answer.
    let looks = (0..2).map(|_| Box::pin(locks.inspect(&key)));
    let (first, ..) = select_all(looks).await;
    assert!(matches!(first, Err(LockError::Unavailable { .. })), "{first:?}");
}
