//! The rules for one database.

use std::time::Duration;

use super::times::check_longest;
use super::{login, parameters};
use crate::config::address::{Parts, scheme};
use crate::config::data_source::{DataSourceConfig, LONGEST_TIMEOUT};
use crate::config::dialect::Dialect;
use crate::config::findings::Findings;
use crate::config::key::{MOST, MOST_BYTES};
use crate::config::key_path::KeyPath;
use crate::config::spelling::nearest;

/// More than servers allow. The pool has memory for so many from the start.
const MOST_CONNECTIONS: usize = 100_000;
/// A shorter threshold would report ordinary use as a leak.
const LEAST_LEAK: Duration = Duration::from_secs(2);
/// With a shorter lifetime a pool would mostly open connections.
const LEAST_LIFETIME: Duration = Duration::from_secs(30);

/// The use of a slot.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Role {
    /// The framework reads and writes it.
    Data,
    /// Keyed locks. They have further rules.
    Locks,
    /// The application uses it, with any address.
    Other,
}

impl Role {
    /// Whether connections are opened by a driver that drops what it does not know. That of locks in
    /// PostgreSQL refuses it.
    fn uses_parameters_of(self, dialect: Option<Dialect>) -> bool {
        match self {
            Self::Data => true,
            Self::Locks => dialect != Some(Dialect::Postgres),
            Self::Other => false,
        }
    }
}

/// The rules of one database.
pub(super) fn check(config: &DataSourceConfig, role: Role, at: &KeyPath, findings: &mut Findings) {
    let url = at.key("url");
    let parts = Parts::of(&config.url);
    let dialect = config.dialect();
    let is_server = match dialect {
        Some(dialect) => dialect != Dialect::Sqlite,
        None => role == Role::Locks,
    };
    if findings.has(&at.key("jdbc-url")) {
        // The translation of the address reported its problem.
    } else if config.url.trim().is_empty() {
        if role != Role::Locks {
            findings.add(&url, "is missing; give `url` or `jdbc-url`");
        }
    } else if role == Role::Data && dialect.is_none() {
        let message = match scheme(&config.url) {
            "jdbc" => "is a JDBC address; move it to the key `jdbc-url`".to_owned(),
            scheme => unknown_database(scheme, &config.shown_url()),
        };
        findings.add_value(&url, config.shown_url(), message);
    } else if dialect.is_some() && scheme(&config.url) != scheme(&config.url).to_ascii_lowercase() {
        let scheme = scheme(&config.url).to_ascii_lowercase();
        let message = format!("begins with capitals; write `{scheme}:`");
        findings.add_value(&url, config.shown_url(), message);
    } else if is_server && let Some(message) = login::cut_off(&parts) {
        findings.add_value(&url, config.shown_url(), message);
    } else if dialect.is_some() && parts.several_hosts() {
        let message = "names several hosts, and a connection uses one; give one host, or an address that resolves to them";
        findings.add_value(&url, config.shown_url(), message);
    } else if role != Role::Other
        && let Some(message) = parameters::mode_problem(&config.url, dialect)
    {
        findings.add_value(&url, config.shown_url(), message);
    } else if role.uses_parameters_of(dialect)
        && let Some(message) = parameters::problem(&config.url, dialect)
    {
        findings.add_value(&url, config.shown_url(), message);
    }
    if dialect == Some(Dialect::Sqlite) {
        let given = [
            ("username", config.username.is_some()),
            ("password", config.password.is_some()),
            ("tls-mode", config.tls_mode.is_some()),
            ("tls-root-cert", config.tls_root_cert.is_some()),
            ("statement-timeout", config.statement_timeout.is_some()),
        ];
        for (key, _) in given.into_iter().filter(|(_, given)| *given) {
            findings.add(&at.key(key), "has no meaning for SQLite, which is a file; remove it");
        }
    }
    login::check(config, &parts, at, findings);
    numbers(config, at, findings);
}

