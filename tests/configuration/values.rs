//! Values and the spellings of keys.

use std::time::Duration;

use ekbatan::config::{DataSourceConfig, Durability, ExposeSecret, TlsMode, UnknownShard};
use ekbatan::prelude::{Databases, EkbatanConfig};
use support::Recorder;

use super::{database, load, load_with, primary};

#[test]
fn behaviour_96_kebab_camel_and_mixed_keys_bind_identically() {
    let kebab = "ekbatan:
  sharding:
    default-shard: {group: 1, member: 2}
    unknown-shard: default-shard
    groups:
      - group: 1
        name: g
        members:
          - member: 2
            configs:
              primary-config: {jdbc-url: 'jdbc:postgresql://h/d', maximum-pool-size: 7, minimum-idle: 2}
              lock-config: {jdbc-url: 'jdbc:postgresql://h/d', idle-timeout: 600000}
";
    let expected = load(kebab).unwrap();
    assert_eq!(expected.sharding.unknown_shard, UnknownShard::DefaultShard);
    assert_eq!(expected.sharding.shards().next().unwrap().0, expected.sharding.default_shard);
    let camel = [
        ("default-shard:", "defaultShard:"),
        ("unknown-shard:", "unknownShard:"),
        ("primary-config", "primaryConfig"),
        ("lock-config", "lockConfig"),
        ("jdbc-url", "jdbcUrl"),
        ("maximum-pool-size", "maximumPoolSize"),
        ("minimum-idle", "minimumIdle"),
        ("idle-timeout", "idleTimeout"),
    ];
    let all = camel.iter().fold(kebab.to_owned(), |text, (from, to)| text.replace(from, to));
    let mixed =
        camel.iter().step_by(2).fold(kebab.to_owned(), |text, (from, to)| text.replace(from, to));
    let snake = camel
        .iter()
        .fold(kebab.to_owned(), |text, (from, _)| text.replace(from, &from.replace('-', "_")));
    for text in [all, mixed, snake] {
        assert_eq!(format!("{:?}", load(&text).unwrap()), format!("{expected:?}"), "{text}");
    }
}

#[test]
fn behaviour_96_an_empty_password_is_a_password() {
    assert!(database("").unwrap().password.is_none());
    let empty = database("password: ''").unwrap();
    assert_eq!(empty.password.unwrap().expose_secret(), "");
    let yaml = "ekbatan: {configs: {primary-config: {url: 'postgres://h/d'}}}";
    let config = load_with(yaml, [("EKBATAN_CONFIGS_PRIMARY_CONFIG_PASSWORD", "")]).unwrap();
    assert_eq!(primary(&config).password.unwrap().expose_secret(), "");
}

#[test]
fn behaviour_96_time_spans_are_iso_8601_or_a_number_with_its_unit() {
    for (text, expected) in [
        ("PT10S", Duration::from_secs(10)),
        ("PT0.5S", Duration::from_millis(500)),
        ("PT1M30S", Duration::from_secs(90)),
        ("P7D", Duration::from_secs(7 * 86_400)),
        ("10s", Duration::from_secs(10)),
        ("500ms", Duration::from_millis(500)),
        ("5m", Duration::from_secs(300)),
        ("1h", Duration::from_secs(3_600)),
    ] {
        let source = database(&format!("connection-timeout: {text}")).unwrap();
        assert_eq!(source.connection_timeout, expected, "{text}");
    }
}

#[test]
fn a_time_that_is_too_long_is_refused_as_it_is_written() {
    for text in ["25d", "999999999999999999d", "P100000000D"] {
        for key in ["connection-timeout", "read-timeout", "max-lifetime"] {
            let error = database(&format!("{key}: {text}")).unwrap_err().to_string();
            let found = format!("{key} = \"{text}\": is too long; at most 24d");
            assert!(error.contains(&found), "{error}");
        }
    }
    let source = database("connection-timeout: 24d").unwrap();
    assert_eq!(source.connection_timeout, Duration::from_secs(24 * 86_400));
}

#[test]
fn a_bare_number_means_milliseconds_only_in_keys_of_the_reference() {
    let source = database("idle-timeout: 600000, leak-detection-threshold: '2000'").unwrap();
    assert_eq!(source.idle_timeout, Duration::from_secs(600));
    assert_eq!(source.leak_detection_threshold, Duration::from_secs(2));
    for key in ["connection-timeout", "max-lifetime", "commit-timeout", "statement-timeout"] {
        let error = database(&format!("{key}: 60000")).unwrap_err().to_string();
        assert!(error.contains("the unit is missing; write it as `500ms`, `10s`"), "{error}");
    }
}

