//! Which databases there are, by group and member.

use std::collections::BTreeMap;

use super::DataSourceConfig;
use crate::domain::ShardIdentifier;

/// What an id means whose shard is not configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownShard {
    /// An error.
    #[default]
    Error,
    /// The default shard.
    DefaultShard,
}

/// The shards.
#[derive(Debug, Clone)]
pub struct ShardingConfig {
    /// Where rows without a shard are.
    pub default_shard: ShardIdentifier,
    /// What an id means whose shard is not configured.
    pub unknown_shard: UnknownShard,
    /// The groups.
    pub groups: Vec<ShardGroupConfig>,
}

/// A group of shards.
#[derive(Debug, Clone)]
pub struct ShardGroupConfig {
    /// Its number.
    pub group: u8,
    /// Its name.
    pub name: String,
    /// Its members.
    pub members: Vec<ShardMemberConfig>,
}

/// One shard.
#[derive(Debug, Clone)]
pub struct ShardMemberConfig {
    /// Its number.
    pub member: u8,
    /// Its name.
    pub name: Option<String>,
    /// Its databases by slot.
    pub configs: BTreeMap<String, DataSourceConfig>,
}

impl ShardMemberConfig {
    /// A shard with a primary.
    pub fn new(member: u8, primary: DataSourceConfig) -> Self {
        Self {
            member,
            name: None,
            configs: BTreeMap::from([("primaryConfig".to_owned(), primary)]),
        }
    }

    /// With a slot.
    pub fn with(mut self, slot: &str, config: DataSourceConfig) -> Self {
        self.configs.insert(slot.to_owned(), config);
        self
    }

    /// The primary.
    pub fn primary(&self) -> Option<&DataSourceConfig> {
        self.config_for("primaryConfig")
    }

    /// The replica.
    pub fn secondary(&self) -> Option<&DataSourceConfig> {
        self.config_for("secondaryConfig")
    }

    /// A slot.
    pub fn config_for(&self, slot: &str) -> Option<&DataSourceConfig> {
        self.configs.get(slot)
    }
}

impl ShardingConfig {
    /// Shards in order.
    pub fn shards(&self) -> impl Iterator<Item = (ShardIdentifier, &ShardMemberConfig)> {
        let mut all: Vec<_> = self
            .groups
            .iter()
            .flat_map(|group| {
                group.members.iter().filter_map(|member| {
                    ShardIdentifier::new(group.group.into(), member.member.into())
                        .ok()
                        .map(|shard| (shard, member))
                })
            })
            .collect();
        all.sort_by_key(|(shard, _)| *shard);
        all.into_iter()
    }
}
