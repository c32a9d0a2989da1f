//! The number of connections, and what happens when one is lost.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockBackend, LockKey, lock_key};
use ekbatan_testkit::{Proxy, RedisServer};
use redis::aio::MultiplexedConnection;
use support::until;

use super::{Space, asked, connection, request, taken};
use crate::providers::LONG;
use support::soak::rounds;

/// The number of connections without that of the test.
async fn connections(server: &mut MultiplexedConnection) -> usize {
    asked::<String>(server, &["CLIENT", "LIST"]).await.lines().count() - 1
}

/// The ids of the connections for commands, without that of the test.
async fn commanding(server: &mut MultiplexedConnection) -> Vec<String> {
    let own: u64 = asked(server, &["CLIENT", "ID"]).await;
    let all: String = asked(server, &["CLIENT", "LIST", "TYPE", "normal"]).await;
    let id = |line: &str| line.split(' ').next().map(str::to_owned);
    all.lines().filter_map(id).filter(|id| *id != format!("id={own}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_leases_and_waiters_share_two_connections() {
    let redis = RedisServer::start().await.unwrap();
    let space = Space::on(&redis);
    let mut server = connection(&space.url).await;
    let (locks, holder) = (space.locks().await, space.locks().await);
    let at_first = connections(&mut server).await;
    assert_eq!(at_first, 4, "two for each of two processes");

    // One process holds all keys, so that the other one waits at the server.
    let keys: Vec<LockKey> = (0..rounds(200, 1_000)).map(|n| lock_key!("key", n as i64)).collect();
    let mut held = Vec::new();
    for key in &keys {
        held.push(holder.try_acquire(key, LONG, LONG).await.unwrap().unwrap());
    }
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..keys.len() * 10 {
        let (locks, key) = (locks.clone(), keys[n % keys.len()].clone());
        waiters.spawn(async move { locks.acquire(&key, LONG).await.unwrap().release().await });
    }
    for key in &keys {
        until("all others wait", async || {
            locks.inspect(key).await.unwrap().unwrap().waiting_here >= 9
        })
        .await;
    }
    assert_eq!(connections(&mut server).await, at_first);
    held.clear();
    let mut served = 0;
    while let Some(released) = waiters.join_next().await {
        assert!(released.unwrap());
        served += 1;
        if served % 500 == 0 {
            assert_eq!(connections(&mut server).await, at_first);
        }
    }
    locks.close().await;
    holder.close().await;
    assert_eq!(space.stored().await, Vec::<String>::new());
    drop((locks, holder));
    until("the connections are closed", async || connections(&mut server).await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_subscription_only_costs_time_and_is_restored() {
    let redis = RedisServer::start().await.unwrap();
    let space = Space::on(&redis);
    let mut server = connection(&space.url).await;
    let (one, other) = (space.locks().await, space.locks().await);
    let channel = format!("{}:freed", space.namespace);
    let key = LockKey::named("k");
    for _ in 0..5 {
        let held = one.try_acquire(&key, LONG, LONG).await.unwrap().unwrap();
        let (locks, of_waiter) = (other.clone(), key.clone());
        let waiter = tokio::spawn(async move { locks.try_acquire(&of_waiter, LONG, LONG).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let killed: usize = asked(&mut server, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        assert_eq!(killed, 2);
        held.release().await;
        assert!(waiter.await.unwrap().unwrap().unwrap().release().await);
        until("both are subscribed again", async || {
            asked::<(String, usize)>(&mut server, &["PUBSUB", "NUMSUB", &channel]).await.1 >= 2
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_is_replaced_without_an_error() {
    let redis = RedisServer::shared().await.unwrap();
    let proxy = Proxy::start(("127.0.0.1", redis.port())).await.unwrap();
    let space = Space { url: proxy.url_for(&redis.url()), ..Space::on(redis) };
    let backend = space.backend().await;
    for _ in 0..5 {
        let grant = taken(&backend, "k", LONG).await;
        proxy.cut();
        proxy.restore();
        assert!(backend.extend("k", &grant, LONG).await.unwrap());
        proxy.cut();
        proxy.restore();
        assert!(backend.release("k", &grant).await.unwrap().ours);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_is_given_up_and_its_request_undone() {
    let redis = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(("127.0.0.1", redis.port())).await.unwrap();
    let through = Space { url: proxy.url_for(&redis.url()), ..Space::on(&redis) };
    let backend = through.backend().await;
    let before = taken(&backend, "before", LONG).await;
    let mut server = connection(&redis.url()).await;
    let first = commanding(&mut server).await;
    assert_eq!(first.len(), 1);
    proxy.stall();
    let tried = request(LONG);
    let error = backend.try_grant("k", &tried).await.unwrap_err();
    assert!(error.to_string().starts_with("Redis: "), "{error}");
    // The abandoned request arrives now, before or after the next one.
    proxy.resume();
    let unheard = ekbatan_lock::Grant { owner: tried.owner, token: 0 };
    backend.release("k", &unheard).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(backend.inspect("k").await.unwrap(), None);
    assert!(backend.release("before", &before).await.unwrap().ours);
    until("the first connections are gone", async || {
        !commanding(&mut server).await.iter().any(|id| first.contains(id))
    })
    .await;
}