#[test]
fn absent_keys_have_defaults() {
    let source = database("").unwrap();
    assert_eq!((source.maximum_pool_size, source.minimum_idle), (10, 0));
    assert_eq!((source.lanes, source.fold_limit, source.queue_limit), (None, 64, 10_000));
    assert_eq!((source.max_row_bytes, source.max_commit_bytes), (16 << 20, 64 << 20));
    assert_eq!(source.read_timeout, Duration::from_secs(60));
    assert_eq!(source.idle_timeout, Duration::from_secs(600));
    assert_eq!(source.max_lifetime, Duration::from_secs(1_800));
    assert_eq!(source.leak_detection_threshold, Duration::ZERO);
    assert_eq!((source.statement_timeout, source.tls_mode), (None, None));
    assert_eq!((source.username, source.application_name.as_str()), (None, "ekbatan"));
}

#[test]
fn every_key_of_a_database_is_read() {
    let source = database(
        "username: app, password: '0123', tls-mode: verify-full, tls-root-cert: ca.pem, \
         maximum-pool-size: 4, minimum-idle: 1, idle-timeout: 0, max-lifetime: 1h, \
         leak-detection-threshold: 2s, connection-timeout: 1s, statement-timeout: 2s, \
         read-timeout: 5s, commit-timeout: 3s, settle-timeout: 4s, lanes: 3, fold-limit: 5, queue-limit: 6, \
         max-row-bytes: 6, max-commit-bytes: 7, \
         application-name: shop, durability: wal",
    )
    .unwrap();
    assert_eq!(source.username.as_deref(), Some("app"));
    assert_eq!(source.password.unwrap().expose_secret(), "0123");
    assert_eq!(source.tls_mode, Some(TlsMode::VerifyFull));
    assert_eq!(source.tls_root_cert, Some("ca.pem".into()));
    assert_eq!((source.maximum_pool_size, source.minimum_idle), (4, 1));
    assert_eq!((source.lanes, source.fold_limit, source.queue_limit), (Some(3), 5, 6));
    let times = [
        source.idle_timeout,
        source.connection_timeout,
        source.statement_timeout.unwrap(),
        source.commit_timeout,
        source.settle_timeout,
        source.max_lifetime,
        source.read_timeout,
    ];
    assert_eq!(times.map(|time| time.as_secs()), [0, 1, 2, 3, 4, 3_600, 5]);
    assert_eq!((source.max_row_bytes, source.max_commit_bytes), (6, 7));
    assert_eq!((source.application_name.as_str(), source.durability), ("shop", Durability::Wal));
}

#[test]
fn parameters_of_a_jdbc_url_are_applied() {
    let source =
        database("jdbc-url: 'jdbc:postgresql://h:5433/d?sslmode=require&user=app&password=x'")
            .unwrap();
    assert_eq!(source.url, "postgres://h:5433/d");
    assert_eq!(source.tls_mode, Some(TlsMode::Require));
    assert_eq!(source.username.as_deref(), Some("app"));
    let source =
        database("jdbc-url: 'jdbc:postgresql://h/d?sslmode=require', tls-mode: disable").unwrap();
    assert_eq!(source.tls_mode, Some(TlsMode::Disable), "the key wins");
}

#[test]
fn variables_in_texts_and_numbers_are_replaced() {
    let yaml = "ekbatan: {configs: {primary-config: {url: 'postgres://${HOST}:${PORT:5432}/d', \
                lanes: '${LANES}', password: '$${x}'}}}";
    let config = load_with(yaml, [("HOST", "db"), ("LANES", "3")]).unwrap();
    let source = primary(&config);
    assert_eq!((source.url.as_str(), source.lanes), ("postgres://db:5432/d", Some(3)));
    assert_eq!(source.password.unwrap().expose_secret(), "${x}");
}

#[test]
fn the_default_of_a_variable_may_be_another_variable() {
    let yaml = "ekbatan: {configs: {primary-config: {url: 'postgres://h/d', \
                password: '${DB_PASSWORD:${PASSWORD:}}'}}}";
    let password =
        |config: EkbatanConfig| primary(&config).password.unwrap().expose_secret().to_owned();
    assert_eq!(password(load_with(yaml, [("DB_PASSWORD", "x")]).unwrap()), "x");
    assert_eq!(password(load_with(yaml, [("PASSWORD", "${y}")]).unwrap()), "${y}");
    assert_eq!(password(load(yaml).unwrap()), "");
}

#[test]
fn keys_of_the_application_are_ignored() {
    let config = load(
        "server: {port: 80, 1: [~, {}]}\nekbatan: {configs: {primary-config: {url: 'sqlite:a.db'}}}\n",
    );
    assert!(config.unwrap().ignored().is_empty());
}

