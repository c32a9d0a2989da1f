//! A server that stands still, and answers when the lease would be over: nobody gets that lease.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ekbatan::lock::{
    Attempt, BackendError, Grant, GrantRequest, HandOver, Holder, KeyedLockProvider, LockBackend,
    LockError, LockKey, LockOptions, LockProvider, LockSource, ProcessBackend, Released,
};
use tokio::time::Instant;
use uuid::Uuid;

use crate::providers::LONG;

/// For how long a lease is asked for.
const HOLD: Duration = Duration::from_secs(3);

/// For how long the server stands still.
const STANDSTILL: Duration = Duration::from_secs(5);

/// What comes too late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Late {
    Grant,
    /// A grant of a server that frees no key by itself.
    SessionGrant,
    HandOver,
    /// A hand-over that the server tells of by itself.
    Message,
    Extension,
}

/// A server that stands still once.
struct StandsStill {
    keys: ProcessBackend,
    late: Late,
    stood_still: AtomicBool,
    /// Whether the first release after the standstill failed.
    release_failed: AtomicBool,
}

impl StandsStill {
    fn locks(late: Late) -> LockProvider {
        let keys = ProcessBackend::new();
        let [stood_still, release_failed] = [(); 2].map(|()| AtomicBool::new(false));
        LockProvider::new(Self { keys, late, stood_still, release_failed }, "test")
    }

    fn is_first(&self, late: Late) -> bool {
        self.late == late && !self.stood_still.swap(true, Ordering::SeqCst)
    }

    /// Grants the key after the standstill, for a term that began before it.
    async fn hand_over(&self, key: &str, request: &GrantRequest) -> Option<HandOver> {
        let until = Instant::now() + HOLD;
        tokio::time::sleep(STANDSTILL).await;
        match self.keys.try_grant(key, request).await {
            Ok(Attempt::Granted(grant)) => Some(HandOver { grant, until }),
            _ => None,
        }
    }
}

#[async_trait]
impl LockBackend for StandsStill {
    fn name(&self) -> &'static str {
        "stands still"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        if self.is_first(Late::Message) {
            return Ok(Attempt::Queued);
        }
        if self.is_first(Late::HandOver) {
            return Ok(Attempt::HandedOver(self.hand_over(key, request).await.unwrap()));
        }
        if self.is_first(Late::Grant) || self.is_first(Late::SessionGrant) {
            tokio::time::sleep(STANDSTILL).await;
        }
        if self.late == Late::SessionGrant {
            let endless = GrantRequest::new(request.owner, request.holder.clone(), LONG * 10);
            return self.keys.try_grant(key, &endless).await;
        }
        if self.late == Late::Extension {
            // The term begins late, too, so the extension finds the grant.
            let late = GrantRequest::new(request.owner, request.holder.clone(), LONG);
            return self.keys.try_grant(key, &late).await;
        }
        self.keys.try_grant(key, request).await
    }

    async fn handed_over(&self, key: &str, owner: Uuid) -> Option<HandOver> {
        // Listened to before the try.
        if self.late != Late::Message || self.stood_still.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.hand_over(key, &GrantRequest::new(owner, "a test", HOLD)).await
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        if self.is_first(Late::Extension) {
            tokio::time::sleep(STANDSTILL).await;
        }
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
        let stood_still = self.stood_still.load(Ordering::SeqCst);
        if stood_still && !self.release_failed.swap(true, Ordering::SeqCst) {
            if self.late == Late::SessionGrant {
                tokio::time::sleep(STANDSTILL).await;
            }
            return Err(BackendError::unavailable("it stood still a moment ago"));
        }
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

    fn frees_by_itself(&self) -> bool {
        self.late != Late::SessionGrant
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_over_is_released_and_asked_for_again() {
    for late in [Late::Grant, Late::HandOver, Late::Message] {
        let (locks, key, began) = (StandsStill::locks(late), LockKey::named("k"), Instant::now());
        let options = LockOptions::wait(LONG).hold(HOLD);
        let remaining =
            locks.with_lock(&key, options, async |lease| Ok::<_, ()>(lease.remaining()));
        let remaining = remaining.await.unwrap();
        assert!(remaining > HOLD / 2, "{late:?}: {remaining:?}");
        // Its key was not waited for.
        assert!(began.elapsed() < STANDSTILL + HOLD / 2, "{late:?}: {:?}", began.elapsed());
    }
}

/// The server keeps it beyond its term.
#[tokio::test(start_paused = true)]
async fn a_late_grant_of_a_session_is_released_also_after_its_term() {
    let (locks, key) = (StandsStill::locks(Late::SessionGrant), LockKey::named("k"));
    let lease = locks.try_acquire(&key, LONG, HOLD).await.unwrap();
    assert!(lease.is_some_and(|lease| lease.is_held()));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_does_not_wait_gets_an_error_and_no_grant_stays() {
    for late in [Late::Grant, Late::HandOver] {
        let (locks, key) = (StandsStill::locks(late), LockKey::named("k"));
        let tried = locks.try_acquire(&key, Duration::ZERO, HOLD).await;
        assert!(matches!(tried, Err(LockError::InDoubt { .. })), "{late:?}: {tried:?}");
        assert!(locks.try_acquire(&key, HOLD / 2, HOLD).await.unwrap().is_some(), "{late:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_extension_came_too_late_is_not_handed_on() {
    let (locks, key) = (StandsStill::locks(Late::Extension), LockKey::named("k"));
    let first = locks.acquire(&key, HOLD / 3).await.unwrap();
    let began = Instant::now();
    // The grant is too short for the next one. The server has the key as ours after the standstill.
    let (next, released) = tokio::join!(locks.acquire(&key, HOLD), first.release());
    assert!(released);
    let next = next.unwrap();
    assert!(next.remaining() > HOLD / 2, "{:?}", next.remaining());
    assert!(began.elapsed() < STANDSTILL + HOLD / 2, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_comes_too_late_says_how_the_lease_ended() {
    let whole = LockOptions::wait(LONG).hold(HOLD);
    let renewed = LockOptions::wait(LONG).hold(LONG).renewed(HOLD);
    for options in [whole, renewed] {
        let (locks, key) = (StandsStill::locks(Late::Extension), LockKey::named("k"));
        let lease = locks.take(&key, &options).await.unwrap().unwrap();
        let LockError::Lost { cause, .. } = lease.extend(LONG).await.unwrap_err() else { panic!() };
        assert_eq!(cause, lease.lost().await);
    }
}
