//! Callers of one process whose waits for a key end close to each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ekbatan::lock::{
    Attempt, BackendError, Grant, GrantRequest, Holder, KeyedLockProvider, LockBackend, LockError,
    LockKey, LockProvider, Released,
};
use futures_util::future::join_all;

use crate::providers::LONG;

/// How long the server takes to answer.
const ANSWER: Duration = Duration::from_millis(100);

/// How long the first caller waits.
const WAIT: Duration = Duration::from_millis(800);

/// A server at which another process has every key.
#[derive(Clone, Default)]
struct HeldElsewhere {
    is_silent: Arc<AtomicBool>,
    /// Whether it answers a request once, and then calls whose turn it is.
    queues: bool,
}

impl HeldElsewhere {
    async fn answer(&self) {
        if self.is_silent.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(ANSWER).await;
    }
}

#[async_trait]
impl LockBackend for HeldElsewhere {
    fn name(&self) -> &'static str {
        "held elsewhere"
    }

    async fn try_grant(&self, _: &str, _: &GrantRequest) -> Result<Attempt, BackendError> {
        self.answer().await;
        Ok(if self.queues { Attempt::Queued } else { Attempt::Busy(None) })
    }

    async fn extend(&self, _: &str, _: &Grant, _: Duration) -> Result<bool, BackendError> {
        self.answer().await;
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

    async fn release(&self, _: &str, _: &Grant) -> Result<Released, BackendError> {
        self.answer().await;
        Ok(Released { ours: false, wanted: false })
    }

    async fn inspect(&self, _: &str) -> Result<Option<Holder>, BackendError> {
        self.answer().await;
        Ok(None)
    }

    async fn force_release(&self, _: &str, _: &Grant, _: &str) -> Result<bool, BackendError> {
        self.answer().await;
        Ok(false)
    }
}

/// Some waits end between the request for a caller and its answer, or before there is a request for it.
#[tokio::test(start_paused = true)]
async fn contention_is_no_error_for_any_of_them() {
    let server = HeldElsewhere::default();
    let (locks, key) = (LockProvider::new(server.clone(), "test"), LockKey::named("k"));
    let callers = (0..40).map(async |n| {
        // One after the other.
        tokio::time::sleep(ANSWER / 100 * n).await;
        locks.try_acquire(&key, WAIT + ANSWER / 10 * n, LONG).await
    });
    for (n, answer) in join_all(callers).await.into_iter().enumerate() {
        assert!(matches!(answer, Ok(None)), "caller {n}: {answer:?}");
    }
}

/// The answer that the key is held may be older than the wait of who comes next.
#[tokio::test(start_paused = true)]
async fn contention_is_no_error_where_the_server_answers_once() {
    let server = HeldElsewhere { queues: true, ..HeldElsewhere::default() };
    let (locks, key) = (LockProvider::new(server, "test"), LockKey::named("k"));
    let callers = (0..40).map(async |n| {
        let (begins, ends) = (ANSWER / 2 * n, ANSWER * 30 + ANSWER / 10 * n);
        tokio::time::sleep(begins).await;
        locks.try_acquire(&key, ends - begins, LONG).await
    });
    for (n, answer) in join_all(callers).await.into_iter().enumerate() {
        assert!(matches!(answer, Ok(None)), "caller {n}: {answer:?}");
    }
}

/// A server that has been silent for a second is an error, although it answered an earlier caller.
#[tokio::test(start_paused = true)]
async fn a_server_that_answers_nothing_during_a_wait_is_an_error() {
    let server = HeldElsewhere::default();
    let (locks, key) = (LockProvider::new(server.clone(), "test"), LockKey::named("k"));
    let first = locks.try_acquire(&key, WAIT, LONG);
    let silent = async {
        tokio::time::sleep(WAIT - ANSWER / 2).await;
        server.is_silent.store(true, Ordering::SeqCst);
        tokio::time::sleep(ANSWER).await;
        join_all([WAIT * 2, WAIT * 3].map(|wait| locks.try_acquire(&key, wait, LONG))).await
    };
    let (first, silent) = tokio::join!(first, silent);
    assert!(matches!(first, Ok(None)), "{first:?}");
    for answer in silent {
        let is_unknown = |error: &LockError| {
            matches!(error, LockError::Unavailable { .. } | LockError::InDoubt { .. })
        };
        assert!(answer.as_ref().is_err_and(is_unknown), "{answer:?}");
    }
}
