//! The section `lock-config`.

use std::time::Duration;

use ekbatan::config::{
    ConfigError, DataSourceConfig, LockConfig, LockProviderKind, LockSettings, LockStrategy,
    ShardMemberConfig, TlsMode,
};
use ekbatan::prelude::EkbatanConfig;

use super::{load, load_with};

/// A shard with this primary and these keys of `lock-config`.
fn shard(primary: &str, keys: &str) -> Result<ShardMemberConfig, ConfigError> {
    let yaml =
        format!("ekbatan: {{configs: {{primary-config: {{{primary}}}, lock-config: {{{keys}}}}}}}");
    Ok(load(&yaml)?.sharding.groups[0].members[0].clone())
}

const POSTGRES: &str = "url: 'postgres://h/d', username: app, password: p, tls-mode: require";

fn locks(keys: &str) -> LockSettings {
    shard(POSTGRES, keys).unwrap_or_else(|error| panic!("{keys}: {error}")).locks().unwrap()
}

/// The problems: key and reason.
fn refused(primary: &str, keys: &str) -> (String, String) {
    let error = shard(primary, keys).expect_err(keys);
    assert_eq!(error.problems().len(), 1, "{error}");
    let problem = &error.problems()[0];
    let key = problem.path.trim_start_matches("ekbatan.configs.lock-config.").to_owned();
    (key, problem.to_string())
}

#[test]
fn locks_use_the_primary_unless_they_have_a_url() {
    let settings = locks("");
    assert_eq!(settings.provider, LockProviderKind::Postgres);
    assert_eq!(settings.strategy, LockStrategy::Lease);
    assert_eq!((&*settings.namespace, &*settings.zone), ("ekbatan-lock", "default"));
    assert_eq!(settings.term, None);
    let server = settings.server;
    assert_eq!((&*server.url, server.username.as_deref()), ("postgres://h/d", Some("app")));
    assert!(server.password.is_some());
    assert_eq!(server.tls_mode, Some(TlsMode::Require));

    // A first pause above the default of the longest one is the only one.
    assert_eq!(locks("retry-sleep: 10s").retry_sleep.0, Duration::from_secs(10));

    let other = locks("url: 'redis://cache', term: 15s, namespace: shop, zone: eu");
    assert_eq!(other.provider, LockProviderKind::Redis);
    assert_eq!((&*other.namespace, &*other.zone), ("shop", "eu"));
    assert_eq!(other.term, Some(Duration::from_secs(15)));
    assert!(other.server.username.is_none() && other.server.password.is_none());
}

#[test]
fn a_separate_user_does_not_inherit_the_password_of_the_primary() {
    let server = locks("username: locker").server;
    assert_eq!(server.username.as_deref(), Some("locker"));
    assert!(server.password.is_none());
}

#[test]
fn the_url_selects_the_provider() {
    for (url, expected) in [
        ("postgres://h/d", LockProviderKind::Postgres),
        ("mysql://h/d", LockProviderKind::MySql),
        ("mariadb://h/d", LockProviderKind::MariaDb),
        ("sqlite:locks.db", LockProviderKind::Sqlite),
        ("redis://h", LockProviderKind::Redis),
        ("rediss://h", LockProviderKind::Redis),
        ("etcd://a:2379,b:2379", LockProviderKind::Etcd),
        ("etcds://h", LockProviderKind::Etcd),
        ("hbase://a:16000,b/table?cluster=c", LockProviderKind::HBase),
        ("mongodb://a:27017,b/locks?replicaSet=r", LockProviderKind::MongoDb),
        ("mongodb+srv://a.example/locks", LockProviderKind::MongoDb),
        ("aerospike://a:3000,b/locks", LockProviderKind::Aerospike),
    ] {
        assert_eq!(locks(&format!("url: '{url}'")).provider, expected, "{url}");
    }
    let mariadb = locks("url: 'mysql://h/d', provider: mariadb, strategy: session");
    assert_eq!(mariadb.provider, LockProviderKind::MariaDb);
    assert_eq!(mariadb.strategy, LockStrategy::Session);
}

#[test]
fn a_jdbc_url_is_accepted() {
    let server = locks("jdbc-url: 'jdbc:postgresql://h2:5433/locks?sslmode=disable'").server;
    assert_eq!(
        (&*server.url, server.tls_mode),
        ("postgres://h2:5433/locks", Some(TlsMode::Disable))
    );
}

#[test]
fn in_process_locks_need_no_server_and_report_unused_keys() {
    let yaml = "ekbatan: {configs: {primary-config: {url: 'sqlite:a.db'}, lock-config: \
                {url: 'redis://h', namespace: x, provider: in-process}}}";
    let config = load(yaml).unwrap();
    let locks = config.sharding.groups[0].members[0].locks().unwrap();
    assert_eq!(locks.provider, LockProviderKind::InProcess);
    assert_eq!(
        config.ignored(),
        ["ekbatan.configs.lock-config.url", "ekbatan.configs.lock-config.namespace"]
    );
}

