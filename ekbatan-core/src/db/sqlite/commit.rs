//! Commits batches in one transaction of the single writer.

use std::collections::HashSet;
use std::sync::Arc;

use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Row};
use uuid::Uuid;

use super::connection::SqliteConnection;
use super::decode::{bind, bind_column};
use super::error::classify;
use super::statement::{chained, chunk, find_stale, guard_positions, set_positions, write_rows};
use crate::db::{ChangeKind, CommitBatch, CommitError, DbError, RowChange, RowRef, TableInfo};
use crate::domain::{TableKey, Value};

/// One row, its records, and nothing else to check: the most frequent batch. It needs no read
/// before it writes.
fn is_simple(batch: &CommitBatch) -> bool {
    batch.changes.len() == 1 && batch.fences.is_empty() && batch.expected.is_empty()
}

/// What the text of a simple batch depends on; `None` if the batch is not simple.
pub(super) fn chain_tables(batch: &CommitBatch) -> Option<(ChangeKind, Vec<TableKey>)> {
    let rows = batch.changes.iter().chain(&batch.records);
    is_simple(batch)
        .then(|| (batch.changes[0].kind, rows.map(|row| row.table.table.key()).collect()))
}

/// How many of `batches` simple batches are written by one call. There are few different lengths,
/// so that few texts are prepared.
pub(super) fn chain_length(batches: usize) -> usize {
    [16, 8, 4, 2, 1].into_iter().find(|length| *length <= batches).unwrap_or(1)
}

impl SqliteConnection {
    /// Commits all batches in one transaction. After an `Err` nothing of any batch is written.
    pub(super) async fn commit_together(
        &mut self,
        batches: &[&CommitBatch],
    ) -> Result<Vec<Result<(), CommitError>>, DbError> {
        let writing = self.writer_lock.acquire().await?;
        let answers = self.commit_as_writer(batches).await;
        if answers.is_err() {
            // Fails after errors that already ended the transaction.
            let _ = self.run("ROLLBACK", SqliteArguments::default()).await;
        }
        drop(writing);
        answers
    }

