//! What an action sees while it runs.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::ActionPlan;
use crate::clock::to_micros;
use crate::db::ActionId;
use crate::domain::{Entity, EntityId, Id, IdGenerator, ShardIdentifier, ShardedId, Stored};
use crate::repository::{PendingReads, ReadError, Repository};
use crate::shard::{Databases, Fencing};

/// One attempt of one execution: reads, the plan, and who asks for it.
///
/// The plan is reached through the context alone, so that an action has one plan and one
/// writer of it by the rules of borrowing.
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
    /// The row with this id, as the primary has it; an error if there is none.
    ///
    /// Where calls are [coalesced](super::Coalesced), it is the row that the calls before
    /// this one will leave, which are committed with it.
    pub async fn get<I: EntityId>(&self, id: I) -> Result<Stored<I::Entity>, ReadError> {
        self.repository::<I::Entity>().get(id).await
    }

    /// The row with this id, as the primary has it, if there is one.
    pub async fn find<I: EntityId>(&self, id: I) -> Result<Option<Stored<I::Entity>>, ReadError> {
        self.repository::<I::Entity>().find(id).await
    }

    /// Every read there is, on the primary. Under a lease the first read of a shard raises the
    /// fence there, so that no earlier lease can commit on it any more; one by id does so in
    /// its own trip.
    pub fn repository<T: Entity>(&self) -> Repository<T> {
        Repository::new(
            Arc::clone(&self.databases.shards),
            Arc::clone(&self.databases.clock),
            self.name,
        )
        .with_pending(self.pending.clone())
        .fenced(self.fencing.clone())
    }

    /// Every read there is, on the replica, which may lag, also behind a fence: it raises none.
    pub fn replica<T: Entity>(&self) -> Repository<T> {
        self.repository().on_replica()
    }

    /// Where changes are staged.
    pub fn plan(&mut self) -> &mut ActionPlan {
        &mut self.plan
    }

    /// A new id, by the executor's clock.
    pub fn new_id<M>(&self) -> Id<M> {
        self.ids.generate()
    }

    /// A new id of a row on `shard`, by the executor's clock.
    pub fn new_sharded_id<M>(&self, shard: ShardIdentifier) -> ShardedId<M> {
        self.ids.generate_on(shard)
    }

    /// When this attempt began, to the microsecond, by the executor's clock.
    pub fn now(&self) -> DateTime<Utc> {
        to_micros(self.now)
    }

    /// The identity of the execution, the same in every attempt.
    pub fn action_id(&self) -> ActionId {
        self.action
    }

    /// Who asks, if the caller said so.
    pub fn principal(&self) -> Option<&str> {
        self.principal
    }

    /// Why, if the caller said so.
    pub fn reason(&self) -> Option<&str> {
        self.reason
    }

    /// Which attempt this is, the first being 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}
