//! Deletes rows by their date: idempotency keys, messages of the inbox and others.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::EnqueuedKey;
use super::deliveries::Delivery;
use super::old_step_keys::OF_STEPS;
use crate::clock::to_micros;
use crate::db::eventlog::{EVENTS, IDEMPOTENCY_DECISIONS, IDEMPOTENCY_KEYS, INBOX};
use crate::db::{
    Arg, Database, DbError, Isolation, Query, Transaction, TransactionError, TransactionManager,
    TransactionOptions,
};
use crate::domain::{ColumnDef, Entity, Table, Value, ValueType};

/// Rows that may be deleted once they are old.
#[derive(Debug, Clone, Copy)]
pub struct OldRows {
    /// The table.
    pub table: &'static Table,
    /// The date that counts. It has an index, unless the table is small. A row without a date stays.
    pub date: &'static str,
    /// A column that no two rows of one date share.
    pub id: &'static str,
    /// What this row is needed for.
    needed_for: [Option<NeededFor>; 2],
    /// The condition on rows that are not meant.
    except: Option<&'static str>,
}

/// Rows of another table for which a row stays.
#[derive(Debug, Clone, Copy)]
struct NeededFor {
    table: &'static Table,
    /// The column of the other table.
    column: &'static str,
    /// The column of the row that has the same value.
    own: &'static str,
}

impl OldRows {
    /// Idempotency keys, but for those of [steps](super::OldStepKey).
    pub const KEYS: Self =
        Self { except: Some(OF_STEPS), ..Self::of(&IDEMPOTENCY_KEYS, "created_date", "action_id") };
    /// Messages that were handled.
    pub const INBOX: Self = Self::of(&INBOX, "received_date", "action_id");
    /// Decisions on keys and messages, which processes left that ended within a call.
    pub const DECISIONS: Self = Self::of(&IDEMPOTENCY_DECISIONS, "decided_date", "claim_id");
    /// Keys of enqueued calls. A key stays while any of its calls waits: the last call in turn may be
    /// cancelled while an earlier one still waits.
    pub const ENQUEUED_KEYS: Self = Self {
        needed_for: [
            Some(NeededFor { table: Delivery::TABLE, column: "id", own: "delivery" }),
            Some(NeededFor { table: Delivery::TABLE, column: "stream", own: "id" }),
        ],
        ..Self::of(EnqueuedKey::TABLE, "changed", "id")
    };

    /// Rows that nothing needs but by their date.
    pub const fn of(table: &'static Table, date: &'static str, id: &'static str) -> Self {
        Self { table, date, id, needed_for: [None, None], except: None }
    }

    /// Keeps each row as long as the event is stored whose id is in this column.
    pub const fn needed_for_event(self, column: &'static str) -> Self {
        let events = NeededFor { table: &EVENTS, column: "id", own: column };
        Self { needed_for: [Some(events), None], ..self }
    }

    /// Deletes the rows with a date before this one, at most `at_once` in a transaction. Returns how
    /// many.
    pub(crate) async fn delete(
        self,
        database: &Arc<Database>,
        before: DateTime<Utc>,
        at_once: usize,
    ) -> Result<u64, TransactionError<DbError>> {
        let mut options = TransactionOptions::default();
        if database.driver.capabilities().isolation_levels {
            options = options.isolation(Isolation::ReadCommitted);
        }
        let manager = TransactionManager::new(database.clone());
        let mut deleted = 0;
        loop {
            let page =
                |transaction| async move { self.delete_page(&transaction, before, at_once).await };
            let count = manager.in_transaction_with(options, page).await?;
            deleted += count as u64;
            if count < at_once {
                return Ok(deleted);
            }
        }
    }

    /// Deletes the oldest rows.
    async fn delete_page(
        self,
        transaction: &Transaction,
        before: DateTime<Utc>,
        at_once: usize,
    ) -> Result<usize, DbError> {
        let Self { date, id, needed_for, except, .. } = self;
        let syntax = transaction.database().driver.syntax();
        let info = transaction.table(self.table).await?;
        let table = syntax.table(self.table);
        let until =
            |n| Ok::<_, DbError>(syntax.argument(n, ValueType::Timestamp, info.column(date)?));
        let mut sql = format!("SELECT {id}, {date} FROM {table} WHERE {date} < {}", until(1)?);
        for NeededFor { table: other, column, own } in needed_for.into_iter().flatten() {
            let other = syntax.table(other);
            sql += &format!(
                " AND NOT EXISTS (SELECT 1 FROM {other} o WHERE o.{column} = {table}.{own})"
            );
        }
        if let Some(except) = except {
            sql += &format!(" AND NOT ({except})");
        }
        sql += &format!(" ORDER BY {date} LIMIT {at_once}");
        // Rows that another process deletes at this moment are skipped.
        if !transaction.database().driver.capabilities().single_writer {
            sql += " FOR UPDATE SKIP LOCKED";
        }
        let columns = vec![
            ColumnDef::new("id", ValueType::Uuid),
            ColumnDef::new("date", ValueType::Timestamp),
        ];
        let args = vec![timestamp(Value::Timestamp(to_micros(before)))];
        let query = Query { sql: sql.into(), args, columns: columns.into() };
        let mut found = transaction.fetch(&query).await?;
        let count = found.len();
        // The last one has the latest date. Up to it the index leads to these rows and few others.
        let Some(last) = found.last_mut().and_then(Vec::pop) else { return Ok(0) };
        let ids = found.into_iter().filter_map(|row| row.into_iter().next()).collect();
        let chosen = syntax.any(2, ValueType::Uuid, info.column(id)?);
        let sql = format!("DELETE FROM {table} WHERE {date} <= {} AND {chosen}", until(1)?);
        let args = vec![timestamp(last), Arg::Many(ValueType::Uuid, ids)];
        transaction.fetch(&Query { sql: sql.into(), args, columns: Vec::new().into() }).await?;
        Ok(count)
    }
}

fn timestamp(value: Value) -> Arg {
    Arg::One(ValueType::Timestamp, value)
}
