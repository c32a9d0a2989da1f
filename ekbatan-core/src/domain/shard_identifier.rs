//! The address of a shard.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The address of a shard: a group and a member of it.
///
/// Groups separate data by policy, such as by country; members add capacity. Both fit into the bits
/// of a [`ShardedId`](super::ShardedId). Shards are ordered by group, then by member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct ShardIdentifier {
    group: u8,
    member: u8,
}

/// A group or member out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardIdentifierError {
    /// The group does not fit its eight bits.
    #[error("{0} is not a shard group; a group is a number from 0 to 255")]
    Group(u32),
    /// The member does not fit its six bits.
    #[error("{0} is not a shard member; a member is a number from 0 to 63")]
    Member(u32),
}

#[derive(Serialize, Deserialize)]
struct Parts {
    group: u32,
    member: u32,
}

impl ShardIdentifier {
    /// Group 0, member 0: the shard of a single database.
    pub const DEFAULT: Self = Self { group: 0, member: 0 };

    /// The largest member. The largest group is 255.
    pub const MAX_MEMBER: u8 = 63;

    /// A shard by its group, 0 to 255, and member, 0 to 63.
    pub const fn new(group: u32, member: u32) -> Result<Self, ShardIdentifierError> {
        if group > u8::MAX as u32 {
            return Err(ShardIdentifierError::Group(group));
        }
        if member > Self::MAX_MEMBER as u32 {
            return Err(ShardIdentifierError::Member(member));
        }
        Ok(Self { group: group as u8, member: member as u8 })
    }

    /// From the fourteen bits of an id. Every combination is valid.
    pub(super) const fn from_bits(group: u8, member: u8) -> Self {
        Self { group, member: member & Self::MAX_MEMBER }
    }

    /// The group.
    pub const fn group(self) -> u8 {
        self.group
    }

    /// The member.
    pub const fn member(self) -> u8 {
        self.member
    }
}

impl fmt::Display for ShardIdentifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.member)
    }
}

impl fmt::Debug for ShardIdentifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The shards as messages list them: `0/0, 0/1`.
pub(crate) fn list_shards(shards: &[ShardIdentifier]) -> String {
    shards.iter().map(ShardIdentifier::to_string).collect::<Vec<_>>().join(", ")
}

impl TryFrom<Parts> for ShardIdentifier {
    type Error = ShardIdentifierError;

    fn try_from(parts: Parts) -> Result<Self, Self::Error> {
        Self::new(parts.group, parts.member)
    }
}

impl From<ShardIdentifier> for Parts {
    fn from(shard: ShardIdentifier) -> Self {
        Self { group: shard.group.into(), member: shard.member.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_go_to_255_and_members_to_63() {
        let greatest = ShardIdentifier::new(255, 63).unwrap();
        assert_eq!((greatest.group(), greatest.member()), (255, 63));
        assert_eq!(ShardIdentifier::new(256, 0), Err(ShardIdentifierError::Group(256)));
        assert_eq!(ShardIdentifier::new(0, 64), Err(ShardIdentifierError::Member(64)));
        assert_eq!(ShardIdentifier::new(0, 0).unwrap(), ShardIdentifier::DEFAULT);
    }

    #[test]
    fn shards_are_ordered_by_group_then_member() {
        let shard = |group, member| ShardIdentifier::new(group, member).unwrap();
        assert!(shard(0, 63) < shard(1, 0));
        assert!(shard(1, 0) < shard(1, 1));
    }

    #[test]
    fn what_is_read_is_checked_too() {
        let read: ShardIdentifier = serde_json::from_str(r#"{"group":3,"member":7}"#).unwrap();
        assert_eq!(read.to_string(), "3/7");
        assert!(serde_json::from_str::<ShardIdentifier>(r#"{"group":3,"member":64}"#).is_err());
    }
}
