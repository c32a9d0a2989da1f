//! A server that does not answer is not reported as a key that somebody holds.

use std::time::Duration;

use ekbatan::lock::{
    KeyedLockProvider, LockError, LockKey, LockProvider, RunOnce, RunOnceError, WithLockError,
};
use ekbatan::prelude::*;
use ekbatan_lock_etcd::EtcdBackend;
use ekbatan_lock_redis::RedisBackend;
use ekbatan_testkit::{EtcdServer, Proxy, RedisServer};
use futures_util::FutureExt;
use uuid::Uuid;

use crate::providers::{Kind, LONG};
use crate::sql::place::Place;
use crate::stores;

on_providers! {
    |kind| crate::silence::Silenced::start(kind).await;
    [
        redis, etcd, postgres_lease, postgres_session,
        mysql_lease, mysql_session, mariadb_lease, mariadb_session; stores
    ]
    a_wait_without_an_answer_is_not_busy,
    a_try_behind_a_pending_one_waits_for_its_answer,
    a_try_behind_a_failed_one_fails_as_well,
}

/// Longer than a local server takes to answer, also on a busy machine.
const WAIT: Duration = Duration::from_millis(300);

/// Locks behind a proxy.
pub struct Silenced {
    pub locks: LockProvider,
    pub proxy: Proxy,
    /// Another node, whose connections do not lead through the proxy.
    pub other: LockProvider,
}

impl Silenced {
    pub async fn start(kind: Kind) -> Self {
        let (locks, other, proxy) = if kind == Kind::Redis {
            let server = RedisServer::shared().await.unwrap();
            let url = server.url();
            let proxy = Proxy::start(("127.0.0.1", server.port())).await.unwrap();
            let namespace = Uuid::new_v4().to_string();
            let backend = RedisBackend::connect(&proxy.url_for(&url), &namespace).await.unwrap();
            let other = RedisBackend::connect(&url, &namespace).await.unwrap();
            let [locks, other] = [backend, other].map(|it| LockProvider::new(it, "test"));
            (locks, other, proxy)
        } else if kind == Kind::Etcd {
            let server = EtcdServer::shared().await.unwrap();
            let url = server.url();
            let proxy = Proxy::start(("127.0.0.1", server.port())).await.unwrap();
            let namespace = Uuid::new_v4().to_string();
            let backend = EtcdBackend::connect(&proxy.url_for(&url), &namespace).await.unwrap();
            let other = EtcdBackend::connect(&url, &namespace).await.unwrap();
            let [locks, other] = [backend, other].map(|it| LockProvider::new(it, "test"));
            (locks, other, proxy)
        } else if kind.is_store() {
            let (direct, namespace) = (stores::url(kind).await, Uuid::new_v4().to_string());
            let (behind, proxy) = stores::proxied(kind).await;
            let locks = stores::provider(kind, &behind, &namespace).await;
            (locks, stores::provider(kind, &direct, &namespace).await, proxy)
        } else {
            let place = Place::shared(kind).await;
            let proxy = place.proxy().await;
            (place.process_through(&proxy).await, place.process().await, proxy)
        };
        // The connections are open from now on.
        assert!(locks.acquire(&LockKey::named("open"), LONG).await.unwrap().release().await);
        Self { locks, proxy, other }
    }
}

fn is_unknown(error: &LockError) -> bool {
    matches!(error, LockError::Unavailable { .. } | LockError::InDoubt { .. })
}

async fn a_wait_without_an_answer_is_not_busy(t: Silenced) {
    let key = LockKey::named("k");
    t.proxy.stall();
    let first = t.locks.try_acquire(&key, WAIT, LONG);
    let behind = t.locks.try_acquire(&key, WAIT, LONG);
    let (first, behind) = tokio::join!(first, behind);
    for answer in [first, behind] {
        assert!(answer.as_ref().is_err_and(is_unknown), "{answer:?}");
    }
    let options = LockOptions::wait(WAIT);
    let work = async |_| -> Result<(), ()> { unreachable!("there is no lease") };
    let under = t.locks.with_lock(&key, options, work).await;
    assert!(matches!(&under, Err(WithLockError::Lock(error)) if is_unknown(error)), "{under:?}");
    t.proxy.resume();
    assert!(t.locks.acquire(&key, LONG).await.unwrap().release().await);
}

async fn a_try_behind_a_pending_one_waits_for_its_answer(t: Silenced) {
    let key = LockKey::named("k");
    t.proxy.stall();
    let mut pending = Box::pin(t.locks.acquire(&key, LONG));
    assert!((&mut pending).now_or_never().is_none());
    let mut tried = Box::pin(t.locks.try_acquire(&key, Duration::ZERO, LONG));
    let work = async |_| -> Result<(), ()> { unreachable!("another caller has the key") };
    let mut once = Box::pin(t.locks.run_once(&key, WAIT, LONG, work));
    assert!(tokio::time::timeout(WAIT, &mut tried).await.is_err(), "nobody has the key");
    assert!((&mut once).now_or_never().is_none(), "nobody runs the work");
    t.proxy.resume();
    let (pending, tried, once) = tokio::join!(pending, tried, once);
    assert!(tried.unwrap().is_none());
    assert_eq!(once.unwrap(), RunOnce::Skipped);
    assert!(pending.unwrap().release().await);
}

async fn a_try_behind_a_failed_one_fails_as_well(t: Silenced) {
    let key = LockKey::named("k");
    t.proxy.stall();
    let mut pending = Box::pin(t.locks.try_acquire(&key, Duration::ZERO, LONG));
    assert!((&mut pending).now_or_never().is_none());
    let tried = t.locks.try_acquire(&key, Duration::ZERO, LONG);
    let work = async |_| -> Result<(), ()> { unreachable!("there is no lease") };
    let once = t.locks.run_once(&key, WAIT, LONG, work);
    let failing = async {
        tokio::task::yield_now().await;
        t.proxy.cut();
    };
    let (pending, tried, once, ()) = tokio::join!(pending, tried, once, failing);
    for answer in [pending, tried] {
        assert!(answer.as_ref().is_err_and(is_unknown), "{answer:?}");
    }
    assert!(matches!(&once, Err(RunOnceError::Lock(error)) if is_unknown(error)), "{once:?}");
    t.proxy.restore();
}
