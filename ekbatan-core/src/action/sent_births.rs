//! The births of a batch that a lane may have.
//!
//! Invariant: nodes are told of a batch only if it is committed. If the caller goes or the answer
//! is lost, a task finds out. Where that fails, nodes find the deliveries by their checks.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::db::{ActionId, CommitError, Database};
use crate::outbox::deliveries::{Births, stored_events};

/// Births that are told to nodes once it is known whether their batch is committed.
pub(super) struct SentBirths {
    births: Option<Births>,
    database: Arc<Database>,
    /// The action under whose id the lanes know the batch.
    action: ActionId,
}

impl SentBirths {
    pub(super) fn new(births: Births, database: &Arc<Database>, action: ActionId) -> Self {
        Self { births: Some(births), database: database.clone(), action }
    }

    /// Takes note of the answer to the commit.
    pub(super) fn answered<T>(mut self, answer: &Result<T, CommitError>) {
        match answer {
            Ok(_) => self.births.take().into_iter().for_each(|births| tell(births, &self.database)),
            // When this is dropped, the commit is looked up.
            Err(CommitError::Unknown(..)) => {}
            Err(_) => self.births = None,
        }
    }
}

impl Drop for SentBirths {
    fn drop(&mut self) {
        let Some(births) = self.births.take() else { return };
        let (Some(event), Ok(runtime)) = (births.owned_event(), Handle::try_current()) else {
            return;
        };
        let (database, action) = (self.database.clone(), self.action);
        runtime.spawn(async move {
            database.settled(action).await;
            // Not by the action: another attempt of it may be the one that is committed.
            match stored_events(&database, vec![event], Some(0)).await {
                Ok(events) if events.is_empty() => {}
                Ok(_) => tell(births, &database),
                Err(error) => {
                    tracing::debug!(%error, %action, "whether deliveries are committed is unknown; the next check finds them");
                }
            }
        });
    }
}

/// Tells nodes that a batch is committed; those of other processes only of what nobody has claimed.
fn tell(births: Births, database: &Database) {
    if births.committed() {
        database.doorbell.ring();
    }
}
