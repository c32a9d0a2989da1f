//! Claims: how a call takes a key whose home shard it does not write to.
//!
//! Invariants:
//! - A claim is the row of its key, with a claim id that no other claim has. At most one row of a
//!   key exists at its home.
//! - The batch of the first shard inserts a decision with this id. A call that removes the
//!   claim inserts a decision with the same id. The primary key lets one of the two commit.
//! - A claim is deleted only when it cannot commit any more, and only by its id.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::CallKey;
use crate::clock::to_micros;
use crate::db::eventlog::IDEMPOTENCY_DECISIONS;
use crate::db::{
    ActionId, Arg, ChangeKind, CommitBatch, CommitError, Database, DbError, DbErrorKind, Query,
    Route, Staged, resolve,
};
use crate::domain::{Table, Value, ValueType};

const HOLDER: &str = "idempotency keys";

/// The decision on a claim.
pub(crate) fn decision(claim: Uuid, committed: bool, decided: DateTime<Utc>) -> Staged {
    Staged {
        table: &IDEMPOTENCY_DECISIONS,
        kind: ChangeKind::Insert,
        id: Uuid::nil(),
        carries_shard: false,
        values: vec![
            Value::Uuid(claim),
            Value::Bool(committed),
            Value::Timestamp(to_micros(decided)),
        ],
    }
}

/// Inserts one row, through a lane. `false` if its primary key exists, which may be the row
/// itself: a lane that lost its connection sends it again.
pub(crate) async fn insert(database: &Database, claim: Uuid, row: Staged) -> Result<bool, DbError> {
    let info = database.table(row.table).await?;
    let misfit = "a row of the framework does not fit its table";
    let row = resolve(row, info).map_err(|_| DbError::new(DbErrorKind::Decode, misfit))?;
    let batch = CommitBatch {
        // No event has this id. So the lane takes a row whose answer was lost for one that was not
        // written, and sends it again, which is safe.
        action: ActionId(claim),
        changes: Vec::new(),
        expected: Vec::new(),
        records: vec![row],
        fences: Vec::new(),
        traceable: true,
        turns: Vec::new(),
    };
    match database.commit(batch).await {
        Ok(_) => Ok(true),
        Err(CommitError::Refused(error)) if error.kind() == DbErrorKind::UniqueViolation => {
            Ok(false)
        }
        Err(CommitError::Refused(error)) => Err(error),
        Err(error) => Err(DbError::new(DbErrorKind::Unavailable, error.to_string())),
    }
}

/// The decision on a claim, if there is one: whether it has committed.
pub(crate) async fn decided(database: &Database, claim: Uuid) -> Result<Option<bool>, DbError> {
    let sql = format!(
        "SELECT committed FROM {} WHERE claim_id = $1",
        table(database, &IDEMPOTENCY_DECISIONS)
    );
    let query = Query {
        sql: sql.into(),
        args: vec![uuid(claim)],
        columns: IDEMPOTENCY_DECISIONS.columns[1..2].into(),
    };
    let rows = database.fetch(&query, Route::Primary, HOLDER).await?;
    Ok(rows.first().map(|row| row.first() == Some(&Value::Bool(true))))
}

/// Deletes a claim that cannot commit any more.
pub(crate) async fn delete_claim(
    home: &Database,
    key: &CallKey,
    claim: Uuid,
) -> Result<(), DbError> {
    let keys = table(home, key.table());
    let sql = format!("DELETE FROM {keys} WHERE {} AND claim_id = $4", key.condition());
    write(home, sql, [key.arguments(), vec![uuid(claim)]].concat()).await
}

/// Records at the home that the call has committed on all of its shards.
pub(crate) async fn mark_complete(
    home: &Database,
    key: &CallKey,
    action: ActionId,
) -> Result<(), DbError> {
    let keys = table(home, key.table());
    let sql = format!(
        "UPDATE {keys} SET shards = NULL, claim_id = NULL WHERE {} AND action_id = $4",
        key.condition()
    );
    write(home, sql, [key.arguments(), vec![uuid(action.0)]].concat()).await
}

/// Deletes a decision that nobody needs any more, because the row of its key is no claim now.
pub(crate) async fn delete_decision(database: &Database, claim: Uuid) -> Result<(), DbError> {
    let decisions = table(database, &IDEMPOTENCY_DECISIONS);
    write(database, format!("DELETE FROM {decisions} WHERE claim_id = $1"), vec![uuid(claim)]).await
}

async fn write(database: &Database, sql: String, args: Vec<Arg>) -> Result<(), DbError> {
    database.check_not_beside_transaction()?;
    let query = Query { sql: sql.into(), args, columns: Vec::new().into() };
    database.fetch(&query, Route::Primary, HOLDER).await.map(drop)
}

fn table(database: &Database, table: &Table) -> String {
    database.driver.syntax().table(table)
}

fn uuid(id: Uuid) -> Arg {
    Arg::One(ValueType::Uuid, Value::Uuid(id))
}
