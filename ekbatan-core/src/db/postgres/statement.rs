//! The texts of the statements that commit. A text depends on which tables are written and how,
//! never on the number of rows, so that the server plans each one once.

use std::fmt::Write as _;

use super::fence::check;
use super::syntax::{PostgresSyntax, assigned, wire_type};
use crate::db::{ChangeKind, ColumnInfo, RowChange, Syntax, TableInfo};

/// The columns that a change binds, with their positions.
pub(super) fn written(
    table: &TableInfo,
    kind: ChangeKind,
) -> impl Iterator<Item = (usize, &ColumnInfo)> {
    kind.written(table).map(|position| (position, &table.columns[position]))
}

fn is_key_or_version(table: &TableInfo, position: usize) -> bool {
    position == 0 || Some(position) == table.table.version
}

/// Commits one changed row and one record, with scalar parameters: the most frequent case.
///
/// ```sql
/// WITH u AS (UPDATE wallets SET .. WHERE id = $1 AND version = $9 RETURNING 1)
/// INSERT INTO eventlog.events (..) SELECT $10, .. FROM u
/// ```
///
/// A stale update returns no row to the insert, so the whole statement writes nothing.
pub(super) fn single(change: &RowChange, record: &RowChange) -> String {
    let mut next = 0;
    let mut parameter = |table: &TableInfo, position: usize, column: &ColumnInfo| {
        next += 1;
        let ty = table.table.columns[position].ty;
        (next, assigned(&format!("${next}::{}", wire_type(ty)), column))
    };
    let table = &change.table;
    let target = PostgresSyntax.table(table.table);
    let values: Vec<(usize, &ColumnInfo, (usize, String))> = written(table, change.kind)
        .map(|(position, column)| (position, column, parameter(table, position, column)))
        .collect();
    let mut sql = String::from("WITH c AS (");
    match change.kind {
        ChangeKind::Insert => insert_into(&mut sql, table),
        ChangeKind::Update => {
            let _ = write!(sql, "UPDATE {target} SET ");
            let mut guard = String::new();
            let mut set = Vec::new();
            for (position, column, (n, value)) in &values {
                let name = PostgresSyntax.quote(&column.name);
                if is_key_or_version(table, *position) {
                    let _ = write!(
                        guard,
                        "{}{name} = {value}",
                        if guard.is_empty() { "" } else { " AND " }
                    );
                }
                if Some(*position) == table.table.version {
                    set.push(format!("{name} = ${n}::int8 + 1"));
                } else if *position != 0 {
                    set.push(format!("{name} = {value}"));
                }
            }
            let _ = write!(sql, "{} WHERE {guard}", set.join(", "));
        }
    }
    if change.kind == ChangeKind::Insert {
        let list: Vec<&str> = values.iter().map(|(_, _, (_, value))| value.as_str()).collect();
        let _ = write!(sql, " VALUES ({})", list.join(", "));
    }
    sql.push_str(" RETURNING 1) ");
    insert_into(&mut sql, &record.table);
    let list: Vec<String> = written(&record.table, ChangeKind::Insert)
        .map(|(position, column)| parameter(&record.table, position, column).1)
        .collect();
    let _ = write!(sql, " SELECT {} FROM c", list.join(", "));
    sql
}

fn insert_into(sql: &mut String, table: &TableInfo) {
    let names: Vec<String> = written(table, ChangeKind::Insert)
        .map(|(_, column)| PostgresSyntax.quote(&column.name))
        .collect();
    let _ = write!(sql, "INSERT INTO {} ({})", PostgresSyntax.table(table.table), names.join(", "));
}

