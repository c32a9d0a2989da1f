//! Deletes old rows of the outbox.
//!
//! Invariant: no row is deleted within [`EVENTS_KEPT`](crate::db::eventlog::EVENTS_KEPT) of its
//! commit. A trigger in the database enforces that for every client.

use std::time::Duration;

use uuid::Uuid;

use super::StoredId;
use crate::db::eventlog::EVENTS;
use crate::db::{Arg, Database, DbError, Query, Route};
use crate::domain::{ColumnDef, Value, ValueType};

/// How many rows one statement looks at.
const PAGE: usize = 1_000;

/// Databases cannot subtract much longer times.
pub const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

const HOLDER: &str = "prune outbox";

/// Deletes the delivered rows that were written more than `age` ago, by the clock of the database,
/// and the rows without an event; those of enqueued calls have a payload, and stay. Returns how
/// many. Walks over the table by its primary key, a page at a time, so that no statement runs long
/// or locks many rows.
pub(crate) async fn prune(database: &Database, age: Duration) -> Result<u64, DbError> {
    database.check_not_beside_transaction()?;
    let mut deleted = 0;
    let mut after = StoredId::Uuid(Uuid::nil());
    loop {
        let (page, is_full) = page(database, &after, age).await?;
        let Some((last, _)) = page.last().cloned() else { return Ok(deleted) };
        let old = page.into_iter().filter(|(_, is_old)| *is_old);
        let old: Vec<Value> = old.filter_map(|(id, _)| id.uuid().map(Value::Uuid)).collect();
        deleted += old.len() as u64;
        if !old.is_empty() {
            delete(database, old).await?;
        }
        if !is_full {
            return Ok(deleted);
        }
        after = last;
    }
}

/// The ids of the rows after `after`, each with whether it is to be deleted; and whether more may follow.
async fn page(
    database: &Database,
    after: &StoredId,
    age: Duration,
) -> Result<(Vec<(StoredId, bool)>, bool), DbError> {
    let (syntax, events) = (database.driver.syntax(), database.table(&EVENTS).await?);
    let sql = format!(
        "SELECT id, CASE WHEN (delivered OR event_type IS NULL AND payload IS NULL) AND {} \
             THEN 1 ELSE 0 END AS is_old \
         FROM {} WHERE id > $1{} ORDER BY id LIMIT {PAGE}",
        syntax.recorded_before(age.min(CENTURY).as_secs()),
        syntax.table(&EVENTS),
        StoredId::without_blobs(database),
    );
    let query = Query {
        sql: sql.into(),
        args: vec![after.arg()],
        columns: vec![StoredId::column(&events), ColumnDef::new("is_old", ValueType::Int)].into(),
    };
    let rows = database.fetch(&query, Route::Primary, HOLDER).await?;
    let read = |row: Vec<Value>| match &row[..] {
        [id, Value::Int(old)] => Some((StoredId::read(id)?, *old == 1)),
        _ => None,
    };
    let is_full = rows.len() == PAGE;
    Ok((rows.into_iter().filter_map(read).collect(), is_full))
}

async fn delete(database: &Database, ids: Vec<Value>) -> Result<(), DbError> {
    let events = database.table(&EVENTS).await?;
    let syntax = database.driver.syntax();
    let chosen = syntax.any(1, ValueType::Uuid, &events.columns[0]);
    let query = Query {
        sql: format!("DELETE FROM {} WHERE {chosen}", syntax.table(&EVENTS)).into(),
        args: vec![Arg::Many(ValueType::Uuid, ids)],
        columns: Vec::new().into(),
    };
    database.fetch(&query, Route::Primary, HOLDER).await.map(drop)
}
