//! No key stays dead when the task that works for it ends: by a panic, or with its runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ekbatan::lock::{
    Attempt, BackendError, Grant, GrantRequest, Holder, KeyedLockProvider, Lease, LockBackend,
    LockError, LockKey, LockOptions, LockProvider, LossCause, PostgresLocks, ProcessBackend,
    Released, lock_key,
};
use ekbatan_testkit::PostgresServer;
use uuid::Uuid;

use crate::providers::{LONG, TestLocks};

on_every_provider! {
    the_longest_times_are_accepted,
    a_key_outlives_the_runtime_of_its_worker,
    a_lease_may_be_dropped_at_the_end_of_a_runtime,
}

async fn the_longest_times_are_accepted(t: &TestLocks) {
    let key = LockKey::named("k");
    for options in [
        LockOptions::wait(Duration::MAX).hold(Duration::MAX),
        LockOptions::wait(Duration::MAX).hold(Duration::MAX).renewed(Duration::MAX),
    ] {
        let lease = t.take(&key, options).await.unwrap();
        for _ in 0..3 {
            lease.extend(Duration::MAX).await.unwrap();
        }
        assert!(lease.is_held() && lease.remaining() > LONG);
        assert!(t.try_now(&key).await.is_none());
        assert!(lease.release().await);
    }
    let work = async |_| Ok::<_, ()>(());
    let ran =
        ekbatan::lock::LockSource::run_once(&t.locks, &key, Duration::ZERO, Duration::MAX, work);
    let _ = ran.await.unwrap();
    assert!(t.hold(&key).await.release().await);
    t.locks.close().await;
}

/// A provider asks for shorter terms.
async fn lasts_longer_than_clocks_count(backend: impl LockBackend) {
    let request = GrantRequest::new(Uuid::new_v4(), "a test", Duration::MAX);
    let Attempt::Granted(grant) = backend.try_grant("k", &request).await.unwrap() else {
        panic!("the key is free")
    };
    assert!(backend.extend("k", &grant, Duration::MAX).await.unwrap());
    assert!(backend.release("k", &grant).await.unwrap().ours);
    backend.close().await;
}

#[tokio::test]
async fn a_backend_that_ends_terms_by_its_own_clock_takes_the_longest_one() {
    lasts_longer_than_clocks_count(ProcessBackend::new()).await;
    let url = PostgresServer::shared().await.unwrap().create_database().await.unwrap();
    let database = PostgresLocks::connect(&url, 1).await.unwrap();
    lasts_longer_than_clocks_count(database.session().await.unwrap()).await;
}

/// Runs a future on a runtime of its own, which ends with it.
pub async fn on_its_own_runtime<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> T {
    let thread = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(work)
    });
    tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap()
}

async fn a_key_outlives_the_runtime_of_its_worker(t: &TestLocks) {
    let key = LockKey::named("k");
    let (locks, of_task) = (t.locks.clone(), key.clone());
    let left: Lease =
        on_its_own_runtime(async move { locks.acquire(&of_task, LONG).await.unwrap() }).await;
    assert_eq!(left.lost().await, LossCause::Abandoned);
    assert!(!left.is_held() && !left.release().await);
    let next = t.hold(&key).await;
    assert!(next.token() > left.token());
    assert!(next.release().await);

    // One that waits takes over as well. The worker of the first key may still live, in this runtime.
    let key = LockKey::named("another");
    let (locks, of_task) = (t.locks.clone(), key.clone());
    let (waits, waiting) = tokio::sync::oneshot::channel();
    let holding = tokio::spawn(on_its_own_runtime(async move {
        let lease = locks.acquire(&of_task, LONG).await.unwrap();
        waiting_for(&locks, &of_task).await;
        let _ = waits.send(());
        lease
    }));
    let (locks, of_task) = (t.locks.clone(), key.clone());
    let waiter = tokio::spawn(async move {
        // The worker has to be that of the other runtime.
        while locks.inspect(&of_task).await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        locks.acquire(&of_task, LONG).await.unwrap()
    });
    waiting.await.unwrap();
    let lease = waiter.await.unwrap();
    drop(holding.await.unwrap()); // that runtime has ended by now
    assert!(lease.is_held() && lease.release().await);
    t.locks.close().await;
}

