//! The texts of the statements that commit. Values are literals, so that all statements of a
//! commit fit one packet.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use uuid::Uuid;

use super::literal::write_literal;
use super::syntax::MySqlSyntax;
use crate::db::eventlog::EVENTS;
use crate::db::{
    ChangeKind, CommitBatch, DbError, DbErrorKind, ExpectedRow, RowChange, RowRef, Syntax,
    TableInfo,
};
use crate::domain::{Value, depth};

/// As long as most statements are, so that few texts grow.
const TYPICAL_LENGTH: usize = 1_000;

/// How deeply JSON may be nested in a column of MariaDB before 12.2.
const MARIADB_DEPTH: usize = 31;

pub(super) fn literal(row: &RowChange, position: usize) -> Result<String, DbError> {
    let mut sql = String::new();
    write_literal(&mut sql, &row.values[position], &row.table.columns[position])?;
    Ok(sql)
}

/// `INSERT INTO t (..) VALUES`; the rows are appended.
pub(super) fn insert_into(syntax: &MySqlSyntax, table: &TableInfo) -> String {
    let mut sql = String::with_capacity(TYPICAL_LENGTH);
    // Writing to a String cannot fail.
    let _ = write!(sql, "INSERT INTO {} (", syntax.table(table.table));
    for (n, column) in table.columns.iter().enumerate() {
        sql.push_str(if n == 0 { "" } else { ", " });
        sql.push_str(&syntax.quote(&column.name));
    }
    sql.push_str(") VALUES ");
    sql
}

/// A row of an `INSERT`.
pub(super) fn insert_row(row: &RowChange) -> Result<String, DbError> {
    let mut sql = String::with_capacity(TYPICAL_LENGTH);
    sql.push('(');
    for position in ChangeKind::Insert.written(&row.table) {
        sql.push_str(if position == 0 { "" } else { ", " });
        let (value, column) = (&row.values[position], &row.table.columns[position]);
        match value {
            Value::Json(_) if std::ptr::eq(row.table.table, &raw const EVENTS) => {
                write_literal(&mut sql, value, column)
                    .map_err(|error| error.at(row.name_of(position)))?;
            }
            _ => write_literal(&mut sql, value, column)?,
        }
    }
    sql.push(')');
    Ok(sql)
}

/// The error of a commit. MariaDB names only the column of JSON that is nested too deeply for it; this
/// names the event.
pub(super) fn naming_event(error: DbError, batches: &[&CommitBatch]) -> DbError {
    if error.kind() != DbErrorKind::CheckViolation {
        return error;
    }
    let records = batches.iter().flat_map(|batch| &batch.records);
    let events = records.filter(|row| std::ptr::eq(row.table.table, &raw const EVENTS));
    let mut values = events.flat_map(|row| (0..).zip(&*row.values).map(move |of| (row, of)));
    let too_deep = values.find_map(|(row, (position, value))| match value {
        Value::Json(json) if depth(json) > MARIADB_DEPTH => Some(row.name_of(position)),
        _ => None,
    });
    match too_deep {
        Some(event) => error.at(format!(
            "{event} is nested more than {MARIADB_DEPTH} deep, which MariaDB takes only from 12.2 on"
        )),
        None => error,
    }
}

/// Updates those rows of one table that are at their version.
///
/// A value that differs between the rows is chosen by the id, `CASE id WHEN .. THEN .. END`; a
/// value that all rows share is written once. The ids are also a list, so that the server finds
/// the rows by the primary key.
pub(super) fn update(syntax: &MySqlSyntax, rows: &[&RowChange]) -> Result<String, DbError> {
    let table = &rows[0].table;
    let chosen = RowValues::new(syntax, rows)?;
    let mut sql = String::with_capacity(TYPICAL_LENGTH);
    let _ = write!(sql, "UPDATE {} SET ", syntax.table(table.table));
    let changed = ChangeKind::Update.written(table).filter(|position| *position != 0);
    for (n, position) in changed.enumerate() {
        let (comma, name) = (if n == 0 { "" } else { ", " }, chosen.name(position));
        let _ = write!(sql, "{comma}{name} = ");
        if Some(position) == table.table.version {
            let _ = write!(sql, "{name} + ");
            chosen.write_choice(&mut sql, rows.iter().map(|row| row.steps.to_string()).collect());
        } else {
            chosen.write_value(&mut sql, position)?;
        }
    }
    sql.push_str(" WHERE ");
    chosen.write_guard(&mut sql)?;
    Ok(sql)
}

