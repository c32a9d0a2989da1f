//! The order in which the rows of a commit are written.
//!
//! Invariants:
//! - A new parent is written before its children, because InnoDB checks foreign keys row by row.
//! - Updates and deletes come by table, kind and key. Where this is not the order in which all commits lock
//!   rows, `locks` locks them first.
//! - They come before all inserts, so that a new row may take a unique value that another row gives up. If
//!   one of them may refer to a new row, all of them come after the inserts.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use crate::db::{ChangeKind, CommitBatch, RowChange};
use crate::domain::{TableKey, Value};

/// All rows of the batches: the changes, then the records.
pub(super) fn ordered<'b>(batches: &[&'b CommitBatch]) -> Vec<&'b RowChange> {
    let changes = || batches.iter().flat_map(|batch| &batch.changes);
    let mut inserts: Vec<&RowChange> =
        changes().filter(|row| row.kind == ChangeKind::Insert).collect();
    let mut guarded: Vec<&RowChange> =
        batches.iter().flat_map(|batch| batch.guarded_changes()).collect();
    let mut records: Vec<&RowChange> = batches.iter().flat_map(|batch| &batch.records).collect();
    inserts.sort_by_key(|row| (row.table.table.key(), row.id));
    guarded.sort_by_key(|row| (row.table.table.key(), row.kind, row.id));
    records.sort_by_key(|row| row.table.table.key()); // stable: events keep their order
    let inserts_first = refer_to_new_rows(&guarded, &inserts);
    let inserts = parents_first(inserts);
    let changes = if inserts_first { [inserts, guarded] } else { [guarded, inserts] };
    changes.into_iter().flatten().chain(records).collect()
}

/// Whether one of the rows may refer to one of the new rows, which are sorted by table.
fn refer_to_new_rows(rows: &[&RowChange], new: &[&RowChange]) -> bool {
    // A view or a trigger may refer to more than the columns say.
    if rows.iter().chain(new).any(|row| row.table.rules.reacts) {
        return true;
    }
    let tables = new.chunk_by(|a, b| a.table.table.key() == b.table.table.key());
    let ids: HashMap<String, HashSet<Uuid>> =
        tables.map(|rows| (rows[0].table.table.full_name(), uuids(rows))).collect();
    rows.iter().any(|row| {
        let mut columns = row.table.columns.iter().zip(&*row.values);
        columns.any(|(column, value)| {
            let mut parents = column.references.iter().filter_map(|of| ids.get(&of.table));
            parents.any(|ids| match value {
                Value::Null => false,
                Value::Uuid(id) => ids.contains(id),
                _ => true,
            })
        })
    })
}

/// All ids and other values of their type, by which the rows may be referred to.
fn uuids(rows: &[&RowChange]) -> HashSet<Uuid> {
    let values = rows.iter().flat_map(|row| &*row.values);
    let ids = values.filter_map(|value| match value {
        Value::Uuid(id) => Some(*id),
        _ => None,
    });
    ids.collect()
}

/// The rows table by table, each table after those that it refers to. In a table that refers to
/// itself, each row after those that it refers to.
fn parents_first(rows: Vec<&RowChange>) -> Vec<&RowChange> {
    let tables: Vec<&[&RowChange]> =
        rows.chunk_by(|a, b| a.table.table.key() == b.table.table.key()).collect();
    let names: HashMap<String, usize> =
        tables.iter().enumerate().map(|(n, rows)| (rows[0].table.table.full_name(), n)).collect();
    let parents = |n: usize| {
        let columns = tables[n][0].table.columns.iter();
        let named = columns.flat_map(|column| &column.references);
        let known = named.filter_map(|reference| names.get(&reference.table).copied());
        known.filter(|parent| *parent != n).collect()
    };
    let refers_to_itself = |n: usize| {
        let columns = tables[n][0].table.columns.iter();
        let mut named = columns.flat_map(|column| &column.references);
        named.any(|reference| names.get(&reference.table) == Some(&n))
    };
    let mut ordered = Vec::with_capacity(rows.len());
    for n in sorted(tables.len(), parents) {
        if refers_to_itself(n) {
            ordered.extend(parent_rows_first(tables[n]));
        } else {
            ordered.extend_from_slice(tables[n]);
        }
    }
    ordered
}

fn parent_rows_first<'b>(rows: &[&'b RowChange]) -> Vec<&'b RowChange> {
    let own: TableKey = rows[0].table.table.key();
    let name = rows[0].table.table.full_name();
    debug_assert!(rows.iter().all(|row| row.table.table.key() == own));
    let ids: HashMap<Uuid, usize> = rows.iter().enumerate().map(|(n, row)| (row.id, n)).collect();
    let parents = |n: usize| {
        let columns = rows[n].table.columns.iter().zip(&*rows[n].values);
        columns
            .filter(|(column, _)| column.references.iter().any(|of| of.table == name))
            .filter_map(|(_, value)| match value {
                Value::Uuid(id) => ids.get(id).copied().filter(|parent| *parent != n),
                _ => None,
            })
            .collect()
    };
    sorted(rows.len(), parents).into_iter().map(|n| rows[n]).collect()
}

/// The numbers below `count`, each after its parents. The members of a cycle, which no order
/// satisfies, keep their order.
fn sorted(count: usize, parents: impl Fn(usize) -> Vec<usize>) -> Vec<usize> {
    let mut seen = vec![false; count];
    let mut order = Vec::with_capacity(count);
    for first in 0..count {
        let mut path = vec![(first, false)];
        while let Some((n, parents_are_written)) = path.pop() {
            if parents_are_written {
                order.push(n);
            } else if !std::mem::replace(&mut seen[n], true) {
                path.push((n, true));
                path.extend(parents(n).into_iter().rev().map(|parent| (parent, false)));
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::sorted;

    #[test]
    fn parents_come_before_their_children_and_cycles_are_tolerated() {
        let parents = |n: usize| match n {
            0 => vec![2],
            2 => vec![3],
            _ => vec![],
        };
        assert_eq!(sorted(4, parents), [3, 2, 0, 1]);
        assert_eq!(sorted(2, |n| vec![1 - n]), [1, 0]);
        assert_eq!(sorted(3, |_| vec![]), [0, 1, 2]);
    }
}
