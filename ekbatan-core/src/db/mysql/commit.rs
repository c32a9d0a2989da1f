//! Commits batches by packets of statements.
//!
//! Most commits, of one batch or several, take one round trip: all statements and the COMMIT are
//! one packet, and the server stops at the first statement that fails. Longer commits are several
//! packets in one transaction, with the COMMIT in the last. After each UPDATE or DELETE stands a guard,
//! which fails if a row was not at its version, so the COMMIT runs only if all batches hold.
//!
//! After a failure the transaction is rolled back. If a guard failed, every row is locked and
//! checked, the batches that hold are written again, and the others are returned as stale. That
//! takes three round trips, but only if a batch is stale. Fences are checked first, in the same
//! packet, by a guard of their own. Prepared statements would need a round trip each, and another
//! one to prepare each text; see docs/decisions/0010.

use std::collections::HashSet;

use uuid::Uuid;

use super::connection::MySqlConnection;
use super::error::{GUARD, NO_SAVEPOINT};
use super::fence::{check, guard_fence};
use super::locks::lock_first;
use super::order::ordered;
use super::packets::PacketPlan;
use super::statement::{
    LockMode, delete, guard, guard_expected, insert_into, insert_row, look, naming_event, update,
};
use crate::db::{
    ChangeKind, CommitBatch, CommitError, DbError, DbErrorKind, ExpectedRow, FenceCheck, RowChange,
    RowRef, TableInfo, largest, too_large,
};
use crate::domain::TableKey;

/// How many rows one UPDATE or DELETE changes; the server compares each row with the ids of all of them.
const GUARDED_ROWS: usize = 32;

/// How many rows one guard of unchanged rows counts.
const EXPECTED_ROWS: usize = 500;

/// The fences of the batches, in one order for all commits: a raise that waits between two share
/// locks could otherwise close a cycle.
pub(super) fn fences<'b>(batches: &[&'b CommitBatch]) -> Vec<&'b FenceCheck> {
    let mut fences: Vec<&FenceCheck> = batches.iter().flat_map(|batch| &batch.fences).collect();
    fences.sort_by(|a, b| a.key.cmp(&b.key));
    fences
}

impl MySqlConnection {
    /// Commits all batches in one transaction. After an `Err` nothing of any batch is written.
    pub(super) async fn commit_together(
        &mut self,
        batches: &[&CommitBatch],
    ) -> Result<Vec<Result<(), CommitError>>, DbError> {
        match self.write_and_commit(batches).await {
            Ok(()) => return Ok(batches.iter().map(|_| Ok(())).collect()),
            Err(error) if !is_guard(&error) => return Err(self.after_rollback(error).await),
            Err(_) => self.roll_back().await?,
        }
        let looked = self.look(batches, None).await;
        let answers = match looked {
            Ok(answers) => answers,
            Err(error) => return Err(self.after_rollback(error).await),
        };
        let whole: Vec<&CommitBatch> = batches
            .iter()
            .zip(&answers)
            .filter_map(|(batch, answer)| answer.is_ok().then_some(*batch))
            .collect();
        if whole.is_empty() {
            self.roll_back().await?;
            return Ok(answers);
        }
        match self.write_and_commit(&whole).await {
            Ok(()) => Ok(answers),
            Err(error) => Err(self.after_rollback(error).await),
        }
    }

