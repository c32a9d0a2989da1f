//! One session and its statements.
//!
//! Invariants: a statement whose effect is unknown ends the session, so that the server never
//! keeps a lock that this process does not know of. No statement waits for the lock of a key. Each
//! statement sets how long the session may be idle; the limit in the last one that was sent
//! covers all locks that were requested before. Whatever is sent waits for the statements before it,
//! so that none of them may wait for long, such as for a table that somebody has locked.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_postgres::{Error, Row, SimpleQueryMessage, Statement};
use uuid::Uuid;

use super::hints::{HintStatements, SessionHints};
use super::pooler;
use crate::BackendError;
use crate::backends::key_hints::KeyHints;
use crate::backends::postgres::address::PostgresAddress;
use crate::backends::postgres::error::{PostgresLocksError, failed, is_of_a_replica};
use crate::backends::postgres::notify_connection::NotifyConnection;
use crate::backends::postgres::pool::ANSWER;
use crate::backends::postgres::settings;
use crate::backends::postgres::tables::replica;
use crate::backends::session::SessionGrants;

/// From then on, a statement fails soon if it waits for a table that somebody has locked.
const LISTEN: &str = "SET lock_timeout = 100; LISTEN ekbatan_lock";

/// The statement that takes the lock reads the token, so that every holder has one. It also says
/// whether the sequence of tokens is more than an hour behind the clock. If the server process is
/// not that of this session, it takes nothing.
const TRY: &str = "\
    SELECT token, ours, \
        coalesce(token < extract(epoch FROM clock_timestamp()) * 1000 - 3600000, false), \
        CASE WHEN ours THEN set_config('idle_session_timeout', $2, false) END \
    FROM (SELECT ours, CASE WHEN ours AND pg_try_advisory_lock($1) \
            THEN nextval('eventlog.lock_tokens') END AS token \
        FROM (SELECT current_setting('ekbatan_lock.session', true) \
            IS NOT DISTINCT FROM $3 AS ours) session) taken";

const UNLOCK: &str = "SELECT pg_advisory_unlock($1), set_config('idle_session_timeout', $2, false)";

/// The holder of the lock, as the server knows it.
const HOLDER: &str = "\
    SELECT l.pid, coalesce(a.application_name, ''), l.pid = pg_backend_pid(), \
        set_config('idle_session_timeout', $2, false) \
    FROM (SELECT) one LEFT JOIN pg_locks l ON l.locktype = 'advisory' AND l.granted \
      AND l.objsubid = 1 \
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
      AND (l.classid::bigint << 32) | l.objid::bigint = $1 \
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid LIMIT 1";

const PING: &str = "\
    SELECT current_setting('ekbatan_lock.session', true) IS NOT DISTINCT FROM $1, \
        set_config('idle_session_timeout', $2, false)";

/// Raises the sequence of tokens to the milliseconds since 1970, so that tokens grow even if the
/// sequence was lost or another strategy was used in between. It also covers the numbers that
/// the sequence forgets in a crash, because a crash takes longer than granting them. If more
/// than one number per millisecond was granted, some are left out. Sessions take turns, because
/// a late one would set the sequence back. The number of their lock is "ektokens" in ASCII.
const RAISE: &str = "\
    BEGIN; SET LOCAL lock_timeout = 5000; SELECT pg_advisory_xact_lock(7308062842230763123); \
    SELECT setval('eventlog.lock_tokens', CASE WHEN last_value > now \
        THEN last_value + 100000 ELSE now END) \
    FROM eventlog.lock_tokens, \
        (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now OFFSET 0) c; \
    COMMIT";

/// Raises the sequence of tokens to the clock while sessions are open. A token also tells the age
/// of its grant, and one that seems old can begin no fence. As above, sessions take turns; one that
/// waits for its turn for a second fails, and is no worse for it. The sequence is left alone unless
/// it is an hour behind, so that the tokens which others are granted meanwhile are smaller than the
/// new ones. The statements of one message are one transaction.
const CATCH_UP: &str = "\
    SELECT set_config('lock_timeout', '1000', true); \
    SELECT pg_advisory_xact_lock(7308062842230763123); \
    SELECT setval('eventlog.lock_tokens', now) \
    FROM eventlog.lock_tokens, \
        (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now OFFSET 0) c \
    WHERE last_value < now - 3600000";

