//! The settings of `lock-config` as they are written.

use std::time::Duration;

use super::address::{dialect, scheme};
use super::dialect::Dialect;
use super::spelling::names;

/// Where locks are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockProviderKind {
    /// In the memory of this process; other processes do not see them.
    InProcess,
    /// PostgreSQL.
    Postgres,
    /// MySQL.
    MySql,
    /// MariaDB.
    MariaDb,
    /// SQLite: all processes that open the same file.
    Sqlite,
    /// Redis or Valkey.
    Redis,
    /// etcd.
    Etcd,
    /// HBase.
    HBase,
    /// MongoDB.
    MongoDb,
    /// Aerospike.
    Aerospike,
}

/// How a database stores locks. Locks of different strategies do not exclude each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LockStrategy {
    /// A row per key with an expiry time. Survives a fail-over, works behind poolers, and is
    /// available from every provider.
    #[default]
    Lease,
    /// The server's own session locks. The server frees them as soon as the process dies.
    Session,
}

/// The keys of `lock-config` besides the address and the pool.
///
/// ```
/// use ekbatan_core::config::{DataSourceConfig, EkbatanConfig, LockConfig, LockProviderKind};
///
/// // Locks in the primary itself, in Redis, in etcd, and in this process only.
/// let config = EkbatanConfig::single("postgres://localhost/wallet");
/// let same = config.clone().locks(LockConfig::default());
/// let redis = config.clone().locks(DataSourceConfig::new("redis://cache"));
/// let etcd = config.clone().locks(DataSourceConfig::new("etcd://a:2379,b:2379,c:2379"));
/// let here = config.locks(LockConfig::of(LockProviderKind::InProcess));
/// for config in [same, redis, etcd, here] {
///     config.check()?;
/// }
/// # Ok::<_, ekbatan_core::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LockConfig {
    /// Where the locks are stored. Default: the server of the address.
    pub provider: Option<LockProviderKind>,
    /// How the locks are stored. Default: [`LockStrategy::Lease`].
    pub strategy: Option<LockStrategy>,
    /// The prefix of key names in Redis, etcd and HBase, the collection in MongoDB, the set in Aerospike.
    /// Default `ekbatan-lock`.
    pub namespace: Option<String>,
    /// The zone of this process. Default `default`.
    pub zone: Option<String>,
    /// The term of a lease at the server. The client renews it while the holder lives. Default:
    /// none; the server keeps the lease for its maximum hold time.
    pub term: Option<Duration>,
    /// Leases in PostgreSQL: grants do not wait until they are on disk. A crash of the server may
    /// then forget the last ones, and a key may have two holders. Default `false`.
    pub asynchronous: bool,
    /// The pause before a failed request is repeated. Each following pause is twice as long.
    /// Default 50 ms.
    pub retry_sleep: Option<Duration>,
    /// The longest pause before a failed request is repeated, at least `retry_sleep`. Default 2 s.
    pub max_retry_sleep: Option<Duration>,
}

impl LockConfig {
    /// Locks of this provider, with every default.
    pub fn of(provider: LockProviderKind) -> Self {
        Self { provider: Some(provider), ..Self::default() }
    }

    /// Sets [`strategy`](Self::strategy).
    #[must_use]
    pub fn strategy(mut self, strategy: LockStrategy) -> Self {
        self.strategy = Some(strategy);
        self
    }

    /// Sets [`namespace`](Self::namespace).
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Sets [`zone`](Self::zone).
    #[must_use]
    pub fn zone(mut self, zone: impl Into<String>) -> Self {
        self.zone = Some(zone.into());
        self
    }

    /// Sets [`term`](Self::term).
    #[must_use]
    pub fn term(mut self, term: Duration) -> Self {
        self.term = Some(term);
        self
    }

    /// Sets [`asynchronous`](Self::asynchronous).
    #[must_use]
    pub fn asynchronous(mut self) -> Self {
        self.asynchronous = true;
        self
    }

    /// Sets [`retry_sleep`](Self::retry_sleep) and [`max_retry_sleep`](Self::max_retry_sleep).
    #[must_use]
    pub fn retry_sleep(mut self, first: Duration, longest: Duration) -> Self {
        (self.retry_sleep, self.max_retry_sleep) = (Some(first), Some(longest));
        self
    }
}

impl LockProviderKind {
    const ALL: [(&str, Self); 10] = [
        ("in-process", Self::InProcess),
        ("postgres", Self::Postgres),
        ("mysql", Self::MySql),
        ("mariadb", Self::MariaDb),
        ("sqlite", Self::Sqlite),
        ("redis", Self::Redis),
        ("etcd", Self::Etcd),
        ("mongodb", Self::MongoDb),
        ("aerospike", Self::Aerospike),
        ("hbase", Self::HBase),
    ];
    pub(super) const NAMES: [&str; Self::ALL.len()] = names(&Self::ALL);

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, kind)| kind)
    }

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, kind)| *kind == self).map_or("unnamed", |(name, _)| name)
    }

    /// The provider that an address means, by its scheme.
    pub(super) fn at(url: &str) -> Option<Self> {
        match dialect(url) {
            Some(Dialect::Sqlite) => Some(Self::Sqlite),
            Some(Dialect::Postgres) => Some(Self::Postgres),
            Some(Dialect::MySql) => Some(Self::MySql),
            Some(Dialect::MariaDb) => Some(Self::MariaDb),
            None => match scheme(url).to_ascii_lowercase().as_str() {
                "redis" | "rediss" | "valkey" | "valkeys" if url.contains(':') => Some(Self::Redis),
                "etcd" | "etcds" if url.contains(':') => Some(Self::Etcd),
                "hbase" if url.contains(':') => Some(Self::HBase),
                "mongodb" | "mongodb+srv" if url.contains(':') => Some(Self::MongoDb),
                "aerospike" if url.contains(':') => Some(Self::Aerospike),
                _ => None,
            },
        }
    }

    /// Whether an address of kind `address` can serve this provider. MariaDB accepts both
    /// `mysql://` and `mariadb://`.
    pub(super) fn fits(self, address: Self) -> bool {
        let family = |kind| if kind == Self::MariaDb { Self::MySql } else { kind };
        family(self) == family(address)
    }

    /// Whether its server has session locks.
    pub(super) fn has_sessions(self) -> bool {
        matches!(self, Self::Postgres | Self::MySql | Self::MariaDb)
    }
}

impl std::fmt::Display for LockProviderKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
