//! Hints between sessions: one says that it waits for a key, another one that it has released it.
//!
//! Invariants: a lost hint costs time only, because waiters poll as well. So a table of waiters that
//! somebody has locked holds up no lock for long: the statements about it fail soon, few of them are
//! sent at once, and after a failure none is sent for a moment.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tokio_postgres::{Client, Error, Statement};

use crate::BackendError;
use crate::backends::postgres::error::failed;
use crate::backends::postgres::pool::ANSWER;

/// Registers this session as a waiter.
const NOTE: &str = "\
    INSERT INTO eventlog.lock_wanted (lock_key, session, until) \
    VALUES ($1::text, $2, clock_timestamp() + interval '2 seconds') \
    ON CONFLICT (lock_key, session) DO UPDATE SET until = excluded.until \
    RETURNING set_config('idle_session_timeout', $3, false)";

/// Notifies the other sessions, if one of them is registered as a waiter.
const TELL: &str = "\
    SELECT CASE WHEN EXISTS ( \
            SELECT FROM eventlog.lock_wanted \
            WHERE lock_key = $1::text AND session <> $2 AND until > clock_timestamp()) \
        THEN pg_notify('ekbatan_lock', $1::text)::text END, \
        set_config('idle_session_timeout', $3, false)";

const FORGET: &str = "\
    WITH gone AS (DELETE FROM eventlog.lock_wanted WHERE lock_key = $1::text AND session = $2) \
    SELECT set_config('idle_session_timeout', $3, false)";

/// Deletes the registrations of waiters that gave up. It waits for no other session.
const CLEAN: &str = "\
    WITH gone AS (DELETE FROM eventlog.lock_wanted w USING ( \
            SELECT ctid FROM eventlog.lock_wanted \
            WHERE until < clock_timestamp() - interval '10 seconds' \
            LIMIT 10000 FOR UPDATE SKIP LOCKED) old \
        WHERE w.ctid = old.ctid) \
    SELECT set_config('idle_session_timeout', $1, false)";

/// How long no statement about waiters is sent after one has failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of statements about waiters that are sent and not answered. All of them fail, one
/// after another, before what is sent next is given up for its answer.
const AT_ONCE: usize = 50;

pub(super) struct SessionHints {
    /// Empty as long as the table of waiters was locked whenever they were to be prepared.
    statements: OnceCell<HintStatements>,
    places: Semaphore,
    /// When one of them failed last.
    failed: Mutex<Option<Instant>>,
}

pub(super) struct HintStatements {
    pub(super) note: Statement,
    pub(super) tell: Statement,
    pub(super) forget: Statement,
    pub(super) clean: Statement,
}

impl HintStatements {
    async fn prepare(client: &Client) -> Result<Self, Error> {
        Ok(Self {
            note: client.prepare(NOTE).await?,
            tell: client.prepare(TELL).await?,
            forget: client.prepare(FORGET).await?,
            clean: client.prepare(CLEAN).await?,
        })
    }
}

impl SessionHints {
    pub(super) fn new() -> Self {
        let places = Semaphore::new(AT_ONCE);
        Self { statements: OnceCell::new(), places, failed: Mutex::default() }
    }

    /// Prepares the statements if they are not, and if none has failed a moment ago.
    pub(super) async fn prepare(&self, client: &Client) {
        let preparing = self.statements.get_or_try_init(|| async {
            if self.pauses() {
                return Err(());
            }
            let prepared = HintStatements::prepare(client).await;
            prepared.map_err(|error| self.pause(&failed("preparing hints", &error)))
        });
        // If the server does not answer, the next statement ends the session.
        let _ = tokio::time::timeout(ANSWER, preparing).await;
    }

    /// The statements, to send one of them, and a place for it. `None` if one has failed a moment ago.
    pub(super) async fn statements(&self) -> Option<(&HintStatements, SemaphorePermit<'_>)> {
        let place = self.places.acquire().await.ok()?;
        // Also one that was sent while this one waited for a place.
        let statements = self.statements.get().filter(|_| !self.pauses())?;
        Some((statements, place))
    }

    fn pauses(&self) -> bool {
        let failed = *self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.is_some_and(|failed| failed.elapsed() < PAUSE)
    }

    /// Has no statement sent for a moment, after one has failed.
    pub(super) fn pause(&self, error: &BackendError) {
        tracing::debug!(%error, "waiters poll for a moment");
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}