/// How long after the end of a lock the server ends a session that sends nothing. Pings come
/// more often.
const SLACK: Duration = Duration::from_secs(5);

/// The longest limit that the server accepts.
const LONGEST_LIMIT: u128 = i32::MAX as u128;

/// How long a waiter's registration is not repeated.
const NOTED: Duration = Duration::from_secs(1);

/// After so many registrations, old ones are deleted. The same holds after the first one of a session,
/// because a process may be started often, for few registrations each time.
const CLEAN_AFTER: usize = 1_000;

/// Number of registrations that this process remembers before it drops old ones.
const NOTES: usize = 4096;

pub(crate) struct PostgresSession {
    connection: NotifyConnection,
    pub(super) id: Uuid,
    pub(super) grants: SessionGrants<i64>,
    /// What the server process is marked with.
    mark: String,
    /// The runtime of the connection.
    pub(super) runtime: Handle,
    /// When this session last registered as a waiter, by key.
    noted: Mutex<HashMap<String, Instant>>,
    /// The number of registrations since old ones were deleted.
    registered: AtomicUsize,
    /// Whether the last statement that was sent set a limit. Statements are sent while it is
    /// locked, so that their limits reach the server in order.
    limited: Mutex<bool>,
    statements: Statements,
    hints: SessionHints,
}

struct Statements {
    take: Statement,
    unlock: Statement,
    holder: Statement,
    ping: Statement,
}

impl PostgresSession {
    pub(super) async fn open(
        server: &PostgresAddress,
        hints: Arc<KeyHints>,
    ) -> Result<Self, PostgresLocksError> {
        let connection = NotifyConnection::connect(server, move |key| hints.wake(key)).await?;
        let id = Uuid::new_v4();
        let mark = id.to_string();
        let prepared = tokio::time::timeout(ANSWER, Self::prepare(&connection, &mark)).await;
        let statements = prepared.map_err(|_| {
            BackendError::unavailable(format!("a lock session was not ready within {ANSWER:?}"))
        })??;
        let session = Self {
            connection,
            id,
            grants: SessionGrants::new(),
            mark,
            runtime: Handle::current(),
            noted: Mutex::default(),
            registered: AtomicUsize::new(CLEAN_AFTER),
            limited: Mutex::default(),
            statements,
            hints: SessionHints::new(),
        };
        session.hints.prepare(&session.connection.client).await;
        Ok(session)
    }

    /// Prepares a session whose server process is its own.
    async fn prepare(
        connection: &NotifyConnection,
        mark: &str,
    ) -> Result<Statements, PostgresLocksError> {
        let client = &connection.client;
        let could_not = |error| failed("a lock session could not be prepared", &error);
        let row = client.query_typed_one(settings::SERVER, &[]).await.map_err(could_not)?;
        if row.get(0) {
            return Err(replica());
        }
        settings::refuse_without_idle_limit(row.get(1))?;
        pooler::own_process(client, mark).await?;
        let prepare = async {
            client.batch_execute(&settings::of_a_session()).await?;
            client.batch_execute(LISTEN).await?;
            client.batch_execute(RAISE).await?;
            Ok(Statements {
                take: client.prepare(TRY).await?,
                unlock: client.prepare(UNLOCK).await?,
                holder: client.prepare(HOLDER).await?,
                ping: client.prepare(PING).await?,
            })
        };
        prepare.await.map_err(|error| could_not(error).into())
    }

