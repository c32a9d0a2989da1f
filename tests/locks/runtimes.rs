//! Locks that one runtime has connected are used by another one, also when the first has ended.

use ekbatan::lock::{KeyedLockProvider, LockError, LockKey, LossCause};
use support::until;
use tokio::sync::oneshot;

use crate::providers::{LONG, TestLocks};
use crate::workers::on_its_own_runtime;

on_providers! {
    |kind| &crate::providers::TestLocks::start(kind).await;
    [
        redis, etcd, sqlite, postgres_lease, postgres_session,
        mysql_lease, mysql_session, mariadb_lease, mariadb_session,
    ]
    locks_outlive_the_runtime_that_opened_them,
}

async fn locks_outlive_the_runtime_that_opened_them(t: &TestLocks) {
    let opening = t.opening();
    let (opened, locks) = oneshot::channel();
    let (end, ended) = oneshot::channel::<()>();
    let other = tokio::spawn(on_its_own_runtime(async move {
        assert!(opened.send(opening.await).is_ok());
        let _ = ended.await;
    }));
    let locks = locks.await.unwrap();
    let key = LockKey::named("k");
    let before = locks.acquire(&key, LONG).await.unwrap();
    end.send(()).unwrap();
    other.await.unwrap();
    if t.kind().is_session() {
        let cause = before.lost().await;
        assert!(matches!(cause, LossCause::SessionGone(_)), "{cause:?}");
    } else {
        assert!(before.release().await);
    }
    let next = locks.try_acquire(&key, LONG, LONG).await.unwrap().unwrap();
    assert!(next.token() > before.token() && next.release().await);
    let (held, contended) = (t.hold(&key).await, locks.counters().contended);
    let releasing = async {
        until("it is found busy", async || locks.counters().contended > contended).await;
        held.release().await
    };
    let (lease, released) = tokio::join!(locks.try_acquire(&key, LONG, LONG), releasing);
    assert!(released && lease.unwrap().unwrap().release().await);
    locks.close().await;
    assert!(matches!(locks.acquire(&key, LONG).await, Err(LockError::Closed { .. })));
}
