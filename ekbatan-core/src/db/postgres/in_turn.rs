//! Commits the turns of a group one after another, by one text of several statements.
//!
//! The server runs the statements of one text in one transaction, and undoes all of them when
//! one fails. How many of them ran before tells which turn failed. Each turn is one statement,
//! so that rules which are checked at the end of a statement are checked for each turn. The
//! text prepares each form of a turn once, because planning costs more than writing a row.

use std::collections::HashMap;
use std::ops::Range;

use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Either};

use super::arrays::written;
use super::connection::PostgresConnection;
use super::error::classify;
use super::literal::{literal, quoted, wire_literal};
use super::statement::Strength;
use super::syntax::{PostgresSyntax, assigned, wire_type};
use crate::db::{
    ChangeKind, CommitBatch, CommitError, DbError, ExpectedRow, FenceCheck, RowChange, Syntax,
};
use crate::domain::TableKey;

/// The error code of a guard, which divides by the number of rows that its statement found.
const DIVISION_BY_ZERO: &str = "22012";

/// The error code of a statement that names no prepared statement.
const NOT_PREPARED: &str = "26000";

/// What the form of a turn's statement depends on: the tables and kinds of its changes.
type TurnForm = Vec<(TableKey, ChangeKind)>;

impl PostgresConnection {
    /// Commits a batch by its turns. Unless it answers `Ok(Ok(()))`, nothing is written. An error names
    /// the turn that failed, if that is known.
    pub(super) async fn commit_in_turn(
        &mut self,
        batch: &CommitBatch,
    ) -> Result<Result<(), CommitError>, DbError> {
        let mut fences: Vec<&FenceCheck> = batch.fences.iter().collect();
        fences.sort_by(|a, b| a.key.cmp(&b.key));
        let (prepare, turns) = prepare(&batch.turns)?;
        // Otherwise a deferred constraint would be checked once for all turns.
        let mut statements = vec!["SET CONSTRAINTS ALL IMMEDIATE".to_owned()];
        let first_fence = statements.len();
        statements.extend(fences.iter().map(|fence| guard_fence(fence)));
        statements.extend(lock(batch));
        let first_expected = statements.len();
        statements.extend(guard_expected(batch));
        let first_form = statements.len();
        let forms = prepare.len();
        statements.extend(prepare);
        let turns_from = statements.len();
        statements.extend(turns);
        let turns = turns_from..statements.len();
        statements.extend(insert(&batch.records)?);
        let first_deallocate = statements.len();
        statements.extend((0..forms).map(deallocate));
        let (ran, error) = match self.run_text(statements.join("; ")).await {
            (_, Ok(())) => return Ok(Ok(())),
            (_, Err(error)) if error.is_connection_lost() => return Err(error),
            (ran, Err(error)) => (ran, error),
        };
        // A rollback neither drops nor brings back prepared statements.
        let prepared = ran.saturating_sub(first_form).min(forms);
        let dropped = ran.saturating_sub(first_deallocate);
        self.drop_forms(dropped..prepared).await?;
        let is_guard = error.code() == Some(DIVISION_BY_ZERO);
        if let Some(fence) = ran.checked_sub(first_fence).and_then(|ran| fences.get(ran))
            && is_guard
        {
            return Ok(Err(CommitError::FenceLost(fence.key.clone())));
        }
        if (first_expected..first_form).contains(&ran) && is_guard {
            let expected = batch.expected.iter().map(ExpectedRow::row_ref).collect();
            return Ok(Err(CommitError::Stale(expected)));
        }
        Err(match ran {
            ran if !turns.contains(&ran) => error,
            ran if is_guard => DbError::stale_turn(ran - turns.start),
            ran => error.at_turn(ran - turns.start),
        })
    }

    /// Drops the prepared forms of turns that a failed commit left.
    async fn drop_forms(&mut self, left: Range<usize>) -> Result<(), DbError> {
        if left.is_empty() {
            return Ok(());
        }
        let left: Vec<String> = left.map(deallocate).collect();
        match self.run_text(left.join("; ")).await.1 {
            // If the commit fails after the last statement of the text, that one does not count as run.
            Err(error) if error.code() == Some(NOT_PREPARED) => Ok(()),
            dropped => dropped,
        }
    }

