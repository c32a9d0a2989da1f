//! Typed ids: UUID v7, monotonic within a generator.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::{ContextV7, Timestamp, Uuid};

use super::{Comparable, Entity, Field, FieldError, Value, ValueType};
use crate::clock::{Clock, SystemClock};

/// The id of an `M`: a UUID that cannot be taken for the id of something else.
pub struct Id<M> {
    uuid: Uuid,
    of: PhantomData<fn() -> M>,
}

impl<M> Id<M> {
    /// A new id from the process's generator and the system's clock.
    ///
    /// Within an action prefer `ctx.new_id()`, which follows the executor's clock.
    #[allow(clippy::new_without_default)] // two defaults would never be equal
    pub fn new() -> Self {
        static PROCESS: LazyLock<IdGenerator> =
            LazyLock::new(|| IdGenerator::new(Arc::new(SystemClock)));
        PROCESS.generate()
    }

    /// The id with this UUID, of whatever version it is.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self { uuid, of: PhantomData }
    }

    /// The UUID.
    pub const fn uuid(&self) -> Uuid {
        self.uuid
    }
}

/// Draws ids from a clock: UUID v7, each greater than the one before it, also when the
/// clock stands still or goes back.
#[derive(Clone)]
pub struct IdGenerator {
    clock: Arc<dyn Clock>,
    context: Arc<Mutex<ContextV7>>,
}

impl IdGenerator {
    /// A generator over `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, context: Arc::new(Mutex::new(ContextV7::new())) }
    }

    /// The next id.
    pub fn generate<M>(&self) -> Id<M> {
        Id::from_uuid(self.next_uuid())
    }

    /// The next id, untyped.
    pub fn next_uuid(&self) -> Uuid {
        let now = self.clock.now();
        let seconds = u64::try_from(now.timestamp()).unwrap_or(0);
        let context = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        Uuid::new_v7(Timestamp::from_unix(&*context, seconds, now.timestamp_subsec_nanos()))
    }
}

impl fmt::Debug for IdGenerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdGenerator").finish_non_exhaustive()
    }
}

/// An id that leads to its entity's type, so that `ctx.get(id)` needs no type argument.
pub trait EntityId: Copy + fmt::Display + Send + Sync + 'static {
    /// What the id is the id of.
    type Entity: Entity<Id = Self>;
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

impl<M: 'static> Field for Id<M> {
    const TYPE: ValueType = ValueType::Uuid;

    fn to_value(&self) -> Result<Value, FieldError> {
        Ok(Value::Uuid(self.uuid))
    }

    fn from_value(value: Value) -> Result<Self, FieldError> {
        Uuid::from_value(value).map(Self::from_uuid)
    }
}

impl<M: 'static> Comparable for Id<M> {}

impl<M> Clone for Id<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Id<M> {}

impl<M> PartialEq for Id<M> {
    fn eq(&self, other: &Self) -> bool {
        self.uuid == other.uuid
    }
}

impl<M> Eq for Id<M> {}

impl<M> PartialOrd for Id<M> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<M> Ord for Id<M> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.uuid.cmp(&other.uuid)
    }
}

impl<M> Hash for Id<M> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.uuid.hash(state);
    }
}

impl<M> fmt::Debug for Id<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.uuid, f)
    }
}

impl<M> fmt::Display for Id<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.uuid, f)
    }
}

impl<M> FromStr for Id<M> {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::from_str(text).map(Self::from_uuid)
    }
}

impl<M> From<Uuid> for Id<M> {
    fn from(uuid: Uuid) -> Self {
        Self::from_uuid(uuid)
    }
}

impl<M> From<Id<M>> for Uuid {
    fn from(id: Id<M>) -> Self {
        id.uuid
    }
}

impl<M> Serialize for Id<M> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.uuid.serialize(serializer)
    }
}

impl<'de, M> Deserialize<'de> for Id<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Uuid::deserialize(deserializer).map(Self::from_uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::{DateTime, TimeDelta, Utc};

    struct Wallet;
    struct Backwards(Mutex<DateTime<Utc>>);

    impl Clock for Backwards {
        fn now(&self) -> DateTime<Utc> {
            let mut now = self.0.lock().unwrap();
            *now -= TimeDelta::milliseconds(7);
            *now
        }
    }

    #[test]
    fn ids_grow_even_when_the_clock_goes_back() {
        let ids = IdGenerator::new(Arc::new(Backwards(Mutex::new(Utc::now()))));
        let drawn: Vec<Id<Wallet>> = (0..10_000).map(|_| ids.generate()).collect();
        assert!(drawn.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(drawn.iter().all(|id| id.uuid().get_version_num() == 7));
    }

    #[test]
    fn ids_follow_the_injected_clock() {
        struct Fixed;
        impl Clock for Fixed {
            fn now(&self) -> DateTime<Utc> {
                DateTime::from_timestamp(1_000_000_000, 0).unwrap()
            }
        }
        let id: Id<Wallet> = IdGenerator::new(Arc::new(Fixed)).generate();
        assert_eq!(id.uuid().get_timestamp().unwrap().to_unix().0, 1_000_000_000);
    }

    #[test]
    fn ids_are_equal_by_uuid_and_travel_as_text() {
        let id: Id<Wallet> = Id::new();
        assert_eq!(id, id.to_string().parse().unwrap());
        assert_eq!(id, serde_json::from_str(&serde_json::to_string(&id).unwrap()).unwrap());
        assert_ne!(id, Id::new());
    }
}
