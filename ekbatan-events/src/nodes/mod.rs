//! What the nodes of a shard know of each other: their rows, and the subscriptions of their handlers.

pub(crate) mod alive;
pub(crate) mod fences;
pub(crate) mod membership;
pub(crate) mod registration;
pub(crate) mod subscription_changes;
