//! Deletes the fences that no lease can need any more.
//!
//! What makes that safe is at the [fences](crate::db::FenceRaise): a token that a deleted fence
//! would have refused is too old to raise a new one.

use std::sync::Arc;

use super::outbox_retention::gather;
use super::{Databases, PruneError, Shard, visit};
use crate::db::eventlog::LOCK_FENCES;
use crate::db::{
    Arg, Database, DbError, DbErrorKind, Isolation, Query, Route, Transaction, TransactionError,
    TransactionManager, TransactionOptions,
};
use crate::domain::{ColumnDef, Value, ValueType};

/// How many rows one statement looks at, and one transaction deletes at most.
const PAGE: usize = 1_000;

impl Databases {
    /// Deletes, on every shard, the fences of keys whose last lease was granted 31 days ago or
    /// earlier and ended a day ago or earlier, by the clock of each database. Returns how many.
    ///
    /// It reads the table once, in pages, and waits for no locked row. Run it from time to time; several
    /// processes may do so at once. Fences of tokens that are no times are kept, see
    /// [`Fence::token`](crate::action::Fence::token).
    ///
    /// ```
    /// # async fn run(databases: &ekbatan_core::shard::Databases) -> Result<(), Box<dyn std::error::Error>> {
    /// let deleted = databases.prune_fences().await?;
    /// # Ok(()) }
    /// ```
    pub async fn prune_fences(&self) -> Result<u64, PruneError> {
        let pruning = self.shards.all().map(|database| async move {
            let pruned = prune(database, PAGE).await;
            pruned.map_err(|error| (database.shard, of_database(error)))
        });
        gather(visit(pruning.collect()).await)
    }
}

impl Shard {
    /// Deletes the fences of this shard that no lease can need, at most `at_once` in a transaction.
    #[doc(hidden)]
    pub async fn prune_fences(&self, at_once: usize) -> Result<u64, TransactionError<DbError>> {
        prune(&self.database, at_once).await
    }
}

fn of_database(error: TransactionError<DbError>) -> DbError {
    match error {
        TransactionError::Inner(error)
        | TransactionError::Database(error)
        | TransactionError::CommitUnknown(error) => error,
        other => DbError::new(DbErrorKind::OpenTransaction, other.to_string()),
    }
}

/// Walks over the table by its primary key, so that no statement runs long or locks many rows.
async fn prune(database: &Arc<Database>, at_once: usize) -> Result<u64, TransactionError<DbError>> {
    database.check_not_beside_transaction().map_err(TransactionError::Database)?;
    let mut options = TransactionOptions::default();
    if database.driver.capabilities().isolation_levels {
        options = options.isolation(Isolation::ReadCommitted);
    }
    let manager = TransactionManager::new(database.clone());
    let (mut after, mut deleted) = (String::new(), 0);
    loop {
        let page = page(database, after, at_once).await.map_err(TransactionError::Database)?;
        let is_full = page.len() >= at_once;
        let last = page.last().map(|(key, _)| key.clone());
        let old: &Vec<Value> =
            &page.into_iter().filter(|(_, old)| *old).map(|(key, _)| Value::Text(key)).collect();
        if !old.is_empty() {
            let deleting = |transaction| async move { delete(&transaction, old.clone()).await };
            deleted += manager.in_transaction_with(options, deleting).await?;
        }
        match last.filter(|_| is_full) {
            Some(last) => after = last,
            None => return Ok(deleted),
        }
    }
}

/// The keys after `after`, each with whether its row is old.
async fn page(
    database: &Database,
    after: String,
    at_once: usize,
) -> Result<Vec<(String, bool)>, DbError> {
    let syntax = database.driver.syntax();
    let sql = format!(
        "SELECT lock_key, CASE WHEN {} THEN 1 ELSE 0 END AS is_old FROM {} \
         WHERE lock_key > $1 ORDER BY lock_key LIMIT {at_once}",
        syntax.fence_is_old(),
        syntax.table(&LOCK_FENCES),
    );
    let args = vec![Arg::One(ValueType::Text, Value::Text(after))];
    let columns = const {
        &[ColumnDef::new("lock_key", ValueType::Text), ColumnDef::new("is_old", ValueType::Int)]
    };
    let query = Query { sql: sql.into(), args, columns: columns.into() };
    let rows = database.fetch(&query, Route::Primary, "prune fences").await?;
    let read = |row: Vec<Value>| match <[Value; 2]>::try_from(row) {
        Ok([Value::Text(key), Value::Int(old)]) => Some((key, old == 1)),
        _ => None,
    };
    Ok(rows.into_iter().filter_map(read).collect())
}

/// Deletes rows if they are still old. Rows that others have locked are skipped.
async fn delete(transaction: &Transaction, keys: Vec<Value>) -> Result<u64, DbError> {
    let capabilities = transaction.database().driver.capabilities();
    let syntax = transaction.database().driver.syntax();
    let info = transaction.table(&LOCK_FENCES).await?;
    let among = syntax.any(1, ValueType::Text, info.column("lock_key")?);
    let (table, old) = (syntax.table(&LOCK_FENCES), syntax.fence_is_old());
    let mut sql = format!("SELECT lock_key FROM {table} WHERE {among} AND {old}");
    if !capabilities.single_writer {
        sql += " FOR UPDATE SKIP LOCKED";
    }
    let columns = const { &[ColumnDef::new("lock_key", ValueType::Text)] };
    let args = vec![Arg::Many(ValueType::Text, keys)];
    let locked =
        transaction.fetch(&Query { sql: sql.into(), args, columns: columns.into() }).await?;
    let keys: Vec<Value> = locked.into_iter().flatten().collect();
    let count = keys.len() as u64;
    if count > 0 {
        let sql = format!("DELETE FROM {table} WHERE {among}");
        let args = vec![Arg::Many(ValueType::Text, keys)];
        transaction.fetch(&Query { sql: sql.into(), args, columns: Vec::new().into() }).await?;
    }
    Ok(count)
}
