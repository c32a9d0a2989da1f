//! A server that goes down or falls silent while callers stand in the queue: they learn of it, and leave
//! no place behind.

use std::time::{Duration, Instant};

use ekbatan::lock::{
    Attempt, Grant, HBaseBackend, KeyedLockProvider, LockBackend, LockError, LockKey, LockProvider,
};
use ekbatan_testkit::HBaseServer;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{backend, request, taken};
use crate::providers::LONG;

/// How long the callers wait: longer than a place lasts, and than a request goes without an answer.
const WAIT: Duration = Duration::from_secs(45);

/// Callers of each process. The first one stands in the queue of the server for all of them.
const CALLERS: usize = 3;

/// How often a test may be repeated because the machine stood still.
const ROUNDS: usize = 10;

/// Longer than a test takes. As long, a process tries to leave the queue.
const HOUR: Duration = Duration::from_secs(3_600);

/// How many stand in the queue of a key, also if their places have ended; `None` if the server is not
/// ready.
async fn waiting(server: &HBaseServer, namespace: &str, key: &str) -> Option<usize> {
    let mut rows = server.rows("ekbatan_locks").await.ok()?;
    let cells = rows.get(&format!("{namespace}/{key}")).await.ok()?;
    let (_, state, _) = cells.into_iter().find(|(column, _, _)| column == "a")?;
    // `held TOKEN CHANGE MARK OWNER SINCE TERM WAITING HOLDER`, with commas within WAITING.
    let state = String::from_utf8(state).unwrap();
    let waiting = state.split(' ').nth(7).unwrap_or_default();
    Some(waiting.split(',').filter(|owner| !owner.is_empty()).count())
}

async fn until_waiting(server: &HBaseServer, namespace: &str, key: &str, count: usize) {
    let are_there = async || waiting(server, namespace, key).await == Some(count);
    support::until("the queue has the callers", are_there).await;
}

/// A key that is held, and callers that wait for it.
struct Queued {
    key: LockKey,
    stored: String,
    held: Grant,
    callers: JoinSet<Result<bool, LockError>>,
}

/// Has callers of each process wait for a key. More than half of their time is left.
async fn queued(
    server: &HBaseServer,
    namespace: &str,
    holder: &HBaseBackend,
    processes: &[LockProvider],
) -> Queued {
    for round in 0..ROUNDS {
        let key = LockKey::named(&format!("k {round}"));
        let stored = key.stored("test");
        let held = taken(holder, &stored, HOUR).await;
        let (mut callers, begun) = (JoinSet::new(), Instant::now());
        for (n, locks) in processes.iter().enumerate() {
            for _ in 0..CALLERS {
                let (locks, key) = (locks.clone(), key.clone());
                callers.spawn(async move {
                    locks.try_acquire(&key, WAIT, HOUR).await.map(|lease| lease.is_some())
                });
            }
            until_waiting(server, namespace, &stored, n + 1).await;
        }
        if begun.elapsed() < WAIT / 2 {
            return Queued { key, stored, held, callers };
        }
    }
    panic!("the machine stands still all the time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_in_the_queue_learn_that_the_server_is_away_and_leave_no_place() {
    let server = HBaseServer::start().await.unwrap();
    let connect = async || HBaseBackend::connect(&server.url(), "app").await.unwrap();
    let (holder, dying) = (connect().await, connect().await);
    let processes = [connect().await, connect().await].map(|it| LockProvider::new(it, "test"));
    let Queued { key, stored, held, mut callers } =
        queued(&server, "app", &holder, &processes).await;
    // A process that ends while the server is away cannot leave the queue.
    let of_dying = dying.try_grant(&stored, &request(LONG).waiting()).await.unwrap();
    assert_eq!(of_dying, Attempt::Queued);
    server.kill().await.unwrap();
    drop(dying);
    while let Some(answer) = callers.join_next().await {
        let answer = answer.unwrap();
        assert!(matches!(answer, Err(LockError::Unavailable { .. })), "{answer:?}");
    }
    server.restart().await.unwrap();
    // A caller that leaves the queue also removes the places that have ended.
    until_waiting(&server, "app", &stored, 0).await;
    // One that comes now is the next.
    let newcomer = LockProvider::new(connect().await, "test");
    let served = tokio::spawn({
        let key = key.clone();
        async move { newcomer.acquire(&key, LONG).await.unwrap().release().await }
    });
    until_waiting(&server, "app", &stored, 1).await;
    assert!(holder.release(&stored, &held).await.unwrap().ours);
    assert!(served.await.unwrap());
    // And those who were told of the outage get the key if they ask again.
    for locks in processes {
        assert!(locks.acquire(&key, LONG).await.unwrap().release().await);
    }
    server.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_in_the_queue_of_a_silent_server_are_not_told_that_the_key_is_busy() {
    let (server, namespace) = (HBaseServer::shared().await.unwrap(), Uuid::new_v4().to_string());
    let (proxy, url) = server.behind_proxy().await.unwrap();
    let behind = HBaseBackend::connect(&url, &namespace).await.unwrap();
    let (behind, holder) = ([LockProvider::new(behind, "test")], backend(&namespace).await);
    let Queued { key, stored, held, mut callers } =
        queued(server, &namespace, &holder, &behind).await;
    proxy.stall();
    while let Some(answer) = callers.join_next().await {
        let answer = answer.unwrap();
        // In doubt, if the last request may yet arrive.
        let is_unknown =
            matches!(answer, Err(LockError::Unavailable { .. } | LockError::InDoubt { .. }));
        assert!(is_unknown, "{answer:?}");
    }
    proxy.resume();
    until_waiting(server, &namespace, &stored, 0).await;
    assert!(holder.release(&stored, &held).await.unwrap().ours);
    let next = taken(&holder, &stored, LONG).await;
    assert!(holder.release(&stored, &next).await.unwrap().ours);
    assert!(behind[0].acquire(&key, LONG).await.unwrap().release().await);
}
