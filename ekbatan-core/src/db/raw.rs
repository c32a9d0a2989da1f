//! Direct access to the sqlx connection, for raw SQL inside and outside of transactions.
//!
//! Invariant: a connection that ran raw SQL is reset before another user gets it.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::MutexGuard;

use super::driver::{Connection, Driver};
use super::transaction::TransactionState;
use super::{DbError, DbErrorKind, Dialect, Pool, PooledConnection, Transaction};

/// Returns the sqlx connection behind ours, if it is of dialect `C`.
type Cast<C> = fn(&mut dyn Connection) -> Option<&mut C>;

/// The method that returns the raw connection of each dialect.
fn method(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => "sqlite()",
        Dialect::Postgres => "postgres()",
        Dialect::MySql | Dialect::MariaDb => "mysql()",
    }
}

fn wrong_dialect<C>(driver: &dyn Driver) -> DbError {
    let wanted = match std::any::type_name::<C>() {
        name if name.contains("Sqlite") => "SQLite",
        name if name.contains("Pg") => "PostgreSQL",
        _ => "MySQL or MariaDB",
    };
    let dialect = driver.capabilities().dialect;
    DbError::new(
        DbErrorKind::Other,
        format!(
            "{} is {dialect}, and the code asks for a raw connection of {wanted}; use `{}`",
            driver.address(),
            method(dialect)
        ),
    )
}

/// Not reached: the dialect was compared when the connection was taken.
fn changed_dialect() -> DbError {
    DbError::new(DbErrorKind::Other, "the connection is of another dialect than when it was taken")
}

impl Transaction {
    /// The sqlx connection, for raw SQL within the transaction. Do not end the transaction
    /// yourself.
    #[cfg(feature = "postgres")]
    pub async fn postgres(&self) -> Result<TransactionConnection<'_, sqlx::PgConnection>, DbError> {
        self.raw(super::postgres::raw).await
    }

    /// The sqlx connection, for raw SQL within the transaction. Do not end the transaction
    /// yourself.
    #[cfg(feature = "sqlite")]
    pub async fn sqlite(
        &self,
    ) -> Result<TransactionConnection<'_, sqlx::SqliteConnection>, DbError> {
        self.raw(super::sqlite::raw).await
    }

    /// The sqlx connection, for raw SQL within the transaction. Do not end the transaction
    /// yourself; on MySQL and MariaDB every `CREATE`, `ALTER` and `DROP` ends it.
    #[cfg(feature = "mysql")]
    pub async fn mysql(&self) -> Result<TransactionConnection<'_, sqlx::MySqlConnection>, DbError> {
        self.raw(super::mysql::raw).await
    }

    async fn raw<C>(&self, cast: Cast<C>) -> Result<TransactionConnection<'_, C>, DbError> {
        let mut state = self.state().await?;
        if cast(state.connection()?).is_none() {
            return Err(wrong_dialect::<C>(&*self.database().driver));
        }
        state.mark_raw();
        self.raw_in_scope.store(true, Ordering::Relaxed);
        Ok(TransactionConnection { state, cast, in_scope: &self.raw_in_scope })
    }
}

/// The sqlx connection of a transaction. While it is held, no other statement of the transaction
/// can run: drop it first. One that waits for it fails after `connection_timeout`.
pub struct TransactionConnection<'t, C> {
    state: MutexGuard<'t, TransactionState>,
    cast: Cast<C>,
    in_scope: &'t AtomicBool,
}

impl<C> Drop for TransactionConnection<'_, C> {
    fn drop(&mut self) {
        self.in_scope.store(false, Ordering::Relaxed);
    }
}

impl<C> TransactionConnection<'_, C> {
    /// The connection.
    pub fn connection(&mut self) -> Result<&mut C, DbError> {
        (self.cast)(self.state.connection()?).ok_or_else(changed_dialect)
    }
}

/// A pooled connection for raw SQL outside of any transaction. [`RawConnection::release`] resets
/// the session and gives it back; dropping it after a use closes it.
pub struct RawConnection<C> {
    loan: PooledConnection,
    cast: Cast<C>,
}

impl<C> RawConnection<C> {
    pub(crate) async fn checkout(pool: &Pool, cast: Cast<C>) -> Result<Self, DbError> {
        let mut loan = pool.checkout("raw SQL").await?;
        let fits = cast(loan.mark_busy()?).is_some();
        loan.mark_idle();
        if fits { Ok(Self { loan, cast }) } else { Err(wrong_dialect::<C>(pool.driver())) }
    }

    /// The connection. From here on the session has to be reset before it can be reused.
    pub fn connection(&mut self) -> Result<&mut C, DbError> {
        (self.cast)(self.loan.mark_busy()?).ok_or_else(changed_dialect)
    }

    /// Rolls back an open transaction, resets the session and gives the connection back.
    pub async fn release(mut self) -> Result<(), DbError> {
        self.loan.run(|connection| connection.reset()).await?;
        self.loan.mark_idle();
        Ok(())
    }
}

impl<C> std::fmt::Debug for TransactionConnection<'_, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionConnection").finish_non_exhaustive()
    }
}

impl<C> std::fmt::Debug for RawConnection<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawConnection").finish_non_exhaustive()
    }
}
