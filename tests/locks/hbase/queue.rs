//! Keys are passed on in the order in which processes came.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ekbatan::lock::{KeyedLockProvider, LockBackend, LockKey, LockProvider, lock_key};
use ekbatan_testkit::HBaseServer;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{backend, request};
use crate::providers::LONG;

/// Locks of one namespace, and what the rows say.
struct Space {
    namespace: String,
}

impl Space {
    fn new() -> Self {
        Self { namespace: Uuid::new_v4().to_string() }
    }

    async fn locks(&self) -> LockProvider {
        LockProvider::new(backend(&self.namespace).await, "test")
    }

    /// How many callers have a place in the row of a key.
    async fn places(&self, key: &LockKey) -> usize {
        let row = format!("{}/{}", self.namespace, key.stored("test"));
        let mut rows = HBaseServer::shared().await.unwrap().rows("ekbatan_locks").await.unwrap();
        let cells = rows.get(&row).await.unwrap();
        cells.iter().filter(|(column, _, _)| column.starts_with('w')).count()
    }

    async fn until_places(&self, key: &LockKey, count: usize) {
        support::until("the row has the places", async || self.places(key).await == count).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_get_a_key_in_the_order_in_which_they_came() {
    const PROCESSES: usize = 6;
    let space = Space::new();
    let (key, holder) = (LockKey::named("k"), space.locks().await);
    let held = holder.acquire(&key, LONG).await.unwrap();
    let served: Arc<Mutex<Vec<(usize, i64)>>> = Arc::default();
    let mut waiting = JoinSet::new();
    for process in 0..PROCESSES {
        let (locks, key, served) = (space.locks().await, key.clone(), served.clone());
        let of_task = key.clone();
        waiting.spawn(async move {
            let lease = locks.acquire(&of_task, LONG).await.unwrap();
            served.lock().unwrap().push((process, lease.token()));
            assert!(lease.release().await);
            locks
        });
        space.until_places(&key, process + 1).await;
    }
    assert!(held.release().await);
    waiting.join_all().await;
    let served = served.lock().unwrap().clone();
    let order: Vec<usize> = served.iter().map(|(process, _)| *process).collect();
    assert_eq!(order, (0..PROCESSES).collect::<Vec<_>>());
    assert!(served.is_sorted_by_key(|(_, token)| *token), "{served:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_died_or_gave_up_keeps_nobody_waiting() {
    for dies in [true, false] {
        let space = Space::new();
        let (key, holder) = (LockKey::named("k"), space.locks().await);
        let held = holder.acquire(&key, LONG).await.unwrap();
        // Both are connected before: a place lasts for 3 s.
        let (first, second) = (backend(&space.namespace).await, space.locks().await);
        let queued = first.try_grant(&key.stored("test"), &request(LONG).waiting()).await.unwrap();
        assert_eq!(queued, ekbatan::lock::Attempt::Queued);
        space.until_places(&key, 1).await;
        let served = tokio::spawn({
            let key = key.clone();
            async move { second.acquire(&key, LONG).await.unwrap().release().await }
        });
        space.until_places(&key, 2).await;
        if dies {
            // Its place ends without a sign of life.
            drop(first);
            space.until_places(&key, 1).await;
        }
        // Otherwise the key is passed on to it, and it does not confirm that.
        assert!(held.release().await);
        let begun = Instant::now();
        assert!(served.await.unwrap());
        println!("dies: {dies}, served after {:?}", begun.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_gives_up_leaves_the_queue() {
    let space = Space::new();
    let (key, holder, other) = (LockKey::named("k"), space.locks().await, space.locks().await);
    let held = holder.acquire(&key, LONG).await.unwrap();
    assert!(other.try_acquire(&key, Duration::ZERO, LONG).await.unwrap().is_none());
    assert_eq!(space.places(&key).await, 0, "it does not wait");
    let waited = other.try_acquire(&key, Duration::from_millis(200), LONG).await.unwrap();
    assert!(waited.is_none());
    assert!(held.release().await);
    let next = space.locks().await.try_acquire(&key, Duration::ZERO, LONG).await.unwrap();
    assert!(next.expect("nobody waits any more").release().await);
}

/// One key of a process that waits for ten is no lock any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_no_lock_keeps_nobody_from_the_other_keys() {
    let space = Space::new();
    let (holder, locks) = (space.locks().await, space.locks().await);
    let key = |n: i64| lock_key!("key", n);
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for n in 0..10 {
        held.push(holder.acquire(&key(n), LONG).await.unwrap());
        let locks = locks.clone();
        waiting.push(tokio::spawn(async move { locks.acquire(&key(n), LONG).await }));
        space.until_places(&key(n), 1).await;
    }
    let row = format!("{}/{}", space.namespace, key(4).stored("test"));
    let mut rows = HBaseServer::shared().await.unwrap().rows("ekbatan_locks").await.unwrap();
    rows.put(&row, "a", b"a cell of somebody else").await.unwrap();
    for (n, (lease, waiting)) in held.into_iter().zip(waiting).enumerate() {
        if n == 4 {
            let error = waiting.await.unwrap().unwrap_err();
            assert!(error.to_string().contains(&row), "{error}");
            // Its release fails as well.
            drop(lease);
        } else {
            assert!(lease.release().await);
            assert!(waiting.await.unwrap().unwrap().release().await);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_leases_and_waiters_share_one_connection() {
    const KEYS: i64 = 100;
    let server = HBaseServer::shared().await.unwrap();
    let (proxy, url) = server.behind_proxy().await.unwrap();
    let space = Space::new();
    let through = ekbatan::lock::HBaseBackend::connect(&url, &space.namespace).await.unwrap();
    let (holder, locks) = (space.locks().await, LockProvider::new(through, "test"));
    let key = |n: i64| lock_key!("key", n);
    let mut held = Vec::new();
    for n in 0..KEYS {
        held.push(holder.acquire(&key(n), LONG).await.unwrap());
    }
    let mut waiters = JoinSet::new();
    for n in 0..KEYS * 5 {
        let (locks, key) = (locks.clone(), key(n % KEYS));
        waiters.spawn(async move { locks.acquire(&key, LONG).await.unwrap().release().await });
    }
    for n in 0..KEYS {
        space.until_places(&key(n), 1).await;
    }
    assert_eq!(proxy.connections(), 1);
    drop(held);
    while let Some(released) = waiters.join_next().await {
        assert!(released.unwrap());
    }
    assert_eq!(proxy.connections(), 1);
}
