//! A server that goes down or loses its data.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockBackend, LockError, LockKey};
use ekbatan_testkit::RedisServer;
use support::until;

use super::{Space, asked, connection, taken};
use crate::providers::LONG;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_older_than_a_data_loss_does_no_harm() {
    let redis = RedisServer::start().await.unwrap();
    let space = Space::on(&redis);
    let (one, other) = (space.locks().await, space.locks().await);
    let key = LockKey::named("k");
    let before = one.try_acquire(&key, LONG, LONG).await.unwrap().unwrap();
    redis.kill().await.unwrap();
    redis.restart().await.unwrap();
    // Both hold the key, which one server cannot prevent; the fence accepts only the later one.
    let after = other.try_acquire(&key, LONG, LONG).await.unwrap().unwrap();
    assert!(before.is_held() && after.token() > before.token());
    assert!(!before.release().await, "the server lost the lease");
    assert!(
        one.inspect(&key).await.unwrap().is_some(),
        "the release did not end the successor's lease"
    );
    assert!(after.release().await);
}

#[tokio::test]
async fn tokens_grow_over_a_data_loss() {
    let redis = RedisServer::start().await.unwrap();
    let space = Space::on(&redis);
    let backend = space.backend().await;
    let mut server = connection(&space.url).await;
    let mut last = 0;
    for round in 0..20 {
        let grant = taken(&backend, "k", LONG).await;
        assert!(grant.token > last, "round {round}: {} after {last}", grant.token);
        last = grant.token;
        // Tokens begin with the server's time, and every real restart takes longer than this.
        tokio::time::sleep(Duration::from_millis(2)).await;
        match round % 2 {
            0 => asked(&mut server, &["FLUSHALL"]).await,
            _ => assert!(backend.release("k", &grant).await.unwrap().ours),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_down_is_an_error_until_it_is_back() {
    let redis = RedisServer::start().await.unwrap();
    let space = Space::on(&redis);
    let locks = space.locks().await;
    let (held, wanted) = (LockKey::named("held"), LockKey::named("wanted"));
    let lease = locks.try_acquire(&held, LONG, LONG).await.unwrap().unwrap();
    redis.kill().await.unwrap();
    let error = locks.try_acquire(&wanted, Duration::from_millis(500), LONG).await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. } | LockError::InDoubt { .. }), "{error}");
    let releasing = tokio::spawn(async move { lease.release().await });
    redis.restart().await.unwrap();
    releasing.await.unwrap();
    for key in [&held, &wanted] {
        let lease = loop {
            // A request that began while the server was down may still fail.
            if let Ok(lease) = locks.try_acquire(key, LONG, LONG).await {
                break lease.unwrap();
            }
        };
        assert!(lease.release().await);
    }
    // The subscription is restored as well.
    let mut server = connection(&space.url).await;
    let channel = format!("{}:freed", space.namespace);
    until("it is subscribed again", async || {
        asked::<(String, usize)>(&mut server, &["PUBSUB", "NUMSUB", &channel]).await.1 > 0
    })
    .await;
}
