//! The mark: the deletion of a delivery, which commits together with the handler's effect.

use std::sync::Arc;

use super::Delivery;
use crate::db::{Database, RowRef, StageError, Staged, stage_deleted};
use crate::domain::{Entity, FieldError, Stored};

/// Marks a delivery as handled. The commit that carries it has its effect only if the delivery is
/// still claimed as it was read.
#[derive(Clone)]
pub struct Mark {
    pub(crate) database: Arc<Database>,
    pub(crate) staged: Staged,
    handler: String,
}

impl Mark {
    /// The mark of a delivery in a database.
    pub(crate) fn new(
        database: Arc<Database>,
        delivery: &Stored<Delivery>,
    ) -> Result<Self, FieldError> {
        let staged = stage_deleted(delivery).map_err(|error| match error {
            StageError::Field { source, .. } => source,
            _ => FieldError::new("a delivery cannot be staged"),
        })?;
        Ok(Self { database, staged, handler: delivery.handler.clone() })
    }

    /// The handler.
    pub(crate) fn handler(&self) -> &str {
        &self.handler
    }

    /// Whether one of the stale rows is the delivery.
    pub(crate) fn is_among(&self, stale: &[RowRef]) -> bool {
        stale.iter().any(|row| row.id == self.staged.id && row.model == Delivery::TABLE.model)
    }
}