async fn a_lease_may_be_dropped_at_the_end_of_a_runtime(t: &TestLocks) {
    for round in 0..10 {
        let key = lock_key!("k", round);
        let (locks, of_runtime) = (t.locks.clone(), key.clone());
        on_its_own_runtime(async move {
            drop(locks.acquire(&of_runtime, LONG * 10).await.unwrap());
        })
        .await;
        assert!(t.hold(&key).await.release().await, "round {round}");
    }
}

async fn waiting_for(locks: &LockProvider, key: &LockKey) {
    while locks.inspect(key).await.unwrap().is_none_or(|holder| holder.waiting_here == 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A call of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Try,
    Extend,
    Release,
    Lost,
}

/// Panics once in the given call, as soon as it is armed.
struct Panics {
    keys: ProcessBackend,
    call: Call,
    armed: Arc<AtomicBool>,
}

impl Panics {
    fn at(&self, call: Call) {
        assert!(call != self.call || !self.armed.swap(false, Ordering::SeqCst), "a test's panic");
    }
}

#[async_trait]
impl LockBackend for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let answer = self.keys.try_grant(key, request).await;
        self.at(Call::Try);
        answer
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        self.at(Call::Extend);
        self.keys.extend(key, grant, term).await
    }

    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        self.at(Call::Extend);
        self.keys.set_term(key, grant, term).await
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        self.at(Call::Release);
        self.keys.release(key, grant).await
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

    async fn lost(&self, _: &str, _: &Grant) -> String {
        self.at(Call::Lost);
        std::future::pending().await
    }

    fn frees_by_itself(&self) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_outlives_a_panic_of_its_backend() {
    let key = LockKey::named("k");
    for call in [Call::Try, Call::Lost, Call::Extend, Call::Release] {
        let armed = Arc::new(AtomicBool::new(true));
        let backend = Panics { keys: ProcessBackend::new(), call, armed: armed.clone() };
        let locks = LockProvider::new(backend, "test");
        let first = locks.acquire(&key, LONG).await;
        match call {
            Call::Try => {
                assert!(matches!(first, Err(LockError::InDoubt { .. })), "{first:?}");
            }
            Call::Lost => {
                let lease = first.unwrap();
                assert_eq!(lease.lost().await, LossCause::Abandoned);
                assert!(!lease.release().await);
            }
            Call::Extend => {
                let lease = first.unwrap();
                let (locks, of_task) = (locks.clone(), key.clone());
                let waiter = tokio::spawn(async move { locks.acquire(&of_task, LONG).await });
                lease.extend(LONG).await.unwrap_err();
                assert_eq!(lease.lost().await, LossCause::Abandoned);
                assert!(waiter.await.unwrap().unwrap().release().await);
            }
            Call::Release => assert!(!first.unwrap().release().await, "the outcome is unknown"),
        }
        assert!(!armed.load(Ordering::SeqCst), "{call:?}");
        let next = locks.try_acquire(&key, LONG, LONG).await.unwrap();
        assert!(next.expect("the key is free").release().await, "{call:?}");
        locks.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_although_a_worker_panics() {
    let armed = Arc::new(AtomicBool::new(true));
    let keys = ProcessBackend::new();
    let backend = Panics { keys, call: Call::Release, armed: armed.clone() };
    let locks = LockProvider::new(backend, "test");
    let lease = locks.acquire(&LockKey::named("k"), LONG).await.unwrap();
    lease.release().await;
    locks.close().await;
    assert!(!armed.load(Ordering::SeqCst));
}
