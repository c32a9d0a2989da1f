//! The idempotency keys of the steps of handlers and of jobs. Unlike other keys, a key of a step stays as
//! long as its delivery, or until its run has ended, however old it is: the handler or the job may be begun
//! again, and must not repeat the step. The key is on the shard of its delivery or run.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::clock::to_micros;
use crate::db::eventlog::{IDEMPOTENCY_KEYS, JOB_RUNS};
use crate::db::{Arg, Database, DbError, Query, Route};
use crate::domain::{ColumnDef, Value, ValueType};

const HOLDER: &str = "old keys of steps";

/// What the keys of steps begin with. Neither has a character that means something to `LIKE`.
const OF_HANDLER: &str = "event-step:";
const OF_JOB: &str = "job-step:";

/// The condition on keys of steps, and perhaps of keys of an application that look alike.
pub(super) const OF_STEPS: &str =
    "(idempotency_key LIKE 'event-step:%' OR idempotency_key LIKE 'job-step:%')";

const COLUMNS: &[ColumnDef] = &[
    ColumnDef::new("action_id", ValueType::Uuid),
    ColumnDef::new("created_date", ValueType::Timestamp),
    ColumnDef::new("idempotency_key", ValueType::Text),
];

/// The key of a step that a handler makes for a delivery.
pub fn step_key(delivery: Uuid, step: &str) -> String {
    format!("{OF_HANDLER}{delivery}:{step}")
}

/// The key of a step of a run of a job.
pub fn job_step_key(run: Uuid, step: &str) -> String {
    format!("{OF_JOB}{run}:{step}")
}

/// What a step belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOwner {
    /// The delivery of an event to a handler.
    Delivery(Uuid),
    /// A run of a job.
    Run(Uuid),
}

/// The row of a key that may be that of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldStepKey {
    /// Identifies the row among those of its date.
    pub id: Uuid,
    /// When the step was made.
    pub date: DateTime<Utc>,
    /// What the step belongs to; `None` if it is a key of an application that looks like one of a step.
    pub owner: Option<StepOwner>,
}

impl OldStepKey {
    fn read(row: Vec<Value>) -> Option<Self> {
        let [Value::Uuid(id), Value::Timestamp(date), Value::Text(key)] =
            <[Value; 3]>::try_from(row).ok()?
        else {
            return None;
        };
        Some(Self { id, date, owner: owner_of(&key) })
    }
}

fn owner_of(key: &str) -> Option<StepOwner> {
    let id_after = |prefix| Uuid::parse_str(key.strip_prefix(prefix)?.split_once(':')?.0).ok();
    let of_handler = id_after(OF_HANDLER).map(StepOwner::Delivery);
    of_handler.or_else(|| id_after(OF_JOB).map(StepOwner::Run))
}

/// The keys of steps with a date before this one, the oldest first, at most `most`: those that come after
/// the last one of an earlier answer.
pub(crate) async fn old_step_keys(
    database: &Database,
    before: DateTime<Utc>,
    after: Option<OldStepKey>,
    most: usize,
) -> Result<Vec<OldStepKey>, DbError> {
    let (syntax, info) = (database.driver.syntax(), database.table(&IDEMPOTENCY_KEYS).await?);
    let (id, date) = (info.column("action_id")?, info.column("created_date")?);
    let timestamp = |date| Arg::One(ValueType::Timestamp, Value::Timestamp(to_micros(date)));
    let mut args = vec![timestamp(before)];
    let mut sql = format!(
        "SELECT action_id, created_date, idempotency_key FROM {} WHERE {OF_STEPS} AND created_date < {}",
        syntax.table(&IDEMPOTENCY_KEYS),
        syntax.argument(1, ValueType::Timestamp, date),
    );
    if let Some(after) = after {
        let last_id = Arg::One(ValueType::Uuid, Value::Uuid(after.id));
        args.extend([timestamp(after.date), timestamp(after.date), last_id]);
        // The first condition is what the index on the date is read by.
        sql += &format!(
            " AND created_date >= {} AND (created_date > {} OR {} > {})",
            syntax.argument(2, ValueType::Timestamp, date),
            syntax.argument(3, ValueType::Timestamp, date),
            syntax.operand(id, ValueType::Uuid),
            syntax.argument(4, ValueType::Uuid, id),
        );
    }
    sql += &format!(" ORDER BY created_date, action_id LIMIT {most}");
    let query = Query { sql: sql.into(), args, columns: COLUMNS.into() };
    let rows = database.fetch(&query, Route::Primary, HOLDER).await?;
    Ok(rows.into_iter().filter_map(OldStepKey::read).collect())
}

