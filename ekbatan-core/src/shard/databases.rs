//! The registry of databases.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::sharding::{Sharding, erase};
use super::shards::{Shards, visit};
use super::{Shard, ShardError, Slot};
use crate::clock::{Clock, SystemClock};
use crate::config::{AddressError, ConfigError, EkbatanConfig, EventsConfig, JobsConfig};
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
use crate::db::RawConnection;
use crate::db::{
    Capabilities, Database, DbError, DbErrorKind, PoolStatus, Route, SchemaError, TableError,
    TransactionManager,
};
use crate::domain::{Entity, ShardIdentifier};

/// Opening the databases failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The only database could not be opened.
    #[error(transparent)]
    Database(#[from] DbError),
    /// Some shards could not be opened.
    #[error("{}", each(.0))]
    Shards(Vec<(ShardIdentifier, DbError)>),
    /// The configuration is invalid. The error lists all problems.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address is not one of a database.
    #[error(transparent)]
    Address(#[from] AddressError),
}

fn each(failures: &[(ShardIdentifier, DbError)]) -> String {
    let lines: Vec<String> =
        failures.iter().map(|(shard, error)| format!("shard {shard}: {error}")).collect();
    lines.join("\n")
}

/// An application's databases: the shards with their pools and lanes, and the placement of rows.
/// Cheap to clone.
#[derive(Clone)]
pub struct Databases {
    pub(crate) shards: Arc<Shards>,
    pub(crate) clock: Arc<dyn Clock>,
    events: Arc<EventsConfig>,
    jobs: Arc<JobsConfig>,
}

impl Databases {
    /// Opens all databases of the configuration, shards concurrently. A database that cannot be
    /// reached is an error here, not at the first action.
    pub async fn connect(config: &EkbatanConfig) -> Result<Self, ConnectError> {
        config.check()?;
        let sharding = &config.sharding;
        let members: Vec<_> = sharding.shards().collect();
        let opening = members.iter().map(|(shard, member)| async move {
            let opened = match member.primary() {
                Some(primary) => Database::connect(*shard, primary, member.secondary()).await,
                None => Err(missing(*shard, "has no primary-config")),
            };
            (*shard, opened)
        });
        let mut databases = BTreeMap::new();
        let mut failures = Vec::new();
        for (shard, opened) in visit(opening.collect()).await {
            match opened {
                Ok(database) => drop(databases.insert(shard, Arc::new(database))),
                Err(failure) => failures.push((shard, failure)),
            }
        }
        if members.len() == 1
            && let Some((_, error)) = failures.pop()
        {
            return Err(error.into());
        }
        if !failures.is_empty() {
            return Err(ConnectError::Shards(failures));
        }
        let default = match databases.get(&sharding.default_shard) {
            Some(database) => database.clone(),
            None => {
                return Err(
                    missing(sharding.default_shard, "is the default and has no entry").into()
                );
            }
        };
        let slots = members.iter().map(|(shard, member)| {
            // Locks may use the address of the primary.
            let locks = member.locks().map(|locks| locks.server);
            let slots = member.configs.iter().filter(|(name, _)| is_slot(name));
            let slots = slots.map(|(name, config)| match &locks {
                Some(locks) if name == "lockConfig" => Slot::new(name, locks),
                _ => Slot::new(name, config),
            });
            (*shard, slots.collect())
        });
        let shards = Shards {
            slots: slots.collect(),
            default,
            databases,
            unknown: sharding.unknown_shard,
            placements: HashMap::new(),
        };
        let events = Arc::new(config.events.clone());
        let jobs = Arc::new(config.jobs.clone());
        Ok(Self { shards: Arc::new(shards), clock: Arc::new(SystemClock), events, jobs })
    }

    /// Opens one database by its address: `sqlite:FILE`, `postgres://..`, `mysql://..` or
    /// `mariadb://..`.
    pub async fn open(url: &str) -> Result<Self, ConnectError> {
        let config = EkbatanConfig::single(url);
        config.check_address()?;
        Self::connect(&config).await
    }

    /// The clock.
    #[doc(hidden)]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// How nodes handle events.
    #[doc(hidden)]
    pub fn events_config(&self) -> &EventsConfig {
        &self.events
    }

    /// How nodes run jobs.
    #[doc(hidden)]
    pub fn jobs_config(&self) -> &JobsConfig {
        &self.jobs
    }

    /// Returns the same databases with another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Returns the same databases with another placement rule for the rows of `T`. Repositories
    /// and executors that were made before keep the old rule.
    #[must_use]
    pub fn with_sharding<T: Entity>(mut self, sharding: Sharding<T>) -> Self {
        Arc::make_mut(&mut self.shards).placements.insert(T::TABLE.key(), erase(sharding));
        self
    }

    /// All shards, ordered by group, then by member.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = Shard> + '_ {
        self.shards.all().map(|database| self.handle(database))
    }

    /// The shard with this identifier.
    pub fn shard(&self, shard: ShardIdentifier) -> Result<Shard, ShardError> {
        self.shards.database(shard).map(|database| self.handle(database))
    }

    /// The shard of rows that name no shard. With one database, that database.
    pub fn default_shard(&self) -> Shard {
        self.handle(self.shards.default())
    }

    fn handle(&self, database: &Arc<Database>) -> Shard {
        let slots = self.shards.slots.get(&database.shard).cloned().unwrap_or_default();
        Shard { database: database.clone(), slots }
    }

    /// Transactions of user code on the default shard.
    pub fn transactions(&self) -> TransactionManager {
        self.default_shard().transactions()
    }

    /// Checks that the table of `T` matches the code, and that rows can be inserted, on every shard
    /// that may have its rows.
    pub async fn check<T: Entity>(&self) -> Result<(), CheckError> {
        let shards = self.shards.of_table::<T>();
        let checked = shards.into_iter().map(|database| database.insertable_table(T::TABLE));
        visit(checked.collect())
            .await
            .into_iter()
            .try_for_each(|table| table.map(drop).map_err(CheckError))
    }

    /// The capabilities of the default shard's database.
    pub fn capabilities(&self) -> Capabilities {
        self.default_shard().capabilities()
    }

    /// The status of a pool of the default shard.
    pub fn pool_status(&self, route: Route) -> PoolStatus {
        self.default_shard().pool_status(route)
    }

    /// A connection for raw SQL on PostgreSQL, to the default shard.
    #[cfg(feature = "postgres")]
    pub async fn postgres(&self) -> Result<RawConnection<sqlx::PgConnection>, DbError> {
        self.default_shard().postgres().await
    }

    /// A connection for raw SQL on SQLite, to the default shard.
    #[cfg(feature = "sqlite")]
    pub async fn sqlite(&self) -> Result<RawConnection<sqlx::SqliteConnection>, DbError> {
        self.default_shard().sqlite().await
    }

    /// A connection for raw SQL on MySQL or MariaDB. Returning it to the pool opens a new session
    /// in its place.
    #[cfg(feature = "mysql")]
    pub async fn mysql(&self) -> Result<RawConnection<sqlx::MySqlConnection>, DbError> {
        self.default_shard().mysql().await
    }

    /// Commits all waiting batches, closes every connection, and returns when they are closed: of
    /// SQLite the file alone is then the whole database, if no other process has it open.
    ///
    /// For connections that are checked out it waits for at most `connection_timeout`, and logs
    /// who holds them.
    pub async fn close(&self) {
        visit(self.shards.all().map(|database| database.close()).collect()).await;
        visit(self.shards.slots.values().flatten().map(Slot::close).collect()).await;
    }
}

/// Whether an entry of a member's `configs` is neither the primary nor the replica.
fn is_slot(name: &str) -> bool {
    !matches!(name, "primaryConfig" | "secondaryConfig")
}

/// An error that `EkbatanConfig::check` already rules out.
fn missing(shard: ShardIdentifier, what: &str) -> DbError {
    DbError::new(DbErrorKind::Other, format!("shard {shard} {what}"))
}

/// A table does not match the code, or could not be inspected.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct CheckError(TableError);

impl CheckError {
    /// The difference, if the database could be reached.
    pub fn schema(&self) -> Option<&SchemaError> {
        match &self.0 {
            TableError::Schema(error) => Some(error),
            TableError::Database(_) => None,
        }
    }
}

impl std::fmt::Debug for Databases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Databases")
            .field("shards", &self.shards.all().map(|database| database.shard).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
