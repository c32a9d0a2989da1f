//! One database: its pools, its lanes, and the columns of its tables.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::barrier_queue::BarrierQueue;
use super::dialect::driver_for;
use super::doorbell::Doorbell;
use super::driver::{Connection, Driver};
use super::fence::FenceRaise;
use super::open_transactions::{Side, open_transaction};
use super::running::RunningTransaction;
use super::same_table::{self, Described, alike};
use super::{
    ActionId, ColumnInfo, CommitBatch, CommitError, CommitToken, Committed, DbError, DbErrorKind,
    FoldedReads, Lanes, OpenAction, Pool, PooledConnection, Query, Route, Rows, SchemaError,
    SizeLimits, TableError, TableInfo, TransactionOptions, Use,
};
use crate::config::DataSourceConfig;
use crate::domain::{ColumnDef, ShardIdentifier, Table, TableKey, Value, ValueType};

pub(crate) struct Database {
    pub(crate) shard: ShardIdentifier,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) primary: Pool,
    pub(crate) replica: Option<Pool>,
    /// Whether a warning has said why the replica cannot be read.
    replica_is_reported: AtomicBool,
    lanes: Lanes,
    pub(crate) doorbell: Doorbell,
    pub(super) folded_reads: FoldedReads,
    sizes: SizeLimits,
    /// The longest time of a commit.
    pub(super) commit_timeout: Duration,
    pub(crate) barrier: BarrierQueue,
    tables: RwLock<HashMap<TableKey, Arc<TableInfo>>>,
}

impl Database {
    pub(crate) async fn connect(
        shard: ShardIdentifier,
        source: &DataSourceConfig,
        replica: Option<&DataSourceConfig>,
    ) -> Result<Self, DbError> {
        let driver = driver_for(source, replica)?;
        for (name, value) in [
            ("maximum-pool-size", source.maximum_pool_size),
            ("lanes", source.lanes.unwrap_or(1)),
            ("fold-limit", source.fold_limit),
            ("queue-limit", source.queue_limit),
        ] {
            if value == 0 {
                return Err(DbError::new(
                    DbErrorKind::Other,
                    format!("{name} is 0; it must be at least 1"),
                ));
            }
        }
        let timeout = source.connection_timeout;
        let primary = Pool::new(driver.clone(), Route::Primary, "primary-config", source)?;
        let replica = replica
            .map(|replica| Pool::new(driver.clone(), Route::Replica, "secondary-config", replica))
            .transpose()?;
        // Report now, not at the first call, that the database cannot be reached.
        first_connection(&primary, timeout).await?;
        let lanes = Lanes::start(driver.clone(), source);
        let sizes = SizeLimits::new(source, driver.syntax().most_parameters());
        let tables = RwLock::default();
        let (folded_reads, doorbell) = (FoldedReads::default(), Doorbell::new(driver.clone()));
        let (commit_timeout, barrier) = (source.commit_timeout, BarrierQueue::default());
        Ok(Self {
            shard,
            driver,
            primary,
            replica,
            replica_is_reported: AtomicBool::new(false),
            lanes,
            doorbell,
            folded_reads,
            sizes,
            commit_timeout,
            barrier,
            tables,
        })
    }

    pub(crate) fn pool(&self, route: Route) -> &Pool {
        match route {
            Route::Replica => self.replica.as_ref().unwrap_or(&self.primary),
            Route::Primary => &self.primary,
        }
    }

    /// Runs `work` on a pooled connection, which is still marked busy when it is returned.
    ///
    /// An idle connection may have died unnoticed, or lead to a primary that was demoted. If the
    /// connection is lost and was used before, `work` runs again on another one, so `work` must
    /// be safe to repeat. After a timeout it is not repeated: the caller has waited long enough.
    /// `'w` is how long the data lives that `work` borrows.
    async fn on_connection<'w, T>(
        &self,
        pool: &Pool,
        holder: &'static str,
        mut work: impl for<'c> FnMut(&'c mut (dyn Connection + 'w)) -> Use<'c, T>,
    ) -> Result<(PooledConnection, Result<T, DbError>), DbError> {
        loop {
            let mut loan = pool.checkout(holder).await?;
            let answer = loan.run(&mut work).await.map_err(|error| self.read_only_is_lost(error));
            match answer {
                Err(error) if error.is_connection_lost() => {
                    if loan.is_closed() || !loan.is_used() {
                        return Err(error.lost_at(self.driver.address()));
                    }
                }
                answer => return Ok((loan, answer)),
            }
        }
    }