/// The message for an address of no known database.
fn unknown_database(scheme: &str, shown: &str) -> String {
    let file = if shown.contains(':') { "FILE".to_owned() } else { format!("{shown} for a file") };
    let mut message = format!(
        "is not the address of a known database; write sqlite:{file}, postgres://HOST:PORT/DATABASE, mysql://HOST:PORT/DATABASE or mariadb://HOST:PORT/DATABASE"
    );
    if shown.contains(':')
        && let Some(near) =
            nearest(scheme, ["sqlite", "postgres", "postgresql", "mysql", "mariadb"])
    {
        message += &format!("; did you mean `{near}`?");
    }
    message
}

fn numbers(config: &DataSourceConfig, at: &KeyPath, findings: &mut Findings) {
    let lanes = config.lanes.unwrap_or(1); // none is fine
    for (key, value) in [
        ("maximum-pool-size", config.maximum_pool_size),
        ("lanes", lanes),
        ("fold-limit", config.fold_limit),
        ("max-row-bytes", config.max_row_bytes),
        ("max-commit-bytes", config.max_commit_bytes),
        ("queue-limit", config.queue_limit),
    ] {
        if value == 0 {
            findings.add_value(&at.key(key), value, "must be at least 1");
        }
    }
    for (key, value, most) in [
        ("maximum-pool-size", config.maximum_pool_size, MOST_CONNECTIONS),
        ("lanes", lanes, MOST_CONNECTIONS),
        ("fold-limit", config.fold_limit, MOST),
        ("queue-limit", config.queue_limit, MOST),
        ("max-row-bytes", config.max_row_bytes, MOST_BYTES),
        ("max-commit-bytes", config.max_commit_bytes, MOST_BYTES),
    ] {
        if value > most {
            let message = format!("is too many; at most {most}");
            findings.add_value(&at.key(key), value, message);
        }
    }
    if config.minimum_idle > config.maximum_pool_size && !findings.has(&at.key("maximum-pool-size"))
    {
        let message = format!("exceeds maximum-pool-size, which is {}", config.maximum_pool_size);
        findings.add_value(&at.key("minimum-idle"), config.minimum_idle, message);
    }
    for (key, value, least) in [
        ("leak-detection-threshold", config.leak_detection_threshold, LEAST_LEAK),
        ("max-lifetime", config.max_lifetime, LEAST_LIFETIME),
    ] {
        if !value.is_zero() && value < least {
            let message = format!("is too short; at least {least:?}, or 0s for never");
            findings.add_time(&at.key(key), value, message);
        }
    }
    for (key, value) in [
        ("idle-timeout", config.idle_timeout),
        ("max-lifetime", config.max_lifetime),
        ("leak-detection-threshold", config.leak_detection_threshold),
        ("connection-timeout", config.connection_timeout),
        ("read-timeout", config.read_timeout),
        ("commit-timeout", config.commit_timeout),
        ("settle-timeout", config.settle_timeout),
        ("statement-timeout", config.statement_timeout.unwrap_or_default()),
    ] {
        check_longest(key, value, LONGEST_TIMEOUT, at, findings);
    }
    if !config.read_timeout.is_zero() && config.read_timeout < Duration::from_millis(1) {
        findings.add(&at.key("read-timeout"), "must be at least 1ms, or 0s for none");
    }
    for (key, value) in [
        ("connection-timeout", Some(config.connection_timeout)),
        ("commit-timeout", Some(config.commit_timeout)),
        ("settle-timeout", Some(config.settle_timeout)),
        ("statement-timeout", config.statement_timeout),
    ] {
        if value.is_some_and(|value| value < Duration::from_millis(1)) {
            findings.add(&at.key(key), "must be at least 1ms");
        }
    }
    if config.application_name.trim().is_empty() {
        findings.add(&at.key("application-name"), "is blank; give a name, or remove the key");
    }
}
