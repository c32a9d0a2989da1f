//! No output or error shows a password.

use ekbatan::config::{DataSourceConfig, RelayBroker, RelayConfig};
use ekbatan::prelude::EkbatanConfig;

use super::{load, load_with};

const SECRET: &str = "hunter2";

fn check_hidden(shown: &str) {
    assert!(!shown.contains(SECRET), "{shown}");
}

#[test]
fn debug_masks_passwords() {
    for source in [
        DataSourceConfig::new("postgres://app:hunter2@h/d"),
        DataSourceConfig::new("postgres://h/d?user=a&password=hunter2"),
        DataSourceConfig::new("postgres://h/d").password(SECRET),
    ] {
        let shown = format!("{source:?} {source:#?}");
        assert!(shown.contains("***"), "{shown}");
        check_hidden(&shown);
        check_hidden(&format!("{:?}", source.password));
        let config = EkbatanConfig::from(source.clone()).replica(source);
        check_hidden(&format!("{config:?} {:?} {:#?}", config.sharding, config.sharding.groups));
    }
}

#[test]
fn debug_masks_passwords_of_relays() {
    let mut relay = RelayConfig::new("wallets", RelayBroker::RabbitMq);
    relay.url = Some("amqp://app:hunter2@rabbit:5672".to_owned());
    relay.password = Some(SECRET.into());
    let config = EkbatanConfig::single("sqlite:wallets.db").relay(relay.clone());
    for shown in [format!("{relay:?} {relay:#?}"), format!("{config:?}")] {
        assert!(shown.contains("amqp://app:***@rabbit:5672"), "{shown}");
        check_hidden(&shown);
    }
}

#[test]
fn a_loader_and_a_loaded_configuration_show_no_password() {
    let yaml = "ekbatan: {configs: {primary-config: {jdbc-url: 'jdbc:postgresql://a:${PW}@h/d'}, \
                lock-config: {url: 'redis://:hunter2@h', maximum-pool-size: 1}, \
                reporting-config: {url: 'postgres://h/d', password: hunter2}}}";
    let config = load_with(yaml, [("PW", SECRET)]).unwrap();
    check_hidden(&format!("{config:?}"));
}

#[test]
fn errors_show_no_password_from_any_place() {
    for keys in [
        "url: 'postgres://a:hunter2@x,y/d'",
        "url: 'postgres://a:hunter2@h/d', password: hunter2",
        "url: 'postgres://a:hunter2@h/d', username: b",
        "url: 'oracle://a:hunter2@h/d'",
        "url: 'jdbc:postgresql://a:hunter2@h/d'",
        "url: 'postgres:/a:hunter2@h/d', lanes: 0",
        "url: [hunter2]",
        "url: {password: hunter2}",
        "url: a, pasword: hunter2",
        "url: a, password: [hunter2]",
        "url: a, password: {hunter2: 1}, lanes: 0",
        "jdbc-url: 'jdbc:oracle:thin:@h?password=hunter2'",
        "jdbc-url: 'jdbc:postgresql://a:hunter2@x,y/d'",
        "jdbc-url: 'postgresql://a:hunter2@h/d'",
        "url: 'postgres://a:${PW}@x,y/d', password: '${PW}${NONE}'",
        "url: 'postgres://h/d', password: '${NONE:hunter2', lanes: '${PW}', tls-mode: '${PW}', max-lifetime: '${PW}'",
    ] {
        let yaml = format!("ekbatan: {{configs: {{primary-config: {{{keys}}}}}}}");
        let error = load_with(&yaml, [("PW", SECRET)]).unwrap_err();
        check_hidden(&format!("{error} {error:?}"));
    }
    for yaml in [
        "ekbatan: {configs: {primary-config: 'postgres://a:hunter2@h/d'}}",
        "ekbatan: {configs: 'postgres://a:hunter2@h/d'}",
        "ekbatan: 'postgres://a:hunter2@h/d'",
        "ekbatan: [hunter2]",
        "ekbatan: {configs: {primary-config: {postgres://a:hunter2@h/d}}}",
        "ekbatan: {configs: {postgres://a:hunter2@h/d}}",
        "hunter2",
        "ekbatan: {configs: {primary-config: {url: 'sqlite:a', password: hunter2: hunter2}}}",
        "ekbatan: {password: 'hunter2",
        "ekbatan: {password: *hunter2}",
    ] {
        let error = load(yaml).unwrap_err();
        check_hidden(&format!("{error} {error:?}"));
    }
}