    /// Like [`Database::on_connection`], and gives the connection back to the pool.
    async fn read<'w, T>(
        &self,
        pool: &Pool,
        holder: &'static str,
        work: impl for<'c> FnMut(&'c mut (dyn Connection + 'w)) -> Use<'c, T>,
    ) -> Result<T, DbError> {
        let (mut loan, answer) = self.on_connection(pool, holder, work).await?;
        loan.mark_idle();
        answer
    }

    /// The bounds on what is sent at once.
    pub(crate) fn sizes(&self) -> SizeLimits {
        self.sizes
    }

    pub(crate) async fn fetch(
        &self,
        query: &Query,
        route: Route,
        holder: &'static str,
    ) -> Result<Rows, DbError> {
        self.sizes.check_query(query)?;
        self.read(self.pool(route), holder, |connection| connection.fetch(query)).await
    }

    /// Runs a query that reads a small part of an index, on the primary.
    pub(crate) async fn look(&self, query: &Query, holder: &'static str) -> Result<Rows, DbError> {
        self.sizes.check_query(query)?;
        self.read(self.pool(Route::Primary), holder, |connection| connection.look(query)).await
    }

    /// Which of the actions have a row in the outbox. A server that is read-only is not believed, and its
    /// connection is closed, so that the next one can lead to the primary.
    pub(crate) async fn recorded(&self, actions: &[ActionId]) -> Result<Vec<ActionId>, DbError> {
        self.read(&self.primary, "outcome", |connection| connection.recorded(actions)).await
    }

    /// The time by the clock of the primary.
    pub(crate) async fn time(&self) -> Result<DateTime<Utc>, DbError> {
        let sql = format!("SELECT {} AS present", self.driver.syntax().present());
        let columns = const { &[ColumnDef::new("present", ValueType::Timestamp)] };
        let query = Query { sql: sql.into(), args: Vec::new(), columns: columns.into() };
        let rows = self.fetch(&query, Route::Primary, "time").await?;
        match rows.first().map(Vec::as_slice) {
            Some([Value::Timestamp(present)]) => Ok(*present),
            _ => Err(DbError::misfit("present", "the database did not tell the time")),
        }
    }

    /// The transactions of other sessions on the primary; `None` if they cannot be seen.
    pub(super) async fn running_transactions(
        &self,
    ) -> Result<Option<Vec<RunningTransaction>>, DbError> {
        self.read(&self.primary, "transaction barrier", |connection| connection.running()).await
    }

    /// Like [`Database::fetch`], for a query that selects a row by its id.
    pub(super) async fn fetch_by_id(
        &self,
        query: &Query,
        route: Route,
        holder: &'static str,
    ) -> Result<Rows, DbError> {
        self.sizes.check_query(query)?;
        self.read(self.pool(route), holder, |connection| connection.find(query)).await
    }

    /// Runs a read on the replica if the replica reaches `position` within `timeout`, and on the
    /// primary otherwise. A replica that does not answer is waited for longer by the timeout of
    /// connections, and once more if it has to be connected to. The connection that compares the
    /// position also reads: one address may stand for several replicas.
    pub(crate) async fn fetch_after(
        &self,
        query: &Query,
        position: &str,
        timeout: Duration,
        holder: &'static str,
    ) -> Result<Rows, DbError> {
        match self.fetch_from_replica(query, position, timeout, holder).await {
            Ok(Some(rows)) => return Ok(rows),
            Ok(None) => tracing::debug!(position, "the replica lags; the primary is read"),
            Err(error) => self.report_of_replica(&error),
        }
        self.fetch(query, Route::Primary, holder).await
    }