#[test]
fn parameters_of_a_jdbc_address_without_effect_are_listed() {
    let url = "jdbc:postgresql://h/d?reWriteBatchedInserts=true";
    let config = load(&format!("ekbatan: {{configs: {{primaryConfig: {{jdbcUrl: '{url}'}}}}}}"));
    assert_eq!(
        config.unwrap().ignored(),
        ["ekbatan.configs.primary-config.jdbc-url?reWriteBatchedInserts"]
    );
}

#[test]
fn the_name_of_sessions_in_an_address_is_used() {
    for (keys, name) in [
        ("url: 'postgres://h/d?application_name=my%20shop'", "my shop"),
        ("jdbc-url: 'jdbc:postgresql://h/d?ApplicationName=shop'", "shop"),
        ("url: 'postgres://h/d?application_name=shop', application-name: till", "till"),
        ("jdbc-url: 'jdbc:postgresql://h/d?ApplicationName=shop', application-name: till", "till"),
        ("url: 'postgres://h/d'", "ekbatan"),
    ] {
        assert_eq!(database(keys).unwrap().application_name, name, "{keys}");
    }
    let in_code = DataSourceConfig::new("postgres://h/d?application_name=shop");
    assert_eq!(in_code.application_name, "shop");
}

#[tokio::test]
async fn a_slot_is_found_in_any_spelling() {
    let file = ekbatan_testkit::TempSqlite::new().unwrap();
    let yaml = format!(
        "ekbatan: {{configs: {{primary-config: {{url: '{0}'}}, reporting-config: {{url: '{0}'}}}}}}",
        file.url()
    );
    let databases = Databases::connect(&load(&yaml).unwrap()).await.unwrap();
    let shard = databases.default_shard();
    for name in ["reportingConfig", "reporting-config", "REPORTING_CONFIG"] {
        assert_eq!(shard.slot(name).unwrap().name(), "reportingConfig", "{name}");
    }
    assert!(shard.slot("primary-config").is_none() && shard.slot("report-config").is_none());
    databases.close().await;
}

#[test]
fn settings_of_java_that_others_override_are_listed() {
    let listed = |slots: &str| {
        load(&format!("ekbatan: {{configs: {{{slots}}}}}")).unwrap().ignored().to_vec()
    };
    let url = "jdbc-url: 'jdbc:postgresql://h/d?user=a&password=x'";
    let at = "ekbatan.configs.primary-config.jdbc-url";
    assert!(listed(&format!("primary-config: {{{url}}}")).is_empty());
    assert_eq!(
        listed(&format!("primary-config: {{{url}, username: b, password: y}}")),
        [format!("{at}?user"), format!("{at}?password")]
    );
    assert_eq!(
        listed("primary-config: {url: 'sqlite:a'}, jobsConfig: {url: 'sqlite:b'}"),
        ["ekbatan.configs.jobs-config"]
    );
}

#[test]
fn keys_of_other_dialects_are_listed() {
    for (keys, names) in [
        ("url: 'sqlite:a', durability: wal, eventlog: x", &["eventlog"][..]),
        ("url: 'postgres://h/d', durability: wal, eventlog: x", &["eventlog", "durability"]),
        ("url: 'mysql://h/d', durability: wal, eventlog: x", &["durability"]),
        ("jdbc-url: 'jdbc:mariadb://h/d', durability: full", &["durability"]),
        ("url: 'mariadb://h/d', eventlog: x", &[]),
    ] {
        let config =
            load(&format!("ekbatan: {{configs: {{primary-config: {{{keys}}}}}}}")).unwrap();
        let names: Vec<_> =
            names.iter().map(|name| format!("ekbatan.configs.primary-config.{name}")).collect();
        assert_eq!(config.ignored(), names, "{keys}");
    }
}

#[test]
fn events_may_be_kept_for_longer_than_a_timeout() {
    for section in
        ["local-event-handler: {handling-retention-window: P30D}", "events: {max-age: 30d}"]
    {
        let yaml =
            format!("ekbatan: {{configs: {{primary-config: {{url: 'sqlite:a'}}}}, {section}}}");
        assert_eq!(load(&yaml).unwrap().events.max_age, Duration::from_secs(30 * 86_400));
    }
}

#[test]
fn keys_without_effect_are_listed_in_one_warning() {
    let (recorder, _guard) = Recorder::start();
    let load_url = |parameters: &str| {
        let url = format!("jdbc:postgresql://u:hunter2@h/d{parameters}");
        load(&format!("ekbatan: {{configs: {{primary-config: {{jdbc-url: '{url}'}}}}}}")).unwrap();
    };
    load_url("");
    load_url("?reWriteBatchedInserts=true&prepareThreshold=1");
    let events = recorder.all();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].level, tracing::Level::WARN);
    let fields = format!("{:?}", events[0].fields);
    for parameter in ["jdbc-url?reWriteBatchedInserts", "jdbc-url?prepareThreshold"] {
        assert!(fields.contains(parameter), "{fields}");
    }
}
