//! The rows that the calls of a group stage, before any database has them.

use std::collections::HashMap;

use crate::domain::TableKey;
use crate::repository::{PendingRow, RowKey};

/// The last state that the calls of a group stage for each row.
#[derive(Default)]
pub(super) struct Overlay(HashMap<RowKey, PendingRow>);

impl Overlay {
    pub(super) fn extend(&mut self, rows: Vec<PendingRow>) {
        self.0.extend(rows.into_iter().map(|row| (row.key, row)));
    }

    pub(super) fn find(&self, key: RowKey) -> Option<&PendingRow> {
        self.0.get(&key)
    }

    pub(super) fn has_rows_of(&self, table: TableKey) -> bool {
        self.0.keys().any(|(of, _)| *of == table)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
