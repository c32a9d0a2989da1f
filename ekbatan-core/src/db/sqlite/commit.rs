//! Commits batches in one transaction of the single writer.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::FutureExt;
use rusqlite::types::Value as SqlValue;
use uuid::Uuid;

use super::decode::{Cells, bind, bind_column};
use super::error::is_disk_full;
use super::library::{Library, Patience};
use super::session::StatementRunner;
use super::statement::{chunk, find_stale, guard_positions, set_positions, write_rows};
use crate::db::{
    ChangeKind, CommitBatch, CommitError, DbError, DbErrorKind, RowChange, RowRef, TableInfo,
};
use crate::domain::Value;

/// The outcomes of batches, in their order.
pub(super) type Answers = Result<Vec<Result<(), CommitError>>, DbError>;

/// When a transaction checks foreign keys.
#[derive(Clone, Copy, PartialEq)]
enum ForeignKeys {
    /// With each statement. What passes so would also pass at the end.
    AtOnce,
    /// When it commits. The pragma for it makes SQLite prepare all statements of the connection
    /// anew, which takes longer than to run them.
    AtTheEnd,
}

/// Commits batches on the thread of the caller. After an `Err` nothing of any batch is written.
pub(super) fn commit(
    library: &mut Library,
    batches: &[&CommitBatch],
    patience: Patience,
) -> Answers {
    library.set_patience(patience)?;
    let mut session = StatementRunner::Library(library);
    let answers = session.commit(batches).now_or_never().unwrap_or_else(|| {
        Err(DbError::new(DbErrorKind::Other, "a statement of the library was not done at once"))
    });
    // Also a COMMIT that fails so is undone: SQLite rolls back before it returns, and what it wrote of
    // the log has no end by which it could be recovered.
    answers.map_err(|error| {
        let is_undone = is_disk_full(&error) && !library.has_transaction();
        if is_undone { error.undone() } else { error }
    })
}

/// One row, its records, and nothing else to check: the most frequent batch. It needs no read
/// before it writes: the number of rows that SQLite has changed tells whether it was stale. Of a
/// view, whose trigger writes elsewhere, SQLite says that it has changed none.
fn is_simple(batch: &CommitBatch) -> bool {
    let has_one_row = batch.changes.len() == 1 && !batch.changes[0].table.rules.reacts;
    has_one_row && batch.fences.is_empty() && batch.expected.is_empty()
}

