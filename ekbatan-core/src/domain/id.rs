//! Typed ids.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, LazyLock};

use uuid::Uuid;

use super::typed_uuid::typed_uuid;
use super::{Entity, IdGenerator};
use crate::clock::SystemClock;

/// The id of an `M`. Ids of different types cannot be mixed up.
pub struct Id<M> {
    uuid: Uuid,
    of: PhantomData<fn() -> M>,
}

impl<M> Id<M> {
    /// A new id, from a generator of the process and the system clock.
    ///
    /// In an action prefer `ctx.new_id()`, which uses the executor's clock.
    #[allow(clippy::new_without_default)] // two defaults would never be equal
    pub fn new() -> Self {
        static PROCESS: LazyLock<IdGenerator> =
            LazyLock::new(|| IdGenerator::new(Arc::new(SystemClock)));
        PROCESS.generate()
    }

    /// The id with this UUID, of any version.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self { uuid, of: PhantomData }
    }

    /// The UUID.
    pub const fn uuid(&self) -> Uuid {
        self.uuid
    }
}

/// An id that determines the type of its entity, so that `ctx.get(id)` needs no type argument.
pub trait EntityId: Copy + fmt::Display + Send + Sync + 'static {
    /// The entity of the id.
    type Entity: Entity<Id = Self>;
    /// Whether the id contains the shard of its row.
    const CARRIES_SHARD: bool = false;
    /// The UUID in the database.
    fn uuid(&self) -> Uuid;
    /// The id with this UUID.
    fn from_uuid(uuid: Uuid) -> Self;
}

impl<M: Entity<Id = Id<M>>> EntityId for Id<M> {
    type Entity = M;

    fn uuid(&self) -> Uuid {
        self.uuid
    }

    fn from_uuid(uuid: Uuid) -> Self {
        Id::from_uuid(uuid)
    }
}

typed_uuid!(Id);

#[cfg(test)]
mod tests {
    use super::*;

    struct Wallet;

    #[test]
    fn ids_are_equal_by_uuid_and_travel_as_text() {
        let id: Id<Wallet> = Id::new();
        assert_eq!(id, id.to_string().parse().unwrap());
        assert_eq!(id, serde_json::from_str(&serde_json::to_string(&id).unwrap()).unwrap());
        assert_ne!(id, Id::new());
    }
}
