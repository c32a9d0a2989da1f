//! A lock server that is not available for long.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use ekbatan::lock::{
    Attempt, BackendError, Grant, GrantRequest, HandOver, Holder, KeyedLockProvider, LockBackend,
    LockError, LockKey, LockOptions, LockProvider, LossCause, ProcessBackend, Released,
};
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::late_extensions::SharedServer;
use crate::providers::LONG;

struct Unavailable;

fn unavailable<T>() -> Result<T, BackendError> {
    Err(BackendError::unavailable("a test"))
}

#[async_trait]
impl LockBackend for Unavailable {
    fn name(&self) -> &'static str {
        "unavailable"
    }

    async fn try_grant(&self, _: &str, _: &GrantRequest) -> Result<Attempt, BackendError> {
        unavailable()
    }

    async fn extend(&self, _: &str, _: &Grant, _: Duration) -> Result<bool, BackendError> {
        unavailable()
    }

    async fn set_term(&self, _: &str, _: &Grant, _: Duration) -> Result<bool, BackendError> {
        unavailable()
    }

    async fn release(&self, _: &str, _: &Grant) -> Result<Released, BackendError> {
        unavailable()
    }

    async fn inspect(&self, _: &str) -> Result<Option<Holder>, BackendError> {
        unavailable()
    }

    async fn force_release(&self, _: &str, _: &Grant, _: &str) -> Result<bool, BackendError> {
        unavailable()
    }
}

#[tokio::test(start_paused = true)]
async fn all_that_wait_for_a_key_learn_after_90_seconds_that_the_server_is_away() {
    let locks = LockProvider::new(Unavailable, "test");
    let (key, began) = (LockKey::named("k"), Instant::now());
    for answer in join_all((0..3).map(|_| locks.acquire(&key, LONG))).await {
        assert!(matches!(answer, Err(LockError::Unavailable { .. })), "{answer:?}");
    }
    let waited = began.elapsed();
    let patience = Duration::from_secs(90)..Duration::from_secs(95);
    assert!(patience.contains(&waited), "{waited:?}");
    // A caller that comes later waits as long, because the server may be back.
    let (locks, began) = (LockProvider::new(Unavailable, "test"), Instant::now());
    let first = locks.acquire(&key, LONG);
    let later = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        locks.acquire(&key, LONG).await
    };
    let (first, later) = tokio::join!(first, later);
    assert!(first.is_err() && later.is_err());
    assert!(began.elapsed() >= Duration::from_secs(60 + 90), "{:?}", began.elapsed());
}

/// A server that queues every request, and cannot be reached when it is first left.
#[derive(Clone, Default)]
struct QueueThatIsLeft {
    queued: Arc<Mutex<Vec<Uuid>>>,
    left: Arc<Mutex<Vec<Grant>>>,
    /// Whether it has those in the queue ask again, and is away then.
    goes_away: bool,
}

#[async_trait]
impl LockBackend for QueueThatIsLeft {
    fn name(&self) -> &'static str {
        "queue"
    }

    async fn try_grant(&self, _: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let mut queued = self.queued.lock().unwrap();
        if self.goes_away && !queued.is_empty() {
            return unavailable();
        }
        queued.push(request.owner);
        Ok(Attempt::Queued)
    }

    async fn handed_over(&self, _: &str, _: Uuid) -> Option<HandOver> {
        if !self.goes_away {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        None
    }

    async fn extend(&self, _: &str, _: &Grant, _: Duration) -> Result<bool, BackendError> {
        unavailable()
    }

    async fn set_term(&self, _: &str, _: &Grant, _: Duration) -> Result<bool, BackendError> {
        unavailable()
    }

    async fn release(&self, _: &str, grant: &Grant) -> Result<Released, BackendError> {
        let mut left = self.left.lock().unwrap();
        left.push(*grant);
        if left.len() == 1 { unavailable() } else { Ok(Released { ours: true, wanted: false }) }
    }

    async fn inspect(&self, _: &str) -> Result<Option<Holder>, BackendError> {
        Ok(None)
    }

    async fn force_release(&self, _: &str, _: &Grant, _: &str) -> Result<bool, BackendError> {
        unavailable()
    }

    fn frees_by_itself(&self) -> bool {
        true
    }
}

