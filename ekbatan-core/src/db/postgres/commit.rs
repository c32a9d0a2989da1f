//! Commits batches by one statement, and assigns its result to the batches.

use std::collections::HashSet;
use std::sync::Arc;

use sqlx::postgres::PgArguments;
use sqlx::{Arguments, AssertSqlSafe, Row};

use super::arrays::written;
use super::connection::PostgresConnection;
use super::decode::{bind, bind_many};
use super::error::classify;
use super::form::{Form, Group, Role};
use super::range::check_column;
use super::statement::{SUPPRESSED, folded, single};
use crate::db::{
    ChangeKind, CommitBatch, CommitError, DbError, ExpectedRow, FenceCheck, RowChange, RowRef,
};
use crate::domain::{TableKey, Value};

/// The rows of one group from all batches.
#[derive(Default)]
struct GroupRows<'b> {
    batches: Vec<i32>,
    ordinals: Vec<i32>,
    changes: Vec<&'b RowChange>,
    expected: Vec<&'b ExpectedRow>,
}

/// A row that a batch has to find.
struct GuardedRow {
    batch: i32,
    /// Positive, in the order of the rows.
    ordinal: i32,
    row: RowRef,
}

/// The rows of the batches by group, and those that must be found.
struct FormRows<'b> {
    form: &'b Form,
    groups: Vec<GroupRows<'b>>,
    guarded: Vec<GuardedRow>,
    /// The ordinal of the last row.
    last: i32,
}

impl<'b> FormRows<'b> {
    fn new(form: &'b Form, batches: &[&'b CommitBatch]) -> Self {
        let groups = form.groups.iter().map(|_| GroupRows::default()).collect();
        let mut rows = Self { form, groups, guarded: Vec::new(), last: 0 };
        for (n, batch) in (1..).zip(batches) {
            for row in batch.changes.iter().chain(&batch.records) {
                let guarded = row.kind.is_guarded().then(|| row.row_ref());
                rows.add(n, row.table.table.key(), row.kind.into(), guarded).changes.push(row);
            }
            for row in &batch.expected {
                let guarded = Some(row.row_ref());
                rows.add(n, row.table.table.key(), Role::of_expected(row), guarded)
                    .expected
                    .push(row);
            }
        }
        rows
    }

    /// Numbers a row of a batch, and returns its group.
    fn add(
        &mut self,
        batch: i32,
        table: TableKey,
        role: Role,
        guarded: Option<RowRef>,
    ) -> &mut GroupRows<'b> {
        self.last += 1;
        let ordinal = self.last;
        self.guarded.extend(guarded.map(|row| GuardedRow { batch, ordinal, row }));
        // The form has every group of the batches.
        let at = self.form.find(table, role).unwrap_or_else(|at| at);
        let group = &mut self.groups[at];
        group.batches.push(batch);
        group.ordinals.push(ordinal);
        group
    }
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
            && let ([change], [record], [], []) =
                (&batch.changes[..], &batch.records[..], &batch.fences[..], &batch.expected[..])
            && change.steps == 1
        {
            let answer = self.apply_single(change, record).await?;
            // The other statement tells a row that a trigger suppressed from one that is stale.
            if answer.is_ok() || !change.table.rules.may_suppress {
                return Ok(vec![answer]);
            }
        }
        self.apply_folded(batches).await
    }

    async fn apply_single(
        &mut self,
        change: &RowChange,
        record: &RowChange,
    ) -> Result<Result<(), CommitError>, DbError> {
        let sql = self.forms.single(change, record, single);
        let mut arguments = PgArguments::default();
        for row in [change, record] {
            for (position, _) in written(&row.table, row.kind) {
                check_column(row, position)?;
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
        let form = self.forms.common(batches);
        let sql = self.forms.text(&form, folded);
        let FormRows { groups, guarded, .. } = FormRows::new(&form, batches);
        let fences = fences(batches);
        let mut arguments = PgArguments::default();
        let wanted = batches
            .iter()
            .map(|batch| (batch.guarded().count() + batch.fences.len()) as i32)
            .collect::<Vec<_>>();
        add(&mut arguments, wanted)?;
        for (group, rows) in form.groups.iter().zip(groups) {
            bind_group(&mut arguments, group, rows)?;
        }
        if form.fenced {
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
            .map_err(|error| suppressed_or(classify(error), &form))?;
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
                let missing: Vec<RowRef> = guarded
                    .iter()
                    .filter(|of| of.batch == n && !found.contains(&of.ordinal))
                    .map(|of| of.row)
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

/// The error of a suppressed row, if the statement failed because of one. It does not say which table has the
/// trigger.
fn suppressed_or(error: DbError, form: &Form) -> DbError {
    if error.code() != Some(SUPPRESSED) {
        return error;
    }
    let counted = form.groups.iter().filter(|group| group.table.rules.may_suppress);
    let mut tables: Vec<String> = counted.map(|group| group.table.table.full_name()).collect();
    tables.dedup();
    if tables.is_empty() { error } else { DbError::suppressed(&tables.join("` or `")) }
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

fn bind_group(
    arguments: &mut PgArguments,
    group: &Group,
    rows: GroupRows<'_>,
) -> Result<(), DbError> {
    let Group { table, role } = group;
    let GroupRows { batches, ordinals, changes, expected } = rows;
    add(arguments, batches)?;
    let kind = match role {
        Role::Expect | Role::ExpectUnlocked => {
            add(arguments, ordinals)?;
            let ids: Vec<Value> = expected.iter().map(|row| Value::Uuid(row.id)).collect();
            bind_many(arguments, table.table.columns[0].ty, ids.iter())?;
            return if table.table.version.is_some() {
                add(arguments, expected.iter().map(|row| row.version).collect::<Vec<i64>>())
            } else {
                Ok(())
            };
        }
        Role::Update => {
            add(arguments, ordinals)?;
            add(arguments, changes.iter().map(|row| row.steps).collect::<Vec<i64>>())?;
            ChangeKind::Update
        }
        Role::Delete => {
            add(arguments, ordinals)?;
            ChangeKind::Delete
        }
        Role::Insert => ChangeKind::Insert,
    };
    for (position, _) in written(table, kind) {
        for row in &changes {
            check_column(row, position)?;
        }
        let ty = table.table.columns[position].ty;
        bind_many(arguments, ty, changes.iter().map(|row| &row.values[position]))?;
    }
    Ok(())
}
