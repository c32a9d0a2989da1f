//! Commits batches by one statement, and assigns its result to the batches.

use std::collections::HashSet;
use std::sync::Arc;

use sqlx::postgres::PgArguments;
use sqlx::{Arguments, AssertSqlSafe, Row};

use super::connection::PostgresConnection;
use super::decode::{bind, bind_many};
use super::error::classify;
use super::range::check_column;
use super::statement::{folded, single, written};
use crate::db::{
    ChangeKind, CommitBatch, CommitError, DbError, FenceCheck, RowChange, RowRef, TableInfo,
};

/// The rows of one table and kind from all batches, each with its batch and its ordinal.
struct RowGroup<'b> {
    table: &'b Arc<TableInfo>,
    kind: ChangeKind,
    rows: Vec<(i32, i32, &'b RowChange)>,
}

/// A fence check and its batch.
struct BatchFence<'b> {
    batch: i32,
    /// Negative; the ordinals of rows are positive.
    ordinal: i32,
    fence: &'b FenceCheck,
}

fn fences<'b>(batches: &[&'b CommitBatch]) -> Vec<BatchFence<'b>> {
    let of_batches = (1..).zip(batches);
    let fences = of_batches.flat_map(|(n, batch)| batch.fences.iter().map(move |fence| (n, fence)));
    (1..)
        .zip(fences)
        .map(|(at, (batch, fence))| BatchFence { batch, ordinal: -at, fence })
        .collect()
}

impl PostgresConnection {
    /// Writes the batches in one round trip. After an `Err` nothing of any batch is written.
    pub(super) async fn apply(
        &mut self,
        batches: &[&CommitBatch],
    ) -> Result<Vec<Result<(), CommitError>>, DbError> {
        if let [batch] = batches
            && let ([change], [record], []) =
                (&batch.changes[..], &batch.records[..], &batch.fences[..])
            && change.steps == 1
        {
            return Ok(vec![self.apply_single(change, record).await?]);
        }
        self.apply_folded(batches).await
    }

    async fn apply_single(
        &mut self,
        change: &RowChange,
        record: &RowChange,
    ) -> Result<Result<(), CommitError>, DbError> {
        let key = (change.table.table.key(), change.kind, record.table.table.key());
        let sql = self.singles.entry(key).or_insert_with(|| single(change, record).into()).clone();
        let mut arguments = PgArguments::default();
        for row in [change, record] {
            for (position, column) in written(&row.table, row.kind) {
                check_column(&row.values[position], column)?;
                bind(&mut arguments, row.table.table.columns[position].ty, &row.values[position])?;
            }
        }
        let done = self.execute(sql, arguments).await?;
        Ok(if done == 1 { Ok(()) } else { Err(CommitError::Stale(vec![change.row_ref()])) })
    }