    /// Takes the lock if it is free, and returns its token. Otherwise registers as a waiter, if the
    /// caller waits.
    pub(super) async fn take(
        &self,
        key: &str,
        lock: i64,
        waits: bool,
    ) -> Result<Option<i64>, BackendError> {
        let taken = self.try_lock(lock).await?;
        if taken.is_some() || !waits || self.noted(key) {
            return Ok(taken);
        }
        let client = &self.connection.client;
        self.hints.prepare(client).await;
        // A holder that released the key before this registration notified nobody: try again.
        let note = self.hint("registering as a waiter", |hints, limit| async move {
            client.query_one(&hints.note, &[&key, &self.id, &limit]).await
        });
        let (noted, taken) = tokio::join!(biased; note, self.try_lock(lock));
        if noted.is_some() && self.registered.fetch_add(1, Ordering::Relaxed) + 1 >= CLEAN_AFTER {
            self.registered.store(0, Ordering::Relaxed);
            let clean = self.hint("deleting old registrations", |hints, limit| async move {
                client.query_one(&hints.clean, &[&limit]).await
            });
            if clean.await.is_none() {
                self.registered.store(CLEAN_AFTER, Ordering::Relaxed);
            }
        }
        taken
    }

    /// Sends a statement about waiters. Returns `None` if it failed, or was not sent.
    async fn hint<'s, T, F: Future<Output = Result<T, Error>>>(
        &'s self,
        what: &'static str,
        statement: impl FnOnce(&'s HintStatements, String) -> F,
    ) -> Option<T> {
        let (hints, _place) = self.hints.statements().await?;
        let answer = self.ask(what, |limit| statement(hints, limit)).await;
        answer.inspect_err(|error| self.hints.pause(error)).ok()
    }

    async fn try_lock(&self, lock: i64) -> Result<Option<i64>, BackendError> {
        let row = self.ask("taking a lock", |limit| async move {
            let statement = &self.statements.take;
            self.connection.client.query_one(statement, &[&lock, &limit, &self.mark]).await
        });
        let row = row.await?;
        if !row.get::<_, bool>(1) {
            self.end(pooler::ANOTHER_PROCESS.to_owned());
            return Err(BackendError::unavailable(pooler::ANOTHER_PROCESS));
        }
        // Nobody has seen the old token, and the session has the lock while it gets another one.
        if row.get(2) { self.recent_token().await.map(Some) } else { Ok(row.get(0)) }
    }

    /// Raises the sequence of tokens to the clock, and returns its next token.
    async fn recent_token(&self) -> Result<i64, BackendError> {
        let answers = self.ask("raising the tokens to the clock", |limit| async move {
            let catch_up = format!(
                "{CATCH_UP}; SELECT nextval('eventlog.lock_tokens'), \
                 set_config('idle_session_timeout', '{limit}', false)"
            );
            self.connection.client.simple_query(&catch_up).await
        });
        let answers = answers.await?;
        let last = answers.iter().rev().find_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        let token = last.and_then(|token| token.parse().ok());
        token.ok_or_else(|| BackendError::in_doubt("the server returned no token"))
    }

    /// Whether this session is registered as a waiter. Assumes that it is from now on.
    fn noted(&self, key: &str) -> bool {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if noted.len() >= NOTES {
            noted.retain(|_, at| now < *at + NOTED);
        }
        match noted.get(key) {
            Some(at) if now < *at + NOTED => true,
            _ => {
                noted.insert(key.to_owned(), now);
                false
            }
        }
    }

