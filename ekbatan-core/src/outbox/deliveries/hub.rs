//! What the calls of an executor and the nodes of its process tell each other.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;
use uuid::Uuid;

use super::{DeliveryOwner, OwnedHandler, Subscriptions};
use crate::domain::ShardIdentifier;

/// The subscriptions that the commits of an executor fan out to, the nodes that claim deliveries as
/// they are inserted, and the signal that there are deliveries that nobody has claimed.
#[derive(Debug, Default)]
pub struct DeliveryHub {
    subscriptions: RwLock<HashMap<ShardIdentifier, Arc<Subscriptions>>>,
    owners: RwLock<HashMap<ShardIdentifier, Vec<Arc<DeliveryOwner>>>>,
    committed: watch::Sender<()>,
}

/// A node that commits know. They know it until this is dropped.
#[derive(Debug)]
pub struct Ownership {
    hub: Arc<DeliveryHub>,
    shard: ShardIdentifier,
    owner: Arc<DeliveryOwner>,
}

impl DeliveryHub {
    /// Lets later commits on a shard fan out to these subscriptions, unless it knows later ones: a pause since
    /// then must not be lost.
    pub fn set(&self, shard: ShardIdentifier, subscriptions: Arc<Subscriptions>) {
        let mut known = self.subscriptions.write().unwrap_or_else(PoisonError::into_inner);
        let versions = subscriptions.versions();
        if known.get(&shard).is_none_or(|known| known.versions() <= versions) {
            known.insert(shard, subscriptions);
        }
    }

    /// The subscriptions of a shard; `None` if nothing in this process knows them.
    pub fn of(&self, shard: ShardIdentifier) -> Option<Arc<Subscriptions>> {
        self.subscriptions.read().unwrap_or_else(PoisonError::into_inner).get(&shard).cloned()
    }

    /// Lets the commits on a shard give deliveries to a node.
    pub fn own(
        self: &Arc<Self>,
        shard: ShardIdentifier,
        node: Uuid,
        handlers: Vec<OwnedHandler>,
    ) -> Ownership {
        let owner = Arc::new(DeliveryOwner::new(node, handlers));
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        owners.entry(shard).or_default().push(owner.clone());
        Ownership { hub: self.clone(), shard, owner }
    }

    /// The nodes of this process on a shard. Each knows only what it holds itself.
    pub(super) fn owners(&self, shard: ShardIdentifier) -> Vec<Arc<DeliveryOwner>> {
        let owners = self.owners.read().unwrap_or_else(PoisonError::into_inner);
        owners.get(&shard).cloned().unwrap_or_default()
    }

    /// A receiver that changes after each commit with deliveries that nobody has claimed.
    pub fn commits(&self) -> watch::Receiver<()> {
        self.committed.subscribe()
    }

    /// Says that there are such deliveries.
    pub(super) fn committed(&self) {
        if self.committed.receiver_count() > 0 {
            self.committed.send_replace(());
        }
    }
}

impl Deref for Ownership {
    type Target = DeliveryOwner;

    fn deref(&self) -> &DeliveryOwner {
        &self.owner
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        self.owner.close();
        let mut owners = self.hub.owners.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_shard) = owners.get_mut(&self.shard) {
            of_shard.retain(|owner| !Arc::ptr_eq(owner, &self.owner));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Id;
    use crate::outbox::deliveries::{Subscription, SubscriptionState, Wanted};

    #[test]
    fn what_was_read_before_a_pause_does_not_end_it() {
        let read = |state, states| {
            let row = Subscription {
                id: Id::from_uuid(Uuid::now_v7()),
                handler: "ledger".to_owned(),
                event_type: Wanted::All.text(),
                since: 8,
                since_date: None,
                state,
            };
            Arc::new(Subscriptions::new(8, [row]).with_states(states))
        };
        let (hub, shard) = (DeliveryHub::default(), ShardIdentifier::DEFAULT);
        hub.set(shard, read(SubscriptionState::Paused, 2));
        hub.set(shard, read(SubscriptionState::Active, 1));
        assert!(hub.of(shard).unwrap().is_paused("ledger"));
        hub.set(shard, read(SubscriptionState::Active, 3));
        assert!(!hub.of(shard).unwrap().is_paused("ledger"));
    }
}
