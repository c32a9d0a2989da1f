//! Leases as named locks of one MySQL session (`GET_LOCK`).
//!
//! Invariants: a lock is only ever tried. A lock without a token is not granted. All requests
//! that have gathered share one round trip.

mod live;
mod statements;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use super::cleaning::RowCleaner;
use super::connection::{MySqlConnector, value};
use super::error::MySqlLocksError;
use super::lease::{GIVE_WAY, POLLS, WITHOUT_HINT};
use crate::backends::key_poller::{KeyPoller, KeyState, KeyStates};
use crate::backends::session::{
    Forced, ReleaseRequest, Requests, SessionBackend, SessionGrants, SessionRequest, SessionServer,
    TakeRequest, TryOutcome, reply_of,
};
use crate::{BackendError, Grant, Holder, Released};
use live::MySqlSession;
use statements::SessionStatements;

/// The sessions of one server. A release by force of another session's lock ends that session,
/// and with it everything that it holds.
pub(super) struct MySqlSessions {
    connector: Arc<MySqlConnector>,
    statements: SessionStatements,
    poller: KeyPoller,
    /// Sends requests of the poller to the actor.
    requests: ToActor,
    cleaner: RowCleaner,
}

/// Weak, because the actor ends when no caller is left.
type ToActor = Arc<Mutex<Option<mpsc::WeakUnboundedSender<SessionRequest>>>>;

/// Asks the session for the states of keys.
struct SessionStates {
    requests: ToActor,
}

#[async_trait]
impl KeyStates for SessionStates {
    async fn look(&self, keys: &[String]) -> Result<Vec<KeyState>, BackendError> {
        let (reply, replied) = oneshot::channel();
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let requests = requests.and_then(|requests| requests.upgrade());
        let requests =
            requests.ok_or_else(|| BackendError::unavailable("the locks were dropped"))?;
        // If the actor has ended, there is no reply.
        let _ = requests.send(SessionRequest::Look { keys: keys.to_vec(), reply });
        reply_of(replied, &requests).await
    }
}

impl MySqlSessions {
    pub(super) async fn open(
        connector: Arc<MySqlConnector>,
        eventlog: &str,
    ) -> Result<SessionBackend<Self>, MySqlLocksError> {
        let statements = SessionStatements::new(eventlog);
        let cleaner = statements.cleaner();
        let requests = ToActor::default();
        let poller = KeyPoller::new(SessionStates { requests: requests.clone() }, POLLS);
        SessionBackend::open(Self { connector, statements, poller, requests, cleaner }).await
    }
}

impl SessionServer for MySqlSessions {
    const NAME: &'static str = "mysql session";
    /// The protocol does not report that a session has ended, so it is pinged often.
    const PING: Duration = Duration::from_secs(1);
    const POLL_INTERVAL: Duration = WITHOUT_HINT;
    const GIVE_WAY: Duration = GIVE_WAY;
    const SESSION_LIST: &'static str = "SHOW PROCESSLIST";

    type Lock = String;
    type Session = MySqlSession;
    type Shared = Arc<SessionGrants<String>>;
    type Error = MySqlLocksError;

    fn lock_of(key: &str) -> String {
        key.to_owned()
    }

    async fn open(&self) -> Result<MySqlSession, MySqlLocksError> {
        MySqlSession::open(&self.connector, self.statements.clone()).await
    }

    fn reopening(error: MySqlLocksError) -> BackendError {
        error.of_connection()
    }

    fn started(&self, requests: &Requests) {
        let mut current = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Some(requests.downgrade());
    }

    /// Over a connection of its own: the session of the locks does not wait for it.
    async fn list(
        &self,
        grants: &Arc<SessionGrants<String>>,
        prefixes: &[String],
        most: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        let opened = self.connector.open(None).await;
        let mut connection = opened.map_err(|error| error.of_connection().not_sent())?;
        let sets = connection.run("listing locks", &self.statements.list(prefixes, most)).await?;
        connection.close().await;
        let rows = sets.iter().flat_map(|set| &set.rows);
        let held = rows.map(|row| {
            let key: String = value(row, 5)?;
            // Counted again while the row is read: the lock may be free by now.
            let Some(session) = value::<Option<i64>>(row, 0)? else { return Ok(None) };
            let mut holder = live::holder(session, Some((row, value(row, 4)?)))?;
            holder.owner = grants.held(&key).map(|held| held.grant.owner);
            Ok(Some((key, holder)))
        });
        held.filter_map(Result::transpose).collect()
    }