    /// Releases the lock. Returns whether another session was notified. The server executes the
    /// statements in order, so it looks for waiters when the lock is free.
    pub(super) async fn release(&self, key: &str, lock: i64) -> Result<bool, BackendError> {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner).remove(key).is_some();
        let client = &self.connection.client;
        let unlock = self.unlock("releasing a lock", lock);
        let tell = self.hint("notifying waiters", |hints, limit| async move {
            let row = client.query_one(&hints.tell, &[&key, &self.id, &limit]).await?;
            Ok(row.get::<_, Option<String>>(0).is_some())
        });
        let forget = async {
            if noted {
                let forgotten = self.hint("removing a registration", |hints, limit| async move {
                    client.query_one(&hints.forget, &[&key, &self.id, &limit]).await
                });
                drop(forgotten.await);
            }
        };
        let (unlocked, told, _) = tokio::join!(biased; unlock, tell, forget);
        match unlocked {
            Ok(true) => Ok(told.unwrap_or(false)),
            Ok(false) => {
                self.end("the server did not know a lock that this session held".to_owned());
                Err(BackendError::new("the server did not know the lock"))
            }
            Err(error) => {
                self.end(error.to_string());
                Err(error)
            }
        }
    }

    /// Releases a lock that this session may or may not have.
    pub(super) async fn unlock_unknown(&self, lock: i64) {
        if let Err(error) = self.unlock("releasing a lock that may be held", lock).await {
            self.end(error.to_string());
        }
    }

    /// Returns whether this session had the lock.
    async fn unlock(&self, what: &'static str, lock: i64) -> Result<bool, BackendError> {
        let row = self.ask(what, |limit| async move {
            self.connection.client.query_one(&self.statements.unlock, &[&lock, &limit]).await
        });
        Ok(row.await?.get(0))
    }

    /// Process and name of the holder, and whether it is this session.
    pub(super) async fn holder(
        &self,
        lock: i64,
    ) -> Result<Option<(i32, String, bool)>, BackendError> {
        let row = self.ask("looking for the holder of a lock", |limit| async move {
            self.connection.client.query_one(&self.statements.holder, &[&lock, &limit]).await
        });
        let row: Row = row.await?;
        Ok(row.get::<_, Option<i32>>(0).map(|pid| (pid, row.get(1), row.get(2))))
    }

    /// Whether the session has locks, or the server limits how long it may be idle.
    pub(super) fn needs_pings(&self) -> bool {
        !self.grants.is_empty() || *self.limited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the server answers, and that it is the process of this session.
    pub(super) async fn ping(&self) {
        let row = self.ask("checking a lock session", |limit| async move {
            self.connection.client.query_one(&self.statements.ping, &[&self.mark, &limit]).await
        });
        match row.await {
            Ok(row) if !row.get::<_, bool>(0) => self.end(pooler::ANOTHER_PROCESS.to_owned()),
            Ok(_) => self.hints.prepare(&self.connection.client).await,
            Err(error) => tracing::debug!(%error, "a lock session"),
        }
    }

    /// Sends a statement, which gets the limit to set, and waits for its answer.
    async fn ask<T, F: Future<Output = Result<T, Error>>>(
        &self,
        what: &'static str,
        statement: impl FnOnce(String) -> F,
    ) -> Result<T, BackendError> {
        let mut sent: Option<Pin<Box<F>>> = None;
        let mut statement = Some(statement);
        let answered = poll_fn(|cx| {
            let Some(statement) = statement.take() else {
                return sent.as_mut().map_or(Poll::Pending, |sent| sent.as_mut().poll(cx));
            };
            // The first poll sends it.
            let mut limited = self.limited.lock().unwrap_or_else(PoisonError::into_inner);
            let limit = self.grants.idle_limit(SLACK);
            *limited = limit.is_some();
            let millis = limit.map_or(0, |limit| limit.as_millis().min(LONGEST_LIMIT));
            sent.insert(Box::pin(statement(millis.to_string()))).as_mut().poll(cx)
        });
        let Ok(answer) = tokio::time::timeout(ANSWER, answered).await else {
            self.end(format!("{what}: no answer within {ANSWER:?}"));
            return Err(BackendError::in_doubt(format!("{what}: no answer within {ANSWER:?}")));
        };
        // `watch` reports why the connection closed.
        answer.map_err(|error| {
            let failure = failed(what, &error);
            if is_of_a_replica(&error) {
                self.end(failure.to_string());
            }
            failure
        })
    }

    /// Ends the session and all its grants. The first reason is kept.
    pub(super) fn end(&self, why: String) {
        self.grants.end(why);
        self.connection.cut();
    }

    /// Ends the session when its connection ends. Returns the reason.
    pub(super) async fn watch(&self) -> String {
        tokio::select! {
            why = self.connection.ended() => self.end(why),
            _ = self.grants.ended() => {}
        }
        self.grants.ended().await
    }
}
