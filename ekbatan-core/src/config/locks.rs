//! What keyed locks live in: a `lock-config` as it is written, and as it is meant.

use std::time::Duration;

use super::DataSourceConfig;
use super::address::{Dialect, dialect, scheme};

/// What locks live in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockProviderKind {
    /// This process, and no other one.
    InProcess,
    /// PostgreSQL.
    Postgres,
    /// MySQL.
    MySql,
    /// MariaDB.
    MariaDb,
    /// SQLite: the processes on one file.
    Sqlite,
    /// Redis or Valkey.
    Redis,
}

/// How a database keeps locks. Two strategies on one database know nothing of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LockStrategy {
    /// A row per key, which its time ends: survives fail-over, works behind poolers, and
    /// every provider has it.
    #[default]
    Lease,
    /// The server's own locks, of one session: free at once when the process dies.
    Session,
}

/// What `lock-config` says beside the address and its connections.
///
/// ```
/// use ekbatan_core::config::{DataSourceConfig, EkbatanConfig, LockConfig, LockProviderKind};
///
/// // Locks in the database itself, in Redis, and in this process alone.
/// let config = EkbatanConfig::single("postgres://localhost/wallet");
/// let same = config.clone().locks(LockConfig::default());
/// let redis = config.clone().locks(DataSourceConfig::new("redis://cache"));
/// let here = config.locks(LockConfig::of(LockProviderKind::InProcess));
/// for config in [same, redis, here] {
///     config.check()?;
/// }
/// # Ok::<_, ekbatan_core::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LockConfig {
    /// What the locks live in. Default: what the address says.
    pub provider: Option<LockProviderKind>,
    /// How they are kept there. Default: [`LockStrategy::Lease`].
    pub strategy: Option<LockStrategy>,
    /// What the names of keys begin with in Redis. Default `ekbatan-lock`.
    pub namespace: Option<String>,
    /// The zone of this process. Default `default`.
    pub zone: Option<String>,
    /// The term of leases at the server, which is renewed while their holder lives. Default:
    /// none, they are held for as long as they may be.
    pub term: Option<Duration>,
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
}

/// Locks at the address of the primary, or at none.
impl From<LockConfig> for DataSourceConfig {
    fn from(locks: LockConfig) -> Self {
        DataSourceConfig::new("").locks(locks)
    }
}

/// The locks of a shard, with everything that `lock-config` leaves to the primary and to
/// defaults; see [`ShardMemberConfig::locks`](super::ShardMemberConfig::locks).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LockSettings {
    /// What the locks live in.
    pub provider: LockProviderKind,
    /// How they are kept there.
    pub strategy: LockStrategy,
    /// The server; of no meaning to locks that live in this process.
    pub server: DataSourceConfig,
    /// What the names of keys begin with in Redis.
    pub namespace: String,
    /// The zone of this process.
    pub zone: String,
    /// The term of leases, which is renewed; none if they are held for as long as they may be.
    pub term: Option<Duration>,
}

impl LockSettings {
    /// None if nothing tells what the locks live in.
    pub(super) fn of(
        config: &DataSourceConfig,
        primary: Option<&DataSourceConfig>,
    ) -> Option<Self> {
        let mut server = config.clone();
        if let Some(primary) = primary.filter(|_| server.url.trim().is_empty()) {
            server.url.clone_from(&primary.url);
            // A user of its own has a password of its own.
            if server.username.is_none() {
                server.username.clone_from(&primary.username);
                server.password = server.password.or_else(|| primary.password.clone());
            }
            server.tls_mode = server.tls_mode.or(primary.tls_mode);
            server.tls_root_cert = server.tls_root_cert.or_else(|| primary.tls_root_cert.clone());
        }
        let locks = &config.locks;
        Some(Self {
            provider: locks.provider.or_else(|| LockProviderKind::at(&server.url))?,
            strategy: locks.strategy.unwrap_or_default(),
            namespace: locks.namespace.clone().unwrap_or_else(|| "ekbatan-lock".to_owned()),
            zone: locks.zone.clone().unwrap_or_else(|| "default".to_owned()),
            term: locks.term,
            server,
        })
    }
}

impl LockProviderKind {
    const ALL: [(&str, Self); 6] = [
        ("in-process", Self::InProcess),
        ("postgres", Self::Postgres),
        ("mysql", Self::MySql),
        ("mariadb", Self::MariaDb),
        ("sqlite", Self::Sqlite),
        ("redis", Self::Redis),
    ];

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, kind)| kind)
    }

    /// As configurations have it.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, kind)| *kind == self).map_or("unnamed", |(name, _)| name)
    }

    /// What an address leads to, by its scheme.
    pub(super) fn at(url: &str) -> Option<Self> {
        match dialect(url) {
            Some(Dialect::Sqlite) => Some(Self::Sqlite),
            Some(Dialect::Postgres) => Some(Self::Postgres),
            Some(Dialect::MySql) => Some(Self::MySql),
            Some(Dialect::MariaDb) => Some(Self::MariaDb),
            None => match scheme(url).to_ascii_lowercase().as_str() {
                "redis" | "rediss" | "valkey" | "valkeys" if url.contains(':') => Some(Self::Redis),
                _ => None,
            },
        }
    }

    /// Whether locks of this kind may be at an address of that one: MariaDB's servers are
    /// reached by either name.
    pub(super) fn fits(self, address: Self) -> bool {
        let family = |kind| if kind == Self::MariaDb { Self::MySql } else { kind };
        family(self) == family(address)
    }

    /// Whether its server has locks of a session.
    pub(super) fn has_sessions(self) -> bool {
        matches!(self, Self::Postgres | Self::MySql | Self::MariaDb)
    }
}

impl std::fmt::Display for LockProviderKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
