//! Whether the batches of a group may be merged: whether no rule of the database could tell the
//! last image of each row from all images one after another.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use chrono::Datelike;
use uuid::Uuid;

use super::{ChangeKind, ColumnInfo, CommitBatch, RowChange};
use crate::domain::{TableKey, Value};

/// Whether `turns`, which would be written one after another, may be written as one image of
/// each row.
pub(crate) fn may_merge<'t>(turns: impl Iterator<Item = &'t CommitBatch> + Clone) -> bool {
    let mut changes = turns.clone().flat_map(|turn| &turn.changes);
    let has_rules = changes.any(|row| row.table.rules.compares_rows || row.table.rules.refers);
    images_pass(turns.clone())
        && !(has_rules && (compares_rows(turns.clone()) || refers_forward(turns)))
}

/// Whether every rule on single rows accepts each image that is left out if it accepts the last
/// image of the row.
fn images_pass<'t>(turns: impl Iterator<Item = &'t CommitBatch>) -> bool {
    let changes: Vec<&RowChange> = turns.flat_map(|turn| &turn.changes).collect();
    let mut last: HashMap<(TableKey, Uuid), &RowChange> = HashMap::new();
    changes.into_iter().rev().all(|row| {
        let last = last.entry((row.table.table.key(), row.id)).or_insert(row);
        let columns = row.values.iter().zip(last.values.iter()).enumerate();
        columns.filter(|(_, (value, last))| value != last).all(|(position, (value, _))| {
            !row.table.rules.watches(position) && surely_fits(value, &row.table.columns[position])
        })
    })
}

/// Whether several turns touch rows of a table that compares its rows. Rows that are only
/// inserted do no harm, nor do rows that are only deleted: a value that one turn takes is not given
/// up by another.
fn compares_rows<'t>(turns: impl Iterator<Item = &'t CommitBatch>) -> bool {
    struct Touched {
        turn: usize,
        row: Uuid,
        several_turns: bool,
        several_rows: bool,
        takes_values: bool,
        gives_values_up: bool,
    }
    let mut tables: HashMap<TableKey, Touched> = HashMap::new();
    for (turn, batch) in turns.enumerate() {
        for row in batch.changes.iter().filter(|row| row.table.rules.compares_rows) {
            let touched = tables.entry(row.table.table.key()).or_insert(Touched {
                turn,
                row: row.id,
                several_turns: false,
                several_rows: false,
                takes_values: false,
                gives_values_up: false,
            });
            touched.several_turns |= touched.turn != turn;
            touched.several_rows |= touched.row != row.id;
            touched.takes_values |= row.kind != ChangeKind::Delete;
            touched.gives_values_up |= row.kind != ChangeKind::Insert;
        }
    }
    tables.values().any(|table| {
        let is_shared = table.several_turns && table.several_rows;
        is_shared && table.takes_values && table.gives_values_up
    })
}

/// Whether a row refers to a value that only a later turn writes.
fn refers_forward<'t>(turns: impl Iterator<Item = &'t CommitBatch> + Clone) -> bool {
    let may_be_new = |row: &RowChange, position: usize| match (row.kind, position) {
        (ChangeKind::Insert, 0) => true,
        // The id of an updated row was there before.
        (ChangeKind::Update, 0) | (ChangeKind::Delete, _) => false,
        (ChangeKind::Insert | ChangeKind::Update, _) => row.table.rules.is_key(position),
    };
    // The last turn that writes each value.
    let written: HashMap<Comparable<'_>, usize> = turns
        .clone()
        .enumerate()
        .flat_map(|(turn, batch)| batch.changes.iter().map(move |row| (turn, row)))
        .flat_map(|(turn, row)| {
            let new = row.values.iter().enumerate();
            new.filter(move |(position, _)| may_be_new(row, *position))
                .map(move |(_, value)| (Comparable(value), turn))
        })
        .collect();
    let mut referring = turns.enumerate().flat_map(|(turn, batch)| {
        let rows = batch.changes.iter().filter(|row| row.kind != ChangeKind::Delete);
        let rows = rows.filter(|row| row.table.rules.refers);
        rows.map(move |row| (turn, row))
    });
    referring.any(|(turn, row)| {
        let mut values = row.values.iter().enumerate();
        values.any(|(position, value)| {
            // The id of the row itself is not what it refers to.
            position != 0
                && *value != Value::Null
                && row.table.rules.watches(position)
                && written.get(&Comparable(value)).is_some_and(|last| *last > turn)
        })
    })
}

/// A value as the key of a map.
#[derive(PartialEq)]
struct Comparable<'v>(&'v Value);

// Not a number is a value that no reference has.
impl Eq for Comparable<'_> {}

impl Hash for Comparable<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.0 {
            // Zero equals the zero with a sign, and has other bits.
            Value::Null | Value::Float(_) => {}
            Value::Bool(value) => value.hash(state),
            Value::Int(value) => value.hash(state),
            Value::Text(value) | Value::Json(value) => value.hash(state),
            Value::Bytes(value) => value.hash(state),
            Value::Uuid(value) => value.hash(state),
            Value::Decimal(value) => value.hash(state),
            Value::Date(value) => value.hash(state),
            Value::Timestamp(value) => value.hash(state),
        }
    }
}

