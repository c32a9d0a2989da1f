//! The statements that commit, as text. Values are literals, so that the statements of a
//! commit travel as one packet.

use std::fmt::Write as _;

use super::literal::{write_literal, write_text};
use super::syntax::MySqlSyntax;
use crate::db::eventlog::LOCK_FENCES;
use crate::db::{ChangeKind, DbError, FenceCheck, RowChange, Syntax, TableInfo};

/// The positions that a change writes: an update leaves the date of creation alone.
fn written(table: &TableInfo, kind: ChangeKind) -> impl Iterator<Item = usize> {
    let skipped = match kind {
        ChangeKind::Update => table.table.dates,
        ChangeKind::Insert => None,
    };
    (0..table.columns.len()).filter(move |position| Some(*position) != skipped)
}

fn literal(row: &RowChange, position: usize) -> Result<String, DbError> {
    let mut sql = String::new();
    write_literal(&mut sql, &row.values[position], &row.table.columns[position])?;
    Ok(sql)
}

/// `INSERT INTO t (..) VALUES`, to which rows are added.
pub(super) fn insert_into(syntax: &MySqlSyntax, table: &TableInfo) -> String {
    let names: Vec<String> =
        table.columns.iter().map(|column| syntax.quote(&column.name)).collect();
    format!("INSERT INTO {} ({}) VALUES ", syntax.table(table.table), names.join(", "))
}

/// A row of an `INSERT`.
pub(super) fn insert_row(row: &RowChange) -> Result<String, DbError> {
    let mut sql = String::from("(");
    for position in written(&row.table, ChangeKind::Insert) {
        sql.push_str(if position == 0 { "" } else { ", " });
        write_literal(&mut sql, &row.values[position], &row.table.columns[position])?;
    }
    sql.push(')');
    Ok(sql)
}

/// Updates rows of one table that are at their version, and only those.
///
/// What differs between rows is chosen by the id, `CASE id WHEN .. THEN .. END`; what is the
/// same in all is said once. The ids are a list by themselves, so that the rows are found by
/// the primary key.
pub(super) fn update(syntax: &MySqlSyntax, rows: &[&RowChange]) -> Result<String, DbError> {
    let table = &rows[0].table;
    let name = |position: usize| syntax.quote(&table.columns[position].name);
    let ids = rows.iter().map(|row| literal(row, 0)).collect::<Result<Vec<_>, _>>()?;
    let choose = |values: Vec<String>| -> String {
        if values.iter().all(|value| *value == values[0]) {
            return values.into_iter().next().unwrap_or_default();
        }
        let mut sql = format!("CASE {}", name(0));
        for (id, value) in ids.iter().zip(&values) {
            let _ = write!(sql, " WHEN {id} THEN {value}");
        }
        sql.push_str(" END");
        sql
    };
    let chosen = |position: usize| -> Result<String, DbError> {
        Ok(choose(rows.iter().map(|row| literal(row, position)).collect::<Result<_, _>>()?))
    };
    let mut set = Vec::new();
    for position in written(table, ChangeKind::Update).filter(|position| *position != 0) {
        let name = name(position);
        set.push(match Some(position) == table.table.version {
            true => {
                let steps = choose(rows.iter().map(|row| row.steps.to_string()).collect());
                format!("{name} = {name} + {steps}")
            }
            false => format!("{name} = {}", chosen(position)?),
        });
    }
    let found = match &ids[..] {
        [id] => format!("{} = {id}", name(0)),
        ids => format!("{} IN ({})", name(0), ids.join(", ")),
    };
    let mut sql =
        format!("UPDATE {} SET {} WHERE {found}", syntax.table(table.table), set.join(", "));
    if let Some(version) = table.table.version {
        let _ = write!(sql, " AND {} = {}", name(version), chosen(version)?);
    }
    Ok(sql)
}

/// Fails unless the statement before it found so many rows: of a subquery with two rows a
/// scalar cannot be made. A packet ends with its first failure, so nothing behind a guard is
/// carried out then, the COMMIT least of all.
pub(super) fn guard(rows: usize) -> String {
    format!(
        "SET @ekbatan = (SELECT 1 FROM (SELECT 1 UNION ALL SELECT 2) two WHERE ROW_COUNT() <> {rows})"
    )
}

/// Locks a row and answers the number, if the row is at its version.
pub(super) fn look(
    syntax: &MySqlSyntax,
    row: &RowChange,
    number: usize,
) -> Result<String, DbError> {
    let table = &row.table;
    let name = |position: usize| syntax.quote(&table.columns[position].name);
    let target = syntax.table(table.table);
    let mut sql = format!("SELECT {number} FROM {target} WHERE {} = {}", name(0), literal(row, 0)?);
    if let Some(version) = table.table.version {
        let _ = write!(sql, " AND {} = {}", name(version), literal(row, version)?);
    }
    sql.push_str(" FOR UPDATE");
    Ok(sql)
}

/// Locks a fence against being raised and answers the number, if it stands. Both servers know
/// this spelling; `FOR SHARE` is MySQL's alone.
pub(super) fn look_at_fence(syntax: &MySqlSyntax, fence: &FenceCheck, number: usize) -> String {
    format!(
        "SELECT {number} FROM {} WHERE lock_key = {} AND token = {} AND until > UTC_TIMESTAMP(6) LOCK IN SHARE MODE",
        syntax.table(&LOCK_FENCES),
        text(&fence.key),
        fence.token
    )
}

