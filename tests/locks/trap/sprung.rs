//! A provider that falls into the trap: it shows that the test above can fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ekbatan::lock::{
    Attempt, BackendError, Grant, GrantRequest, Holder, LockBackend, LockProvider, Released,
};
use sqlx::{Connection, PgConnection};
use support::until;
use tokio::sync::Mutex;

use super::{PROCESSES, SHORTEST, contend};
use crate::providers::Kind;
use crate::sql::place::Place;

/// The time in which the wrong provider must be detected.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits at the server, with the timeout of the session.
struct WaitsAtTheServer {
    session: Mutex<PgConnection>,
    tokens: Arc<AtomicI64>,
    /// The number of locks that this provider knows of.
    known: Arc<AtomicI64>,
}

impl WaitsAtTheServer {
    async fn connect(url: &str, tokens: Arc<AtomicI64>, known: Arc<AtomicI64>) -> Self {
        let mut session = PgConnection::connect(url).await.unwrap();
        sqlx::query("SET lock_timeout = '1ms'").execute(&mut session).await.unwrap();
        Self { session: Mutex::new(session), tokens, known }
    }

    async fn call(&self, function: &str, key: &str) -> Result<(), sqlx::Error> {
        let sql = format!("SELECT {function}(hashtext('{key}'))");
        let mut session = self.session.lock().await;
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut *session).await.map(drop)
    }
}

#[async_trait]
impl LockBackend for WaitsAtTheServer {
    fn name(&self) -> &'static str {
        "waits at the server"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        match self.call("pg_advisory_lock", key).await {
            Ok(()) => {
                self.known.fetch_add(1, Ordering::SeqCst);
                let token = self.tokens.fetch_add(1, Ordering::SeqCst);
                Ok(Attempt::Granted(Grant { owner: request.owner, token }))
            }
            // The wait timed out, so another session has the lock. That is not always true.
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("55P03") => {
                Ok(Attempt::Busy(None))
            }
            Err(error) => Err(BackendError::caused("taking a lock", error)),
        }
    }

    async fn extend(&self, _: &str, _: &Grant, _: Duration) -> Result<bool, BackendError> {
        Ok(true)
    }

    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        self.extend(key, grant, term).await
    }

    async fn release(&self, key: &str, _: &Grant) -> Result<Released, BackendError> {
        let released = self.call("pg_advisory_unlock", key).await;
        self.known.fetch_sub(1, Ordering::SeqCst);
        released.map_err(|error| BackendError::caused("giving a lock back", error))?;
        Ok(Released { ours: true, wanted: false })
    }

    async fn inspect(&self, _: &str) -> Result<Option<Holder>, BackendError> {
        Ok(None)
    }

    async fn force_release(&self, _: &str, _: &Grant, _: &str) -> Result<bool, BackendError> {
        Ok(false)
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(1)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_waits_at_the_server_is_detected_on_postgres() {
    let place = Place::shared(Kind::PostgresSession).await;
    let (tokens, known) = (Arc::new(AtomicI64::new(1)), Arc::new(AtomicI64::new(0)));
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        let backend = WaitsAtTheServer::connect(&place.url, tokens.clone(), known.clone()).await;
        processes.push(LockProvider::new(backend, "test"));
    }
    // Whether a grant meets a timeout is a matter of microseconds, so the processes contend
    // until it happens.
    let (started, mut longest) = (Instant::now(), SHORTEST);
    while place.held().await == 0 {
        assert!(started.elapsed() < PATIENCE, "no lock without a holder was found");
        if !contend(&processes, longest).await {
            longest *= 4;
        }
        until("the other has acted on it", async || known.load(Ordering::SeqCst) == 0).await;
    }
}