    /// Runs statements without arguments in one round trip. Returns how many of them completed.
    async fn run_text(&mut self, sql: String) -> (usize, Result<(), DbError>) {
        self.trips += 1;
        let mut ran = 0;
        let mut answers = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(&mut self.inner);
        loop {
            match answers.try_next().await {
                Ok(Some(Either::Left(_))) => ran += 1,
                Ok(Some(Either::Right(_))) => {}
                Ok(None) => return (ran, Ok(())),
                Err(error) => return (ran, Err(classify(error))),
            }
        }
    }
}

/// Locks a fence against being raised, and fails unless it holds.
fn guard_fence(fence: &FenceCheck) -> String {
    format!(
        "SELECT 1 / (SELECT count(*) FROM (SELECT 1 FROM \"eventlog\".\"lock_fences\" t \
         WHERE t.lock_key = {} AND t.token = {} AND t.until > clock_timestamp() AT TIME ZONE 'UTC' FOR SHARE OF t) f)",
        quoted(&fence.key),
        fence.token
    )
}

/// Locks the rows that the turns update or delete, and those that are expected, in the order in which
/// every commit locks them.
fn lock(batch: &CommitBatch) -> Vec<String> {
    let changed = batch.guarded_changes().map(|row| {
        let is_deleted = row.kind == ChangeKind::Delete;
        (&row.table, row.id, if is_deleted { Strength::Update } else { Strength::NoKeyUpdate })
    });
    let expected = batch.expected.iter().filter(|row| row.is_locked);
    let expected = expected.map(|row| (&row.table, row.id, Strength::Share));
    let mut rows: Vec<_> = changed.chain(expected).collect();
    if rows.len() < 2 {
        return Vec::new();
    }
    rows.sort_by_key(|(table, id, _)| (table.table.key(), *id));
    let tables = rows.chunk_by(|(a, ..), (b, ..)| a.table.key() == b.table.key());
    tables
        .map(|rows| {
            let table = rows[0].0;
            let id = PostgresSyntax.quote(&table.columns[0].name);
            let ids: Vec<String> = rows.iter().map(|(_, id, _)| format!("'{id}'::uuid")).collect();
            let strength = rows.iter().map(|(.., strength)| *strength).max();
            let strength = strength.unwrap_or(Strength::Share).clause();
            format!(
                "SELECT 1 FROM {} WHERE {id} IN ({}) ORDER BY {id} {strength}",
                PostgresSyntax.table(table.table),
                ids.join(", ")
            )
        })
        .collect()
}

/// Locks the expected rows of each table, if they are to be locked, and fails unless all are at their
/// version.
fn guard_expected(batch: &CommitBatch) -> Vec<String> {
    let alike = |row: &ExpectedRow| (row.table.table.key(), row.is_locked);
    let mut expected: Vec<&ExpectedRow> = batch.expected.iter().collect();
    expected.sort_by_key(|row| alike(row));
    expected
        .chunk_by(|a, b| alike(a) == alike(b))
        .map(|rows| {
            let table = &rows[0].table;
            let lock = if rows[0].is_locked { " FOR SHARE" } else { "" };
            let name = |position: usize| PostgresSyntax.quote(&table.columns[position].name);
            let at_version = |row: &ExpectedRow| match table.table.version {
                Some(version) => {
                    format!(
                        "({} = '{}'::uuid AND {} = {})",
                        name(0),
                        row.id,
                        name(version),
                        row.version
                    )
                }
                None => format!("{} = '{}'::uuid", name(0), row.id),
            };
            let found: Vec<String> = rows.iter().map(|row| at_version(row)).collect();
            format!(
                "SELECT 1 / (SELECT (count(*) = {})::int FROM (SELECT 1 FROM {} WHERE {}{lock}) e)",
                rows.len(),
                PostgresSyntax.table(table.table),
                found.join(" OR ")
            )
        })
        .collect()
}

fn deallocate(form: usize) -> String {
    format!("DEALLOCATE ekbatan_turn_{form}")
}

