//! The texts of the statements that commit. Parameters are `?`, taken in order.

use std::fmt::Write as _;

use super::syntax::{MAX_PARAMETERS, SqliteSyntax};
use crate::db::{ChangeKind, Syntax, TableInfo};

/// How many rows of this table fit one statement.
pub(super) fn chunk(table: &TableInfo) -> usize {
    (MAX_PARAMETERS / (table.columns.len() + 1)).min(500)
}

fn name(table: &TableInfo, position: usize) -> String {
    SqliteSyntax.quote(&table.columns[position].name)
}

fn insert_into(sql: &mut String, table: &TableInfo) {
    let names: Vec<String> =
        ChangeKind::Insert.written(table).map(|position| name(table, position)).collect();
    let _ = write!(sql, "INSERT INTO {} ({})", SqliteSyntax.table(table.table), names.join(", "));
}

/// One `?` for each value that a change binds; for an update the last one is the steps.
fn marks(table: &TableInfo, kind: ChangeKind) -> String {
    let steps = usize::from(kind == ChangeKind::Update);
    vec!["?"; kind.written(table).count() + steps].join(", ")
}

/// Writes one row. An update or a delete that finds another version changes no row.
pub(super) fn write_row(table: &TableInfo, kind: ChangeKind) -> String {
    let mut sql = String::new();
    match kind {
        ChangeKind::Insert => {
            insert_into(&mut sql, table);
            let _ = write!(sql, " VALUES ({})", marks(table, ChangeKind::Insert));
        }
        ChangeKind::Update => {
            // The steps are bound after the other values, then the key and the version.
            let set: Vec<String> = set_positions(table)
                .map(|position| format!("{} = ?", name(table, position)))
                .collect();
            let version = table.table.version.map(|position| name(table, position));
            let bump = version.map(|version| format!("{version} = {version} + ?"));
            let set: Vec<String> = set.into_iter().chain(bump).collect();
            let _ = write!(
                sql,
                "UPDATE {} SET {} WHERE {}",
                SqliteSyntax.table(table.table),
                set.join(", "),
                guard(table)
            );
        }
        ChangeKind::Delete => {
            let _ = write!(
                sql,
                "DELETE FROM {} WHERE {}",
                SqliteSyntax.table(table.table),
                guard(table)
            );
        }
    }
    sql
}

/// That a row has the key and the version that are bound.
fn guard(table: &TableInfo) -> String {
    let equal = guard_positions(table).map(|position| format!("{} = ?", name(table, position)));
    equal.collect::<Vec<_>>().join(" AND ")
}

/// The columns that an update sets: all but the key, the version and the creation date.
pub(super) fn set_positions(table: &TableInfo) -> impl Iterator<Item = usize> {
    let version = table.table.version;
    ChangeKind::Update
        .written(table)
        .filter(move |position| *position != 0 && Some(*position) != version)
}

/// The columns that an update or a delete compares: the key and the version.
pub(super) fn guard_positions(table: &TableInfo) -> impl Iterator<Item = usize> {
    std::iter::once(0).chain(table.table.version)
}

/// Finds the rows that are no longer at their version; returns the key and that version.
pub(super) fn find_stale(table: &TableInfo, rows: usize) -> String {
    let guard = guard_positions(table);
    let join: Vec<String> = guard
        .enumerate()
        .map(|(n, position)| format!("t.{} = v.g{n}", name(table, position)))
        .collect();
    let names: Vec<String> = (0..join.len()).map(|n| format!("g{n}")).collect();
    let marks = format!("({})", vec!["?"; join.len()].join(", "));
    let version = if table.table.version.is_some() { "v.g1" } else { "0" };
    format!(
        "WITH v({}) AS (VALUES {}) SELECT v.g0, {version} FROM v LEFT JOIN {} t ON {} WHERE t.{} IS NULL",
        names.join(", "),
        vec![marks.as_str(); rows].join(", "),
        SqliteSyntax.table(table.table),
        join.join(" AND "),
        name(table, 0),
    )
}

