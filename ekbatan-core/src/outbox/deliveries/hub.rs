//! What the calls of an executor and the nodes of its process tell each other.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;

use super::Subscriptions;
use crate::domain::ShardIdentifier;

/// The subscriptions that the commits of an executor fan out to, and the signal that there are new
/// deliveries.
#[derive(Debug, Default)]
pub struct DeliveryHub {
    subscriptions: RwLock<HashMap<ShardIdentifier, Arc<Subscriptions>>>,
    committed: watch::Sender<()>,
}

impl DeliveryHub {
    /// Lets later commits on a shard fan out to these subscriptions.
    pub fn set(&self, shard: ShardIdentifier, subscriptions: Arc<Subscriptions>) {
        let mut known = self.subscriptions.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(shard, subscriptions);
    }

    /// The subscriptions of a shard; `None` if nothing in this process knows them.
    pub fn of(&self, shard: ShardIdentifier) -> Option<Arc<Subscriptions>> {
        self.subscriptions.read().unwrap_or_else(PoisonError::into_inner).get(&shard).cloned()
    }

    /// A receiver that changes after each commit with events.
    pub fn commits(&self) -> watch::Receiver<()> {
        self.committed.subscribe()
    }

    /// Says that a call with events has ended.
    pub(crate) fn committed(&self) {
        if self.committed.receiver_count() > 0 {
            self.committed.send_replace(());
        }
    }
}