/// The statements that prepare the forms of the turns, and those that run the turns.
fn prepare(turns: &[CommitBatch]) -> Result<(Vec<String>, Vec<String>), DbError> {
    let mut forms: HashMap<TurnForm, usize> = HashMap::new();
    let mut prepare = Vec::new();
    let mut run = Vec::with_capacity(turns.len());
    for (n, turn) in turns.iter().enumerate() {
        let form = turn.changes.iter().map(|row| (row.table.table.key(), row.kind)).collect();
        let form = *forms.entry(form).or_insert_with(|| {
            prepare.push(format!("PREPARE ekbatan_turn_{} AS {}", prepare.len(), write(turn)));
            prepare.len() - 1
        });
        let values = turn.changes.iter().flat_map(|row| {
            written(&row.table, row.kind).map(move |(position, _)| wire_literal(row, position))
        });
        let values = values.collect::<Result<Vec<_>, _>>().map_err(|error| error.at_turn(n))?;
        run.push(match &values[..] {
            [] => format!("EXECUTE ekbatan_turn_{form}"),
            values => format!("EXECUTE ekbatan_turn_{form} ({})", values.join(", ")),
        });
    }
    Ok((prepare, run))
}

/// Writes the rows of one turn, and fails unless each is at its version. The parameters are the
/// written values, row by row.
fn write(turn: &CommitBatch) -> String {
    let mut parts = Vec::with_capacity(turn.changes.len());
    let mut counts = vec!["1".to_owned()];
    let mut parameters = 0;
    for (n, row) in turn.changes.iter().enumerate() {
        let values: Vec<(usize, String, String)> = written(&row.table, row.kind)
            .map(|(position, column)| {
                parameters += 1;
                let ty = wire_type(row.table.table.columns[position].ty);
                let value = assigned(&format!("${parameters}::{ty}"), column);
                (position, PostgresSyntax.quote(&column.name), value)
            })
            .collect();
        parts.push(match row.kind {
            ChangeKind::Insert => format!("c{n} AS ({})", insert_values(row, &values)),
            ChangeKind::Update => {
                counts.push(format!("(SELECT count(*) FROM c{n})"));
                format!("c{n} AS ({} RETURNING 1)", update(row, &values))
            }
            ChangeKind::Delete => {
                counts.push(format!("(SELECT count(*) FROM c{n})"));
                format!("c{n} AS ({} RETURNING 1)", delete(row, &values))
            }
        });
    }
    let with = if parts.is_empty() { String::new() } else { format!("WITH {} ", parts.join(", ")) };
    format!("{with}SELECT 1 / ({})", counts.join(" * "))
}

fn insert_values(row: &RowChange, values: &[(usize, String, String)]) -> String {
    let names: Vec<&str> = values.iter().map(|(_, name, _)| &**name).collect();
    let values: Vec<&str> = values.iter().map(|(.., value)| &**value).collect();
    let target = PostgresSyntax.table(row.table.table);
    format!("INSERT INTO {target} ({}) VALUES ({})", names.join(", "), values.join(", "))
}

fn update(row: &RowChange, values: &[(usize, String, String)]) -> String {
    let version = row.table.table.version;
    let mut set = Vec::new();
    let mut guard = Vec::new();
    for (position, name, value) in values {
        if Some(*position) == version {
            // A turn is one change of each row.
            set.push(format!("{name} = {value} + 1"));
            guard.push(format!("{name} = {value}"));
        } else if *position == 0 {
            guard.push(format!("{name} = {value}"));
        } else {
            set.push(format!("{name} = {value}"));
        }
    }
    let target = PostgresSyntax.table(row.table.table);
    format!("UPDATE {target} SET {} WHERE {}", set.join(", "), guard.join(" AND "))
}

/// The values are the key and the version.
fn delete(row: &RowChange, values: &[(usize, String, String)]) -> String {
    let guard: Vec<String> =
        values.iter().map(|(_, name, value)| format!("{name} = {value}")).collect();
    format!("DELETE FROM {} WHERE {}", PostgresSyntax.table(row.table.table), guard.join(" AND "))
}

