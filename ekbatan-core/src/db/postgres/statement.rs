//! The texts of the statements that commit. A text depends on which tables are written and how,
//! never on the number of rows, so that the server plans each one once. See `form`.

use std::fmt::Write as _;

use super::arrays::{arrays, is_key_or_version, rows, written};
use super::fence::check;
use super::form::{Form, Group, Role};
use super::syntax::{PostgresSyntax, assigned, wire_type};
use crate::db::{ChangeKind, ColumnInfo, RowChange, Syntax, TableInfo};

/// A statement fails with this code if a trigger has suppressed one of its rows. The code means that `width_bucket`
/// got zero buckets. SQL has no expression that raises an error of its own, and hardly anything else raises this one.
pub(super) const SUPPRESSED: &str = "2201G";

/// Commits one changed row and one record, with scalar parameters: the most frequent case.
///
/// ```sql
/// WITH u AS (UPDATE wallets SET .. WHERE id = $1 AND version = $9 RETURNING 1)
/// INSERT INTO eventlog.events (..) SELECT $10, .. FROM u
/// ```
///
/// A stale update or delete returns no row to the insert, so the whole statement writes nothing.
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
    let guard = || {
        let compared = values.iter().filter(|(position, ..)| is_key_or_version(table, *position));
        let equal = compared.map(|(_, column, (_, value))| {
            format!("{} = {value}", PostgresSyntax.quote(&column.name))
        });
        equal.collect::<Vec<_>>().join(" AND ")
    };
    let mut sql = String::from("WITH c AS (");
    match change.kind {
        ChangeKind::Insert => insert_into(&mut sql, table),
        ChangeKind::Update => {
            let mut set = Vec::new();
            for (position, column, (n, value)) in &values {
                let name = PostgresSyntax.quote(&column.name);
                if Some(*position) == table.table.version {
                    set.push(format!("{name} = ${n}::int8 + 1"));
                } else if *position != 0 {
                    set.push(format!("{name} = {value}"));
                }
            }
            let _ = write!(sql, "UPDATE {target} SET {} WHERE {}", set.join(", "), guard());
        }
        ChangeKind::Delete => {
            let _ = write!(sql, "DELETE FROM {target} WHERE {}", guard());
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

/// How a row is locked. Of two ways to lock one table, the stronger one is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Strength {
    Share,
    NoKeyUpdate,
    Update,
}

impl Strength {
    pub(super) fn clause(self) -> &'static str {
        match self {
            Strength::Share => "FOR SHARE",
            Strength::NoKeyUpdate => "FOR NO KEY UPDATE",
            Strength::Update => "FOR UPDATE",
        }
    }
}

/// The rows of one table that must be at their versions, and how they are found and locked.
struct Lock<'f> {
    name: String,
    table: &'f TableInfo,
    /// Each selects batch, ordinal, key and version.
    sources: Vec<String>,
    /// `None`: they are only compared.
    strength: Option<Strength>,
}

impl Lock<'_> {
    fn sql(&self) -> String {
        let Self { name, table, sources, strength } = self;
        let lock = strength.map_or_else(String::new, |strength| {
            format!(" ORDER BY v.c0 {} OF t", strength.clause())
        });
        let version = table.table.version;
        let columns: Vec<String> =
            std::iter::once(0).chain(version).map(|position| format!("c{position}")).collect();
        let columns = columns.join(", ");
        let source = match &sources[..] {
            [one] => format!("{one} AS v(batch, ord, {columns})"),
            several => {
                let select = |source| format!("SELECT * FROM {source}");
                let union: Vec<String> = several.iter().map(select).collect();
                format!("({}) AS v(batch, ord, {columns})", union.join(" UNION ALL "))
            }
        };
        let target = PostgresSyntax.table(table.table);
        format!(
            "{name} AS MATERIALIZED (SELECT v.batch, v.ord FROM {source} \
             JOIN {target} t ON {}{lock})",
            guard(table)
        )
    }
}

/// Adds a lock, or joins it with the one before it if both lock rows of one table.
fn add<'f>(locks: &mut Vec<Lock<'f>>, lock: Lock<'f>) {
    match locks.last_mut() {
        Some(last)
            if last.table.table.key() == lock.table.table.key() && lock.strength.is_some() =>
        {
            last.sources.extend(lock.sources);
            last.strength = last.strength.max(lock.strength);
        }
        _ => locks.push(lock),
    }
}

