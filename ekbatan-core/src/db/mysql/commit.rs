//! Batches into packets of statements.
//!
//! The everyday flight, one batch or many, is one round trip: all its statements and the
//! COMMIT are one packet, which the server carries out until the first that fails. Behind
//! each UPDATE stands a guard that fails when a row was not at its version, so the COMMIT is
//! only ever reached by a flight that is whole.
//!
//! What did not go through is rolled back. If it was a guard that failed, every row is looked
//! at and locked, the batches that hold are written again and the others answered as stale:
//! three trips, paid only by flights with a stale batch in them. A fence is looked at before
//! anything is written, which makes two. Prepared statements would need a trip each, and one
//! to prepare each text; see docs/decisions/0010.

use std::collections::HashSet;

use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Either, Row};

use super::MySqlLink;
use super::error::{GUARD, classify};
use super::order::ordered;
use super::statement::{guard, insert_into, insert_row, look, look_at_fence, update};
use crate::db::{ChangeKind, CommitBatch, CommitError, DbError, DbErrorKind, RowChange, RowRef};

/// When a packet is long enough to be sent; a single statement may make it longer.
const FULL_PACKET: usize = 1 << 20;

/// How many rows one UPDATE changes: each row is compared with the ids of the others.
const UPDATE_ROWS: usize = 32;

/// How many rows one INSERT adds.
const INSERT_ROWS: usize = 1_000;

/// Statements that are sent together, and what follows when they have become too long.
struct Packets {
    max_packet: usize,
    packets: Vec<String>,
}

impl Packets {
    fn new(max_packet: usize) -> Self {
        Self { max_packet, packets: vec![String::new()] }
    }

    fn push(&mut self, statement: &str) -> Result<(), DbError> {
        self.fits(statement)?;
        let full = FULL_PACKET.min(self.max_packet / 2);
        match self.packets.last_mut() {
            Some(open) if open.is_empty() => open.push_str(statement),
            Some(open) if open.len() + statement.len() < full => {
                open.push_str("; ");
                open.push_str(statement);
            }
            _ => self.packets.push(statement.to_owned()),
        }
        Ok(())
    }

    /// The server closes the connection on a longer packet.
    fn fits(&self, statement: &str) -> Result<(), DbError> {
        if statement.len() + 1_000 < self.max_packet {
            return Ok(());
        }
        let why = format!(
            "a row takes {} bytes to write, and the server's max_allowed_packet is {}; raise that, or keep less in a row",
            statement.len(),
            self.max_packet
        );
        Err(DbError::new(DbErrorKind::ValueOutOfRange, why))
    }
}

impl MySqlLink {
    /// Commits all batches in one transaction. `Err` leaves nothing of any of them.
    pub(super) async fn commit_together(
        &mut self,
        batches: &[&CommitBatch],
    ) -> Result<Vec<Result<(), CommitError>>, DbError> {
        if batches.iter().all(|batch| batch.fence.is_none()) {
            match self.write_and_commit(batches).await {
                Ok(()) => return Ok(batches.iter().map(|_| Ok(())).collect()),
                Err(error) if !is_guard(&error) => return Err(self.rolled_back(error).await),
                Err(_) => self.roll_back().await?,
            }
        }
        let looked = self.look(batches, "").await;
        let answers = match looked {
            Ok(answers) => answers,
            Err(error) => return Err(self.rolled_back(error).await),
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
            Err(error) => Err(self.rolled_back(error).await),
        }
    }

    /// Writes a batch into the transaction that is open, whole or not at all.
    pub(super) async fn write_within(&mut self, batch: &CommitBatch) -> Result<(), CommitError> {
        let refused = CommitError::Refused;
        let written = match &batch.fence {
            None => self.write_in_savepoint(batch).await,
            Some(_) => {
                self.look(&[batch], "").await.map_err(refused)?.remove(0)?;
                self.write_in_savepoint(batch).await
            }
        };
        let error = match written {
            Ok(()) => return Ok(()),
            Err(error) if error.is_connection_lost() || self.lost => return Err(refused(error)),
            Err(error) => error,
        };
        let undo = "ROLLBACK TO SAVEPOINT ekbatan_batch; RELEASE SAVEPOINT ekbatan_batch";
        if !is_guard(&error) {
            // Without its savepoint, what there is of the batch would be committed.
            if self.send(undo).await.is_err() {
                self.lost = true;
            }
            return Err(refused(error));
        }
        match self.look(&[batch], undo).await {
            Ok(mut answers) => answers.remove(0).and(Err(refused(error))),
            Err(error) => {
                self.lost = true;
                Err(refused(error))
            }
        }
    }

    async fn write_in_savepoint(&mut self, batch: &CommitBatch) -> Result<(), DbError> {
        let mut packets = Packets::new(self.max_packet);
        packets.push("SAVEPOINT ekbatan_batch")?;
        self.plan(&[batch], &mut packets)?;
        packets.push("RELEASE SAVEPOINT ekbatan_batch")?;
        self.send_all(&packets).await.inspect_err(|error| {
            // The first rolls back the whole transaction, the second may: which one of the
            // two it does is a setting of the server.
            let ends = [DbErrorKind::Deadlock, DbErrorKind::LockTimeout];
            self.lost |= ends.contains(&error.kind());
        })
    }

    async fn write_and_commit(&mut self, batches: &[&CommitBatch]) -> Result<(), DbError> {
        let mut packets = Packets::new(self.max_packet);
        self.plan(batches, &mut packets)?;
        packets.push("COMMIT")?;
        self.send_all(&packets).await
    }

