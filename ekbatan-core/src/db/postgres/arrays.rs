//! How a statement reads the rows of a group, which are sent as one array for each column.
//!
//! A list in `unnest` costs the server a table in memory of 16 kB, however few rows there are. A value that is read by the
//! number of its row does not. But to find a text, a number of any length or a value after a null, the server
//! counts from the beginning of the array. Those columns are lists.

use std::fmt::Write as _;

use super::syntax::wire_type;
use crate::db::{ChangeKind, ColumnInfo, TableInfo};
use crate::domain::ValueType;

/// The values of one column.
pub(super) struct Array<'t> {
    /// The position of the column.
    pub(super) position: usize,
    pub(super) column: &'t ColumnInfo,
    /// As the text of the statement has it, `$3::uuid[]`.
    pub(super) parameter: String,
    is_list: bool,
}

impl Array<'_> {
    /// The value of a row of [`rows`].
    pub(super) fn value(&self) -> String {
        let Self { position, parameter, is_list, .. } = self;
        if *is_list { format!("v.c{position}") } else { format!("({parameter})[v.n]") }
    }
}

/// The arrays of the columns that a change writes. Keys and versions of rows that are there already are lists,
/// because they are compared with the table.
pub(super) fn arrays(
    table: &TableInfo,
    kind: ChangeKind,
    mut parameter: impl FnMut(&str) -> String,
) -> Vec<Array<'_>> {
    let array = |(position, column)| {
        let is_compared = kind.is_guarded() && is_key_or_version(table, position);
        let parameter = parameter(wire_type(table.table.columns[position].ty));
        Array {
            position,
            column,
            parameter,
            is_list: is_compared || !has_known_places(table, position),
        }
    };
    written(table, kind).map(array).collect()
}

/// The columns that a change binds, with their positions.
pub(super) fn written(
    table: &TableInfo,
    kind: ChangeKind,
) -> impl Iterator<Item = (usize, &ColumnInfo)> {
    kind.written(table).map(|position| (position, &table.columns[position]))
}

pub(super) fn is_key_or_version(table: &TableInfo, position: usize) -> bool {
    position == 0 || Some(position) == table.table.version
}

/// Whether the place of a value follows from its number: if all values of the column have one width and none is null.
fn has_known_places(table: &TableInfo, position: usize) -> bool {
    let column = &table.table.columns[position];
    let has_one_width = match column.ty {
        ValueType::Bool
        | ValueType::Int
        | ValueType::Float
        | ValueType::Uuid
        | ValueType::Date
        | ValueType::Timestamp => true,
        ValueType::Text | ValueType::Json | ValueType::Bytes | ValueType::Decimal => false,
    };
    has_one_width && !column.nullable
}

/// The rows of a group as a table `v`, which has their batches, the lists, and the numbers of the rows.
pub(super) fn rows(batch: &str, arrays: &[Array<'_>]) -> String {
    let (mut lists, mut names) = (batch.to_owned(), String::from("batch"));
    for array in arrays.iter().filter(|array| array.is_list) {
        let _ = write!(lists, ", {}", array.parameter);
        let _ = write!(names, ", c{}", array.position);
    }
    format!("unnest({lists}) WITH ORDINALITY AS v({names}, n)")
}
