//! Deletes old rows of the outbox.
//!
//! Invariant: no row is deleted within [`EVENTS_KEPT`](crate::db::eventlog::EVENTS_KEPT) of its
//! commit. A trigger in the database enforces that for every client.

use std::time::Duration;

use uuid::Uuid;

use crate::db::eventlog::EVENTS;
use crate::db::{Arg, Database, DbError, Query, Route};
use crate::domain::{ColumnDef, Value, ValueType};

/// How many rows one statement looks at.
const PAGE: usize = 1_000;

/// Databases cannot subtract much longer times, in seconds.
const CENTURY: u64 = 100 * 365 * 24 * 60 * 60;

const HOLDER: &str = "prune outbox";

/// Deletes the delivered rows that were written more than `age` ago, by the clock of the database,
/// and the rows without a content. Returns how many. Walks over the table by its primary key, a
/// page at a time, so that no statement runs long or locks many rows.
pub(crate) async fn prune(database: &Database, age: Duration) -> Result<u64, DbError> {
    database.check_not_beside_transaction()?;
    let mut deleted = 0;
    let mut after = Uuid::nil();
    loop {
        let page = page(database, after, age).await?;
        let Some((last, _)) = page.last() else { return Ok(deleted) };
        after = *last;
        let is_full = page.len() == PAGE;
        let old: Vec<Value> =
            page.into_iter().filter(|(_, old)| *old).map(|(id, _)| Value::Uuid(id)).collect();
        deleted += old.len() as u64;
        if !old.is_empty() {
            delete(database, old).await?;
        }
        if !is_full {
            return Ok(deleted);
        }
    }
}

/// The ids of the rows after `after`, each with whether it is to be deleted.
async fn page(
    database: &Database,
    after: Uuid,
    age: Duration,
) -> Result<Vec<(Uuid, bool)>, DbError> {
    let syntax = database.driver.syntax();
    let sql = format!(
        "SELECT id, CASE WHEN (delivered OR payload IS NULL) AND {} THEN 1 ELSE 0 END AS is_old \
         FROM {} WHERE id > $1 ORDER BY id LIMIT {PAGE}",
        syntax.recorded_before(age.as_secs().min(CENTURY)),
        syntax.table(&EVENTS),
    );
    let query = Query {
        sql: sql.into(),
        args: vec![Arg::One(ValueType::Uuid, Value::Uuid(after))],
        columns: vec![
            ColumnDef::new("id", ValueType::Uuid),
            ColumnDef::new("is_old", ValueType::Int),
        ]
        .into(),
    };
    let rows = database.fetch(&query, Route::Primary, HOLDER).await?;
    let read = |row: Vec<Value>| match row[..] {
        [Value::Uuid(id), Value::Int(old)] => Some((id, old == 1)),
        _ => None,
    };
    Ok(rows.into_iter().filter_map(read).collect())
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
