//! One shard of the registry.

use std::sync::Arc;

use super::Slot;
use crate::db::{Capabilities, Database, PoolStatus, Route, TransactionManager};
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
use crate::db::{DbError, RawConnection};
use crate::domain::ShardIdentifier;

/// One shard of a [`Databases`](super::Databases). Cheap to clone.
#[derive(Clone)]
pub struct Shard {
    pub(super) database: Arc<Database>,
    pub(super) slots: Vec<Slot>,
}

impl Shard {
    /// The identifier.
    pub fn identifier(&self) -> ShardIdentifier {
        self.database.shard
    }

    /// The address of the primary, without secrets.
    pub fn address(&self) -> &str {
        self.database.driver.address()
    }

    /// Transactions of user code on this shard.
    pub fn transactions(&self) -> TransactionManager {
        TransactionManager::new(self.database.clone())
    }

    /// The capabilities of the database.
    pub fn capabilities(&self) -> Capabilities {
        *self.database.driver.capabilities()
    }

    /// The status of a pool.
    pub fn pool_status(&self, route: Route) -> PoolStatus {
        self.database.pool(route).status()
    }

    /// A further database of the shard, by its camelCase name, such as `lockConfig`.
    pub fn slot(&self, name: &str) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.name() == name)
    }

    /// A connection for raw SQL on PostgreSQL.
    #[cfg(feature = "postgres")]
    pub async fn postgres(&self) -> Result<RawConnection<sqlx::PgConnection>, DbError> {
        RawConnection::checkout(&self.database.primary, crate::db::postgres::raw).await
    }

    /// A connection for raw SQL on MySQL or MariaDB.
    #[cfg(feature = "mysql")]
    pub async fn mysql(&self) -> Result<RawConnection<sqlx::MySqlConnection>, DbError> {
        RawConnection::checkout(&self.database.primary, crate::db::mysql::raw).await
    }

    /// A connection for raw SQL on SQLite.
    #[cfg(feature = "sqlite")]
    pub async fn sqlite(&self) -> Result<RawConnection<sqlx::SqliteConnection>, DbError> {
        RawConnection::checkout(&self.database.primary, crate::db::sqlite::raw).await
    }
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard")
            .field("identifier", &self.identifier())
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}
