//! One shard of the registry.

use std::sync::Arc;

use uuid::Uuid;

use super::Slot;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
use crate::db::RawConnection;
use crate::db::{Capabilities, Database, DbError, PoolStatus, Route, TransactionManager};
use crate::domain::{FieldError, ShardIdentifier, Stored};
use crate::outbox::deliveries::{
    Delivery, Mark, StoredEvent, Subscriptions, SweepError, Swept, stored_events, sweep,
};

/// One shard of a [`Databases`](super::Databases). Cheap to clone.
#[derive(Clone)]
pub struct Shard {
    pub(super) database: Arc<Database>,
    pub(super) slots: Vec<Slot>,
}

impl Shard {
    pub(crate) fn database(&self) -> &Arc<Database> {
        &self.database
    }

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

    /// The mark of a delivery on this shard.
    #[doc(hidden)]
    pub fn mark(&self, delivery: &Stored<Delivery>) -> Result<Mark, FieldError> {
        Mark::new(self.database.clone(), delivery)
    }

    /// The events with these ids, in no order.
    #[doc(hidden)]
    pub async fn events(&self, ids: Vec<Uuid>) -> Result<Vec<StoredEvent>, DbError> {
        stored_events(&self.database, ids).await
    }

    /// Gives deliveries to events on this shard that lack some.
    #[doc(hidden)]
    pub async fn sweep(
        &self,
        subscriptions: &Subscriptions,
        most: usize,
    ) -> Result<Swept, SweepError> {
        sweep(&self.database, subscriptions, most).await
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
