//! Transactions that user code holds open: for scripts, imports and raw SQL. Actions do not
//! use them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tracing::Instrument;

use super::{
    CommitBatch, CommitError, Connection, Database, DbError, DbErrorKind, Pool, PooledConnection,
    Query, TransactionOptions,
};
use crate::db::database::Rows;
use crate::db::{TableError, TableInfo};
use crate::domain::Table;

tokio::task_local! {
    /// The databases that this task has a transaction open on, and whether it writes.
    static OPEN: Vec<(usize, bool)>;
}

/// Why a transaction did not commit. Nothing of it was written, unless it says "unknown".
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
    /// It ran longer than its options allow, and was rolled back.
    #[error("the transaction was rolled back after {0:?}")]
    TimedOut(Duration),
    /// The database failed before the commit.
    #[error(transparent)]
    Database(#[from] DbError),
    /// The connection broke while the commit was on its way.
    #[error("whether the transaction committed is unknown: {0}")]
    CommitUnknown(DbError),
}

/// Whether this task has a writing transaction of the database open.
pub(super) fn is_writing(database: &Database) -> bool {
    let me = std::ptr::from_ref(database) as usize;
    OPEN.try_with(|open| open.contains(&(me, true))).unwrap_or_default()
}

/// Opens transactions on one database. Inner failures roll back; a connection whose state is
/// in doubt is closed, never reused.
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
    /// The closure may be dropped at any await; the transaction is then rolled back with
    /// its connection. Once the commit has begun it is carried through all the same.
    pub async fn in_transaction_with<T, E, F>(
        &self,
        options: TransactionOptions,
        work: impl FnOnce(Transaction) -> F,
    ) -> Result<T, TransactionError<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        let me = Arc::as_ptr(&self.database) as usize;
        let mut open = OPEN.try_with(Clone::clone).unwrap_or_default();
        if open.iter().any(|(other, _)| *other == me) {
            return Err(TransactionError::Nested);
        }
        open.push((me, !options.read_only));
        let span = tracing::info_span!("ekbatan.transaction");
        OPEN.scope(open, self.run(options, work).instrument(span)).await
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
        let transaction = Transaction {
            database: self.database.clone(),
            session: Arc::new(Mutex::new(Session {
                loan: Some(loan),
                broken: false,
                touched: false,
            })),
        };
        let worked = match options.timeout {
            None => Some(work(transaction.clone()).await),
            Some(timeout) => tokio::time::timeout(timeout, work(transaction.clone())).await.ok(),
        };
        // Whatever handle the closure leaked finds the transaction over from here on.
        let mut session = transaction.session.lock().await;
        let (loan, broken, touched) = (session.loan.take(), session.broken, session.touched);
        drop(session);
        let Some(loan) = loan else {
            return Err(DbError::new(DbErrorKind::Other, "the transaction is over").into());
        };
        match worked {
            Some(Ok(value)) if !broken => commit(loan, touched).await.map(|()| value),
            Some(Ok(_)) => {
                let why =
                    "a use of the transaction's connection was cut short, so it was not committed";
                Err(DbError::new(DbErrorKind::Unavailable, why).into())
            }
            Some(Err(error)) => {
                roll_back(loan, broken, touched).await;
                Err(TransactionError::Inner(error))
            }
            None => {
                roll_back(loan, broken, touched).await;
                Err(TransactionError::TimedOut(options.timeout.unwrap_or_default()))
            }
        }
    }
}

/// Commits on a task of its own, which a dropped caller does not stop.
async fn commit<E>(mut loan: PooledConnection, touched: bool) -> Result<(), TransactionError<E>> {
    let committing = tokio::spawn(async move {
        let connection = loan.begin().map_err(Err)?;
        match connection.end(true).await {
            Ok(()) => {
                give_back(loan, touched).await;
                Ok(())
            }
            Err(error) if error.is_connection_lost() => Err(Ok(error)),
            Err(error) => {
                roll_back(loan, false, touched).await;
                Err(Err(error))
            }
        }
    });
    match committing.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Ok(lost))) => Err(TransactionError::CommitUnknown(lost)),
        Ok(Err(Err(refused))) => Err(TransactionError::Database(refused)),
        Err(stopped) => Err(TransactionError::CommitUnknown(DbError::new(
            DbErrorKind::Unavailable,
            stopped.to_string(),
        ))),
    }
}

/// Rolls back. If that fails, the connection stays marked busy and is closed with it: a
/// failed rollback can then never turn into a commit.
async fn roll_back(mut loan: PooledConnection, broken: bool, touched: bool) {
    if broken {
        return;
    }
    let ended = match loan.begin() {
        Ok(connection) => connection.end(false).await,
        Err(error) => Err(error),
    };
    match ended {
        Ok(()) => give_back(loan, touched).await,
        Err(error) => tracing::warn!(%error, "the rollback failed; the connection is closed"),
    }
}

