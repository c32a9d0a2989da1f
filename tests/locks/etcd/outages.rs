//! A server that goes down or loses its data, and a connection that breaks or goes silent.

use std::time::Duration;

use ekbatan::lock::{Grant, KeyedLockProvider, LockBackend, LockError, LockKey};
use ekbatan_testkit::{EtcdServer, Proxy};

use super::{Space, request, taken};
use crate::providers::LONG;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_survive_a_crash_and_tokens_grow_over_a_data_loss() {
    let server = EtcdServer::start().await.unwrap();
    let space = Space::on(&server);
    let (one, other) = (space.locks().await, space.locks().await);
    let key = LockKey::named("k");
    let eventually = async |locks: &ekbatan::lock::LockProvider, wait| loop {
        // A request that began while the server was down may still fail.
        if let Ok(lease) = locks.try_acquire(&key, wait, LONG).await {
            return lease;
        }
    };
    let before = one.try_acquire(&key, LONG, LONG).await.unwrap().unwrap();
    server.kill().await.unwrap();
    server.restart().await.unwrap();
    assert!(eventually(&other, Duration::ZERO).await.is_none(), "the grant is on disk");
    assert!(before.is_held());
    let mut last = before.token();
    for _ in 0..2 {
        server.lose_data().await.unwrap();
        // Revisions begin with one again.
        let after = eventually(&other, LONG).await.unwrap();
        assert!(after.token() > last, "{} after {last}", after.token());
        last = after.token();
        // Both hold the key, which no server can prevent; the fence accepts only the later one.
        assert!(after.release().await);
    }
    assert!(!before.release().await, "the server lost the lease");
}

#[tokio::test]
async fn tokens_grow_over_a_lost_epoch() {
    let space = Space::shared().await;
    let backend = space.backend().await;
    let mut last = 0;
    for _ in 0..5 {
        let grant = taken(&backend, "k", LONG).await;
        assert!(grant.token > last, "{} after {last}", grant.token);
        last = grant.token;
        assert!(backend.release("k", &grant).await.unwrap().ours);
        // As if all data were lost; every real loss takes longer than this.
        tokio::time::sleep(Duration::from_millis(50)).await;
        space.server.delete(&format!("{}/", space.namespace)).await.unwrap();
    }
    space.server.put(&format!("{}/epoch", space.namespace), "x").await.unwrap();
    let error = backend.try_grant("k", &request(LONG)).await.unwrap_err();
    assert!(!error.may_pass() && error.to_string().contains("/epoch` is `x`"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_down_is_an_error_until_it_is_back() {
    let server = EtcdServer::start().await.unwrap();
    let space = Space::on(&server);
    let (locks, other) = (space.locks().await, space.locks().await);
    let (held, wanted) = (LockKey::named("held"), LockKey::named("wanted"));
    let lease = locks.try_acquire(&held, LONG, LONG).await.unwrap().unwrap();
    // A caller that waits is not disturbed.
    let waiting = tokio::spawn({
        let held = held.clone();
        async move { other.acquire(&held, LONG).await.unwrap().release().await }
    });
    space.until_places(2).await;
    server.kill().await.unwrap();
    let error = locks.try_acquire(&wanted, Duration::ZERO, LONG).await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("etcd at 127.0.0.1:{}", server.port())), "{text}");
    let releasing = tokio::spawn(async move { lease.release().await });
    server.restart().await.unwrap();
    assert!(releasing.await.unwrap());
    assert!(waiting.await.unwrap());
    assert!(locks.try_acquire(&wanted, LONG, LONG).await.unwrap().unwrap().release().await);
}

/// Its place at the server ends, because it can give no sign of life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stands_in_the_queue_learns_that_the_server_is_away() {
    let server = EtcdServer::start().await.unwrap();
    let space = Space::on(&server);
    let (locks, other) = (space.locks().await, space.locks().await);
    let key = LockKey::named("k");
    let _held = locks.try_acquire(&key, LONG, LONG).await.unwrap().unwrap();
    let waiting =
        tokio::spawn(async move { other.try_acquire(&key, Duration::from_secs(20), LONG).await });
    space.until_places(2).await;
    server.kill().await.unwrap();
    let answer = waiting.await.unwrap();
    assert!(matches!(answer, Err(LockError::Unavailable { .. })), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_is_replaced_without_an_error() {
    let server = EtcdServer::shared().await.unwrap();
    let proxy = Proxy::start(("127.0.0.1", server.port())).await.unwrap();
    let space = Space { url: proxy.url_for(&server.url()), ..Space::on(server) };
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
    let server = EtcdServer::shared().await.unwrap();
    let proxy = Proxy::start(("127.0.0.1", server.port())).await.unwrap();
    let space = Space { url: proxy.url_for(&server.url()), ..Space::on(server) };
    let backend = space.backend().await;
    let before = taken(&backend, "before", LONG).await;
    proxy.stall();
    let tried = request(LONG);
    let error = backend.try_grant("k", &tried).await.unwrap_err();
    assert!(error.to_string().contains("did not answer within 5s"), "{error}");
    assert!(error.may_pass());
    // The abandoned request arrives now, before or after the next one.
    proxy.resume();
    let unheard = Grant { owner: tried.owner, token: 0 };
    backend.release("k", &unheard).await.unwrap();
    assert_eq!(backend.inspect("k").await.unwrap(), None);
    assert!(backend.release("before", &before).await.unwrap().ours);
    support::until("one connection is left", async || proxy.connections() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_start_passes_over_a_silent_member() {
    let server = EtcdServer::shared().await.unwrap();
    let silent = Proxy::start(("127.0.0.1", server.port())).await.unwrap();
    silent.stall();
    let addresses = format!("etcd://{},127.0.0.1:{}", silent.address(), server.port());
    let space = Space { url: addresses, ..Space::on(server) };
    let backend = space.backend().await;
    let grant = taken(&backend, "k", LONG).await;
    assert!(backend.release("k", &grant).await.unwrap().ours);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_down_or_silent_is_left_for_the_next() {
    let (server, gone) = (EtcdServer::shared().await.unwrap(), EtcdServer::start().await.unwrap());
    let port = gone.port();
    gone.stop().await.unwrap();
    let proxy = Proxy::start(("127.0.0.1", server.port())).await.unwrap();
    let silent = proxy.address();
    let addresses = format!("etcd://127.0.0.1:{port},{silent},127.0.0.1:{}", server.port());
    let space = Space { url: addresses, ..Space::on(server) };
    let backend = space.backend().await;
    let first = taken(&backend, "k", LONG).await;
    proxy.stall();
    // The member that has answered so far is silent. Its request fails once.
    while backend.inspect("k").await.is_err() {}
    assert!(backend.release("k", &first).await.unwrap().ours);
    proxy.resume();
}