    /// Writes a batch into the transaction that is open, whole or not at all.
    pub(super) async fn write_within(&mut self, batch: &CommitBatch) -> Result<(), CommitError> {
        let refused = CommitError::Refused;
        if !batch.fences.is_empty() {
            self.look(&[batch], None).await.map_err(refused)?.remove(0)?;
        }
        let error = match self.write_in_savepoint(batch).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_connection_lost() || self.rolled_back => {
                return Err(refused(error));
            }
            Err(error) => error,
        };
        let undo = "ROLLBACK TO SAVEPOINT ekbatan_batch; RELEASE SAVEPOINT ekbatan_batch";
        if !is_guard(&error) {
            // If the batch cannot be undone, the transaction must not commit a part of it.
            if self.send(undo).await.is_err() {
                self.rolled_back = true;
            }
            return Err(refused(error));
        }
        match self.look(&[batch], Some(undo)).await {
            Ok(mut answers) => answers.remove(0).and(Err(refused(error))),
            Err(error) => {
                self.rolled_back = true;
                Err(refused(error))
            }
        }
    }

    async fn write_in_savepoint(&mut self, batch: &CommitBatch) -> Result<(), DbError> {
        let mut plan = PacketPlan::new(self.packets);
        // Fails if the transaction is over; the statements after it would commit by themselves.
        plan.push("RELEASE SAVEPOINT ekbatan; SAVEPOINT ekbatan; SAVEPOINT ekbatan_batch")?;
        self.plan(&[batch], &mut plan)?;
        plan.push("RELEASE SAVEPOINT ekbatan_batch")?;
        let sent = self.send_all(plan).await.map_err(|error| naming_event(error, &[batch]));
        sent.inspect_err(|error| {
            // A deadlock rolls back the whole transaction; a lock timeout does so or not, depending
            // on a setting of the server.
            let ends = [DbErrorKind::Deadlock, DbErrorKind::LockTimeout];
            self.rolled_back |= ends.contains(&error.kind()) || error.code() == Some(NO_SAVEPOINT);
        })
    }

    async fn write_and_commit(&mut self, batches: &[&CommitBatch]) -> Result<(), DbError> {
        let mut plan = PacketPlan::new(self.packets);
        for fence in fences(batches) {
            plan.push(guard_fence(&self.syntax, fence))?;
        }
        self.plan(batches, &mut plan)?;
        plan.push("COMMIT")?;
        self.send_all(plan).await.map_err(|error| naming_event(error, batches))
    }

    /// Plans the locks and the writes of the batches.
    fn plan(&self, batches: &[&CommitBatch], plan: &mut PacketPlan) -> Result<(), DbError> {
        for lock in lock_first(&self.syntax, batches)? {
            plan.push(lock)?;
        }
        self.plan_expected(batches, plan)?;
        self.plan_writes(batches, plan)
    }

    /// Plans the guards of the rows that must be unchanged.
    pub(super) fn plan_expected(
        &self,
        batches: &[&CommitBatch],
        plan: &mut PacketPlan,
    ) -> Result<(), DbError> {
        let mut expected: Vec<&ExpectedRow> =
            batches.iter().flat_map(|batch| &batch.expected).collect();
        expected.sort_by_key(|row| (row.table.table.key(), row.id));
        for rows in expected.chunk_by(|a, b| a.table.table.key() == b.table.table.key()) {
            for rows in rows.chunks(EXPECTED_ROWS) {
                plan.push(guard_expected(&self.syntax, rows)?)?;
            }
        }
        Ok(())
    }

    /// Plans the writes of the batches.
    pub(super) fn plan_writes(
        &self,
        batches: &[&CommitBatch],
        plan: &mut PacketPlan,
    ) -> Result<(), DbError> {
        let rows = ordered(batches);
        for alike in
            rows.chunk_by(|a, b| a.table.table.key() == b.table.table.key() && a.kind == b.kind)
        {
            let planned = match alike[0].kind {
                ChangeKind::Insert => self.plan_inserts(alike, plan),
                ChangeKind::Update | ChangeKind::Delete => {
                    alike.chunks(GUARDED_ROWS).try_for_each(|rows| self.plan_guarded(rows, plan))
                }
            };
            planned.map_err(|error| match error.kind() {
                DbErrorKind::TooLarge => {
                    too_large(format!("{}; {error}", largest(alike.iter().copied())))
                }
                _ => error,
            })?;
        }
        Ok(())
    }

    fn plan_inserts(&self, rows: &[&RowChange], plan: &mut PacketPlan) -> Result<(), DbError> {
        let head = insert_into(&self.syntax, &rows[0].table);
        let mut sql = head.clone();
        for row in rows {
            let row = insert_row(row)?;
            if sql.len() > head.len() && sql.len() + row.len() > self.packets.one_write() {
                plan.push(std::mem::replace(&mut sql, head.clone()))?;
            }
            sql.push_str(if sql.len() == head.len() { "" } else { ", " });
            sql.push_str(&row);
        }
        plan.push(sql)
    }

    /// Plans the updates or the deletes of one table.
    fn plan_guarded(&self, rows: &[&RowChange], plan: &mut PacketPlan) -> Result<(), DbError> {
        let sql = match rows[0].kind {
            ChangeKind::Delete => delete(&self.syntax, rows)?,
            _ => update(&self.syntax, rows)?,
        };
        if rows.len() > 1 && sql.len() > self.packets.one_write() {
            let (some, others) = rows.split_at(rows.len() / 2);
            self.plan_guarded(some, plan)?;
            return self.plan_guarded(others, plan);
        }
        // The two stay in one packet, because the guard reads the row count of the first.
        plan.push(format!("{sql}; {}", guard(rows.len())))
    }

    /// Runs `first`, then locks the rows and fences of the batches and returns which batches hold.
    async fn look(
        &mut self,
        batches: &[&CommitBatch],
        first: Option<&str>,
    ) -> Result<Vec<Result<(), CommitError>>, DbError> {
        let mut plan = PacketPlan::new(self.packets);
        if let Some(first) = first {
            plan.push(first)?;
        }
        for lock in lock_first(&self.syntax, batches)? {
            plan.push(lock)?;
        }
        let fences = fences(batches);
        let mut rows: Vec<(&TableInfo, RowRef, Option<LockMode>)> = Vec::new();
        for batch in batches {
            let changes = batch.guarded_changes();
            rows.extend(changes.map(|row| (&*row.table, row.row_ref(), Some(LockMode::Exclusive))));
            rows.extend(
                batch.expected.iter().map(|row| {
                    (&*row.table, row.row_ref(), row.is_locked.then_some(LockMode::Share))
                }),
            );
        }
        rows.sort_by_key(|(table, row, _)| (table.table.key(), row.id));
        for (n, (table, row, mode)) in rows.iter().enumerate() {
            plan.push(look(&self.syntax, table, *row, *mode, n)?)?;
        }
        for (n, fence) in (rows.len()..).zip(&fences) {
            plan.push(check(&self.syntax, fence, n))?;
        }
        let mut found = HashSet::new();
        for packet in plan.packets() {
            found.extend(self.numbers(&packet).await?);
        }
        let found = |n: usize| found.contains(&(n as i64));
        let gone: HashSet<(TableKey, Uuid, i64)> = rows
            .iter()
            .enumerate()
            .filter(|(n, _)| !found(*n))
            .map(|(_, (table, row, _))| (table.table.key(), row.id, row.expected_version))
            .collect();
        let fallen: Vec<&FenceCheck> = (rows.len()..)
            .zip(fences)
            .filter_map(|(n, fence)| (!found(n)).then_some(fence))
            .collect();
        Ok(batches
            .iter()
            .map(|batch| {
                if let Some(fence) = batch.fences.iter().find(|fence| fallen.contains(fence)) {
                    return Err(CommitError::FenceLost(fence.key.clone()));
                }
                let stale: Vec<RowRef> = batch
                    .guarded()
                    .filter(|(table, row)| gone.contains(&(*table, row.id, row.expected_version)))
                    .map(|(_, row)| row)
                    .collect();
                if stale.is_empty() { Ok(()) } else { Err(CommitError::Stale(stale)) }
            })
            .collect())
    }

    pub(super) async fn send_all(&mut self, plan: PacketPlan) -> Result<(), DbError> {
        for packet in plan.packets() {
            self.send(&packet).await?;
        }
        Ok(())
    }

    /// After a failed rollback the session must not be used again, so the error says
    /// `Unavailable`.
    async fn roll_back(&mut self) -> Result<(), DbError> {
        self.send("ROLLBACK").await.map_err(|error| {
            let why = format!("the rollback failed: {error}");
            DbError::new(DbErrorKind::Unavailable, why).with_source(error)
        })
    }

    /// Rolls back, because some errors undo only their own statement; returns the error.
    pub(super) async fn after_rollback(&mut self, error: DbError) -> DbError {
        if error.is_connection_lost() {
            return error;
        }
        match self.roll_back().await {
            Ok(()) => error,
            Err(lost) => lost,
        }
    }
}

pub(super) fn is_guard(error: &DbError) -> bool {
    error.code() == Some(GUARD)
}
