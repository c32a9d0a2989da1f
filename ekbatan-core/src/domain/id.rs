//! Typed ids.

use std::marker::PhantomData;

use uuid::Uuid;

use super::typed_uuid::typed_uuid;
use super::{Entity, EntityId};

/// The id of an `M`. Ids of different types cannot be mixed up.
pub struct Id<M> {
    uuid: Uuid,
    of: PhantomData<fn() -> M>,
}

impl<M> Id<M> {
    /// The id with this UUID, of any version.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self { uuid, of: PhantomData }
    }

    /// The UUID.
    pub const fn uuid(&self) -> Uuid {
        self.uuid
    }
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
