//! The settings of a shard's locks after `lock-config`, the primary and the defaults are combined.

use std::time::Duration;

use super::address::{Parts, dialect, opened};
use super::data_source::{DataSourceConfig, application_name};
use super::dialect::Dialect;
use super::lock_config::{LockConfig, LockProviderKind, LockStrategy};
use super::parameters::with_effect_only;

/// Locks at the address of the primary, or without any address.
impl From<LockConfig> for DataSourceConfig {
    fn from(locks: LockConfig) -> Self {
        DataSourceConfig::new("").locks(locks)
    }
}

/// The lock settings of a shard, completed from the primary and from defaults; see [`ShardMemberConfig::locks`](super::ShardMemberConfig::locks).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LockSettings {
    /// Where the locks are stored.
    pub provider: LockProviderKind,
    /// How the locks are stored.
    pub strategy: LockStrategy,
    /// The server. Not used by locks of this process.
    pub server: DataSourceConfig,
    /// The prefix of key names in Redis, etcd and HBase, the collection in MongoDB, the set in Aerospike.
    pub namespace: String,
    /// The zone of this process.
    pub zone: String,
    /// The term of a lease, which the client renews. `None`: the server keeps the lease for its
    /// maximum hold time.
    pub term: Option<Duration>,
    /// Whether grants of leases in PostgreSQL do not wait until they are on disk.
    pub asynchronous: bool,
    /// The first and the longest pause before a failed request is repeated.
    pub retry_sleep: (Duration, Duration),
}

/// The first and the longest pause before a failed request is repeated, by default.
pub(super) const RETRY_SLEEP: (Duration, Duration) =
    (Duration::from_millis(50), Duration::from_secs(2));

impl LockSettings {
    /// Where the locks are, as far as the address says it, in one spelling. Two names of one host
    /// are two places.
    #[doc(hidden)]
    pub fn place(&self) -> String {
        let parts = Parts::opened(&self.server.url);
        let place = parts.place(self.server.username.as_deref());
        match self.provider {
            LockProviderKind::Sqlite => place,
            // Their tables are in the database of `eventlog`, whichever the address names.
            LockProviderKind::MySql | LockProviderKind::MariaDb => {
                format!("{}?{}", parts.server(), parts.query)
            }
            // A parameter may lead to another server.
            _ => format!("{place}?{}", parts.query),
        }
    }

    /// `None` if neither the provider nor an address is known.
    pub(super) fn of(
        config: &DataSourceConfig,
        primary: Option<&DataSourceConfig>,
    ) -> Option<Self> {
        let mut server = config.clone();
        if let Some(primary) = primary.filter(|_| server.url.trim().is_empty()) {
            // No key gives a name, so one in the address stays.
            if server.application_name == application_name(&server.url) {
                server.application_name = application_name(&primary.url);
            }
            server.url = inherited(&primary.url);
            // A different user has a different password.
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
            asynchronous: locks.asynchronous,
            retry_sleep: (
                locks.retry_sleep.unwrap_or(RETRY_SLEEP.0),
                locks.max_retry_sleep.unwrap_or(RETRY_SLEEP.1),
            ),
            server,
        })
    }
}

/// The address of the primary as locks use it: only with what has an effect for data, because the driver of
/// locks in PostgreSQL refuses what it does not know.
fn inherited(url: &str) -> String {
    match dialect(url) {
        Some(Dialect::Postgres) => with_effect_only(opened(url), Dialect::Postgres),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inherited_address_has_only_what_has_an_effect() {
        let url = |primary: &str| {
            let primary = DataSourceConfig::new(primary);
            LockSettings::of(&DataSourceConfig::new(""), Some(&primary)).unwrap().server.url
        };
        for (primary, expected) in [
            ("postgres://a:b@h/d?x=1&connect_timeout=3#europe", "postgres://a:b@h/d"),
            (
                "postgres://h/d?x=1&options[search_path]=a#b ",
                "postgres://h/d?options[search_path]=a",
            ),
            ("postgres://h/d#europe", "postgres://h/d"),
            ("mysql://h/d?x=1", "mysql://h/d?x=1"),
            ("sqlite:a#b", "sqlite:a#b"),
        ] {
            assert_eq!(url(primary), expected);
        }
    }

    #[test]
    fn the_name_in_an_inherited_address_stays_unless_a_key_gives_one() {
        let primary = DataSourceConfig::new("postgres://h/d?application_name=shop");
        let name = |locks: DataSourceConfig| {
            LockSettings::of(&locks, Some(&primary)).unwrap().server.application_name
        };
        assert_eq!(name(DataSourceConfig::new("")), "shop");
        assert_eq!(name(DataSourceConfig::new("").application_name("till")), "till");
        assert_eq!(name(DataSourceConfig::new("postgres://i/d")), "ekbatan");
    }

    fn place(url: &str) -> String {
        LockSettings::of(&DataSourceConfig::new(url), None).unwrap().place()
    }

    #[test]
    fn locks_are_in_one_place_however_it_is_written() {
        for (one, same) in [
            ("postgres://app:a@db/shop", "postgresql://DB:5432/sh%6Fp"),
            ("postgres://app:%61@db", "postgres://app:a@db/app"),
            ("redis://:x@cache", "redis://cache:6379/0"),
            ("mysql://db/shop0", "mysql://db:3306/shop1"),
            ("etcd://a,b:2379", "etcd://A:2379,b/"),
            ("sqlite:./locks.db", "sqlite:locks.db?mode=rwc"),
        ] {
            assert_eq!(place(one), place(same), "{same}");
        }
        for (one, other) in [
            ("postgres://a@db", "postgres://b@db"),
            ("postgres://db/shop", "postgres://db/shop?dbname=other"),
            ("mongodb://a/shop", "mongodb://a,b/shop"),
        ] {
            assert_ne!(place(one), place(other), "{other}");
        }
    }
}