/// The backend may have taken the key for the whole hold when the waiter was dropped.
#[tokio::test(start_paused = true)]
async fn a_queue_that_could_not_be_left_is_left_again() {
    let server = QueueThatIsLeft::default();
    let locks = LockProvider::new(server.clone(), "test");
    let waiting = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.acquire(&LockKey::named("k"), LONG).await })
    };
    // A paused clock goes on when all tasks wait.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let queued = server.queued.lock().unwrap().clone();
    let [owner] = queued[..] else { panic!("{queued:?} were queued") };
    waiting.abort();
    tokio::time::sleep(LONG / 2).await;
    let left = server.left.lock().unwrap().clone();
    assert_eq!(left, [Grant { owner, token: 0 }; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_learns_in_the_queue_that_the_server_is_away_leaves_it() {
    let server = QueueThatIsLeft { goes_away: true, ..Default::default() };
    let locks = LockProvider::new(server.clone(), "test");
    let answer = locks.acquire(&LockKey::named("k"), LONG).await;
    assert!(matches!(answer, Err(LockError::Unavailable { .. })), "{answer:?}");
    tokio::time::sleep(LONG / 2).await;
    let queued = server.queued.lock().unwrap().clone();
    let [owner] = queued[..] else { panic!("{queued:?} were queued") };
    let left = server.left.lock().unwrap().clone();
    assert_eq!(left, [Grant { owner, token: 0 }; 2]);
}

/// A server whose session ends while it is asked to extend a lease, and whose key is free after it.
struct EndsAtAnExtension {
    keys: ProcessBackend,
    ended: watch::Sender<bool>,
    /// Whether the holder can learn that the session has ended.
    tells: bool,
}

#[async_trait]
impl LockBackend for EndsAtAnExtension {
    fn name(&self) -> &'static str {
        "ends"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        self.keys.try_grant(key, request).await
    }

    async fn extend(&self, _: &str, _: &Grant, _: Duration) -> Result<bool, BackendError> {
        self.ended.send_replace(self.tells);
        Ok(false)
    }

    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        self.extend(key, grant, term).await
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
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
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
        "the server died".to_owned()
    }
}

/// If a renewal or an extension finds that the lease has ended, the lease says why.
#[tokio::test(start_paused = true)]
async fn a_lease_whose_session_ends_while_it_is_extended_was_not_taken() {
    for (tells, expected) in
        [(true, LossCause::SessionGone("the server died".to_owned())), (false, LossCause::Taken)]
    {
        let (keys, ended) = (ProcessBackend::new(), watch::Sender::new(false));
        let locks = LockProvider::new(EndsAtAnExtension { keys, ended, tells }, "test");
        let renewed = LockOptions::wait(LONG).hold(LONG * 10).renewed(LONG);
        let lease = locks.take(&LockKey::named("renewed"), &renewed).await.unwrap().unwrap();
        assert_eq!(lease.lost().await, expected);

        let (keys, ended) = (ProcessBackend::new(), watch::Sender::new(false));
        let locks = LockProvider::new(EndsAtAnExtension { keys, ended, tells }, "test");
        let lease = locks.acquire(&LockKey::named("extended"), LONG).await.unwrap();
        let lost = lease.extend(LONG).await.unwrap_err();
        assert!(matches!(&lost, LockError::Lost { cause, .. } if *cause == expected), "{lost:?}");
        assert_eq!(lease.lost().await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_by_force_does_not_wait_as_long_as_the_server_is_away() {
    let hour = Duration::from_secs(3_600);
    let away_until = Some(Instant::now() + hour);
    let server = SharedServer { away_until, ..SharedServer::default() };
    let (locks, key) = (LockProvider::new(server, "test"), LockKey::named("k"));
    let lease = locks.acquire(&key, hour).await.unwrap();
    let force = || tokio::time::timeout(hour / 4, locks.force_release(&key, "a test"));
    assert!(force().await.expect("it returns").unwrap());
    assert!(!lease.is_held());
    // The server still names the lease, and its worker tries to give the key back.
    let again = force().await.expect("it returns");
    assert!(matches!(again, Err(LockError::Unavailable { .. })), "{again:?}");
}
