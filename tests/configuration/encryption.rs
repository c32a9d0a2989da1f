//! Keys and parameters of encryption take effect, or are refused.

use ekbatan::config::{DataSourceConfig, TlsMode};
use ekbatan::prelude::EkbatanConfig;

use super::{load, problems};

fn yaml(slots: &str) -> String {
    format!("ekbatan: {{configs: {{{slots}}}}}")
}

#[test]
fn root_certificates_that_would_not_be_read_are_refused() {
    let primary = |keys: &str| yaml(&format!("primary-config: {{{keys}}}"));
    let locks = |url: &str, keys: &str| {
        yaml(&format!("primary-config: {{url: '{url}'}}, lock-config: {{{keys}}}"))
    };
    for (yaml, path) in [
        (primary("url: 'postgres://h/d', tls-root-cert: a"), "primary-config.tls-root-cert"),
        (
            primary("url: 'mysql://h/d', tls-mode: require, tls-root-cert: a"),
            "primary-config.tls-root-cert",
        ),
        (
            primary("url: 'mariadb://h/d?ssl-mode=required', tls-root-cert: a"),
            "primary-config.tls-root-cert",
        ),
        (
            primary(
                "url: 'postgres://h/d?sslmode=verify-full', tls-mode: require, tls-root-cert: a",
            ),
            "primary-config.tls-root-cert",
        ),
        (primary("url: 'postgres://h/d?sslrootcert=a'"), "primary-config.url"),
        (primary("url: 'mysql://h/d?ssl-ca=a&ssl-mode=PREFERRED'"), "primary-config.url"),
        (
            primary("jdbc-url: 'jdbc:postgresql://h/d?sslmode=require&sslrootcert=a'"),
            "primary-config.tls-root-cert",
        ),
        (locks("postgres://h/d", "tls-root-cert: a"), "lock-config.tls-root-cert"),
        (locks("sqlite:a", "url: 'mysql://h/d', tls-root-cert: a"), "lock-config.tls-root-cert"),
    ] {
        let found = problems(&yaml);
        assert_eq!(found.len(), 1, "{yaml}\n{found:#?}");
        assert_eq!(found[0].path, format!("ekbatan.configs.{path}"), "{yaml}");
        assert!(found[0].message.contains("write `tls-mode: verify-full`"), "{}", found[0]);
    }
    for yaml in [
        primary("url: 'postgres://h/d', tls-mode: verify-ca, tls-root-cert: a"),
        primary("url: 'postgres://h/d?sslmode=verify-full', tls-root-cert: a"),
        primary("url: 'mysql://h/d?ssl-mode=VERIFY_IDENTITY', tls-root-cert: a"),
        primary("jdbc-url: 'jdbc:postgresql://h/d?ssl=true&sslrootcert=a'"),
        locks("postgres://h/d?sslmode=verify-full", "tls-root-cert: a"),
        locks("postgres://h/d", "tls-root-cert: a, provider: in-process"),
    ] {
        load(&yaml).unwrap_or_else(|error| panic!("{yaml}\n{error}"));
    }
    let in_code = DataSourceConfig::new("postgres://h/d").tls_root_cert("a");
    assert!(EkbatanConfig::from(in_code.clone()).check().is_err());
    EkbatanConfig::from(in_code.tls_mode(TlsMode::VerifyFull)).check().unwrap();
}