    async fn commit_as_writer(
        &mut self,
        batches: &[&CommitBatch],
    ) -> Result<Vec<Result<(), CommitError>>, DbError> {
        // A call hands over to SQLite's thread, which costs as much as the work itself.
        if let [batch] = batches
            && is_simple(batch)
        {
            return self.write_chains(batches, true).await;
        }
        self.run("BEGIN IMMEDIATE; PRAGMA defer_foreign_keys = ON", SqliteArguments::default())
            .await?;
        let mut answers = Vec::with_capacity(batches.len());
        for alike in
            batches.chunk_by(|a, b| chain_tables(a).is_some() && chain_tables(a) == chain_tables(b))
        {
            let mut rest = alike;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(chain_length(rest.len()));
                match now {
                    [batch] => answers.push(self.write_batch(batch).await?),
                    chains => answers.extend(self.write_chains(chains, false).await?),
                }
                rest = later;
            }
        }
        self.run("COMMIT", SqliteArguments::default()).await?;
        Ok(answers)
    }

    /// Writes a batch into the open transaction, whole or, if it is rejected, not at all. After an
    /// `Err` the caller has to undo what may have been written.
    pub(super) async fn write_batch(
        &mut self,
        batch: &CommitBatch,
    ) -> Result<Result<(), CommitError>, DbError> {
        if is_simple(batch) {
            return Ok(self.write_chains(&[batch], false).await?.remove(0));
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
        let rows = batch.changes.iter().chain(&batch.records).collect::<Vec<_>>();
        for group in
            rows.chunk_by(|a, b| a.table.table.key() == b.table.table.key() && a.kind == b.kind)
        {
            let (table, kind) = (&group[0].table, group[0].kind);
            for rows in group.chunks(chunk(table)) {
                let mut arguments = SqliteArguments::default();
                for row in rows {
                    for position in kind.written(table) {
                        bind_column(
                            &mut arguments,
                            &row.values[position],
                            &table.columns[position],
                        )?;
                    }
                    if kind == ChangeKind::Update {
                        bind(&mut arguments, &Value::Int(row.steps))?;
                    }
                }
                self.run(write_rows(table, kind, rows.len()), arguments).await?;
            }
        }
        Ok(Ok(()))
    }

    /// The rows that are deleted or at another version than the batch needs. The caller is the
    /// only writer, so the answer stays true until its commit.
    async fn stale_rows(&mut self, batch: &CommitBatch) -> Result<Vec<RowRef>, DbError> {
        let updates = batch.updates().map(|row| (&row.table, row.row_ref()));
        let expected = batch.expected.iter().map(|row| (&row.table, row.row_ref()));
        let guarded: Vec<(&Arc<TableInfo>, RowRef)> = updates.chain(expected).collect();
        let mut stale = Vec::new();
        for group in guarded.chunk_by(|(a, _), (b, _)| a.table.key() == b.table.key()) {
            let table = group[0].0;
            for rows in group.chunks(chunk(table)) {
                let mut arguments = SqliteArguments::default();
                for (_, row) in rows {
                    bind(&mut arguments, &Value::Uuid(row.id))?;
                    if table.table.version.is_some() {
                        bind(&mut arguments, &Value::Int(row.expected_version))?;
                    }
                }
                self.trips += 1;
                let found =
                    sqlx::query_with(AssertSqlSafe(find_stale(table, rows.len())), arguments)
                        .fetch_all(&mut self.inner)
                        .await
                        .map_err(classify)?;
                let found: HashSet<(Uuid, i64)> = found
                    .iter()
                    .filter_map(|row| {
                        let id = row.try_get::<String, _>(0).ok()?.parse().ok()?;
                        Some((id, row.try_get(1).ok()?))
                    })
                    .collect();
                let is_stale = |row: &RowRef| found.contains(&(row.id, row.expected_version));
                stale.extend(rows.iter().map(|(_, row)| *row).filter(is_stale));
            }
        }
        Ok(stale)
    }

    /// Writes simple batches over the same tables in one call. A chain returns its number if it
    /// was written, and nothing if it is stale.
    pub(super) async fn write_chains(
        &mut self,
        batches: &[&CommitBatch],
        whole: bool,
    ) -> Result<Vec<Result<(), CommitError>>, DbError> {
        let sql = self.chains_text(batches, whole);
        let mut arguments = SqliteArguments::default();
        for (number, batch) in (0..).zip(batches) {
            let change = &batch.changes[0];
            match change.kind {
                ChangeKind::Insert => bind_all(&mut arguments, change)?,
                ChangeKind::Update => {
                    let bind_at = |arguments: &mut SqliteArguments, position: usize| {
                        let column = &change.table.columns[position];
                        bind_column(arguments, &change.values[position], column)
                    };
                    for position in set_positions(&change.table) {
                        bind_at(&mut arguments, position)?;
                    }
                    if change.table.table.version.is_some() {
                        bind(&mut arguments, &Value::Int(change.steps))?;
                    }
                    for position in guard_positions(&change.table) {
                        bind_at(&mut arguments, position)?;
                    }
                }
            }
            batch.records.iter().try_for_each(|record| bind_all(&mut arguments, record))?;
            bind(&mut arguments, &Value::Int(number))?;
        }
        self.trips += 1;
        let held = sqlx::query_with(AssertSqlSafe(sql), arguments)
            .fetch_all(&mut self.inner)
            .await
            .map_err(classify)?;
        let held: HashSet<i64> =
            held.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(classify)?;
        let answer = |(number, batch): (i64, &&CommitBatch)| {
            if held.contains(&number) {
                Ok(())
            } else {
                Err(CommitError::Stale(vec![batch.changes[0].row_ref()]))
            }
        };
        Ok((0..).zip(batches).map(answer).collect())
    }

    fn chains_text(&mut self, batches: &[&CommitBatch], whole: bool) -> Arc<str> {
        let first = batches[0];
        let tables = first.changes.iter().chain(&first.records).map(|row| row.table.table.key());
        let key = (first.changes[0].kind, whole, batches.len(), tables.collect());
        self.chains
            .entry(key)
            .or_insert_with(|| {
                let chain = chained(&first.changes[0], &first.records);
                let sql = vec![chain.as_str(); batches.len()].join("; ");
                if whole { format!("BEGIN IMMEDIATE; {sql}; COMMIT").into() } else { sql.into() }
            })
            .clone()
    }

    pub(super) async fn run(
        &mut self,
        sql: impl Into<Arc<str>>,
        arguments: SqliteArguments,
    ) -> Result<(), DbError> {
        self.trips += 1;
        sqlx::query_with(AssertSqlSafe(sql.into()), arguments)
            .execute(&mut self.inner)
            .await
            .map(drop)
            .map_err(classify)
    }
}

fn bind_all(arguments: &mut SqliteArguments, row: &RowChange) -> Result<(), DbError> {
    row.kind.written(&row.table).try_for_each(|position| {
        bind_column(arguments, &row.values[position], &row.table.columns[position])
    })
}