/// A password of a text that a login may not contain as it is.
#[test]
fn a_login_that_ends_early_is_named_and_not_shown() {
    for password in ["hun/ter2", "hun?ter2", "hun#ter2", "1234/ter2", "/ter2", "1234?x=ter2"] {
        for url in ["postgres://app:${PW}@h/d", "mysql://app:${PW}@h:3306/d", "redis://:${PW}@h"] {
            let slot = if url.starts_with("redis") {
                format!("primary-config: {{url: 'sqlite:a'}}, lock-config: {{url: '{url}'}}")
            } else {
                format!("primary-config: {{url: '{url}'}}")
            };
            let yaml = format!("ekbatan: {{configs: {{{slot}}}}}");
            let error = load_with(&yaml, [("PW", password)]).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(shown.contains("percent-encode these characters"), "{shown}");
            for piece in ["hun", "ter2", "1234"] {
                assert!(!shown.contains(piece), "{piece}: {shown}");
            }
        }
    }
    let yaml =
        "ekbatan: {configs: {primary-config: {jdbc-url: 'jdbc:postgresql://a:hun/ter2@h/d'}}}";
    let shown = load(yaml).unwrap_err().to_string();
    assert!(!shown.contains("hun") && !shown.contains("ter2"), "{shown}");
}

#[test]
fn a_login_of_a_relay_that_ends_early_is_named_and_not_shown() {
    for password in ["hun/ter2", "hun?ter2", "hun#ter2", "1234/ter2", "/ter2", "1234?x=ter2"] {
        for relay in [
            "broker: nats, stream: s, url: 'nats://app:${PW}@h'",
            "broker: nats, stream: s, url: 'nats://h:4222, app:${PW}@i:4222'",
            "broker: nats, stream: s, url: 'tls://app:pw@h,tls://app:${PW}@i'",
            "broker: rabbitmq, url: 'amqp://app:${PW}@h/v'",
            "broker: rabbitmq, url: 'amqps://app:${PW}@h:5671'",
        ] {
            let yaml = format!(
                "ekbatan: {{configs: {{primary-config: {{url: 'sqlite:a'}}}}, relay: [{{name: a, {relay}}}]}}"
            );
            let error = load_with(&yaml, [("PW", password)]).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(shown.contains("percent-encode these characters"), "{relay}: {shown}");
            for piece in ["hun", "ter2", "1234"] {
                assert!(!shown.contains(piece), "{piece}: {shown}");
            }
        }
    }
}

#[test]
fn errors_show_no_password_of_the_environment_or_code() {
    for name in ["PASSWORD", "PASSWROD", "JDBC_URL", "URL"] {
        let name = format!("EKBATAN_CONFIGS_PRIMARY_CONFIG_{name}");
        let error = EkbatanConfig::loader()
            .yaml("ekbatan: {configs: {primary-config: {url: 'sqlite:a', lanes: 0}}}")
            .env_from([(name.as_str(), "jdbc:x://a:hunter2@h,i/d")])
            .load()
            .unwrap_err();
        check_hidden(&format!("{error} {error:?}"));
    }
    let loader = EkbatanConfig::loader()
        .yaml("ekbatan: {configs: {primary-config: {password: hunter2}}}")
        .env_from([("PASSWORD", SECRET)])
        .set("ekbatan.configs.primary-config.url", "postgres://a:hunter2@x,y/d")
        .set("ekbatan.configs.primary-config.passwrod", SECRET)
        .set("ekbatan.configs.primary-config.password", [SECRET]);
    check_hidden(&format!("{loader:?}"));
    let error = loader.load().unwrap_err();
    check_hidden(&format!("{error} {error:?}"));
}

#[test]
fn check_shows_no_password() {
    let source = DataSourceConfig::new("postgres://a:hunter2@x,y/d").password(SECRET).username("b");
    let error = EkbatanConfig::from(source).check().unwrap_err();
    assert_eq!(error.problems().len(), 3, "{error}");
    check_hidden(&format!("{error} {error:?}"));
}