#[test]
fn an_invalid_value_says_what_to_write() {
    for (keys, key, said) in [
        ("provider: rediss", "provider", "did you mean `redis`?"),
        ("provider: zookeeper", "provider", "expected one of in-process, postgres, mysql"),
        ("provider: redis", "url", "the primary is postgres, so give `url`"),
        (
            "url: 'redis://h', provider: postgres",
            "provider",
            "contradicts the address, which is one of redis",
        ),
        ("url: 'consul://h'", "url", "is not the address of a known lock provider"),
        ("url: 'consul://h'", "url", "mongodb://.., aerospike://.. or hbase://.."),
        ("provider: mongodb", "url", "the primary is postgres, so give `url`"),
        ("url: 'mongodb://h', provider: aerospike", "provider", "which is one of mongodb"),
        ("url: 'mongodb://h', strategy: session", "strategy", "mongodb has no session locks"),
        ("url: 'aerospike://h/n', strategy: session", "strategy", "aerospike has no session locks"),
        ("url: 'aerospike://h/n', grants: asynchronous", "grants", "leases in PostgreSQL only"),
        ("provider: etcd", "url", "the primary is postgres, so give `url`"),
        ("provider: etcdd, url: 'etcd://h'", "provider", "did you mean `etcd`?"),
        ("url: 'etcd://h', strategy: session", "strategy", "etcd has no session locks"),
        ("url: 'etcd://h', grants: asynchronous", "grants", "leases in PostgreSQL only"),
        ("url: 'etcd://h', namespace: '/app'", "namespace", "contains `/`"),
        ("url: 'etcd://a:2379,b:x'", "url", "x"),
        ("url: 'hbase://h', strategy: session", "strategy", "hbase has no session locks"),
        ("url: 'hbase://h', namespace: 'a/b'", "namespace", "contains `/`"),
        ("provider: hbase", "url", "the primary is postgres, so give `url`"),
        ("strategy: sessions", "strategy", "did you mean `session`?"),
        ("url: 'redis://h', strategy: session", "strategy", "redis has no session locks"),
        ("provider: in-process, strategy: session", "strategy", "in-process has no session locks"),
        ("term: 15", "term", "the unit is missing"),
        ("term: 10ms", "term", "at least 1s"),
        ("strategy: session, term: 15s", "term", "or write `strategy: lease`"),
        ("strategy: session, grants: asynchronous", "grants", "leases in PostgreSQL only"),
        ("url: 'redis://cache', grants: asynchronous", "grants", "leases in PostgreSQL only"),
        (
            "retry-sleep: 10s, max-retry-sleep: 1s",
            "max-retry-sleep",
            "is less than retry-sleep, which is 10s",
        ),
        ("max-retry-sleep: 1ms", "max-retry-sleep", "is less than retry-sleep, which is 50ms"),
        ("grants: maybe", "grants", "asynchronous"),
        ("namespace: shop", "namespace", "has no meaning for postgres"),
        ("url: 'redis://h', namespace: 'a{b'", "namespace", "contains `{`"),
        ("zone: 'a#b'", "zone", "contains `#`"),
        ("zone: ' '", "zone", "is blank"),
        ("maximum-pool-size: 0", "maximum-pool-size", "from 1 to 4294967295"),
        ("zome: eu", "zome", "did you mean `zone`?"),
    ] {
        let (at, message) = refused(POSTGRES, keys);
        assert_eq!(at, key, "{keys}: {message}");
        assert!(message.contains(said), "{keys}: {message}");
    }
    for parameter in ["sslcert", "ssl%2Dkey", "host", "port"] {
        let (at, message) = refused(&format!("url: 'postgres://h/d?{parameter}=1'"), "zone: eu");
        assert_eq!(at, "url", "{message}");
        let said = format!(
            "has the parameter `{}`, which locks cannot take over, so give `url`",
            parameter.replace("%2D", "-")
        );
        assert!(message.contains(&said), "{message}");
    }
    for primary in ["postgres:///d?host=/run&port=5433", "postgres://h/d?x=1&options[a]=b"] {
        shard(&format!("url: '{primary}'"), "").unwrap();
    }
    let (at, message) = refused("url: 'postgres://app:secret@h/d'", "username: locker");
    assert_eq!(at, "username", "{message}");
    assert!(
        message.contains("contains the user \"app\"") && !message.contains("secret"),
        "{message}"
    );
}

#[test]
fn lock_keys_are_refused_outside_lock_config() {
    let yaml = "ekbatan: {configs: {primary-config: {url: 'sqlite:a.db', zone: eu}}}";
    let error = load(yaml).unwrap_err();
    assert!(error.to_string().contains("there is no key `zone`"), "{error}");
    let locks = LockConfig::default().zone("eu");
    let config = EkbatanConfig::from(DataSourceConfig::new("sqlite:a.db").locks(locks));
    let error = config.check().unwrap_err();
    assert!(error.to_string().contains("put them into `lock-config`"), "{error}");
}

#[test]
fn the_environment_sets_lock_keys() {
    let config = load_with(
        "ekbatan: {configs: {primary-config: {url: 'postgres://h/d'}}}",
        [
            ("EKBATAN_CONFIGS_LOCK_CONFIG_STRATEGY", "session"),
            ("EKBATAN_CONFIGS_LOCKCONFIG_ZONE", "eu"),
        ],
    )
    .unwrap();
    let locks = config.sharding.groups[0].members[0].locks().unwrap();
    assert_eq!((locks.strategy, &*locks.zone), (LockStrategy::Session, "eu"));
}

#[test]
fn the_same_rules_apply_to_code() {
    let config = EkbatanConfig::single("postgres://h/d");
    let good = LockConfig::of(LockProviderKind::Postgres).strategy(LockStrategy::Session);
    config.clone().locks(good).check().unwrap();
    let bad = LockConfig::default().retry_sleep(Duration::MAX, Duration::MAX);
    let error = config.clone().locks(bad).check().unwrap_err();
    let paths: Vec<_> = error.problems().iter().map(|p| p.path.rsplit('.').next()).collect();
    assert_eq!(paths, [Some("retry-sleep"), Some("max-retry-sleep")], "{error}");
    let bad = LockConfig::of(LockProviderKind::Redis).zone("").term(Duration::ZERO);
    let error = config.locks(bad).check().unwrap_err();
    let paths: Vec<_> = error.problems().iter().map(|p| p.path.rsplit('.').next()).collect();
    assert_eq!(paths, [Some("zone"), Some("url"), Some("term")], "{error}");
}
