//! The registry of databases.

use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::config::EkbatanConfig;
use crate::db::{
    AppliedMigration, Capabilities, Database, DbError, MigrationError, Migrations, PoolStatus,
    Route, SchemaError, TableError, TransactionManager,
};
use crate::domain::Entity;
use crate::repository::Repository;

/// The databases could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConnectError(#[from] DbError);

/// An application's databases: their pools, their lanes, their migrations. Cheap to clone.
#[derive(Clone)]
pub struct Databases {
    pub(crate) database: Arc<Database>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Databases {
    /// Opens what the configuration names. A database that is not to be reached is an error
    /// now, not at the first action.
    pub async fn connect(config: &EkbatanConfig) -> Result<Self, ConnectError> {
        Ok(Self {
            database: Arc::new(Database::connect(config).await?),
            clock: Arc::new(SystemClock),
        })
    }

    /// One database by its address: `sqlite:FILE`, `postgres://..`, `mysql://..` or
    /// `mariadb://..`.
    pub async fn open(url: &str) -> Result<Self, ConnectError> {
        Self::connect(&EkbatanConfig::single(url)).await
    }

    /// The same databases, on another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Applies the framework's migrations, then the application's. Any number of processes
    /// may do so at once.
    pub async fn migrate(&self, migrations: &Migrations) -> Result<(), MigrationError> {
        crate::db::migrate(&self.database, migrations, &*self.clock).await
    }

    /// What has been applied.
    pub async fn migrations(&self) -> Result<Vec<AppliedMigration>, MigrationError> {
        let mut loan = self.database.primary.checkout("migrations").await?;
        let applied = crate::db::applied(loan.begin()?, &*self.database.driver).await;
        loan.done();
        applied
    }

    /// The rows of `T`.
    pub fn repository<T: Entity>(&self) -> Repository<T> {
        Repository::new(self.database.clone(), self.clock.clone(), "repository")
    }

    /// Transactions that user code holds open.
    pub fn transactions(&self) -> TransactionManager {
        TransactionManager::new(self.database.clone())
    }

    /// Holds the table of `T` against the code.
    pub async fn check<T: Entity>(&self) -> Result<(), CheckError> {
        self.database.table(T::TABLE).await.map(drop).map_err(CheckError)
    }

    /// What the database can do.
    pub fn capabilities(&self) -> Capabilities {
        *self.database.driver.capabilities()
    }

    /// What a pool is doing.
    pub fn pool_status(&self, route: Route) -> PoolStatus {
        self.database.pool(route).status()
    }

    /// A connection for raw SQL on PostgreSQL.
    #[cfg(feature = "postgres")]
    pub async fn postgres(&self) -> Result<crate::db::RawConnection<sqlx::PgConnection>, DbError> {
        crate::db::RawConnection::checkout(&self.database, |connection| {
            connection
                .as_any()
                .downcast_mut::<crate::db::postgres::PostgresConnection>()
                .map(|c| &mut c.inner)
        })
        .await
    }

    /// A connection for raw SQL on SQLite.
    #[cfg(feature = "sqlite")]
    pub async fn sqlite(
        &self,
    ) -> Result<crate::db::RawConnection<sqlx::SqliteConnection>, DbError> {
        crate::db::RawConnection::checkout(&self.database, |connection| {
            connection
                .as_any()
                .downcast_mut::<crate::db::sqlite::SqliteLink>()
                .map(|c| &mut c.inner)
        })
        .await
    }

    /// A connection for raw SQL on MySQL or MariaDB. There, giving it back opens a new session
    /// in its place.
    #[cfg(feature = "mysql")]
    pub async fn mysql(&self) -> Result<crate::db::RawConnection<sqlx::MySqlConnection>, DbError> {
        crate::db::RawConnection::checkout(&self.database, |connection| {
            connection.as_any().downcast_mut::<crate::db::mysql::MySqlLink>().map(|c| &mut c.inner)
        })
        .await
    }

    /// Commits what still waits and closes every connection that is not on loan.
    pub async fn close(&self) {
        self.database.close().await;
    }
}

/// A table is not what the code believes, or could not be looked at.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct CheckError(TableError);

impl CheckError {
    /// What is different, if the database could be asked.
    pub fn schema(&self) -> Option<&SchemaError> {
        match &self.0 {
            TableError::Schema(error) => Some(error),
            TableError::Database(_) => None,
        }
    }
}
