//! Tries a transaction on events again after a deadlock.
//!
//! MySQL and MariaDB lock a row by one of its indexes first, and which one depends on the size of the
//! table. So a sweep and a deletion of the same events may each hold what the other one needs. The
//! server rolls one of them back.

use crate::db::{DbError, DbErrorKind, TransactionError};

/// How many times a transaction is tried again.
const RETRIES: usize = 5;

/// Runs a transaction until it ends otherwise than by a deadlock.
pub(super) async fn retried<T, F>(
    mut transaction: impl FnMut() -> F,
) -> Result<T, TransactionError<DbError>>
where
    F: Future<Output = Result<T, TransactionError<DbError>>>,
{
    for _ in 0..RETRIES {
        match transaction().await {
            Err(TransactionError::Inner(error) | TransactionError::Database(error))
                if error.kind() == DbErrorKind::Deadlock => {}
            answer => return answer,
        }
    }
    transaction().await
}
