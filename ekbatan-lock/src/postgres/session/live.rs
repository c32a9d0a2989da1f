//! One session and its statements.
//!
//! Invariants: a statement whose effect is unknown ends the session, so that the server never
//! keeps a lock that this process does not know of. No statement waits for a lock.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::{Error, Row, Statement};
use uuid::Uuid;

use crate::BackendError;
use crate::key_hints::KeyHints;
use crate::postgres::address::{self, PostgresAddress};
use crate::postgres::error::{PostgresLocksError, failed};
use crate::postgres::notify_connection::NotifyConnection;
use crate::postgres::pool::ANSWER;
use crate::postgres::tables::replica;
use crate::session::SessionGrants;

/// The statement that takes the lock reads the token, so that every holder has one.
const TRY: &str = "\
    SELECT CASE WHEN pg_try_advisory_lock($1) THEN nextval('eventlog.lock_tokens') END";

const UNLOCK: &str = "SELECT pg_advisory_unlock($1)";

/// Registers this session as a waiter.
const NOTE: &str = "\
    INSERT INTO eventlog.lock_wanted (lock_key, session, until) \
    VALUES ($1::text, $2, clock_timestamp() + interval '2 seconds') \
    ON CONFLICT (lock_key, session) DO UPDATE SET until = excluded.until";

/// Notifies the other sessions, if one of them is registered as a waiter.
const TELL: &str = "\
    SELECT pg_notify('ekbatan_lock', $1::text)::text WHERE EXISTS ( \
        SELECT FROM eventlog.lock_wanted \
        WHERE lock_key = $1::text AND session <> $2 AND until > clock_timestamp())";

const FORGET: &str = "DELETE FROM eventlog.lock_wanted WHERE lock_key = $1::text AND session = $2";

/// The holder of the lock, as the server knows it.
const HOLDER: &str = "\
    SELECT l.pid, coalesce(a.application_name, ''), l.pid = pg_backend_pid() \
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid \
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 \
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
      AND (l.classid::bigint << 32) | l.objid::bigint = $1 LIMIT 1";

/// Raises the sequence of tokens to the milliseconds since 1970 if it is more than a minute
/// behind. Tokens thus grow even if the sequence was lost or another strategy was used in
/// between. Sessions take turns, because a late one would set the sequence back.
const RAISE: &str = "\
    BEGIN; SELECT pg_advisory_xact_lock(28545284254495086); \
    SELECT setval('eventlog.lock_tokens', now) \
    FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now OFFSET 0) c \
    WHERE (SELECT last_value FROM eventlog.lock_tokens) < now - 60000; \
    DELETE FROM eventlog.lock_wanted WHERE until < clock_timestamp() - interval '1 minute'; \
    COMMIT";

/// How long a waiter's registration is not repeated.
const NOTED: Duration = Duration::from_secs(1);

/// Number of registrations that this process remembers before it drops old ones.
const NOTES: usize = 4096;

pub(crate) struct PostgresSession {
    connection: NotifyConnection,
    pub(super) id: Uuid,
    pub(super) grants: SessionGrants<i64>,
    /// When this session last registered as a waiter, by key.
    noted: Mutex<HashMap<String, Instant>>,
    statements: Statements,
}

struct Statements {
    take: Statement,
    unlock: Statement,
    note: Statement,
    tell: Statement,
    forget: Statement,
    holder: Statement,
}

impl PostgresSession {
    pub(super) async fn open(
        server: &PostgresAddress,
        hints: Arc<KeyHints>,
    ) -> Result<Self, PostgresLocksError> {
        let connection = NotifyConnection::connect(server, hints).await?;
        let prepared = tokio::time::timeout(ANSWER, Self::prepare(&connection)).await;
        let prepared = prepared.map_err(|_| {
            BackendError::new(format!("a lock session was not ready within {ANSWER:?}"))
        })?;
        let statements =
            prepared.map_err(|error| failed("a lock session could not be prepared", &error))?;
        let Some(statements) = statements else { return Err(replica()) };
        Ok(Self {
            connection,
            id: Uuid::new_v4(),
            grants: SessionGrants::new(),
            noted: Mutex::default(),
            statements,
        })
    }