/// Deletes those rows of one table that are at their version.
pub(super) fn delete(syntax: &MySqlSyntax, rows: &[&RowChange]) -> Result<String, DbError> {
    let mut sql = format!("DELETE FROM {} WHERE ", syntax.table(rows[0].table.table));
    RowValues::new(syntax, rows)?.write_guard(&mut sql)?;
    Ok(sql)
}

/// The values of rows of one table, as they stand in one statement for all of them.
struct RowValues<'r> {
    syntax: &'r MySqlSyntax,
    rows: &'r [&'r RowChange],
    ids: Vec<String>,
}

impl<'r> RowValues<'r> {
    fn new(syntax: &'r MySqlSyntax, rows: &'r [&'r RowChange]) -> Result<Self, DbError> {
        let ids = rows.iter().map(|row| literal(row, 0)).collect::<Result<_, _>>()?;
        Ok(Self { syntax, rows, ids })
    }

    fn name(&self, position: usize) -> String {
        self.syntax.quote(&self.rows[0].table.columns[position].name)
    }

    /// One of `values`, which are in the order of the rows.
    fn write_choice(&self, sql: &mut String, values: Vec<String>) {
        if values.iter().all(|value| *value == values[0]) {
            sql.push_str(&values[0]);
            return;
        }
        let _ = write!(sql, "CASE {}", self.name(0));
        for (id, value) in self.ids.iter().zip(&values) {
            let _ = write!(sql, " WHEN {id} THEN {value}");
        }
        sql.push_str(" END");
    }

    /// The value of each row in this column.
    fn write_value(&self, sql: &mut String, position: usize) -> Result<(), DbError> {
        if let [row] = self.rows {
            return write_literal(sql, &row.values[position], &row.table.columns[position]);
        }
        let values = self.rows.iter().map(|row| literal(row, position));
        self.write_choice(sql, values.collect::<Result<_, _>>()?);
        Ok(())
    }

    /// That a row is one of these, and at its version.
    fn write_guard(&self, sql: &mut String) -> Result<(), DbError> {
        let name = self.name(0);
        let _ = match &self.ids[..] {
            [id] => write!(sql, "{name} = {id}"),
            ids => write!(sql, "{name} IN ({})", ids.join(", ")),
        };
        if let Some(version) = self.rows[0].table.table.version {
            let _ = write!(sql, " AND {} = ", self.name(version));
            self.write_value(sql, version)?;
        }
        Ok(())
    }
}

/// Fails unless the statement before it found `rows` rows: a subquery with two rows is no scalar.
/// The server stops a packet at the first failure, so a failed guard prevents the COMMIT.
pub(super) fn guard(rows: usize) -> String {
    format!(
        "SET @ekbatan = (SELECT 1 FROM (SELECT 1 UNION ALL SELECT 2) two WHERE ROW_COUNT() <> {rows})"
    )
}

/// Fails unless every row of one table is at its version. The rows are locked already, if they are to
/// be; a lock taken here could wait for rows beside them. The session is READ COMMITTED, so it reads
/// what it locked.
pub(super) fn guard_expected(
    syntax: &MySqlSyntax,
    rows: &[&ExpectedRow],
) -> Result<String, DbError> {
    let table = &rows[0].table;
    let name = |position: usize| syntax.quote(&table.columns[position].name);
    let mut ids = BTreeSet::new();
    let mut pairs = BTreeSet::new();
    for row in rows {
        let id = id_literal(row.id, table)?;
        pairs.insert(format!("({id}, {})", row.version));
        ids.insert(id);
    }
    let list = |of: BTreeSet<String>| of.into_iter().collect::<Vec<_>>().join(", ");
    let (target, id, count) = (syntax.table(table.table), name(0), pairs.len());
    let version = table.table.version.map(name);
    let of_version = version
        .map_or_else(String::new, |version| format!(" AND ({id}, {version}) IN ({})", list(pairs)));
    Ok(format!(
        "SELECT COUNT(*) INTO @ekbatan_found FROM {target} WHERE {id} IN ({}){of_version}; \
         SET @ekbatan = (SELECT 1 FROM (SELECT 1 UNION ALL SELECT 2) two WHERE @ekbatan_found <> {count})",
        list(ids)
    ))
}

fn id_literal(id: Uuid, table: &TableInfo) -> Result<String, DbError> {
    let mut sql = String::new();
    write_literal(&mut sql, &Value::Uuid(id), &table.columns[0])?;
    Ok(sql)
}

/// How a row is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LockMode {
    Share,
    Exclusive,
}