/// Commits any number of batches, each whole or not at all, by one statement over arrays.
///
/// `$1` is the number of rows that each batch must find: its updates and its fences. `l0`, `l1`,
/// .. lock the rows that still have their version, in key order. `g` has, per batch, whether all
/// were found, and the writes join only batches for which it is true. When a row is locked that
/// another transaction changed after the snapshot, PostgreSQL evaluates the condition again, so
/// the batch of a stale row is left out.
///
/// The result has, besides `g`, the ordinals of the rows that were found (positive) and of the
/// fences that held (negative).
pub(super) fn folded(groups: &[(&TableInfo, ChangeKind)], fenced: bool) -> String {
    let mut next = 1;
    let mut parameter = |ty: &str| {
        next += 1;
        format!("${next}::{ty}[]")
    };
    let mut locks = Vec::new();
    let mut writes = Vec::new();
    for (n, (table, kind)) in groups.iter().enumerate() {
        let target = PostgresSyntax.table(table.table);
        let batch = parameter("int4");
        let ordinal = (*kind == ChangeKind::Update).then(|| parameter("int4"));
        let steps = (*kind == ChangeKind::Update).then(|| parameter("int8"));
        let arrays: Vec<(usize, &ColumnInfo, String)> = written(table, *kind)
            .map(|(position, column)| {
                (position, column, parameter(wire_type(table.table.columns[position].ty)))
            })
            .collect();
        let names: Vec<String> = steps
            .iter()
            .map(|_| "steps".to_owned())
            .chain(arrays.iter().map(|(position, ..)| format!("c{position}")))
            .collect();
        let columns: Vec<&str> = steps
            .iter()
            .map(String::as_str)
            .chain(arrays.iter().map(|(.., array)| array.as_str()))
            .collect();
        let source =
            format!("unnest({batch}, {}) AS v(batch, {})", columns.join(", "), names.join(", "));
        match kind {
            ChangeKind::Insert => {
                let mut sql = String::new();
                insert_into(&mut sql, table);
                let values: Vec<String> = arrays
                    .iter()
                    .map(|(position, column, _)| assigned(&format!("v.c{position}"), column))
                    .collect();
                let _ = write!(
                    sql,
                    " SELECT {} FROM {source} WHERE ((SELECT ok FROM g))[v.batch]",
                    values.join(", ")
                );
                writes.push(format!("w{n} AS ({sql})"));
            }
            ChangeKind::Update => {
                let mut set = Vec::new();
                let mut guard = Vec::new();
                let mut keys = Vec::new();
                for (position, column, array) in &arrays {
                    let name = PostgresSyntax.quote(&column.name);
                    let value = assigned(&format!("v.c{position}"), column);
                    if is_key_or_version(table, *position) {
                        guard.push(format!("t.{name} = {value}"));
                        keys.push((format!("c{position}"), array.clone()));
                    }
                    if Some(*position) == table.table.version {
                        set.push(format!("{name} = v.c{position} + v.steps"));
                    } else if *position != 0 {
                        set.push(format!("{name} = {value}"));
                    }
                }
                let guard = guard.join(" AND ");
                let ordinal = ordinal.unwrap_or_default();
                let key_names: Vec<&str> = keys.iter().map(|(name, _)| name.as_str()).collect();
                let key_arrays: Vec<&str> = keys.iter().map(|(_, array)| array.as_str()).collect();
                let id = PostgresSyntax.quote(&table.columns[0].name);
                locks.push(format!(
                    "l{n} AS MATERIALIZED (SELECT v.batch, v.ord FROM unnest({batch}, {ordinal}, {}) AS v(batch, ord, {}) \
                     JOIN {target} t ON {guard} ORDER BY t.{id} FOR UPDATE OF t)",
                    key_arrays.join(", "),
                    key_names.join(", "),
                ));
                writes.push(format!(
                    "w{n} AS (UPDATE {target} t SET {} FROM {source} WHERE ((SELECT ok FROM g))[v.batch] AND {guard})",
                    set.join(", ")
                ));
            }
        }
    }
    if fenced {
        let (batch, ordinal) = (parameter("int4"), parameter("int4"));
        let (key, token) = (parameter("text"), parameter("int8"));
        locks.push(check(&batch, &ordinal, &key, &token));
    }
    let found: Vec<String> = locks
        .iter()
        .filter_map(|lock| {
            lock.split_once(' ').map(|(name, _)| format!("SELECT batch, ord FROM {name}"))
        })
        .collect();
    let found = if found.is_empty() {
        "SELECT 0 AS batch, 0 AS ord WHERE false".to_owned()
    } else {
        found.join(" UNION ALL ")
    };
    let mut parts = locks;
    parts.push(format!("n AS MATERIALIZED ({found})"));
    parts.push(
        "g AS MATERIALIZED (SELECT array_agg(w.wanted = coalesce(c.found, 0) ORDER BY w.batch) AS ok \
         FROM unnest($1::int4[]) WITH ORDINALITY AS w(wanted, batch) \
         LEFT JOIN (SELECT batch, count(*) AS found FROM n GROUP BY batch) c ON c.batch = w.batch)"
            .to_owned(),
    );
    parts.extend(writes);
    let fences = if fenced { "(SELECT array_agg(ord) FROM f)" } else { "NULL::int4[]" };
    format!(
        "WITH {} SELECT (SELECT ok FROM g), (SELECT array_agg(ord) FROM n WHERE ord >= 0), {fences}",
        parts.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::db::fixtures::{SHORT_EVENTS, WALLETS, change, table};
    use crate::domain::ValueType;

    fn wallets() -> Arc<TableInfo> {
        table(&WALLETS, |column| match (column.ty, column.name) {
            (_, "updated_date") => "timestamptz",
            (ty, _) => wire_type(ty),
        })
    }

    fn events() -> Arc<TableInfo> {
        table(&SHORT_EVENTS, |column| if column.ty == ValueType::Json { "jsonb" } else { "uuid" })
    }

    #[test]
    fn one_update_and_its_event_are_one_statement() {
        let sql =
            single(&change(&wallets(), ChangeKind::Update), &change(&events(), ChangeKind::Insert));
        assert_eq!(
            sql,
            "WITH c AS (UPDATE \"wallets\" SET \"balance\" = $2::numeric, \"version\" = $3::int8 + 1, \
             \"updated_date\" = ($4::timestamp AT TIME ZONE 'UTC') WHERE \"id\" = $1::uuid AND \"version\" = $3::int8 RETURNING 1) \
             INSERT INTO \"eventlog\".\"events\" (\"id\", \"payload\") SELECT $5::uuid, $6::text::jsonb FROM c"
        );
    }

    #[test]
    fn many_batches_are_one_statement_whose_text_does_not_depend_on_their_number() {
        let (wallets, events) = (wallets(), events());
        let sql = folded(&[(&events, ChangeKind::Insert), (&wallets, ChangeKind::Update)], false);
        assert_eq!(
            sql,
            "WITH l1 AS MATERIALIZED (SELECT v.batch, v.ord FROM unnest($5::int4[], $6::int4[], $8::uuid[], $10::int8[]) \
             AS v(batch, ord, c0, c2) JOIN \"wallets\" t ON t.\"id\" = v.c0 AND t.\"version\" = v.c2 ORDER BY t.\"id\" FOR UPDATE OF t), \
             n AS MATERIALIZED (SELECT batch, ord FROM l1), \
             g AS MATERIALIZED (SELECT array_agg(w.wanted = coalesce(c.found, 0) ORDER BY w.batch) AS ok \
             FROM unnest($1::int4[]) WITH ORDINALITY AS w(wanted, batch) \
             LEFT JOIN (SELECT batch, count(*) AS found FROM n GROUP BY batch) c ON c.batch = w.batch), \
             w0 AS (INSERT INTO \"eventlog\".\"events\" (\"id\", \"payload\") SELECT v.c0, v.c1::jsonb \
             FROM unnest($2::int4[], $3::uuid[], $4::text[]) AS v(batch, c0, c1) WHERE ((SELECT ok FROM g))[v.batch]), \
             w1 AS (UPDATE \"wallets\" t SET \"balance\" = v.c1, \"version\" = v.c2 + v.steps, \
             \"updated_date\" = (v.c4 AT TIME ZONE 'UTC') \
             FROM unnest($5::int4[], $7::int8[], $8::uuid[], $9::numeric[], $10::int8[], $11::timestamp[]) AS v(batch, steps, c0, c1, c2, c4) \
             WHERE ((SELECT ok FROM g))[v.batch] AND t.\"id\" = v.c0 AND t.\"version\" = v.c2) \
             SELECT (SELECT ok FROM g), (SELECT array_agg(ord) FROM n WHERE ord >= 0), NULL::int4[]"
        );
    }

    #[test]
    fn a_fence_is_locked_and_not_only_read() {
        let sql = folded(&[(&events(), ChangeKind::Insert)], true);
        assert!(sql.contains(
            "JOIN \"eventlog\".\"lock_fences\" t ON t.lock_key = v.key AND t.token = v.token"
        ));
        assert!(sql.contains("FOR SHARE OF t"));
    }
}
