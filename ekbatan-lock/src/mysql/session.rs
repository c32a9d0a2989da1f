//! Leases as named locks of one session (`GET_LOCK`).
//!
//! What always holds: a lock is only ever tried for, never waited for; the session ends, and
//! with it every lock, when this process does; a lock whose token was not counted is not
//! granted. How long a lease lasts is up to this process: the server bounds nothing.

mod actor;
mod grants;
mod live;
mod names;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use super::error::MySqlLocksError;
use super::lease::GIVE_WAY;
use super::link::{ANSWER, Opener};
use crate::{Attempt, BackendError, Grant, GrantRequest, Holder, LockBackend, Released};
use actor::{Actor, Common, Forced, Request};
use live::Session;
use names::Names;

/// How often it is looked whether a session that was to end has ended.
const LOOK: Duration = Duration::from_millis(10);

/// Grants keys as named locks of one session; see
/// [`MySqlLocks::session`](super::MySqlLocks::session).
///
/// When the session ends, every lease on it is lost and says so; a new one is opened for
/// whoever asks next. Ending somebody else's lock by force ends their session, and with it all
/// that it holds.
pub struct MySqlSessionBackend {
    common: Arc<Common>,
    requests: mpsc::UnboundedSender<Request>,
}

impl MySqlSessionBackend {
    pub(super) async fn open(opener: Arc<Opener>, eventlog: &str) -> Result<Self, MySqlLocksError> {
        let names = Names::new(eventlog);
        let session = Session::open(&opener, names.clone()).await?;
        let common = Arc::new(Common { opener, names, grants: Mutex::new(session.grants()) });
        let (requests, asked) = mpsc::unbounded_channel();
        tokio::spawn(Actor::new(common.clone(), session, requests.downgrade(), asked).serve());
        Ok(Self { common, requests })
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, BackendError>>) -> Request,
    ) -> Result<T, BackendError> {
        let (answer, answered) = oneshot::channel();
        let gone = || BackendError::new("the lock session was closed");
        self.requests.send(request(answer)).map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }
}

#[async_trait]
impl LockBackend for MySqlSessionBackend {
    fn name(&self) -> &'static str {
        "mysql session"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let (key, request) = (key.to_owned(), request.clone());
        let taken = self.ask(|answer| Request::Take { key, request, answer }).await?;
        Ok(taken.claim())
    }

    /// The server lets a session's lock last, so nothing is asked of it: a session that does
    /// not answer is noticed by its signs of life.
    async fn extend(&self, key: &str, grant: &Grant, _: Duration) -> Result<bool, BackendError> {
        Ok(self.common.grants().stands(key, grant))
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
        let begun = Instant::now();
        let mut ending = None;
        loop {
            let key = key.to_owned();
            match self.ask(|answer| Request::Force { key, ending, answer }).await? {
                Forced::Free(ended) => return Ok(ended),
                Forced::Ending(session) if begun.elapsed() > ANSWER => {
                    return Err(BackendError::new(format!(
                        "session {session}, which holds it, was told to end and has not ended \
                         within {ANSWER:?}; see SHOW PROCESSLIST for what it does"
                    )));
                }
                Forced::Ending(session) => ending = Some(session),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn lost(&self, key: &str, grant: &Grant) -> String {
        let grants = self.common.grants();
        if grants.is_over() || grants.stands(key, grant) {
            return grants.ended().await;
        }
        "it ended as soon as it was granted".to_owned()
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(20)
    }

    fn give_way(&self) -> Duration {
        GIVE_WAY
    }

    async fn close(&self) {
        let (answer, closed) = oneshot::channel();
        if self.requests.send(Request::Close { answer }).is_ok() {
            let _ = closed.await;
        }
    }
}
