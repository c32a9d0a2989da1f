//! One connection, and SQL texts of several statements that take one round trip.
//!
//! Invariants: a connection whose answer was not read to its end, or whose runtime has ended, is
//! not used again. A session sets all variables that a statement here relies on, so the server's
//! defaults do not matter.

use std::time::{Duration, Instant};

use ekbatan_core::__private::mysql_options;
use ekbatan_core::config::DataSourceConfig;
use futures_util::TryStreamExt;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Connection as _, Either, Row};
use tokio::task::AbortHandle;

use super::error::{MySqlLocksError, StatementFailure, connecting, describe};
use super::server::{ServerInfo, VARIABLES};
use crate::BackendError;

/// Maximum time for the server to answer, unless `read_timeout` is shorter. No statement here
/// waits for a named lock.
const LONGEST_ANSWER: Duration = Duration::from_secs(15);

/// Maximum time in seconds that a statement waits for a row. Meanwhile it keeps the rows that it
/// has locked before, whose leases could not be renewed. On a slow machine a commit may keep the
/// row of its lease for more than a second.
const WAIT_FOR_ROW: u32 = 2;

/// Idle time after which the server ends a connection of the pool. The pool checks a connection
/// much earlier, so it never uses one that the server has ended.
const POOLED_IDLE: Duration = Duration::from_secs(3600);

/// Opens connections to one server.
pub(super) struct MySqlConnector {
    options: MySqlConnectOptions,
    /// Maximum time for the server to answer.
    pub(super) answer: Duration,
}

impl MySqlConnector {
    pub(super) fn new(config: &DataSourceConfig) -> Result<Self, MySqlLocksError> {
        let options =
            mysql_options(config).map_err(|error| MySqlLocksError::Address(error.to_string()))?;
        let shortest = Some(config.read_timeout).filter(|timeout| !timeout.is_zero());
        Ok(Self { options, answer: shortest.map_or(LONGEST_ANSWER, |it| it.min(LONGEST_ANSWER)) })
    }

    /// Connects, checks the server and sets up the session. The server ends it after
    /// `wait_timeout` without a statement, or after [`POOLED_IDLE`].
    pub(super) async fn open(
        &self,
        wait_timeout: Option<Duration>,
    ) -> Result<MySqlLockConnection, MySqlLocksError> {
        let opened = tokio::time::timeout(self.answer, self.connect(wait_timeout)).await;
        opened.unwrap_or_else(|_| {
            let why = format!("no connection to the lock database within {:?}", self.answer);
            Err(BackendError::unavailable(why).into())
        })
    }

    async fn connect(
        &self,
        wait_timeout: Option<Duration>,
    ) -> Result<MySqlLockConnection, MySqlLocksError> {
        let connected = MySqlConnection::connect_with(&self.options).await;
        let mut inner = connected.map_err(|error| {
            let why = format!("no connection to the lock database: {}", describe(&error));
            BackendError::new(why).of_kind(connecting(&error))
        })?;
        let looked = run(&mut inner, "checking the server", VARIABLES).await;
        let sets = looked.map_err(BackendError::from)?;
        let mut variables = Vec::new();
        for row in sets.iter().flat_map(|set| &set.rows) {
            variables.push((value(row, 0)?, value(row, 1)?));
        }
        let server = ServerInfo::read(&variables)?;
        let setup = format!(
            "SET NAMES utf8mb4, time_zone = '+00:00', lock_wait_timeout = 10, \
             innodb_lock_wait_timeout = {WAIT_FOR_ROW}, sql_safe_updates = 0, {}, \
             sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', wait_timeout = {}; \
             SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
            server.variant.unlimited(),
            wait_timeout.unwrap_or(POOLED_IDLE).as_secs().max(1)
        );
        let set = run(&mut inner, "setting up a session", &setup).await;
        set.map_err(BackendError::from)?;
        let (answer, used) = (self.answer, Instant::now());
        let runtime = RuntimeWatch::begin();
        Ok(MySqlLockConnection { inner, server, answer, busy: false, used, runtime })
    }
}

/// The result of one statement.
#[derive(Default)]
pub(super) struct StatementResult {
    pub(super) rows: Vec<MySqlRow>,
    /// Number of rows that the statement found and changed.
    pub(super) affected: u64,
}

pub(super) struct MySqlLockConnection {
    inner: MySqlConnection,
    pub(super) server: ServerInfo,
    /// Maximum time for the server to answer.
    answer: Duration,
    /// Whether a caller may have been dropped in the middle of an answer.
    busy: bool,
    used: Instant,
    runtime: RuntimeWatch,
}

/// A task of the runtime that opened a connection. The task ends with that runtime, and from
/// then on statements are still sent, but their answers cannot be read.
struct RuntimeWatch(AbortHandle);

impl RuntimeWatch {
    fn begin() -> Self {
        Self(tokio::spawn(std::future::pending::<()>()).abort_handle())
    }

    fn has_ended(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for RuntimeWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl MySqlLockConnection {
    /// Runs several statements in one round trip. If one fails, the following are not run.
    pub(super) async fn run(
        &mut self,
        what: &str,
        sql: &str,
    ) -> Result<Vec<StatementResult>, StatementFailure> {
        self.busy = true;
        let running = run(&mut self.inner, what, sql);
        let answer = tokio::time::timeout(self.answer, running).await.unwrap_or_else(|_| {
            let why = format!("{what}: no answer within {:?}", self.answer);
            Err(StatementFailure::Broken(BackendError::in_doubt(why)))
        });
        self.busy = answer.as_ref().is_err_and(StatementFailure::is_broken);
        self.used = Instant::now();
        answer
    }

    /// Whether the connection can be used again.
    pub(super) fn is_reusable(&self) -> bool {
        !self.busy && !self.runtime.has_ended()
    }

    /// The time since the last answer of the server.
    pub(super) fn idle_for(&self) -> Duration {
        self.used.elapsed()
    }

    /// Closes the session at the server.
    pub(super) async fn close(self) {
        // If closing fails, dropping the connection closes the socket.
        let _ = tokio::time::timeout(self.answer, self.inner.close()).await;
    }
}

async fn run(
    inner: &mut MySqlConnection,
    what: &str,
    sql: &str,
) -> Result<Vec<StatementResult>, StatementFailure> {
    let (mut sets, mut set) = (Vec::new(), StatementResult::default());
    let mut answers = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(inner);
    while let Some(next) =
        answers.try_next().await.map_err(|error| StatementFailure::of(what, &error))?
    {
        match next {
            Either::Right(row) => set.rows.push(row),
            Either::Left(done) => {
                set.affected = done.rows_affected();
                sets.push(std::mem::take(&mut set));
            }
        }
    }
    Ok(sets)
}

/// A column of a row, without a check of the type that the server declares.
pub(super) fn value<'r, T>(row: &'r MySqlRow, column: usize) -> Result<T, BackendError>
where
    T: sqlx::Decode<'r, sqlx::MySql> + sqlx::Type<sqlx::MySql>,
{
    row.try_get_unchecked(column).map_err(|error| {
        BackendError::new(format!("the server's answer cannot be decoded: {error}"))
    })
}