#[test]
fn parameters_of_encryption_and_logins_that_a_driver_would_drop_are_refused() {
    for (url, name) in [
        ("mysql://h/d?sslMode=VERIFY_IDENTITY", "sslMode"),
        ("mysql://h/d?useSSL=true", "useSSL"),
        ("mariadb://h/d?verifyServerCertificate=true", "verifyServerCertificate"),
        ("mysql://h/d?user=a", "user"),
        ("mysql://h/d?charset=utf8mb4&password=hunter2", "password"),
        ("postgres://h/d?sslpassword=hunter2", "sslpassword"),
        ("postgres://h/d?ssl=true", "ssl"),
        ("postgres://h/d?username=a", "username"),
    ] {
        for slot in ["primary-config", "lock-config"] {
            let slots = match slot {
                "lock-config" if url.starts_with("postgres") => continue,
                "lock-config" => {
                    format!("primary-config: {{url: 'sqlite:a'}}, lock-config: {{url: '{url}'}}")
                }
                _ => format!("primary-config: {{url: '{url}'}}"),
            };
            let found = problems(&yaml(&slots));
            assert_eq!(found.len(), 1, "{url}\n{found:#?}");
            assert_eq!(found[0].path, format!("ekbatan.configs.{slot}.url"));
            let words = format!("has the parameter `{name}`, which has no effect; remove it");
            assert!(found[0].message.contains(&words), "{}", found[0]);
            assert!(!found[0].to_string().contains("hunter2"), "{}", found[0]);
        }
    }
    let found = problems(&yaml("primary-config: {jdbc-url: 'jdbc:mysql://h/d?requireSSL=true'}"));
    assert!(found[0].message.contains("has the parameter `requireSSL`"), "{found:?}");
    let malformed = problems(&yaml("primary-config: {url: 'mysql://h/d?hunter2:x'}"));
    assert!(malformed[0].message.contains("a parameter with a malformed name"), "{malformed:?}");
    // The application opens the connections of other slots.
    for url in ["mysql://h/d?useSSL=true", "postgres://h/d?sslmode=require&sslrootcert=a"] {
        load(&yaml(&format!("primary-config: {{url: 'sqlite:a'}}, report: {{url: '{url}'}}")))
            .unwrap();
    }
}

#[test]
fn a_mode_of_encryption_that_does_not_exist_is_refused() {
    let postgres = "write one of disable, prefer, require, verify-ca, verify-full, or";
    let mysql = "write one of DISABLED, PREFERRED, REQUIRED, VERIFY_CA, VERIFY_IDENTITY, or";
    for (url, name, modes) in [
        ("postgres://h/d?sslmode=nope", "sslmode", postgres),
        ("postgres://h/d?sslmode=REQUIRED&sslmode=require", "sslmode", postgres),
        ("postgres://h/d?ssl%2Dmode=", "ssl-mode", postgres),
        ("mysql://h/d?ssl-mode=verify-ca", "ssl-mode", mysql),
        ("mariadb://h/d?sslmode=require", "sslmode", mysql),
    ] {
        for (slot, slots) in [
            ("primary-config", format!("primary-config: {{url: '{url}'}}")),
            (
                "lock-config",
                format!("primary-config: {{url: 'sqlite:a'}}, lock-config: {{url: '{url}'}}"),
            ),
        ] {
            let found = problems(&yaml(&slots));
            assert_eq!(found.len(), 1, "{url}\n{found:#?}");
            assert_eq!(found[0].path, format!("ekbatan.configs.{slot}.url"));
            let words = format!("in `{name}` that does not exist; {modes} the key `tls-mode`");
            assert!(found[0].message.contains(&words), "{}", found[0]);
        }
    }
    for url in [
        "postgres://h/d?sslmode=Require",
        "postgres://h/d?ssl-mode=allow",
        "mysql://h/d?ssl-mode=verify_ca",
        "mariadb://h/d?ssl%2Dmode=DISABLED",
        "postgres://h/d?sslmode=require#primary",
        "mysql://h/d?ssl-mode=REQUIRED ",
    ] {
        load(&yaml(&format!("primary-config: {{url: '{url}'}}"))).unwrap();
    }
}

#[test]
fn parameters_of_an_address_without_effect_are_listed() {
    for (url, names) in [
        ("postgres://h/d?sslmode=require&options[search_path]=a&user=a&password=b", &[][..]),
        ("postgres://h/d?x=1&connect_timeout=3", &["x", "connect_timeout"]),
        ("mysql://h/d?ssl-mode=REQUIRED&charset=utf8mb4", &[]),
        ("mariadb://h/d?reconnect=true&timezone=UTC", &["reconnect", "timezone"]),
    ] {
        let config = load(&yaml(&format!("primary-config: {{url: '{url}'}}"))).unwrap();
        let at = "ekbatan.configs.primary-config.url";
        let names: Vec<_> = names.iter().map(|name| format!("{at}?{name}")).collect();
        assert_eq!(config.ignored(), names, "{url}");
    }
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn parameters_without_effect_are_not_logged() {
    let (recorder, _guard) = support::Recorder::start();
    let timeout = std::time::Duration::from_millis(50);
    let config = DataSourceConfig::new("postgres://127.0.0.1:1/d?pass=hunter2");
    let config = EkbatanConfig::from(config.connection_timeout(timeout));
    // Nothing listens there.
    assert!(ekbatan::prelude::Databases::connect(&config).await.is_err());
    let logged = format!("{:?}", recorder.all());
    assert!(!logged.contains("hunter2"), "{logged}");
}
