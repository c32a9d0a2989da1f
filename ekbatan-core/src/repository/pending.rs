//! Rows that no database has yet: those that the calls leave which are committed together
//! with the one that reads.

use super::Repository;
use crate::action::Pending;
use crate::domain::{Entity, EntityId, Stored};

impl<T: Entity> Repository<T> {
    /// The row as it will be, or that it will be deleted; nothing where the database knows.
    pub(super) async fn pending_row(&self, id: T::Id) -> Option<Option<Stored<T>>> {
        match self.pending.as_ref()?.find(id.uuid()) {
            Pending::Unknown => None,
            Pending::Row(row) => Some(Some(row)),
            Pending::Deleted => Some(None),
            Pending::Other => {
                self.settle_pending().await;
                None
            }
        }
    }

    /// The rows as they will be, and the ids of which the database knows.
    pub(super) async fn pending_rows(&self, ids: &[T::Id]) -> (Vec<Stored<T>>, Vec<T::Id>) {
        if self.pending.is_none() {
            return (Vec::new(), ids.to_vec());
        }
        let mut rows: Vec<Stored<T>> = Vec::new();
        let mut others = Vec::new();
        for id in ids {
            match self.pending_row(*id).await {
                None => others.push(*id),
                Some(Some(row))
                    if rows.iter().all(|known| known.value.id().uuid() != id.uuid()) =>
                {
                    rows.push(row);
                }
                Some(_) => {}
            }
        }
        (rows, others)
    }

    /// Makes the database able to answer: whatever of this table is pending is committed.
    pub(super) async fn settle_pending(&self) {
        if let Some(seat) = &self.pending {
            seat.settle(T::TABLE.key()).await;
        }
    }
}
