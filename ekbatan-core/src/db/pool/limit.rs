//! How long a use of a connection may take.

use std::time::Duration;

use crate::config::DataSourceConfig;
use crate::db::{DbError, DbErrorKind, Driver};

/// The maximum time of one use of a connection, and the setting that it comes from.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    setting: &'static str,
    /// `None` for no limit.
    time: Option<Duration>,
}

impl Limit {
    /// The same limit for a use that waits for `patience` by itself.
    pub(super) fn after(self, patience: Duration) -> Self {
        Self { time: self.time.map(|time| time.saturating_add(patience)), ..self }
    }

    /// Runs `work`; `None` if it takes longer.
    pub(super) async fn bound<T>(self, work: impl Future<Output = T>) -> Option<T> {
        match self.time {
            Some(time) => tokio::time::timeout(time, work).await.ok(),
            None => Some(work.await),
        }
    }

    pub(super) fn exceeded(self) -> DbError {
        let Self { setting, time } = self;
        let time = time.unwrap_or_default();
        let why = format!("no answer within {time:?} ({setting}); the connection was closed");
        DbError::new(DbErrorKind::Unavailable, why)
    }
}

/// The limits of the uses of a pool's connections.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Of opening a connection.
    pub(super) connect: Limit,
    /// Of every use but a commit.
    pub(super) read: Limit,
    /// Of the commit of a transaction.
    pub(super) commit: Limit,
}

impl Limits {
    pub(super) fn new(driver: &dyn Driver, config: &DataSourceConfig) -> Self {
        // SQLite runs in this process, and always answers.
        let bounds = |time: &Duration| !driver.capabilities().single_writer && !time.is_zero();
        let limit = |setting, time: Duration| Limit { setting, time: Some(time).filter(bounds) };
        Self {
            connect: limit("connection-timeout", config.connection_timeout),
            read: limit("read-timeout", config.read_timeout),
            commit: limit("commit-timeout", config.commit_timeout),
        }
    }
}
