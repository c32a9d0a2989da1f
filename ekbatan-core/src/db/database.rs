//! One database: its pools, its lanes, and what is known of its tables.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::driver::Driver;
use super::transaction::is_writing;
use super::{
    ActionId, ColumnInfo, CommitBatch, CommitError, CommitToken, Committed, DbError, DbErrorKind,
    Lanes, OpenAction, Pool, PooledConnection, Query, Route, SchemaError, TableError, TableInfo,
    TransactionOptions,
};
use crate::config::DataSourceConfig;
use crate::domain::{ShardIdentifier, Table, TableKey, Value};

/// The rows of a query.
pub(crate) type Rows = Vec<Vec<Value>>;

pub(crate) struct Database {
    /// Which shard it is.
    pub(crate) shard: ShardIdentifier,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) primary: Pool,
    pub(crate) replica: Option<Pool>,
    lanes: Lanes,
    tables: RwLock<HashMap<TableKey, Arc<TableInfo>>>,
}

impl Database {
    pub(crate) async fn connect(
        shard: ShardIdentifier,
        source: &DataSourceConfig,
        replica: Option<&DataSourceConfig>,
    ) -> Result<Self, DbError> {
        let driver = driver(source, replica)?;
        for (name, value) in [
            ("maximum_pool_size", source.maximum_pool_size),
            ("lanes", source.lanes),
            ("fold_limit", source.fold_limit),
        ] {
            if value == 0 {
                return Err(DbError::new(
                    DbErrorKind::Other,
                    format!("{name} is 0; it must be at least 1"),
                ));
            }
        }
        let timeout = source.connection_timeout;
        let primary = Pool::new(driver.clone(), Route::Primary, source)?;
        let replica = replica
            .map(|replica| Pool::new(driver.clone(), Route::Replica, replica))
            .transpose()?;
        // Whoever starts wants to know now that the database is not there.
        first_connection(&primary, timeout).await?;
        let lanes = Lanes::start(driver.clone(), source);
        Ok(Self { shard, driver, primary, replica, lanes, tables: RwLock::default() })
    }

    pub(crate) fn pool(&self, route: Route) -> &Pool {
        match route {
            Route::Replica => self.replica.as_ref().unwrap_or(&self.primary),
            Route::Primary => &self.primary,
        }
    }

    /// Runs a read. A pooled connection may have died since its last use; as nothing but a
    /// read is lost with it, the read is made again on the next one.
    pub(crate) async fn fetch(
        &self,
        query: &Query,
        route: Route,
        holder: &'static str,
    ) -> Result<Rows, DbError> {
        loop {
            let mut loan = self.pool(route).checkout(holder).await?;
            match loan.begin()?.fetch(query).await {
                Err(error) if error.is_connection_lost() => {
                    if !loan.is_used() {
                        return Err(self.named(error));
                    }
                }
                answer => {
                    loan.done();
                    return answer;
                }
            }
        }
    }

    /// Runs a read on the replica if that has reached a position, and on the primary
    /// otherwise. The connection that was asked how far it is, is the one that reads: behind
    /// one address there may be several replicas.
    pub(crate) async fn fetch_after(
        &self,
        query: &Query,
        position: &str,
        patience: Duration,
        holder: &'static str,
    ) -> Result<Rows, DbError> {
        match self.fetch_from_replica(query, position, patience, holder).await {
            Ok(Some(rows)) => return Ok(rows),
            Ok(None) => tracing::debug!(position, "the replica lags; the primary is read"),
            Err(error) => tracing::debug!(%error, "the replica failed; the primary is read"),
        }
        self.fetch(query, Route::Primary, holder).await
    }

    async fn fetch_from_replica(
        &self,
        query: &Query,
        position: &str,
        patience: Duration,
        holder: &'static str,
    ) -> Result<Option<Rows>, DbError> {
        let Some(replica) = &self.replica else { return Ok(None) };
        let mut loan = replica.checkout(holder).await?;
        let connection = loan.begin()?;
        let rows = match connection.has_reached(position, patience).await? {
            true => Some(connection.fetch(query).await?),
            false => None,
        };
        loan.done();
        Ok(rows)
    }

    /// How far the primary has come; nothing where no replica could be measured by it.
    pub(crate) async fn token(&self) -> Result<Option<CommitToken>, DbError> {
        if self.replica.is_none() {
            return Ok(None);
        }
        loop {
            let mut loan = self.primary.checkout("token").await?;
            match loan.begin()?.position().await {
                Err(error) if error.is_connection_lost() && loan.is_used() => {}
                Err(error) if error.is_connection_lost() => return Err(self.named(error)),
                answer => {
                    loan.done();
                    return Ok(answer?.map(|position| CommitToken::new(self.shard, &position)));
                }
            }
        }
    }

    /// Hands a batch to a lane and waits for what becomes of it. Dropping the future leaves
    /// the batch to the lane.
    pub(crate) async fn commit(&self, mut batch: CommitBatch) -> Result<Committed, CommitError> {
        self.check_not_writing().map_err(CommitError::Refused)?;
        batch.sort();
        self.lanes.submit(batch).await.map_err(|error| match error {
            CommitError::Refused(error) => CommitError::Refused(self.named(error)),
            CommitError::Unknown(action, why) => {
                CommitError::Unknown(action, format!("{}: {why}", self.driver.address()))
            }
            other => other,
        })
    }

    /// Marks an action as being worked for, so that whoever asks for its outcome waits.
    pub(crate) fn open_action(&self, action: ActionId) -> OpenAction {
        self.lanes.open_action(action)
    }

    /// Whether somebody in this process works for this action.
    pub(crate) fn is_open(&self, action: ActionId) -> bool {
        self.lanes.is_open(action)
    }

