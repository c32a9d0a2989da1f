//! One session and its statements.
//!
//! What always holds: a statement whose effect is unknown ends the session, so that the
//! server never holds a lock that nobody here knows of. No statement waits for a lock.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_postgres::{Error, Row, Statement};
use uuid::Uuid;

use super::grants::Grants;
use crate::BackendError;
use crate::postgres::address::{self, Server};
use crate::postgres::error::{PostgresLocksError, failed};
use crate::postgres::hints::Hints;
use crate::postgres::pool::ANSWER;
use crate::postgres::tables::replica;
use crate::postgres::wire::Wire;

/// The token is read in the statement that takes the lock: whoever has the lock has it.
const TRY: &str = "\
    SELECT CASE WHEN pg_try_advisory_lock($1) THEN nextval('eventlog.lock_tokens') END";

const UNLOCK: &str = "SELECT pg_advisory_unlock($1)";

/// Registers this session among those who wait.
const NOTE: &str = "\
    INSERT INTO eventlog.lock_wanted (lock_key, session, until) \
    VALUES ($1::text, $2, clock_timestamp() + interval '2 seconds') \
    ON CONFLICT (lock_key, session) DO UPDATE SET until = excluded.until";

/// Tells the others only if one of them is known to wait.
const TELL: &str = "\
    SELECT pg_notify('ekbatan_lock', $1::text)::text WHERE EXISTS ( \
        SELECT FROM eventlog.lock_wanted \
        WHERE lock_key = $1::text AND session <> $2 AND until > clock_timestamp())";

const FORGET: &str = "DELETE FROM eventlog.lock_wanted WHERE lock_key = $1::text AND session = $2";

/// Who holds the lock, as the server knows it.
const HOLDER: &str = "\
    SELECT l.pid, coalesce(a.application_name, ''), l.pid = pg_backend_pid() \
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid \
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 \
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
      AND (l.classid::bigint << 32) | l.objid::bigint = $1 LIMIT 1";

/// Tokens grow also where the sequence was lost, or another strategy was used meanwhile: they
/// go on from the milliseconds since 1970 unless they are about there. One at a time, as
/// whoever is late would set them back.
const RAISE: &str = "\
    BEGIN; SELECT pg_advisory_xact_lock(28545284254495086); \
    SELECT setval('eventlog.lock_tokens', now) \
    FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now OFFSET 0) c \
    WHERE (SELECT last_value FROM eventlog.lock_tokens) < now - 60000; \
    DELETE FROM eventlog.lock_wanted WHERE until < clock_timestamp() - interval '1 minute'; \
    COMMIT";

/// For how long the server knows that a key is wanted without being told again.
const NOTED: Duration = Duration::from_secs(1);

/// How many notes are kept before old ones are dropped.
const NOTES: usize = 4096;

pub(super) struct Session {
    wire: Wire,
    pub(super) id: Uuid,
    pub(super) grants: Grants,
    /// When which key was last noted as wanted.
    noted: Mutex<HashMap<String, Instant>>,
    over: watch::Sender<Option<String>>,
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

impl Session {
    pub(super) async fn open(
        server: &Server,
        hints: Arc<Hints>,
    ) -> Result<Self, PostgresLocksError> {
        let wire = Wire::connect(server, hints).await?;
        let prepared = tokio::time::timeout(ANSWER, Self::prepare(&wire)).await;
        let prepared = prepared.map_err(|_| {
            BackendError::new(format!("a lock session was not ready within {ANSWER:?}"))
        })?;
        let statements =
            prepared.map_err(|error| failed("a lock session could not be prepared", &error))?;
        let Some(statements) = statements else { return Err(replica()) };
        Ok(Self {
            wire,
            id: Uuid::new_v4(),
            grants: Grants::default(),
            noted: Mutex::default(),
            over: watch::Sender::new(None),
            statements,
        })
    }

