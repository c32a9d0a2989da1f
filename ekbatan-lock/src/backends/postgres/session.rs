//! Leases as advisory locks of one PostgreSQL session.
//!
//! Invariants: a lock is only ever tried. A wait that is cut short could have the lock all the
//! same. The server does not know how long a lock has been held. It ends a session that sends
//! nothing for longer than its first lock lasts, and 5 s.
//!
//! Requests do not queue behind each other: their statements travel one after the other on the
//! session's connection.

mod hints;
mod live;
mod pooler;

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::address::PostgresAddress;
use super::error::PostgresLocksError;
use super::pool::PostgresLockPool;
use crate::backends::key_hints::KeyHints;
use crate::backends::session::{
    Forced, ReleaseRequest, Requests, SessionBackend, SessionGrants, SessionRequest, SessionServer,
    TakeRequest, TryOutcome,
};
use crate::backends::to_the_end::ToTheEnd;
use crate::{BackendError, Grant, GrantRequest, Holder, Released};
use live::PostgresSession;

/// Keeps the locks of this crate apart from other advisory locks in the same database.
const NAMESPACE: &str = "ekbatan-lock";

/// A digest has no way back to its key, and other programs may have advisory locks beside these.
const UNLISTED: &str = "session locks in PostgreSQL are numbers, from which the server does not know \
    the keys. Ask for each key by `inspect`; see the numbers by `SELECT pid, classid, objid FROM \
    pg_locks WHERE locktype = 'advisory' AND objsubid = 1`; or use leases \
    (`PostgresLocks::leases`, `strategy: lease`), which can be listed";

/// The number of a key's lock.
fn lock_of(key: &str) -> i64 {
    let digest = Sha256::new().chain_update(NAMESPACE).chain_update([0]).chain_update(key);
    let digest = digest.finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    i64::from_be_bytes(first)
}

/// The sessions of one database. A lock of another session cannot be ended by force without
/// ending everything that session holds, so the error tells the operator how to do that.
pub(super) struct PostgresSessions {
    server: PostgresAddress,
    hints: Arc<KeyHints>,
}

impl PostgresSessions {
    pub(super) async fn open(
        server: PostgresAddress,
        pool: &PostgresLockPool,
    ) -> Result<SessionBackend<Self>, PostgresLocksError> {
        pooler::refuse(&server, pool).await?;
        SessionBackend::open(Self { server, hints: Arc::default() }).await
    }

    fn spawn(&self, session: &Arc<PostgresSession>, request: SessionRequest, requests: &Requests) {
        let (session, hints) = (session.clone(), self.hints.clone());
        tokio::spawn(handle(session, hints, request, requests.clone()));
    }
}

impl SessionServer for PostgresSessions {
    const NAME: &'static str = "postgres session";
    const PING: Duration = Duration::from_secs(2);
    const POLL_INTERVAL: Duration = Duration::from_millis(100);
    const GIVE_WAY: Duration = Duration::from_millis(20);
    const SESSION_LIST: &'static str = "pg_stat_activity";

    type Lock = i64;
    type Session = Arc<PostgresSession>;
    type Shared = Arc<PostgresSession>;
    type Error = PostgresLocksError;

    fn lock_of(key: &str) -> i64 {
        lock_of(key)
    }

    async fn open(&self) -> Result<Arc<PostgresSession>, PostgresLocksError> {
        let session = Arc::new(PostgresSession::open(&self.server, self.hints.clone()).await?);
        let watched = session.clone();
        tokio::spawn(async move {
            let why = watched.watch().await;
            tracing::debug!(why, "a lock session has ended");
        });
        // Hints may have been missed while there was no session.
        self.hints.wake_all();
        Ok(session)
    }

    fn reopening(error: PostgresLocksError) -> BackendError {
        error.of_connection()
    }

    fn shared(session: &Arc<PostgresSession>) -> Arc<PostgresSession> {
        session.clone()
    }

    fn grants(shared: &Arc<PostgresSession>) -> &SessionGrants<i64> {
        &shared.grants
    }

    /// Saves the way through the actor, which would add nothing but wake-ups.
    fn handle_directly(
        &self,
        shared: &Arc<PostgresSession>,
        request: SessionRequest,
        requests: &Requests,
    ) -> Result<ToTheEnd, SessionRequest> {
        let (session, hints) = (shared.clone(), self.hints.clone());
        let runtime = session.runtime.clone();
        Ok(ToTheEnd::new(runtime, handle(session, hints, request, requests.clone())))
    }

    async fn take(
        &self,
        session: &mut Arc<PostgresSession>,
        takes: Vec<TakeRequest>,
        requests: &Requests,
    ) {
        for (key, request, reply) in takes {
            self.spawn(session, SessionRequest::Take { key, request, reply }, requests);
        }
    }

    async fn release(
        &self,
        session: &mut Arc<PostgresSession>,
        releases: Vec<ReleaseRequest>,
        requests: &Requests,
    ) {
        for (key, grant, reply) in releases {
            self.spawn(session, SessionRequest::Release { key, grant, reply }, requests);
        }
    }

    async fn handle(
        &self,
        session: &mut Arc<PostgresSession>,
        request: SessionRequest,
        requests: &Requests,
    ) {
        self.spawn(session, request, requests);
    }

