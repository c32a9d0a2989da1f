//! The whole configuration, however it was made.

use std::path::Path;

use super::error::Findings;
use super::loader::ConfigLoader;
use super::{
    ConfigError, ConfigProblem, ConfigSource, DataSourceConfig, ShardMemberConfig, ShardingConfig,
    UnknownShard, rules,
};
use crate::domain::ShardIdentifier;

/// Which databases an application uses.
///
/// From a file and the environment, or in code; the same rules hold for both.
///
/// ```
/// use ekbatan_core::config::{DataSourceConfig, EkbatanConfig, ShardMemberConfig};
/// use ekbatan_core::domain::ShardIdentifier;
///
/// let second = ShardIdentifier::new(0, 1)?;
/// let config = EkbatanConfig::single("sqlite:first.db")
///     .shard(second, ShardMemberConfig::new(1, DataSourceConfig::new("sqlite:second.db")));
/// config.check()?;
/// assert_eq!(config.sharding.shards().count(), 2);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EkbatanConfig {
    /// Whose actions these are.
    pub namespace: Option<String>,
    /// The databases; a single one is a single shard.
    pub sharding: ShardingConfig,
    pub(super) ignored: Vec<String>,
}

impl EkbatanConfig {
    /// Loads a YAML file, then what the environment says in variables named `EKBATAN_..`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::loader().file(path).load()
    }

    /// Loads from several sources, of which later ones win.
    pub fn loader() -> ConfigLoader {
        ConfigLoader::new()
    }

    /// One database, by its address.
    pub fn single(url: impl Into<String>) -> Self {
        Self::from(DataSourceConfig::new(url))
    }

    /// Adds a replica to the default shard, which reads take only by name. Without a default
    /// shard nothing is added.
    #[must_use]
    pub fn replica(mut self, replica: DataSourceConfig) -> Self {
        let shard = self.sharding.default_shard;
        if let Some(member) = self.sharding.member_mut(shard) {
            *member = member.clone().with(ShardMemberConfig::SECONDARY, replica);
        }
        self
    }

    /// Adds keyed locks to the default shard: [`LockConfig`](super::LockConfig), or the
    /// database that they live in. Without a default shard nothing is added.
    #[must_use]
    pub fn locks(mut self, locks: impl Into<DataSourceConfig>) -> Self {
        let shard = self.sharding.default_shard;
        if let Some(member) = self.sharding.member_mut(shard) {
            *member = member.clone().with(ShardMemberConfig::LOCKS, locks);
        }
        self
    }

    /// Adds a shard. Its number is `shard`'s, whatever `member` was made with.
    #[must_use]
    pub fn shard(mut self, shard: ShardIdentifier, member: ShardMemberConfig) -> Self {
        self.sharding.add(shard, member);
        self
    }

    /// Says where everything is that names no shard; it has to be one of the shards.
    #[must_use]
    pub fn default_shard(mut self, shard: ShardIdentifier) -> Self {
        self.sharding.default_shard = shard;
        self
    }

    /// Says what becomes of an id that names a shard which is not here.
    #[must_use]
    pub fn unknown_shard(mut self, unknown: UnknownShard) -> Self {
        self.sharding.unknown_shard = unknown;
        self
    }

    /// Names whose actions these are.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// The keys that were accepted and have no effect, as paths.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Holds a configuration made in code to the rules of one that is loaded.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut findings = Findings::default();
        rules::check(self, rules::Form::Sharding, &mut findings);
        if findings.0.is_empty() {
            return Ok(());
        }
        Err(ConfigError::new(
            findings
                .0
                .into_iter()
                .map(|finding| ConfigProblem {
                    path: finding.path.to_string(),
                    source: ConfigSource::Code,
                    line: None,
                    value: finding.value,
                    message: finding.message,
                })
                .collect(),
        ))
    }
}

impl From<DataSourceConfig> for EkbatanConfig {
    fn from(primary: DataSourceConfig) -> Self {
        let mut sharding = ShardingConfig::new();
        sharding.add(ShardIdentifier::DEFAULT, ShardMemberConfig::new(0, primary));
        Self { namespace: None, sharding, ignored: Vec::new() }
    }
}
