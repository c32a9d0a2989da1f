//! Leases as advisory locks of one session.
//!
//! What always holds: a lock is only ever tried for, never waited for, as a wait that is cut
//! short may have the lock all the same; the server's process ends, and with it every lock,
//! when this process does. How long a lease lasts is up to this process: the server bounds
//! nothing, and does not know how long a lock has been held.

mod actor;
mod grants;
mod live;
mod pooler;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, oneshot};

use super::address::Server;
use super::error::PostgresLocksError;
use super::hints::Hints;
use super::pool::LockPool;
use crate::{Attempt, BackendError, Grant, GrantRequest, Holder, LockBackend, Released};
use actor::{Common, Request};
use live::Session;

/// Keeps our locks apart from what others lock by number in the same database.
const NAMESPACE: &str = "ekbatan-lock";

/// The number of a key's lock.
fn lock_of(key: &str) -> i64 {
    let digest = Sha256::new().chain_update(NAMESPACE).chain_update([0]).chain_update(key);
    let digest = digest.finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    i64::from_be_bytes(first)
}

/// Grants keys as advisory locks of one session; see
/// [`PostgresLocks::session`](super::PostgresLocks::session).
///
/// When the session ends, every lease on it is lost and says so; a new one is opened for
/// whoever asks next. Somebody else's lock cannot be ended by force without ending all that
/// their session holds, so that is an error which says how to.
pub struct PostgresSessionBackend {
    common: Arc<Common>,
    requests: mpsc::UnboundedSender<Request>,
}

impl PostgresSessionBackend {
    pub(super) async fn open(server: Server, pool: &LockPool) -> Result<Self, PostgresLocksError> {
        pooler::refuse(&server, pool).await?;
        let hints = Arc::new(Hints::default());
        let session = Arc::new(Session::open(&server, hints.clone()).await?);
        actor::watch(session.clone());
        let common = Arc::new(Common { server, hints, session: Mutex::new(session) });
        let (requests, asked) = mpsc::unbounded_channel();
        tokio::spawn(actor::serve(common.clone(), requests.downgrade(), asked));
        Ok(Self { common, requests })
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, BackendError>>) -> Request,
    ) -> Result<T, BackendError> {
        let (answer, answered) = oneshot::channel();
        let gone = || BackendError::new("the lock session was closed");
        let (request, session) = (request(answer), self.common.session());
        if session.is_over() {
            self.requests.send(request).map_err(|_| gone())?;
        } else {
            // The actor would do no more, and be one more task to wake.
            let (hints, requests) = (self.common.hints.clone(), self.requests.clone());
            tokio::spawn(actor::carry_out(session, hints, request, requests));
        }
        answered.await.unwrap_or_else(|_| Err(gone()))
    }
}

#[async_trait]
impl LockBackend for PostgresSessionBackend {
    fn name(&self) -> &'static str {
        "postgres session"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let (key, request) = (key.to_owned(), request.clone());
        let taken = self.ask(|answer| Request::Take { key, request, answer }).await?;
        Ok(taken.claim())
    }

    /// The server lets a session's lock last, so nothing is asked of it: a session that does
    /// not answer is noticed by its signs of life.
    async fn extend(&self, key: &str, grant: &Grant, _: Duration) -> Result<bool, BackendError> {
        Ok(self.common.session().grants.stands(lock_of(key), grant))
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        let (key, grant) = (key.to_owned(), *grant);
        self.ask(|answer| Request::Release { key, grant, answer: Some(answer) }).await
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        let key = key.to_owned();
        self.ask(|answer| Request::Inspect { key, answer }).await
    }

    async fn force_release(&self, key: &str, _why: &str) -> Result<bool, BackendError> {
        let key = key.to_owned();
        self.ask(|answer| Request::Force { key, answer }).await
    }

    async fn freed(&self, key: &str) {
        self.common.hints.heard(key).await;
    }

    async fn lost(&self, key: &str, grant: &Grant) -> String {
        let session = self.common.session();
        if session.is_over() || session.grants.stands(lock_of(key), grant) {
            return session.ended().await;
        }
        "it ended as soon as it was granted".to_owned()
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn give_way(&self) -> Duration {
        Duration::from_millis(20)
    }

    async fn close(&self) {
        let (answer, closed) = oneshot::channel();
        if self.requests.send(Request::Close { answer }).is_ok() {
            let _ = closed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_have_the_numbers_that_they_always_had() {
        // Processes of different versions exclude each other.
        assert_eq!(lock_of("DC#eu#wallet:17"), lock_of("DC#eu#wallet:17"));
        assert_ne!(lock_of("DC#eu#wallet:17"), lock_of("DC#eu#wallet:18"));
    }
}