    /// Refuses to wait for a writer that this very task is.
    pub(crate) fn check_not_writing(&self) -> Result<(), DbError> {
        if self.driver.capabilities().single_writer && is_writing(self) {
            let why = "this task holds the one writer of the database in an open transaction, and would wait for itself; \
                       write within the transaction, or end it first";
            return Err(DbError::new(DbErrorKind::LockTimeout, why));
        }
        Ok(())
    }

    /// Takes an action's batch back, if nothing of it was sent yet.
    pub(crate) fn withdraw(&self, action: ActionId) -> bool {
        self.lanes.withdraw(action)
    }

    /// Waits until no lane works for this action any more.
    pub(crate) async fn settled(&self, action: ActionId) {
        self.lanes.settled(action).await;
    }

    /// What the database says about a table, asked once.
    pub(crate) async fn table(&self, table: &'static Table) -> Result<Arc<TableInfo>, TableError> {
        match self.known_table(table)? {
            Some(info) => Ok(info),
            None => Ok(self.learn_table(table, self.describe(table).await?)?),
        }
    }

    /// What the database said about a table, if it was asked before.
    pub(crate) fn known_table(
        &self,
        table: &'static Table,
    ) -> Result<Option<Arc<TableInfo>>, SchemaError> {
        let known =
            self.tables.read().unwrap_or_else(PoisonError::into_inner).get(&table.key()).cloned();
        if let Some(info) = &known {
            info.check_same(table, self.driver.address())?;
        }
        Ok(known)
    }

    /// Holds what the database says about a table against the code, and keeps it.
    pub(crate) fn learn_table(
        &self,
        table: &'static Table,
        found: Vec<ColumnInfo>,
    ) -> Result<Arc<TableInfo>, SchemaError> {
        let syntax = self.driver.syntax();
        let misfit = |column: &ColumnInfo, ty| syntax.misfit(column, ty);
        let info = Arc::new(TableInfo::check(table, found, misfit, self.driver.address())?);
        self.tables
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(table.key(), info.clone());
        Ok(info)
    }

    async fn describe(&self, table: &'static Table) -> Result<Vec<ColumnInfo>, DbError> {
        loop {
            let mut loan = self.primary.checkout("describe").await?;
            match loan.begin()?.describe(table).await {
                Err(error) if error.is_connection_lost() && loan.is_used() => {}
                Err(error) if error.is_connection_lost() => return Err(self.named(error)),
                answer => {
                    loan.done();
                    return answer;
                }
            }
        }
    }

    /// A connection with a transaction open. One that had died in the pool is not the
    /// caller's business: nothing was begun on it.
    pub(crate) async fn begin(
        &self,
        options: &TransactionOptions,
    ) -> Result<PooledConnection, DbError> {
        loop {
            let mut loan = self.primary.checkout("transaction").await?;
            match loan.begin()?.begin(options).await {
                Ok(()) => return Ok(loan),
                Err(error) if error.is_connection_lost() && loan.is_used() => {}
                Err(error) => return Err(self.named(error)),
            }
        }
    }

    fn named(&self, error: DbError) -> DbError {
        error.lost_at(self.driver.address())
    }

    pub(crate) fn forget_tables(&self) {
        self.tables.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) async fn close(&self) {
        self.lanes.close().await;
        self.primary.close();
        if let Some(replica) = &self.replica {
            replica.close();
        }
    }
}

/// Tries until the timeout: a server that starts beside us may need a moment.
async fn first_connection(pool: &Pool, timeout: Duration) -> Result<(), DbError> {
    let started = Instant::now();
    let mut pause = Duration::from_millis(50);
    for attempt in 1.. {
        let error = match pool.checkout("start").await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if !error.is_connection_lost() || started.elapsed() + pause > timeout {
            let waited = started.elapsed();
            return Err(DbError::new(
                error.kind(),
                format!("{error} (tried {attempt} time(s) in {waited:.1?})"),
            ));
        }
        tracing::info!(%error, attempt, "the database is not there yet; trying again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
    Ok(())
}

/// The dialect that the address names.
pub(crate) fn driver(
    primary: &DataSourceConfig,
    replica: Option<&DataSourceConfig>,
) -> Result<Arc<dyn Driver>, DbError> {
    let url = &primary.url;
    if replica.is_some() && url.starts_with("sqlite") {
        let why = "SQLite has no replicas; leave the replica out: readers of the file have connections of their own";
        return Err(DbError::new(DbErrorKind::Other, why));
    }
    if replica.is_some_and(|replica| replica.maximum_pool_size == 0) {
        return Err(DbError::new(
            DbErrorKind::Other,
            "the replica's maximum_pool_size is 0; it must be at least 1",
        ));
    }
    let scheme = url.split(':').next().unwrap_or_default();
    #[allow(unreachable_patterns)] // with every feature on, nothing is left out
    match scheme {
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(super::sqlite::SqliteDriver::new(primary)?)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            Ok(Arc::new(super::postgres::PostgresDriver::new(primary, replica)?))
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Ok(Arc::new(super::mysql::MySqlDriver::new(primary, replica)?)),
        "postgres" | "postgresql" | "sqlite" | "mysql" | "mariadb" => {
            let feature = match scheme {
                "postgresql" => "postgres",
                "mariadb" => "mysql",
                other => other,
            };
            Err(DbError::new(
                DbErrorKind::Other,
                format!(
                    "this build leaves out `{scheme}:`; enable the feature `{feature}` of the crate `ekbatan`"
                ),
            ))
        }
        other => Err(DbError::new(
            DbErrorKind::Other,
            format!(
                "`{other}:` is no database that is known here; write sqlite:FILE or postgres://USER:PASSWORD@HOST:PORT/DATABASE, or the same with mysql: or mariadb:"
            ),
        )),
    }
}
