//! The generator of ids: UUIDs of version 7, increasing within a generator.

use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use chrono::{DateTime, Utc};
use uuid::{ContextV7, Timestamp, Uuid};

use super::sharded_id::compose;
use super::{Id, ShardIdentifier, ShardedId};
use crate::clock::{Clock, SystemClock};

/// The largest value of the twelve counter bits.
const MAX_COUNTER: u16 = 0xFFF;

/// Generates ids from a clock. Each [`Id`] is greater than the last `Id`, and each [`ShardedId`]
/// greater than the last `ShardedId`, even if the clock stops or goes back.
#[derive(Clone)]
pub struct IdGenerator {
    clock: Arc<dyn Clock>,
    context: Arc<Mutex<ContextV7>>,
    sharded: Arc<Mutex<Count>>,
}

/// The millisecond and the counter of the last sharded id.
#[derive(Default)]
struct Count {
    milliseconds: u64,
    counter: u16,
}

impl Count {
    /// The next counter. After the last counter of a millisecond it continues in the next millisecond.
    fn next(&mut self, now: u64, random: u16) -> (u64, u16) {
        // Leave at least half of the range to count in.
        let fresh = random & (MAX_COUNTER >> 1);
        if now > self.milliseconds {
            (self.milliseconds, self.counter) = (now, fresh);
        } else if self.counter < MAX_COUNTER {
            self.counter += 1;
        } else {
            (self.milliseconds, self.counter) = (self.milliseconds + 1, fresh);
        }
        (self.milliseconds, self.counter)
    }
}

impl IdGenerator {
    /// A generator over `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            context: Arc::new(Mutex::new(ContextV7::new())),
            sharded: Arc::new(Mutex::new(Count::default())),
        }
    }

    /// The next id.
    pub fn generate<M>(&self) -> Id<M> {
        Id::from_uuid(self.next_uuid())
    }

    /// The next id of a row on `shard`.
    pub fn generate_on<M>(&self, shard: ShardIdentifier) -> ShardedId<M> {
        let now = u64::try_from(self.clock.now().timestamp_millis()).unwrap_or(0);
        let random = Uuid::new_v4().as_u128();
        let (milliseconds, counter) = self
            .sharded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next(now, (random >> 112) as u16);
        ShardedId::from_uuid(compose(milliseconds, counter, shard, random as u64))
    }

    /// The next id, untyped.
    pub fn next_uuid(&self) -> Uuid {
        let now: DateTime<Utc> = self.clock.now();
        let seconds = u64::try_from(now.timestamp()).unwrap_or(0);
        let context = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        Uuid::new_v7(Timestamp::from_unix(&*context, seconds, now.timestamp_subsec_nanos()))
    }
}

/// The generator behind [`Id::new`] and [`ShardedId::new`].
static PROCESS: LazyLock<IdGenerator> = LazyLock::new(|| IdGenerator::new(Arc::new(SystemClock)));

impl<M> Id<M> {
    /// A new id, from a generator of the process and the system clock.
    ///
    /// In an action prefer `ctx.new_id()`, which uses the executor's clock.
    #[allow(clippy::new_without_default)] // two defaults would never be equal
    pub fn new() -> Self {
        PROCESS.generate()
    }
}

impl<M> ShardedId<M> {
    /// A new id on a shard, from a generator of the process and the system clock.
    ///
    /// In an action prefer `ctx.new_sharded_id(shard)`, which uses the executor's clock.
    pub fn new(shard: ShardIdentifier) -> Self {
        PROCESS.generate_on(shard)
    }
}

impl fmt::Debug for IdGenerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdGenerator").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;

    struct Wallet;
    struct Backwards(Mutex<DateTime<Utc>>);

    impl Clock for Backwards {
        fn now(&self) -> DateTime<Utc> {
            let mut now = self.0.lock().unwrap();
            *now -= TimeDelta::milliseconds(7);
            *now
        }
    }

    struct Fixed;

    impl Clock for Fixed {
        fn now(&self) -> DateTime<Utc> {
            DateTime::from_timestamp(1_000_000_000, 0).unwrap()
        }
    }

    fn backwards() -> IdGenerator {
        IdGenerator::new(Arc::new(Backwards(Mutex::new(Utc::now()))))
    }

    #[test]
    fn ids_grow_even_when_the_clock_goes_back() {
        let ids = backwards();
        let drawn: Vec<Id<Wallet>> = (0..10_000).map(|_| ids.generate()).collect();
        assert!(drawn.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(drawn.iter().all(|id| id.uuid().get_version_num() == 7));
    }

    #[test]
    fn ids_that_carry_a_shard_grow_even_when_the_clock_goes_back() {
        let ids = backwards();
        let shard = |n: u32| ShardIdentifier::new(n * 31 % 256, n % 64).unwrap();
        let drawn: Vec<ShardedId<Wallet>> =
            (0..10_000).map(|n| ids.generate_on(shard(n))).collect();
        assert!(drawn.windows(2).all(|pair| pair[0] < pair[1]));
        assert!((0..).zip(&drawn).all(|(n, id)| id.shard() == Some(shard(n))));
    }

    #[test]
    fn ids_follow_the_injected_clock() {
        let ids = IdGenerator::new(Arc::new(Fixed));
        let id: Id<Wallet> = ids.generate();
        assert_eq!(id.uuid().get_timestamp().unwrap().to_unix().0, 1_000_000_000);
        let id: ShardedId<Wallet> = ids.generate_on(ShardIdentifier::DEFAULT);
        assert_eq!(id.instant(), DateTime::from_timestamp(1_000_000_000, 0));
    }

    #[test]
    fn a_millisecond_that_is_used_up_borrows_from_the_next() {
        let mut count = Count::default();
        assert_eq!(count.next(5, 0xFFFF), (5, 0x7FF));
        for n in 0x800..=0xFFF {
            assert_eq!(count.next(5, 0), (5, n));
        }
        assert_eq!(count.next(5, 3), (6, 3));
        assert_eq!(count.next(5, 0), (6, 4), "what was borrowed is not given back");
        assert_eq!(count.next(7, 9), (7, 9));
    }
}
