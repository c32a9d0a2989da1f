//! Processes get their turns: one that hears no messages of the server, and one that has held the
//! key for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ekbatan::lock::{
    Attempt, BackendError, Grant, GrantRequest, Holder, KeyedLockProvider, LockBackend, LockKey,
    LockProvider, ProcessBackend, Released,
};
use ekbatan_testkit::PostgresServer;
use support::until;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::hand_over::is_confirmed_too_late;
use crate::pooler::{Greeting, balanced};
use crate::providers::{Kind, LONG, on_postgres};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_a_process_gets_its_turn_with_leases_on_postgres() {
    let server = PostgresServer::shared().await.unwrap();
    let url = server.create_database().await.unwrap();
    let pooled = balanced(&url, 1, Greeting::OfThePooler).await;
    let behind = on_postgres(Kind::PostgresLease, &pooled).await;
    let key = LockKey::named("k");
    let (stopped, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let direct: LockProvider = on_postgres(Kind::PostgresLease, &url).await;
        for _ in 0..2 {
            let (direct, key) = (direct.clone(), key.clone());
            let (stopped, turns) = (stopped.clone(), turns.clone());
            tasks.spawn(async move {
                while !stopped.load(Ordering::Relaxed) {
                    let lease = direct.acquire(&key, LONG).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    // Before the next one can have the key.
                    if lease.is_held() {
                        turns.fetch_add(1, Ordering::Relaxed);
                    }
                    assert!(lease.release().await || is_confirmed_too_late(&lease));
                }
            });
        }
    }
    until("the others take turns", async || turns.load(Ordering::Relaxed) > 20).await;
    let (mut held, mut too_late) = (0, 0);
    while held < 3 {
        let before = turns.load(Ordering::Relaxed);
        let lease = behind.try_acquire(&key, LONG, LONG).await.unwrap();
        let lease = lease.expect("it gets its turn");
        // It has the key for good, and not only until it would have to confirm its grant.
        let during = turns.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(3)).await;
        if is_confirmed_too_late(&lease) && too_late < 5 {
            too_late += 1;
            continue;
        }
        lease.check().unwrap();
        assert_eq!(turns.load(Ordering::Relaxed), during, "the key has one holder");
        assert!(lease.release().await);
        println!("after {} turns of others", during - before);
        held += 1;
    }
    stopped.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// A server that tells every waiter of a release, and each holder that others wait.
#[derive(Clone, Default)]
struct HintingServer {
    keys: Arc<ProcessBackend>,
    freed: Arc<Notify>,
}

#[async_trait]
impl LockBackend for HintingServer {
    fn name(&self) -> &'static str {
        "hinting"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        self.keys.try_grant(key, request).await
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        self.keys.extend(key, grant, term).await
    }

    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        self.keys.set_term(key, grant, term).await
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        let released = self.keys.release(key, grant).await?;
        self.freed.notify_waiters();
        Ok(Released { wanted: true, ..released })
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        self.keys.inspect(key).await
    }

    async fn force_release(
        &self,
        key: &str,
        seen: &Grant,
        why: &str,
    ) -> Result<bool, BackendError> {
        self.keys.force_release(key, seen, why).await
    }

    async fn freed(&self, _: &str) {
        self.freed.notified().await;
    }

    /// Longer than the test takes.
    fn poll_interval(&self) -> Duration {
        LONG * 1_000
    }

    fn give_way(&self) -> Duration {
        Duration::from_millis(40)
    }

    fn frees_by_itself(&self) -> bool {
        true
    }
}

/// A process that has held the key for hours and gives way takes it again as soon as it is free.
#[tokio::test(start_paused = true)]
async fn a_process_does_not_sleep_for_a_part_of_its_long_hold() {
    const HOURS: Duration = Duration::from_secs(10_000);
    let server = HintingServer::default();
    let [one, other] = [(); 2].map(|()| LockProvider::new(server.clone(), "test"));
    let key = LockKey::named("k");
    let held = one.acquire(&key, HOURS * 2).await.unwrap();
    let waits = |locks: &LockProvider| {
        let (locks, key) = (locks.clone(), key.clone());
        tokio::spawn(async move { locks.acquire(&key, HOURS).await.unwrap() })
    };
    let (next_here, of_another) = (waits(&one), waits(&other));
    tokio::time::sleep(HOURS).await;
    assert!(held.release().await);
    let of_another = of_another.await.unwrap();
    // By now the process has found the key taken, and waits for a hint.
    tokio::time::sleep(LONG).await;
    assert!(!next_here.is_finished());
    assert!(of_another.release().await);
    let free = Instant::now();
    let next = next_here.await.unwrap();
    assert!(free.elapsed() < Duration::from_millis(50), "after {:?}", free.elapsed());
    assert!(next.release().await);
}
