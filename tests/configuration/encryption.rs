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
