//! The further databases of a shard, by the names of their slots.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::config::DataSourceConfig;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
use crate::db::RawConnection;
use crate::db::{DbError, DbErrorKind, Pool, PoolStatus, Route, driver_for};

/// A database of a shard besides the primary and the replica, by the name of its slot in the
/// configuration, such as `lockConfig`. It has its own pool, which opens at the first use. Cheap to
/// clone.
#[derive(Clone)]
pub struct Slot {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    config: DataSourceConfig,
    /// `None` if the slot was closed before its first use.
    pool: OnceLock<Option<Pool>>,
}

impl Slot {
    pub(super) fn new(name: &str, config: &DataSourceConfig) -> Self {
        Self {
            inner: Arc::new(Inner {
                name: name.to_owned(),
                config: config.clone(),
                pool: OnceLock::new(),
            }),
        }
    }

    /// The name, in camelCase.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its configuration.
    pub fn config(&self) -> &DataSourceConfig {
        &self.inner.config
    }

    /// The status of its pool; `None` before the first use.
    pub fn pool_status(&self) -> Option<PoolStatus> {
        self.inner.pool.get()?.as_ref().map(Pool::status)
    }

    /// A connection for raw SQL on PostgreSQL.
    #[cfg(feature = "postgres")]
    pub async fn postgres(&self) -> Result<RawConnection<sqlx::PgConnection>, DbError> {
        RawConnection::checkout(self.pool()?, crate::db::postgres::raw).await
    }

    /// A connection for raw SQL on MySQL or MariaDB.
    #[cfg(feature = "mysql")]
    pub async fn mysql(&self) -> Result<RawConnection<sqlx::MySqlConnection>, DbError> {
        RawConnection::checkout(self.pool()?, crate::db::mysql::raw).await
    }

    /// A connection for raw SQL on SQLite.
    #[cfg(feature = "sqlite")]
    pub async fn sqlite(&self) -> Result<RawConnection<sqlx::SqliteConnection>, DbError> {
        RawConnection::checkout(self.pool()?, crate::db::sqlite::raw).await
    }

    fn pool(&self) -> Result<&Pool, DbError> {
        let opened = match self.inner.pool.get() {
            Some(opened) => opened,
            None => {
                let config = &self.inner.config;
                let (driver, name) = (driver_for(config, None)?, &self.inner.name);
                let pool = Pool::new(driver, Route::Primary, name, config)?;
                self.inner.pool.get_or_init(|| Some(pool))
            }
        };
        opened.as_ref().ok_or_else(|| {
            let why = format!("the databases were closed before `{}` was used", self.name());
            DbError::new(DbErrorKind::Unavailable, why)
        })
    }

    pub(super) async fn close(&self) {
        if let Some(pool) = self.inner.pool.get_or_init(|| None) {
            pool.close().await;
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("name", &self.inner.name).finish_non_exhaustive()
    }
}