    async fn apply_folded(
        &mut self,
        batches: &[&CommitBatch],
    ) -> Result<Vec<Result<(), CommitError>>, DbError> {
        let groups = group(batches);
        let fences = fences(batches);
        let fenced = !fences.is_empty();
        let key = (
            groups.iter().map(|group| (group.table.table.key(), group.kind)).collect::<Vec<_>>(),
            fenced,
        );
        let sql = match self.folds.get(&key) {
            Some(sql) => sql.clone(),
            None => {
                let tables: Vec<(&TableInfo, ChangeKind)> =
                    groups.iter().map(|group| (&**group.table, group.kind)).collect();
                let sql: Arc<str> = folded(&tables, fenced).into();
                self.folds.insert(key, sql.clone());
                sql
            }
        };
        let mut arguments = PgArguments::default();
        let wanted: Vec<i32> = batches
            .iter()
            .map(|batch| (batch.updates().count() + batch.fences.len()) as i32)
            .collect();
        add(&mut arguments, wanted)?;
        for group in &groups {
            add(&mut arguments, group.rows.iter().map(|(batch, ..)| *batch).collect::<Vec<i32>>())?;
            if group.kind == ChangeKind::Update {
                add(
                    &mut arguments,
                    group.rows.iter().map(|(_, ordinal, _)| *ordinal).collect::<Vec<i32>>(),
                )?;
                add(
                    &mut arguments,
                    group.rows.iter().map(|(.., row)| row.steps).collect::<Vec<i64>>(),
                )?;
            }
            for (position, column) in written(group.table, group.kind) {
                for (.., row) in &group.rows {
                    check_column(&row.values[position], column)?;
                }
                let ty = group.table.table.columns[position].ty;
                bind_many(
                    &mut arguments,
                    ty,
                    group.rows.iter().map(|(.., row)| &row.values[position]),
                )?;
            }
        }
        if fenced {
            let numbers = |number: fn(&BatchFence<'_>) -> i32| fences.iter().map(number).collect();
            add::<Vec<i32>>(&mut arguments, numbers(|of| of.batch))?;
            add::<Vec<i32>>(&mut arguments, numbers(|of| of.ordinal))?;
            let keys: Vec<&str> = fences.iter().map(|of| of.fence.key.as_str()).collect();
            add(&mut arguments, keys)?;
            let tokens: Vec<i64> = fences.iter().map(|of| of.fence.token).collect();
            add(&mut arguments, tokens)?;
        }
        self.trips += 1;
        let row = sqlx::query_with(AssertSqlSafe(sql), arguments)
            .fetch_one(&mut self.inner)
            .await
            .map_err(classify)?;
        let ok: Vec<bool> = row.try_get(0).map_err(classify)?;
        let found: HashSet<i32> = row
            .try_get::<Option<Vec<i32>>, _>(1)
            .map_err(classify)?
            .unwrap_or_default()
            .into_iter()
            .collect();
        let held: HashSet<i32> = row
            .try_get::<Option<Vec<i32>>, _>(2)
            .map_err(classify)?
            .unwrap_or_default()
            .into_iter()
            .collect();
        Ok((1..)
            .zip(batches)
            .zip(ok)
            .map(|((n, _), ok)| {
                if ok {
                    return Ok(());
                }
                let missing: Vec<RowRef> = groups
                    .iter()
                    .filter(|group| group.kind == ChangeKind::Update)
                    .flat_map(|group| &group.rows)
                    .filter(|(of, ordinal, _)| *of == n && !found.contains(ordinal))
                    .map(|(.., row)| row.row_ref())
                    .collect();
                let fallen = |of: &&BatchFence<'_>| of.batch == n && !held.contains(&of.ordinal);
                match fences.iter().find(fallen) {
                    Some(of) => Err(CommitError::FenceLost(of.fence.key.clone())),
                    None => Err(CommitError::Stale(missing)),
                }
            })
            .collect())
    }

    async fn execute(&mut self, sql: Arc<str>, arguments: PgArguments) -> Result<u64, DbError> {
        self.trips += 1;
        sqlx::query_with(AssertSqlSafe(sql), arguments)
            .execute(&mut self.inner)
            .await
            .map(|done| done.rows_affected())
            .map_err(classify)
    }
}

fn add<'q, T>(arguments: &mut PgArguments, value: T) -> Result<(), DbError>
where
    T: sqlx::Encode<'q, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + 'q,
{
    arguments.add(value).map_err(|e| {
        DbError::new(
            crate::db::DbErrorKind::ValueOutOfRange,
            format!("a value cannot be sent: {e}"),
        )
    })
}

/// All rows by table and kind, in the order in which they are locked.
fn group<'b>(batches: &[&'b CommitBatch]) -> Vec<RowGroup<'b>> {
    let mut groups: Vec<RowGroup<'b>> = Vec::new();
    let mut ordinal = 0;
    for (n, batch) in (1..).zip(batches) {
        for row in batch.changes.iter().chain(&batch.records) {
            ordinal += 1;
            let same = |group: &RowGroup<'_>| {
                group.table.table.key() == row.table.table.key() && group.kind == row.kind
            };
            match groups.iter_mut().find(|group| same(group)) {
                Some(group) => group.rows.push((n, ordinal, row)),
                None => groups.push(RowGroup {
                    table: &row.table,
                    kind: row.kind,
                    rows: vec![(n, ordinal, row)],
                }),
            }
        }
    }
    groups.sort_by_key(|group| (group.table.table.schema, group.table.table.name, group.kind));
    groups
}
