//! The rows that a commit locks before it writes.
//!
//! InnoDB checks the foreign key of a new row by a share lock on the parent. A commit that added a
//! child and then updated its parent would have to raise that lock, and two such commits of one
//! parent wait for each other. So do two commits that each update one parent and add a child to the
//! other, and two that each update the row that the other expects to be unchanged, or that the other
//! deletes.
//!
//! Invariant: a commit that adds children, expects rows to be unchanged, or both updates and deletes
//! rows of one table begins by locking all rows that it will need, by table, column and key. Other
//! commits lock in this order as they write.
//!
//! Two kinds of lock are left to the server, which aborts one of two commits that then wait for
//! each other: on the parents of a foreign key with several columns, and on the new parent of a row
//! whose foreign key is updated.

use std::collections::{BTreeMap, BTreeSet};

use super::literal::write_literal;
use super::statement::LockMode;
use super::syntax::MySqlSyntax;
use crate::db::{ChangeKind, ColumnInfo, CommitBatch, DbError, Syntax};
use crate::domain::Value;

/// A row: its table, the column by which it is found, and the value of that column.
type LockedRow = (String, String, String);

fn literal(value: &Value, column: &ColumnInfo) -> Result<String, DbError> {
    let mut sql = String::new();
    write_literal(&mut sql, value, column)?;
    Ok(sql)
}

/// The statements that lock rows in the order of all commits. There are none if the writes lock
/// in this order by themselves.
pub(super) fn lock_first(
    syntax: &MySqlSyntax,
    batches: &[&CommitBatch],
) -> Result<Vec<String>, DbError> {
    let mut rows = parents(syntax, batches)?;
    let expected = || batches.iter().flat_map(|batch| &batch.expected).filter(|row| row.is_locked);
    for row in expected() {
        let column = &row.table.columns[0];
        let key = literal(&Value::Uuid(row.id), column)?;
        let name = syntax.quote(&column.name);
        rows.insert((syntax.table(row.table.table), name, key), LockMode::Share);
    }
    if rows.is_empty() && !has_mixed_table(batches) {
        return Ok(Vec::new());
    }
    let mut changes = batches.iter().flat_map(|batch| batch.guarded_changes()).peekable();
    // The foreign key of a single child locks its parent as it is written. Nothing else locks a row that
    // is only expected.
    if rows.len() == 1 && changes.peek().is_none() && expected().next().is_none() {
        return Ok(Vec::new());
    }
    for row in changes {
        let column = &row.table.columns[0];
        let name = syntax.quote(&column.name);
        let key = literal(&row.values[0], column)?;
        rows.insert((syntax.table(row.table.table), name, key), LockMode::Exclusive);
    }
    Ok(rows.iter().map(lock).collect())
}

/// Whether the batches both update and delete rows of one table, by one statement after the other.
fn has_mixed_table(batches: &[&CommitBatch]) -> bool {
    let changes = batches.iter().flat_map(|batch| batch.guarded_changes());
    let (deletes, updates): (Vec<_>, Vec<_>) =
        changes.partition(|row| row.kind == ChangeKind::Delete);
    let updates: BTreeSet<_> = updates.iter().map(|row| row.table.table.key()).collect();
    deletes.iter().any(|row| updates.contains(&row.table.table.key()))
}

/// The rows to which new rows refer, apart from those that are new themselves.
fn parents(
    syntax: &MySqlSyntax,
    batches: &[&CommitBatch],
) -> Result<BTreeMap<LockedRow, LockMode>, DbError> {
    let changes = batches.iter().flat_map(|batch| &batch.changes);
    let inserts: Vec<_> = changes.filter(|row| row.kind == ChangeKind::Insert).collect();
    let mut parents = BTreeMap::new();
    for row in &inserts {
        for (column, value) in row.table.columns.iter().zip(&*row.values) {
            let keys = column.references.iter().filter_map(|reference| reference.column.as_ref());
            for (table, name) in keys.filter(|_| *value != Value::Null) {
                let parent = (table.clone(), name.clone(), literal(value, column)?);
                parents.insert(parent, LockMode::Share);
            }
        }
    }
    if !parents.is_empty() {
        let mut new = BTreeSet::new();
        for row in &inserts {
            let column = &row.table.columns[0];
            let name = syntax.quote(&column.name);
            new.insert((syntax.table(row.table.table), name, literal(&row.values[0], column)?));
        }
        parents.retain(|parent, _| !new.contains(parent));
    }
    Ok(parents)
}