    /// `None` on a replica.
    async fn prepare(wire: &Wire) -> Result<Option<Statements>, Error> {
        let client = &wire.client;
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

    /// Takes the lock if it is free, and answers its token; notes otherwise that it is wanted.
    pub(super) async fn take(&self, key: &str, lock: i64) -> Result<Option<i64>, BackendError> {
        let taken = self.try_lock(lock).await?;
        if taken.is_some() || self.noted(key) {
            return Ok(taken);
        }
        // Who gave it back before the note was there told nobody: look again behind it.
        let note = self.ask("noting who waits", async {
            self.wire.client.execute(&self.statements.note, &[&key, &self.id]).await
        });
        let (noted, taken) = tokio::join!(biased; note, self.try_lock(lock));
        if let Err(error) = noted {
            tracing::debug!(%error, key, "nobody will be told who waits; locks are polled");
        }
        taken
    }

    async fn try_lock(&self, lock: i64) -> Result<Option<i64>, BackendError> {
        let row = self.row("taking a lock", &self.statements.take, lock).await?;
        Ok(row.and_then(|row| row.get(0)))
    }

    /// Whether the server knows that this session waits for the key; it does from now on.
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

    /// Gives the lock back, and says whether somebody else was told so. What was sent first
    /// is done first: whoever waits is looked for when the lock is free.
    pub(super) async fn give_back(&self, key: &str, lock: i64) -> Result<bool, BackendError> {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner).remove(key).is_some();
        let client = &self.wire.client;
        let unlock = self.row("giving a lock back", &self.statements.unlock, lock);
        let tell = self.ask("telling who waits", async {
            Ok(!client.query(&self.statements.tell, &[&key, &self.id]).await?.is_empty())
        });
        let forget = self.ask("forgetting a note", async {
            match noted {
                true => client.execute(&self.statements.forget, &[&key, &self.id]).await,
                false => Ok(0),
            }
        });
        let (unlocked, told, _) = tokio::join!(biased; unlock, tell, forget);
        match unlocked {
            Ok(Some(row)) if row.get(0) => Ok(told.unwrap_or(false)),
            Ok(_) => {
                self.end("the server did not know a lock that was held".to_owned());
                Err(BackendError::new("the server did not know the lock"))
            }
            Err(error) => {
                self.end(error.to_string());
                Err(error)
            }
        }
    }

    /// Frees a lock of which it is unknown whether it is held.
    pub(super) async fn make_sure(&self, lock: i64) {
        if let Err(error) = self.row("making sure", &self.statements.unlock, lock).await {
            self.end(error.to_string());
        }
    }

    /// Process and name of who holds the lock, and whether it is this session.
    pub(super) async fn holder(
        &self,
        lock: i64,
    ) -> Result<Option<(i32, String, bool)>, BackendError> {
        let row = self.row("who holds a lock", &self.statements.holder, lock).await?;
        Ok(row.map(|row| (row.get(0), row.get(1), row.get(2))))
    }

    /// Asks for a sign of life.
    pub(super) async fn ping(&self) {
        if let Err(error) = self.ask("a sign of life", self.wire.client.check_connection()).await {
            tracing::debug!(%error, "a lock session");
        }
    }

    async fn row(
        &self,
        what: &'static str,
        statement: &Statement,
        lock: i64,
    ) -> Result<Option<Row>, BackendError> {
        self.ask(what, async { self.wire.client.query_opt(statement, &[&lock]).await }).await
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
        // What a closed connection closed by, whoever watches it hears.
        answer.map_err(|error| failed(what, &error))
    }

    /// Ends the session, and every grant with it. The first reason stays.
    pub(super) fn end(&self, why: String) {
        self.grants.end();
        self.wire.cut();
        self.over.send_if_modified(|over| {
            let first = over.is_none();
            if first {
                *over = Some(why);
            }
            first
        });
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.borrow().is_some()
    }

    /// Resolves with the reason when the session is over.
    pub(super) async fn ended(&self) -> String {
        let mut over = self.over.subscribe();
        let why = over.wait_for(Option::is_some).await;
        why.map(|why| why.clone().unwrap_or_default()).unwrap_or_default()
    }

    /// Watches the connection, and ends the session with it.
    pub(super) async fn watch(&self) {
        tokio::select! {
            why = self.wire.ended() => self.end(why),
            _ = self.ended() => {}
        }
    }
}
