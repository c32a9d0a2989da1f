//! What tells nodes that subscriptions have changed.

use ekbatan_macros::{Entity, State};
use uuid::Uuid;

use crate::domain::Id;

/// A row whose version counts changes.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "eventlog.subscription_registry")]
pub struct SubscriptionRegistry {
    /// What is counted.
    pub id: Id<SubscriptionRegistry>,
    /// Has no meaning.
    pub state: RegistryState,
}

/// The only state of such a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
pub enum RegistryState {
    /// It counts.
    Active,
}

impl SubscriptionRegistry {
    /// Counts registrations: its version is the generation of a shard's subscriptions.
    pub const GENERATION: Id<Self> = Id::from_uuid(Uuid::nil());

    /// Counts how often operators paused, resumed or retired handlers.
    pub const STATES: Id<Self> = Id::from_uuid(Uuid::from_u128(1));
}
