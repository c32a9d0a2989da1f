//! The context of a running action.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::ActionPlan;
use crate::clock::to_micros;
use crate::db::ActionId;
use crate::domain::{Entity, EntityId, Id, IdGenerator, ShardIdentifier, ShardedId, Stored};
use crate::repository::{PendingReads, ReadError, Repository};
use crate::shard::{Databases, Fencing};

/// One attempt of a call: reads, the plan, and what the caller set.
///
/// The plan is reached only through the context, so the borrow checker ensures that an action
/// has one plan and one writer of it.
pub struct ActionContext<'a> {
    pub(super) databases: &'a Databases,
    pub(super) pending: Option<Arc<dyn PendingReads>>,
    pub(super) fencing: Option<Arc<Fencing>>,
    pub(super) ids: &'a IdGenerator,
    pub(super) name: &'static str,
    pub(super) action: ActionId,
    pub(super) principal: Option<&'a str>,
    pub(super) reason: Option<&'a str>,
    pub(super) attempt: u32,
    pub(super) now: DateTime<Utc>,
    pub(super) plan: ActionPlan,
}

impl ActionContext<'_> {
    /// Returns the row with this id from the primary; an error if there is none.
    ///
    /// A [coalesced](super::Coalesced) call reads the row as the earlier calls of its group
    /// stage it, which are committed together with this one.
    pub async fn get<I: EntityId>(&self, id: I) -> Result<Stored<I::Entity>, ReadError> {
        self.repository::<I::Entity>().get(id).await
    }

    /// Returns the row with this id from the primary, if there is one.
    pub async fn find<I: EntityId>(&self, id: I) -> Result<Option<Stored<I::Entity>>, ReadError> {
        self.repository::<I::Entity>().find(id).await
    }

    /// All reads of a table, on the primary. Under a lease the first read on a shard raises the
    /// fence there, so that no earlier lease can commit on that shard any more. A read by id
    /// does so in the same round trip.
    pub fn repository<T: Entity>(&self) -> Repository<T> {
        Repository::new(
            Arc::clone(&self.databases.shards),
            Arc::clone(&self.databases.clock),
            self.name,
        )
        .with_pending(self.pending.clone())
        .fenced(self.fencing.clone())
    }

    /// All reads of a table, on the replica, which may lag. They raise no fence.
    pub fn replica<T: Entity>(&self) -> Repository<T> {
        self.repository().on_replica()
    }

    /// The plan, on which changes are staged.
    pub fn plan(&mut self) -> &mut ActionPlan {
        &mut self.plan
    }

    /// Creates an id, by the executor's clock.
    pub fn new_id<M>(&self) -> Id<M> {
        self.ids.generate()
    }

    /// Creates the id of a row on `shard`, by the executor's clock.
    pub fn new_sharded_id<M>(&self, shard: ShardIdentifier) -> ShardedId<M> {
        self.ids.generate_on(shard)
    }

    /// The time when this attempt began, to the microsecond, by the executor's clock.
    pub fn now(&self) -> DateTime<Utc> {
        to_micros(self.now)
    }

    /// The identity of the call, the same in every attempt.
    pub fn action_id(&self) -> ActionId {
        self.action
    }

    /// Who makes the call, if the caller set it.
    pub fn principal(&self) -> Option<&str> {
        self.principal
    }

    /// The reason of the call, if the caller set it.
    pub fn reason(&self) -> Option<&str> {
        self.reason
    }

    /// The number of this attempt; the first is 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

impl std::fmt::Debug for ActionContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActionContext")
            .field("action", &self.name)
            .field("id", &self.action)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}