impl LockMode {
    /// The clause of a `SELECT`. Both servers understand this spelling; only MySQL has `FOR SHARE`.
    pub(super) fn clause(self) -> &'static str {
        match self {
            LockMode::Share => "LOCK IN SHARE MODE",
            LockMode::Exclusive => "FOR UPDATE",
        }
    }
}

/// Returns `number` if the row is at its version, and locks it if it is to be locked.
pub(super) fn look(
    syntax: &MySqlSyntax,
    table: &TableInfo,
    row: RowRef,
    mode: Option<LockMode>,
    number: usize,
) -> Result<String, DbError> {
    let name = |position: usize| syntax.quote(&table.columns[position].name);
    let target = syntax.table(table.table);
    let id = id_literal(row.id, table)?;
    let mut sql = format!("SELECT {number} FROM {target} WHERE {} = {id}", name(0));
    if let Some(version) = table.table.version {
        let _ = write!(sql, " AND {} = {}", name(version), row.expected_version);
    }
    if let Some(mode) = mode {
        let _ = write!(sql, " {}", mode.clause());
    }
    Ok(sql)
}

/// Returns `number` if the row exists and no other transaction has locked it.
pub(super) fn free_row(
    syntax: &MySqlSyntax,
    row: &RowChange,
    number: usize,
) -> Result<String, DbError> {
    let id = syntax.quote(&row.table.columns[0].name);
    let target = syntax.table(row.table.table);
    let value = literal(row, 0)?;
    Ok(format!("SELECT {number} FROM {target} WHERE {id} = {value} FOR UPDATE SKIP LOCKED"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::fixtures::{WALLETS, change, table};
    use crate::db::mysql::flavour::Flavour;
    use crate::domain::ValueType;
    use rust_decimal::Decimal;

    fn syntax() -> MySqlSyntax {
        MySqlSyntax { flavour: Flavour::MySql, eventlog: "log".to_owned() }
    }

    fn wallet(n: u128, balance: i64, version: i64) -> RowChange {
        let table = table(&WALLETS, |column| match column.ty {
            ValueType::Uuid => "binary(16)",
            ValueType::Decimal => "decimal(20,2)",
            ValueType::Int => "bigint",
            _ => "datetime(6)",
        });
        let id = Uuid::from_u128(n);
        let now = Value::Timestamp(chrono::DateTime::UNIX_EPOCH);
        let values = vec![
            Value::Uuid(id),
            Value::Decimal(Decimal::new(balance, 2)),
            Value::Int(version),
            now.clone(),
            now,
        ];
        RowChange { id, values: values.into(), ..change(&table, ChangeKind::Update) }
    }

    #[test]
    fn one_row_is_a_plain_update() {
        assert_eq!(
            update(&syntax(), &[&wallet(1, 1050, 3)]).unwrap(),
            "UPDATE `wallets` SET `balance` = 10.50, `version` = `version` + 1, \
             `updated_date` = TIMESTAMP'1970-01-01 00:00:00.000000' \
             WHERE `id` = x'00000000000000000000000000000001' AND `version` = 3"
        );
    }

    #[test]
    fn many_rows_are_one_update_by_their_ids() {
        let rows = [wallet(1, 100, 3), wallet(2, 200, 4)];
        let (one, two) =
            ("x'00000000000000000000000000000001'", "x'00000000000000000000000000000002'");
        assert_eq!(
            update(&syntax(), &rows.iter().collect::<Vec<_>>()).unwrap(),
            format!(
                "UPDATE `wallets` SET `balance` = CASE `id` WHEN {one} THEN 1.00 WHEN {two} THEN 2.00 END, \
                 `version` = `version` + 1, `updated_date` = TIMESTAMP'1970-01-01 00:00:00.000000' \
                 WHERE `id` IN ({one}, {two}) AND `version` = CASE `id` WHEN {one} THEN 3 WHEN {two} THEN 4 END"
            )
        );
    }

    #[test]
    fn rows_are_deleted_by_their_ids_and_versions() {
        let (one, two) =
            ("x'00000000000000000000000000000001'", "x'00000000000000000000000000000002'");
        let rows = [wallet(1, 100, 3), wallet(2, 200, 4)];
        assert_eq!(
            delete(&syntax(), &[&rows[0]]).unwrap(),
            format!("DELETE FROM `wallets` WHERE `id` = {one} AND `version` = 3")
        );
        assert_eq!(
            delete(&syntax(), &[&rows[0], &rows[1]]).unwrap(),
            format!(
                "DELETE FROM `wallets` WHERE `id` IN ({one}, {two}) \
                 AND `version` = CASE `id` WHEN {one} THEN 3 WHEN {two} THEN 4 END"
            )
        );
    }

    #[test]
    fn an_update_that_stands_for_several_changes_adds_as_many_versions() {
        let alone = RowChange { steps: 3, ..wallet(1, 100, 3) };
        assert!(update(&syntax(), &[&alone]).unwrap().contains("`version` = `version` + 3, "));
        let sql = update(&syntax(), &[&alone, &wallet(2, 200, 4)]).unwrap();
        let (one, two) =
            ("x'00000000000000000000000000000001'", "x'00000000000000000000000000000002'");
        let steps = format!("`version` + CASE `id` WHEN {one} THEN 3 WHEN {two} THEN 1 END");
        assert!(sql.contains(&steps), "{sql}");
    }

    #[test]
    fn expected_rows_of_one_table_are_counted_by_one_statement() {
        let table = wallet(1, 1, 3).table;
        let row = |n, version| ExpectedRow {
            table: table.clone(),
            id: Uuid::from_u128(n),
            version,
            is_locked: true,
        };
        let (one, two) = (row(1, 3), row(2, 4));
        let id = |n| format!("x'{n:032x}'");
        assert_eq!(
            guard_expected(&syntax(), &[&two, &one, &two]).unwrap(),
            format!(
                "SELECT COUNT(*) INTO @ekbatan_found FROM `wallets` WHERE `id` IN ({0}, {1}) \
                 AND (`id`, `version`) IN (({0}, 3), ({1}, 4)); \
                 SET @ekbatan = (SELECT 1 FROM (SELECT 1 UNION ALL SELECT 2) two WHERE @ekbatan_found <> 2)",
                id(1),
                id(2)
            )
        );
    }

    #[test]
    fn a_look_locks_the_row_at_its_version() {
        let wallet = wallet(1, 1, 3);
        assert_eq!(
            look(&syntax(), &wallet.table, wallet.row_ref(), Some(LockMode::Exclusive), 7).unwrap(),
            "SELECT 7 FROM `wallets` WHERE `id` = x'00000000000000000000000000000001' AND `version` = 3 FOR UPDATE"
        );
    }
}