/// Inserts rows, which are sorted by table, by one statement for each table.
fn insert(rows: &[RowChange]) -> Result<Vec<String>, DbError> {
    let rows: Vec<&RowChange> = rows.iter().collect();
    rows.chunk_by(|a, b| a.table.table.key() == b.table.table.key()).map(insert_rows).collect()
}

fn insert_rows(rows: &[&RowChange]) -> Result<String, DbError> {
    let table = &rows[0].table;
    let columns = || written(table, ChangeKind::Insert);
    let names: Vec<String> = columns().map(|(_, it)| PostgresSyntax.quote(&it.name)).collect();
    let values = rows
        .iter()
        .map(|row| {
            let values = columns().map(|(position, _)| literal(row, position));
            Ok(format!("({})", values.collect::<Result<Vec<_>, DbError>>()?.join(", ")))
        })
        .collect::<Result<Vec<_>, DbError>>()?;
    let target = PostgresSyntax.table(table.table);
    Ok(format!("INSERT INTO {target} ({}) VALUES {}", names.join(", "), values.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::fixtures::{WALLETS, change, table};
    use crate::db::{ActionId, TableInfo};
    use crate::domain::Value;
    use rust_decimal::Decimal;
    use std::sync::Arc;
    use uuid::Uuid;

    fn row(kind: ChangeKind) -> RowChange {
        let wallets: Arc<TableInfo> = table(&WALLETS, |column| wire_type(column.ty));
        let now = Value::Timestamp(chrono::DateTime::UNIX_EPOCH);
        let values = vec![
            Value::Uuid(Uuid::nil()),
            Value::Decimal(Decimal::new(1050, 2)),
            Value::Int(3),
            now.clone(),
            now,
        ];
        RowChange { values: values.into(), ..change(&wallets, kind) }
    }

    fn turn(changes: Vec<RowChange>) -> CommitBatch {
        CommitBatch {
            action: ActionId(Uuid::nil()),
            changes,
            expected: Vec::new(),
            records: Vec::new(),
            fences: Vec::new(),
            traceable: true,
            turns: Vec::new(),
        }
    }

    #[test]
    fn a_turn_deletes_a_row_that_is_at_its_version() {
        let (prepare, run) = prepare(&[turn(vec![row(ChangeKind::Delete)])]).unwrap();
        assert_eq!(
            prepare,
            ["PREPARE ekbatan_turn_0 AS WITH c0 AS (DELETE FROM \"wallets\" \
              WHERE \"id\" = $1::uuid AND \"version\" = $2::int8 RETURNING 1) \
              SELECT 1 / (1 * (SELECT count(*) FROM c0))"]
        );
        let values = "'00000000-0000-0000-0000-000000000000'::uuid, '3'::int8";
        assert_eq!(run, [format!("EXECUTE ekbatan_turn_0 ({values})")]);
        let locked = turn(vec![row(ChangeKind::Update), row(ChangeKind::Delete)]);
        assert!(lock(&locked)[0].ends_with(" ORDER BY \"id\" FOR UPDATE"));
    }

    #[test]
    fn a_turn_is_one_statement_that_fails_unless_its_row_is_at_its_version() {
        let turn = turn(vec![row(ChangeKind::Update)]);
        let (prepare, run) = prepare(&[turn.clone(), turn.clone()]).unwrap();
        assert_eq!(
            prepare,
            [
                "PREPARE ekbatan_turn_0 AS WITH c0 AS (UPDATE \"wallets\" SET \"balance\" = $2::numeric, \
              \"version\" = $3::int8 + 1, \"updated_date\" = $4::timestamp \
              WHERE \"id\" = $1::uuid AND \"version\" = $3::int8 RETURNING 1) \
              SELECT 1 / (1 * (SELECT count(*) FROM c0))"
            ]
        );
        let values = "'00000000-0000-0000-0000-000000000000'::uuid, '10.50'::numeric, '3'::int8, \
                      '1970-01-01 00:00:00.000000'::timestamp";
        assert_eq!(run, [(); 2].map(|()| format!("EXECUTE ekbatan_turn_0 ({values})")));
        assert_eq!(write(&CommitBatch { changes: Vec::new(), ..turn }), "SELECT 1 / (1)");
    }
}