/// Writes rows of one table that are known to be at their version.
pub(super) fn write_rows(table: &TableInfo, kind: ChangeKind, rows: usize) -> String {
    let marks = format!("({})", marks(table, kind));
    let values = vec![marks.as_str(); rows].join(", ");
    let mut sql = String::new();
    match kind {
        ChangeKind::Insert => {
            insert_into(&mut sql, table);
            let _ = write!(sql, " VALUES {values}");
        }
        ChangeKind::Update => {
            let names: Vec<String> =
                kind.written(table).map(|position| format!("c{position}")).collect();
            let names = [names, vec!["steps".to_owned()]].concat();
            let set: Vec<String> = kind
                .written(table)
                .filter(|position| *position != 0)
                .map(|position| {
                    let bump =
                        if Some(position) == table.table.version { " + v.steps" } else { "" };
                    format!("{} = v.c{position}{bump}", name(table, position))
                })
                .collect();
            let _ = write!(
                sql,
                "WITH v({}) AS (VALUES {values}) UPDATE {} AS t SET {} FROM v WHERE t.{} = v.c0",
                names.join(", "),
                SqliteSyntax.table(table.table),
                set.join(", "),
                name(table, 0),
            );
        }
        ChangeKind::Delete => {
            let names: Vec<String> =
                kind.written(table).map(|position| format!("c{position}")).collect();
            let _ = write!(
                sql,
                "WITH v({}) AS (VALUES {values}) DELETE FROM {} WHERE {} IN (SELECT c0 FROM v)",
                names.join(", "),
                SqliteSyntax.table(table.table),
                name(table, 0),
            );
        }
    }
    sql
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::db::fixtures::{SHORT_EVENTS, WALLETS, table};

    fn wallets() -> Arc<TableInfo> {
        table(&WALLETS, |column| if column.name == "version" { "INTEGER" } else { "TEXT" })
    }

    #[test]
    fn a_row_is_updated_only_at_its_version() {
        assert_eq!(
            write_row(&wallets(), ChangeKind::Update),
            "UPDATE \"wallets\" SET \"balance\" = ?, \"updated_date\" = ?, \"version\" = \"version\" + ? \
             WHERE \"id\" = ? AND \"version\" = ?"
        );
        assert_eq!(
            write_row(&wallets(), ChangeKind::Delete),
            "DELETE FROM \"wallets\" WHERE \"id\" = ? AND \"version\" = ?"
        );
        assert_eq!(
            write_rows(&wallets(), ChangeKind::Delete, 2),
            "WITH v(c0, c2) AS (VALUES (?, ?), (?, ?)) DELETE FROM \"wallets\" WHERE \"id\" IN (SELECT c0 FROM v)"
        );
        let events = table(&SHORT_EVENTS, |_| "TEXT");
        assert_eq!(
            write_row(&events, ChangeKind::Insert),
            "INSERT INTO \"eventlog_events\" (\"id\", \"payload\") VALUES (?, ?)"
        );
    }

    #[test]
    fn rows_of_one_table_are_checked_by_one_statement_and_written_by_another() {
        assert_eq!(
            find_stale(&wallets(), 2),
            "WITH v(g0, g1) AS (VALUES (?, ?), (?, ?)) SELECT v.g0, v.g1 FROM v LEFT JOIN \"wallets\" t \
             ON t.\"id\" = v.g0 AND t.\"version\" = v.g1 WHERE t.\"id\" IS NULL"
        );
        assert_eq!(
            write_rows(&wallets(), ChangeKind::Update, 1),
            "WITH v(c0, c1, c2, c4, steps) AS (VALUES (?, ?, ?, ?, ?)) UPDATE \"wallets\" AS t SET \"balance\" = v.c1, \
             \"version\" = v.c2 + v.steps, \"updated_date\" = v.c4 FROM v WHERE t.\"id\" = v.c0"
        );
    }
}