/// Locks one row. A list of keys could be found by a scan of the table, if that is small, which
/// waits for the locks of other rows, too.
fn lock(((table, column, key), mode): (&LockedRow, &LockMode)) -> String {
    // A result would be read as that of another statement.
    let mode = mode.clause();
    format!("SELECT COUNT(*) INTO @ekbatan FROM {table} WHERE {column} = {key} {mode}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::db::fixtures::{WALLETS, change, column};
    use crate::db::mysql::flavour::Flavour;
    use crate::db::{ActionId, Reference, RowChange, TableInfo};
    use crate::domain::{ColumnDef, Table, ValueType};

    static PAYMENTS: Table = Table {
        schema: None,
        name: "payments",
        model: "Payment",
        columns: &[
            ColumnDef::new("id", ValueType::Uuid),
            ColumnDef::new("wallet", ValueType::Uuid),
            ColumnDef::new("version", ValueType::Int),
        ],
        version: Some(2),
        dates: None,
        state: None,
    };

    fn id(n: u128) -> Value {
        Value::Uuid(Uuid::from_u128(n))
    }

    fn wallet(kind: ChangeKind, n: u128) -> RowChange {
        let table = crate::db::fixtures::table(&WALLETS, |_| "char(36)");
        RowChange { values: vec![id(n)].into(), ..change(&table, kind) }
    }

    fn payment(n: u128, wallet: u128) -> RowChange {
        let mut columns = ["id", "wallet", "version"].map(|name| column(name, "char(36)"));
        columns[1].references = vec![Reference {
            table: "wallets".to_owned(),
            column: Some(("`wallets`".to_owned(), "`id`".to_owned())),
        }];
        let table = Arc::new(TableInfo {
            columns: columns.into(),
            ..Arc::into_inner(crate::db::fixtures::table(&PAYMENTS, |_| "char(36)")).unwrap()
        });
        let values = vec![id(n), id(wallet), Value::Int(1)];
        RowChange { values: values.into(), ..change(&table, ChangeKind::Insert) }
    }

    fn locked(changes: Vec<RowChange>) -> Vec<String> {
        let syntax = MySqlSyntax { flavour: Flavour::MySql, eventlog: "log".to_owned() };
        let action = ActionId(Uuid::nil());
        let batch = CommitBatch {
            action,
            changes,
            expected: Vec::new(),
            records: Vec::new(),
            fences: Vec::new(),
            traceable: true,
            turns: Vec::new(),
        };
        lock_first(&syntax, &[&batch]).unwrap()
    }

    #[test]
    fn writes_without_foreign_keys_need_no_lock_before_them() {
        use ChangeKind::{Delete, Insert, Update};
        assert!(locked(vec![wallet(Delete, 2), wallet(Delete, 1), wallet(Insert, 3)]).is_empty());
        assert!(locked(vec![wallet(Update, 2), wallet(Update, 1), wallet(Insert, 3)]).is_empty());
        assert!(locked(vec![payment(9, 1)]).is_empty());
        assert!(locked(vec![payment(9, 1), wallet(Insert, 1), wallet(Update, 2)]).is_empty());
    }

    #[test]
    fn updated_and_deleted_rows_of_one_table_are_locked_in_the_order_of_their_keys() {
        use ChangeKind::{Delete, Update};
        let lock = |n: u128| {
            let id = Uuid::from_u128(n);
            format!("SELECT COUNT(*) INTO @ekbatan FROM `wallets` WHERE `id` = '{id}' FOR UPDATE")
        };
        assert_eq!(
            locked(vec![wallet(Update, 1), wallet(Update, 3), wallet(Delete, 2)]),
            [lock(1), lock(2), lock(3)]
        );
    }

    #[test]
    fn parents_and_updated_rows_are_locked_in_the_order_of_their_keys() {
        let text = |n: u128| format!("'{}'", Uuid::from_u128(n));
        let update = |n| wallet(ChangeKind::Update, n);
        let lock = |n, mode: &str| {
            format!("SELECT COUNT(*) INTO @ekbatan FROM `wallets` WHERE `id` = {} {mode}", text(n))
        };
        assert_eq!(
            locked(vec![payment(8, 3), payment(9, 1), update(2), update(3)]),
            [lock(1, "LOCK IN SHARE MODE"), lock(2, "FOR UPDATE"), lock(3, "FOR UPDATE")]
        );
    }
}
