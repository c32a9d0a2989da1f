//! Transactions that user code holds open: for scripts, imports and raw SQL. Actions do not use
//! them.
//!
//! Invariants:
//! - A connection whose state is unknown is closed, never reused.
//! - A dropped caller cannot stop a commit that has begun.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Mutex, MutexGuard};
use tracing::Instrument;

use super::driver::Connection;
use super::open_transactions::OpenTransactions;
use super::performing::performed_action;
use super::same_table;
use super::{
    CommitBatch, CommitError, Database, DbError, DbErrorKind, PooledConnection, Query, Rows,
    TableError, TableInfo, TransactionOptions, Use,
};
use crate::domain::Table;

/// Error returned when a transaction does not commit. Nothing of it was written, except perhaps
/// for [`TransactionError::CommitUnknown`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError<E> {
    /// The closure's own error; the transaction was rolled back.
    #[error(transparent)]
    Inner(E),
    /// A transaction of the same database is already open in this task.
    #[error(
        "a transaction of this database is already open in this task, and a second one would commit by itself; pass the first one on"
    )]
    Nested,
    /// It was begun inside `perform` of an action, where it would commit even if the action does not.
    /// A transaction that only reads may be begun there.
    #[error(
        "a transaction was begun inside `perform` of `{within}`, and would commit even if `{within}` does not; nothing was run. Stage the changes in the plan, run the transaction in an effect (`ctx.plan().after_commit(..)`), or let it only read (`TransactionOptions::read_only`)"
    )]
    #[non_exhaustive]
    InsidePerform {
        /// The action.
        within: &'static str,
    },
    /// It ran longer than its options allow, and was rolled back.
    #[error("the transaction was rolled back after {0:?}")]
    TimedOut(Duration),
    /// The database failed before the commit.
    #[error(transparent)]
    Database(#[from] DbError),
    /// The connection broke during the commit.
    #[error("whether the transaction committed is unknown: {0}")]
    CommitUnknown(DbError),
}

/// Runs closures in transactions on one database.
#[derive(Clone)]
pub struct TransactionManager {
    database: Arc<Database>,
}

impl TransactionManager {
    pub(crate) fn new(database: Arc<Database>) -> Self {
        Self { database }
    }

    /// Runs a closure in a transaction with the database's defaults.
    pub async fn in_transaction<T, E, F>(
        &self,
        work: impl FnOnce(Transaction) -> F,
    ) -> Result<T, TransactionError<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        self.in_transaction_with(TransactionOptions::default(), work).await
    }

    /// Runs a closure in a transaction: `Ok` commits, anything else rolls back.
    ///
    /// If the future is dropped, the transaction is rolled back and its connection closed. Only
    /// a commit that has begun still completes.
    ///
    /// Inside `perform` of an action only transactions that are
    /// [`read_only`](TransactionOptions::read_only()) run.
    pub async fn in_transaction_with<T, E, F>(
        &self,
        options: TransactionOptions,
        work: impl FnOnce(Transaction) -> F,
    ) -> Result<T, TransactionError<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        if let Some(within) = performed_action().filter(|_| !options.read_only) {
            return Err(TransactionError::InsidePerform { within });
        }
        let Some(open) = OpenTransactions::with(&*self.database, !options.read_only) else {
            return Err(TransactionError::Nested);
        };
        let span = tracing::info_span!("ekbatan.transaction");
        open.scope(self.run(options, work).instrument(span)).await
    }

    async fn run<T, E, F>(
        &self,
        options: TransactionOptions,
        work: impl FnOnce(Transaction) -> F,
    ) -> Result<T, TransactionError<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        let loan = self.database.begin(&options).await?;
        let state = TransactionState {
            loan: Some(loan),
            broken: false,
            ran_raw: false,
            read_only: options.read_only,
        };
        let transaction = Transaction {
            database: self.database.clone(),
            state: Arc::new(Mutex::new(state)),
            raw_in_scope: Arc::default(),
        };
        let _end = EndOfHandles(transaction.state.clone());
        // A use of a handle that the closure kept is waited for.
        let working = async { (work(transaction.clone()).await, transaction.state.lock().await) };
        let worked = match options.timeout {
            None => Some(working.await),
            Some(timeout) => tokio::time::timeout(timeout, working).await.ok(),
        };
        // Handles that the closure kept are useless from here on.
        let (worked, mut state) = match worked {
            Some((worked, state)) => (Some(worked), state),
            // What a kept handle waits for is not waited for.
            None => match transaction.state.try_lock() {
                Ok(state) => (None, state),
                Err(_) => {
                    return Err(TransactionError::TimedOut(options.timeout.unwrap_or_default()));
                }
            },
        };
        let (loan, broken, ran_raw) = (state.loan.take(), state.broken, state.ran_raw);
        drop(state);
        let Some(loan) = loan else {
            return Err(DbError::new(DbErrorKind::Other, "the transaction is over").into());
        };
        match worked {
            Some(Ok(value)) if !broken => commit(loan, ran_raw).await.map(|()| value),
            Some(Ok(_)) => {
                let why =
                    "a use of the transaction's connection was cut short, so it was not committed";
                Err(DbError::new(DbErrorKind::Unavailable, why).into())
            }
            Some(Err(error)) => {
                roll_back(loan, broken, ran_raw).await;
                Err(TransactionError::Inner(error))
            }
            None => {
                roll_back(loan, broken, ran_raw).await;
                Err(TransactionError::TimedOut(options.timeout.unwrap_or_default()))
            }
        }
    }
}

