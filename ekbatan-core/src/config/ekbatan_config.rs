//! The whole configuration.

use super::data_source::DataSourceConfig;
use super::events_config::EventsConfig;
use super::jobs_config::JobsConfig;
use super::relay_config::RelayConfig;
use super::sharding::{ShardMemberConfig, ShardingConfig, UnknownShard};
use crate::domain::ShardIdentifier;

/// The databases of an application.
///
/// [`load`](Self::load) reads it from a file and the environment; the other methods build it in
/// code. The same rules hold for both.
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
    /// The namespace of the application's actions.
    pub namespace: Option<String>,
    /// The databases. A single database is a single shard.
    pub sharding: ShardingConfig,
    /// How nodes handle events.
    pub events: EventsConfig,
    /// How nodes run jobs.
    pub jobs: JobsConfig,
    /// The relays, which send events to message brokers.
    pub relays: Vec<RelayConfig>,
    pub(super) ignored: Vec<String>,
}

impl EkbatanConfig {
    /// A configuration of one database, by its address.
    pub fn single(url: impl Into<String>) -> Self {
        Self::from(DataSourceConfig::new(url))
    }

    /// Adds a replica to the default shard. Reads use it only when they ask for it. Does nothing
    /// if the default shard does not exist.
    #[must_use]
    pub fn replica(mut self, replica: DataSourceConfig) -> Self {
        let shard = self.sharding.default_shard;
        if let Some(member) = self.sharding.member_mut(shard) {
            *member = member.clone().with(ShardMemberConfig::SECONDARY, replica);
        }
        self
    }

    /// Adds keyed locks to the default shard: a [`LockConfig`](super::LockConfig), or the
    /// database that stores the locks. Does nothing if the default shard does not exist.
    #[must_use]
    pub fn locks(mut self, locks: impl Into<DataSourceConfig>) -> Self {
        let shard = self.sharding.default_shard;
        if let Some(member) = self.sharding.member_mut(shard) {
            *member = member.clone().with(ShardMemberConfig::LOCKS, locks);
        }
        self
    }

    /// Adds a shard. `shard` replaces the number that `member` was made with.
    #[must_use]
    pub fn shard(mut self, shard: ShardIdentifier, member: ShardMemberConfig) -> Self {
        self.sharding.add(shard, member);
        self
    }

    /// Sets the shard of all rows that name no shard. It must be one of the shards.
    #[must_use]
    pub fn default_shard(mut self, shard: ShardIdentifier) -> Self {
        self.sharding.default_shard = shard;
        self
    }

    /// Sets what happens to an id whose shard is not configured.
    #[must_use]
    pub fn unknown_shard(mut self, unknown: UnknownShard) -> Self {
        self.sharding.unknown_shard = unknown;
        self
    }

    /// Sets the namespace of the application's actions.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Sets how nodes handle events.
    #[must_use]
    pub fn events(mut self, events: EventsConfig) -> Self {
        self.events = events;
        self
    }

    /// Sets how nodes run jobs.
    #[must_use]
    pub fn jobs(mut self, jobs: JobsConfig) -> Self {
        self.jobs = jobs;
        self
    }

    /// Adds a relay.
    #[must_use]
    pub fn relay(mut self, relay: RelayConfig) -> Self {
        self.relays.push(relay);
        self
    }

    /// The paths of the settings that were accepted and have no effect.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }
}

impl From<DataSourceConfig> for EkbatanConfig {
    fn from(primary: DataSourceConfig) -> Self {
        let mut sharding = ShardingConfig::new();
        sharding.add(ShardIdentifier::DEFAULT, ShardMemberConfig::new(0, primary));
        let (events, jobs) = (EventsConfig::default(), JobsConfig::default());
        let relays = Vec::new();
        Self { namespace: None, sharding, events, jobs, relays, ignored: Vec::new() }
    }
}