    /// `None` on a replica.
    async fn prepare(connection: &NotifyConnection) -> Result<Option<Statements>, Error> {
        let client = &connection.client;
        let row = client.query_typed_one("SELECT pg_is_in_recovery()", &[]).await?;
        if row.get(0) {
            return Ok(None);
        }
        let script = format!(
            "{} LISTEN ekbatan_lock; \
             SELECT set_config(name, '0', false) FROM pg_settings \
             WHERE name IN ('idle_session_timeout', 'statement_timeout')",
            address::server_side()
        );
        client.batch_execute(&script).await?;
        client.batch_execute(RAISE).await?;
        Ok(Some(Statements {
            take: client.prepare(TRY).await?,
            unlock: client.prepare(UNLOCK).await?,
            note: client.prepare(NOTE).await?,
            tell: client.prepare(TELL).await?,
            forget: client.prepare(FORGET).await?,
            holder: client.prepare(HOLDER).await?,
        }))
    }

    /// Takes the lock if it is free, and returns its token. Otherwise registers as a waiter.
    pub(super) async fn take(&self, key: &str, lock: i64) -> Result<Option<i64>, BackendError> {
        let taken = self.try_lock(lock).await?;
        if taken.is_some() || self.noted(key) {
            return Ok(taken);
        }
        // A holder that released the key before this registration notified nobody: try again.
        let note = self.ask("registering as a waiter", async {
            self.connection.client.execute(&self.statements.note, &[&key, &self.id]).await
        });
        let (noted, taken) = tokio::join!(biased; note, self.try_lock(lock));
        if let Err(error) = noted {
            tracing::debug!(%error, key, "registering as a waiter failed; the lock is polled");
        }
        taken
    }

    async fn try_lock(&self, lock: i64) -> Result<Option<i64>, BackendError> {
        let row = self.row("taking a lock", &self.statements.take, lock).await?;
        Ok(row.and_then(|row| row.get(0)))
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
        let unlock = self.row("releasing a lock", &self.statements.unlock, lock);
        let tell = self.ask("notifying waiters", async {
            Ok(!client.query(&self.statements.tell, &[&key, &self.id]).await?.is_empty())
        });
        let forget = self.ask("removing a registration", async {
            if noted {
                client.execute(&self.statements.forget, &[&key, &self.id]).await
            } else {
                Ok(0)
            }
        });
        let (unlocked, told, _) = tokio::join!(biased; unlock, tell, forget);
        match unlocked {
            Ok(Some(row)) if row.get(0) => Ok(told.unwrap_or(false)),
            Ok(_) => {
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
        if let Err(error) =
            self.row("releasing a lock that may be held", &self.statements.unlock, lock).await
        {
            self.end(error.to_string());
        }
    }

    /// Process and name of the holder, and whether it is this session.
    pub(super) async fn holder(
        &self,
        lock: i64,
    ) -> Result<Option<(i32, String, bool)>, BackendError> {
        let row =
            self.row("looking for the holder of a lock", &self.statements.holder, lock).await?;
        Ok(row.map(|row| (row.get(0), row.get(1), row.get(2))))
    }

    /// Checks that the server answers.
    pub(super) async fn ping(&self) {
        if let Err(error) =
            self.ask("checking a lock session", self.connection.client.check_connection()).await
        {
            tracing::debug!(%error, "a lock session");
        }
    }

    async fn row(
        &self,
        what: &'static str,
        statement: &Statement,
        lock: i64,
    ) -> Result<Option<Row>, BackendError> {
        self.ask(what, async { self.connection.client.query_opt(statement, &[&lock]).await }).await
    }

    async fn ask<T>(
        &self,
        what: &'static str,
        asking: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, BackendError> {
        let Ok(answer) = tokio::time::timeout(ANSWER, asking).await else {
            self.end(format!("{what}: no answer within {ANSWER:?}"));
            return Err(BackendError::new(format!("{what}: no answer within {ANSWER:?}")));
        };
        // `watch` reports why the connection closed.
        answer.map_err(|error| failed(what, &error))
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