/// Ends a transaction whose future is dropped, or that timed out while a handle was used: its
/// connection is closed, also if handles were kept elsewhere.
struct EndOfHandles(Arc<Mutex<TransactionState>>);

impl Drop for EndOfHandles {
    fn drop(&mut self) {
        if let Ok(mut state) = self.0.try_lock() {
            state.loan = None;
            return;
        }
        // A handle runs a statement. What follows it is never committed.
        if let Ok(runtime) = Handle::try_current() {
            let state = self.0.clone();
            runtime.spawn(async move { state.lock().await.loan = None });
        }
    }
}

enum CommitFailure {
    Lost(DbError),
    Refused(DbError),
}

/// Commits on its own task, which a dropped caller does not stop.
async fn commit<E>(mut loan: PooledConnection, ran_raw: bool) -> Result<(), TransactionError<E>> {
    let committing = tokio::spawn(async move {
        // Nothing was sent over a connection that is closed.
        loan.mark_busy().map_err(CommitFailure::Refused)?;
        match loan.run_within(loan.commit_limit(), |connection| connection.end(true)).await {
            Ok(()) => {
                give_back(loan, ran_raw).await;
                Ok(())
            }
            Err(error) if error.is_connection_lost() => Err(CommitFailure::Lost(error)),
            Err(error) => {
                roll_back(loan, false, ran_raw).await;
                Err(CommitFailure::Refused(error))
            }
        }
    });
    match committing.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(CommitFailure::Lost(error))) => Err(TransactionError::CommitUnknown(error)),
        Ok(Err(CommitFailure::Refused(error))) => Err(TransactionError::Database(error)),
        Err(stopped) => Err(TransactionError::CommitUnknown(DbError::new(
            DbErrorKind::Unavailable,
            stopped.to_string(),
        ))),
    }
}

/// Rolls back. If that fails, the connection stays marked busy and is closed, so that the
/// transaction can never commit.
async fn roll_back(mut loan: PooledConnection, broken: bool, ran_raw: bool) {
    if broken || loan.is_closed() {
        return;
    }
    match loan.run(|connection| connection.end(false)).await {
        Ok(()) => give_back(loan, ran_raw).await,
        Err(error) => tracing::warn!(%error, "the rollback failed; the connection is closed"),
    }
}

/// Gives a connection back after its transaction ended. If it ran raw SQL, its session is reset
/// first: the SQL may have changed settings.
async fn give_back(mut loan: PooledConnection, ran_raw: bool) {
    let reset = if ran_raw { loan.run(|connection| connection.reset()).await } else { Ok(()) };
    match reset {
        Ok(()) => loan.mark_idle(),
        Err(error) => tracing::warn!(%error, "the connection is closed"),
    }
}

/// A handle to an open transaction, taken by
/// [`Repository::within`](crate::repository::Repository::within).
///
/// Handles are cheap to clone. They return errors once the transaction has ended.
#[derive(Clone)]
pub struct Transaction {
    database: Arc<Database>,
    state: Arc<Mutex<TransactionState>>,
    /// Whether user code has the sqlx connection now.
    pub(super) raw_in_scope: Arc<AtomicBool>,
}