    /// Warns once of a failure that stays until somebody mends it. Other reads of the replica may succeed
    /// meanwhile, and a busy service would repeat the warning all the time.
    fn report_of_replica(&self, error: &DbError) {
        use DbErrorKind::{Denied, Other, UndefinedColumn, UndefinedTable};
        let stays = matches!(error.kind(), Denied | Other | UndefinedColumn | UndefinedTable);
        if !stays || self.replica_is_reported.swap(true, Ordering::Relaxed) {
            tracing::debug!(%error, "the replica failed; the primary is read");
        } else {
            tracing::warn!(%error, "the replica cannot be read; the primary is read instead");
        }
    }

    async fn fetch_from_replica(
        &self,
        query: &Query,
        position: &str,
        timeout: Duration,
        holder: &'static str,
    ) -> Result<Option<Rows>, DbError> {
        let Some(replica) = &self.replica else { return Ok(None) };
        let mut loan = replica.checkout(holder).await?;
        let limit = loan.patient_limit(timeout);
        let reached =
            loan.run_within(limit, |connection| connection.has_reached(position, timeout)).await?;
        let rows = if reached {
            Some(loan.run(|connection| connection.fetch(query)).await?)
        } else {
            None
        };
        loan.mark_idle();
        Ok(rows)
    }

    /// The primary's current position; `None` if there is no replica to compare with it.
    pub(crate) async fn token(&self) -> Result<Option<CommitToken>, DbError> {
        if self.replica.is_none() {
            return Ok(None);
        }
        let position = self.read(&self.primary, "token", |connection| connection.position());
        Ok(position.await?.map(|position| CommitToken::new(self.shard, &position)))
    }

    /// Raises a fence, then runs `read` (a read of one row by its id) if given. `None` if a later
    /// token is stored.
    pub(crate) async fn raise_fence(
        &self,
        raise: &FenceRaise,
        read: Option<(&Query, &TableInfo)>,
        holder: &'static str,
    ) -> Result<Option<Rows>, DbError> {
        raise.check.check_key()?;
        self.check_has_writer()?;
        self.read(&self.primary, holder, |connection| match read {
            Some((query, table)) => connection.find_under_fence(raise, query, table),
            None => Box::pin(async {
                connection.raise_fence(raise).await.map(|raised| raised.then(Vec::new))
            }),
        })
        .await
    }

    /// Queues a batch for the lanes and waits for the outcome. If the future is dropped, a batch
    /// that a lane has taken is still committed, and one that is queued is not.
    pub(crate) async fn commit(&self, mut batch: CommitBatch) -> Result<Committed, CommitError> {
        self.check_not_beside_transaction()?;
        self.sizes.check(&batch)?;
        batch.sort();
        let address = self.driver.address();
        self.lanes.submit(batch).await.map_err(|error| match error {
            CommitError::Refused(error) => CommitError::Refused(error.lost_at(address)),
            CommitError::Unknown(action, why) => {
                CommitError::Unknown(action, format!("{address}: {why}"))
            }
            other => other,
        })
    }

    /// Marks an action as unfinished, so that a caller that asks for its outcome waits.
    pub(crate) fn open_action(&self, action: ActionId) -> OpenAction {
        self.lanes.open_action(action)
    }

    /// Whether this process has not finished the action.
    pub(crate) fn is_open(&self, action: ActionId) -> bool {
        self.lanes.is_open(action)
    }

    /// Whether this task has a writing transaction open.
    pub(crate) fn is_in_transaction(&self) -> bool {
        open_transaction(self).is_some()
    }

    /// Rejects a write beside a transaction that this task has open: the write would stay if the
    /// transaction is rolled back. With a single writer it would wait for its own task.
    pub(crate) fn check_not_beside_transaction(&self) -> Result<(), DbError> {
        self.check_has_writer()?;
        if open_transaction(self) == Some(Side::Inside) {
            let why = "this task has a transaction of the database open, and this write would commit beside it, even if the transaction is rolled back; \
                       write within the transaction (`.within(&transaction)`), end it first, or say that it is meant (`.outside_transaction()`)";
            return Err(DbError::new(DbErrorKind::OpenTransaction, why));
        }
        Ok(())
    }

    /// Rejects a write that would wait for a transaction of its own task.
    fn check_has_writer(&self) -> Result<(), DbError> {
        if self.driver.capabilities().single_writer && open_transaction(self).is_some() {
            let why = "this task holds the one writer of the database in an open transaction, and would wait for itself; \
                       write within the transaction (`.within(&transaction)`), or end it first";
            return Err(DbError::new(DbErrorKind::OpenTransaction, why));
        }
        Ok(())
    }

