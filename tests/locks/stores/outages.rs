//! A server that goes down, loses its data or falls silent, and the lease of a holder that learns of
//! it.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::lock::{
    Attempt, BackendError, FailureKind, GrantRequest, KeyedLockProvider, LockBackend, LockError,
    LockKey, LossCause,
};
use ekbatan::prelude::*;
use support::until;
use uuid::Uuid;

use crate::providers::{Kind, LONG};
use crate::stores::{backend, provider, proxied, url};
use crate::workers::on_its_own_runtime;

on_providers! {
    |kind| kind;
    [; stores]
    a_holder_learns_that_its_lease_was_ended,
    a_silent_server_loses_a_lease_in_time,
    connections_stay_within_the_pool,
    a_request_that_waited_for_a_connection_is_not_in_doubt,
    a_silence_that_a_short_runtime_met_harms_no_other_caller,
    closing_does_not_wait_for_a_silent_server,
}

/// The shortest term that can be renewed in time.
const TERM: Duration = Duration::from_secs(1);

async fn a_holder_learns_that_its_lease_was_ended(kind: Kind) {
    let (url, namespace) = (url(kind).await, Uuid::new_v4().to_string());
    let locks = provider(kind, &url, &namespace).await;
    let operator = provider(kind, &url, &namespace).await;
    let key = LockKey::named("k");
    let options = LockOptions::wait(LONG).hold(LONG).renewed(TERM);
    let lease = locks.take(&key, &options).await.unwrap().unwrap();
    assert!(operator.force_release(&key, "a test").await.unwrap());
    let cause = tokio::time::timeout(LONG, lease.lost()).await.expect("the loss is noticed");
    let told = kind.watches_leases() && matches!(cause, LossCause::SessionGone(_));
    assert!(told || matches!(cause, LossCause::Taken), "{cause:?}");
    assert!(!lease.is_held() && !lease.release().await);
    assert!(matches!(lease.extend(LONG).await, Err(LockError::Lost { .. })));
}

/// Before the server frees the key, whatever the holder does.
async fn a_silent_server_loses_a_lease_in_time(kind: Kind) {
    let (direct, namespace) = (url(kind).await, Uuid::new_v4().to_string());
    let (behind, proxy) = proxied(kind).await;
    let locks = provider(kind, &behind, &namespace).await;
    let other = provider(kind, &direct, &namespace).await;
    let key = LockKey::named("k");
    let options = LockOptions::wait(LONG).hold(LONG).renewed(TERM);
    let lease = locks.take(&key, &options).await.unwrap().unwrap();
    proxy.stall();
    let waiting = tokio::spawn({
        let key = key.clone();
        async move { other.acquire(&key, LONG).await.unwrap() }
    });
    let successor = waiting.await.unwrap();
    assert!(!lease.is_held(), "its holder knows by now");
    assert!(matches!(lease.lost().await, LossCause::NotRenewed(_)), "{:?}", lease.lost().await);
    proxy.resume();
    assert!(!lease.release().await);
    assert!(successor.is_held() && successor.release().await);
}

async fn connections_stay_within_the_pool(kind: Kind) {
    /// The default of a pool, and what watches the server.
    const MOST: u64 = 10 + 4;
    let (direct, namespace) = (url(kind).await, Uuid::new_v4().to_string());
    let (behind, proxy) = proxied(kind).await;
    let locks = provider(kind, &behind, &namespace).await;
    let holder = provider(kind, &direct, &namespace).await;
    let keys: Vec<LockKey> = (0..60).map(|n| LockKey::of("k", n)).collect();
    let mut held = Vec::new();
    for key in &keys {
        held.push(holder.acquire(key, LONG).await.unwrap());
    }
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..600 {
        let (locks, key) = (locks.clone(), keys[n % keys.len()].clone());
        waiters.spawn(async move { locks.acquire(&key, LONG).await.unwrap().release().await });
    }
    // The first of ten is the one for whom the process waits at the server.
    until("the others wait", async || {
        locks.inspect(&keys[59]).await.unwrap().unwrap().waiting_here >= 9
    })
    .await;
    drop(held);
    while let Some(released) = waiters.join_next().await {
        assert!(released.unwrap());
    }
    let connections = proxy.connections();
    assert!(u64::try_from(connections).unwrap() <= MOST, "{connections} connections");
}

/// More requests at once than a slow network lets through in time: what was not sent had no effect.
async fn a_request_that_waited_for_a_connection_is_not_in_doubt(kind: Kind) {
    const REQUESTS: usize = 60;
    let (url, proxy) = proxied(kind).await;
    let backend = backend(kind, &url, &Uuid::new_v4().to_string()).await;
    let many = async |keys: &str| -> Vec<Result<Attempt, BackendError>> {
        let tries = (0..REQUESTS).map(|n| {
            let (backend, key) = (&backend, format!("{keys} {n}"));
            let request = GrantRequest::new(Uuid::new_v4(), "a test", LONG);
            async move { backend.try_grant(&key, &request).await }
        });
        futures_util::future::join_all(tries).await
    };
    // These open the connections.
    assert!(many("first").await.iter().all(Result::is_ok));
    // Ten connections let 25 requests through in 5 s.
    proxy.set_delay(Duration::from_secs(1));
    let answers = many("second").await;
    proxy.set_delay(Duration::ZERO);
    let granted = answers.iter().filter(|it| matches!(it, Ok(Attempt::Granted(_)))).count();
    let unsent = answers.iter().filter_map(|it| it.as_ref().err());
    let unsent = unsent.filter(|error| error.kind() == FailureKind::Unavailable).count();
    println!("{kind:?}: {granted} were granted, {unsent} were not sent");
    assert!(granted > 0);
    assert_eq!(granted + unsent, REQUESTS, "{answers:?}");
}

/// The request after which the client is replaced may come from a runtime that ends a moment later.
async fn a_silence_that_a_short_runtime_met_harms_no_other_caller(kind: Kind) {
    let (url, proxy) = proxied(kind).await;
    let namespace = Uuid::new_v4().to_string();
    let backend: Arc<dyn LockBackend> = Arc::from(backend(kind, &url, &namespace).await);
    let request = || GrantRequest::new(Uuid::new_v4(), "a test", LONG);
    // It opens connections, too.
    let of_caller = backend.clone();
    let granted =
        on_its_own_runtime(async move { of_caller.try_grant("first", &request()).await }).await;
    assert!(matches!(granted, Ok(Attempt::Granted(_))), "{granted:?}");
    proxy.stall();
    let of_caller = backend.clone();
    let silent =
        on_its_own_runtime(async move { of_caller.try_grant("second", &request()).await }).await;
    assert!(silent.as_ref().is_err_and(BackendError::may_pass), "{silent:?}");
    proxy.resume();
    until("the server is reached again", async || {
        backend.try_grant("third", &request()).await.is_ok()
    })
    .await;
    for n in 0..10 {
        let granted = backend.try_grant(&format!("k {n}"), &request()).await;
        assert!(matches!(granted, Ok(Attempt::Granted(_))), "{granted:?}");
    }
}

async fn closing_does_not_wait_for_a_silent_server(kind: Kind) {
    let (url, proxy) = proxied(kind).await;
    let backend = backend(kind, &url, &Uuid::new_v4().to_string()).await;
    let request = || GrantRequest::new(Uuid::new_v4(), "a test", LONG);
    assert!(backend.try_grant("k", &request()).await.is_ok());
    proxy.stall();
    tokio::time::timeout(LONG, backend.close()).await.expect("the backend is closed");
    let error = backend.try_grant("k", &request()).await.unwrap_err();
    assert!(error.may_pass(), "{error}");
}