    /// What writes the batches, in the order in which rows are locked.
    fn plan(&self, batches: &[&CommitBatch], packets: &mut Packets) -> Result<(), DbError> {
        let rows = ordered(batches);
        for alike in
            rows.chunk_by(|a, b| a.table.table.key() == b.table.table.key() && a.kind == b.kind)
        {
            match alike[0].kind {
                ChangeKind::Insert => self.plan_inserts(alike, packets)?,
                ChangeKind::Update => {
                    for rows in alike.chunks(UPDATE_ROWS) {
                        self.plan_update(rows, packets)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn plan_inserts(&self, rows: &[&RowChange], packets: &mut Packets) -> Result<(), DbError> {
        let head = insert_into(&self.syntax, &rows[0].table);
        let mut sql = head.clone();
        let mut count = 0;
        for row in rows {
            let row = insert_row(row)?;
            let full = FULL_PACKET.min(self.max_packet / 2);
            if count > 0 && (count == INSERT_ROWS || sql.len() + row.len() > full) {
                packets.push(&sql)?;
                sql.truncate(head.len());
                count = 0;
            }
            sql.push_str(if count == 0 { "" } else { ", " });
            sql.push_str(&row);
            count += 1;
        }
        packets.push(&sql)
    }

    fn plan_update(&self, rows: &[&RowChange], packets: &mut Packets) -> Result<(), DbError> {
        let sql = update(&self.syntax, rows)?;
        if rows.len() > 1 && sql.len() > FULL_PACKET.min(self.max_packet / 2) {
            let (some, others) = rows.split_at(rows.len() / 2);
            self.plan_update(some, packets)?;
            return self.plan_update(others, packets);
        }
        packets.fits(&sql)?;
        // The two stay in one packet, as the guard asks what the statement before it found.
        packets.push(&format!("{sql}; {}", guard(rows.len())))
    }

    /// Locks what the batches need and says which of them hold, after `first` was carried out.
    async fn look(
        &mut self,
        batches: &[&CommitBatch],
        first: &str,
    ) -> Result<Vec<Result<(), CommitError>>, DbError> {
        let mut packets = Packets::new(self.max_packet);
        packets.push(first)?;
        let fences = batches.iter().filter_map(|batch| batch.fence.as_ref());
        let rows: Vec<&RowChange> =
            ordered(batches).into_iter().filter(|row| row.kind == ChangeKind::Update).collect();
        for (n, row) in rows.iter().enumerate() {
            packets.push(&look(&self.syntax, row, n)?)?;
        }
        for (n, fence) in (rows.len()..).zip(fences.clone()) {
            packets.push(&look_at_fence(&self.syntax, fence, n))?;
        }
        let mut found = HashSet::new();
        for packet in packets.packets.iter().filter(|packet| !packet.is_empty()) {
            found.extend(self.numbers(packet).await?);
        }
        let found = |n: usize| found.contains(&(n as i64));
        let gone: HashSet<(_, _)> = rows
            .iter()
            .enumerate()
            .filter(|(n, _)| !found(*n))
            .map(|(_, row)| (row.table.table.key(), row.id))
            .collect();
        let held: Vec<bool> = (rows.len()..).zip(fences).map(|(n, _)| found(n)).collect();
        let mut held = held.into_iter();
        Ok(batches
            .iter()
            .map(|batch| {
                if let Some(fence) = &batch.fence
                    && !held.next().unwrap_or_default()
                {
                    return Err(CommitError::FenceLost(fence.key.clone()));
                }
                let stale: Vec<RowRef> = batch
                    .updates()
                    .filter(|row| gone.contains(&(row.table.table.key(), row.id)))
                    .map(RowChange::row_ref)
                    .collect();
                if stale.is_empty() { Ok(()) } else { Err(CommitError::Stale(stale)) }
            })
            .collect())
    }

    async fn send_all(&mut self, packets: &Packets) -> Result<(), DbError> {
        for packet in &packets.packets {
            self.send(packet).await?;
        }
        Ok(())
    }

    /// One trip.
    pub(super) async fn send(&mut self, sql: &str) -> Result<(), DbError> {
        self.trips += 1;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.inner).await.map(drop).map_err(classify)
    }

    /// One trip, and the numbers that its statements answer.
    pub(super) async fn numbers(&mut self, sql: &str) -> Result<Vec<i64>, DbError> {
        self.trips += 1;
        let mut numbers = Vec::new();
        let mut answers = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(&mut self.inner);
        while let Some(next) = answers.try_next().await.map_err(classify)? {
            if let Either::Right(row) = next {
                let number: Option<i64> = row.try_get_unchecked(0).map_err(classify)?;
                numbers.extend(number);
            }
        }
        Ok(numbers)
    }

    /// A session that cannot even roll back is not to be used again.
    async fn roll_back(&mut self) -> Result<(), DbError> {
        self.send("ROLLBACK").await.map_err(|error| {
            let why = format!("the rollback failed: {error}");
            DbError::new(DbErrorKind::Unavailable, why).with_source(error)
        })
    }

    /// The error, once nothing of the transaction is left. Some errors roll back only their
    /// own statement.
    async fn rolled_back(&mut self, error: DbError) -> DbError {
        if error.is_connection_lost() {
            return error;
        }
        match self.roll_back().await {
            Ok(()) => error,
            Err(lost) => lost,
        }
    }
}

fn is_guard(error: &DbError) -> bool {
    error.code() == Some(GUARD)
}
