//! Random documents are loaded or refused, and a printed configuration loads unchanged.

use std::fmt::Write as _;
use std::time::Duration;

use ekbatan::config::{DataSourceConfig, Durability, TlsMode};
use ekbatan::prelude::EkbatanConfig;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestRunner};

use super::{load, primary};

/// Every run has the same cases.
fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        failure_persistence: None,
        rng_algorithm: RngAlgorithm::ChaCha,
        rng_seed: RngSeed::Fixed(0x0ec8_a7a4),
        ..Config::default()
    })
}

const KEYS: [&str; 30] = [
    "ekbatan",
    "namespace",
    "sharding",
    "configs",
    "jobs",
    "default-shard",
    "defaultShard",
    "group",
    "member",
    "groups",
    "members",
    "name",
    "primary-config",
    "primaryConfig",
    "secondary-config",
    "lock-config",
    "url",
    "jdbc-url",
    "username",
    "password",
    "maximum-pool-size",
    "minimum-idle",
    "idle-timeout",
    "leak-detection-threshold",
    "max-lifetime",
    "tls-mode",
    "durability",
    "polling-interval",
    "unknown-shard",
    "x",
];

fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        (-2_i16..300).prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| number.to_string()),
        any::<bool>().prop_map(|flag| flag.to_string()),
        Just("~".to_owned()),
        Just("[]".to_owned()),
        Just("{}".to_owned()),
        prop::sample::select(vec![
            "PT10S",
            "10s",
            "0",
            "error",
            "verify-ca",
            "'${X}'",
            "'${X:y}'",
            "'${'",
            "'$${'",
            "'jdbc:postgresql://a,b/c?sslmode=x'",
            "'postgres://u:p@h/d?a=b'",
            "sqlite:x.db",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,12}".prop_map(|text| format!("{text:?}")),
    ]
}

/// A tree of known and random keys in the flow style of YAML.
fn tree() -> impl Strategy<Value = String> {
    scalar().prop_recursive(7, 60, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4)
                .prop_map(|items| format!("[{}]", items.join(", "))),
            prop::collection::btree_map(prop::sample::select(KEYS.to_vec()), inner, 0..5).prop_map(
                |map| {
                    let entries: Vec<_> =
                        map.iter().map(|(key, value)| format!("{key}: {value}")).collect();
                    format!("{{{}}}", entries.join(", "))
                }
            ),
        ]
    })
}

/// A document with a valid outline and arbitrary leaves.
fn outline() -> impl Strategy<Value = String> {
    prop::collection::vec(scalar(), 12).prop_map(|s| {
        format!(
            "ekbatan:\n  namespace: {}\n  sharding:\n    default-shard: {{group: {}, member: {}}}\n    unknown-shard: {}\n    groups:\n      - group: {}\n        name: {}\n        members:\n          - member: {}\n            configs:\n              primary-config: {{url: {}, password: {}, maximum-pool-size: {}, idle-timeout: {}, tls-mode: {}}}\n",
            s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], s[10], s[11],
        )
    })
}

#[test]
fn the_loader_accepts_or_refuses_any_document() {
    let documents = prop_oneof![
        tree(),
        tree().prop_map(|tree| format!("ekbatan: {tree}")),
        outline(),
        "\\PC{0,80}",
        "[ \\n:{}\\[\\]#&*!|>'\"%@`a-c0-2-]{0,60}",
    ];
    let names = "EKBATAN_[A-Z0-9_]{0,40}";
    let result = runner(800).run(&(documents, names, "\\PC{0,20}"), |(text, name, value)| {
        let loaded = EkbatanConfig::loader().yaml(&text).env_from([(&name, &value)]).load();
        match loaded {
            Ok(config) => prop_assert!(config.check().is_ok()),
            Err(error) => {
                prop_assert!(!error.problems().is_empty());
                prop_assert!(error.problems().iter().all(|p| !p.message.is_empty()));
                let _ = error.to_string();
            }
        }
        Ok(())
    });
    result.unwrap();
}