/// Whether the column accepts the value for sure. The database never sees a value that is left
/// out, so it cannot refuse one that does not fit.
fn surely_fits(value: &Value, column: &ColumnInfo) -> bool {
    let ty = column.db_type.to_ascii_lowercase();
    match value {
        Value::Bool(_) | Value::Uuid(_) => true,
        // Its digits were compared with those of the column when the change was staged.
        Value::Decimal(_) => true,
        Value::Int(number) => {
            let is_wide = matches!(&*ty, "int8" | "integer") || ty.starts_with("bigint");
            let is_small = i16::try_from(*number).is_ok() && !ty.starts_with("tinyint");
            (is_wide || is_small) && (*number >= 0 || !ty.contains("unsigned"))
        }
        Value::Float(number) => number.is_finite() && ty != "float4",
        Value::Text(text) => {
            let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
            let most = column.length.map(|most| most as usize).or_else(|| in_parentheses(&ty));
            let most = most.unwrap_or(if ty.starts_with("tiny") { 255 } else { 65_535 });
            is_plain && !column.is_enum && text.len() <= most && !text.ends_with(' ')
        }
        Value::Bytes(bytes) => matches!(&*ty, "bytea" | "blob") && bytes.len() <= 65_535,
        Value::Date(day) => (1000..=9999).contains(&day.year()),
        // MySQL's `timestamp` ends in 2038.
        Value::Timestamp(at) if ty.starts_with("timestamp(") => (1971..=2037).contains(&at.year()),
        Value::Timestamp(at) => (1000..=9999).contains(&at.year()),
        Value::Null | Value::Json(_) => false,
    }
}

/// The number in `varchar(64)`.
fn in_parentheses(db_type: &str) -> Option<usize> {
    db_type.split_once('(')?.1.split_once(')')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::db::fixtures::{WALLETS, change, column, table};
    use crate::db::{ActionId, Rule, Rules, TableInfo};

    /// Turns that each change one row of a table whose balances differ from row to row.
    fn turns(kinds: &[ChangeKind]) -> Vec<CommitBatch> {
        let rules = Rules::of(&WALLETS, vec![Rule::Comparison(vec!["balance".to_owned()])]);
        let info = Arc::into_inner(table(&WALLETS, |_| "text")).unwrap();
        let info = Arc::new(TableInfo { rules, ..info });
        let turn = |(n, kind): (u128, &ChangeKind)| CommitBatch {
            action: ActionId(Uuid::nil()),
            changes: vec![RowChange { id: Uuid::from_u128(n), ..change(&info, *kind) }],
            expected: Vec::new(),
            records: Vec::new(),
            fences: Vec::new(),
            traceable: true,
            turns: Vec::new(),
        };
        (0..).zip(kinds).map(turn).collect()
    }

    #[test]
    fn turns_that_delete_different_rows_may_be_merged() {
        use ChangeKind::{Delete, Insert, Update};
        for (kinds, merges) in [
            (&[Delete, Delete][..], true),
            (&[Insert, Insert][..], true),
            // The new row may take the balance that the deleted row gives up.
            (&[Delete, Insert][..], false),
            (&[Update, Delete][..], false),
        ] {
            assert_eq!(may_merge(turns(kinds).iter()), merges, "{kinds:?}");
        }
    }

    /// A comparison of each reference with each value would take minutes.
    #[test]
    fn the_references_of_a_large_group_are_looked_up() {
        const ROWS: u128 = 1_500;
        let rules = Rules::of(&WALLETS, vec![Rule::Reference(vec!["created_date".to_owned()])]);
        let info = Arc::into_inner(table(&WALLETS, |_| "text")).unwrap();
        let info = Arc::new(TableInfo { rules, ..info });
        let id = |turn: u128, row: u128| Value::Uuid(Uuid::from_u128(turn << 64 | row));
        let turn = |turn: u128, parent: Value| {
            let row = |row| {
                let values =
                    vec![id(turn, row), Value::Null, Value::Int(1), parent.clone(), Value::Null];
                RowChange {
                    values: values.into(),
                    id: Uuid::from_u128(turn << 64 | row),
                    ..change(&info, ChangeKind::Insert)
                }
            };
            CommitBatch {
                changes: (0..ROWS).map(row).collect(),
                ..turns(&[ChangeKind::Insert]).remove(0)
            }
        };
        let group = |parent_of_one: Value| -> Vec<CommitBatch> {
            let there = Value::Uuid(Uuid::nil());
            let parents =
                (0..80).map(|n| if n == 40 { parent_of_one.clone() } else { there.clone() });
            (0..).zip(parents).map(|(n, parent)| turn(n, parent)).collect()
        };
        assert!(may_merge(group(Value::Null).iter()));
        assert!(may_merge(group(id(39, 7)).iter()));
        assert!(!may_merge(group(id(41, 7)).iter()));
    }

    #[test]
    fn a_value_that_a_column_might_refuse_does_not_surely_fit() {
        let text = |text: &str| Value::Text(text.to_owned());
        for (value, db_type, fits) in [
            (text("12345678"), "varchar(8)", true),
            (text("123456789"), "varchar(8)", false),
            (text("with a zero \0"), "text", false),
            (text("ü"), "varchar(8)", false),
            (Value::Int(40_000), "int4", false),
            (Value::Int(40_000), "bigint(20)", true),
            (Value::Int(-1), "bigint unsigned", false),
            (Value::Int(200), "tinyint", false),
            (Value::Float(f64::NAN), "double", false),
            (Value::Null, "text", false),
        ] {
            assert_eq!(surely_fits(&value, &column("c", db_type)), fits, "{value:?} in {db_type}");
        }
    }
}