pub(super) struct TransactionState {
    /// `None` once the transaction has ended.
    loan: Option<PooledConnection>,
    /// Whether the future of a use was dropped before it completed.
    broken: bool,
    /// Whether user code had the sqlx connection.
    ran_raw: bool,
    read_only: bool,
}

impl Transaction {
    pub(crate) fn database(&self) -> &Arc<Database> {
        &self.database
    }

    /// Waits while another use of the connection lasts. A statement ends by itself. A raw connection
    /// may be in scope in the task that waits, which would wait for ever.
    pub(super) async fn state(&self) -> Result<MutexGuard<'_, TransactionState>, DbError> {
        let timeout = self.database.primary.timeout();
        let mut lock = std::pin::pin!(self.state.lock());
        loop {
            if let Ok(state) = tokio::time::timeout(timeout, &mut lock).await {
                return Ok(state);
            }
            if self.raw_in_scope.load(Ordering::Relaxed) {
                let why = format!(
                    "another use of the transaction's connection lasted for more than {timeout:?}; drop the raw connection (`drop(raw)`) \
                     before the next use of the transaction"
                );
                return Err(DbError::new(DbErrorKind::LockTimeout, why));
            }
        }
    }

    /// The columns of a table. The transaction's own connection asks for them: if each
    /// transaction needed a second connection, a pool full of transactions would deadlock.
    pub(crate) async fn table(&self, table: &'static Table) -> Result<Arc<TableInfo>, TableError> {
        if let Some(info) = self.database.known_table(table)? {
            return Ok(info);
        }
        let mut state = self.state().await?;
        let alike = &self.database.tables_like(table);
        let describing =
            state.run(|connection| Box::pin(same_table::describe(connection, table, alike)));
        let found = describing.await;
        drop(state);
        Ok(self.database.learn_table(table, found?)?)
    }

    pub(crate) async fn fetch(&self, query: &Query) -> Result<Rows, DbError> {
        self.database.sizes().check_query(query)?;
        let mut state = self.state().await?;
        state.run(|connection| connection.fetch(query)).await
    }

    pub(crate) async fn write(&self, mut batch: CommitBatch) -> Result<(), CommitError> {
        self.database.sizes().check(&batch)?;
        batch.sort();
        let mut state = self.state().await?;
        let written = state.run(|connection| connection.write(&batch)).await;
        written.map_err(|error| match error {
            CommitError::Refused(error) => {
                CommitError::Refused(state.refused(error, &self.database))
            }
            other => other,
        })
    }
}

impl TransactionState {
    pub(super) fn connection(&mut self) -> Result<&mut (dyn Connection + 'static), DbError> {
        self.loan.as_mut().ok_or_else(over)?.mark_busy()
    }

    pub(super) fn mark_raw(&mut self) {
        self.ran_raw = true;
    }

    /// Runs one statement. If this future is dropped before it completes, the transaction is
    /// broken.
    async fn run<'w, T, E: From<DbError>>(
        &mut self,
        work: impl for<'c> FnOnce(&'c mut (dyn Connection + 'w)) -> Use<'c, T, E>,
    ) -> Result<T, E> {
        if self.broken {
            return Err(DbError::new(
                DbErrorKind::Unavailable,
                "an earlier use of the transaction was cut short",
            )
            .into());
        }
        let loan = self.loan.as_mut().ok_or_else(over)?;
        self.broken = true;
        let answer = loan.run(work).await;
        self.broken = false;
        answer
    }

    /// The error of a write. A server that became read-only refuses every further write, so its
    /// connection is closed.
    fn refused(&mut self, error: DbError, database: &Database) -> DbError {
        if self.read_only || error.kind() != DbErrorKind::ReadOnly {
            return error;
        }
        let error = database.read_only_is_lost(error);
        if error.is_connection_lost()
            && let Some(loan) = &mut self.loan
        {
            loan.close();
        }
        error.lost_at(database.driver.address())
    }
}

fn over() -> DbError {
    DbError::new(
        DbErrorKind::Other,
        "the transaction is over; its handle was used after the closure had ended",
    )
}

impl std::fmt::Debug for TransactionManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionManager")
            .field("shard", &self.database.shard)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("shard", &self.database.shard).finish_non_exhaustive()
    }
}
