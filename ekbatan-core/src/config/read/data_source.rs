//! Makes the settings of one database from its section.

use super::jdbc;
use super::section::Section;
use crate::config::address::dialect;
use crate::config::data_source::{DataSourceConfig, Durability, TlsMode, application_name};
use crate::config::dialect::Dialect;
use crate::config::findings::Findings;
use crate::config::lock_config::{LockConfig, LockProviderKind, LockStrategy};
use crate::config::parameters::without_effect;
use crate::config::shown_address::shown;

/// Makes the settings of one database. `ignored` receives the paths that have no effect.
pub(super) fn data_source(
    mut section: Section,
    findings: &mut Findings,
    ignored: &mut Vec<String>,
) -> DataSourceConfig {
    let mut config = DataSourceConfig::new(String::new());
    config.locks = locks(&mut section, ignored);
    address(&mut config, &mut section, findings, ignored);

    ignored.extend(keys_of_other_dialects(&section, dialect(&config.url)));

    config.username = section.text("username").or(config.username.take());
    if let Some(password) = section.text("password") {
        config = config.password(password);
    }
    if let Some(word) = section.word("tls-mode") {
        config.tls_mode = tls_mode(word);
    }
    if let Some(file) = section.text("tls-root-cert") {
        config = config.tls_root_cert(file);
    }
    for (key, field) in [
        ("maximum-pool-size", &mut config.maximum_pool_size),
        ("minimum-idle", &mut config.minimum_idle),
        ("fold-limit", &mut config.fold_limit),
        ("max-row-bytes", &mut config.max_row_bytes),
        ("max-commit-bytes", &mut config.max_commit_bytes),
        ("queue-limit", &mut config.queue_limit),
    ] {
        if let Some(count) = section.count(key).and_then(|count| count.try_into().ok()) {
            *field = count;
        }
    }
    for (key, field) in [
        ("idle-timeout", &mut config.idle_timeout),
        ("max-lifetime", &mut config.max_lifetime),
        ("leak-detection-threshold", &mut config.leak_detection_threshold),
        ("connection-timeout", &mut config.connection_timeout),
        ("read-timeout", &mut config.read_timeout),
        ("commit-timeout", &mut config.commit_timeout),
        ("settle-timeout", &mut config.settle_timeout),
    ] {
        if let Some(time) = section.time(key) {
            *field = time;
        }
    }
    config.lanes = section.count("lanes").and_then(|count| count.try_into().ok());
    config.statement_timeout = section.time("statement-timeout");
    if let Some(name) = section.text("application-name") {
        config.application_name = name;
    }
    if let Some(database) = section.text("eventlog") {
        config.eventlog = database;
    }
    if section.word("durability") == Some("wal") {
        config.durability = Durability::Wal;
    }
    config
}

/// The paths of the keys that have an effect in databases of other dialects only.
fn keys_of_other_dialects(section: &Section, dialect: Option<Dialect>) -> Vec<String> {
    let other = match dialect.filter(|_| section.is_of_data()) {
        Some(Dialect::Sqlite) => &["eventlog"][..],
        Some(Dialect::Postgres) => &["eventlog", "durability"],
        Some(Dialect::MySql | Dialect::MariaDb) => &["durability"],
        None => &[],
    };
    let given = other.iter().filter(|key| section.has(key));
    given.map(|key| section.at.key(*key).to_string()).collect()
}

fn address(
    config: &mut DataSourceConfig,
    section: &mut Section,
    findings: &mut Findings,
    ignored: &mut Vec<String>,
) {
    let at = section.at.key("jdbc-url");
    if section.has("url") && section.has("jdbc-url") {
        findings.add(&at, "is given together with `url`; keep one of the two");
    }
    if let Some(url) = section.text("url") {
        let dialect = dialect(&url);
        // Locks in PostgreSQL refuse what they do not know; other slots are the application's.
        let drops = section.is_of_locks() && dialect != Some(Dialect::Postgres);
        if section.is_of_data() || drops {
            let names = without_effect(&url, dialect).into_iter();
            let at = section.at.key("url");
            ignored.extend(names.map(|name| format!("{at}?{name}")));
        }
        config.application_name = application_name(&url);
        config.url = url;
        return;
    }
    let Some(text) = section.text("jdbc-url") else {
        // An invalid `jdbc-url` was reported already. Locks may have no address.
        if !section.is_of_locks() && !findings.has(&at) && !findings.has(&section.at) {
            findings.add(&section.at.key("url"), "is missing; give `url` or `jdbc-url`");
        }
        return;
    };
    match jdbc::translate(&text) {
        Err(message) => findings.add_value(&at, shown(&text), message),
        Ok(translated) => {
            config.url = translated.url;
            config.username = translated.username;
            config.password = translated.password.map(Into::into);
            config.tls_mode = translated.tls_mode;
            config.tls_root_cert = translated.tls_root_cert;
            if let Some(name) = translated.application_name {
                config.application_name = name;
            }
            let overridden = [
                ("user", config.username.is_some() && section.has("username")),
                ("password", config.password.is_some() && section.has("password")),
            ];
            let overridden = overridden.into_iter().filter(|(_, is)| *is).map(|(name, _)| name);
            let ignored_names = translated.ignored.iter().map(String::as_str).chain(overridden);
            ignored.extend(ignored_names.map(|name| format!("{at}?{name}")));
        }
    }
}

/// The settings of keyed locks. With `provider: in-process` the keys of a server have no effect;
/// they are accepted, so that a file for tests can override the provider alone.
fn locks(section: &mut Section, ignored: &mut Vec<String>) -> LockConfig {
    let locks = LockConfig {
        provider: section.word("provider").and_then(LockProviderKind::named),
        strategy: section.word("strategy").map(|word| match word {
            "session" => LockStrategy::Session,
            _ => LockStrategy::Lease,
        }),
        namespace: section.text("namespace"),
        zone: section.text("zone"),
        term: section.time("term"),
        asynchronous: section.word("grants") == Some("asynchronous"),
        retry_sleep: section.time("retry-sleep"),
        max_retry_sleep: section.time("max-retry-sleep"),
    };
    if locks.provider == Some(LockProviderKind::InProcess) {
        let server = ["url", "jdbc-url", "username", "password", "tls-mode", "tls-root-cert"];
        let given = server.into_iter().filter(|key| section.has(key));
        let given = given.chain(locks.namespace.is_some().then_some("namespace"));
        ignored.extend(given.map(|key| section.at.key(key).to_string()));
    }
    locks
}

fn tls_mode(word: &str) -> Option<TlsMode> {
    Some(match word {
        "disable" => TlsMode::Disable,
        "prefer" => TlsMode::Prefer,
        "require" => TlsMode::Require,
        "verify-ca" => TlsMode::VerifyCa,
        "verify-full" => TlsMode::VerifyFull,
        _ => return None,
    })
}