/// That the row of `t` has the key and the version of `v`.
///
/// Not written with `=`: the only plan for `= ANY(ARRAY[..])` is to look each row up by its key. For
/// `=` the server could as well scan the table and join. It would choose that if the table is
/// small when it plans the statement, and keep the plan while the table grows.
fn guard(table: &TableInfo) -> String {
    let positions = std::iter::once(0).chain(table.table.version);
    let equal = positions.map(|position| {
        let column = &table.columns[position];
        let value = assigned(&format!("v.c{position}"), column);
        format!("t.{} = ANY(ARRAY[{value}])", PostgresSyntax.quote(&column.name))
    });
    equal.collect::<Vec<_>>().join(" AND ")
}

/// Commits any number of batches, each whole or not at all, by one statement over arrays.
///
/// `$1` is the number of rows that each batch must find: those that it updates or deletes, those
/// that must be unchanged, and its fences. `l0`, `l1`, .. lock the rows that still have their version, in
/// key order. `g` has, per batch, whether all were found, and the writes join only batches for
/// which it is true. When a row is locked that another transaction changed after the snapshot,
/// PostgreSQL evaluates the condition again, so the batch of a stale row is left out.
///
/// The locks are those that an `UPDATE` takes. A stronger one would wait for the foreign keys of
/// uncommitted rows of others. Rows that are deleted are locked as a `DELETE` does, and rows that
/// must be unchanged in share mode. All rows of a table are locked in one order, by one part, which
/// takes the strongest of these locks. Rows that are expected without a lock are compared by a part of
/// their own.
///
/// The server runs the writing parts from the last to the first, so the updates of a table come before its
/// inserts, and a new row may take a unique value that another gives up. It does not document this order.
///
/// The statement fails with [`SUPPRESSED`] if a trigger kept a part from writing one of its rows. Only the parts of
/// tables with such triggers are counted, from the last to the first: the server runs a part when it counts it.
///
/// The result has, besides `g`, the ordinals of the rows that were found (positive) and of the
/// fences that held (negative).
pub(super) fn folded(form: &Form) -> String {
    let mut next = 1;
    let mut parameter = |ty: &str| {
        next += 1;
        format!("${next}::{ty}[]")
    };
    let mut locks: Vec<Lock<'_>> = Vec::new();
    let mut writes = Vec::new();
    let mut counts = Vec::new();
    for (n, Group { table, role }) in form.groups.iter().enumerate() {
        let wire = |position: usize| wire_type(table.table.columns[position].ty);
        let target = PostgresSyntax.table(table.table);
        let batch = parameter("int4");
        let ordinal = if *role == Role::Insert { String::new() } else { parameter("int4") };
        let name = format!("l{n}");
        let is_counted = table.rules.may_suppress && role.writes();
        let returning = if is_counted { " RETURNING 1" } else { "" };
        if is_counted {
            counts.push(format!(
                "(SELECT count(*) FROM w{n}) = \
                 (SELECT count(*) FROM unnest({batch}) AS b WHERE ((SELECT ok FROM g))[b])"
            ));
        }
        match role {
            Role::Insert => {
                let arrays = arrays(table, ChangeKind::Insert, &mut parameter);
                let mut sql = String::new();
                insert_into(&mut sql, table);
                let values: Vec<String> =
                    arrays.iter().map(|array| assigned(&array.value(), array.column)).collect();
                let _ = write!(
                    sql,
                    " SELECT {} FROM {} WHERE ((SELECT ok FROM g))[v.batch]",
                    values.join(", "),
                    rows(&batch, &arrays)
                );
                writes.push(format!("w{n} AS ({sql}{returning})"));
            }
            Role::Update => {
                let steps = parameter("int8");
                let arrays = arrays(table, ChangeKind::Update, &mut parameter);
                let keys = arrays.iter().filter(|array| is_key_or_version(table, array.position));
                let keys: Vec<&str> = keys.map(|array| array.parameter.as_str()).collect();
                let source = format!("unnest({batch}, {ordinal}, {})", keys.join(", "));
                let strength = Some(Strength::NoKeyUpdate);
                add(&mut locks, Lock { name, table, sources: vec![source], strength });
                let set: Vec<String> = arrays
                    .iter()
                    .filter(|array| array.position != 0)
                    .map(|array| {
                        let name = PostgresSyntax.quote(&array.column.name);
                        if Some(array.position) == table.table.version {
                            format!("{name} = {} + ({steps})[v.n]", array.value())
                        } else {
                            format!("{name} = {}", assigned(&array.value(), array.column))
                        }
                    })
                    .collect();
                writes.push(format!(
                    "w{n} AS (UPDATE {target} t SET {} FROM {} WHERE ((SELECT ok FROM g))[v.batch] AND {}{returning})",
                    set.join(", "),
                    rows(&batch, &arrays),
                    guard(table)
                ));
            }
            Role::Delete => {
                let arrays = arrays(table, ChangeKind::Delete, &mut parameter);
                let keys: Vec<&str> = arrays.iter().map(|array| array.parameter.as_str()).collect();
                let source = format!("unnest({batch}, {ordinal}, {})", keys.join(", "));
                let strength = Some(Strength::Update);
                add(&mut locks, Lock { name, table, sources: vec![source], strength });
                writes.push(format!(
                    "w{n} AS (DELETE FROM {target} t USING {} WHERE ((SELECT ok FROM g))[v.batch] AND {}{returning})",
                    rows(&batch, &arrays),
                    guard(table)
                ));
            }
            Role::Expect | Role::ExpectUnlocked => {
                let positions = std::iter::once(0).chain(table.table.version);
                let keys: Vec<String> =
                    positions.map(|position| parameter(wire(position))).collect();
                let source = format!("unnest({batch}, {ordinal}, {})", keys.join(", "));
                let strength = (*role == Role::Expect).then_some(Strength::Share);
                add(&mut locks, Lock { name, table, sources: vec![source], strength });
            }
        }
    }
    let mut found: Vec<&str> = locks.iter().map(|lock| lock.name.as_str()).collect();
    let mut parts: Vec<String> = locks.iter().map(Lock::sql).collect();
    if form.fenced {
        let (batch, ordinal) = (parameter("int4"), parameter("int4"));
        let (key, token) = (parameter("text"), parameter("int8"));
        parts.push(check(&batch, &ordinal, &key, &token));
        found.push("f");
    }
    let found: Vec<String> =
        found.iter().map(|name| format!("SELECT batch, ord FROM {name}")).collect();
    let found = if found.is_empty() {
        "SELECT 0 AS batch, 0 AS ord WHERE false".to_owned()
    } else {
        found.join(" UNION ALL ")
    };
    parts.push(format!("n AS MATERIALIZED ({found})"));
    // No join: its best kind depends on the number of rows, which the server does not know when it
    // plans the statement.
    parts.push(
        "g AS MATERIALIZED (SELECT array_agg(s.missing = 0 ORDER BY s.batch) AS ok \
         FROM (SELECT u.batch, sum(u.missing) AS missing \
         FROM (SELECT w.batch, w.missing FROM unnest($1::int4[]) WITH ORDINALITY AS w(missing, batch) \
         UNION ALL SELECT n.batch, -1 FROM n) u GROUP BY u.batch) s)"
            .to_owned(),
    );
    parts.extend(writes);
    let fences = if form.fenced { "(SELECT array_agg(ord) FROM f)" } else { "NULL::int4[]" };
    counts.reverse();
    let counted = if counts.is_empty() {
        String::new()
    } else {
        format!(", width_bucket(0::float8, 0, 1, ({})::int)", counts.join(" AND "))
    };
    format!(
        "WITH {} SELECT (SELECT ok FROM g), (SELECT array_agg(ord) FROM n WHERE ord >= 0), {fences}{counted}",
        parts.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::db::fixtures::{SHORT_EVENTS, WALLETS, change, table};
    use crate::db::{Rule, Rules};
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

    fn form(groups: &[(&Arc<TableInfo>, Role)], fenced: bool) -> Form {
        let group = |(table, role): &(&Arc<TableInfo>, Role)| Group {
            table: Arc::clone(table),
            role: *role,
        };
        Form { groups: groups.iter().map(group).collect(), fenced }
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
    fn a_delete_and_its_event_are_one_statement() {
        let sql =
            single(&change(&wallets(), ChangeKind::Delete), &change(&events(), ChangeKind::Insert));
        assert_eq!(
            sql,
            "WITH c AS (DELETE FROM \"wallets\" WHERE \"id\" = $1::uuid AND \"version\" = $2::int8 RETURNING 1) \
             INSERT INTO \"eventlog\".\"events\" (\"id\", \"payload\") SELECT $3::uuid, $4::text::jsonb FROM c"
        );
    }

    #[test]
    fn deleted_rows_are_locked_in_one_order_with_updated_rows_of_their_table() {
        let wallets = wallets();
        let sql = folded(&form(&[(&wallets, Role::Delete)], false));
        assert!(sql.starts_with(
            "WITH l0 AS MATERIALIZED (SELECT v.batch, v.ord FROM unnest($2::int4[], $3::int4[], $4::uuid[], $5::int8[]) \
             AS v(batch, ord, c0, c2) JOIN \"wallets\" t ON t.\"id\" = ANY(ARRAY[v.c0]) AND t.\"version\" = ANY(ARRAY[v.c2]) \
             ORDER BY v.c0 FOR UPDATE OF t), n AS"
        ));
        assert!(sql.contains(
            "w0 AS (DELETE FROM \"wallets\" t USING unnest($2::int4[], $4::uuid[], $5::int8[]) WITH ORDINALITY AS v(batch, c0, c2, n) \
             WHERE ((SELECT ok FROM g))[v.batch] AND t.\"id\" = ANY(ARRAY[v.c0]) AND t.\"version\" = ANY(ARRAY[v.c2]))"
        ));
        let all = [Role::Update, Role::Delete, Role::Expect].map(|role| (&wallets, role));
        let sql = folded(&form(&all, false));
        assert!(sql.contains(
            "(SELECT * FROM unnest($2::int4[], $3::int4[], $5::uuid[], $7::int8[]) UNION ALL \
             SELECT * FROM unnest($9::int4[], $10::int4[], $11::uuid[], $12::int8[]) UNION ALL \
             SELECT * FROM unnest($13::int4[], $14::int4[], $15::uuid[], $16::int8[])) AS v(batch, ord, c0, c2) "
        ));
        assert!(sql.contains("ORDER BY v.c0 FOR UPDATE OF t), n AS"));
    }

    #[test]
    fn many_batches_are_one_statement_whose_text_does_not_depend_on_their_number() {
        let (wallets, events) = (wallets(), events());
        let sql = folded(&form(&[(&events, Role::Insert), (&wallets, Role::Update)], false));
        assert_eq!(
            sql,
            "WITH l1 AS MATERIALIZED (SELECT v.batch, v.ord FROM unnest($5::int4[], $6::int4[], $8::uuid[], $10::int8[]) \
             AS v(batch, ord, c0, c2) JOIN \"wallets\" t ON t.\"id\" = ANY(ARRAY[v.c0]) AND t.\"version\" = ANY(ARRAY[v.c2]) ORDER BY v.c0 FOR NO KEY UPDATE OF t), \
             n AS MATERIALIZED (SELECT batch, ord FROM l1), \
             g AS MATERIALIZED (SELECT array_agg(s.missing = 0 ORDER BY s.batch) AS ok \
             FROM (SELECT u.batch, sum(u.missing) AS missing \
             FROM (SELECT w.batch, w.missing FROM unnest($1::int4[]) WITH ORDINALITY AS w(missing, batch) \
             UNION ALL SELECT n.batch, -1 FROM n) u GROUP BY u.batch) s), \
             w0 AS (INSERT INTO \"eventlog\".\"events\" (\"id\", \"payload\") SELECT ($3::uuid[])[v.n], v.c1::jsonb \
             FROM unnest($2::int4[], $4::text[]) WITH ORDINALITY AS v(batch, c1, n) WHERE ((SELECT ok FROM g))[v.batch]), \
             w1 AS (UPDATE \"wallets\" t SET \"balance\" = v.c1, \"version\" = v.c2 + ($7::int8[])[v.n], \
             \"updated_date\" = (($11::timestamp[])[v.n] AT TIME ZONE 'UTC') \
             FROM unnest($5::int4[], $8::uuid[], $9::numeric[], $10::int8[]) WITH ORDINALITY AS v(batch, c0, c1, c2, n) \
             WHERE ((SELECT ok FROM g))[v.batch] AND t.\"id\" = ANY(ARRAY[v.c0]) AND t.\"version\" = ANY(ARRAY[v.c2])) \
             SELECT (SELECT ok FROM g), (SELECT array_agg(ord) FROM n WHERE ord >= 0), NULL::int4[]"
        );
    }

    #[test]
    fn expected_rows_are_locked_in_one_order_with_updated_rows_of_their_table() {
        let (wallets, events) = (wallets(), events());
        let sql = folded(&form(&[(&events, Role::Insert), (&wallets, Role::Expect)], false));
        assert!(sql.contains(
            "l1 AS MATERIALIZED (SELECT v.batch, v.ord FROM unnest($5::int4[], $6::int4[], $7::uuid[], $8::int8[]) \
             AS v(batch, ord, c0, c2) JOIN \"wallets\" t ON t.\"id\" = ANY(ARRAY[v.c0]) AND t.\"version\" = ANY(ARRAY[v.c2]) \
             ORDER BY v.c0 FOR SHARE OF t)"
        ));
        let sql = folded(&form(&[(&wallets, Role::Update), (&wallets, Role::Expect)], false));
        assert!(sql.contains(
            "l0 AS MATERIALIZED (SELECT v.batch, v.ord FROM \
             (SELECT * FROM unnest($2::int4[], $3::int4[], $5::uuid[], $7::int8[]) UNION ALL \
             SELECT * FROM unnest($9::int4[], $10::int4[], $11::uuid[], $12::int8[])) \
             AS v(batch, ord, c0, c2) JOIN \"wallets\" t ON t.\"id\" = ANY(ARRAY[v.c0]) AND t.\"version\" = ANY(ARRAY[v.c2]) \
             ORDER BY v.c0 FOR NO KEY UPDATE OF t), n AS"
        ));
    }

    #[test]
    fn rows_that_are_expected_without_a_lock_are_compared_by_themselves() {
        let roles = [Role::Update, Role::Expect, Role::ExpectUnlocked];
        let wallets = wallets();
        let sql = folded(&form(&roles.map(|role| (&wallets, role)), false));
        let compared = "AS v(batch, ord, c0, c2) JOIN \"wallets\" t ON t.\"id\" = ANY(ARRAY[v.c0]) \
                        AND t.\"version\" = ANY(ARRAY[v.c2])), n AS";
        assert!(sql.contains(compared), "{sql}");
        assert_eq!(sql.matches("OF t)").count(), 1, "{sql}");
        assert!(
            sql.contains("(SELECT batch, ord FROM l0 UNION ALL SELECT batch, ord FROM l2)"),
            "{sql}"
        );
    }

    /// The server runs a part when it counts it, and the updates of a table have to come before its inserts.
    #[test]
    fn the_rows_of_tables_whose_triggers_may_suppress_them_are_counted_from_the_last_part() {
        let rules = Rules::of(&WALLETS, vec![Rule::Suppression]);
        let wallets = Arc::new(TableInfo { rules, ..Arc::into_inner(wallets()).unwrap() });
        let roles = [Role::Insert, Role::Update, Role::Expect].map(|role| (&wallets, role));
        let events = events();
        let sql = folded(&form(&[&[(&events, Role::Insert)][..], &roles].concat(), false));
        let count = |part: &str, batch: &str| {
            format!(
                "(SELECT count(*) FROM {part}) = \
                 (SELECT count(*) FROM unnest({batch}::int4[]) AS b WHERE ((SELECT ok FROM g))[b])"
            )
        };
        let counted = format!("{} AND {}", count("w2", "$11"), count("w1", "$5"));
        let end = format!("NULL::int4[], width_bucket(0::float8, 0, 1, ({counted})::int)");
        assert!(sql.ends_with(&end), "{sql}");
        assert_eq!(sql.matches(" RETURNING 1)").count(), 2, "{sql}");
    }

    #[test]
    fn a_fence_is_locked_and_not_only_read() {
        let sql = folded(&form(&[(&events(), Role::Insert)], true));
        assert!(sql.contains(
            "JOIN \"eventlog\".\"lock_fences\" t ON t.lock_key = ANY(ARRAY[v.key]) AND t.token = ANY(ARRAY[v.token])"
        ));
        assert!(sql.contains("FOR SHARE OF t"));
    }
}
