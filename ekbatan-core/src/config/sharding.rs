//! The shards of an application, by group and member.

use std::collections::BTreeMap;

use super::data_source::DataSourceConfig;
use super::lock_settings::LockSettings;
use super::spelling::{camel, same_key};
use crate::domain::ShardIdentifier;

/// What happens to an id whose shard is not configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum UnknownShard {
    /// The call fails.
    #[default]
    Error,
    /// The row belongs to the default shard.
    DefaultShard,
}

/// The shards, and the default shard.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ShardingConfig {
    /// The shard of all rows that name no shard.
    pub default_shard: ShardIdentifier,
    /// See [`UnknownShard`].
    pub unknown_shard: UnknownShard,
    /// The groups, in the order of the file.
    pub groups: Vec<ShardGroupConfig>,
}

/// A group of shards, for example a country.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ShardGroupConfig {
    /// The group's number, 0 to 255.
    pub group: u8,
    /// A name for people.
    pub name: String,
    /// The databases of the group, in the order of the file.
    pub members: Vec<ShardMemberConfig>,
}

/// A shard: its primary database, and further databases for other uses.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ShardMemberConfig {
    /// The member's number, 0 to 63.
    pub member: u8,
    /// A name for people.
    pub name: Option<String>,
    /// The databases by slot, in camelCase: `primaryConfig`, `secondaryConfig`, `lockConfig` or
    /// a name of the application's own.
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

    /// Every shard, ordered by group, then by member. Members with an invalid number are left
    /// out; `check` rejects them.
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

    /// The member with this identifier.
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

    /// Adds a shard to its group. Creates the group if it does not exist.
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
    /// The slot of the primary.
    pub(super) const PRIMARY: &str = "primaryConfig";
    /// The slot of the replica.
    pub(super) const SECONDARY: &str = "secondaryConfig";
    /// The slot of keyed locks.
    pub(super) const LOCKS: &str = "lockConfig";

    /// A shard with this primary.
    pub fn new(member: u8, primary: DataSourceConfig) -> Self {
        Self { member, name: None, configs: BTreeMap::new() }.with(Self::PRIMARY, primary)
    }

    /// Sets the database of a slot.
    #[must_use]
    pub fn with(mut self, slot: impl AsRef<str>, config: impl Into<DataSourceConfig>) -> Self {
        self.configs.retain(|known, _| !same_key(known, slot.as_ref()));
        self.configs.insert(camel(slot.as_ref()), config.into());
        self
    }

    /// The primary. Every shard of a loaded or checked configuration has one.
    pub fn primary(&self) -> Option<&DataSourceConfig> {
        self.config_for(Self::PRIMARY)
    }

    /// The replica.
    pub fn secondary(&self) -> Option<&DataSourceConfig> {
        self.config_for(Self::SECONDARY)
    }

    /// The settings of keyed locks; `None` if the shard has no `lock-config`. In a loaded or
    /// checked configuration a `lock-config` always yields settings.
    pub fn locks(&self) -> Option<LockSettings> {
        LockSettings::of(self.config_for(Self::LOCKS)?, self.primary())
    }

    /// The database of a slot, in any spelling: `lockConfig`, `lock-config`.
    pub fn config_for(&self, slot: &str) -> Option<&DataSourceConfig> {
        self.configs.iter().find(|(known, _)| same_key(known, slot)).map(|(_, config)| config)
    }
}
