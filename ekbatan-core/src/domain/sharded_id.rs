//! Ids that contain the shard of their row.
//!
//! The layout is that of the Java framework, so each framework reads the other's ids:
//!
//! ```text
//! 48 bits  milliseconds since 1970, followed by the UUID's version, 7
//! 12 bits  counter within the millisecond, followed by the UUID's variant
//!  8 bits  group
//!  6 bits  member
//! 48 bits  random
//! ```

use std::marker::PhantomData;

use chrono::{DateTime, Utc};
use uuid::{Uuid, Variant};

use super::typed_uuid::typed_uuid;
use super::{Entity, EntityId, ShardIdentifier};

/// The id of an `M` that contains the shard of its row.
///
/// ```
/// use ekbatan_core::domain::{ShardIdentifier, ShardedId};
///
/// struct Wallet;
/// let shard = ShardIdentifier::new(3, 1)?;
/// let id: ShardedId<Wallet> = ShardedId::new(shard);
/// assert_eq!(id.shard(), Some(shard));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ShardedId<M> {
    uuid: Uuid,
    of: PhantomData<fn() -> M>,
}

impl<M> ShardedId<M> {
    /// The id with this UUID. The version is not checked here; see [`shard`](Self::shard). A UUID of
    /// version 7 that was made without a shard has random bits at its place.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self { uuid, of: PhantomData }
    }

    /// The UUID.
    pub const fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The shard. `None` if the UUID is not of version 7.
    pub fn shard(&self) -> Option<ShardIdentifier> {
        shard_of(self.uuid)
    }

    /// The time of creation, in milliseconds. `None` if the UUID is not of version 7.
    pub fn instant(&self) -> Option<DateTime<Utc>> {
        shard_of(self.uuid)?;
        let milliseconds = i64::try_from(self.uuid.as_u128() >> 80).ok()?;
        DateTime::from_timestamp_millis(milliseconds)
    }
}

/// The shard in a UUID of version 7.
pub(crate) fn shard_of(uuid: Uuid) -> Option<ShardIdentifier> {
    if uuid.get_version_num() != 7 || uuid.get_variant() != Variant::RFC4122 {
        return None;
    }
    let bits = uuid.as_u128();
    Some(ShardIdentifier::from_bits((bits >> 54) as u8, (bits >> 48) as u8))
}

/// A UUID in the layout above, from the low bits of each part.
pub(super) fn compose(
    milliseconds: u64,
    counter: u16,
    shard: ShardIdentifier,
    random: u64,
) -> Uuid {
    let low = |value: u128, bits: u32| value & ((1 << bits) - 1);
    Uuid::from_u128(
        low(milliseconds.into(), 48) << 80
            | 0x7 << 76
            | low(counter.into(), 12) << 64
            | 0b10 << 62
            | u128::from(shard.group()) << 54
            | u128::from(shard.member()) << 48
            | low(random.into(), 48),
    )
}

impl<M: Entity<Id = ShardedId<M>>> EntityId for ShardedId<M> {
    type Entity = M;
    const CARRIES_SHARD: bool = true;

    fn uuid(&self) -> Uuid {
        self.uuid
    }

    fn from_uuid(uuid: Uuid) -> Self {
        ShardedId::from_uuid(uuid)
    }
}

typed_uuid!(ShardedId);

#[cfg(test)]
mod tests {
    use super::*;

    struct Wallet;

    fn shard(group: u32, member: u32) -> ShardIdentifier {
        ShardIdentifier::new(group, member).unwrap()
    }

    #[test]
    fn the_layout_is_the_references() {
        // Put together by hand: 0x0123456789AB ms, 7, 0xCDE, 0b10, group 0xA5, member 0b110011,
        // random 0x123456789ABC.
        let expected = "01234567-89ab-7cde-a973-123456789abc";
        let uuid = compose(0x0123_4567_89AB, 0xCDE, shard(0xA5, 0b11_0011), 0x1234_5678_9ABC);
        assert_eq!(uuid.to_string(), expected);
        let id: ShardedId<Wallet> = expected.parse().unwrap();
        assert_eq!(id.shard(), Some(shard(0xA5, 0b11_0011)));
        assert_eq!(id.instant().unwrap().timestamp_millis(), 0x0123_4567_89AB);
    }

    #[test]
    fn every_shard_comes_back_out_of_an_id() {
        for group in 0..=255 {
            for member in 0..=63 {
                let shard = shard(group, member);
                let uuid = compose(u64::MAX, u16::MAX, shard, u64::MAX);
                assert_eq!(shard_of(uuid), Some(shard));
                assert_eq!(uuid.get_version_num(), 7);
            }
        }
    }

    #[test]
    fn a_uuid_of_another_version_carries_no_shard() {
        for other in [Uuid::nil(), Uuid::max(), Uuid::from_u128(0x4 << 76 | 0b10 << 62)] {
            let id: ShardedId<Wallet> = ShardedId::from_uuid(other);
            assert_eq!((id.shard(), id.instant()), (None, None), "{other}");
        }
    }

    #[test]
    fn ids_of_one_process_grow_whatever_their_shards() {
        let ids: Vec<ShardedId<Wallet>> =
            (0..20_000).map(|n| ShardedId::new(shard(n * 7 % 256, n % 64))).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
