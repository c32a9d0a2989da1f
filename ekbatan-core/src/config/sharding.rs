//! The shards of an application, by group and member.

use std::collections::BTreeMap;

use super::spelling::{camel, same_key};
use super::{DataSourceConfig, LockSettings};
use crate::domain::ShardIdentifier;

/// What becomes of an id that names a shard which is not here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownShard {
    /// It is an error.
    #[default]
    Error,
    /// It belongs to the default shard.
    DefaultShard,
}

/// Which shards there are, and which of them is meant where none is named.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ShardingConfig {
    /// Where everything is that names no shard.
    pub default_shard: ShardIdentifier,
    /// See [`UnknownShard`].
    pub unknown_shard: UnknownShard,
    /// The groups, in the order of the file.
    pub groups: Vec<ShardGroupConfig>,
}

/// A group of shards: a country, say.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ShardGroupConfig {
    /// 0 to 255.
    pub group: u8,
    /// For people.
    pub name: String,
    /// The databases of the group, in the order of the file.
    pub members: Vec<ShardMemberConfig>,
}

/// A shard: a database, and the databases beside it that serve its other uses.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ShardMemberConfig {
    /// 0 to 63.
    pub member: u8,
    /// For people.
    pub name: Option<String>,
    /// By use, in camelCase: `primaryConfig`, `secondaryConfig`, `lockConfig` or any other.
    pub configs: BTreeMap<String, DataSourceConfig>,
}

impl ShardingConfig {
    pub(super) fn new() -> Self {
        Self {
            default_shard: ShardIdentifier::DEFAULT,
            unknown_shard: UnknownShard::default(),
            groups: Vec::new(),
        }
    }

    /// Every shard, by group, then by member, whatever the order of the file. What has a
    /// number that no shard can have is left out; `check` refuses it.
    pub fn shards(&self) -> impl Iterator<Item = (ShardIdentifier, &ShardMemberConfig)> {
        let mut shards: Vec<_> = self
            .groups
            .iter()
            .flat_map(|group| group.members.iter().map(move |member| (group.group, member)))
            .filter_map(|(group, member)| {
                Some((ShardIdentifier::new(group.into(), member.member.into()).ok()?, member))
            })
            .collect();
        shards.sort_by_key(|(shard, _)| *shard);
        shards.into_iter()
    }

    /// The shard of this name.
    pub fn member(&self, shard: ShardIdentifier) -> Option<&ShardMemberConfig> {
        self.group(shard)?.members.iter().find(|member| member.member == shard.member())
    }

    pub(super) fn member_mut(&mut self, shard: ShardIdentifier) -> Option<&mut ShardMemberConfig> {
        let group = self.groups.iter_mut().find(|group| group.group == shard.group())?;
        group.members.iter_mut().find(|member| member.member == shard.member())
    }

    fn group(&self, shard: ShardIdentifier) -> Option<&ShardGroupConfig> {
        self.groups.iter().find(|group| group.group == shard.group())
    }

    /// Adds a shard to its group, which is made if it is new.
    pub(super) fn add(&mut self, shard: ShardIdentifier, mut member: ShardMemberConfig) {
        member.member = shard.member();
        match self.groups.iter_mut().find(|group| group.group == shard.group()) {
            Some(group) => group.members.push(member),
            None => {
                let name = match shard.group() {
                    0 => "main".to_owned(),
                    group => format!("group-{group}"),
                };
                let members = vec![member];
                self.groups.push(ShardGroupConfig { group: shard.group(), name, members });
            }
        }
    }
}

impl ShardMemberConfig {
    /// The slot of the database itself.
    pub(super) const PRIMARY: &str = "primaryConfig";
    /// The slot of its replica.
    pub(super) const SECONDARY: &str = "secondaryConfig";
    /// The slot of its keyed locks.
    pub(super) const LOCKS: &str = "lockConfig";

    /// A shard by its database.
    pub fn new(member: u8, primary: DataSourceConfig) -> Self {
        Self { member, name: None, configs: BTreeMap::new() }.with(Self::PRIMARY, primary)
    }

    /// Adds a database for another use, or replaces it.
    #[must_use]
    pub fn with(mut self, slot: impl AsRef<str>, config: impl Into<DataSourceConfig>) -> Self {
        self.configs.retain(|known, _| !same_key(known, slot.as_ref()));
        self.configs.insert(camel(slot.as_ref()), config.into());
        self
    }

    /// The database itself. A configuration that was loaded or checked has one in each shard.
    pub fn primary(&self) -> Option<&DataSourceConfig> {
        self.config_for(Self::PRIMARY)
    }

    /// Its replica.
    pub fn secondary(&self) -> Option<&DataSourceConfig> {
        self.config_for(Self::SECONDARY)
    }

    /// Its keyed locks; none if the shard has no `lock-config`. A configuration that was
    /// loaded or checked tells what they live in.
    pub fn locks(&self) -> Option<LockSettings> {
        LockSettings::of(self.config_for(Self::LOCKS)?, self.primary())
    }

    /// The database of a slot in any spelling: `lockConfig`, `lock-config`.
    pub fn config_for(&self, slot: &str) -> Option<&DataSourceConfig> {
        self.configs.iter().find(|(known, _)| same_key(known, slot)).map(|(_, config)| config)
    }
}
