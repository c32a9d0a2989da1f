//! The registry of databases.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::sharding::{Sharding, erase};
use super::shards::{Shards, visit};
use super::{Shard, ShardError, Slot};
use crate::clock::{Clock, SystemClock};
use crate::config::{ConfigError, EkbatanConfig};
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
use crate::db::RawConnection;
use crate::db::{
    Capabilities, Database, DbError, DbErrorKind, PoolStatus, Route, SchemaError, TableError,
    TransactionManager,
};
use crate::domain::{Entity, ShardIdentifier};

/// The databases could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The one database could not be.
    #[error(transparent)]
    Database(#[from] DbError),
    /// Some shards could not be.
    #[error("{}", each(.0))]
    Shards(Vec<(ShardIdentifier, DbError)>),
    /// The configuration has mistakes; each is listed.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

fn each(failures: &[(ShardIdentifier, DbError)]) -> String {
    let lines: Vec<String> =
        failures.iter().map(|(shard, error)| format!("shard {shard}: {error}")).collect();
    lines.join("\n")
}

/// An application's databases: its shards with their pools and lanes, and what is placed
/// where. Cheap to clone.
#[derive(Clone)]
pub struct Databases {
    pub(crate) shards: Arc<Shards>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Databases {
    /// Opens what the configuration names, shards side by side. A database that is not to be
    /// reached is an error now, not at the first action.
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
            // Locks may live at the address of the primary.
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
        Ok(Self { shards: Arc::new(shards), clock: Arc::new(SystemClock) })
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

    /// The same databases, with another rule by which the rows of `T` are placed. Whatever
    /// was made from the registry before keeps the rule that it knew.
    #[must_use]
    pub fn with_sharding<T: Entity>(mut self, sharding: Sharding<T>) -> Self {
        Arc::make_mut(&mut self.shards).placements.insert(T::TABLE.key(), erase(sharding));
        self
    }

    /// Every shard, by group and then by member.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = Shard> + '_ {
        self.shards.all().map(|database| self.handle(database))
    }

    /// A shard by its identifier.
    pub fn shard(&self, shard: ShardIdentifier) -> Result<Shard, ShardError> {
        self.shards.database(shard).map(|database| self.handle(database))
    }

    /// The shard where rows without a shard are: with one database, that one.
    pub fn default_shard(&self) -> Shard {
        self.handle(self.shards.default())
    }

    fn handle(&self, database: &Arc<Database>) -> Shard {
        let slots = self.shards.slots.get(&database.shard).cloned().unwrap_or_default();
        Shard { database: database.clone(), slots }
    }

    /// Transactions that user code holds open on the default shard.
    pub fn transactions(&self) -> TransactionManager {
        self.default_shard().transactions()
    }

    /// Holds the table of `T` against the code, on every shard that may have its rows.
    pub async fn check<T: Entity>(&self) -> Result<(), CheckError> {
        let checked =
            self.shards.of_table::<T>().into_iter().map(|database| database.table(T::TABLE));
        visit(checked.collect())
            .await
            .into_iter()
            .try_for_each(|table| table.map(drop).map_err(CheckError))
    }

    /// What the default shard's database can do.
    pub fn capabilities(&self) -> Capabilities {
        self.default_shard().capabilities()
    }

    /// What a pool of the default shard is doing.
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

    /// A connection for raw SQL on MySQL or MariaDB. There, giving it back opens a new session
    /// in its place.
    #[cfg(feature = "mysql")]
    pub async fn mysql(&self) -> Result<RawConnection<sqlx::MySqlConnection>, DbError> {
        self.default_shard().mysql().await
    }

    /// Commits what still waits and closes every connection that is not on loan.
    pub async fn close(&self) {
        visit(self.shards.all().map(|database| database.close()).collect()).await;
        self.shards.slots.values().flatten().for_each(Slot::close);
    }
}

/// Whether an entry of a member's `configs` is neither its primary nor its replica.
fn is_slot(name: &str) -> bool {
    !matches!(name, "primaryConfig" | "secondaryConfig")
}

/// What `EkbatanConfig::check` refuses, so that nobody gets here.
fn missing(shard: ShardIdentifier, what: &str) -> DbError {
    DbError::new(DbErrorKind::Other, format!("shard {shard} {what}"))
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