    /// A server that refuses a write because it is read-only was a primary and is none any more.
    /// Its connections are of no use to a writer, so the error is that of a lost connection.
    pub(crate) fn read_only_is_lost(&self, error: DbError) -> DbError {
        if self.driver.capabilities().single_writer { error } else { error.read_only_is_lost() }
    }

    /// Removes an action's batch from the queue; `false` if there is none, or a lane has taken it.
    pub(crate) fn withdraw(&self, action: ActionId) -> bool {
        self.lanes.withdraw(action)
    }

    /// Waits until nothing in this process works on the action.
    pub(crate) async fn settled(&self, action: ActionId) {
        self.lanes.settled(action).await;
    }

    /// The columns of a table; the database is asked only the first time.
    pub(crate) async fn table(&self, table: &'static Table) -> Result<Arc<TableInfo>, TableError> {
        if let Some(info) = self.known_table(table)? {
            return Ok(info);
        }
        let alike = &self.tables_like(table);
        let describing = self.read(&self.primary, "describe", |connection| {
            Box::pin(same_table::describe(connection, table, alike))
        });
        Ok(self.learn_table(table, describing.await?)?)
    }

    /// Like [`Database::table`], and rejects a table into which no row can be inserted.
    pub(crate) async fn insertable_table(
        &self,
        table: &'static Table,
    ) -> Result<Arc<TableInfo>, TableError> {
        let info = self.table(table).await?;
        info.check_insertable(self.driver.address())?;
        Ok(info)
    }

    /// Rejects a write to a table that would keep a part of it if the commit is rejected.
    pub(crate) fn check_undone(&self, table: &TableInfo) -> Result<(), SchemaError> {
        table.check_undone(self.driver.address())
    }

    /// The columns of a table, if the database was already asked.
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

    /// The known tables whose names could mean the same table.
    pub(crate) fn tables_like(&self, table: &Table) -> Vec<&'static Table> {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        alike(self.driver.syntax(), table, tables.values().map(|known| known.table))
    }

    /// Compares the columns in the database with the code, and remembers them.
    pub(crate) fn learn_table(
        &self,
        table: &'static Table,
        found: Described,
    ) -> Result<Arc<TableInfo>, SchemaError> {
        let Described { columns: found, rules, same_as } = found;
        if let Some(other) = same_as {
            return Err(SchemaError::of_two_names(table, other, self.driver.address()));
        }
        let syntax = self.driver.syntax();
        let misfit = |column: &ColumnInfo, ty| syntax.misfit(column, ty);
        let info = Arc::new(TableInfo::check(table, found, rules, misfit, self.driver.address())?);
        self.tables
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(table.key(), info.clone());
        Ok(info)
    }

    pub(crate) fn forget_tables(&self) {
        self.tables.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// A connection with an open transaction, marked busy.
    pub(crate) async fn begin(
        &self,
        options: &TransactionOptions,
    ) -> Result<PooledConnection, DbError> {
        let (loan, begun) = self
            .on_connection(&self.primary, "transaction", |connection| connection.begin(options))
            .await?;
        // After an error the loan is dropped while busy, which closes the connection.
        begun.map(|()| loan)
    }

    /// Commits what is queued, then closes every connection.
    pub(crate) async fn close(&self) {
        self.doorbell.close().await;
        self.lanes.close().await;
        self.primary.close().await;
        if let Some(replica) = &self.replica {
            replica.close().await;
        }
    }
}

/// Retries until the timeout, because a server that starts beside this process may need a moment.
async fn first_connection(pool: &Pool, timeout: Duration) -> Result<(), DbError> {
    let started = Instant::now();
    let mut pause = Duration::from_millis(50);
    for attempt in 1.. {
        let error = match pool.checkout("start").await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if error.is_mistake() || !error.is_connection_lost() || started.elapsed() + pause > timeout
        {
            let waited = started.elapsed();
            return Err(error.and(&format!(" (tried {attempt} time(s) in {waited:.1?})")));
        }
        tracing::info!(%error, attempt, "the database is not reachable yet; trying again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
    Ok(())
}