/// Deletes keys of one answer.
pub(crate) async fn delete_step_keys(
    database: &Database,
    keys: &[OldStepKey],
) -> Result<(), DbError> {
    let Some(last) = keys.iter().map(|key| key.date).max() else { return Ok(()) };
    let (syntax, info) = (database.driver.syntax(), database.table(&IDEMPOTENCY_KEYS).await?);
    let until = syntax.argument(1, ValueType::Timestamp, info.column("created_date")?);
    let chosen = syntax.any(2, ValueType::Uuid, info.column("action_id")?);
    // The index on the date leads to these rows and few others.
    let sql = format!(
        "DELETE FROM {} WHERE {OF_STEPS} AND created_date <= {until} AND {chosen}",
        syntax.table(&IDEMPOTENCY_KEYS)
    );
    let ids = keys.iter().map(|key| Value::Uuid(key.id)).collect();
    let args = vec![
        Arg::One(ValueType::Timestamp, Value::Timestamp(to_micros(last))),
        Arg::Many(ValueType::Uuid, ids),
    ];
    let query = Query { sql: sql.into(), args, columns: Vec::new().into() };
    database.fetch(&query, Route::Primary, HOLDER).await.map(drop)
}

/// Whether there is a claim of a step with a date before this one: a shard where the step wrote says by a decision
/// whether it has committed.
pub(crate) async fn has_old_step_claims(
    database: &Database,
    before: DateTime<Utc>,
) -> Result<bool, DbError> {
    let (syntax, info) = (database.driver.syntax(), database.table(&IDEMPOTENCY_KEYS).await?);
    let until = syntax.argument(1, ValueType::Timestamp, info.column("created_date")?);
    let sql = format!(
        "SELECT action_id FROM {} WHERE {OF_STEPS} AND claim_id IS NOT NULL AND created_date < {until} LIMIT 1",
        syntax.table(&IDEMPOTENCY_KEYS)
    );
    let args = vec![Arg::One(ValueType::Timestamp, Value::Timestamp(to_micros(before)))];
    let query = Query { sql: sql.into(), args, columns: COLUMNS[..1].into() };
    let rows = database.fetch(&query, Route::Primary, HOLDER).await?;
    Ok(!rows.is_empty())
}

/// The runs of jobs that have not ended, on the shard of the jobs. One in a state that only a newer release
/// knows has not ended either.
pub(crate) async fn open_runs(database: &Database) -> Result<HashSet<Uuid>, DbError> {
    // Few, beside those that have ended: of each job, some are kept.
    let sql = format!(
        "SELECT id FROM {} WHERE state NOT IN ('DONE', 'FAILED', 'MISSED', 'SKIPPED')",
        database.driver.syntax().table(&JOB_RUNS)
    );
    let columns = vec![ColumnDef::new("id", ValueType::Uuid)];
    let query = Query { sql: sql.into(), args: Vec::new(), columns: columns.into() };
    let rows = database.fetch(&query, Route::Primary, HOLDER).await?;
    let id = |row: Vec<Value>| match row.into_iter().next() {
        Some(Value::Uuid(id)) => Some(id),
        _ => None,
    };
    Ok(rows.into_iter().filter_map(id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_step_names_what_it_belongs_to() {
        let id = Uuid::now_v7();
        let owner = owner_of(&step_key(id, "reserve: twice"));
        assert_eq!(owner, Some(StepOwner::Delivery(id)));
        assert_eq!(owner_of(&job_step_key(id, "debit: twice")), Some(StepOwner::Run(id)));
        for key in ["event-step:1:reserve", "event-step:", "job-step:1:debit", "step", ""] {
            assert_eq!(owner_of(key), None, "{key}");
        }
    }
}
