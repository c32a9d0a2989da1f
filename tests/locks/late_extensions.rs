//! Extensions that the server carries out although their answers come too late: nobody holds the
//! key afterwards, so it must not stay taken for the time that was asked for.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ekbatan::lock::{
    Attempt, BackendError, Grant, GrantRequest, HandOver, Holder, KeyedLockProvider, LockBackend,
    LockError, LockKey, LockProvider, LossCause, ProcessBackend, Released,
};
use tokio::time::{Instant, sleep};

use crate::providers::LONG;

const HOUR: Duration = Duration::from_secs(3_600);

/// For how long a key is handed over.
const CONFIRM: Duration = Duration::from_millis(200);

/// A server that several providers have in common.
#[derive(Clone, Default)]
pub struct SharedServer {
    pub keys: Arc<ProcessBackend>,
    /// Whether keys are handed over, for a short time.
    pub hands_over: bool,
    /// How late extensions are answered.
    pub late: Duration,
    /// Until then, releases do not reach the server.
    pub away_until: Option<Instant>,
}

#[async_trait]
impl LockBackend for SharedServer {
    fn name(&self) -> &'static str {
        "shared"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        if !self.hands_over {
            return self.keys.try_grant(key, request).await;
        }
        let until = Instant::now() + CONFIRM;
        let short = GrantRequest::new(request.owner, &request.holder, CONFIRM);
        Ok(match self.keys.try_grant(key, &short).await? {
            Attempt::Granted(grant) => Attempt::HandedOver(HandOver { grant, until }),
            busy => busy,
        })
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        let extended = self.keys.extend(key, grant, term).await;
        sleep(self.late).await;
        extended
    }

    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        let set = self.keys.set_term(key, grant, term).await;
        sleep(self.late).await;
        set
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        if self.away_until.is_some_and(|until| Instant::now() < until) {
            return Err(BackendError::unavailable("a test"));
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
        true
    }
}

/// Later than the lease lasts.
const LATE: Duration = Duration::from_secs(10);

async fn another_process_gets_it(server: &SharedServer, key: &LockKey) {
    let other =
        LockProvider::new(SharedServer { keys: server.keys.clone(), ..Default::default() }, "test");
    let next = other.try_acquire(key, LONG, LONG).await.unwrap();
    assert!(next.expect("nobody holds the key").release().await);
}

/// At once, and if the server cannot be reached at first.
fn servers() -> [SharedServer; 2] {
    [None, Some(Instant::now() + LONG / 2)].map(|away_until| SharedServer {
        late: LATE,
        away_until,
        ..Default::default()
    })
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_handed_over_and_confirmed_too_late_is_given_back() {
    let key = LockKey::named("k");
    for server in servers() {
        let server = SharedServer { hands_over: true, ..server };
        let locks = LockProvider::new(server.clone(), "test");
        let lease = locks.acquire(&key, HOUR).await.unwrap();
        let cause = lease.lost().await;
        assert!(matches!(cause, LossCause::NotRenewed(_)), "{cause:?}");
        another_process_gets_it(&server, &key).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_extended_too_late_is_given_back() {
    let key = LockKey::named("k");
    for server in servers() {
        let locks = LockProvider::new(server.clone(), "test");
        let lease = locks.acquire(&key, LATE / 2).await.unwrap();
        let lost = lease.extend(HOUR).await.unwrap_err();
        assert!(matches!(lost, LockError::Lost { .. }), "{lost}");
        another_process_gets_it(&server, &key).await;
    }
}

/// A caller without a limit gives up after 90 s without a server, and not when the lease would end.
#[tokio::test(start_paused = true)]
async fn callers_are_told_in_time_while_a_late_extension_is_in_doubt() {
    let key = LockKey::named("k");
    let away_until = Some(Instant::now() + HOUR);
    let server = SharedServer { hands_over: true, late: LATE, away_until, ..Default::default() };
    let locks = LockProvider::new(server, "test");
    let lease = locks.acquire(&key, HOUR).await.unwrap();
    lease.lost().await;
    let began = Instant::now();
    let refused = locks.acquire(&key, LONG).await.unwrap_err();
    assert!(matches!(refused, LockError::Unavailable { .. }), "{refused}");
    assert!(began.elapsed() < LONG * 2, "after {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_nobody_waits_for_any_more_is_not_begun() {
    let late = Duration::from_secs(10);
    let locks = LockProvider::new(SharedServer { late, ..SharedServer::default() }, "test");
    let lease = locks.acquire(&LockKey::named("k"), HOUR).await.unwrap();
    let minute = Duration::from_secs(60);
    for _ in 0..3 {
        let extending = tokio::time::timeout(late / 10, lease.extend(minute));
        assert!(extending.await.is_err(), "the answer is late");
    }
    // The worker comes to it after those before it.
    lease.extend(minute).await.unwrap();
    let remaining = lease.remaining();
    assert!(remaining <= HOUR + minute * 2, "only the first one was sent: {remaining:?}");
}
