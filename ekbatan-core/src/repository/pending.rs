//! Rows that are staged by earlier calls of the same group and are not in any database yet.
//!
//! A [`Repository`](super::Repository) with a [`PendingReads`] answers reads by id from these
//! rows. Before it asks the database about a whole table, it has them committed. It also tells
//! the [`PendingReads`] which rows it reads.

use std::any::Any;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use uuid::Uuid;

use crate::domain::{Entity, EntityId, State, Stored, TableKey};

/// The table and the id of a row.
pub(crate) type RowKey = (TableKey, Uuid);

/// Answers reads from pending rows.
pub(crate) trait PendingReads: Send + Sync {
    /// Returns the pending state of a row; `None` if no pending call stages the row.
    fn find(&self, key: RowKey) -> Option<PendingRow>;

    /// Commits the pending rows of a table, so that the database can answer for it. Returns
    /// `None` if there are none.
    fn settle(&self, table: TableKey) -> Option<BoxFuture<'_, ()>>;

    /// Called before a row is read by its id, and after a row is found otherwise. Returns whether
    /// the reader has to yield once, so that the call can give up its attempt.
    fn meet(&self, _model: &'static str, _id: Uuid) -> bool {
        false
    }
}

/// A row as a plan stages it. Cloning it does not copy the value.
#[derive(Clone)]
pub(crate) struct PendingRow {
    pub(crate) key: RowKey,
    stored: Arc<dyn Any + Send + Sync>,
    pub(super) deleted: bool,
}

impl PendingRow {
    pub(crate) fn new<T: Entity>(stored: &Stored<T>) -> Self {
        let deleted = T::TABLE.state.is_some() && stored.value.state().as_str() == "DELETED";
        Self {
            key: (T::TABLE.key(), stored.value.id().uuid()),
            stored: Arc::new(stored.clone()),
            deleted,
        }
    }

    /// The row as a value of `T`; `None` if another type of the same table staged it.
    pub(super) fn stored<T: Entity>(&self) -> Option<&Stored<T>> {
        self.stored.downcast_ref()
    }
}