    async fn freed(&self, key: &str) {
        self.poller.freed(key).await;
    }

    fn shared(session: &MySqlSession) -> Arc<SessionGrants<String>> {
        session.grants()
    }

    fn grants(shared: &Arc<SessionGrants<String>>) -> &SessionGrants<String> {
        shared
    }

    async fn take(&self, session: &mut MySqlSession, takes: Vec<TakeRequest>, requests: &Requests) {
        let grants = session.grants();
        let mut holders = BTreeMap::new();
        let mut asked = Vec::new();
        for (key, request, reply) in takes {
            if grants.begin_take(key.clone(), &request) {
                holders.insert(key.clone(), request.holder.clone());
                asked.push((key, request, reply));
            } else if grants.is_over() {
                let _ = reply.send(Err(BackendError::unavailable("the session has ended")));
            } else {
                self.poller.busy(&key);
                let _ = reply.send(Ok(TryOutcome::busy(requests.clone())));
            }
        }
        if asked.is_empty() {
            return;
        }
        let mut tokens = session.take(&holders).await;
        for (key, request, reply) in asked {
            let outcome = match tokens.remove(&key) {
                Some(Ok(Some(token))) => match grants.granted(key.clone(), &request, token) {
                    Some(grant) => Ok(TryOutcome::granted(key, grant, requests.clone())),
                    None => Err(BackendError::unavailable("the session ended meanwhile")),
                },
                Some(Ok(None)) => {
                    grants.remove(&key);
                    if request.waits {
                        session.want(&key);
                    }
                    self.poller.busy(&key);
                    Ok(TryOutcome::busy(requests.clone()))
                }
                Some(Err(error)) => {
                    grants.remove(&key);
                    Err(error)
                }
                None => {
                    grants.remove(&key);
                    Err(BackendError::in_doubt("taking a lock: no answer"))
                }
            };
            let _ = reply.send(outcome);
        }
    }

    async fn release(
        &self,
        session: &mut MySqlSession,
        releases: Vec<ReleaseRequest>,
        _: &Requests,
    ) {
        let grants = session.grants();
        let (mut keys, mut replies) = (Vec::new(), Vec::new());
        for (key, grant, reply) in releases {
            if grants.begin_release(key.clone(), &grant) {
                keys.push(key);
                replies.push(reply);
            } else if let Some(reply) = reply {
                let _ = reply.send(Ok(Released { ours: false, wanted: false }));
            }
        }
        if keys.is_empty() {
            return;
        }
        let wanted = session.release(&keys).await;
        for (key, reply) in keys.iter().zip(replies) {
            grants.remove(key);
            self.cleaner.released(key);
            let released = match &wanted {
                Ok(wanted) => Ok(Released { ours: true, wanted: wanted.contains(key) }),
                Err(error) => Err(error.repeated()),
            };
            drop(reply.map(|reply| reply.send(released)));
        }
    }

    async fn handle(&self, session: &mut MySqlSession, request: SessionRequest, _: &Requests) {
        match request {
            SessionRequest::Inspect { key, reply } => {
                drop(reply.send(session.inspect(&key).await));
            }
            SessionRequest::Look { keys, reply } => {
                drop(reply.send(session.look(&keys).await));
            }
            SessionRequest::Force { key, seen, ending, reply } => {
                drop(reply.send(force(session, key, seen, ending).await));
            }
            // The actor handles the others.
            other => other.refuse(BackendError::new("the session cannot handle this request")),
        }
    }

    async fn after_batch(&self, session: &mut MySqlSession) {
        session.note_wanted_keys().await;
        session.clean(&self.cleaner).await;
    }

    async fn ping(&self, session: &mut MySqlSession) {
        session.ping().await;
    }

    async fn close(&self, session: MySqlSession, why: &str) {
        session.close(why).await;
    }
}

async fn force(
    session: &mut MySqlSession,
    key: String,
    seen: Grant,
    ending: Option<i64>,
) -> Result<Forced, BackendError> {
    let grants = session.grants();
    if seen.token != 0 && grants.begin_release(key.clone(), &seen) {
        let released = session.release(std::slice::from_ref(&key)).await;
        grants.remove(&key);
        released?;
        return Ok(Forced::Free(true));
    }
    Ok(match session.force(&key, seen.token, ending).await? {
        Some(session) => Forced::Ending(session),
        None => Forced::Free(ending.is_some()),
    })
}