    async fn ping(&self, session: &mut Arc<PostgresSession>) {
        if session.needs_pings() {
            let session = session.clone();
            tokio::spawn(async move { session.ping().await });
        }
    }

    async fn close(&self, session: Arc<PostgresSession>, why: &str) {
        session.end(why.to_owned());
    }

    async fn list(
        &self,
        _: &Arc<PostgresSession>,
        _: &[String],
        _: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        Err(BackendError::new(UNLISTED))
    }

    async fn freed(&self, key: &str) {
        self.hints.freed(key).await;
    }
}

/// Ends the session if a request is not finished, because its effect is unknown then.
struct EndIfUnfinished<'s>(Option<&'s PostgresSession>);

impl Drop for EndIfUnfinished<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.0 {
            session.end("a request was not finished".to_owned());
        }
    }
}

async fn handle(
    session: Arc<PostgresSession>,
    hints: Arc<KeyHints>,
    request: SessionRequest,
    requests: Requests,
) {
    let mut unfinished = EndIfUnfinished(Some(&session));
    match request {
        SessionRequest::Take { reply, .. } if reply.is_closed() => {}
        SessionRequest::Take { key, request, reply } => {
            let outcome = take(&session, &key, &request).await.map(|grant| match grant {
                Some(grant) => TryOutcome::granted(key, grant, requests),
                None => TryOutcome::busy(requests),
            });
            drop(reply.send(outcome));
        }
        SessionRequest::Release { key, grant, reply } => {
            let released = release(&session, &hints, &key, &grant).await;
            drop(reply.map(|reply| reply.send(released)));
        }
        SessionRequest::Inspect { key, reply } => drop(reply.send(inspect(&session, &key).await)),
        // Its hints are notifications.
        SessionRequest::Look { reply, .. } => drop(reply.send(Ok(Vec::new()))),
        SessionRequest::Force { key, seen, reply, .. } => {
            drop(reply.send(force(&session, &hints, &key, &seen).await.map(Forced::Free)));
        }
        SessionRequest::Close { reply } => drop(reply.send(())),
    }
    unfinished.0 = None;
}

async fn take(
    session: &PostgresSession,
    key: &str,
    request: &GrantRequest,
) -> Result<Option<Grant>, BackendError> {
    let lock = lock_of(key);
    if !session.grants.begin_take(lock, request) {
        let over = session.grants.is_over();
        return if over {
            Err(BackendError::unavailable("the session has ended"))
        } else {
            Ok(None)
        };
    }
    match session.take(key, lock, request.waits).await {
        Ok(Some(token)) => {
            let granted = session.grants.granted(lock, request, token);
            granted
                .map(Some)
                .ok_or_else(|| BackendError::unavailable("the session ended meanwhile"))
        }
        Ok(None) => {
            session.grants.remove(&lock);
            Ok(None)
        }
        Err(error) => {
            // The statement may have taken the lock before it failed, and then still has it.
            session.unlock_unknown(lock).await;
            session.grants.remove(&lock);
            Err(error)
        }
    }
}

async fn release(
    session: &PostgresSession,
    hints: &KeyHints,
    key: &str,
    grant: &Grant,
) -> Result<Released, BackendError> {
    let lock = lock_of(key);
    if !session.grants.begin_release(lock, grant) {
        return Ok(Released { ours: false, wanted: false });
    }
    let wanted = session.release(key, lock).await;
    session.grants.remove(&lock);
    hints.wake(key);
    Ok(Released { ours: true, wanted: wanted? })
}

async fn inspect(session: &PostgresSession, key: &str) -> Result<Option<Holder>, BackendError> {
    let lock = lock_of(key);
    let Some((pid, name, ours)) = session.holder(lock).await? else { return Ok(None) };
    let held = session.grants.held(&lock).filter(|_| ours);
    Ok(Some(match held {
        Some(held) => Holder::new(held.holder, held.grant.token)
            .owner(held.grant.owner)
            .held(Some(held.since.elapsed())),
        // The server knows nothing else of another session.
        None => Holder::new(format!("{name} (session {pid})"), 0),
    }))
}

async fn force(
    session: &PostgresSession,
    hints: &KeyHints,
    key: &str,
    seen: &Grant,
) -> Result<bool, BackendError> {
    let lock = lock_of(key);
    // A token of zero stands for a holder that `inspect` could not tell: another session.
    if seen.token != 0 {
        return Ok(release(session, hints, key, seen).await?.ours);
    }
    match session.holder(lock).await? {
        // Another holder has followed the one that was seen.
        None | Some((_, _, true)) => Ok(false),
        Some((pid, name, _)) => Err(BackendError::new(format!(
            "session {pid} ({name}) holds it, and a session's lock can only be given back by \
             that session: release it there, or end all that it holds by \
             `SELECT pg_terminate_backend({pid})`"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_own_lock_number() {
        assert_eq!(lock_of("DC#eu#wallet:17"), lock_of("DC#eu#wallet:17"));
        assert_ne!(lock_of("DC#eu#wallet:17"), lock_of("DC#eu#wallet:18"));
    }
}
