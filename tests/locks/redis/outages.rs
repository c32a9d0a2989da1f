//! A server that goes down or loses its data.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::lock::{FailureKind, KeyedLockProvider, LockBackend, LockError, LockKey};
use ekbatan_testkit::{Proxy, RedisServer};
use support::until;

use super::{Space, asked, connection, request, taken};
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

/// It is sent again when its connection breaks. What a replica answers says nothing of the first time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_whose_answer_was_lost_stays_in_doubt_when_another_server_refuses_it() {
    let (redis, replica) =
        (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let mut administrator = connection(&replica.url()).await;
    let () = asked(&mut administrator, &["REPLICAOF", "127.0.0.1", "1"]).await;
    let proxy = Proxy::start(("127.0.0.1", redis.port())).await.unwrap();
    let direct = Space::on(&redis);
    let through = Space { url: proxy.url_for(&redis.url()), namespace: direct.namespace.clone() };
    let backend = Arc::new(through.backend().await);
    let mut server = connection(&redis.url()).await;
    let error = loop {
        proxy.set_delay(Duration::from_millis(500));
        let taking = tokio::spawn({
            let backend = backend.clone();
            async move { backend.try_grant("k", &request(LONG)).await }
        });
        until("the server has granted it", async || !direct.stored().await.is_empty()).await;
        proxy.lead_to(("127.0.0.1", replica.port())).await.unwrap();
        proxy.cut();
        proxy.set_delay(Duration::ZERO);
        proxy.restore();
        if let Err(error) = taking.await.unwrap() {
            break error;
        }
        // On a busy machine the answer may arrive before the connection is cut.
        proxy.lead_to(("127.0.0.1", redis.port())).await.unwrap();
        proxy.cut();
        proxy.restore();
        let () = asked(&mut server, &["FLUSHALL"]).await;
    };
    assert_eq!(error.kind(), FailureKind::InDoubt, "{error}");
}