impl StatementRunner<'_> {
    async fn commit(&mut self, batches: &[&CommitBatch]) -> Answers {
        match batches {
            [batch] if !batch.turns.is_empty() => Ok(vec![self.commit_in_turn(batch).await?]),
            _ => self.commit_together(batches).await,
        }
    }

    async fn commit_together(&mut self, batches: &[&CommitBatch]) -> Answers {
        let mut answers = self.commit_or_leave_open(batches, ForeignKeys::AtOnce).await;
        // By its statements, a batch of several rows may write a child before its parent.
        if violates_foreign_key(&answers) && !batches.iter().all(|batch| is_simple(batch)) {
            self.roll_back().await;
            answers = self.commit_or_leave_open(batches, ForeignKeys::AtTheEnd).await;
        }
        if answers.is_err() {
            self.roll_back().await;
        }
        answers
    }

    /// Fails after errors that already ended the transaction.
    pub(super) async fn roll_back(&mut self) {
        let _ = self.run("ROLLBACK", Vec::new()).await;
    }

    async fn commit_or_leave_open(
        &mut self,
        batches: &[&CommitBatch],
        foreign_keys: ForeignKeys,
    ) -> Answers {
        self.run("BEGIN IMMEDIATE", Vec::new()).await?;
        if foreign_keys == ForeignKeys::AtTheEnd {
            self.run("PRAGMA defer_foreign_keys = ON", Vec::new()).await?;
        }
        let mut answers = Vec::with_capacity(batches.len());
        for batch in batches {
            answers.push(self.write_batch(batch).await?);
        }
        self.run("COMMIT", Vec::new()).await?;
        Ok(answers)
    }

    /// Writes a batch into the open transaction, whole or, if it is rejected, not at all. After an
    /// `Err` the caller has to undo what may have been written.
    pub(super) async fn write_batch(
        &mut self,
        batch: &CommitBatch,
    ) -> Result<Result<(), CommitError>, DbError> {
        if is_simple(batch) {
            return self.write_simple(batch).await;
        }
        for fence in &batch.fences {
            if !self.fence_holds(fence).await? {
                return Ok(Err(CommitError::FenceLost(fence.key.clone())));
            }
        }
        let stale = self.stale_rows(batch).await?;
        if !stale.is_empty() {
            return Ok(Err(CommitError::Stale(stale)));
        }
        let mut rows = batch.changes.iter().collect::<Vec<_>>();
        // A new row may take a unique value that another row of its table gives up.
        rows.sort_by_key(|row| (row.table.table.key(), !row.kind.is_guarded()));
        rows.extend(&batch.records);
        for group in
            rows.chunk_by(|a, b| a.table.table.key() == b.table.table.key() && a.kind == b.kind)
        {
            let (table, kind) = (&group[0].table, group[0].kind);
            for rows in group.chunks(chunk(table)) {
                let mut arguments = Vec::new();
                for row in rows {
                    bind_positions(&mut arguments, row, kind.written(table))?;
                    if kind == ChangeKind::Update {
                        arguments.push(SqlValue::Integer(row.steps));
                    }
                }
                let written = self.run(&write_rows(table, kind, rows.len()), arguments).await?;
                // Of a view, whose trigger writes elsewhere, SQLite says that it has changed no row.
                if !table.is_view() && written != rows.len() as u64 {
                    return Err(DbError::suppressed(&table.table.full_name()));
                }
            }
        }
        Ok(Ok(()))
    }

    /// A stale update or delete changes no row, and then nothing else is written.
    async fn write_simple(
        &mut self,
        batch: &CommitBatch,
    ) -> Result<Result<(), CommitError>, DbError> {
        let change = &batch.changes[0];
        if self.write_one(change).await? != 1 {
            return Ok(Err(CommitError::Stale(vec![change.row_ref()])));
        }
        for record in &batch.records {
            if self.write_one(record).await? != 1 {
                return Err(DbError::suppressed(&record.table.table.full_name()));
            }
        }
        Ok(Ok(()))
    }

    async fn write_one(&mut self, row: &RowChange) -> Result<u64, DbError> {
        let mut arguments = Vec::with_capacity(row.values.len());
        match row.kind {
            ChangeKind::Insert => {
                bind_positions(&mut arguments, row, row.kind.written(&row.table))?;
            }
            ChangeKind::Update => {
                bind_positions(&mut arguments, row, set_positions(&row.table))?;
                if row.table.table.version.is_some() {
                    arguments.push(SqlValue::Integer(row.steps));
                }
                bind_positions(&mut arguments, row, guard_positions(&row.table))?;
            }
            ChangeKind::Delete => {
                bind_positions(&mut arguments, row, guard_positions(&row.table))?;
            }
        }
        let sql = self.write_row(row);
        self.run(&sql, arguments).await
    }

    /// The rows that are deleted or at another version than the batch needs. The caller is the
    /// only writer, so the answer stays true until its commit.
    async fn stale_rows(&mut self, batch: &CommitBatch) -> Result<Vec<RowRef>, DbError> {
        let changes = batch.guarded_changes().map(|row| (&row.table, row.row_ref()));
        let expected = batch.expected.iter().map(|row| (&row.table, row.row_ref()));
        let guarded: Vec<(&Arc<TableInfo>, RowRef)> = changes.chain(expected).collect();
        let mut stale = Vec::new();
        for group in guarded.chunk_by(|(a, _), (b, _)| a.table.key() == b.table.key()) {
            let table = group[0].0;
            for rows in group.chunks(chunk(table)) {
                let mut arguments = Vec::new();
                for (_, row) in rows {
                    arguments.push(bind(&Value::Uuid(row.id))?);
                    if table.table.version.is_some() {
                        arguments.push(SqlValue::Integer(row.expected_version));
                    }
                }
                let found = self.rows(&find_stale(table, rows.len()), arguments).await?;
                let found: HashSet<(Uuid, i64)> = found.iter().filter_map(id_and_version).collect();
                let is_stale = |row: &RowRef| found.contains(&(row.id, row.expected_version));
                stale.extend(rows.iter().map(|(_, row)| *row).filter(is_stale));
            }
        }
        Ok(stale)
    }
}

fn violates_foreign_key(answers: &Answers) -> bool {
    matches!(answers, Err(error) if error.kind() == DbErrorKind::ForeignKeyViolation)
}

fn id_and_version(row: &Cells) -> Option<(Uuid, i64)> {
    match &row[..] {
        [SqlValue::Text(id), SqlValue::Integer(version)] => Some((id.parse().ok()?, *version)),
        _ => None,
    }
}

fn bind_positions(
    arguments: &mut Cells,
    row: &RowChange,
    mut positions: impl Iterator<Item = usize>,
) -> Result<(), DbError> {
    positions.try_for_each(|position| {
        let column = &row.table.columns[position];
        arguments.push(bind_column(&row.values[position], column)?);
        Ok(())
    })
}