/// Gives a connection back whose transaction has ended. Raw SQL may have left settings behind,
/// which the next one must not meet.
async fn give_back(mut loan: PooledConnection, touched: bool) {
    let reset = match loan.begin() {
        Ok(connection) if touched => connection.reset().await,
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    match reset {
        Ok(()) => loan.done(),
        Err(error) => tracing::warn!(%error, "the connection is closed"),
    }
}

/// A transaction that is open: repositories take it with
/// [`Repository::within`](crate::repository::Repository::within).
///
/// Handles are cheap to clone and useless once the transaction has ended.
#[derive(Clone)]
pub struct Transaction {
    database: Arc<Database>,
    session: Arc<Mutex<Session>>,
}

struct Session {
    loan: Option<PooledConnection>,
    /// A use was dropped in the middle.
    broken: bool,
    /// Raw SQL was run on the connection.
    touched: bool,
}

impl Transaction {
    pub(crate) fn database(&self) -> &Arc<Database> {
        &self.database
    }

    /// What the database says about a table. It is asked over the transaction's own
    /// connection: with a second one, a pool full of transactions would wait for itself.
    pub(crate) async fn table(&self, table: &'static Table) -> Result<Arc<TableInfo>, TableError> {
        if let Some(info) = self.database.known_table(table)? {
            return Ok(info);
        }
        let mut session = self.session.lock().await;
        let found = session.open()?.describe(table).await;
        session.close();
        drop(session);
        Ok(self.database.learn_table(table, found?)?)
    }

    pub(crate) async fn fetch(&self, query: &Query) -> Result<Rows, DbError> {
        let mut session = self.session.lock().await;
        let answer = session.open()?.fetch(query).await;
        session.close();
        answer
    }

    pub(crate) async fn write(&self, mut batch: CommitBatch) -> Result<(), CommitError> {
        batch.sort();
        let mut session = self.session.lock().await;
        let answer = session.open().map_err(CommitError::Refused)?.write(&batch).await;
        session.close();
        answer
    }

    /// The connection itself, for raw SQL within the transaction. Do not end the
    /// transaction by hand.
    #[cfg(feature = "postgres")]
    pub async fn postgres(&self) -> Result<TransactionConnection<'_, sqlx::PgConnection>, DbError> {
        self.raw(super::postgres::raw).await
    }

    /// The connection itself, for raw SQL within the transaction. Do not end the
    /// transaction by hand.
    #[cfg(feature = "sqlite")]
    pub async fn sqlite(
        &self,
    ) -> Result<TransactionConnection<'_, sqlx::SqliteConnection>, DbError> {
        self.raw(super::sqlite::raw).await
    }

    /// The connection itself, for raw SQL within the transaction. Do not end the
    /// transaction by hand; on MySQL and MariaDB every `CREATE`, `ALTER` and `DROP` does.
    #[cfg(feature = "mysql")]
    pub async fn mysql(&self) -> Result<TransactionConnection<'_, sqlx::MySqlConnection>, DbError> {
        self.raw(super::mysql::raw).await
    }

    async fn raw<C>(
        &self,
        cast: fn(&mut dyn Connection) -> Option<&mut C>,
    ) -> Result<TransactionConnection<'_, C>, DbError> {
        let mut session = self.session.lock().await;
        let connection = match &mut session.loan {
            Some(loan) => loan.begin()?,
            None => return Err(over()),
        };
        if cast(connection).is_none() {
            return Err(wrong_dialect());
        }
        session.touched = true;
        Ok(TransactionConnection { session, cast })
    }
}

fn over() -> DbError {
    DbError::new(
        DbErrorKind::Other,
        "the transaction is over; its handle was used after the closure had ended",
    )
}

fn wrong_dialect() -> DbError {
    DbError::new(
        DbErrorKind::Other,
        "this database is of another dialect than the connection that was asked for",
    )
}

impl Session {
    fn open(&mut self) -> Result<&mut dyn Connection, DbError> {
        if self.broken {
            return Err(DbError::new(
                DbErrorKind::Unavailable,
                "an earlier use of the transaction was cut short",
            ));
        }
        let loan = self.loan.as_mut().ok_or_else(over)?;
        // Until `close` says otherwise, this use may have been dropped.
        self.broken = true;
        loan.begin()
    }

    fn close(&mut self) {
        self.broken = false;
    }
}

/// The transaction's sqlx connection, for as long as no other statement needs it.
pub struct TransactionConnection<'t, C> {
    session: MutexGuard<'t, Session>,
    cast: fn(&mut dyn Connection) -> Option<&mut C>,
}

impl<C> TransactionConnection<'_, C> {
    /// The connection.
    pub fn connection(&mut self) -> Result<&mut C, DbError> {
        let loan = self.session.loan.as_mut().ok_or_else(over)?;
        (self.cast)(loan.begin()?).ok_or_else(wrong_dialect)
    }
}

/// A pooled connection for raw SQL outside of any transaction. Give it back with
/// [`RawConnection::release`], which resets the session; a dropped one is closed.
pub struct RawConnection<C> {
    loan: PooledConnection,
    cast: fn(&mut dyn Connection) -> Option<&mut C>,
}

impl<C> RawConnection<C> {
    pub(crate) async fn checkout(
        pool: &Pool,
        cast: fn(&mut dyn Connection) -> Option<&mut C>,
    ) -> Result<Self, DbError> {
        let mut loan = pool.checkout("raw SQL").await?;
        let fits = cast(loan.begin()?).is_some();
        loan.done();
        if !fits {
            return Err(wrong_dialect());
        }
        Ok(Self { loan, cast })
    }

    /// The connection. From here on the session counts as touched.
    pub fn connection(&mut self) -> Result<&mut C, DbError> {
        (self.cast)(self.loan.begin()?).ok_or_else(wrong_dialect)
    }

    /// Ends what is open, resets the session and gives the connection back.
    pub async fn release(mut self) -> Result<(), DbError> {
        self.loan.begin()?.reset().await?;
        self.loan.done();
        Ok(())
    }
}
