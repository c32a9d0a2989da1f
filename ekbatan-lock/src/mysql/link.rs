//! One connection, and texts of several statements that take one trip.
//!
//! What always holds: a connection whose answer was not read to its end is not used again; a
//! session is in UTC, commits each statement by itself and READ COMMITTED, whatever the
//! server's own defaults.

use std::time::{Duration, Instant};

use ekbatan_core::__private::mysql_options;
use ekbatan_core::config::DataSourceConfig;
use futures_util::TryStreamExt;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Connection as _, Either, Row};

use super::error::{Failure, MySqlLocksError, told};
use super::server::{LOOK, Server};
use crate::BackendError;

/// How long the server may take to answer; no statement here waits for anybody.
pub(super) const ANSWER: Duration = Duration::from_secs(15);

/// Opens connections to one server.
pub(super) struct Opener {
    options: MySqlConnectOptions,
}

impl Opener {
    pub(super) fn new(config: &DataSourceConfig) -> Result<Self, MySqlLocksError> {
        let options =
            mysql_options(config).map_err(|error| MySqlLocksError::Address(error.to_string()))?;
        Ok(Self { options })
    }

    /// Connects, looks at the server and sets the session up. With `patience`, the server ends
    /// a session from which it hears nothing for so long.
    pub(super) async fn open(&self, patience: Option<Duration>) -> Result<Link, MySqlLocksError> {
        let opened = tokio::time::timeout(ANSWER, self.connect(patience)).await;
        opened.unwrap_or_else(|_| {
            let why = format!("no connection to the lock database within {ANSWER:?}");
            Err(BackendError::new(why).into())
        })
    }

    async fn connect(&self, patience: Option<Duration>) -> Result<Link, MySqlLocksError> {
        let connected = MySqlConnection::connect_with(&self.options).await;
        let mut inner = connected.map_err(|error| {
            BackendError::new(format!("no connection to the lock database: {}", told(&error)))
        })?;
        let looked = run(&mut inner, "looking at the server", LOOK).await;
        let sets = looked.map_err(BackendError::from)?;
        let mut variables = Vec::new();
        for row in sets.iter().flat_map(|set| &set.rows) {
            variables.push((value(row, 0)?, value(row, 1)?));
        }
        let server = Server::read(&variables)?;
        let mut setup = format!(
            "SET NAMES utf8mb4, time_zone = '+00:00', autocommit = 1, lock_wait_timeout = 10, \
             innodb_lock_wait_timeout = 10, {}, \
             sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
            server.flavour.unlimited()
        );
        if let Some(patience) = patience {
            setup.push_str(&format!(", wait_timeout = {}", patience.as_secs().max(1)));
        }
        setup.push_str("; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED");
        let set = run(&mut inner, "setting a session up", &setup).await;
        set.map_err(BackendError::from)?;
        Ok(Link { inner, server, busy: false, used: Instant::now() })
    }
}

/// What one statement answered.
#[derive(Default)]
pub(super) struct Set {
    pub(super) rows: Vec<MySqlRow>,
    /// How many rows it found and changed.
    pub(super) affected: u64,
}

pub(super) struct Link {
    inner: MySqlConnection,
    pub(super) server: Server,
    /// Whether its user may have been dropped in the middle of an answer.
    busy: bool,
    used: Instant,
}

impl Link {
    /// Runs several statements in one trip; if one is refused, those behind it are not run.
    pub(super) async fn run(&mut self, what: &str, sql: &str) -> Result<Vec<Set>, Failure> {
        self.busy = true;
        let running = run(&mut self.inner, what, sql);
        let answer = tokio::time::timeout(ANSWER, running).await.unwrap_or_else(|_| {
            let why = format!("{what}: no answer within {ANSWER:?}");
            Err(Failure::Broken(BackendError::new(why)))
        });
        self.busy = answer.as_ref().is_err_and(Failure::is_broken);
        self.used = Instant::now();
        answer
    }

    /// Whether the connection may be used for something else.
    pub(super) fn is_in_order(&self) -> bool {
        !self.busy
    }

    /// Since when nobody has heard of the server.
    pub(super) fn silent_for(&self) -> Duration {
        self.used.elapsed()
    }

    /// Tells the server that nothing more will come.
    pub(super) async fn close(self) {
        // It is gone either way.
        let _ = tokio::time::timeout(ANSWER, self.inner.close()).await;
    }
}

async fn run(inner: &mut MySqlConnection, what: &str, sql: &str) -> Result<Vec<Set>, Failure> {
    let (mut sets, mut set) = (Vec::new(), Set::default());
    let mut answers = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(inner);
    while let Some(next) = answers.try_next().await.map_err(|error| Failure::of(what, &error))? {
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

/// A column of a row, of whatever type the server made of it.
pub(super) fn value<'r, T>(row: &'r MySqlRow, column: usize) -> Result<T, BackendError>
where
    T: sqlx::Decode<'r, sqlx::MySql> + sqlx::Type<sqlx::MySql>,
{
    row.try_get_unchecked(column)
        .map_err(|error| BackendError::new(format!("an answer was not understood: {error}")))
}
