//! A server that goes down or falls silent while callers stand in the queue: they learn of it, and leave
//! no place behind.

use std::time::{Duration, Instant};

use ekbatan::lock::{
    Attempt, HBaseBackend, KeyedLockProvider, LockBackend, LockError, LockKey, LockProvider,
};
use ekbatan_testkit::HBaseServer;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{backend, request, taken};
use crate::providers::LONG;

/// How long the callers wait: longer than a place lasts, and than a request goes without an answer.
const WAIT: Duration = Duration::from_secs(45);

/// Callers of each process, of which the first one stands in the queue of the server.
const CALLERS: usize = 3;

/// The signs of life in the row of a key; `None` if the server is not ready.
async fn places(server: &HBaseServer, namespace: &str, key: &str) -> Option<usize> {
    let mut rows = server.rows("ekbatan_locks").await.ok()?;
    let cells = rows.get(&format!("{namespace}/{key}")).await.ok()?;
    Some(cells.iter().filter(|(column, _, _)| column.starts_with('w')).count())
}

async fn until_places(server: &HBaseServer, namespace: &str, key: &str, count: usize) {
    let are_there = async || places(server, namespace, key).await == Some(count);
    support::until("the row has the places", are_there).await;
}

/// Has callers of a process wait for a key.
fn wait(callers: &mut JoinSet<Result<bool, LockError>>, locks: &LockProvider, key: &LockKey) {
    for _ in 0..CALLERS {
        let (locks, key) = (locks.clone(), key.clone());
        callers.spawn(async move {
            locks.try_acquire(&key, WAIT, LONG).await.map(|lease| lease.is_some())
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_in_the_queue_learn_that_the_server_is_away_and_leave_no_place() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let server = HBaseServer::start().await.unwrap();
    let connect = async || HBaseBackend::connect(&server.url(), "app").await.unwrap();
    let (key, stored) = (LockKey::named("k"), LockKey::named("k").stored("test"));
    let (holder, dying) = (connect().await, connect().await);
    let processes = [connect().await, connect().await].map(|it| LockProvider::new(it, "test"));
    let held = taken(&holder, &stored, HOUR).await;
    let mut callers = JoinSet::new();
    let begun = Instant::now();
    for (n, locks) in processes.iter().enumerate() {
        wait(&mut callers, locks, &key);
        until_places(&server, "app", &stored, n + 1).await;
    }
    // A process that ends while the server is away cannot leave the queue.
    let of_dying = dying.try_grant(&stored, &request(LONG).waiting()).await.unwrap();
    assert_eq!(of_dying, Attempt::Queued);
    server.kill().await.unwrap();
    drop(dying);
    println!("the server was away after {:?} of {WAIT:?}", begun.elapsed());
    while let Some(answer) = callers.join_next().await {
        let answer = answer.unwrap();
        assert!(matches!(answer, Err(LockError::Unavailable { .. })), "{answer:?}");
    }
    server.restart().await.unwrap();
    until_places(&server, "app", &stored, 0).await;
    // One that comes now is the next.
    let newcomer = LockProvider::new(connect().await, "test");
    let served = tokio::spawn({
        let key = key.clone();
        async move { newcomer.acquire(&key, LONG).await.unwrap().release().await }
    });
    until_places(&server, "app", &stored, 1).await;
    assert!(holder.release(&stored, &held).await.unwrap().ours);
    assert!(served.await.unwrap());
    // And those who were told of the outage get the key if they ask again.
    for locks in processes {
        assert!(locks.acquire(&key, LONG).await.unwrap().release().await);
    }
    until_places(&server, "app", &stored, 0).await;
    server.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_in_the_queue_of_a_silent_server_are_not_told_that_the_key_is_busy() {
    let (server, namespace) = (HBaseServer::shared().await.unwrap(), Uuid::new_v4().to_string());
    let (proxy, url) = server.behind_proxy().await.unwrap();
    let behind = HBaseBackend::connect(&url, &namespace).await.unwrap();
    let behind = LockProvider::new(behind, "test");
    let (key, stored) = (LockKey::named("k"), LockKey::named("k").stored("test"));
    let holder = backend(&namespace).await;
    let held = taken(&holder, &stored, 10 * LONG).await;
    let mut callers = JoinSet::new();
    wait(&mut callers, &behind, &key);
    until_places(server, &namespace, &stored, 1).await;
    proxy.stall();
    while let Some(answer) = callers.join_next().await {
        let answer = answer.unwrap();
        // In doubt, if the last request may yet arrive.
        let is_unknown =
            matches!(answer, Err(LockError::Unavailable { .. } | LockError::InDoubt { .. }));
        assert!(is_unknown, "{answer:?}");
    }
    proxy.resume();
    until_places(server, &namespace, &stored, 0).await;
    assert!(holder.release(&stored, &held).await.unwrap().ours);
    let next = taken(&holder, &stored, LONG).await;
    assert!(holder.release(&stored, &next).await.unwrap().ours);
    assert!(behind.acquire(&key, LONG).await.unwrap().release().await);
}