fn source() -> impl Strategy<Value = DataSourceConfig> {
    let time = || (1_u64..10_000_000).prop_map(Duration::from_millis);
    let text = "[a-zA-Z0-9 _.:'\"#{}-]{0,10}[a-z]";
    (
        (text, prop::option::of(text), 1_usize..500, 1_usize..9, 1_usize..99),
        (time(), time(), time(), time(), time(), prop::option::of(time())),
        (any::<bool>(), prop::option::of(0..5_usize), prop::option::of(text)),
    )
        .prop_map(
            |(
                (name, username, size, lanes, fold),
                (connect, read, commit, settle, idle, statement),
                (wal, tls, cert),
            )| {
                let mut source = DataSourceConfig::new("postgres://db.example:5432/shop")
                    .application_name(name)
                    .maximum_pool_size(size)
                    .minimum_idle(size / 2)
                    .lanes(lanes)
                    .fold_limit(fold)
                    .connection_timeout(connect)
                    .read_timeout(read)
                    .max_row_bytes(size)
                    .max_commit_bytes(lanes)
                    .commit_timeout(commit)
                    .settle_timeout(settle)
                    .idle_timeout(idle)
                    .durability(if wal { Durability::Wal } else { Durability::Full });
                source.username = username;
                source.statement_timeout = statement;
                // Without a mode that verifies, root certificates are refused.
                let verifies = tls.is_some_and(|at| TLS[at].0.starts_with("verify"));
                source.tls_root_cert = cert.filter(|_| verifies).map(Into::into);
                source.tls_mode = tls.map(|at| TLS[at].1);
                source
            },
        )
}

const TLS: [(&str, TlsMode); 5] = [
    ("disable", TlsMode::Disable),
    ("prefer", TlsMode::Prefer),
    ("require", TlsMode::Require),
    ("verify-ca", TlsMode::VerifyCa),
    ("verify-full", TlsMode::VerifyFull),
];

/// The configuration without passwords, which are not printed.
fn printed(source: &DataSourceConfig) -> String {
    let mut yaml = "ekbatan:\n  configs:\n    primary-config:\n".to_owned();
    let mut line = |key: &str, value: String| writeln!(yaml, "      {key}: {value}").unwrap();
    let text = |text: &str| format!("'{}'", text.replace('\'', "''").replace("${", "$${"));
    let time = |time: Duration| format!("{}ms", time.as_millis());
    line("url", text(&source.url));
    if let Some(name) = &source.username {
        line("username", text(name));
    }
    if let Some(mode) = source.tls_mode {
        line("tls-mode", TLS.iter().find(|(_, known)| *known == mode).unwrap().0.to_owned());
    }
    if let Some(file) = &source.tls_root_cert {
        line("tls-root-cert", text(file.to_str().unwrap()));
    }
    line("maximum-pool-size", source.maximum_pool_size.to_string());
    line("minimum-idle", source.minimum_idle.to_string());
    line("lanes", source.lanes.unwrap().to_string());
    line("fold-limit", source.fold_limit.to_string());
    line("idle-timeout", time(source.idle_timeout));
    line("max-lifetime", time(source.max_lifetime));
    line("leak-detection-threshold", time(source.leak_detection_threshold));
    line("connection-timeout", time(source.connection_timeout));
    line("max-row-bytes", source.max_row_bytes.to_string());
    line("max-commit-bytes", source.max_commit_bytes.to_string());
    line("read-timeout", time(source.read_timeout));
    line("commit-timeout", time(source.commit_timeout));
    line("settle-timeout", time(source.settle_timeout));
    if let Some(timeout) = source.statement_timeout {
        line("statement-timeout", time(timeout));
    }
    line("application-name", text(&source.application_name));
    line(
        "durability",
        if source.durability == Durability::Wal { "wal" } else { "full" }.to_owned(),
    );
    yaml
}

#[test]
fn a_printed_configuration_loads_unchanged() {
    let result = runner(300).run(&source(), |source| {
        let yaml = printed(&source);
        let loaded =
            load(&yaml).map_err(|error| TestCaseError::fail(format!("{error}\n{yaml}")))?;
        prop_assert_eq!(format!("{:?}", primary(&loaded)), format!("{:?}", source));
        Ok(())
    });
    result.unwrap();
}

#[test]
fn documents_that_expand_without_bound_are_refused() {
    let deep = "[".repeat(20_000);
    let nested = format!("ekbatan: {}{}", "{a: ".repeat(5_000), "}".repeat(5_000));
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..12 {
        let last = format!("*a{}", n - 1);
        writeln!(bomb, "a{n}: &a{n} [{}]", [last.as_str(); 9].join(", ")).unwrap();
    }
    for text in [deep, nested, bomb] {
        assert!(load(&text).is_err());
    }
}
