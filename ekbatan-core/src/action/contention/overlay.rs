//! The rows that the calls of a group will leave, before any database has them.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use uuid::Uuid;

use crate::domain::{Entity, EntityId, State, Stored, TableKey};

/// Which row of which table.
pub(crate) type RowKey = (TableKey, Uuid);

/// A row as a plan leaves it.
pub(crate) struct Left {
    pub(super) key: RowKey,
    stored: Arc<dyn Any + Send + Sync>,
    deleted: bool,
}

impl Left {
    pub(crate) fn new<T: Entity>(stored: &Stored<T>) -> Self {
        let hidden = T::TABLE.state.is_some() && stored.value.state().as_str() == "DELETED";
        Self {
            key: (T::TABLE.key(), stored.value.id().uuid()),
            stored: Arc::new(stored.clone()),
            deleted: hidden,
        }
    }
}

/// What a group says of a row.
pub(crate) enum Pending<T> {
    /// It knows nothing of it: the database does.
    Unknown,
    /// This is how it will be.
    Row(Stored<T>),
    /// It will be deleted.
    Deleted,
    /// It will change, and how, only another type of the same table can say.
    Other,
}

/// What the calls of a group leave, the last one's word on each row.
#[derive(Default)]
pub(super) struct Overlay(HashMap<RowKey, Left>);

impl Overlay {
    pub(super) fn leave(&mut self, rows: Vec<Left>) {
        self.0.extend(rows.into_iter().map(|row| (row.key, row)));
    }

    pub(super) fn find<T: Entity>(&self, id: Uuid) -> Pending<T> {
        match self.0.get(&(T::TABLE.key(), id)) {
            None => Pending::Unknown,
            Some(row) if row.deleted => Pending::Deleted,
            Some(row) => match row.stored.downcast_ref::<Stored<T>>() {
                Some(stored) => Pending::Row(stored.clone()),
                None => Pending::Other,
            },
        }
    }

    pub(super) fn has_rows_of(&self, table: TableKey) -> bool {
        self.0.keys().any(|(of, _)| *of == table)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