/// Locks a fence against being raised, and fails unless it stands, as [`guard`] does.
pub(super) fn guard_fence(syntax: &MySqlSyntax, fence: &FenceCheck) -> String {
    format!(
        "SET @ekbatan_fence = NULL; \
         SELECT token INTO @ekbatan_fence FROM {} WHERE lock_key = {} AND token = {} \
         AND until > UTC_TIMESTAMP(6) LOCK IN SHARE MODE; \
         SET @ekbatan = (SELECT 1 FROM (SELECT 1 UNION ALL SELECT 2) two WHERE @ekbatan_fence IS NULL)",
        syntax.table(&LOCK_FENCES),
        text(&fence.key),
        fence.token
    )
}

/// Raises a fence, unless a later token stands there, and answers the token that stands.
pub(super) fn raise_fence(syntax: &MySqlSyntax, fence: &FenceCheck, micros: i64) -> String {
    let (table, key, token) = (syntax.table(&LOCK_FENCES), text(&fence.key), fence.token);
    let until = format!("UTC_TIMESTAMP(6) + INTERVAL {micros} MICROSECOND");
    // `until` first: an assignment sees those to its left as done.
    format!(
        "INSERT INTO {table} (lock_key, token, until) VALUES ({key}, {token}, {until}) \
         ON DUPLICATE KEY UPDATE \
         until = IF(token = {token}, GREATEST(until, {until}), IF(token < {token}, {until}, until)), \
         token = GREATEST(token, {token}); SELECT token FROM {table} WHERE lock_key = {key}"
    )
}

fn text(value: &str) -> String {
    let mut sql = String::new();
    write_text(&mut sql, value);
    sql
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::db::ColumnInfo;
    use crate::db::mysql::Flavour;
    use crate::domain::{ColumnDef, Table, Value, ValueType};
    use rust_decimal::Decimal;
    use uuid::Uuid;

    static WALLETS: Table = Table {
        schema: None,
        name: "wallets",
        model: "Wallet",
        columns: &[
            ColumnDef::new("id", ValueType::Uuid),
            ColumnDef::new("balance", ValueType::Decimal),
            ColumnDef::new("version", ValueType::Int),
            ColumnDef::new("created_date", ValueType::Timestamp),
            ColumnDef::new("updated_date", ValueType::Timestamp),
        ],
        version: Some(2),
        dates: Some(3),
        state: None,
    };

    fn syntax() -> MySqlSyntax {
        MySqlSyntax { flavour: Flavour::MySql, eventlog: "log".to_owned() }
    }

    fn wallet(n: u128, balance: i64, version: i64) -> RowChange {
        let types = ["binary(16)", "decimal(20,2)", "bigint", "datetime(6)", "datetime(6)"];
        let columns = WALLETS.columns.iter().zip(types).map(|(column, ty)| ColumnInfo {
            name: column.name.to_owned(),
            db_type: ty.to_owned(),
            numeric: None,
            length: None,
            is_enum: false,
            references: Vec::new(),
        });
        let table =
            TableInfo { table: &WALLETS, columns: columns.collect(), by_id: Default::default() };
        let id = Uuid::from_u128(n);
        let now = Value::Timestamp(chrono::DateTime::UNIX_EPOCH);
        let values = vec![
            Value::Uuid(id),
            Value::Decimal(Decimal::new(balance, 2)),
            Value::Int(version),
            now.clone(),
            now,
        ];
        RowChange { table: Arc::new(table), kind: ChangeKind::Update, id, values, steps: 1 }
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
    fn many_rows_are_one_update_that_finds_them_by_their_ids() {
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
    fn a_row_that_stands_for_several_changes_goes_up_by_as_many_versions() {
        let alone = RowChange { steps: 3, ..wallet(1, 100, 3) };
        assert!(update(&syntax(), &[&alone]).unwrap().contains("`version` = `version` + 3, "));
        let sql = update(&syntax(), &[&alone, &wallet(2, 200, 4)]).unwrap();
        let (one, two) =
            ("x'00000000000000000000000000000001'", "x'00000000000000000000000000000002'");
        let steps = format!("`version` + CASE `id` WHEN {one} THEN 3 WHEN {two} THEN 1 END");
        assert!(sql.contains(&steps), "{sql}");
    }

    #[test]
    fn a_look_locks_the_row_and_a_fence_is_looked_up_where_it_was_said() {
        assert_eq!(
            look(&syntax(), &wallet(1, 1, 3), 7).unwrap(),
            "SELECT 7 FROM `wallets` WHERE `id` = x'00000000000000000000000000000001' AND `version` = 3 FOR UPDATE"
        );
        let fence = FenceCheck { key: "a'b".to_owned(), token: 5 };
        assert_eq!(
            look_at_fence(&syntax(), &fence, 8),
            "SELECT 8 FROM `log`.`lock_fences` WHERE lock_key = _utf8mb4 x'612762' AND token = 5 \
             AND until > UTC_TIMESTAMP(6) LOCK IN SHARE MODE"
        );
    }
}
